"""``focalroute train``: from a log to a folder that serves, in one go or after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from focalroute.cli.app import app
from focalroute.cli.train import train
from focalroute.core.errors import ConfigError
from focalroute.evaluate.eval_page import eval_page
from focalroute.evaluate.eval_result import read_eval
from focalroute.evaluate.live import LiveOptions
from focalroute.evaluate.report import evaluate_command
from focalroute.evaluate.table import SplitKind
from focalroute.policy.bundle import load, versions
from tests.cli.calling import focalroute
from tests.evaluate.brief import brief_training as brief_training  # a fixture
from tests.evaluate.logs import stream, write_log, write_pool
from tests.loopback import until

pytestmark = pytest.mark.usefixtures("brief_training")

SKILLS = {"a": 0.5, "b": 0.9, "c": 0.7}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("given")
    prices = {"a": 1.0, "b": 2.0, "c": 4.0}
    return write_log(folder / "log.jsonl", stream(60, SKILLS)), write_pool(folder / "pool.toml", prices)


ROOT = Path(__file__).resolve().parents[2]
#: The command, which goes no further once something is kept.
KEPT = """
import signal
import pytest
from focalroute.cli.app import main
from focalroute.learn.offline.checkpoint import Checkpoint
from tests.evaluate.brief import shorten
shorten(pytest.MonkeyPatch())
write = Checkpoint.write
Checkpoint.write = lambda *given: (write(*given), signal.pause())
main()
"""


@pytest.mark.slow
def test_killed_and_resumed_it_ends_where_an_uninterrupted_one_does(given: tuple[Path, Path], tmp_path: Path) -> None:
    """SIGKILL from outside as soon as something is kept; the same models, byte for byte."""
    log, pool = given
    arguments = ["train", str(log), "--pool", str(pool), "--iterations", "2", "--seed", "4", "--out"]
    killed = subprocess.Popen([sys.executable, "-c", KEPT, *arguments, str(tmp_path / "killed")], cwd=ROOT)
    kept = tmp_path / "killed" / ".training-4.npz"
    until(kept.exists)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait(120) == -signal.SIGKILL
    assert kept.exists()
    assert versions(tmp_path / "killed") == ()
    resumed = focalroute(*arguments, str(tmp_path / "killed"), "--resume", "--json")
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert json.loads(resumed.stdout)["version"] == 1
    assert not kept.exists()
    whole = focalroute(*arguments, str(tmp_path / "whole"))
    assert (whole.returncode, whole.stderr) == (0, "")
    assert "seed 4: score" in whole.stdout
    assert "cost weight" in whole.stdout
    one, other = load(tmp_path / "whole"), load(tmp_path / "killed")
    assert (one.decider_onnx, one.fusion_onnx) == (other.decider_onnx, other.fusion_onnx)
    assert one.metrics == other.metrics


def test_an_interrupted_training_says_how_to_continue_it(
    given: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("focalroute.evaluate.training.train_each", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train([given[0]], [given[1]], tmp_path)
    assert "with --resume continues" in capsys.readouterr().err


def test_json_tells_of_every_seed_and_the_best_is_published(
    given: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train([given[0]], [given[1]], tmp_path, seeds=2, iterations=1, as_json=True)
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (said["version"], said["queries"], said["validation"]) == (1, 60, 12)
    assert (said["bad_rows"], said["unpriced"], said["never_right"]) == (0, [], [])
    assert [one["seed"] for one in said["seeds"]] == [0, 1]
    best = max(said["seeds"], key=lambda one: one["score"])
    assert said["seed"] == best["seed"]
    policy = load(tmp_path)
    assert policy.metrics["score"] == best["score"]
    assert policy.metrics["curve"] == best["curve"]
    assert policy.names == tuple(SKILLS)
    assert not list(tmp_path.glob(".training*"))
    other = write_log(tmp_path / "other.jsonl", stream(20, SKILLS, seed=5))
    for log, seen in ((given[0], 12), (other, 0)):
        report = tmp_path / "report.json"
        evaluate_command(log, given[1], policy=policy, operating_points=[0.5], json_file=report)
        printed = capsys.readouterr().out
        warned = f"CAUTION: the policy was trained on {seen} of these 12 test questions"
        page = eval_page(read_eval(json.loads(report.read_text()), "report.json"))
        assert printed.strip().startswith(warned) == page.lead.startswith(warned) == bool(seen)


def test_wrong_options_are_named_before_anything_is_done(given: tuple[Path, Path], tmp_path: Path) -> None:
    log, pool = given
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="at least 1"):
        train([log], [pool], out, iterations=0)
    with pytest.raises(ConfigError, match="numpy computes on the processor"):
        train([log], [pool], out, device="cuda")
    with pytest.raises(ConfigError, match="backend"):
        train([log], [pool], out, backend="jax")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot be read"):
        train([tmp_path / "none.jsonl"], [pool], out)
    with pytest.raises(ConfigError, match=r"out: .* is a file; give a folder"):
        train([log], [pool], log)
    assert not out.exists()
    out.mkdir()
    (out / ".training-0.npz").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"\.training-0\.npz: is damaged"):
        train([log], [pool], out, iterations=1, resume=True)
    assert versions(out) == ()


@pytest.mark.parametrize("out", ["locked", "locked/new/policy"])
def test_a_folder_that_cannot_be_written_is_named_before_anything_is_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    """Neither the log nor the questions, which are missing, are even looked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "locked")
    Path("locked").mkdir()
    with pytest.raises(ConfigError, match=f"out: {out} cannot be written; give a folder that you may write"):
        train([Path("log.jsonl")], [Path("pool.toml")], Path(out))
    with pytest.raises(ConfigError, match=f"out: {out} cannot be written"):
        LiveOptions(publish_to=Path(out))


@pytest.mark.parametrize("arguments", [["train", "log.jsonl", "--pool", "p.toml"], ["eval", "--live", "sim"]])
def test_an_empty_name_of_a_folder_is_refused(arguments: list[str]) -> None:
    """As a path it is the current folder, in which the policy was then published: that of an unset variable."""
    done = CliRunner().invoke(app, [*arguments, "--out", ""])
    assert done.exit_code == 2
    assert "is empty; give a folder" in done.stderr


@pytest.mark.parametrize("show_task", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_tasks_are_learned_only_where_they_are_shown(
    given: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], show_task: bool
) -> None:
    """What the endpoints' probabilities are worth is kept for each task, or for all together alone."""
    lines = [json.loads(line) for line in given[0].read_text().splitlines()]
    for n, line in enumerate(lines):
        line["task"] = ("law", "physics")[n % 2]
        for said in line["outputs"].values():
            said["probabilities"] = [0.7 if choice == said["answer"] else 0.1 for choice in range(len(line["choices"]))]
    log = write_log(tmp_path / "log.jsonl", lines)
    train([log], [given[1]], tmp_path / "policy", iterations=1, show_task=show_task, as_json=True)
    capsys.readouterr()
    experience = load(tmp_path / "policy").experience
    assert experience is not None
    expected: set[str | None] = {None, "law", "physics"} if show_task else {None}
    assert set(experience.calibration) == expected


@pytest.mark.slow
def test_the_tasks_of_a_log_can_be_learned_as_what_comes_again(
    given: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whose validation part is then the last of each task."""
    lines = [json.loads(line) for line in given[0].read_text().splitlines()]
    for n, line in enumerate(lines):
        line["task"] = "hard" if n < 40 else "easy"
        line["outputs"] = {
            name: {**said, "answer": None if n < 40 else line["label"]} for name, said in line["outputs"].items()
        }
    log = write_log(tmp_path / "log.jsonl", lines)
    expected: dict[SplitKind, float] = {"stream": 1.0, "per-task": 4 / 12}
    for split, right in expected.items():
        out = tmp_path / split
        train([log], [given[1]], out, iterations=1, split=split, as_json=True)
        (seed,) = json.loads(capsys.readouterr().out)["seeds"]
        assert [point["accuracy"] for point in seed["curve"]] == pytest.approx([right] * len(seed["curve"]))
    with pytest.raises(ConfigError, match="split: give stream or per-task"):
        train([log], [given[1]], tmp_path / "out", split="both")  # type: ignore[arg-type]
