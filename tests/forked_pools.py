"""Forks the processes of simulated pools from one that has imported their server.

Started from nothing each takes half a second of CPU for imports, and the tests start a hundred. They are what they
are: processes that serve over HTTP and end with their standard input. `tests/sim/test_process.py` starts its own from
nothing.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from focalroute.sim import SimulatedPool

__all__ = ["FROM_NOTHING", "ForkedPools"]

#: How pools start otherwise.
FROM_NOTHING = SimulatedPool._start_process

_ROOT = Path(__file__).resolve().parents[1]
_PID_BYTES = 8
_STDERR = 2


class ForkedPools:
    """Forks the processes of simulated pools from one that starts with the first of them."""

    def __init__(self) -> None:
        self._origin: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def begin(self) -> Any:
        """Start the process of a pool, as far as `SimulatedPool` uses one."""
        (ours_in, theirs_out), (theirs_in, ours_out) = os.pipe(), os.pipe()
        with self._lock:
            origin = self._socket or self._start()
            socket.send_fds(origin, [b"!"], [theirs_in, theirs_out, _STDERR])
            pid = int.from_bytes(origin.recv(_PID_BYTES))
        os.close(theirs_in)
        os.close(theirs_out)
        return _Forked(pid, ours_in, ours_out)

    def _start(self) -> socket.socket:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tests.forked_pools", str(theirs.fileno())]
            self._origin = subprocess.Popen(command, cwd=_ROOT, pass_fds=[theirs.fileno()], start_new_session=True)
        return self._socket

    def close(self) -> None:
        """End the process that they are forked from, once the last of them has ended."""
        if self._origin is not None and self._socket is not None:
            self._socket.close()
            self._origin.wait()


class _Forked:
    """The part of `subprocess.Popen` that is used."""

    def __init__(self, pid: int, stdout: int, stdin: int) -> None:
        self._pidfd = os.pidfd_open(pid)  # it waits for its spec, and so has not ended
        self.stdin, self.stdout = os.fdopen(stdin, "w"), os.fdopen(stdout)

    def wait(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if self._pidfd < 0:
            return
        if not select.select([self._pidfd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a simulated pool", timeout or 0)
        os.close(self._pidfd)
        self._pidfd = -1

    def kill(self) -> None:
        """End it at once."""
        if self._pidfd >= 0:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


def _serve(origin: socket.socket) -> None:
    """Fork a pool for each request, until there are no more to come."""
    import gc

    from focalroute.sim import __main__, server  # noqa: F401 - which the pools then have

    gc.freeze()
    while True:
        asked, streams, _, _ = socket.recv_fds(origin, 1, 3)
        if not asked:
            break
        pid = os.fork()
        if not pid:
            _become_pool(origin, streams)
        for stream in streams:
            os.close(stream)
        origin.sendall(pid.to_bytes(_PID_BYTES))
        while _ended(os.WNOHANG):
            pass
    while _ended(0):
        pass


def _ended(options: int) -> bool:
    """Whether a pool has ended that was not heeded yet."""
    try:
        return os.waitpid(-1, options)[0] > 0
    except ChildProcessError:
        return False


def _become_pool(origin: socket.socket, streams: list[int]) -> None:
    from focalroute.sim.__main__ import main

    try:
        origin.close()
        os.setsid()
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        sys.argv = ["focalroute.sim", "--from-stdin"]
        main()
    except BaseException:  # noqa: BLE001 - nothing of it may go on as the process that forks
        traceback.print_exc()
    finally:
        os._exit(0)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
