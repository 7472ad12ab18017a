"""Runs an update in its own process, so that it does not hold the interpreter lock of a process that serves asks."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from focalroute.core.errors import PolicyError
from focalroute.learn.update_report import UpdateReport

_NICE = 10  # asks have priority
_CHECK_STOP_EVERY_S = 0.2

_log = logging.getLogger("focalroute")


def can_start() -> bool:
    """Whether this Python can be started as another process: not in a frozen program, or one that embeds Python."""
    return Path(sys.executable or "").stem.lower().startswith("python")


def update_in_subprocess(
    store: Path, root: str | Path, *, seed: int | None = None, stop: threading.Event | None = None
) -> UpdateReport:
    """Run `focalroute.learn.online.update_policy` on a store's file, by ``focalroute update``.

    It blocks until the process has ended. If this process dies, the other one continues; it publishes only whole
    versions.

    Args:
        stop: when set, the process is killed.

    Raises:
        PolicyError: the update failed; the message is that of the process.
    """
    command = [sys.executable, "-P", "-m", "focalroute", "update", "--json"]
    command += [f"--store={store}", f"--policy={Path(root).absolute()}"]
    if seed is not None:
        command.append(f"--seed={seed}")
    here = os.pathsep.join(map(str, sys.path))  # so that the process can import the same modules
    environment = {**os.environ, "PYTHONPATH": here}
    try:
        process = subprocess.Popen(  # noqa: S603 - this Python, by its path
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except OSError as error:
        raise PolicyError(f"no process could be started to update the policies: {error.strerror}") from None
    with process:
        if sys.platform != "win32":
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        while True:
            try:
                report, said = process.communicate(timeout=_CHECK_STOP_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                if stop is not None and stop.is_set():
                    process.kill()
    lines = said.splitlines()
    why = lines.pop() if process.returncode and lines else f"its process ended with code {process.returncode}"
    for line in lines:
        _log.warning("%s", line.removeprefix("WARNING: "))
    if process.returncode:
        raise PolicyError(f"the policies could not be updated: {why.removeprefix('error: ')}")
    return _reports().validate_json(report)


@cache
def _reports() -> TypeAdapter[UpdateReport]:
    return TypeAdapter(UpdateReport)
