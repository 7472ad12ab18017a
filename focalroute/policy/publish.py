"""Publishes policy bundles and rolls back. A crash at any moment leaves the old policy or the new one, whole.

A bundle is written to a temporary folder, tried, made durable and renamed to its version; then ``CURRENT`` is
replaced. A file lock, which the system releases when its holder dies, admits one publisher at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NotRequired, TypedDict, Unpack

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

_log = logging.getLogger("focalroute")

#: The files that a bundle may contain.
FILES = frozenset({"manifest.json", "decider.onnx", "fusion.onnx", "experience.npz", "learner.npz", DER_FILE})


class BundleContent(TypedDict):
    """The content of a bundle, as arguments of `publish`.

    Attributes:
        decider: ``decider.onnx``.
        fusion: ``fusion.onnx``.
        names: the endpoints in the order of the embeddings.
        parent: the version it was learned from, to which ``policy rollback`` returns; None (or 0): the shipped one.
        hyperparameters: for the manifest; plain JSON values.
        metrics: likewise.
        experience: its record of the past.
        learner: the learner's state.
        trained_on: digests of the recorded questions it was trained on, so that evaluating on them can be detected.
    """

    decider: bytes
    fusion: bytes
    names: Sequence[str]
    parent: int | None
    hyperparameters: NotRequired[Mapping[str, Any]]
    metrics: NotRequired[Mapping[str, Any]]
    experience: NotRequired[Experience | None]
    learner: NotRequired[Mapping[str, ArrayLike] | None]
    trained_on: NotRequired[Iterable[str]]


def publish(root: str | Path, *, keep: int = 10, on_trial: bool = False, **content: Unpack[BundleContent]) -> int:
    """Write a new version and make it the current one.

    Args:
        root: the folder of bundles; made if missing.
        keep: how many of the latest versions to keep, besides the new one and its parent.
        on_trial: make it the challenger instead; the current one stays.
        content: see `BundleContent`.

    Raises:
        PolicyError: the bundle fails a check or cannot be written; the current policy stays.
    """

    def files(version: int) -> dict[str, bytes]:
        return bundle_files(version, time.time(), **content)

    return _publish(Path(root), files, content["parent"], keep, CHALLENGER if on_trial else CURRENT)


def publish_der(
    root: str | Path,
    *,
    model: bytes,
    names: Sequence[str],
    parent: int | None,
    hyperparameters: Mapping[str, Any] | None = None,
) -> int:
    """Publish a sequential policy whose ``der.onnx`` is ``model``; see `publish`."""

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
    """Add the next version, whose files ``files`` makes, and make it the current one or the challenger."""
    with changing(root, make=True):
        version = max(versions(root), default=0) + 1
        _add_bundle(root, version, files(version))
        _set_pointer(root, version, pointer)
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

    It replaces a different bundle of that version.

    Args:
        files: its files by name, with the manifest; ``learner.npz``, which serving does not need, may be missing.
        keep: how many of the latest versions to keep besides it.
        serve: called with the policy once it has passed its checks, before it is made durable, which may take long on
            a busy disk.

    Raises:
        PolicyError: it fails a check or cannot be written; the current policy stays.
    """
    root = Path(root)
    if "manifest.json" not in files or files.keys() - FILES:
        raise PolicyError(f"{root}: version {version} was not published with the files of a bundle; publish it again")
    with changing(root, make=True):
        folder = folder_of(root, version)
        if _has_manifest(folder, files["manifest.json"]):
            serve(load_served(root, version))
        else:
            _add_bundle(root, version, files, serve)
        if not _is_current(root, version):
            _set_pointer(root, version)
        _prune(root, keep, {version})


def _has_manifest(folder: Path, manifest: bytes) -> bool:
    try:
        return read_file(folder / "manifest.json", folder.parent) == manifest
    except PolicyError:  # nothing there, or damaged
        return False


def _is_current(root: Path, version: int) -> bool:
    try:
        return current(root) == version
    except PolicyError:  # nothing there, or damaged
        return False


def make_current(root: str | Path, version: int) -> int:
    """Make an existing version the current one, which ends a trial.

    Raises:
        PolicyError: there is no such version, or it fails a check; the current policy stays.
    """
    root = Path(root)
    with changing(root):
        if version not in versions(root):
            kept = ", ".join(map(str, versions(root)))
            raise PolicyError(f"{root}: version {version} is not kept; give one of {kept}, or serve without a policy")
        load_served(root, version)
        _set_pointer(root, version)
    return version


def bundle_files(version: int, created_at: float, **content: Unpack[BundleContent]) -> dict[str, bytes]:
    """Return the files of a bundle by name; PolicyError if the manifest's values are not plain, finite JSON."""
    files = {"decider.onnx": content["decider"], "fusion.onnx": content["fusion"]}
    experience, learner = content.get("experience"), content.get("learner")
    if experience is not None:
        files["experience.npz"] = _archive(experience.arrays())
    if learner is not None:
        files["learner.npz"] = _archive(learner)
    return _with_manifest(
        files,
        version=version,
        parent=content["parent"],
        created_at=created_at,
        names=list(content["names"]),
        layout=SLICES,
        hyperparameters=dict(content.get("hyperparameters", {})),
        metrics=dict(content.get("metrics", {})),
        trained_on=" ".join(sorted(content.get("trained_on", ()))),
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


def _add_bundle(
    root: Path, version: int, files: Mapping[str, bytes], serve: Callable[[Policy | Der], object] = lambda _: None
) -> None:
    """Write a bundle to the folder of its version, if it passes its checks."""
    new, folder = temporary_path(root), folder_of(root, version)
    try:
        write_files(new, files)
        serve(load_any_folder(new))
        sync_files(new)
        if folder.exists():
            _log.warning("%s: version %d was another one; the fleet's replaces it", root, version)
            folder.rename(temporary_path(root))
        new.rename(folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    sync_path(root)


def _set_pointer(root: Path, version: int, pointer: str = CURRENT) -> None:
    """Write the version to a pointer file; a new current version ends a trial, which was against the old one."""
    replace_file(root / pointer, f"{folder_of(root, version).name}\n".encode())
    if pointer == CURRENT:
        _remove_challenger(root)


def end_trial(root: str | Path) -> None:
    """End the trial: remove the challenger but keep its version.

    Raises:
        PolicyError: the folder cannot be written.
    """
    with changing(Path(root), "the trial goes on"):
        _remove_challenger(Path(root))


def _remove_challenger(root: Path) -> None:
    (root / CHALLENGER).unlink(missing_ok=True)
    sync_path(root)


def _prune(root: Path, keep: int, needed: set[int | None]) -> None:
    """Remove all but the latest and the needed versions, renaming each first so that none is seen half removed."""
    kept = versions(root)
    for version in kept[: max(len(kept) - keep, 0)]:
        if version not in needed:
            gone = temporary_path(root)
            folder_of(root, version).rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


_TEMPORARY = ".tmp-"


@contextmanager
def lock_folder(root: Path) -> Iterator[None]:
    """Lock ``root`` against all other processes and threads that lock it; the lock ends with its holder."""
    with (root / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def updating(root: Path) -> Iterator[None]:
    """Admit one update of ``root`` (created first) at a time; a second one waits, and starts from the first's result.

    Raises:
        PolicyError: the folder cannot be written.
    """
    with ExitStack() as stack:
        try:
            root.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((root / ".updating").open("ab"))
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise PolicyError(f"{root}: cannot be written: {error.strerror}; the current policy stays") from None
        yield


@contextmanager
def changing(root: Path, otherwise: str = "the current policy stays", *, make: bool = False) -> Iterator[None]:
    """Lock ``root`` (created first if ``make``); on an OSError raise a PolicyError that ends with ``otherwise``."""
    try:
        if make:
            root.mkdir(parents=True, exist_ok=True)
        with lock_folder(root):
            remove_leftovers(root)
            yield
    except OSError as error:
        raise PolicyError(f"{root}: cannot be written: {error.strerror}; {otherwise}") from None


def temporary_path(root: Path) -> Path:
    """Return an unused path in ``root``, which the next publisher to lock ``root`` may remove."""
    return root / f"{_TEMPORARY}{secrets.token_hex(8)}"


def remove_leftovers(root: Path) -> None:
    """Remove temporary files of publishers that died; the caller holds the lock."""
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
    """Replace a file atomically: readers see the old content or the new one."""
    new = temporary_path(path.parent)
    try:
        new.write_bytes(data)
        sync_path(new)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    sync_path(path.parent)


def sync_files(folder: Path) -> None:
    """Make a folder's files and their names durable."""
    for path in folder.iterdir():
        sync_path(path)
    sync_path(folder)


def sync_path(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
