"""``eval`` from log to report: the JSON's fields, operating points, seeds, policies, and arguments that are wrong."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from focalroute.core.errors import ConfigError
from focalroute.evaluate.baselines import BASELINES
from focalroute.evaluate.eval_page import eval_page
from focalroute.evaluate.eval_result import Report, read_eval
from focalroute.evaluate.report import EvalOptions, cost_ratios, evaluate, evaluate_command, show
from focalroute.evaluate.table import split
from focalroute.evaluate.training import read_table
from focalroute.policy.bundle import cold, load
from focalroute.policy.references import load_reference
from tests.cli.calling import focalroute
from tests.evaluate.brief import brief_settings
from tests.evaluate.logs import closed, stream, write_log, write_pool
from tests.policies import ask_all

SKILLS = {"a": 0.5, "b": 0.9, "c": 0.7}
EVERY = sorted([*BASELINES, "best-single-hindsight", "shuffled", "oracle"])
#: Enough to be trained at all.
BRIEF = brief_settings(iterations=4, renew=2)


def _given(folder: Path, count: int = 50) -> tuple[Path, Path]:
    log = write_log(folder / "log.jsonl", stream(count, SKILLS))
    return log, write_pool(folder / "pool.toml", {"a": 1.0, "b": 2.0, "c": 4.0})


@pytest.fixture
def given(tmp_path: Path) -> tuple[Path, Path]:
    return _given(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Two seeds at two operating points, trained."""
    given = _given(tmp_path_factory.mktemp("trained"))
    return evaluate(*given, operating_points=(0.2, 1.0), seed=3, seeds=2, settings=BRIEF)


@pytest.mark.slow
def test_a_closed_or_full_output_does_not_lose_what_was_played(
    given: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of ``eval ... | head`` neither the JSON nor the page was written."""
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone, contextlib.redirect_stdout(gone), pytest.raises((SystemExit, BrokenPipeError)):
        evaluate_command(*given, policy=cold(), json_file=report, html_file=page)
    assert json.loads(report.read_text())["n_test"] == 10
    assert page.read_text().endswith("</html>\n")
    with pytest.raises(ConfigError, match="/dev/full: cannot be written"):
        evaluate_command(*given, policy=cold(), json_file=Path("/dev/full"))
    assert "oracle" in capsys.readouterr().out


def test_the_json_has_the_fields_of_the_format(
    given: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate_command(*given, policy=cold(), json_file=tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["log"], report["split"], report["seed"]) == (str(given[0]), "stream", 0)
    assert (report["n_train"], report["n_test"], report["feedback"], report["show_task"]) == (40, 10, "label", False)
    assert (report["policy"], report["scored"], report["seeds"]) == ("cold", "accuracy", 1)
    assert sorted(method["name"] for method in report["methods"]) == EVERY
    fields = {"name", "accuracy", "accuracy_ci95", "cost_usd_per_query", "cost_ratio", "calls_per_query"}
    assert all(fields <= row.keys() for row in [*report["methods"], *report["focalroute"]])
    (point,) = report["focalroute"]
    assert point["target_cost_ratio"] is None
    assert point["expected_calibration_error"] == report["figures"]["calibration"]["expected_error"]
    assert sorted(point["minus"]) == EVERY
    assert point["minus"]["oracle"].keys() == {"difference", "ci95", "beats", "no_worse"}
    assert "runs" not in report
    printed = capsys.readouterr().out
    assert "cold start" in printed
    assert "log-linear-online" in printed
    assert f"{point['expected_calibration_error']:.3f}" in printed


def test_a_trained_policy_is_played_at_every_operating_point(
    trained: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trained.policy == "trained"
    assert [point.target_cost_ratio for point in trained.focalroute] == [0.2, 1.0]
    assert trained.focalroute[0].cost_ratio < trained.focalroute[1].cost_ratio
    report = json.loads(json.dumps(trained.to_dict(), allow_nan=False))
    assert [point["target_cost_ratio"] for point in report["focalroute"]] == [0.2, 1.0]
    beside = {method["name"]: method["curve_minus"] for method in report["methods"]}
    assert beside["plurality"].keys() == {"difference", "ci95", "beats", "no_worse"}
    show(trained)
    assert "focalroute @ 0.2 minus it" in capsys.readouterr().out  # as its row is called


def test_the_curve_is_compared_at_the_methods_own_cost(trained: Report) -> None:
    for method in trained.methods:
        if method.cost_ratio < trained.focalroute[0].cost_ratio:
            assert method.curve_minus is None
        else:
            low, high = (point.accuracy - method.accuracy for point in trained.focalroute)
            assert method.curve_minus is not None
            assert min(low, high) - 1e-9 <= method.curve_minus.difference <= max(low, high) + 1e-9


def test_figures_are_means_over_seeds_that_are_each_trained_and_played(trained: Report) -> None:
    runs = trained.runs
    assert runs is not None
    for point, own in zip(trained.focalroute, runs.ours, strict=True):
        assert [len(run.played.worth) for run in own] == [10, 10]
        assert point.accuracy == pytest.approx(np.mean([run.played.worth.mean() for run in own]))
    first, second = runs.others["random"]
    assert (first.asked != second.asked).any()
    scored = {method.name: method.accuracy for method in trained.methods}
    assert scored["random"] == pytest.approx((first.worth.mean() + second.worth.mean()) / 2)
    first, second = runs.others["plurality"]
    assert (first.worth == second.worth).all()


def test_a_method_that_asks_all_endpoints_has_cost_ratio_1(trained: Report) -> None:
    ratios = {method.name: method.cost_ratio for method in trained.methods}
    assert ratios["plurality"] == pytest.approx(1)
    assert ratios["best-single-train"] == pytest.approx(2 / 7)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_report(given: tuple[Path, Path], trained: Report) -> None:
    again = evaluate(*given, operating_points=(0.2, 1.0), seed=3, seeds=2, settings=BRIEF)
    assert again.to_dict() | {"log": ""} == trained.to_dict() | {"log": ""}


def test_a_policy_from_a_folder_is_served_as_it_is(given: tuple[Path, Path], tmp_path: Path) -> None:
    """One that asks all, of which less is spent by asking the cheapest alone; by command and from Python."""
    folder = ask_all(tmp_path / "policy")
    evaluate_command(
        *given,
        policy=load_reference(f"{folder}@1"),
        operating_points=cost_ratios("0.2, 1"),
        json_file=tmp_path / "report.json",
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["policy"] == "version 1"
    assert [point["target_cost_ratio"] for point in report["focalroute"]] == [0.2, 1]
    assert report["focalroute"][0]["calls_per_query"] < report["focalroute"][1]["calls_per_query"] == 3
    again = evaluate(*given, policy=load(folder), operating_points=(0.2, 1))
    assert json.loads(json.dumps(asdict(again.focalroute[1]))) == report["focalroute"][1]


@pytest.mark.slow
def test_the_cold_start_is_held_at_operating_points_too(tmp_path: Path) -> None:
    """Of endpoints that are all alike it asks as many as it is to pay for."""
    log = write_log(tmp_path / "log.jsonl", stream(800, dict.fromkeys("abcdef", 0.6)))
    pool = write_pool(tmp_path / "pool.toml", dict.fromkeys("abcdef", 1.0))
    report = evaluate(log, pool, policy=cold(), operating_points=(0.4, 0.6))
    assert [point.target_cost_ratio for point in report.focalroute] == [0.4, 0.6]
    assert [point.cost_ratio for point in report.focalroute] == pytest.approx([0.4, 0.6], rel=0.05)
    assert report.policy == "cold"


def test_points_that_no_way_of_asking_holds_are_refused_or_left_out(given: tuple[Path, Path]) -> None:
    """The cheapest of the three costs a seventh of all."""
    with pytest.raises(ConfigError, match=r"operating_points: 0\.1 .* the cheapest endpoint, a, alone costs 0\.143"):
        evaluate(*given, policy=cold(), operating_points=(0.1, 1.0))


def test_a_point_is_held_where_the_best_single_endpoint_lies(given: tuple[Path, Path]) -> None:
    """The best of the three costs two of seven."""
    table = read_table(*given)
    parts = split(table, per_task=False, fraction=0.8)
    assert EvalOptions().targets(table, parts) == (0.15, 0.2, 0.286, 0.3, 0.5, 1.0)


def test_where_most_outputs_are_missing_all_are_asked(tmp_path: Path) -> None:
    """Then always asking one, reckoned for all rows, would cost more than all calls that the log has."""
    lines = stream(60, {"a": 0.7})
    for line in lines[::2]:
        line["outputs"] = {}
    log, pool = write_log(tmp_path / "log.jsonl", lines), write_pool(tmp_path / "pool.toml", {"a": 1})
    table = read_table(log, pool)
    assert EvalOptions().targets(table, split(table, per_task=False, fraction=0.8)) == (1.0,)


def test_without_any_cost_there_is_one_point(tmp_path: Path) -> None:
    """There were seven, trained for costs from 0.05 to 1, and each at a cost ratio of 0."""
    log = write_log(tmp_path / "log.jsonl", stream(50, SKILLS))
    table = read_table(log, write_pool(tmp_path / "pool.toml", dict.fromkeys(SKILLS, 0.0)))
    assert EvalOptions().targets(table, split(table, per_task=False, fraction=0.8)) == (1.0,)


@pytest.mark.parametrize("text", [True, False])
def test_progress_ends_at_its_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bool) -> None:
    """Without text some of the random baselines do not play."""
    told: list[int] = []

    @contextlib.contextmanager
    def noted(_: str, total: int, *, shown: bool) -> Iterator[Callable[[int], object]]:
        yield told.append
        assert sum(told) == total

    monkeypatch.setattr("focalroute.evaluate.report.progress_bar", noted)
    lines = stream(40, SKILLS)
    for line in lines:
        line["prompt"] = text * "a question"
    log, pool = write_log(tmp_path / "log.jsonl", lines), write_pool(tmp_path / "pool.toml", dict.fromkeys(SKILLS, 1.0))
    evaluate(log, pool, policy=cold(), seeds=2)
    assert told


def test_tasks_are_cut_each_and_rewards_suffice(given: tuple[Path, Path]) -> None:
    report = evaluate(*given, split_by="per-task", train_fraction=0.5, feedback="reward", show_task=True, policy=cold())
    assert (report.n_train, report.n_test, report.split, report.show_task) == (24, 26, "per-task", True)


def test_feedback_as_it_is_in_life_reaches_every_method_and_stands_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = _given(tmp_path, 80)
    life: dict[str, Any] = {"feedback_share": 0.4, "feedback_delay": 9, "feedback_noise": 0.5}
    plain, report, again = (evaluate(*given, policy=cold(), train_fraction=0.5, **how) for how in ({}, life, life))
    assert report.to_dict() == again.to_dict()
    changed = {
        one.name for one, other in zip(report.methods, plain.methods, strict=True) if one.accuracy != other.accuracy
    }
    assert {"weighted-vote", "log-linear-online", "shuffled"} & changed
    assert not {"oracle", "plurality", "random"} & changed
    found = report.to_dict()
    assert {name: found[name] for name in life} == life
    assert found["feedback_bias"] == "none"
    show(report)
    words = "label, for 0.4 of the queries, 9 queries later, 0.5 of it wrong"
    assert words in " ".join(capsys.readouterr().out.split())
    assert eval_page(read_eval(found, "log")).facts["feedback"] == words


def test_bad_rows_are_left_out_and_unknown_prices_count_as_free(
    given: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, pool = given
    pool.write_text(pool.read_text() + '[[endpoint]]\nname = "d[/b]"\nmodel = "m"\n')
    write_log(log, ["{", *stream(50, {**SKILLS, "d[/b]": 0.0})])
    with pytest.raises(ConfigError, match=r"log\.jsonl:1: "):
        evaluate(log, pool, policy=cold())
    evaluate_command(log, pool, policy=cold(), skip_bad_rows=True, json_file=tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["bad_rows"], report["unpriced"], report["n_train"] + report["n_test"]) == (1, ["d[/b]"], 50)
    said = capsys.readouterr().out
    assert "Left out as bad rows of the log: 1." in said
    assert "Counted as free, as no price is known: d[/b]." in said
    assert "Never right: d[/b]; are answers and labels written in the same form?" in said
    facts = eval_page(read_eval(report, "report.json")).facts
    assert (facts["bad rows left out"], facts["of unknown price, counted as free"]) == ("1", "d[/b]")
    assert facts["never right"] == "d[/b]" == ", ".join(report["never_right"])


def test_a_log_of_scores_is_scored_as_such(tmp_path: Path) -> None:
    lines = [
        {"id": str(n), "outputs": {"a": {"score": 0.25, "cost_usd": 1.0}, "b": {"score": 0.75, "cost_usd": 1.0}}}
        for n in range(20)
    ]
    log, pool = write_log(tmp_path / "log.jsonl", lines), write_pool(tmp_path / "pool.toml", {"a": 1.0, "b": 1.0})
    report = evaluate(log, pool, operating_points=[0.5], settings=BRIEF)
    assert report.scored == "score"
    scores = {method.name: method.accuracy for method in report.methods}
    assert (scores["best-single-train"], scores["oracle"]) == (0.75, 0.75)
    assert "carrot-knn" not in scores


def test_presets_are_rows_beside_the_others(
    given: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate_command(*given, policy=cold(), presets=["der", "rl-focal", "der"], json_file=tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    names = [method["name"] for method in report["methods"]]
    assert sorted(names) == sorted(
        [*BASELINES, "preset-der", "preset-rl-focal", "best-single-hindsight", "shuffled", "oracle"]
    )
    assert report["unfused"] == {"preset-rl-focal": 0}
    assert "preset-rl-focal" in capsys.readouterr().out


@pytest.mark.slow
def test_questions_that_a_preset_could_not_fuse_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = stream(50, SKILLS)
    for line in lines[47:]:
        line["choices"] = ["A", "B", "C", "D"]
    log, pool = write_log(tmp_path / "log.jsonl", lines), write_pool(tmp_path / "pool.toml", dict.fromkeys(SKILLS, 1.0))
    evaluate_command(log, pool, policy=cold(), presets=["rl-focal"], json_file=tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["unfused"] == {"preset-rl-focal": 3}
    assert "answered 3 questions by plurality" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"split_by": "random"}, "split"),
        ({"feedback": "some"}, "feedback"),
        ({"feedback_share": 0}, "feedback_share"),
        ({"feedback_share": 1.1}, "feedback_share"),
        ({"feedback_delay": -1}, "feedback_delay"),
        ({"feedback_noise": 2}, "feedback_noise"),
        ({"feedback_noise": -0.1}, "feedback_noise"),
        ({"feedback_noise": float("nan")}, "feedback_noise"),
        ({"usd_per_second": -1}, "usd_per_second"),
        ({"feedback_bias": "positive"}, "feedback_bias"),
        ({"train_fraction": 1.0}, "train_fraction"),
        ({"presets": ["der", "rlfocal"]}, "preset: .*'rlfocal'.*rl-focal, der"),
        ({"seeds": 0}, "seeds"),
        ({"seed": -1}, "seed: give at least 0"),
        ({"policy": "cold"}, "policy: give a Policy, such as .*load_reference"),
        ({"operating_points": ()}, "operating_points: give at least 1"),
        ({"operating_points": (0, 0.5)}, r"operating_points\.0: give more than 0"),
        ({"operating_points": (1.5,)}, r"operating_points\.0: give at most 1"),
        ({"operating_points": (float("nan"),)}, "operating_points"),
    ],
)
def test_wrong_options_are_named(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        EvalOptions(**wrong)


@pytest.mark.parametrize("text", ["0.1,much", "0.1,"])
def test_cost_ratios_are_numbers_separated_by_commas(text: str) -> None:
    assert cost_ratios("") is None
    assert cost_ratios("0.2, 0.5") == (0.2, 0.5)
    with pytest.raises(ConfigError, match="operating_points: give numbers"):
        cost_ratios(text)


def test_a_log_without_any_output_is_refused(tmp_path: Path) -> None:
    """A table of zeros came of it."""
    failed = {"error": "503", "prompt_tokens": 1, "completion_tokens": 0}
    lines = [closed(n, {}) for n in range(10)]
    lines[3]["outputs"] = {"a": failed}
    log = write_log(tmp_path / "log.jsonl", lines)
    with pytest.raises(ConfigError, match=r"log.jsonl: outputs: there is none, or all calls failed; record"):
        evaluate_command(log, write_pool(tmp_path / "pool.toml", {"a": 1.0}))


@pytest.mark.parametrize("used", ["log.jsonl", "pool.toml", "sub/../log.jsonl", "report.html"])
def test_nothing_that_is_read_is_written_over_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: str
) -> None:
    """A log is paid for."""
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    for file in ("log.jsonl", "pool.toml"):
        Path(file).write_text("as it was")
    with pytest.raises(ConfigError, match="is also read or written for another purpose; give another name"):
        evaluate_command(Path("log.jsonl"), Path("pool.toml"), json_file=Path(used), html_file=Path("report.html"))
    assert [Path(file).read_text() for file in ("log.jsonl", "pool.toml")] == ["as it was"] * 2


@pytest.mark.slow
def test_a_page_on_standard_output_is_all_that_is_printed(given: tuple[Path, Path]) -> None:
    """The table followed it, and JSON, too, with two options."""
    log, pool = map(str, given)
    options = ["eval", log, "--pool", pool, "--policy", "cold", "--html", "-"]
    twice = focalroute(*options, "--json", "-")
    assert (twice.returncode, "-: is also read or written for another purpose" in twice.stderr) == (2, True)
    printed = focalroute(*options)
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout.startswith("<!doctype html>")
    assert printed.stdout.endswith("</html>\n")


@pytest.mark.parametrize("option", ["json_file", "html_file"])
def test_a_file_that_cannot_be_written_is_an_error_before_anything_is_played(
    tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log, which is missing, is not even looked for."""
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "locked")
    (tmp_path / "locked").mkdir()
    for file in (tmp_path / "nowhere" / "report", tmp_path, tmp_path / "locked" / "report"):
        files: dict[str, Any] = {option: file}
        with pytest.raises(ConfigError, match="cannot be written"):
            evaluate_command(tmp_path / "log.jsonl", tmp_path / "pool.toml", **files)
