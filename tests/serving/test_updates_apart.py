from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from focalroute.core.errors import PolicyError
from focalroute.learn.online import update_policy
from focalroute.policy import bundle
from focalroute.serving.updates import can_start, update_in_subprocess
from focalroute.store import open_store
from tests.learn.made import linear_learner, play
from tests.learn.test_online import fill, put


def stored(folder: Path, answers: int = 500) -> Path:
    """A store's file with so many rewarded answers of the small world, and its policy beside it."""
    put(folder / "policy", linear_learner())
    with closing(open_store(folder / "s.db")) as store:
        fill(store, play(linear_learner(), answers, 0, version=1))
    return folder / "s.db"


def test_a_process_of_its_own_learns_bit_for_bit_the_same(tmp_path: Path) -> None:
    file = stored(tmp_path)
    put(tmp_path / "here", linear_learner())
    with closing(open_store(file)) as store:
        here = update_policy(store, tmp_path / "here", seed=3)
    apart = update_in_subprocess(file, tmp_path / "policy", seed=3)
    assert apart == here
    assert apart.diagnostics is not None
    one, other = (bundle.load(tmp_path / name) for name in ("policy", "here"))
    assert (one.decider_onnx, one.fusion_onnx) == (other.decider_onnx, other.fusion_onnx)


@pytest.mark.slow
def test_a_process_that_has_another_learn_does_not_load_the_learner(tmp_path: Path) -> None:
    """It takes a tenth of a second in which no ask goes on, and tens of MiB."""
    file, policy = str(stored(tmp_path)), str(tmp_path / "policy")
    code = (
        "import sys\n"
        "from focalroute.serving.updates import update_in_subprocess\n"
        f"assert update_in_subprocess({file!r}, {policy!r}, seed=3).episodes > 0\n"
        "assert not {'onnx', 'focalroute.learn.mappo', 'focalroute.learn.online'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_too_little_to_learn_from_is_reported(tmp_path: Path) -> None:
    report = update_in_subprocess(stored(tmp_path, answers=3), tmp_path / "policy")
    assert (report.status, report.version, report.comparison, report.diagnostics) == ("insufficient", 1, None, None)


def test_failures_of_the_other_process_are_raised_here(tmp_path: Path) -> None:
    file = stored(tmp_path)
    (tmp_path / "policy" / "v000001" / "fusion.onnx").write_bytes(b"broken")
    with pytest.raises(PolicyError, match=r"update: .*v000001"):
        update_in_subprocess(file, tmp_path / "policy")


def test_signals_to_all_of_a_program_leave_the_other_process_alone(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to the process group, systemd SIGTERM to every process; this program ends the update."""
    file, policy = str(stored(tmp_path)), str(tmp_path / "policy")
    code = (
        "import os, signal, subprocess, threading\n"
        "from focalroute.serving.updates import update_in_subprocess\n"
        "ended, started = threading.Event(), []\n"
        "class Popen(subprocess.Popen):\n"
        "    def __init__(self, *command, **settings):\n"
        "        super().__init__(*command, **settings)\n"
        "        started.append(self)\n"
        "subprocess.Popen = Popen\n"
        "def interrupt():\n"
        "    while not ended.wait(0.05):\n"
        "        os.killpg(0, signal.SIGINT)\n"
        "        for process in started:\n"
        "            process.terminate()\n"
        "signal.signal(signal.SIGINT, lambda *_: None)\n"
        "threading.Thread(target=interrupt).start()\n"
        "try:\n"
        f"    assert update_in_subprocess({file!r}, {policy!r}, seed=3).episodes > 0\n"
        "    assert started and signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
        "finally:\n"
        "    ended.set()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, start_new_session=True)


@pytest.mark.slow
def test_modules_in_the_working_folder_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder named like a rule of ours is a folder, and a module named like one of Python's is not found."""
    file = stored(tmp_path)
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong one')")
    (tmp_path / "policy").rename(tmp_path / "plurality")
    monkeypatch.chdir(tmp_path)
    assert update_in_subprocess(file, "plurality").parent == 1


@pytest.mark.parametrize("name", ["", "/bin/uwsgi", "/opt/app/my-app"])
def test_only_a_python_executable_is_started(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_start()
    monkeypatch.setattr(sys, "executable", name)
    assert not can_start()
