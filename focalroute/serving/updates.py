"""Updates the policies of a serving ensemble, on demand or in the background after enough feedback."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from focalroute.core.errors import ConfigError, FocalrouteError, PolicyError
from focalroute.core.event_loops import wait_until
from focalroute.policy.baselines import Baseline
from focalroute.policy.slot import PolicySlot
from focalroute.store import Store, is_shared

if TYPE_CHECKING:
    from focalroute.learn.fleet.learner import FleetLearner
    from focalroute.learn.update_report import UpdateReport
    from focalroute.store.redis.store import RedisStore

_CLOSING_S = 10.0  # for an update under way to end
_KILLING_S = 1.0  # for its process to be killed after that
_NICE = 10  # asks have priority
_CHECK_STOP_EVERY_S = 0.2

_log = logging.getLogger("focalroute")


def learned_folder(policy: str | Path | Baseline | None, setting: str = "policy") -> str | Path:
    """Return the folder that updates of this policy are published to.

    Raises:
        ConfigError: there is none; the message names ``setting``.
    """
    if isinstance(policy, Baseline):
        raise ConfigError(
            f"{setting}: {policy.name!r} is a rule, which updates do not change; to learn, give a folder, such as "
            'policy="policy/"'
        )
    if policy is None:
        raise ConfigError(
            f'{setting}: an update needs a policy folder to publish to; give one, such as policy="policy/"'
        )
    return policy


class Updater:
    """Trains on the store, publishes to the policy folder, and refreshes the slot. One update at a time.

    It trains in a process of its own, on the store's file or a copy of an in-memory store, or on a thread if no Python
    can be started. On a fleet's store it is a candidate for the fleet's learner, which publishes to all workers.

    Args:
        policy: the policy folder. None or a named policy: there is nowhere to publish, so nothing is updated.
        every: how much feedback starts an update in the background; None: only on demand.
        seed: with the number of the update its seed; None: random.

    Raises:
        ConfigError: ``every`` is given without a folder to publish to.
    """

    def __init__(
        self,
        store: Store,
        slot: PolicySlot,
        policy: str | Path | Baseline | None,
        *,
        every: int | None,
        seed: int | None,
    ) -> None:
        if every is not None:
            learned_folder(policy, "update_every")
        self._policy = policy
        self._store = store
        self._slot = slot
        self._every = every
        self._seed = seed
        self._runs = 0
        self._feedbacks = 0
        self._latest: Future[None] | None = None  # the latest background update, waiting or begun
        self._learner: FleetLearner | None = None
        self._one_at_a_time = threading.Lock()
        self._stop = threading.Event()
        self._worker = ThreadPoolExecutor(1, "focalroute-update")

    def run(self) -> UpdateReport:
        """Update now; blocks the calling thread for about a second.

        Raises:
            ConfigError: there is no policy folder, or a named policy serves.
            PolicyError: the current bundle is damaged, or the new one cannot be written.
        """
        from focalroute.learn.update_report import REACH
        from focalroute.store.sqlite.store import SqliteStore

        root = learned_folder(self._policy)
        with self._one_at_a_time:
            if is_shared(self._store):
                return self._in_fleet(self._store, root).run()  # the follower serves what it publishes
            seed = None if self._seed is None else self._seed + self._runs
            self._runs += 1
            if isinstance(self._store, SqliteStore) and can_start():
                with self._store.on_disk(REACH) as file:
                    report = update_in_subprocess(file, root, seed=seed, stop=self._stop)
            else:
                from focalroute.learn.online import update_policy  # not before, as the learner takes 0.1 s to load

                report = update_policy(self._store, root, seed=seed)
        self._slot.refresh()
        return report

    def _in_fleet(self, store: RedisStore, root: str | Path) -> FleetLearner:
        """Return this process's candidate for the fleet's learner."""
        from focalroute.learn.fleet.learner import FleetLearner

        if self._learner is None:
            self._learner = FleetLearner(store, start=root, every=self._every or 1, seed=self._seed)
        return self._learner

    def on_feedback(self, feedbacks: int) -> None:
        """Count committed feedback; run an update that is due on the updater's own thread.

        At most one update waits for the one before, as it will train on all feedback.
        """
        if self._every is None:
            return
        self._feedbacks += feedbacks
        waiting = self._latest is not None and not (self._latest.running() or self._latest.done())
        if self._feedbacks >= self._every and not waiting:
            self._feedbacks = 0
            with suppress(RuntimeError):  # it was closed, or the program ends
                self._latest = self._worker.submit(self._run_quietly)

    def _run_quietly(self) -> None:
        """Run an update, if it is due, and log its outcome."""
        try:
            report = self._run_if_due()
        except (FocalrouteError, OSError) as error:
            level = logging.INFO if self._stop.is_set() else logging.WARNING  # closing ended it
            _log.log(level, "the policies could not be updated, the old ones stay: %s", error)
        else:
            if report is None:
                return
            _log.info("update of the policies: %s, version %d: %s", report.status, report.version, report.reason)

    def _run_if_due(self) -> UpdateReport | None:
        """Update; in a fleet only if this process is its learner and the whole fleet has enough feedback."""
        if not is_shared(self._store):
            return self.run()
        with self._one_at_a_time:
            return self._in_fleet(self._store, learned_folder(self._policy)).step()

    async def aclose(self) -> None:
        """Wait up to 10 seconds for an update under way, then kill it; drop a waiting one. Idempotent.

        An update on a thread, where no Python can be started, cannot be killed: it is left to end by itself.
        """
        self._worker.shutdown(wait=False, cancel_futures=True)
        await wait_until(self._is_idle, _CLOSING_S)
        self._stop.set()
        await wait_until(self._is_idle, _KILLING_S)
        if self._learner is not None:
            self._learner.close()

    def _is_idle(self) -> bool:
        """Whether no update is under way."""
        return not (self._one_at_a_time.locked() or (self._latest is not None and self._latest.running()))


def can_start() -> bool:
    """Whether this Python can be started as another process: not in a frozen program, or one that embeds Python."""
    return Path(sys.executable or "").stem.lower().startswith("python")


def update_in_subprocess(
    store: Path, root: str | Path, *, seed: int | None = None, stop: threading.Event | None = None
) -> UpdateReport:
    """Run `focalroute.learn.online.update_policy` on a store's file, by ``focalroute update``.

    It blocks until the process has ended. If this process dies, the other one continues; it publishes only whole
    versions.

    Args:
        stop: when set, the process is killed.

    Raises:
        PolicyError: the update failed; the message is that of the process.
    """
    command = [sys.executable, "-P", "-m", "focalroute", "update", "--json"]
    command += [f"--store={store}", f"--policy={Path(root).absolute()}"]
    if seed is not None:
        command.append(f"--seed={seed}")
    here = os.pathsep.join(map(str, sys.path))  # so that the process can import the same modules
    environment = {**os.environ, "PYTHONPATH": here}
    try:
        with _sigterm_blocked():
            process = subprocess.Popen(  # noqa: S603 - this Python, by its path
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                process_group=0,  # a terminal sends Ctrl-C to the whole group
            )
    except OSError as error:
        raise PolicyError(f"no process could be started to update the policies: {error.strerror}") from None
    with process:
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        while True:
            try:
                report, said = process.communicate(timeout=_CHECK_STOP_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                if stop is not None and stop.is_set():
                    process.kill()
    lines = said.splitlines()
    why = lines.pop() if process.returncode and lines else f"its process ended with code {process.returncode}"
    for line in lines:
        _log.warning("%s", line.removeprefix("WARNING: "))
    if process.returncode:
        raise PolicyError(f"update: {why.removeprefix('error: ')}")
    return _reports().validate_json(report)


@contextmanager
def _sigterm_blocked() -> Iterator[None]:
    """Block SIGTERM in processes started within: systemd sends it to all, but an ensemble ends its updates itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def _reports() -> TypeAdapter[UpdateReport]:
    from focalroute.learn.update_report import UpdateReport  # not before, as only updates need it

    return TypeAdapter(UpdateReport)
