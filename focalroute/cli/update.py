"""``focalroute update``: learns from the feedback in a store, of a single process or a fleet."""

from __future__ import annotations

import dataclasses
import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focalroute.core.errors import ConfigError, FocalrouteError

if TYPE_CHECKING:
    from focalroute.learn.update_report import UpdateReport
    from focalroute.store import Store

_PAUSE_S = 0.5  # between checks for feedback

_log = logging.getLogger("focalroute")


def update(
    store: Annotated[str, typer.Option(help="The SQLite file, or redis:// address, with answers and feedback.")],
    policy: Annotated[str, typer.Option(help="Folder of policy bundles to learn from and to publish to.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Run for ever, and update whenever there is enough feedback.")
    ] = False,
    every: Annotated[int, typer.Option(min=1, help="With --follow: how much feedback starts an update.")] = 100,
    archive: Annotated[
        Path | None, typer.Option(help="With --follow and Redis: SQLite file for the rows that Redis drops.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Same seed, store and folder: the same policy.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each report as one line of JSON.")] = False,
) -> None:
    """Learn a challenger from the feedback in a store, or judge the one that is on trial.

    A process that serves this folder notices within a second of its next question. With a Redis store, all workers of
    the fleet get the policy, and of the processes that run this command with --follow only one at a time learns.
    """
    from focalroute.learn.fleet.learner import Archive, FleetLearner
    from focalroute.learn.online import update_policy
    from focalroute.policy.references import resolve_policy
    from focalroute.serving.updates import learned_folder
    from focalroute.store import open_store, require_existing
    from focalroute.store.redis.store import RedisStore

    folder = learned_folder(resolve_policy(policy, (), learns=True))
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
                _print_report(learner.run(), as_json)
                return
            step: Callable[[], UpdateReport | None] = learner.step
        elif follow:
            step = _step_on_file(opened, folder, every, seed)
        else:
            _print_report(update_policy(opened, folder, seed=seed), as_json)
            return
        _follow(step, as_json)


def _step_on_file(store: Store, folder: str | Path, every: int, seed: int | None) -> Callable[[], UpdateReport | None]:
    """Make a function that updates the policy if enough feedback has come into the file since its last update."""
    from focalroute.learn.online import update_policy

    received = 0
    next_seed = seed

    def on_feedback(rows: Any) -> None:
        nonlocal received
        received += len(rows)

    def step() -> UpdateReport | None:
        nonlocal received, next_seed
        if received < every:
            return None
        received, used_seed = 0, next_seed
        if next_seed is not None:
            next_seed += 1
        return update_policy(store, folder, seed=used_seed)

    store.subscribe(on_feedback, last=0)
    return step


def _follow(step: Callable[[], UpdateReport | None], as_json: bool) -> None:
    """Run the step repeatedly until the process is told to end; a failed step is logged."""
    with _end_signal() as end:
        while not end.wait(_PAUSE_S):
            try:
                report = step()
            except FocalrouteError as error:
                _log.warning("the policies could not be updated, the old ones stay: %s", error)
            else:
                if report is not None:
                    _print_report(report, as_json)


@contextmanager
def _end_signal() -> Iterator[threading.Event]:
    """Yield an event that is set on SIGINT and SIGTERM, so that the current step can be finished."""
    end = threading.Event()
    before = {number: signal.signal(number, lambda *_: end.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield end
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_report(report: UpdateReport, as_json: bool) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(report)), flush=True)
    else:
        print(f"{report.status}: version {report.version}; {report.reason}", flush=True)
