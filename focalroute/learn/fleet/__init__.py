"""A fleet of workers on one store follows one policy, which an elected `learner` updates from all feedback.

A worker copies the fleet's policy into its folder, so that it can start and serve without Redis.
"""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from focalroute.core.errors import ConfigError, FocalrouteError, PolicyError, StoreError
from focalroute.policy.baselines import Baseline
from focalroute.policy.publish import install
from focalroute.policy.slot import PolicySlot
from focalroute.store import Store, is_shared, require_existing

if TYPE_CHECKING:
    from focalroute.store.redis.store import RedisStore


_LEARNERS_OWN = ("learner.npz",)

_log = logging.getLogger("focalroute")


def fetch(store: Store, policy: str | Path | Baseline | None) -> None:
    """Write the fleet's current policy to the folder; do nothing without a fleet, a folder or such a policy.

    If it cannot be read, fails a check or cannot be written, the folder's policy serves; the `Follower` says why.
    """
    if is_shared(store) and policy is not None and not isinstance(policy, Baseline):
        with suppress(StoreError, PolicyError):
            version, files = _files(store)
            if files:
                install(policy, version, files)


def _files(store: RedisStore, version: int | None = None) -> tuple[int, dict[str, bytes]]:
    """Return a version (None: the current one) and the files of it that workers need; no files if none is published."""
    from focalroute.store.redis.fleet_policy import FleetPolicy  # imported here, as only a fleet needs Redis

    fleet_policy = FleetPolicy(store)
    if version is None:
        version = fleet_policy.state().current
    if not version:
        return version, {}
    return version, fleet_policy.files(version, without=_LEARNERS_OWN)


class Follower:
    """Keeps a folder and a slot at the fleet's current policy. Without a fleet or a folder it is idle.

    A version that fails its checks is not served; the earlier one stays, and the log says why. A version that cannot be
    written to the folder still serves.
    """

    def __init__(self, store: Store, slot: PolicySlot, policy: str | Path | Baseline | None) -> None:
        self._worker = ThreadPoolExecutor(1, "focalroute-follower")
        self._slot = slot
        if is_shared(store) and policy is not None and not isinstance(policy, Baseline):
            self._store = store
            store.follow(self._soon)

    def _soon(self, version: int) -> None:
        with suppress(RuntimeError):  # it was closed, or the program ends
            self._worker.submit(self._follow, version)

    def _follow(self, version: int) -> None:
        try:
            _, files = _files(self._store, version)
            if files:
                self._slot.install(version, files)
        except FocalrouteError as error:
            serves = self._slot.current.version
            _log.error("version %d of the fleet's policy: %s (version %d serves)", version, error, serves)

    def close(self) -> None:
        """Wait for a version being copied, and end the thread. Idempotent."""
        self._worker.shutdown()


def rollback_fleet_command(where: str, version: int | None, *, as_json: bool = False) -> None:
    """Make a version serve in the whole fleet again (None: the current one's parent), and print it.

    Raises:
        ConfigError: there is no such version, or none to go back to.
    """
    from focalroute.store.redis.fleet_policy import FleetPolicy
    from focalroute.store.redis.store import RedisStore

    with closing(RedisStore(require_existing(where), maintain=False)) as store:
        fleet_policy = FleetPolicy(store)
        state = fleet_policy.state()
        if not state.current:
            raise ConfigError(f"{store.name}: holds no policy; publish one first (focalroute update)")
        if version is None:
            manifest = fleet_policy.files(state.current).get("manifest.json")
            if manifest is None:
                raise ConfigError(
                    f"{store.name}: the files of version {state.current} are missing; name another version"
                )
            version = json.loads(manifest)["parent"]
            if not version:
                raise ConfigError(
                    f"{store.name}: version {state.current} was learned from the shipped policy; name a version to go "
                    "back to"
                )
        if not fleet_policy.roll_back(version):
            kept = ", ".join(map(str, state.versions))
            raise ConfigError(f"{store.name}: version {version} is not kept; give one of {kept}")
    if as_json:
        print(json.dumps({"store": store.name, "version": version}))
    else:
        print(f"{store.name}: version {version} serves now")
