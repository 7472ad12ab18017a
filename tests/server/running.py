"""Servers to be asked: in a thread of this process, or the real command in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from focalroute import AsyncEnsemble, Endpoint
from focalroute.cli.server import _listening
from focalroute.server import Callers, create_app
from focalroute.server.connections import BoundedProtocol, BoundedServer, server_config
from tests.interruptible import heed_interrupts

__all__ = ["ask", "command", "get", "post", "served", "started"]


@contextlib.contextmanager
def served(
    endpoints: Iterable[Endpoint],
    *,
    callers: Callers | None = None,
    local_only: bool = False,
    protocol: type[BoundedProtocol] | None = None,
    **settings: Any,
) -> Iterator[str]:
    """A server of these endpoints; gives its address."""
    up, servers = threading.Event(), []

    async def serve() -> None:
        async with AsyncEnsemble(endpoints, **settings) as ensemble:
            app = create_app(ensemble, callers=callers, local_only=local_only)
            servers.append(BoundedServer(server_config(app, 30, protocol)))
            up.set()
            await servers[0].serve(sockets=[sock])

    with _listening("127.0.0.1", 0) as sock:
        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        up.wait()
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            servers[0].should_exit = True
            thread.join()


def command(*arguments: str, **how: Any) -> subprocess.Popen[str]:
    """The command line, running."""
    code = "from focalroute.cli.app import main; main()"
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
        **how,
    )


@contextlib.contextmanager
def started(pool: Path, *arguments: str, **how: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``focalroute serve`` on a free port; gives the process and its address."""
    with command("serve", "--pool", str(pool), "--port", "0", *arguments, **how) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://[^/]+", line)
        assert found, line + process.stderr.read()
        try:
            yield process, found[0]
        finally:
            process.kill()


def post(url: str, body: Any, **headers: str) -> tuple[int, Any]:
    """Status and JSON of a POST; ``body`` in bytes goes as it is."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return _sent(urllib.request.Request(url, data, {"Content-Type": "application/json", **headers}))


def get(url: str, **headers: str) -> tuple[int, Any]:
    """Status and JSON of a GET; what is none, as text."""
    return _sent(urllib.request.Request(url, headers=headers))


def _sent(request: urllib.request.Request) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, _content(response.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _content(error.read().decode())


def _content(text: str) -> Any:
    return json.loads(text) if text.startswith("{") else text


def ask(text: str = "What is 17 + 25?", **fields: Any) -> dict[str, Any]:
    """A request for a chat completion."""
    return {"model": "focalroute", "messages": [{"role": "user", "content": text}], **fields}
