"""Publishing policy bundles, and going back. A crash at any moment leaves the old policy or the new one, whole.

A bundle is written to a temporary folder, tried, made durable and renamed to its version; then ``CURRENT`` is replaced. Publishers
take turns by a file lock, which the system releases when its holder dies.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from focalroute.errors import PolicyError
from focalroute.policy import _files
from focalroute.policy.bundle import CURRENT, SCHEMA, SLICES, current, digest, folder_of, load, load_folder, versions

__all__ = ["bundle_files", "publish", "rollback"]


def publish(
    root: str | Path,
    *,
    decider: bytes,
    fusion: bytes,
    names: Sequence[str],
    parent: int | None,
    hyperparameters: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    learner: Mapping[str, ArrayLike] | None = None,
    keep: int = 10,
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
        learner: arrays to go on learning from.
        keep: how many of the latest versions to keep, beside the new one and its parent.

    Raises:
        PolicyError: the bundle would not pass its checks, or cannot be written; the current policy stays.
    """
    root = Path(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _files.locked(root):
            _files.clean(root)
            version = max(versions(root), default=0) + 1
            files = bundle_files(
                version=version,
                parent=parent,
                created_at=time.time(),
                decider=decider,
                fusion=fusion,
                names=names,
                hyperparameters=hyperparameters or {},
                metrics=metrics or {},
                learner=learner,
            )
            _add(root, version, files)
            _point(root, version)
            _prune(root, keep, {version, parent})
    except OSError as error:
        raise PolicyError(f"{root}: cannot be written: {error.strerror}; the current policy stays") from None
    return version
