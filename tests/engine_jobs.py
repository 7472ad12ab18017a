"""Jobs for tests of the engine: functions of a module, as a job has to be."""

from __future__ import annotations

import os
from collections.abc import Callable

from focalroute.core.errors import ConfigError

__all__ = ["die", "refuse", "times", "where"]


def times(shared: int, one: int, tell: Callable[[tuple[int, int]], object]) -> int:
    """A product, told about three times."""
    for number in range(3):
        tell((one, number))
    return shared * one


def refuse(shared: int, one: int, tell: Callable[[int], object]) -> None:
    """A typed error, after something was told."""
    tell(one)
    raise ConfigError(f"one: {one} of {shared}")


def die(shared: int, one: int, tell: Callable[[int], object]) -> None:
    """The end of its process."""
    os._exit(1)


def where(shared: None, one: int, tell: Callable[[int], object]) -> int:
    """The process that it ran in."""
    return os.getpid()
