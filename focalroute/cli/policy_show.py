"""Shows policies and rolls them back, for the command line."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from focalroute.core.errors import ConfigError
from focalroute.policy import bundle
from focalroute.policy.bundle import Policy
from focalroute.policy.der import Der, load_served
from focalroute.policy.names import SHIPPED, check_folder, parted
from focalroute.policy.publish import rollback


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
        folder, wanted = parted(reference)
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
    check_folder(folder, version)
    if version is None:
        current = load_served(folder)
        version = current.parent
        if not version:
            raise ConfigError(
                f"{folder}: version {current.version} was learned from the shipped policy; name a version to go back "
                "to, or serve without a policy folder"
            )
        check_folder(folder, version)
    serving = rollback(folder, version)
    said = {"folder": str(folder), "version": serving}
    print(json.dumps(said, indent=2) if as_json else f"{folder}: version {serving} serves now")
