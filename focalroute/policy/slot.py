"""Holds the policy that serves and replaces it by newer ones while asks go on."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self

from focalroute.core.errors import PolicyError
from focalroute.core.records import Outcome
from focalroute.policy.baselines import Baseline
from focalroute.policy.bundle import CHALLENGER, CURRENT, Policy, challenger, cold, current, load, versions
from focalroute.policy.fallback import FALLBACK_NAME, Fallback, Served
from focalroute.policy.publish import install
from focalroute.policy.sequential import load_served

_log = logging.getLogger("focalroute")

_Stamp = tuple[tuple[int, int] | None, tuple[int, int] | None]

#: Share of asks that a challenger decides.
CHALLENGER_SHARE = 0.5

_CHECK_EVERY_S = 1.0


class PolicySlot:
    """Holds the policy that serves; reading and swapping it are single reference operations, safe from any thread.

    A slot over a folder serves what any process publishes there. A bundle that fails its checks is never served: the
    old policy stays, the reason is kept in ``error`` and logged once, and the slot tries again when ``CURRENT``
    changes.

    Args:
        policy: serves until the first swap.
        root: the folder of bundles to follow; None: none.

    Attributes:
        current: the policy that serves.
        challenger: the policy on trial against it, if any.
        error: why the latest bundle is not served; None if it is.
    """

    def __init__(self, policy: Served, root: str | Path | None = None) -> None:
        self.current = policy
        self.challenger: Policy | None = None
        self.error: PolicyError | None = None
        self._root = None if root is None else Path(root)
        self._seen: _Stamp = (None, None)
        self._next_check = 0.0
        self._refreshing = threading.Lock()  # two at a time could end with the older of two bundles
        self._worker = ThreadPoolExecutor(1, "focalroute-policy")

    @classmethod
    def open(cls, policy: str | Path | Baseline | None) -> Self:
        """Return a slot with a folder's current bundle or, without a folder or while it is empty, the shipped policy.

        If the bundle cannot be served, ``error`` says why, and the newest earlier version that passes its checks serves
        instead, or else the fallback. A named policy is never replaced.
        """
        if isinstance(policy, Baseline):
            return cls(policy)
        root = policy
        slot = cls(Fallback(), root)
        slot._seen = slot._stamp()
        try:
            slot.current = cold() if root is None or slot._is_empty(root) else load_served(root)
        except PolicyError as error:
            slot.error = error
            instead = f"{FALLBACK_NAME} serves instead"
            if root is not None and slot._serve_last_good(root):
                instead = f"version {slot.current.version} serves instead (publish again, or roll back to it)"
            _log.error("a policy cannot be served, so %s: %s", instead, error)
        slot._load_challenger()
        return slot

    def _is_empty(self, root: str | Path) -> bool:
        """Whether the folder has no bundle yet; log a warning if it is missing, or has other files."""
        if self._seen[0] is not None or versions(root):
            return False
        if not Path(root).is_dir() or any(Path(root).iterdir()):
            _log.warning("policy folder %s holds no bundle: the cold start serves until one is published", root)
        return True

    def _serve_last_good(self, root: str | Path) -> bool:
        """Serve the newest version before the current one that passes its checks; return whether there is one."""
        with suppress(PolicyError):  # ``error`` keeps that of the current version
            broken = current(root)
            for version in (version for version in reversed(versions(root)) if version < broken):
                with suppress(PolicyError):
                    self.current = load_served(root, version)
                    return True
        return False

    @property
    def name(self) -> str | None:
        """The name of the policy that serves, if it has one."""
        return self.current.name if isinstance(self.current, Baseline) else None

    def learn(self, outcome: Outcome, candidates: int) -> None:
        """Let a named policy learn from an outcome; bundles change only by updates."""
        if isinstance(self.current, Baseline):
            self.current.learn(outcome, candidates)

    def swap(self, policy: Served) -> None:
        """Serve with this policy from now on."""
        self.challenger = None
        self.current = policy
        self.error = None

    def refresh_due(self) -> bool:
        """Whether ``CURRENT`` or ``CHALLENGER`` was replaced. Checks at most once a second, and is False in between."""
        now = time.monotonic()
        if self._root is None or now < self._next_check:
            return False
        self._next_check = now + _CHECK_EVERY_S
        return self._stamp() != self._seen

    def refresh(self) -> bool:
        """Load the folder's current bundle and serve it, if it was replaced and passes its checks. Takes milliseconds.

        Returns:
            Whether the policy was replaced.
        """
        if self._root is None:
            return False
        with self._refreshing:
            stamp = self._stamp()  # before loading: what is published meanwhile is not missed
            if stamp == self._seen:
                return False
            swapped = stamp[0] != self._seen[0] and self._serve_current(self._root)
            self._seen = stamp
            self._load_challenger()
            return swapped

    def install(self, version: int, files: Mapping[str, bytes]) -> None:
        """Serve a bundle published elsewhere as soon as it has passed its checks, and write it to the folder.

        Raises:
            PolicyError: it fails a check (the old policy stays), or cannot be written.
        """
        if self._root is None:
            return
        with self._refreshing:
            install(self._root, version, files, serve=self.swap)
            self._seen = self._stamp()

    def refresh_soon(self) -> None:
        """Refresh on the slot's own thread if `refresh_due`; returns at once."""
        if self.refresh_due():
            with suppress(RuntimeError):  # it was closed, or the program ends
                self._worker.submit(self.refresh)

    def close(self) -> None:
        """Wait for a refresh under way (milliseconds) and end the thread. Idempotent."""
        self._worker.shutdown()

    def _serve_current(self, root: Path) -> bool:
        """Serve the folder's current bundle if it passes its checks; return whether it does."""
        try:
            self.swap(load_served(root))
        except PolicyError as error:
            self.error = error
            old = FALLBACK_NAME if isinstance(self.current, Fallback) else f"version {self.current.version}"
            _log.error("a policy cannot be served, %s stays: %s", old, error)
            return False
        return True

    def _load_challenger(self) -> None:
        """Load the challenger to the current policy; one that fails its checks is ignored."""
        found = None
        if self._root is not None and self.error is None:
            try:
                version = challenger(self._root)
                found = None if version is None else load(self._root, version)
            except PolicyError as error:
                _log.error("a challenger cannot be tried, its asks go to version %d: %s", self.current.version, error)
        self.challenger = found

    def _stamp(self) -> _Stamp:
        """Return a value that changes whenever ``CURRENT`` or ``CHALLENGER`` is replaced; None for a missing file."""
        if self._root is None:
            return None, None
        return _stamp_of(self._root / CURRENT), _stamp_of(self._root / CHALLENGER)


def draw_policy(policy: Served, challenger: Policy | None, rng: random.Random) -> tuple[Served, int | None]:
    """Draw the policy that decides an ask: a challenger decides `CHALLENGER_SHARE` of the asks.

    Returns:
        The policy, and the version that was not drawn; None without a challenger.
    """
    if challenger is None:
        return policy, None
    if rng.random() < CHALLENGER_SHARE:
        return challenger, policy.version
    return policy, challenger.version


def _stamp_of(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
