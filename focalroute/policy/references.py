"""Resolves the setting ``policy=``, and references to policies such as ``folder@version`` and ``cold``."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from focalroute.core.errors import ConfigError
from focalroute.core.spelling import did_you_mean
from focalroute.policy import bundle
from focalroute.policy.baselines import NEED_A_LOG, SERVED_BASELINES, Baseline
from focalroute.policy.bundle import Policy
from focalroute.policy.routers import ROUTERS
from focalroute.policy.sequential import SEQUENTIAL

_log = logging.getLogger("focalroute")

#: The shipped policy's name; a folder of this name has to be written as ``./cold``.
SHIPPED = "cold"

#: All rules by name.
ALL_BASELINES: Mapping[str, type[Baseline]] = {**SERVED_BASELINES, **ROUTERS, **SEQUENTIAL}


def load_reference(reference: str) -> Policy:
    """Load the policy that a reference names; without a version, the current one.

    Raises:
        ConfigError: there is no such folder or version.
        PolicyError: it fails a check.
    """
    if reference == SHIPPED:
        return bundle.cold()
    folder, version = parse_reference(reference)
    return bundle.load(folder, version)


def parse_reference(reference: str) -> tuple[Path, int | None]:
    """Return the folder, and the version if one is named; the name of an existing folder is never split."""
    _refuse_address(reference)
    folder, at, version = reference.rpartition("@")
    if not at or Path(reference).is_dir():
        check_folder(Path(reference), None)
        return Path(reference), None
    if not (version.isascii() and version.isdecimal()):
        raise ConfigError(f"{reference}: {version!r} is not a version; write folder@3")
    check_folder(Path(folder), int(version))
    return Path(folder), int(version)


def _refuse_address(policy: str | Path) -> None:
    """Refuse an address; the message does not quote it, as it may contain a password."""
    if isinstance(policy, str) and "://" in policy:
        raise ConfigError("policy: is an address; give a folder, such as a worker's, which has the fleet's policy")


def check_folder(folder: Path, version: int | None) -> None:
    """Check that a folder holds a policy, and this version if one is given.

    Raises:
        ConfigError: it does not; the message says what is there instead.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder; give a policy folder, or {SHIPPED} for the shipped one")
    kept = bundle.versions(folder)
    if not kept:
        raise ConfigError(f"{folder}: holds no policy; publish one there first (focalroute update)")
    if version is not None and version not in kept:
        raise ConfigError(f"{folder}: version {version} is not kept; give one of {', '.join(map(str, kept))}")


#: Other names of a rule -> its name here.
_SYNONYMS: Mapping[str, str] = {
    **dict.fromkeys(
        ("majority", "majority-vote", "vote", "voting", "all", "everybody", "self-consistency"), "plurality"
    ),
    **dict.fromkeys(("cheapest", "cheapest-first", "fallback", "frugal"), "cascade"),
    **dict.fromkeys(("best", "single"), "best-single"),
    **dict.fromkeys(("knn", "nearest-neighbours"), "carrot-knn"),
    **dict.fromkeys(("average", "ensemble"), "mean"),
    "weighted": "weighted-vote",
}
#: The two papers' methods, which do not serve by name, and how to run them.
_PRESETS: Mapping[str, str] = {
    "rl-focal": "is replayed only, by `focalroute eval LOG --pool POOL --preset rl-focal`",
    "der": 'has to be trained: `focalroute eval --live POOL --queries FILE --out der/`, then policy="der/"',
}


def resolve_policy(
    policy: str | Path | None, endpoints: Sequence[str], seed: int | None = None, *, learns: bool = False
) -> Baseline | Path | None:
    """Resolve ``policy=`` to the rule of this name, or else to a folder; None: the shipped policy.

    The folder's path is absolute, as the working folder may change.

    A folder that does not exist yet must be written as a path ("policy/", "./policy" or a `Path`), so that an unknown
    name is an error and does not silently serve the cold start.

    Args:
        learns: whether updates are to be published there; the error for an unknown name then suggests only a folder.

    Raises:
        ConfigError: it is neither a name nor a folder.
    """
    if policy is None or policy == SHIPPED:
        return None
    if not isinstance(policy, str | Path):
        raise ConfigError(f"policy: give a folder or a policy's name, got {type(policy).__name__}")
    if policy == "":
        raise ConfigError("policy: is empty; give a folder or a policy's name, or leave it out")
    _refuse_address(policy)
    try:
        there, is_file = Path(policy).exists(), Path(policy).is_file()
    except OSError as error:  # for example, the name is too long
        raise ConfigError(f"policy: {error.strerror}; give another folder, or a policy's name") from None
    if isinstance(policy, str) and policy in ALL_BASELINES:
        if there:
            _log.warning('policy %r is the policy of that name; for the folder %s give "./%s"', policy, policy, policy)
        return ALL_BASELINES[policy](endpoints, seed)
    if is_file:
        raise ConfigError(f"policy: {policy} is a file; give the folder of the bundles")
    folder, _, version = str(policy).rpartition("@")  # eval and policy show take folder@version
    referred = version.isdecimal() and not there and bool(bundle.versions(folder))
    if referred or os.path.lexists(Path(policy, "manifest.json")):
        raise ConfigError(
            f"policy: {policy} is one version; give the folder that it is in, and choose a version by `focalroute "
            "policy rollback`"
        )
    if isinstance(policy, Path) or there or Path(policy).name != policy:  # has several parts, or ends in a separator
        return Path(policy).absolute()
    if learns:
        raise ConfigError(f'policy: {policy}: there is no such folder; for a new one give "./{policy}"')
    raise _unknown_name(policy)


def _unknown_name(policy: str) -> ConfigError:
    """Return the error for a text that names neither a rule nor a folder."""
    new_folder = f'for a new folder of that name give "./{policy}"'
    plain = policy.strip().lower().replace("_", "-").replace(" ", "-")
    if plain in NEED_A_LOG:
        return ConfigError(f"policy: {policy!r} cannot serve: it is {NEED_A_LOG[plain]}; {new_folder}")
    if plain in _PRESETS:
        return ConfigError(f"policy: {policy!r} {_PRESETS[plain]}; {new_folder}")
    return ConfigError(
        f"policy: {policy!r} is not a policy's name; {did_you_mean(plain, ALL_BASELINES, _SYNONYMS)} "
        f'For a new folder give "./{policy}"'
    )
