"""`shoal up` as users start it: a process, its output, and its remaining processes and files.

Every run has its own folder for temporary files, and a mark in its environment that all of its
processes inherit. So the tests find all remains of a run, however it ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hang_limit import HANG_S

CONTROLLER = "streams.controller"
ENGINE = "executors.engines.simulated"
MARK = "SHOAL_ACCEPTANCE_MARK"
ONE_MODEL = """mode: act
regions:
  eu: {l4: {gpu: L4, per_node: 1, max: 2, price: 0.85}}
models:
  mini:
    source: openai/gpt-oss-20b
    slo: {ttft: 2s, tpot: 80ms}
    workload: {input: 200, output: 60}
    max_len: 16384
    min: 2
"""
POLL_S = 0.2


@dataclass(frozen=True)
class Proc:
    """One process of a run. argv: its command line."""

    pid: int
    argv: tuple[str, ...]

    @property
    def module(self) -> str:
        """The module after `python -m` in the command line; "" for other commands."""
        return self.argv[self.argv.index("-m") + 1] if "-m" in self.argv else ""

    def option(self, name: str) -> str:
        """The value of option `name` on the command line (--name=value)."""
        found = (arg.removeprefix(f"{name}=") for arg in self.argv if arg.startswith(f"{name}="))
        return next(found, "")


class Run:
    """One `shoal up` with a trace of one request per domain second. trace_s:
    length of the trace.
    """

    def __init__(
        self, folder: Path, *options: str, config: str = ONE_MODEL, trace_s: int = 3600
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.temporary = folder / "temporary"
        self.temporary.mkdir(parents=True)
        self.summary_path = folder / "summary.json"
        self._errors = folder / "stderr"
        self.lines: list[str] = []
        argv = [shoal(), *arguments(folder, *options, config=config, trace_s=trace_s)]
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, MARK: self.mark, "TMPDIR": str(self.temporary)},
                cwd=folder,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def errors(self) -> str:
        """The output on stderr until now."""
        return self._errors.read_text(errors="replace")

    @property
    def summary(self) -> dict[str, Any]:
        """The content of the file of --summary."""
        found: dict[str, Any] = json.loads(self.summary_path.read_bytes())
        return found

    def line(self, pattern: str, after: int = 0) -> re.Match[str]:
        """The first printed line at or after index `after` that matches."""

        def matching_line() -> re.Match[str] | None:
            matches = (re.search(pattern, line) for line in self.lines[after:])
            return next(filter(None, matches), None)

        return self.until(matching_line, f"a line like {pattern!r}")

    def until(self, happened: Callable[[], Any], what: str) -> Any:
        """The result of `happened` once it is true."""
        give_up = time.monotonic() + HANG_S
        while not (value := happened()):
            said = "\n".join(self.lines[-25:])
            assert time.monotonic() < give_up, f"no {what} in {HANG_S} s:\n{said}\n{self.errors}"
            time.sleep(POLL_S)
        return value

    def url(self) -> str:
        """The address of the gateway, once every model is served."""
        found: str = self.line(r"API (http://[0-9.:]+)/v1")[1]
        return found

    def processes(self, module: str = "") -> list[Proc]:
        """The living processes of the run (only those of `module`, if given), found by their
        mark."""
        found = living(self.mark, self.temporary)
        return [proc for proc in found if not module or proc.module == module]

    def serving(self) -> list[Proc]:
        """The two engines of the run, once each has answered some requests; before that an empty
        list.

        The first requests may be probes.
        """
        engines = self.processes(ENGINE)
        return engines if len(engines) == 2 and min(map(served_by, engines)) >= 5 else []

    def end(self) -> int:
        """The exit code of the run, which must end by itself."""
        try:
            code = self.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            said = "\n".join(self.lines[-25:])
            raise AssertionError(f"still there after {HANG_S} s:\n{said}\n{self.errors}") from None
        self._reader.join(5.0)
        return code

    def stop(self, number: signal.Signals) -> dict[str, Any]:
        """End the run under load with signal `number`. Asserts that nothing of the run remains and
        that no request failed; returns the summary, which must account for all sent requests.

        A request that the end cuts off is dropped, not failed.
        """
        os.kill(self.process.pid, number)
        assert self.end() == 128 + number
        assert self.processes() == []
        assert list(self.temporary.iterdir()) == []
        assert self.errors == ""
        requests = self.summary["requests"]
        assert requests["served"] + requests["dropped"] == requests["sent"]
        assert requests["served"] > 0
        assert requests["failed"] == 0
        assert f"{requests['sent']} sent, " in "\n".join(self.lines)
        return self.summary

    def discard(self) -> None:
        """Remove all processes and files of the run, whatever the result of the test is."""
        for proc in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(proc.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._reader.join(5.0)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
        self.process.stdout.close()


def arguments(
    folder: Path, *options: str, config: str = ONE_MODEL, trace_s: int = 3600
) -> list[str]:
    """The command line of `shoal` for a run with its files in `folder`. Writes the input files
    there.
    """
    config_path = folder / "shoal.yaml"
    config_path.write_text(config)
    trace = folder / "trace.csv"
    rows = "".join(f"{n * 1000},200,60\n" for n in range(trace_s))
    trace.write_text("timestamp_ms,input_tokens,output_tokens\n" + rows)
    files = ["--config", str(config_path), "--trace", str(trace)]
    files += ["--http", "127.0.0.1:0"]  # parallel runs must not race for the default
    return ["up", *files, "--speed", "20", "--summary", str(folder / "summary.json"), *options]


def served_by(engine: Proc) -> int:
    """Number of requests that an engine answered in full, by its own metrics; 0 if it does not
    answer.
    """
    url = f"http://127.0.0.1:{engine.option('--port')}/metrics"
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2.0) as answer:
        text = answer.read().decode()
        counts = re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", text, re.MULTILINE)
        return int(sum(map(float, counts)))
    return 0


def living(mark: str, folder: Path) -> list[Proc]:
    """Processes with `mark` or a path in `folder` in their environment, except zombies.

    Engines lack the mark.
    """
    wanted, inside = f"{MARK}={mark}".encode(), f"={folder}/".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            environment = (entry / "environ").read_bytes()
            if wanted in environment.split(b"\0") or inside in environment:
                argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                found.append(Proc(int(entry.name), tuple(argv)))
    return found


def shoal() -> str:
    """The console script in the folder of this interpreter."""
    return str(Path(sys.executable).with_name("shoal"))
