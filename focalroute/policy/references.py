"""Resolves a policy's name: the setting ``policy=``, and references such as ``folder@version`` and ``cold``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from focalroute.core.errors import ConfigError
from focalroute.core.spelling import did_you_mean
from focalroute.policy import bundle
from focalroute.policy.baselines import NEED_A_LOG, SERVED_BASELINES, Baseline
from focalroute.policy.bundle import Policy
from focalroute.policy.routers import ROUTERS
from focalroute.policy.sequential import SEQUENTIAL

#: What names the shipped policy; a folder of this name is ``./cold``.
SHIPPED = "cold"


def load_reference(reference: str) -> Policy:
    """The policy of this name, checked; without a version the one that serves.

    Raises:
        ConfigError: there is no such folder or version.
        PolicyError: it does not pass its checks.
    """
    if reference == SHIPPED:
        return bundle.cold()
    folder, version = parse_reference(reference)
    return bundle.load(folder, version)


def parse_reference(reference: str) -> tuple[Path, int | None]:
    """The folder, and the version if one is named; what exists as a folder is one, whatever its name."""
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
    """An address may hold a password, so it is not shown."""
    if isinstance(policy, str) and "://" in policy:
        raise ConfigError("policy: is an address; give a folder, such as a worker's, which has the fleet's policy")


def check_folder(folder: Path, version: int | None) -> None:
    """Refuse a folder that holds no policy, or not this version.

    Raises:
        ConfigError: it says what is there instead.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder; give a policy folder, or {SHIPPED} for the shipped one")
    kept = bundle.versions(folder)
    if not kept:
        raise ConfigError(f"{folder}: holds no policy; publish one there first (focalroute update)")
    if version is not None and version not in kept:
        raise ConfigError(f"{folder}: version {version} is not kept; give one of {', '.join(map(str, kept))}")


_log = logging.getLogger("focalroute")

#: Every rule that goes by a name.
ALL_BASELINES: Mapping[str, type[Baseline]] = {**SERVED_BASELINES, **ROUTERS, **SEQUENTIAL}


#: What others call a rule -> its name here.
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
#: The methods of the two works, and how they are had.
_PRESETS: Mapping[str, str] = {
    "rl-focal": "is replayed only, by `focalroute eval LOG --pool POOL --preset rl-focal`",
    "der": 'has to be trained: `focalroute eval --live POOL --queries FILE --out der/`, then policy="der/"',
}


def resolve_policy(
    policy: str | Path | None, endpoints: Sequence[str], seed: int | None = None
) -> Baseline | str | Path | None:
    """Resolve ``policy=``: a string that is a name the policy of that name, anything else a folder.

    A folder that does not exist yet has to be written as a path ("policy/", "./policy" or a `Path`), so that a name
    that is unknown is an error, and never serves the cold start in silence.

    Raises:
        ConfigError: a string is none of these, or the path is a file's.
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
    except OSError as error:  # such as a name that is too long
        raise ConfigError(f"policy: {error.strerror}; give another folder, or a policy's name") from None
    if policy not in ALL_BASELINES and is_file:
        raise ConfigError(f"policy: {policy} is a file; give the folder of the bundles")
    folder, _, version = str(policy).rpartition("@")  # eval and policy show take folder@version
    referred = version.isdecimal() and not there and bool(bundle.versions(folder))
    if policy not in ALL_BASELINES and (referred or Path(policy, "manifest.json").is_file()):
        raise ConfigError(
            f"policy: {policy} is one version; give the folder that it is in, and choose by focalroute policy rollback"
        )
    if not isinstance(policy, str):
        return policy
    if policy in ALL_BASELINES:
        if there:
            _log.warning('policy %r is taken by its name; for the folder of that name give "./%s"', policy, policy)
        return ALL_BASELINES[policy](endpoints, seed)
    if there or Path(policy).name != policy:  # a path: of more parts than a name, or with a separator at its end
        return policy
    folder = f'for a new folder of that name give "./{policy}"'
    if policy in NEED_A_LOG:
        raise ConfigError(f"policy: {policy!r} cannot serve: it is {NEED_A_LOG[policy]}; {folder}")
    if policy in _PRESETS:
        raise ConfigError(f"policy: {policy!r} {_PRESETS[policy]}; {folder}")
    plain = policy.strip().lower().replace("_", "-").replace(" ", "-")
    raise ConfigError(
        f"policy: {policy!r} is not a policy's name; {folder}; {did_you_mean(plain, ALL_BASELINES, _SYNONYMS)}"
    )
