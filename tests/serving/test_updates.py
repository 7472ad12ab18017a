from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from focalroute.policy.publish import lock_folder
from focalroute.policy.slot import PolicySlot
from focalroute.serving.updates import Updater
from focalroute.store import open_store
from tests.learn.made import linear_learner, play
from tests.learn.test_online import fill, put
from tests.loopback import until


@pytest.mark.parametrize("where", [None, pytest.param(":memory:", marks=pytest.mark.slow), "s.db"])
def test_an_update_sees_the_store_wherever_it_is(
    where: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And runs in another process, as it could not here; asks need not share the interpreter with it."""
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "policy", linear_learner())
    with closing(PolicySlot.open(tmp_path / "policy")) as slot, closing(open_store(where)) as store:
        fill(store, play(linear_learner(), 100, 0, version=1))
        monkeypatch.setattr("focalroute.learn.online.update_policy", None)
        updater = Updater(store, slot, tmp_path / "policy", every=None, seed=0)
        assert updater.run().episodes == 80
        asyncio.run(updater.aclose())


@pytest.mark.slow
def test_updates_do_not_queue_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While one is under way, only one more waits, however much feedback comes."""
    caplog.set_level(logging.INFO, "focalroute")
    slot = PolicySlot.open(tmp_path)
    with closing(slot), closing(open_store(None)) as store:
        updater = Updater(store, slot, tmp_path, every=2, seed=None)
        go_on = threading.Event()
        updater._worker.submit(go_on.wait)
        for _ in range(10):
            updater.on_feedback(2)
        go_on.set()
        updater._worker.submit(int).result()
        updater.on_feedback(2)
        updater._worker.submit(int).result()
        asyncio.run(updater.aclose())
    assert len([record for record in caplog.records if "update of the policies" in record.message]) == 2


def test_closing_waits_for_an_update_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ending an update is not a failure, but it logged the warning that docs/operating.md says to alert on."""
    monkeypatch.setattr("focalroute.serving.updates._CLOSING_S", 0.0)
    caplog.set_level(logging.INFO, "focalroute")
    put(tmp_path, linear_learner())
    with closing(PolicySlot.open(tmp_path)) as slot, closing(open_store(None)) as store:
        fill(store, play(linear_learner(), 100, 0, version=1))
        updater = Updater(store, slot, tmp_path, every=1, seed=None)
        updater.on_feedback(1)
        until(updater._one_at_a_time.locked)  # else it is dropped
        began = time.monotonic()
        asyncio.run(updater.aclose())
        assert time.monotonic() - began < 30
        said = "the policies could not be updated, the old ones stay: update: its process ended with code -9"
        until(lambda: said in caplog.text)
    assert not any(record.levelno >= logging.WARNING for record in caplog.records)


def test_closing_waits_for_an_update_on_a_thread_for_a_bounded_time_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was waited for without end, such as while another process holds the policy folder."""
    monkeypatch.setattr("focalroute.serving.updates._CLOSING_S", 0.0)
    monkeypatch.setattr("focalroute.serving.updates._KILLING_S", 0.0)
    monkeypatch.setattr("sys.executable", "")
    caplog.set_level(logging.INFO, "focalroute")
    put(tmp_path, linear_learner())
    with closing(PolicySlot.open(tmp_path)) as slot, closing(open_store(None)) as store:
        fill(store, play(linear_learner(), 100, 0, version=1))
        updater = Updater(store, slot, tmp_path, every=1, seed=None)
        with lock_folder(tmp_path):
            updater.on_feedback(1)
            until(updater._one_at_a_time.locked)
            asyncio.run(updater.aclose())
            assert updater._one_at_a_time.locked()
        updater._worker.shutdown()
    assert "update of the policies: on trial" in caplog.text


def test_the_loop_goes_on_while_closing_waits_for_an_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every other request of the program would wait, too."""
    monkeypatch.setattr("focalroute.serving.updates._CLOSING_S", 0.5)
    monkeypatch.setattr("focalroute.serving.updates._KILLING_S", 0.0)
    turns = 0

    async def close(updater: Updater) -> None:
        nonlocal turns
        closed = asyncio.create_task(updater.aclose())
        while not closed.done():
            await asyncio.sleep(0.01)
            turns += 1

    with closing(PolicySlot.open(tmp_path)) as slot, closing(open_store(None)) as store:
        updater = Updater(store, slot, tmp_path, every=None, seed=None)
        with updater._one_at_a_time:
            asyncio.run(close(updater))
    assert turns > 5


def test_what_comes_while_the_ensemble_closes_starts_nothing(tmp_path: Path) -> None:
    """Feedback of another process, or a version that was just published."""
    slot = PolicySlot.open(tmp_path)
    with closing(open_store(None)) as store:
        updater = Updater(store, slot, tmp_path, every=1, seed=None)
        asyncio.run(updater.aclose())
        slot.close()
        updater.on_feedback(1)
        put(tmp_path, linear_learner())
        slot.refresh_soon()
    assert slot.current.version == 0
