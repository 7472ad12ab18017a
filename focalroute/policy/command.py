"""Policies as the command line names and shows them: a folder, ``folder@version``, or ``cold`` for the shipped one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from focalroute.errors import ConfigError
from focalroute.policy import bundle
from focalroute.policy.bundle import Policy
from focalroute.policy.der import Der, load_served
from focalroute.policy.publish import rollback

__all__ = ["SHIPPED", "described", "named", "rollback_command", "show_command"]

#: What names the shipped policy; a folder of this name is ``./cold``.
SHIPPED = "cold"


def named(reference: str) -> Policy:
    """The policy of this name, checked; without a version the one that serves.

    Raises:
        ConfigError: there is no such folder or version.
        PolicyError: it does not pass its checks.
    """
    if reference == SHIPPED:
        return bundle.cold()
    folder, version = _parted(reference)
    return bundle.load(folder, version)


def described(reference: str) -> dict[str, Any]:
    """A policy and the folder it is in, as plain values.

    Raises:
        ConfigError: there is no such folder or version.
        PolicyError: it does not pass its checks.
    """
    kept: dict[str, Any] = {}
    if reference == SHIPPED:
        policy: Policy | Der = bundle.cold()
    else:
        folder, wanted = _parted(reference)
        policy = load_served(folder, wanted)
        kept = {"folder": str(folder), "versions": list(bundle.versions(folder)), "current": bundle.current(folder)}
    shown = ("version", "parent", "created_at", "hyperparameters", "metrics")
    return {**kept, **{name: getattr(policy, name) for name in shown}, "names": list(policy.names)}


def show_command(reference: str, *, as_json: bool = False) -> None:
    """Print what `described` says."""
    said = described(reference)
    if as_json:
        print(json.dumps(said, indent=2))
        return
    if reference != SHIPPED:
        kept = ", ".join(f"{version}{' (serves)' * (version == said['current'])}" for version in said["versions"])
        print(f"{said['folder']}: versions {kept}")
    made = datetime.fromtimestamp(said["created_at"], UTC).isoformat(" ", "seconds") if said["created_at"] else "-"
    print(f"version {said['version']}, learned from {said['parent'] or 'the shipped policy'}, made {made}")
    print(f"endpoints: {', '.join(said['names']) or 'none by name'}")
    for part in ("hyperparameters", "metrics"):
        print(f"{part}:" if said[part] else f"{part}: none")
        for key, value in said[part].items():
            print(f"  {key}: {json.dumps(value)}")


def rollback_command(folder: Path, version: int | None, *, as_json: bool = False) -> None:
    """Make a version serve again (see `focalroute.policy.publish.rollback`), and say which.

    Raises:
        ConfigError: there is no such folder or version, or none to go back to.
        PolicyError: it does not pass its checks; the current policy stays.
    """
    _check(folder, version)
    if version is None:
        current = load_served(folder)
        version = current.parent
        if not version:
            raise ConfigError(
                f"{folder}: version {current.version} was learned from the shipped policy; name a version to go back "
                "to, or serve without a policy folder"
            )
        _check(folder, version)
    serving = rollback(folder, version)
    said = {"folder": str(folder), "version": serving}
    print(json.dumps(said, indent=2) if as_json else f"{folder}: version {serving} serves now")


def _parted(reference: str) -> tuple[Path, int | None]:
    """The folder, and the version if one is named; what exists as a folder is one, whatever its name."""
    folder, at, version = reference.rpartition("@")
    if not at or Path(reference).is_dir():
        _check(Path(reference), None)
        return Path(reference), None
    if not (version.isascii() and version.isdecimal()):
        raise ConfigError(f"{reference}: {version!r} is no version; write folder@3")
    _check(Path(folder), int(version))
    return Path(folder), int(version)


def _check(folder: Path, version: int | None) -> None:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder; give a policy folder, or {SHIPPED} for the shipped one")
    kept = bundle.versions(folder)
    if not kept:
        raise ConfigError(f"{folder}: holds no policy; publish one there first (focalroute update)")
    if version is not None and version not in kept:
        raise ConfigError(f"{folder}: version {version} is not kept; give one of {', '.join(map(str, kept))}")
