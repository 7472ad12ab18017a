"""Policies by reference: a folder, ``folder@version``, or ``cold`` for the shipped one."""

from __future__ import annotations

from pathlib import Path

from focalroute.core.errors import ConfigError
from focalroute.policy import bundle
from focalroute.policy.bundle import Policy

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
    folder, version = parted(reference)
    return bundle.load(folder, version)


def parted(reference: str) -> tuple[Path, int | None]:
    """The folder, and the version if one is named; what exists as a folder is one, whatever its name."""
    folder, at, version = reference.rpartition("@")
    if not at or Path(reference).is_dir():
        check_folder(Path(reference), None)
        return Path(reference), None
    if not (version.isascii() and version.isdecimal()):
        raise ConfigError(f"{reference}: {version!r} is no version; write folder@3")
    check_folder(Path(folder), int(version))
    return Path(folder), int(version)


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
