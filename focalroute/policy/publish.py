"""Publishing policy bundles, and going back. A crash at any moment leaves the old policy or the new one, whole.

A bundle is written to a temporary folder, tried, made durable and renamed to its version; then ``CURRENT`` is
replaced. Publishers take turns by a file lock, which the system releases when its holder dies.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from focalroute.core.errors import PolicyError
from focalroute.observe.experience import Experience
from focalroute.policy.bundle import (
    CHALLENGER,
    CURRENT,
    DER_FILE,
    SCHEMA,
    SLICES,
    Policy,
    current,
    digest,
    folder_of,
    read_file,
    versions,
)
from focalroute.policy.sequential import DER_SLICES, Der, load_any_folder, load_served

#: Whatever a bundle may consist of.
FILES = frozenset({"manifest.json", "decider.onnx", "fusion.onnx", "experience.npz", "learner.npz", DER_FILE})


def publish(
    root: str | Path,
    *,
    decider: bytes,
    fusion: bytes,
    names: Sequence[str],
    parent: int | None,
    hyperparameters: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    experience: Experience | None = None,
    learner: Mapping[str, ArrayLike] | None = None,
    trained_on: Iterable[str] = (),
    keep: int = 10,
    on_trial: bool = False,
) -> int:
    """Write a new version and make it the current one.

    Args:
        root: the folder of the bundles; made if missing.
        decider: ``decider.onnx``.
        fusion: ``fusion.onnx``.
        names: the endpoints in the order of the embeddings.
        parent: the version it was learned from, what `rollback` goes back to; None (or 0): the shipped one.
        hyperparameters: for the manifest; plain JSON values.
        metrics: likewise.
        experience: what it brings along of the past.
        learner: arrays to go on learning from.
        trained_on: the digests of the recorded questions it was trained on, by which an evaluation on them is noticed.
        keep: how many of the latest versions to keep, beside the new one and its parent.
        on_trial: make it the challenger instead; the current one stays.

    Raises:
        PolicyError: the bundle would not pass its checks, or cannot be written; the current policy stays.
    """

    def files(version: int) -> dict[str, bytes]:
        return bundle_files(
            version=version,
            parent=parent,
            created_at=time.time(),
            decider=decider,
            fusion=fusion,
            names=names,
            hyperparameters=hyperparameters or {},
            metrics=metrics or {},
            experience=experience,
            learner=learner,
            trained_on=trained_on,
        )

    return _publish(Path(root), files, parent, keep, CHALLENGER if on_trial else CURRENT)


def publish_der(
    root: str | Path,
    *,
    model: bytes,
    names: Sequence[str],
    parent: int | None,
    hyperparameters: Mapping[str, Any] | None = None,
) -> int:
    """Likewise, of a sequential policy whose ``der.onnx`` is ``model``."""

    def files(version: int) -> dict[str, bytes]:
        return _with_manifest(
            {DER_FILE: model},
            version=version,
            parent=parent,
            created_at=time.time(),
            names=list(names),
            layout=DER_SLICES,
            hyperparameters=dict(hyperparameters or {}),
            metrics={},
        )

    return _publish(Path(root), files, parent)


def _publish(
    root: Path, files: Callable[[int], dict[str, bytes]], parent: int | None, keep: int = 10, pointer: str = CURRENT
) -> int:
    """Add the files that are made for the next version, and make it the current one, or the challenger."""
    with _changing(root, make=True):
        version = max(versions(root), default=0) + 1
        _add(root, version, files(version))
        _point(root, version, pointer)
        _prune(root, keep, {version, parent})
    return version


def install(
    root: str | Path,
    version: int,
    files: Mapping[str, bytes],
    *,
    keep: int = 10,
    serve: Callable[[Policy | Der], object] = lambda _: None,
) -> None:
    """Make a bundle that was published elsewhere the current one here, under its own version.

    What another bundle of that version is here goes; one that is the same stays.

    Args:
        files: its content by name, the manifest among it. What serves without (``learner.npz``) may be missing.
        keep: how many of the latest versions to keep beside it.
        serve: is given the policy once it passed its checks; making it durable, which a busy disk may take long
            for, comes after.

    Raises:
        PolicyError: it does not pass its checks, or cannot be written; the current policy stays.
    """
    root = Path(root)
    if not files or files.keys() - FILES:
        raise PolicyError(f"{root}: version {version} was not published with the files of a bundle; publish it again")
    with _changing(root, make=True):
        folder = folder_of(root, version)
        if _holds(folder, files["manifest.json"]):
            serve(load_served(root, version))
        else:
            if folder.exists():
                folder.rename(temporary_path(root))
            _add(root, version, files, serve)
        if not _points(root, version):
            _point(root, version)
        _prune(root, keep, {version})


def _holds(folder: Path, manifest: bytes) -> bool:
    try:
        return read_file(folder / "manifest.json", folder.parent) == manifest
    except PolicyError:  # nothing there, or damaged
        return False


def _points(root: Path, version: int) -> bool:
    try:
        return current(root) == version
    except PolicyError:  # nothing there, or damaged
        return False


def rollback(root: str | Path, version: int | None = None) -> int:
    """Make a version that is kept the current one again: the parent of the current one, or ``version``.

    Raises:
        PolicyError: there is no such version, or it does not pass its checks; the current policy stays.
    """
    if not versions(root):
        raise PolicyError(f"{root}: holds no policy to go back to")
    return make_current(root, load_served(root).parent if version is None else version)


def make_current(root: str | Path, version: int | None) -> int:
    """Make a version that is kept the current one; a trial that is under way ends.

    Raises:
        PolicyError: there is no such version, or it does not pass its checks; the current policy stays.
    """
    root = Path(root)
    with _changing(root):
        if version is None or version not in versions(root):
            kept = ", ".join(map(str, versions(root)))
            raise PolicyError(f"{root}: version {version} is not kept; give one of {kept}, or serve without a policy")
        load_served(root, version)
        _point(root, version)
    return version


def bundle_files(
    *,
    version: int,
    parent: int | None,
    created_at: float,
    decider: bytes,
    fusion: bytes,
    names: Sequence[str],
    hyperparameters: Mapping[str, Any],
    metrics: Mapping[str, Any],
    experience: Experience | None = None,
    learner: Mapping[str, ArrayLike] | None = None,
    trained_on: Iterable[str] = (),
) -> dict[str, bytes]:
    """The files of a bundle by name; PolicyError if the manifest's values are not plain, finite JSON."""
    files = {"decider.onnx": decider, "fusion.onnx": fusion}
    if experience is not None:
        files["experience.npz"] = _archive(experience.arrays())
    if learner is not None:
        files["learner.npz"] = _archive(learner)
    return _with_manifest(
        files,
        version=version,
        parent=parent,
        created_at=created_at,
        names=list(names),
        layout=SLICES,
        hyperparameters=dict(hyperparameters),
        metrics=dict(metrics),
        trained_on=" ".join(sorted(trained_on)),
    )


def _with_manifest(files: dict[str, bytes], **content: Any) -> dict[str, bytes]:
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    manifest: dict[str, Any] = {"schema": SCHEMA, **content, "sha256": hashes}
    try:
        manifest["digest"] = digest(manifest)
        text = json.dumps(manifest, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"manifest: hyperparameters and metrics must be plain, finite JSON values: {error}") from None
    return {**files, "manifest.json": f"{text}\n".encode()}


def _archive(arrays: Mapping[str, ArrayLike]) -> bytes:
    archive = io.BytesIO()
    np.savez_compressed(archive, allow_pickle=False, **{key: np.asarray(array) for key, array in arrays.items()})
    return archive.getvalue()


def _add(
    root: Path, version: int, files: Mapping[str, bytes], serve: Callable[[Policy | Der], object] = lambda _: None
) -> None:
    """Put a bundle in its place, if it passes its checks."""
    new = temporary_path(root)
    try:
        write_files(new, files)
        serve(load_any_folder(new))
        sync_files(new)
        new.rename(folder_of(root, version))
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    sync_path(root)


def _point(root: Path, version: int, pointer: str = CURRENT) -> None:
    """Name a version; with a new current one no trial goes on, which was against the old one."""
    replace_file(root / pointer, f"{folder_of(root, version).name}\n".encode())
    if pointer == CURRENT:
        _remove_challenger(root)


def end_trial(root: str | Path) -> None:
    """Let the challenger decide no more; its version is kept.

    Raises:
        PolicyError: the folder cannot be written.
    """
    with _changing(Path(root), "the trial goes on"):
        _remove_challenger(Path(root))


def _remove_challenger(root: Path) -> None:
    (root / CHALLENGER).unlink(missing_ok=True)
    sync_path(root)


def _prune(root: Path, keep: int, needed: set[int | None]) -> None:
    """Remove all but the latest; by renaming them first, so that no version is ever seen half gone."""
    kept = versions(root)
    for version in kept[: max(len(kept) - keep, 0)]:
        if version not in needed:
            gone = temporary_path(root)
            folder_of(root, version).rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


_TEMPORARY = ".tmp-"


@contextmanager
def lock_folder(root: Path) -> Iterator[None]:
    """Hold ``root`` against every other process and thread that locks it; the lock dies with its holder."""
    with (root / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _changing(root: Path, otherwise: str = "the current policy stays", *, make: bool = False) -> Iterator[None]:
    """Hold ``root``, which ``make`` creates if it is missing; a PolicyError says ``otherwise`` if it cannot be held."""
    try:
        if make:
            root.mkdir(parents=True, exist_ok=True)
        with lock_folder(root):
            remove_leftovers(root)
            yield
    except OSError as error:
        raise PolicyError(f"{root}: cannot be written: {error.strerror}; {otherwise}") from None


def temporary_path(root: Path) -> Path:
    """An unused path in ``root``, which the next publisher to lock ``root`` may remove."""
    return root / f"{_TEMPORARY}{secrets.token_hex(8)}"


def remove_leftovers(root: Path) -> None:
    """Remove the temporary files of publishers that died; the caller holds the lock."""
    for left in root.glob(f"{_TEMPORARY}*"):
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make the folder and write the files into it; `sync_files` makes them durable."""
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in one step: readers see the old content or the new one."""
    new = temporary_path(path.parent)
    new.write_bytes(data)
    sync_path(new)
    new.replace(path)
    sync_path(path.parent)


def sync_files(folder: Path) -> None:
    """Make a folder durable, its files and their names."""
    for path in folder.iterdir():
        sync_path(path)
    sync_path(folder)


def sync_path(path: Path) -> None:
    """Make a file durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
