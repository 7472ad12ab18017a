"""Runs independent jobs, one after the other in this process or in parallel as Ray tasks.

A job is a function of a shared object, one input, and a callback for messages. Its result does not depend on where it
runs. The only module that imports ray.
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

_LOOK_S = 0.2  # between two fetches of messages
_REACH_S = 10.0
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
            job: a module-level function; it, ``shared``, the inputs, messages and results are pickled.
            shared: an object for all jobs, which must not change it.
            inputs: one for each job.
            tell: called with the jobs' messages in the calling thread, in order for each job.
            again: whether a job whose machine was lost may be run again on another.

        Raises:
            FocalrouteError: a machine was lost, and with it a job.
            Exception: the error that a job raised. Earlier messages were passed on; the other jobs are stopped.
        """
        if self._ray is None:
            return [job(shared, one, tell) for one in inputs]
        from ray.util.queue import Queue

        told = Queue(actor_options={"num_cpus": 0})
        settings = {"num_cpus": 1, "max_retries": 3 if again else 0, "scheduling_strategy": "SPREAD"}
        run = self._ray.remote(**settings)(job)
        everywhere = self._ray.put(shared)
        tasks = [run.remote(everywhere, one, told.put) for one in inputs]
        try:
            self._wait(tasks, told, tell)
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

    def _wait(self, tasks: Sequence[Any], told: Any, tell: Callable[[Any], object]) -> None:
        """Wait until all tasks are done or one has failed, passing on messages."""
        left = list(tasks)
        while left:
            done, left = self._ray.wait(left, timeout=_LOOK_S)
            for message in told.get_nowait_batch(told.qsize()):
                tell(message)
            self._ray.get(done)


#: One job after the other, in this process.
HERE = Engine()


@contextmanager
def open_engine(where: str = "local") -> Iterator[Engine]:
    """Open the engine of this name; whatever is started for it ends with the context.

    Args:
        where: "local": this process. "ray": the Ray cluster that RAY_ADDRESS names, else a new one on this machine's
            cores, which lasts as long as the engine and listens only on the loopback interface. "ray://host:port": the
            cluster with a client server at this address.

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
    return os.environ.get("RAY_ADDRESS") or "local" if where == "ray" else where


@contextmanager
def _ray(address: str) -> Iterator[Any]:
    """Connect Ray, without output, usage reports or dashboard."""
    cluster: Any = {"num_cpus": os.cpu_count(), "include_dashboard": False} if address == "local" else {}
    with _environment({**_QUIET, **(_private() if address == "local" else {})}):
        with needing("engine: needs Ray", "ray"):
            import ray
        try:
            with warnings.catch_warnings(action="ignore"):  # errors are reported below
                _reach(address)
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, **cluster)
        except Exception as error:  # noqa: BLE001 - Ray raises bare Exceptions, as when a cluster does not start in time
            said = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise ConfigError(f"engine: no Ray cluster at {address}: {said}") from None
        try:
            yield ray
        finally:
            ray.shutdown()


def _reach(address: str) -> None:
    """Raise OSError unless something listens at a client server's address; Ray itself would try for 35 seconds."""
    parts = urlsplit(address)
    if parts.scheme == "ray" and parts.port is not None:
        socket.create_connection((parts.hostname or "", parts.port), _REACH_S).close()


@cache  # Ray reads these once in a process
def _private() -> Mapping[str, str]:
    """Return settings that keep a cluster private, as Ray by default listens on every interface on Linux.

    They have no effect if Ray was imported before.
    """
    if sys.modules.get("ray") is not None:
        return {}
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", **token}


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the context, unless they are set already."""
    new = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)
