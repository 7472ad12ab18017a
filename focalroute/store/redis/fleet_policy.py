"""The policy that a fleet shares: its files, its learner's lease, and the feedback that it has not learned from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from focalroute.store.redis.connection import BUNDLES, FEEDBACK, GROUP, POLICY, WRITERS, RedisConnection
from focalroute.store.redis.reads import ARCHIVED, pairs
from focalroute.store.redis.store import RedisStore, settle_overdue

_TRIAL = "trial/"
_FORGET_S = 7 * 24 * 3600.0  # a writer that has said nothing for so long is dead


@dataclass(frozen=True, slots=True)
class FleetPolicyState:
    """The state of a fleet's policy.

    Attributes:
        current: the version that serves; 0: none was published yet.
        since: Unix time of Redis's clock when it became current; 0: there is none.
        versions: those that are kept, oldest first.
        learned: how many feedbacks updates were about, each counted once.
        token: of the latest lease.
    """

    current: int
    since: float
    versions: tuple[int, ...]
    learned: int
    token: int


class FleetPolicy:
    """The policy of the fleet on this store. Safe to use from any thread but the store's own.

    All of it raises StoreError while Redis is away.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def state(self) -> FleetPolicyState:
        """Read the state."""

        def read(connection: RedisConnection) -> FleetPolicyState:
            kept = pairs(connection.command("HGETALL", connection.keys[POLICY]))
            versions = tuple(int(version) for version, _ in json.loads(kept.get("versions", b"[]")))
            current, learned, token = (int(kept.get(name, 0)) for name in ("current", "learned", "token"))
            return FleetPolicyState(current, float(kept.get("since", 0)), versions, learned, token)

        return self._store.run(read)

    def files(self, version: int, without: Sequence[str] = ()) -> dict[str, bytes]:
        """The files of a version by name; none if it is not kept."""

        def read(connection: RedisConnection) -> dict[str, bytes]:
            versions = dict(json.loads(connection.command("HGET", connection.keys[POLICY], "versions") or b"[]"))
            names = [name for name in versions.get(str(version), ()) if name not in without]
            if not names:
                return {}
            found = connection.command("HMGET", connection.keys[BUNDLES], *(f"{version}/{name}" for name in names))
            return dict(zip(names, found, strict=True)) if all(data is not None for data in found) else {}

        return self._store.run(read)

    def trial(self) -> dict[str, bytes]:
        """The files of the learner's trial of a challenger by name; none if there is none."""

        def read(connection: RedisConnection) -> dict[str, bytes]:
            names = json.loads(connection.command("HGET", connection.keys[BUNDLES], _TRIAL) or b"[]")
            found = [connection.command("HGET", connection.keys[BUNDLES], f"{_TRIAL}{name}") for name in names]
            return {name: data for name, data in zip(names, found, strict=True) if data is not None}

        return self._store.run(read)

    def keep_trial(self, files: Mapping[str, bytes]) -> None:
        """Keep the files of the learner's trial, in one step; what they replace goes with the next of the same name."""
        words: list[Any] = [_TRIAL, json.dumps(list(files))]
        words += [word for name, data in files.items() for word in (f"{_TRIAL}{name}", data)]
        self._store.run(lambda connection: connection.command("HSET", connection.keys[BUNDLES], *words))

    def lease(self, what: Literal["take", "keep", "give up"], who: str, seconds: float) -> int:
        """Take, keep or give up the learner's lease; the fencing token it is held with, 0: it is not."""
        return int(self._store.run(lambda connection: connection.script("lease", (), (what, who, repr(seconds)))))

    def unlearned(self, most: int) -> list[str]:
        """Entries of feedback that no update was about yet, oldest first; those of a learner that died are among them.

        They stay so until `publish` is given them.
        """

        def read(connection: RedisConnection) -> list[str]:
            stream = ("STREAMS", connection.keys[FEEDBACK])
            found: list[str] = []
            for after in ("0", ">"):
                if len(found) < most:
                    words = ("GROUP", GROUP, GROUP, "COUNT", most - len(found))
                    reply = connection.command("XREADGROUP", *words, *stream, after)
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
        """Make a version current, and note the feedback that it was learned from, both or neither.

        Args:
            files: of the version; none: the update came to nothing, and only the feedback is noted.
            parent: the version that must still be current.
            token: of the lease that must still be held; None: the publisher is not a learner.
            learned: entries that `unlearned` gave.

        Returns:
            "fenced": the lease was lost; "moved": another version is current by now. Then nothing has happened.
        """
        words: list[Any] = ["" if token is None else token, parent, version if files else "", keep, len(files)]
        words += [word for file in files.items() for word in file]
        said: bytes = self._store.run(lambda connection: connection.script("publish", (), (*words, *learned)))
        found: Literal["done", "fenced", "moved"] = said.decode()  # type: ignore[assignment]
        return found

    def roll_back(self, version: int) -> bool:
        """Make a version that is kept the current one; whether it is kept."""
        return bool(self._store.run(lambda connection: connection.script("rollback", (), (version,))))

    def keep_archive(self, wanted: bool) -> None:
        """Have workers keep more rows in Redis until an archive has them, or no longer."""
        self._store.run(
            lambda connection: connection.command("HSET", connection.keys[POLICY], ARCHIVED, 1 if wanted else "")
        )

    def tidy(self, now: float) -> None:
        """Settle what dead processes had reserved, and forget dead writers."""

        def work(connection: RedisConnection) -> None:
            settle_overdue(connection)
            for writer, text in pairs(connection.command("HGETALL", connection.keys[WRITERS])).items():
                if float(text.split()[1]) < now - _FORGET_S:
                    connection.command("HDEL", connection.keys[WRITERS], writer)

        self._store.run(work)
