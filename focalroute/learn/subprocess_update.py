"""An update in a process of its own: asks that are served meanwhile need not share the interpreter's lock with it."""

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

_NICE = 10  # asks go first
_LOOK_EVERY_S = 0.2  # whether it is to stop

_log = logging.getLogger("focalroute")


def can_start() -> bool:
    """Whether this program is run by a Python that can be started once more: not if it is frozen, or embeds one."""
    return Path(sys.executable or "").stem.lower().startswith("python")


def update_in_subprocess(
    store: Path, root: str | Path, *, seed: int | None = None, stop: threading.Event | None = None
) -> UpdateReport:
    """The same as `focalroute.learn.online.update_policy` on a store's file, by ``focalroute update``.

    It blocks until that process has ended, which goes on if this one dies, and publishes whole versions only.

    Args:
        stop: once it is set the process is killed.

    Raises:
        PolicyError: it failed; the message is its own.
    """
    command = [sys.executable, "-P", "-m", "focalroute", "update", "--json"]
    command += [f"--store={store}", f"--policy={Path(root).absolute()}"]
    if seed is not None:
        command.append(f"--seed={seed}")
    here = os.pathsep.join(map(str, sys.path))  # what can be imported here can be there
    environment = {**os.environ, "PYTHONPATH": here}
    try:
        process = subprocess.Popen(  # noqa: S603 - this very Python, by its path
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
                report, said = process.communicate(timeout=_LOOK_EVERY_S)
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
