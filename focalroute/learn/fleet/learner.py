"""The fleet's learner: the lease holder takes the feedback, updates the policy, and publishes what passes the gate.

One step in Redis publishes a version and marks its feedback as learned. Only the holder of the latest lease can take
it, and only if the version it started from still serves. So if a learner dies or hangs, or its version is rolled back
meanwhile, its successor starts over, and nothing is counted twice. Any number may run; one works. A challenger is tried
on the answers of the version that serves; workers never serve it.

The archive is a SQLite store that receives the oldest rows before Redis drops them. A row is written to the archive
before it leaves Redis, and writing it again changes nothing, so a crash in between neither loses nor duplicates it.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from focalroute.core.errors import PolicyError, StoreError
from focalroute.core.records import Usage
from focalroute.learn.online import update_policy
from focalroute.learn.trial import TRIAL
from focalroute.learn.update_report import UpdateReport
from focalroute.policy import bundle
from focalroute.policy.publish import FILES, install, make_current
from focalroute.store import Store, open_store
from focalroute.store.accounts import from_pico
from focalroute.store.base import CapabilityRow, LedgerRow
from focalroute.store.redis.fleet_policy import FleetPolicy
from focalroute.store.redis.reads import (
    LedgerEntry,
    drop_answers,
    drop_ledger,
    kept_answers,
    oldest_answers,
    oldest_ledger,
)
from focalroute.store.redis.rows import AnswerHash, entry_order
from focalroute.store.redis.store import RedisStore

_OF_A_TRIAL = re.compile(rf"v[0-9]+/({'|'.join(map(re.escape, FILES))})|{re.escape(TRIAL)}|{bundle.CHALLENGER}")
#: Key in the archive of the last ledger entry taken over; written in the same transaction as the rows.
_MARK = "archived ledger"

_log = logging.getLogger("focalroute")


class Archive:
    """Keeps the rows that Redis drops.

    Args:
        path: the archive, a SQLite file; it can be read like any store.

    Raises:
        StoreError: it cannot be opened.
    """

    def __init__(self, store: RedisStore, path: str | Path) -> None:
        self._store = store
        self._kept: Store = open_store(path)
        FleetPolicy(store).keep_archive(True)

    def take(self) -> int:
        """Move all rows beyond those the ensembles keep in Redis into the archive; return the number of answers moved.

        Raises:
            StoreError: Redis or the archive cannot be used; nothing is lost.
        """
        keep = self._store.run(kept_answers)
        while bills := self._store.run(lambda connection: oldest_ledger(connection, keep)):
            self._take_bills(bills)
            last = bills[-1].entry
            self._store.run(lambda connection, last=last: drop_ledger(connection, last, keep))  # type: ignore[misc]
        taken = 0
        while answers := self._store.run(lambda connection: oldest_answers(connection, keep)):
            for _, _, one in answers:
                self._take_answer(one)
            dropped = [(entry, name) for entry, name, _ in answers]
            self._store.run(lambda connection, rows=dropped: drop_answers(connection, rows, keep))  # type: ignore[misc]
            taken += len(answers)
        return taken

    def _take_answer(self, one: AnswerHash) -> None:
        try:
            answer = one.answer
        except StoreError as error:
            _log.warning("%s; it does not go into the archive", error)
            return
        if self._kept.answer(answer.id) is None:
            self._kept.write(answer, *answer.probes, *(said for _, said in one.feedback())).result()

    def _take_bills(self, bills: Sequence[LedgerEntry]) -> None:
        mark = self._kept.capabilities(_MARK)
        before = entry_order(b"0-0" if mark is None else str(mark.values["entry"]).encode())
        rows = [_ledger_row(bill) for bill in bills if entry_order(bill.entry) > before]
        done = CapabilityRow(_MARK, time.time(), {"entry": bills[-1].entry.decode()})
        self._kept.write(*rows, done).result()

    def close(self) -> None:
        """Close the file. Another `Archive` can continue with it."""
        self._kept.close()


def _ledger_row(bill: LedgerEntry) -> LedgerRow:
    answer_id, endpoint, *used, cost, source = bill.row
    return LedgerRow(answer_id, endpoint, bill.at, _usage(used), _usd(cost), source, tuple(bill.tags))


def _usage(used: Sequence[int | None]) -> Usage | None:
    prompt, completion, cached, reasoning, provider = used
    if prompt is None or completion is None:
        return None
    counts: dict[str, Any] = {"cached_tokens": cached, "reasoning_tokens": reasoning, "cost_usd": _usd(provider)}
    return Usage(prompt, completion, **counts)


def _usd(pico: int | None) -> Any:
    return None if pico is None else from_pico(pico)


_MOST = 10_000  # feedbacks that one update takes
_TIDY_EVERY_S = 60.0
_ARCHIVE_EVERY_S = 2.0  # workers drop rows once there are twice as many as Redis should keep


class FleetLearner:
    """A candidate for the lease, and the fleet's learner while it holds it.

    Args:
        start: a folder whose current policy the fleet starts with, if it has none yet; None: the shipped one.
        every: feedbacks between two updates.
        seed: of the updates, together with the version they start from; None: random.
        lease_s: how long it takes at most until a dead learner is replaced.
        archive: keeps the rows that Redis drops; None: there is no archive.
    """

    def __init__(
        self,
        store: RedisStore,
        *,
        start: str | Path | None = None,
        every: int = 100,
        seed: int | None = None,
        lease_s: float = 10.0,
        archive: Archive | None = None,
    ) -> None:
        self._store = store
        self._fleet_policy = FleetPolicy(store)
        self._start = start
        self._every = every
        self._seed = seed
        self._lease_s = lease_s
        self._archive = archive
        self._who = secrets.token_hex(8)
        self._next_tidy = self._next_archiving = 0.0

    def step(self) -> UpdateReport | None:
        """Update once, if this is the learner and there is enough feedback; None: no update was made.

        Raises:
            StoreError: Redis cannot be used.
            PolicyError: the fleet's policy is damaged.
        """
        return self._step(self._every)

    def _step(self, at_least: int) -> UpdateReport | None:
        token = self._fleet_policy.lease("take", self._who, self._lease_s)
        if not token:
            return None
        with self._lease_renewed():
            self._publish_start()
            self._tidy()
            entries = self._fleet_policy.unlearned(_MOST)
            if len(entries) < at_least:
                return None
            return self._update(token, entries)

    def run(self) -> UpdateReport:
        """Update now, even with little or no new feedback."""
        report = self._step(0)
        if report is not None:
            return report
        current = self._fleet_policy.state().current
        return UpdateReport("insufficient", current, current, "another process learns for this fleet now")

    def close(self) -> None:
        """Give up the lease, so that the next learner need not wait until it expires."""
        with suppress(StoreError):
            self._fleet_policy.lease("give up", self._who, self._lease_s)

    def _update(self, token: int, entries: list[str]) -> UpdateReport | None:
        """Update the fleet's policy in a temporary folder, and publish the result; None if it was thrown away.

        Args:
            token: of the lease.
            entries: the feedback that counts as learned once the result is published.
        """
        parent = self._fleet_policy.state()
        seed = None if self._seed is None else self._seed + parent.current
        with TemporaryDirectory() as name:
            folder = Path(name)
            for version in parent.versions:
                if files := self._fleet_policy.files(version):
                    install(folder, version, files)
                elif version == parent.current:
                    raise PolicyError(
                        f"{self._store.name}: the files of version {version}, which serves, are missing; roll back to "
                        "another version"
                    )
            if parent.current:
                make_current(folder, parent.current)
            put_trial(folder, self._fleet_policy.trial())
            report = update_policy(self._store, folder, seed=seed, share=0)
            current = bundle.current(folder) if bundle.versions(folder) else 0
            files = {} if current in (0, *parent.versions) else _read(bundle.folder_of(folder, current))
            trial = trial_files(folder)
        done = self._fleet_policy.publish(files, version=current, parent=parent.current, token=token, learned=entries)
        if done == "done":
            self._fleet_policy.keep_trial(trial)
            if current in parent.versions and current != parent.current:
                self._fleet_policy.roll_back(current)
            return report
        said = "its lease was over" if done == "fenced" else "another version serves by now"
        _log.warning("an update of the fleet's policy was thrown away: %s", said)
        return None

    def _publish_start(self) -> None:
        """Publish the policy to start with, if the fleet has none yet."""
        if self._start is None or self._fleet_policy.state().current or not bundle.versions(self._start):
            return
        version = bundle.load(self._start).version
        self._fleet_policy.publish(_read(bundle.folder_of(self._start, version)), version=version, parent=0)

    def _tidy(self) -> None:
        now = time.monotonic()
        if now >= self._next_tidy:
            self._next_tidy = now + _TIDY_EVERY_S
            self._fleet_policy.tidy(time.time())
        if self._archive is not None and now >= self._next_archiving:
            self._next_archiving = now + _ARCHIVE_EVERY_S
            self._archive.take()

    @contextmanager
    def _lease_renewed(self) -> Iterator[None]:
        """Renew the lease on a thread until the work is done."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(self._lease_s / 3):
                with suppress(StoreError):  # the lease then expires, and publishing is refused
                    self._fleet_policy.lease("keep", self._who, self._lease_s)

        thread = threading.Thread(target=renew, name="focalroute-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _read(folder: Path) -> dict[str, bytes]:
    """Read the files of a bundle; PolicyError if one is too large, or not a regular file within the policy folder."""
    return {name: bundle.read_file(folder / name, folder.parent) for name in FILES if os.path.lexists(folder / name)}


def trial_files(folder: Path) -> dict[str, bytes]:
    """Read the files of the trial in this folder, by path: its state, and the challenger's bundle."""
    version = bundle.challenger(folder)
    files = {name: folder / name for name in (TRIAL, bundle.CHALLENGER) if (folder / name).exists()}
    if version is not None:
        home = bundle.folder_of(folder, version)
        files |= {f"{home.name}/{path.name}": path for path in home.iterdir()}
    return {name: bundle.read_file(path, folder) for name, path in files.items()}


def put_trial(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files that `trial_files` returned into this folder. Others are left out: Redis may name any path."""
    for name, data in files.items():
        if _OF_A_TRIAL.fullmatch(name):
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
