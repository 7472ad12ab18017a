"""The arguments of an ensemble that a pool file gives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from focalroute.core.config import FORMER_KEYS, load_pool
from focalroute.core.errors import ConfigError
from focalroute.serving.embedders import embedder_of

#: What no pool file's [ensemble] holds: it has a table of its own, or is code.
_ELSEWHERE = {"endpoints", "budget", "embedder", "judge"}


def pool_arguments(make: Callable[..., object], path: str | Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``make`` that a pool file gives, ``settings`` over them.

    Raises:
        ConfigError: the file is wrong, or has a setting that ``make`` does not take.
    """
    pool = load_pool(path)
    known = set(inspect.signature(make).parameters) - _ELSEWHERE
    unknown = sorted(set(pool.ensemble) - known)
    if unknown and unknown[0] in FORMER_KEYS:
        raise ConfigError(f"{path}: ensemble: {unknown[0]} is named {FORMER_KEYS[unknown[0]]} now; rename it")
    if unknown:
        raise ConfigError(f"{path}: ensemble: unknown key {unknown[0]!r}; known keys: {', '.join(sorted(known))}")
    given = {"endpoints": pool.endpoints, "budget": pool.budget, **pool.ensemble, **settings}
    return given if "embedder" in given else {**given, "embedder": embedder_of(pool, path)}
