"""A real redis-server (or valkey-server) for tests: on a free port of this machine, with a folder of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

__all__ = ["RedisServer", "free_port", "needed_redis", "place", "redis_server"]


def needed_redis() -> str:
    """The server's program; the test skips with a reason where there is none, unless FOCALROUTE_REAL=1."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        reason = "no redis-server here (apt-get install redis-server)"
        if os.environ.get("FOCALROUTE_REAL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def free_port() -> int:
    """Find a free port below those that systems give to connections.

    So no connection takes it before its server is up, or while the server is down.
    """
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def place(url: str) -> str:
    """The address of a store of its own on a server: with a prefix that nobody else uses."""
    return f"{url}{'&' if '?' in url else '?'}prefix=test-{secrets.token_hex(6)}"


class RedisServer:
    """A server with its append-only file on; to be entered. It may be killed, and started again on the same files.

    Args:
        folder: for its files; it must exist.
        options: of redis-server, over those that are set here.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._program = needed_redis()
        self._folder = folder
        self._options = options
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address as a store."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait until it has read its files."""
        command = [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--daemonize", "no"]
        log = (self._folder / "log").open("ab")
        self._process = subprocess.Popen([*command, *self._options], stdout=log, stderr=log)
        log.close()
        give_up = time.monotonic() + 30
        while not self._answers():
            assert time.monotonic() < give_up, (self._folder / "log").read_text()
            assert self._process.poll() is None, (self._folder / "log").read_text()
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"PING\r\n")
                said = connection.recv(64)
        except OSError:
            return False
        return said.startswith((b"+PONG", b"-NOAUTH"))

    def stop(self) -> None:
        """Let it write its files and end."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Let it hang: it takes connections, and says nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it work again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests of a process; every store on it takes a place of its own."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running
