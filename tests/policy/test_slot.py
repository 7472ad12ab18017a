from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from focalroute.core.records import Observation
from focalroute.learn.export import decider_model
from focalroute.observe.layout import CONTEXT, ENDPOINT, width
from focalroute.policy import slot as slot_module
from focalroute.policy.bundle import COLD, CURRENT, Policy, load
from focalroute.policy.fallback import FALLBACK
from focalroute.policy.publish import make_current, publish
from focalroute.policy.references import resolve_policy
from focalroute.policy.slot import PolicySlot
from tests.by_hand import linear_decider
from tests.permissions import barred, open_folder

DECIDER, FUSION = (COLD / "decider.onnx").read_bytes(), (COLD / "fusion.onnx").read_bytes()


def again(root: Path, decider: bytes = DECIDER, parent: int | None = None) -> int:
    return publish(root, decider=decider, fusion=FUSION, names=(), parent=parent)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the folder every time instead of once a second."""
    monkeypatch.setattr(slot_module, "_CHECK_EVERY_S", 0.0)


def test_without_a_folder_the_cold_start_serves() -> None:
    slot = PolicySlot.open(None)
    assert slot.current.version == 0
    assert slot.error is None
    assert not slot.refresh_due()
    assert not slot.refresh()


@pytest.mark.parametrize(("holds", "warned"), [(None, True), ((), False), (("notes.txt",), True)])
def test_a_folder_without_bundles_serves_the_cold_start_until_one_is_published(
    tmp_path: Path, impatient: None, caplog: pytest.LogCaptureFixture, holds: tuple[str, ...] | None, warned: bool
) -> None:
    """It warns of a folder that is not there, or is of something else, but not of one that is new."""
    if holds is not None:
        (tmp_path / "policy").mkdir()
        for name in holds:
            (tmp_path / "policy" / name).touch()
    slot = PolicySlot.open(tmp_path / "policy")
    assert slot.current.version == 0
    assert ("policy holds no bundle: the cold start serves" in caplog.text) == warned
    assert not slot.refresh_due()
    again(tmp_path / "policy")
    assert slot.refresh_due()
    assert slot.refresh()
    assert slot.current.version == 1


def test_a_folder_serves_its_current_bundle(tmp_path: Path) -> None:
    again(tmp_path)
    again(tmp_path, parent=1)
    assert PolicySlot.open(tmp_path).current.version == 2
    make_current(tmp_path, 1)
    assert PolicySlot.open(str(tmp_path)).current.version == 1


def test_a_broken_folder_serves_the_fallback_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    again(tmp_path)
    (tmp_path / "v000001" / "decider.onnx").unlink()
    slot = PolicySlot.open(tmp_path)
    assert slot.current.version == FALLBACK
    assert "decider.onnx" in str(slot.error)
    again(tmp_path, parent=1)
    (tmp_path / "v000002" / "decider.onnx").unlink()
    assert not slot.refresh()
    start, refresh = [record.message for record in caplog.records]
    assert start.startswith(
        "a policy cannot be served, so the plurality of the three cheapest endpoints serves instead: "
    )
    assert refresh.startswith("a policy cannot be served, the plurality of the three cheapest endpoints stays: ")


def test_at_a_start_the_newest_good_version_before_a_broken_one_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Never one that is newer: it was rolled back."""
    for parent in (None, 1, 1, 1, 1):
        again(tmp_path, parent=parent)
    make_current(tmp_path, 4)
    for version in (3, 4):
        (tmp_path / f"v{version:06d}" / "manifest.json").write_text("{")
    slot = PolicySlot.open(tmp_path)
    assert slot.current.version == 2
    assert "v000004/manifest.json" in str(slot.error)
    (record,) = caplog.records
    assert record.message.startswith("a policy cannot be served, so version 2 serves instead (publish again, or roll ")


def test_a_version_that_another_user_may_not_read_is_not_served_and_said() -> None:
    """As published by another user whose files are private; the older version serves on, or at a start the fallback."""
    with open_folder() as root:
        again(root)
        slot = PolicySlot.open(root)
        again(root, parent=1)
        with barred(root / "v000002"):
            assert not slot.refresh()
            fresh = PolicySlot.open(root)
        with barred(root):
            outside = PolicySlot.open(resolve_policy(root, ()))
    assert (slot.current.version, fresh.current.version, outside.current.version) == (1, 1, FALLBACK)
    assert [str(one.error).partition(": cannot be read: Permission denied")[0] for one in (slot, fresh, outside)] == [
        f"{root}/v000002/manifest.json",
        f"{root}/v000002/manifest.json",
        str(root),
    ]


def test_a_file_in_place_of_the_folder_serves_the_fallback_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "policy").write_text("")
    slot = PolicySlot.open(tmp_path / "policy")
    assert slot.current.version == FALLBACK
    assert "give the folder of the bundles" in str(slot.error)


def test_bundles_whose_current_is_missing_are_not_taken_for_an_empty_folder(tmp_path: Path) -> None:
    again(tmp_path)
    (tmp_path / CURRENT).unlink()
    slot = PolicySlot.open(tmp_path)
    assert slot.current.version == FALLBACK
    assert CURRENT in str(slot.error)


def test_every_publish_and_rollback_is_noticed_and_nothing_else(tmp_path: Path, impatient: None) -> None:
    again(tmp_path)
    slot = PolicySlot.open(tmp_path)
    assert not slot.refresh_due()
    assert not slot.refresh()
    again(tmp_path, parent=1)
    assert slot.refresh_due()
    assert slot.refresh()
    assert not slot.refresh_due()
    assert slot.current.version == 2
    make_current(tmp_path, 1)
    assert slot.refresh()
    assert slot.current.version == 1


def test_two_refreshes_at_once_end_with_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that began first loads slowly: it must not put its older bundle over the newer one."""
    slot = PolicySlot.open(tmp_path)
    begun, go_on = threading.Event(), threading.Event()

    def slow(root: Path) -> Policy:
        policy = load(root)
        if policy.version == 1:
            begun.set()
            go_on.wait(30)
        return policy

    monkeypatch.setattr(slot_module, "load_served", slow)
    again(tmp_path)
    first, second = threading.Thread(target=slot.refresh), threading.Thread(target=slot.refresh)
    first.start()
    begun.wait(30)
    again(tmp_path, parent=1)
    second.start()
    second.join(0.2)
    go_on.set()
    first.join()
    second.join()
    assert slot.current.version == 2


def test_the_folder_is_looked_at_once_in_a_while_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_module, "_CHECK_EVERY_S", 60.0)
    again(tmp_path)
    slot = PolicySlot.open(tmp_path)
    again(tmp_path)
    assert [slot.refresh_due(), slot.refresh_due(), slot.refresh_due()] == [True, False, False]


def test_a_bundle_that_fails_its_checks_is_never_served_and_logged_once(
    tmp_path: Path, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    again(tmp_path)
    slot = PolicySlot.open(tmp_path)
    again(tmp_path, parent=1)
    (tmp_path / "v000002" / "fusion.onnx").write_bytes(b"")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            if slot.refresh_due():
                assert not slot.refresh()
    assert slot.current.version == 1
    assert "v000002/fusion.onnx" in str(slot.error)
    assert len(caplog.records) == 1
    again(tmp_path, parent=1)
    assert slot.refresh()
    assert slot.current.version == 3
    assert slot.error is None


def test_a_current_that_vanished_keeps_the_policy_that_serves(tmp_path: Path, impatient: None) -> None:
    again(tmp_path)
    slot = PolicySlot.open(tmp_path)
    (tmp_path / CURRENT).unlink()
    assert slot.refresh_due()
    assert not slot.refresh()
    assert slot.current.version == 1
    assert slot.error is not None


def test_refresh_soon_swaps_in_the_background_and_close_waits_for_it(tmp_path: Path, impatient: None) -> None:
    async def run() -> None:
        slot = PolicySlot.open(tmp_path)
        slot.refresh_soon()
        again(tmp_path)
        slot.refresh_soon()
        slot.close()
        slot.close()
        assert slot.current.version == 1

    asyncio.run(run())


def test_a_swap_under_reading_threads_gives_each_read_one_whole_policy(tmp_path: Path) -> None:
    """Each policy's logits tell its version: what was read as one version always computes as that version."""
    net = linear_decider()
    for version in (1, 2):
        net.skip_context[:], net.bias[:] = 0, version
        again(tmp_path, decider=decider_model(net))
    policies = [load(tmp_path, version) for version in (1, 2)]
    slot = PolicySlot(policies[0])
    done, wrong, reads = threading.Event(), [], [0, 0]
    nothing = Observation(np.zeros(width(CONTEXT), np.float32), np.zeros((3, width(ENDPOINT)), np.float32))

    def read() -> None:
        while not done.is_set():
            policy = cast("Policy", slot.current)
            logits = policy.decider_logits(nothing, np.zeros(3, np.int64))
            reads[policy.version - 1] += 1
            if logits.tolist() != [float(policy.version)] * 3:
                wrong.append((policy.version, logits))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(2000):
        slot.swap(policies[turn % 2])
    while min(reads) < 10:
        slot.swap(policies[reads[0] > reads[1]])
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_slots_in_one_process_are_independent(tmp_path: Path) -> None:
    again(tmp_path / "a")
    first, second = PolicySlot.open(tmp_path / "a"), PolicySlot.open(None)
    assert (first.current.version, second.current.version) == (1, 0)
    replacement = load(tmp_path / "a")
    first.swap(replacement)
    assert first.current is replacement
    assert second.current is not replacement
