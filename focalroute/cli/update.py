"""What ``focalroute update`` does, for one file and for a fleet."""

from __future__ import annotations

import dataclasses
import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from focalroute.core.errors import ConfigError, FocalrouteError
from focalroute.learn.fleet.archive import Archive
from focalroute.learn.fleet.learner import FleetLearner
from focalroute.learn.online import update_policy
from focalroute.learn.update_report import UpdateReport
from focalroute.policy.catalogue import chosen
from focalroute.serving.updates import learned_folder
from focalroute.store import Store, open_store, require_existing
from focalroute.store.redis.store import RedisStore

_PAUSE_S = 0.5  # between two looks for feedback

_log = logging.getLogger("focalroute")


def update_command(
    store: str,
    policy: str,
    *,
    follow: bool,
    every: int,
    archive: Path | None,
    seed: int | None,
    as_json: bool,
) -> None:
    """Update once, or until interrupted, and print each report.

    Raises:
        ConfigError: there is no such store, no folder to learn from, or an option does not go with the others.
        FocalrouteError: an update that was to be the only one failed.
    """
    folder = learned_folder(chosen(policy, ()))
    require_existing(store)
    with ExitStack() as stack:
        opened = stack.enter_context(closing(open_store(store)))
        if archive is not None and not (follow and isinstance(opened, RedisStore)):
            raise ConfigError("archive: is for --follow with a Redis store; a SQLite file keeps everything")
        if isinstance(opened, RedisStore):
            kept = None if archive is None else stack.enter_context(closing(Archive(opened, archive)))
            learner = FleetLearner(opened, start=folder, every=every, seed=seed, archive=kept)
            stack.enter_context(closing(learner))
            if not follow:
                _say(learner.run(), as_json)
                return
            step: Callable[[], UpdateReport | None] = learner.step
        elif follow:
            step = _following(opened, folder, every, seed)
        else:
            _say(update_policy(opened, folder, seed=seed), as_json)
            return
        _follow(step, as_json)


def _following(store: Store, folder: str | Path, every: int, seed: int | None) -> Callable[[], UpdateReport | None]:
    """Steps that update whenever so much feedback has come into the file."""
    heard = 0
    steps = 0

    def hear(rows: Any) -> None:
        nonlocal heard
        heard += len(rows)

    def step() -> UpdateReport | None:
        nonlocal heard, steps
        if heard < every:
            return None
        heard, steps = 0, steps + 1
        return update_policy(store, folder, seed=None if seed is None else seed + steps - 1)

    store.subscribe(hear, last=0)
    return step


def _follow(step: Callable[[], UpdateReport | None], as_json: bool) -> None:
    """Step after step until the process is told to end; what fails is tried again."""
    with _told_to_end() as end:
        while not end.wait(_PAUSE_S):
            try:
                report = step()
            except FocalrouteError as error:
                _log.warning("the policies could not be updated, the old ones stay: %s", error)
            else:
                if report is not None:
                    _say(report, as_json)


@contextmanager
def _told_to_end() -> Iterator[threading.Event]:
    """Set once the process is interrupted or terminated; what is under way is finished."""
    end = threading.Event()
    before = {number: signal.signal(number, lambda *_: end.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield end
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(report: UpdateReport, as_json: bool) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(report)), flush=True)
    else:
        print(f"{report.status}: version {report.version}; {report.reason}", flush=True)
