"""Where independent jobs run: one after the other in this process, or at the same time as tasks of Ray.

A job is a function of what all jobs share, of one input, and of a function that reports progress. It gives the same
wherever it runs. The only module that imports ray.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

from focalroute.core.errors import ConfigError, FocalrouteError, needing

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
M = TypeVar("M")

Job = Callable[[S, T, Callable[[M], object]], R]

_LOOK_S = 0.2  # how often what was told is fetched
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}


class Engine:
    """Runs jobs; `open_engine` makes it.

    Args:
        ray: Ray, connected; None: jobs run in this process, one after the other.
    """

    def __init__(self, ray: Any = None) -> None:
        self._ray = ray

    @property
    def machines(self) -> int:
        """How many there are."""
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
        """Run the job on every input; what came of each, in the order of the inputs.

        Args:
            job: a function of a module; it, ``shared``, the inputs and what jobs tell and give travel as pickles.
            shared: what all jobs get; they must not change it.
            inputs: what one of them gets each.
            tell: called with what jobs tell, in the calling thread; of each job in order.
            again: whether a job whose machine was lost may be run again on another.

        Raises:
            FocalrouteError: a machine was lost, and with it a job.
            Exception: what a job raised. All that was told until then was passed on; the other jobs are stopped.
        """
        if self._ray is None:
            return [job(shared, one, tell) for one in inputs]
        box = self._ray.remote(num_cpus=0)(_Box).remote()
        settings = {"num_cpus": 1, "max_retries": 3 if again else 0, "scheduling_strategy": "SPREAD"}
        run = self._ray.remote(**settings)(_run)
        everywhere = self._ray.put(shared)
        tasks = [run.remote(job, everywhere, one, box) for one in inputs]
        try:
            self._wait(tasks, box, tell)
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

    def _wait(self, tasks: Sequence[Any], box: Any, tell: Callable[[Any], object]) -> None:
        """Until all are done, or one has failed."""
        left = list(tasks)
        while left:
            done, left = self._ray.wait(left, timeout=_LOOK_S)
            for message in self._ray.get(box.take.remote()):
                tell(message)
            self._ray.get(done)


#: One job after the other, in this process.
HERE = Engine()


@contextmanager
def open_engine(where: str = "local") -> Iterator[Engine]:
    """The engine of this name; what was started for it is gone at the end.

    Args:
        where: "local": this process. "ray": the Ray cluster that RAY_ADDRESS names, or else one of this machine's
            cores, which lasts as long as the engine and listens on the loopback interface alone. "ray://host:port":
            the cluster whose client server listens there.

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
    """Ray, connected; it prints nothing, reports nothing, and opens no page."""
    cluster: Any = {"num_cpus": os.cpu_count(), "include_dashboard": False} if address == "local" else {}
    with _environment({**_QUIET, **(_private() if address == "local" else {})}):
        with needing("engine: needs Ray", "ray"):
            import ray
        try:
            with warnings.catch_warnings(action="ignore"):  # what is wrong is said below
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, **cluster)
        except Exception as error:  # noqa: BLE001 - Ray raises that itself where a cluster does not start in time
            said = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise ConfigError(f"engine: no Ray cluster at {address}: {said}") from None
        try:
            yield ray
        finally:
            ray.shutdown()


@cache  # Ray reads it once in a process
def _private() -> Mapping[str, str]:
    """Return settings that keep a cluster private: Ray would listen on every interface of a Linux machine.

    Who has imported Ray before has decided.
    """
    if sys.modules.get("ray") is not None:
        return {}
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", **token}


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """With these variables; those that are set already stay as they are."""
    new = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


class _Box:
    """Holds what jobs tell until it is fetched. Lives in a process of its own."""

    def __init__(self) -> None:
        self._told: list[Any] = []

    def put(self, message: Any) -> None:
        self._told.append(message)

    def take(self) -> list[Any]:
        told, self._told = self._told, []
        return told


def _run(job: Job[Any, Any, Any, R], shared: Any, one: Any, box: Any) -> R:
    """One job as a task; it ends when all that it told has arrived."""
    import ray

    last = None

    def tell(message: Any) -> None:
        nonlocal last
        last = box.put.remote(message)

    try:
        return job(shared, one, tell)
    finally:
        if last is not None:
            ray.get(last)
