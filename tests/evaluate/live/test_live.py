"""Live evaluation: the same queries for every strategy, chains cut short, curves at equal cost, and the command."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from examples.paper.der import joined
from examples.paper.in_process import in_process
from focalroute import ConfigError, Ensemble, FocalrouteError
from focalroute.cli.app import app
from focalroute.evaluate.live import LiveOptions, evaluate_live, live_command, live_report
from focalroute.evaluate.live_environment import (
    ChainCall,
    LiveQuery,
    LiveResult,
    of_questions,
    over_http,
    play,
    read_queries,
    truncated,
)
from focalroute.evaluate.presets.der import DerSettings
from focalroute.evaluate.replay import ReplayResult
from focalroute.serving.query import make_query
from focalroute.sim import Fault, SimulatedPool, relay_models, stream
from focalroute.sim.__main__ import main as print_questions
from focalroute.sim.process import pool_toml

HOPS = of_questions(list(stream(24, seed=8, topics=["multi-hop"])), answer="number")
CLAIMS = of_questions(list(stream(24, seed=8, topics=["yes-no"])))
QUICK = LiveOptions(max_steps=2, alphas=(0.3,), settings=DerSettings(passes=4, hidden=8))


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    with SimulatedPool(relay_models(5)) as running:
        yield running


@pytest.mark.parametrize("queries", [HOPS, CLAIMS], ids=["multi-hop", "yes-no"])
def test_a_call_in_process_says_what_it_says_over_http(pool: SimulatedPool, queries: tuple[LiveQuery, ...]) -> None:
    """The first answers, and those of whoever is shown one; also what they cost."""
    direct = in_process(pool.models, pool.endpoints, queries)
    first = [ChainCall(query, endpoint, None) for query in range(6) for endpoint in range(5)]
    shown = [
        ChainCall(step.query, (step.endpoint + 1) % 5, reply.text)
        for step, reply in zip(first, direct(first), strict=True)
    ]
    with over_http(pool.endpoints, queries) as ask:
        for steps in (first, shown):
            for one, other in zip(direct(steps), ask(steps), strict=True):
                assert (one.text, one.form, one.worth) == (other.text, other.form, other.worth)
                assert one.certainty == pytest.approx(other.certainty, abs=1e-6)
                assert one.usd == pytest.approx(other.usd, rel=1e-9)
                assert one.usd > 0


@pytest.mark.slow
def test_a_chain_cut_short_is_the_shorter_chain(pool: SimulatedPool) -> None:
    """What both rules would have answered and paid with a smaller T_max is read off their longest play."""
    for policy in ("sequential-round-robin", "self-correction"):
        played = {}
        for most in (1, 2, 3):
            endpoints = pool.endpoints if policy == "sequential-round-robin" else pool.endpoints[2:3]
            with Ensemble(endpoints, policy=policy, max_rounds=most) as ensemble:
                played[most] = play(ensemble, HOPS)
        for most in (1, 2, 3):
            longest, own = truncated(HOPS, played[3], most), truncated(HOPS, played[most])
            assert longest.worth.tolist() == own.worth.tolist()
            assert longest.usd == pytest.approx(own.usd)
            assert longest.asked.sum(axis=1).tolist() == own.asked.sum(axis=1).tolist()


def test_an_ask_that_failed_is_worth_nothing_and_stops_nothing(pool: SimulatedPool) -> None:
    pool.set("sums-7b", faults=Fault("status", status=400, count=3))
    try:
        with Ensemble(pool.endpoints[2:3], policy="self-correction", attempts=1) as ensemble:
            answers = play(ensemble, HOPS[:10])
    finally:
        pool.set("sums-7b", faults=[])
    assert answers.count(None) == 3
    assert truncated(HOPS[:10], answers).worth[[n for n, a in enumerate(answers) if a is None]].sum() == 0


# -- the report --------------------------------------------------------------------------------------------------------


def made(right: float, usd: float, calls: int, n: int = 400) -> ReplayResult:
    """Of two, the one that is right more often is right wherever the other one is."""
    worth = (np.random.default_rng(0).permutation(n) % 100 < right * 100).astype(float)
    return ReplayResult(worth, np.full(n, usd), np.ones((n, calls), np.bool_))


PLAYED = {
    "single a": made(0.2, 1, 1),
    "single b": made(0.6, 3, 1),
    "self-correction a @ 2": made(0.3, 2, 2),  # below the line from a to b
    "round-robin @ 1": made(0.2, 1, 1),
    "plurality": made(0.5, 4, 2),
    "der @ alpha 0.3": made(0.5, 2, 2),
    "der @ alpha 9": made(0.3, 0.5, 1),
}


def test_der_is_set_beside_a_mixture_of_a_family_s_rows_at_its_own_cost() -> None:
    report = live_report("t", {name: [one] for name, one in PLAYED.items()}, seeds=1)
    beside = report.equal_cost["der @ alpha 0.3"]
    assert beside["single"].difference == beside["self-correction"].difference == pytest.approx(0.5 - 0.4)
    assert beside["round-robin"].difference == pytest.approx(0.3)
    assert beside["round-robin"].beats
    assert report.equal_cost["der @ alpha 9"]["single"].difference == pytest.approx(0.1)  # cheaper than all of them
    assert report.minus["der @ alpha 0.3"]["plurality"].difference == pytest.approx(0)
    (der,) = (row for row in report.methods if row.name == "der @ alpha 0.3")
    assert (der.accuracy, der.calls_per_query, der.cost_ratio) == (0.5, 2.0, 0.5)
    assert json.loads(json.dumps(asdict(report)))["methods"][0]["name"] == "single a"


def test_the_same_queries_with_another_seed_are_no_further_evidence() -> None:
    """Four seeds that give the same answers halved the width of all intervals, as if there were more queries."""
    one = live_report("t", {name: [run] for name, run in PLAYED.items()}, seeds=1)
    four = live_report("t", {name: [run] * 4 for name, run in PLAYED.items()}, seeds=4)
    assert four == replace(one, n_test=1600, seeds=4)


def test_plays_of_other_queries_are_joined_row_by_row() -> None:
    one, other = (
        LiveResult(part.worth, part.usd, part.asked, {name: np.full(len(part.worth), 7)})
        for name, part in (("a", made(1, 1, 2, 10)), ("b", made(0, 3, 3, 20)))
    )
    both = joined([one, other])
    assert (len(both.worth), both.usd.sum(), both.asked.sum()) == (30, 70, 80)
    assert {name: tokens.nonzero()[0].tolist() for name, tokens in both.tokens.items()} == {
        "a": list(range(10)),
        "b": list(range(10, 30)),
    }


def test_tokens_are_told_by_endpoint_and_of_the_steps_made(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints[:2], policy="sequential-round-robin", max_rounds=2) as ensemble:
        answers = play(ensemble, HOPS[:6])
    first, both = truncated(HOPS[:6], answers, 1), truncated(HOPS[:6], answers, 2)
    names = [endpoint.name for endpoint in pool.endpoints[:2]]
    assert list(first.tokens) == names[:1]
    assert first.tokens[names[0]].all()
    assert first.tokens[names[0]].tolist() == both.tokens[names[0]].tolist()
    assert (both.tokens[names[1]] > first.tokens[names[0]]).all()  # it was shown an answer, too


# -- from file to table ------------------------------------------------------------------------------------------------


def write(path: Path, queries: tuple[LiveQuery, ...]) -> Path:
    lines = []
    for number, live in enumerate(queries):
        closed = live.query.choices
        label = live.label if closed is None else closed.index(live.label)
        line = {"id": str(number), "prompt": live.query.text, "label": label}
        lines.append(json.dumps(line if closed is None else {**line, "choices": closed}))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.slow
def test_every_strategy_is_played_on_the_same_queries(pool: SimulatedPool, tmp_path: Path) -> None:
    """Of a pool file: training asks over HTTP, too."""
    queries = read_queries(write(tmp_path / "q.jsonl", HOPS), answer="number")
    pool_file = tmp_path / "pool.toml"
    pool_file.write_text(pool_toml(pool.endpoints))
    steps: list[int] = []
    report = evaluate_live(
        pool_file, queries, title="t", options=replace(QUICK, train_fraction=0.5, seed=5), advance=steps.append
    )
    names = [row.name for row in report.methods]
    assert len(names) == len(set(names)) == 5 + 5 + 2 + 2 + 1
    assert {"single sums-7b", "self-correction sums-7b @ 2", "round-robin @ 2", "focalroute", "der @ alpha 0.3"} <= {
        *names
    }
    rows = {row.name: row for row in report.methods}
    assert report.n_test == 12
    assert rows["plurality"].calls_per_query == 5
    assert rows["plurality"].cost_ratio == 1
    assert rows["round-robin @ 1"].accuracy == rows["single letters-3b"].accuracy
    assert rows["round-robin @ 1"].cost_usd_per_query == pytest.approx(rows["single letters-3b"].cost_usd_per_query)
    assert 1 <= rows["der @ alpha 0.3"].calls_per_query <= 2
    assert sum(steps) == 12 * (5 + 3 + 1)


def test_the_command_prints_tables_writes_json_and_publishes(tmp_path: Path) -> None:
    file, out, found = write(tmp_path / "q.jsonl", CLAIMS[:8]), tmp_path / "der", tmp_path / "report.json"
    arguments = ["eval", "--live", "sim", "--queries", str(file), "--max-rounds", "1", "--train-fraction", "0.5"]
    result = CliRunner().invoke(app, [*arguments, "--json", str(found), "--out", str(out)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "DER minus the best of a family at the same cost" in result.output
    report = json.loads(found.read_text())
    assert report["n_test"] == 4
    assert {row["name"] for row in report["methods"]} > {"plurality", "focalroute", "der @ alpha 0.1"}
    with SimulatedPool(relay_models(0)) as pool, Ensemble(pool.endpoints, policy=out, max_rounds=1) as ensemble:
        answer = ensemble.ask(CLAIMS[0].query.text, choices=["Yes", "No"])
    assert answer.receipt.policy_version == 3


def test_open_answers_are_scored_by_the_metric_given(tmp_path: Path) -> None:
    def length(answer: str, reference: str) -> float:
        return len(answer) / len(reference)

    path = tmp_path / "q.jsonl"
    path.write_text('{"id": "1", "prompt": "Who?", "label": "a long name"}\n')
    (live,) = read_queries(path, quality=length)
    assert live.worth("a long") == pytest.approx(6 / 11)
    assert live.worth("a much longer name than that") == 1.0
    assert live.worth(None) == 0.0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"id": "1", "prompt": "Who?"}', r"q.jsonl:1: label: is missing"),
        ('{"id": "1", "label": "Ann"}', r"q.jsonl:1: prompt, messages: give one"),
        ('{"id": "1", "prompt": "Who?", "label": 3, "choices": ["a", "b"]}', r"label"),
        ("", "holds no question"),
    ],
)
def test_a_query_that_cannot_be_asked_or_scored_is_refused(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError, match=says):
        read_queries(path)


def test_missing_options_of_the_command_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--queries"):
        live_command("sim", None)
    with pytest.raises(ConfigError, match="train_fraction"):
        evaluate_live("sim", [LiveQuery(make_query("Who?"), "Ann")], title="t", options=QUICK)
    with pytest.raises(ConfigError, match="--live and --queries"):
        CliRunner().invoke(app, ["eval"], catch_exceptions=False)
    file = write(tmp_path / "q.jsonl", HOPS)
    wrong: dict[str, Any]
    for wrong in ({"train_fraction": math.nan}, {"train_fraction": 0.0}, {"seeds": 0}, {"alphas": ()}):
        with pytest.raises(ConfigError, match=f"eval: {next(iter(wrong))}: give (more|less than|at least)"):
            LiveOptions(**wrong)
    with pytest.raises(ConfigError, match="answer: unknown kind 'numbr'"):
        LiveOptions(answer="numbr")
    with pytest.raises(ConfigError, match="is a file; give a folder"):  # was found out after all calls were paid
        LiveOptions(publish_to=file)
    with pytest.raises(ConfigError, match=r"quality.*rouge-l"):
        live_command("sim", file, LiveOptions(quality="beauty"))


def test_a_pool_that_does_not_answer_is_an_error_and_not_a_table_of_zeros(tmp_path: Path) -> None:
    pool, out = tmp_path / "pool.toml", tmp_path / "policies"
    pool.write_text('[[endpoint]]\nname = "a"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n')
    with pytest.raises(
        FocalrouteError, match="no endpoint answered any of the questions; focalroute pool measure says"
    ):
        live_command(str(pool), write(tmp_path / "q.jsonl", HOPS[:10]), replace(QUICK, publish_to=out))
    assert not out.exists()


@pytest.mark.parametrize("form", [["--free-form"], []])
def test_questions_that_the_simulator_prints_are_such_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sim", "--queries", "5", "--topic", "multi-hop", "--seed", "8", *form])
    print_questions()
    path = tmp_path / "q.jsonl"
    path.write_text(capsys.readouterr().out)
    found = read_queries(path, answer="number")
    assert [live.query.text for live in found] == [live.query.text for live in HOPS[:5]]
    assert [live.label for live in found] == [live.label for live in HOPS[:5]]
    assert all((live.query.choices is None) == bool(form) for live in found)
