"""What ``focalroute policy rollback`` does for a fleet."""

from __future__ import annotations

import json
from contextlib import closing

from focalroute.core.errors import ConfigError
from focalroute.store.redis.fleet_policy import FleetPolicy
from focalroute.store.redis.store import RedisStore


def rollback_fleet_command(where: str, version: int | None, *, as_json: bool = False) -> None:
    """Make a version serve again in the whole fleet, and say which.

    Raises:
        ConfigError: there is no such version, or none to go back to.
    """
    with closing(RedisStore(where)) as store:
        fleet_policy = FleetPolicy(store)
        state = fleet_policy.state()
        if not state.current:
            raise ConfigError(f"{store.name}: holds no policy; publish one first (focalroute update)")
        if version is None:
            version = json.loads(fleet_policy.files(state.current)["manifest.json"])["parent"]
            if not version:
                raise ConfigError(
                    f"{store.name}: version {state.current} was learned from the shipped policy; name a version to go "
                    "back to"
                )
        if not fleet_policy.roll_back(version):
            kept = ", ".join(map(str, state.versions))
            raise ConfigError(f"{store.name}: version {version} is not kept; give one of {kept}")
        said = f"{store.name}: version {version} serves now"
        print(json.dumps({"store": store.name, "version": version}) if as_json else said)
