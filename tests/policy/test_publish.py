from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from focalroute.core.errors import PolicyError
from focalroute.policy.bundle import COLD, CURRENT, cold, current, load, versions
from focalroute.policy.publish import (
    bundle_files,
    end_trial,
    make_current,
    publish,
    temporary_path,
    write_files,
)
from tests.loopback import until

DECIDER, FUSION = (COLD / "decider.onnx").read_bytes(), (COLD / "fusion.onnx").read_bytes()

PUBLISHER = """
import sys
from pathlib import Path
from focalroute.policy.bundle import COLD
from focalroute.policy.publish import publish
root, count = Path(sys.argv[1]), int(sys.argv[2])
decider, fusion = (COLD / "decider.onnx").read_bytes(), (COLD / "fusion.onnx").read_bytes()
print("ready", flush=True)
for _ in range(count):
    print(publish(root, decider=decider, fusion=fusion, names=(), parent=None, keep=1000), flush=True)
"""


def publisher(root: Path, count: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(COLD.parents[2])}
    command = [sys.executable, "-c", PUBLISHER, str(root), str(count)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def again(root: Path, parent: int | None = None, keep: int = 10) -> int:
    return publish(root, decider=DECIDER, fusion=FUSION, names=(), parent=parent, keep=keep)


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_versions_count_up_and_the_latest_published_is_current(tmp_path: Path) -> None:
    root = tmp_path / "a" / "policy"
    assert [again(root) for _ in range(3)] == [1, 2, 3]
    assert versions(root) == (1, 2, 3)
    assert load(root).version == current(root) == 3
    assert load(root, 2).version == 2
    assert names(root) == {"v000001", "v000002", "v000003", CURRENT, ".lock"}


def test_a_version_that_is_not_there_is_a_policy_error(tmp_path: Path) -> None:
    again(tmp_path)
    with pytest.raises(PolicyError, match="v000009"):
        load(tmp_path, 9)


def test_only_the_last_versions_are_kept_but_the_parent_is_never_dropped(tmp_path: Path) -> None:
    for _ in range(4):
        again(tmp_path, keep=3)
    assert versions(tmp_path) == (2, 3, 4)
    again(tmp_path, parent=2, keep=2)
    assert versions(tmp_path) == (2, 4, 5)
    again(tmp_path, parent=5, keep=1)
    assert versions(tmp_path) == (5, 6)
    assert make_current(tmp_path, 5) == 5


def test_a_bundle_that_would_not_be_served_is_not_published(tmp_path: Path) -> None:
    again(tmp_path)
    before = names(tmp_path)
    with pytest.raises(PolicyError, match=r"decider.onnx"):
        publish(tmp_path, decider=b"no model", fusion=FUSION, names=(), parent=1)
    with pytest.raises(PolicyError, match=r"fails on a trial"):
        publish(tmp_path, decider=DECIDER, fusion=FUSION, names=("more", "than embeddings"), parent=1)
    for metrics in ({"reward": float("nan")}, {"reward": object()}):
        with pytest.raises(PolicyError, match="finite JSON"):
            publish(tmp_path, decider=DECIDER, fusion=FUSION, names=(), parent=1, metrics=metrics)
    assert names(tmp_path) == before
    assert load(tmp_path).version == 1


def test_a_folder_that_cannot_be_written_is_a_policy_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PolicyError, match="cannot be written"):
        again(tmp_path / "file")
    with pytest.raises(PolicyError, match="cannot be written"):
        again(tmp_path / "file" / "inside")


def test_an_earlier_version_serves_again_and_a_later_publish_takes_a_new_number(tmp_path: Path) -> None:
    again(tmp_path)
    again(tmp_path, parent=1)
    again(tmp_path, parent=1)
    assert make_current(tmp_path, 1) == 1
    assert load(tmp_path).version == 1
    assert versions(tmp_path) == (1, 2, 3)
    assert again(tmp_path, parent=1) == 4
    assert make_current(tmp_path, 2) == current(tmp_path) == 2


@pytest.mark.parametrize("change", [lambda folder: make_current(folder, 3), end_trial])
def test_a_folder_that_is_not_there_is_a_policy_error_and_not_made(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    with pytest.raises(PolicyError, match="nowhere: cannot be written"):
        change(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_version_that_is_not_kept_is_a_policy_error_and_changes_nothing(tmp_path: Path) -> None:
    again(tmp_path)
    with pytest.raises(PolicyError, match="version 7 is not kept; give one of 1"):
        make_current(tmp_path, 7)
    assert current(tmp_path) == 1


def test_rollback_never_leads_to_a_damaged_version(tmp_path: Path) -> None:
    again(tmp_path)
    again(tmp_path, parent=1)
    (tmp_path / "v000001" / "fusion.onnx").write_bytes(b"")
    with pytest.raises(PolicyError, match=r"v000001/fusion.onnx"):
        make_current(tmp_path, 1)
    assert load(tmp_path).version == 2


def test_a_damaged_current_version_can_be_left_by_naming_another(tmp_path: Path) -> None:
    again(tmp_path)
    again(tmp_path, parent=1)
    (tmp_path / "v000002" / "manifest.json").write_bytes(b"")
    assert make_current(tmp_path, 1) == load(tmp_path).version == 1


def test_the_remains_of_a_publisher_that_died_at_any_step_are_ignored_and_removed(tmp_path: Path) -> None:
    again(tmp_path)
    files = bundle_files(
        version=2, parent=1, created_at=0.0, decider=DECIDER, fusion=FUSION, names=(), hyperparameters={}, metrics={}
    )
    temporary_path(tmp_path).mkdir()  # died while writing: an empty folder, some files, half a file
    write_files(temporary_path(tmp_path), {"decider.onnx": DECIDER[:100]})
    write_files(temporary_path(tmp_path), files)  # died before the rename
    temporary_path(tmp_path).write_bytes(b"v0000")  # died while writing CURRENT
    assert (load(tmp_path).version, versions(tmp_path)) == (1, (1,))
    write_files(tmp_path / "v000002", files)  # died after the rename, before CURRENT
    assert (load(tmp_path).version, versions(tmp_path)) == (1, (1, 2))
    assert again(tmp_path, parent=1) == load(tmp_path).version == 3
    assert names(tmp_path) == {"v000001", "v000002", "v000003", CURRENT, ".lock"}


@pytest.mark.slow
def test_a_publisher_killed_at_any_moment_leaves_a_policy_that_serves(tmp_path: Path) -> None:
    again(tmp_path)
    rng = np.random.default_rng(0)
    for _ in range(4):
        process = publisher(tmp_path, 10_000)
        assert process.stdout is not None
        with process, process.stdout as out:
            assert out.readline() == "ready\n"
            out.readline()
            time.sleep(rng.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            said = [int(line) for line in out.read().split()]
        assert process.returncode == -signal.SIGKILL
        assert load(tmp_path).version >= max(said, default=1)
        for version in versions(tmp_path):
            load(tmp_path, version)
    last = again(tmp_path, keep=1000)
    assert last == max(versions(tmp_path))
    assert names(tmp_path) == {f"v{v:06d}" for v in versions(tmp_path)} | {CURRENT, ".lock"}


@pytest.mark.slow
def test_publishers_in_several_processes_and_threads_never_collide(tmp_path: Path) -> None:
    mine: list[int] = []
    processes = [publisher(tmp_path, 4) for _ in range(2)]
    threads = [
        threading.Thread(target=lambda: mine.extend(again(tmp_path, keep=1000) for _ in range(4))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in processes:
        said = process.communicate(timeout=60)[0].split()
        assert process.returncode == 0
        mine.extend(int(version) for version in said[1:])
    assert sorted(mine) == list(versions(tmp_path)) == list(range(1, 17))
    assert load(tmp_path).version == 16


def test_a_reader_never_sees_a_broken_policy_while_others_are_published_and_pruned(tmp_path: Path) -> None:
    again(tmp_path)
    done, seen = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            seen.append(load(tmp_path).version)

    reader = threading.Thread(target=read)
    reader.start()
    until(lambda: bool(seen))
    for _ in range(15):
        again(tmp_path, parent=current(tmp_path), keep=3)
    until(lambda: seen[-1] == 16)
    done.set()
    reader.join()
    assert seen == sorted(seen)


def test_the_shipped_policy_can_be_published_and_is_then_the_same(tmp_path: Path) -> None:
    again(tmp_path)
    assert load(tmp_path).decider_onnx == cold().decider_onnx
