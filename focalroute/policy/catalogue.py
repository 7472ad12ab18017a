"""What ``policy=`` means: the name of a rule, or a folder."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from focalroute.core.errors import ConfigError
from focalroute.policy.baselines import NEED_A_LOG, SERVED_BASELINES, Baseline
from focalroute.policy.sequential import SEQUENTIAL

_log = logging.getLogger("focalroute")

#: Every rule that goes by a name.
ALL_BASELINES: Mapping[str, type[Baseline]] = {**SERVED_BASELINES, **SEQUENTIAL}


def chosen(
    policy: str | Path | None, endpoints: Sequence[str], seed: int | None = None
) -> Baseline | str | Path | None:
    """What ``policy=`` means: a string that is a name the policy of that name, anything else a folder.

    A folder that does not exist yet is fine, unless it is the name of a policy misspelt or of a baseline that cannot
    serve; written as a path ("./plurality", or a `Path`) it always is a folder.

    Raises:
        ConfigError: a string is none of these.
    """
    if not isinstance(policy, str):
        return policy
    there = Path(policy).exists()
    if policy in ALL_BASELINES:
        if there:
            _log.warning('policy %r is taken by its name; for the folder of that name give "./%s"', policy, policy)
        return ALL_BASELINES[policy](endpoints, seed)
    if there or Path(policy).name != policy:  # a path: of more parts than a name, or with a separator at its end
        return policy
    if policy in NEED_A_LOG:
        raise ConfigError(f"policy: {policy!r} cannot serve: it is {NEED_A_LOG[policy]}; {_folder(policy)}")
    plain = policy.strip().lower().replace("_", "-").replace(" ", "-")
    near = difflib.get_close_matches(plain, ALL_BASELINES, 1, cutoff=0.8)
    if near:
        raise ConfigError(f"policy: {policy!r} is no policy's name; did you mean {near[0]!r}? {_folder(policy)}")
    return policy


def _folder(policy: str) -> str:
    return f'for a new folder of that name give "./{policy}"'
