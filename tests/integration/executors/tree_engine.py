"""An engine of two processes, like vLLM: an HTTP server and a core that the server starts.

`python tree_engine.py PORT START_S`. The core only sleeps. If it is suspended (SIGSTOP), generation
hangs while /health answers 200. If it is killed, the server exits with code 0.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CORE = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]
GAUGES = "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


class Handler(BaseHTTPRequestHandler):
    """HTTP handler that counts running requests. `main` sets `core`."""

    core: subprocess.Popen[bytes]
    running = 0
    tokens = 0

    def do_GET(self) -> None:
        values = dict.fromkeys(GAUGES, 0) | {"num_requests_running": Handler.running}
        lines = [f"vllm:{name} {value}" for name, value in values.items()]
        lines.append(f"vllm:generation_tokens_total {Handler.tokens}")
        self._answer("\n".join(lines).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        Handler.running += 1
        try:
            until = self.headers.get("X-Until-File")
            while state_of(Handler.core.pid) == "T" or (until and not Path(until).exists()):
                time.sleep(0.05)
            Handler.tokens += 1
            self._answer(b"{}")
        finally:
            Handler.running -= 1

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    time.sleep(float(sys.argv[2]))
    Handler.core = subprocess.Popen(CORE)

    def quit_with_core() -> None:
        Handler.core.wait()
        os._exit(0)

    def stop(*_: object) -> None:
        Handler.core.send_signal(signal.SIGCONT)
        Handler.core.kill()

    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=quit_with_core, daemon=True).start()
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
