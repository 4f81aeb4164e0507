"""An engine as far as executor and router see one: /health, /metrics, /v1/completions.

Called like vLLM: `python engine_stub.py serve WEIGHTS --host=H --port=P ...`. A completion with
?s=S streams a token every 50 ms for S seconds, one with "stream": true and "max_tokens": N streams
N tokens, any other one answers one token. SIGTERM ends it at
once and cuts streams, as vLLM does without a shutdown time-out. STUB_SHUTDOWN_S gives streams time;
STUB_START_S delays the start. Standard library only, so that it starts fast.
"""

import asyncio
import json
import os
import signal
import sys

TOKEN_S = 0.05
CHUNK = b'data: {"choices":[{"text":"x"}]}\n\n'
running = 0
tokens = 0


def _answer(writer: asyncio.StreamWriter, body: bytes, kind: bytes = b"text/plain") -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    writer.write(head % (kind, len(body)) + body)


async def _stream(writer: asyncio.StreamWriter, count: int) -> None:
    global running, tokens
    running += 1
    try:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        for _ in range(count):
            writer.write(b"%x\r\n%s\r\n" % (len(CHUNK), CHUNK))
            await writer.drain()
            tokens += 1
            await asyncio.sleep(TOKEN_S)
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()
    finally:
        running -= 1


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    global tokens
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        _, path, _ = head.split(" ", 2)
        body = b"{}"
        for line in head.lower().split("\r\n"):
            if line.startswith("content-length:"):
                body = await reader.readexactly(int(line.split(":")[1])) or body
        if path.startswith("/v1/completions?s="):
            await _stream(writer, int(float(path.partition("?s=")[2]) / TOKEN_S))
        elif path.startswith("/v1/") and b'"stream":true' in body.replace(b" ", b""):
            await _stream(writer, int(json.loads(body)["max_tokens"]))
        elif path.startswith("/v1/"):
            tokens += 1
            _answer(writer, b'{"choices":[{"text":"x","finish_reason":"length"}]}',
                    b"application/json")  # fmt: skip
        elif path.startswith("/metrics"):
            text = (
                f'vllm:num_requests_running{{model_name="m"}} {running}\n'
                'vllm:num_requests_waiting{model_name="m"} 0\n'
                'vllm:kv_cache_usage_perc{model_name="m"} 0\n'
                f'vllm:generation_tokens_total{{model_name="m"}} {tokens}\n'
                f'vllm:prompt_tokens_total{{model_name="m"}} {tokens}\n'
            )
            _answer(writer, text.encode())
        else:
            _answer(writer, b"ok")
        await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def main() -> None:
    words = [word for word in sys.argv if word.startswith("--") and "=" in word]
    options = dict(word[2:].split("=", 1) for word in words)
    host = options.get("host") or os.environ["POD_IP"]
    await asyncio.sleep(float(os.environ.get("STUB_START_S", "0")))
    server = await asyncio.start_server(_serve, host, int(options.get("port", "8000")))
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    await end.wait()
    server.close()
    for _ in range(int(float(os.environ.get("STUB_SHUTDOWN_S", "0")) * 10)):
        if not running:
            break
        await asyncio.sleep(0.1)
    os._exit(0)


asyncio.run(main())
