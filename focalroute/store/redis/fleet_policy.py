"""The policy that a fleet shares: its files, the learner's lease, and the feedback not yet learned from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from focalroute.store.redis.connection import GROUP, RedisConnection
from focalroute.store.redis.reads import ARCHIVED, pairs
from focalroute.store.redis.store import RedisStore, settle_overdue

_TRIAL = "trial/"
_FORGET_S = 7 * 24 * 3600.0  # a writer that has sent no call for this long is dead


@dataclass(frozen=True, slots=True)
class FleetPolicyState:
    """The state of a fleet's policy.

    Attributes:
        current: the version in use; 0: none was published yet.
        since: when it became current, Unix time by Redis's clock; 0: there is none.
        versions: the versions that are kept, oldest first.
        learned: how many feedbacks were learned from.
        token: the fencing token of the latest lease.
    """

    current: int
    since: float
    versions: tuple[int, ...]
    learned: int
    token: int


class FleetPolicy:
    """The policy of the fleet on this store. Safe to use from any thread except the store's own.

    Every method raises StoreError while Redis is unavailable.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def state(self) -> FleetPolicyState:
        """Read the state."""

        def read(connection: RedisConnection) -> FleetPolicyState:
            kept = pairs(connection.command("HGETALL", connection.keys["policy"]))
            versions = tuple(int(version) for version, _ in json.loads(kept.get("versions", b"[]")))
            current, learned, token = (int(kept.get(name, 0)) for name in ("current", "learned", "token"))
            return FleetPolicyState(current, float(kept.get("since", 0)), versions, learned, token)

        return self._store.run(read)

    def files(self, version: int, without: Sequence[str] = ()) -> dict[str, bytes]:
        """The files of a version by name, except ``without``; empty if the version is not kept."""

        def read(connection: RedisConnection) -> dict[str, bytes]:
            versions = dict(json.loads(connection.command("HGET", connection.keys["policy"], "versions") or b"[]"))
            names = [name for name in versions.get(str(version), ()) if name not in without]
            if not names:
                return {}
            found = connection.command("HMGET", connection.keys["bundles"], *(f"{version}/{name}" for name in names))
            return dict(zip(names, found, strict=True)) if all(data is not None for data in found) else {}

        return self._store.run(read)

    def trial(self) -> dict[str, bytes]:
        """The files of the learner's trial of a challenger by name; empty if there is no trial."""

        def read(connection: RedisConnection) -> dict[str, bytes]:
            names = json.loads(connection.command("HGET", connection.keys["bundles"], _TRIAL) or b"[]")
            found = [connection.command("HGET", connection.keys["bundles"], f"{_TRIAL}{name}") for name in names]
            return {name: data for name, data in zip(names, found, strict=True) if data is not None}

        return self._store.run(read)

    def keep_trial(self, files: Mapping[str, bytes]) -> None:
        """Store the files of the learner's trial atomically; files of an earlier trial with other names stay unused."""
        words: list[Any] = [_TRIAL, json.dumps(list(files))]
        words += [word for name, data in files.items() for word in (f"{_TRIAL}{name}", data)]
        self._store.run(lambda connection: connection.command("HSET", connection.keys["bundles"], *words))

    def lease(self, what: Literal["take", "keep", "give up"], who: str, seconds: float) -> int:
        """Take, keep or give up the learner's lease; return its fencing token, 0 if it is not held."""
        return int(self._store.run(lambda connection: connection.script("lease", (), (what, who, repr(seconds)))))

    def unlearned(self, most: int) -> list[str]:
        """Entries of feedback not yet learned from, oldest first, also those given to a learner that has died.

        An entry is returned again until it is passed to `publish`.
        """

        def read(connection: RedisConnection) -> list[str]:
            feedback = connection.keys["feedback"]
            (made,) = connection.run([("XGROUP", "CREATE", feedback, GROUP, "0", "MKSTREAM")])
            if isinstance(made, Exception) and "BUSYGROUP" not in str(made):
                raise connection.error_of(made)
            found: list[str] = []
            for after in ("0", ">"):
                if len(found) < most:
                    words = ("GROUP", GROUP, GROUP, "COUNT", most - len(found))
                    reply = connection.command("XREADGROUP", *words, "STREAMS", feedback, after)
                    found += [entry.decode() for _, entries in reply or () for entry, _ in entries]
            return found

        return self._store.run(read)

    def publish(
        self,
        files: Mapping[str, bytes],
        *,
        version: int,
        parent: int,
        token: int | None = None,
        learned: Sequence[str] = (),
        keep: int = 10,
    ) -> Literal["done", "fenced", "moved"]:
        """Make a version current and acknowledge the feedback it learned from, atomically.

        Args:
            files: the version's files; empty: there is no new version, and the feedback is only acknowledged.
            parent: the version that must still be current.
            token: the fencing token of the lease that must still be held; None: the publisher is not a learner.
            learned: entries from `unlearned`.

        Returns:
            "done", or why nothing was changed: "fenced" if the lease was lost, "moved" if another version is current.
        """
        words: list[Any] = ["" if token is None else token, parent, version if files else "", keep, len(files)]
        words += [word for file in files.items() for word in file]
        reply: bytes = self._store.run(lambda connection: connection.script("publish", (), (*words, *learned)))
        outcome: Literal["done", "fenced", "moved"] = reply.decode()  # type: ignore[assignment]
        return outcome

    def roll_back(self, version: int) -> bool:
        """Make a kept version current; return False if it is not kept."""
        return bool(self._store.run(lambda connection: connection.script("rollback", (), (version,))))

    def keep_archive(self, wanted: bool) -> None:
        """Set whether workers keep twice as many rows in Redis, until an archive has them."""
        self._store.run(
            lambda connection: connection.command("HSET", connection.keys["policy"], ARCHIVED, 1 if wanted else "")
        )

    def tidy(self, now: float) -> None:
        """Settle the reservations of dead processes, and forget dead writers."""

        def work(connection: RedisConnection) -> None:
            settle_overdue(connection)
            for writer, text in pairs(connection.command("HGETALL", connection.keys["writers"])).items():
                if float(text.split()[1]) < now - _FORGET_S:
                    connection.command("HDEL", connection.keys["writers"], writer)

        self._store.run(work)
