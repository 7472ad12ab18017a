"""A chat completion server for the benchmarks, as fast as possible: it always gives the same reply.

It runs in its own process, as ``python server.py DELAY_MS``, prints its port, and stops when its standard input closes.
Of a streamed reply the first piece comes at once, and `PIECES` more come 2 ms apart.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PIECES = 10
USAGE = {"prompt_tokens": 60, "completion_tokens": 6, "total_tokens": 66}
REPLY = json.dumps(
    {
        "id": "chatcmpl-benchmark",
        "object": "chat.completion",
        "created": 0,
        "model": "floor",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "The answer is 42."}}
        ],
        "usage": USAGE,
    }
).encode()


def event(choice: object, **more: object) -> bytes:
    """Return one event of a stream."""
    choices = [{"index": 0, **choice}] if isinstance(choice, dict) else []
    head = {"id": "chatcmpl-benchmark", "object": "chat.completion.chunk", "created": 0, "model": "floor"}
    return f"data: {json.dumps({**head, 'choices': choices, **more})}\n\n".encode()


async def serve(delay_s: float) -> None:
    """Serve until standard input closes."""
    from aiohttp import web

    async def complete(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if delay_s:
            await asyncio.sleep(delay_s)
        if b'"stream":true' in body.replace(b" ", b""):
            return await stream(request)
        return web.Response(body=REPLY, content_type="application/json")

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(PIECES + 1):
            if number:
                await asyncio.sleep(0.002)
            await response.write(event({"delta": {"content": " more"}, "finish_reason": None}))
        await response.write(event({"delta": {}, "finish_reason": "stop"}))
        await response.write(event(None, usage=USAGE) + b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


@contextmanager
def floor_server(delay_ms: float = 0) -> Iterator[str]:
    """Start a server; yield its base_url."""
    command = [sys.executable, str(Path(__file__).resolve()), str(delay_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        process.stdin.close()
        process.wait(10)


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]) / 1000))
