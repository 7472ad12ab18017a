"""Runs independent jobs, one after the other in this process or in parallel as Ray tasks.

A job is a function of a shared object, one input, and a callback for messages. Its result must not depend on where it
runs. This is the only module that imports Ray.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from focalroute.core.errors import ConfigError, FocalrouteError, needing

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
M = TypeVar("M")

Job = Callable[[S, T, Callable[[M], object]], R]

_POLL_S = 0.2  # between two fetches of messages
_CONNECT_TIMEOUT_S = 10.0
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}


class Engine:
    """Runs jobs; made by `open_engine`.

    Args:
        ray: the connected Ray module; None: jobs run in this process, one after the other.
    """

    def __init__(self, ray: Any = None) -> None:
        self._ray = ray

    @property
    def machines(self) -> int:
        """The number of machines."""
        return 1 if self._ray is None else sum(bool(node["Alive"]) for node in self._ray.nodes())

    def each(
        self,
        job: Job[S, T, M, R],
        shared: S,
        inputs: Sequence[T],
        tell: Callable[[M], object] = lambda _: None,
        *,
        again: bool = True,
    ) -> list[R]:
        """Run the job on every input; return the results in the order of the inputs.

        Args:
            job: a module-level function. With Ray, it is pickled, as are ``shared``, inputs, messages and results.
            shared: an object for all jobs, which must not change it.
            inputs: one for each job.
            tell: called in this thread with each message of the jobs; the messages of one job keep their order.
            again: whether a job whose machine was lost may run again on another machine.

        Raises:
            FocalrouteError: a job was lost, with its machine or its memory.
            Exception: a job raised it. Earlier messages were passed on; the other jobs are stopped.
        """
        if self._ray is None:
            return [job(shared, one, tell) for one in inputs]
        from ray.util.queue import Queue

        messages = Queue(actor_options={"num_cpus": 0})
        settings = {"num_cpus": 1, "max_retries": 3 if again else 0, "scheduling_strategy": "SPREAD"}
        run = self._ray.remote(**settings)(job)
        shared_ref = self._ray.put(shared)
        tasks = [run.remote(shared_ref, one, messages.put) for one in inputs]
        try:
            self._wait(tasks, messages, tell)
            return list(self._ray.get(tasks))
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            raise FocalrouteError(
                f"engine: a job was lost ({type(error).__name__}), with its machine or its memory; run it again"
            ) from None
        finally:
            for task in tasks:
                self._ray.cancel(task, force=True)

    def _wait(self, tasks: Sequence[Any], messages: Any, tell: Callable[[Any], object]) -> None:
        """Wait until all tasks are done, passing on messages; raise the error of the first that fails."""
        pending = list(tasks)
        while pending:
            done, pending = self._ray.wait(pending, timeout=_POLL_S)
            for message in messages.get_nowait_batch(messages.qsize()):
                tell(message)
            self._ray.get(done)  # raises a failed task's error


#: Runs one job after the other, in this process.
HERE = Engine()


@contextmanager
def open_engine(where: str = "local") -> Iterator[Engine]:
    """Open the engine of this name; on leaving the context, everything started for it is stopped.

    Args:
        where: "local": this process. "ray": the Ray cluster at RAY_ADDRESS; without that variable, a new one on this
            machine's cores, which listens only on the loopback interface. "ray://host:port": the cluster whose Ray
            Client server has this address.

    Raises:
        ConfigError: there is no such engine, Ray is not installed, or its cluster cannot be reached.
    """
    if where == "local":
        yield HERE
    elif where == "ray" or where.startswith("ray://"):
        with _ray(_address(where)) as ray:
            yield Engine(ray)
    else:
        raise ConfigError(f"engine: must be local, ray or ray://host:port, not {where!r}")


def shares_files(where: str) -> bool:
    """Whether jobs on the engine of this name see the files of this machine; see `open_engine`."""
    return _address(where) == "local"


def _address(where: str) -> str:
    """Return the address of an engine's cluster; "local": this process, or a new cluster on this machine."""
    if where == "ray":
        return os.environ.get("RAY_ADDRESS") or "local"
    return where


@contextmanager
def _ray(address: str) -> Iterator[Any]:
    """Connect Ray, without output or usage reports; a new local cluster is private and has no dashboard."""
    cluster: dict[str, Any] = {}
    settings: Mapping[str, str] = _QUIET
    if address == "local":
        cluster = {"num_cpus": os.cpu_count(), "include_dashboard": False}
        settings = {**_QUIET, **_private()}
    with _environment(settings):
        with needing("engine: needs Ray", "ray"):
            import ray
        try:
            with warnings.catch_warnings(action="ignore"):  # errors are reported below
                _check_reachable(address)
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, **cluster)
        except Exception as error:  # noqa: BLE001 - Ray raises bare Exceptions, as when a cluster does not start in time
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise ConfigError(f"engine: no Ray cluster at {address}: {reason}") from None
        try:
            yield ray
        finally:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise OSError if nothing listens at a ray:// address; Ray itself would try for 35 seconds."""
    parts = urlsplit(address)
    if parts.scheme == "ray" and parts.port is not None:
        socket.create_connection((parts.hostname or "", parts.port), _CONNECT_TIMEOUT_S).close()


@cache  # Ray reads these once in a process
def _private() -> Mapping[str, str]:
    """Return the settings of a private cluster; by default Ray on Linux listens on every interface.

    They have no effect if Ray was imported before.
    """
    if sys.modules.get("ray") is not None:
        return {}
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", **token}


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the context; those already set are kept as they are."""
    new = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)
