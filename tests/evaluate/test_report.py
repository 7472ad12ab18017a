"""``eval`` from log to report: the JSON's fields, determinism, and arguments that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from focalroute.errors import ConfigError
from focalroute.evaluate.command import evaluate_command
from focalroute.evaluate.lineup import BASELINES
from focalroute.evaluate.report import evaluate
from tests.evaluate.logs import stream, write_log, write_pool

SKILLS = {"a": 0.5, "b": 0.9, "c": 0.7}


@pytest.fixture
def given(tmp_path: Path) -> tuple[Path, Path]:
    log = write_log(tmp_path / "log.jsonl", stream(200, SKILLS))
    return log, write_pool(tmp_path / "pool.toml", {"a": 1.0, "b": 2.0, "c": 4.0})


def test_the_json_has_the_fields_of_the_format(
    given: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate_command(*given, json_file=tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["log"], report["split"], report["seed"]) == (str(given[0]), "stream", 0)
    assert (report["n_train"], report["n_test"], report["feedback"], report["show_task"]) == (160, 40, "label", False)
    names = [method["name"] for method in report["methods"]]
    assert sorted(names) == sorted([*BASELINES, "best-single-hindsight", "shuffled", "oracle"])
    fields = {"name", "accuracy", "accuracy_ci95", "cost_usd_per_query", "cost_ratio", "calls_per_query"}
    assert all(fields <= row.keys() for row in [*report["methods"], *report["focalroute"]])
    assert [point["target_cost_ratio"] for point in report["focalroute"]] == [None]
    margin = report["methods"][0]["focalroute_minus"]
    assert margin.keys() == {"difference", "ci95", "beats", "no_worse"}
    printed = capsys.readouterr().out
    assert "cold start" in printed
    assert "log-linear-online" in printed


def test_what_asks_everybody_costs_everything(given: tuple[Path, Path]) -> None:
    ratios = {method.name: method.cost_ratio for method in evaluate(*given).methods}
    assert ratios["plurality"] == pytest.approx(1)
    assert ratios["best-single-train"] == pytest.approx(2 / 7)


def test_the_same_seed_gives_the_same_report(given: tuple[Path, Path]) -> None:
    assert evaluate(*given, seed=1) == evaluate(*given, seed=1)
    assert evaluate(*given, seed=1).focalroute != evaluate(*given, seed=2).focalroute


def test_tasks_are_cut_each_and_rewards_suffice(given: tuple[Path, Path]) -> None:
    report = evaluate(*given, split_by="per-task", train_fraction=0.5, feedback="reward", show_task=True)
    assert (report.n_train, report.n_test, report.split, report.show_task) == (100, 100, "per-task", True)


def test_a_log_of_scores_is_scored_as_such(tmp_path: Path) -> None:
    lines = [
        {"id": str(n), "outputs": {"a": {"score": 0.25, "cost_usd": 1.0}, "b": {"score": 0.75, "cost_usd": 1.0}}}
        for n in range(20)
    ]
    log, pool = write_log(tmp_path / "log.jsonl", lines), write_pool(tmp_path / "pool.toml", {"a": 1.0, "b": 1.0})
    report = evaluate(log, pool)
    assert report.scored == "score"
    scores = {method.name: method.accuracy for method in report.methods}
    assert (scores["best-single-train"], scores["oracle"]) == (0.75, 0.75)
    assert "knn" not in scores


def test_presets_are_rows_beside_the_others(
    given: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate_command(*given, presets=["der", "rl-focal", "der"], json_file=tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    names = [method["name"] for method in report["methods"]]
    assert sorted(names) == sorted(
        [*BASELINES, "preset-der", "preset-rl-focal", "best-single-hindsight", "shuffled", "oracle"]
    )
    assert report["unfused"] == {"preset-rl-focal": 0}
    assert "preset-rl-focal" in capsys.readouterr().out


def test_questions_that_a_preset_could_not_fuse_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = stream(50, SKILLS)
    for line in lines[47:]:
        line["choices"] = ["A", "B", "C", "D"]
    log, pool = write_log(tmp_path / "log.jsonl", lines), write_pool(tmp_path / "pool.toml", dict.fromkeys(SKILLS, 1.0))
    evaluate_command(log, pool, presets=["rl-focal"], json_file=tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["unfused"] == {"preset-rl-focal": 3}
    assert "answered 3 questions by plurality" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"split": "random"}, "split"),
        ({"feedback": "some"}, "feedback"),
        ({"train_fraction": 1.0}, "train_fraction"),
        ({"presets": ["der", "rlfocal"]}, "preset: .*'rlfocal'.*rl-focal, der"),
    ],
)
def test_wrong_arguments_are_named(given: tuple[Path, Path], wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        evaluate_command(*given, **wrong)


def test_a_json_file_that_cannot_be_written_is_an_error(given: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        evaluate_command(*given, json_file=tmp_path / "nowhere" / "report.json")
