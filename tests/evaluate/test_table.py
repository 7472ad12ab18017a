"""The log joined with its pool: candidates, worth, money, splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from focalroute.core.errors import ConfigError
from focalroute.core.pool import load_pool
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.table import join, learning_order, split
from tests.evaluate.logs import Line, closed, output, stream, table_of, write_log, write_pool

PRICES = {"a": 1.0, "b": 2.0, "c": 4.0}


def test_closed_questions_are_right_by_index(tmp_path: Path) -> None:
    """No usable answer is wrong; an endpoint that was not asked is neither."""
    table = table_of(tmp_path, [closed(1, {"a": 2, "b": None}, 2)], PRICES)
    assert table.candidate.tolist() == [[2, -1, -1]]
    assert table.value[0, :2].tolist() == [1.0, 0.0]
    assert table.there.tolist() == [[True, True, False]]
    assert [table.worth(0, candidate) for candidate in (-1, 0, 2)] == [0, 0, 1]
    assert table.accuracy(np.arange(1)).tolist() == [1, 0, 0]


def test_equal_texts_are_one_candidate(tmp_path: Path) -> None:
    line = {"id": "1", "label": "7", "outputs": {"a": output("8"), "b": output("7"), "c": output("7")}}
    table = table_of(tmp_path, [line], PRICES)
    assert table.candidate.tolist() == [[0, 1, 1]]
    assert (table.size[0], table.label[0]) == (2, 1)
    assert [table.worth(0, candidate) for candidate in (0, 1)] == [0, 1]


def test_where_only_scores_are_known_every_output_is_its_own_answer(tmp_path: Path) -> None:
    scored = {name: {"score": s, "prompt_tokens": 1, "completion_tokens": 1} for name, s in (("a", 0.25), ("c", 1.0))}
    table = table_of(tmp_path, [{"id": "1", "outputs": scored}], PRICES)
    assert table.candidate.tolist() == [[0, -1, 1]]
    assert [table.worth(0, candidate) for candidate in (0, 1)] == [0.25, 1.0]


def test_an_endpoint_that_often_fails_is_not_the_best_single_one(tmp_path: Path) -> None:
    """It was: a failed call did not count, although an answer that it should have given is worth nothing."""
    failed: Line = {"a": {"error": "timeout"}, "b": output(0)}
    lines = [closed(1, {"a": 0, "b": 1}), closed(2, {}) | {"outputs": failed}, closed(3, {}) | {"outputs": failed}]
    table = table_of(tmp_path, lines, PRICES)
    assert table.accuracy(np.arange(3)).tolist() == pytest.approx([1 / 3, 2 / 3, 0])
    assert table.rank(np.arange(3)) == (1, 0, 2)
    assert table.candidate[1, 0] == -1


def test_a_recorded_cost_wins_over_price_times_tokens(tmp_path: Path) -> None:
    line = closed(1, {}) | {"outputs": {"a": output(0), "b": output(0, cost_usd=0.5)}}
    table = table_of(tmp_path, [line], PRICES)
    assert table.usd[0].tolist() == pytest.approx([110e-6, 0.5, 0])


def test_a_share_of_what_no_rows_cost_is_no_target(tmp_path: Path) -> None:
    """It was NaN, with a warning."""
    table = table_of(tmp_path, [closed(1, {"a": 0, "b": 1})], {"a": 1.0, "b": 3.0})
    every = np.arange(1)
    assert table.target_usd_per_query(every[:0], 0.5) is None
    assert table.target_usd_per_query(every, 0.5) == pytest.approx(0.5 * table.usd.sum())


def test_an_endpoint_of_unknown_cost_is_named_and_left_out_of_all_costs(tmp_path: Path) -> None:
    """Altogether, where only some of its calls say what they cost; a failed call need not."""
    pool = tmp_path / "pool.toml"
    pool.write_text("".join(f'[[endpoint]]\nname = "{name}"\nmodel = "m"\n' for name in "abc"))
    first = closed(1, {"a": 0}) | {"outputs": {"a": output(0), "b": output(0, cost_usd=0.5), "c": {"error": "timeout"}}}
    second = closed(2, {}) | {"outputs": {name: output(0, cost_usd=0.5) for name in "abc"}}
    log = write_log(tmp_path / "log.jsonl", [first, second])
    table = join(read_log(log), load_pool(pool), log)
    assert table.unpriced == ("a",)
    assert table.usd.tolist() == [[0, 0.5, 0], [0, 0.5, 0.5]]


def test_an_endpoint_that_is_never_right_is_suspected_of_another_form_of_answers(tmp_path: Path) -> None:
    """If it has replied at least 20 times to queries with a label: ``b`` has failed once."""
    answers = {"a": output("42"), "b": output("The answer is 42."), "c": output("42.0")}
    lines = [{"id": str(n), "label": "42", "outputs": answers} for n in range(20)]
    lines[0] = {**lines[0], "outputs": {**answers, "b": {"error": "timeout"}}}
    prices = dict.fromkeys(answers, 1.0)
    assert table_of(tmp_path, lines, prices).never_right == ("c",)
    scored = [{"id": str(n), "outputs": {"a": {"score": 0, "cost_usd": 0}}} for n in range(20)]
    assert table_of(tmp_path, scored, prices).never_right == ()


def test_an_endpoint_that_is_not_in_the_pool_is_an_error(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", [closed(1, {"z": 0})])
    with pytest.raises(ConfigError, match=r"outputs\.z"):
        join(read_log(log), load_pool(write_pool(tmp_path / "pool.toml", PRICES)), log)


def test_a_stream_is_cut_once_and_tasks_are_cut_each(tmp_path: Path) -> None:
    table = table_of(tmp_path, stream(10, {"a": 0.5}), PRICES)
    once = split(table, per_task=False, fraction=0.6)
    assert (once.train.tolist(), once.test.tolist()) == ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9])
    each = split(table, per_task=True, fraction=0.4)
    assert (each.train.tolist(), each.test.tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7, 8, 9])
    lopsided = table_of(tmp_path, [*stream(8, {"a": 0.5}), closed(8, {"a": 0}, task="odd")], PRICES)
    assert split(lopsided, per_task=True, fraction=0.5).train.tolist() == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="train_fraction"):
        split(table, per_task=False, fraction=0.01)


def test_tasks_that_come_again_are_learned_in_rounds(tmp_path: Path) -> None:
    """Each round has a fifth of each task, in the order of the log; a stream is learned as it came."""
    lines = [closed(n, {"a": 0}, task="law" if n < 10 else "physics") for n in range(15)]
    table, rows = table_of(tmp_path, lines, PRICES), np.arange(15)
    assert learning_order(table, rows, "stream").tolist() == rows.tolist()
    rounds = [0, 1, 10, 2, 3, 11, 4, 5, 12, 6, 7, 13, 8, 9, 14]
    assert learning_order(table, rows, "per-task").tolist() == rounds
    assert learning_order(table, rows[8:12], "per-task").tolist() == [8, 10, 9, 11]
    with pytest.raises(ConfigError, match="split: give stream or per-task, not 'both'"):
        learning_order(table, rows, "both")  # type: ignore[arg-type]
