"""Prequential replay: answer, reveal, learn; and nothing is visible that was not asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from focalroute.core.records import I64
from focalroute.evaluate.replay import (
    FeedbackKind,
    FeedbackPlan,
    FeedbackStream,
    ReplayResult,
    Revealed,
    Turn,
    play,
)
from focalroute.evaluate.table import LogTable
from tests.evaluate.logs import closed, output, stream, table_of

PRICES = {"a": 1.0, "b": 2.0, "c": 4.0}
ROWS = np.arange(2)


class Scripted:
    """Asks the given endpoints, answers as the first one does, and writes down what happens."""

    def __init__(self, *endpoints: int) -> None:
        self.endpoints = endpoints
        self.events: list[tuple[str, str]] = []
        self.turns: list[Turn] = []
        self.revealed: list[Revealed] = []

    def answer(self, turn: Turn) -> int:
        self.events.append(("answer", turn.query.id))
        self.turns.append(turn)
        heard = [turn.ask(i) for i in self.endpoints]
        return heard[0].candidate

    def learn(self, turn: Turn, revealed: Revealed) -> None:
        self.events.append(("learn", turn.query.id))
        self.revealed.append(revealed)


def _two(folder: Path) -> Callable[..., Scripted]:
    table = table_of(folder, [closed(0, {"a": 0, "b": 1, "c": 0}), closed(1, {"a": 2, "b": 0, "c": 1})], PRICES)

    def played(*endpoints: int, feedback: FeedbackKind = "label") -> Scripted:
        strategy = Scripted(*endpoints)
        play(strategy, table, ROWS, feedback=feedback)
        return strategy

    return played


def test_every_query_is_answered_before_its_outcome_is_revealed(tmp_path: Path) -> None:
    strategy = _two(tmp_path)(0)
    assert strategy.events == [("answer", "q0"), ("learn", "q0"), ("answer", "q1"), ("learn", "q1")]


def test_a_label_reveals_only_the_members_that_were_asked(tmp_path: Path) -> None:
    first, second = _two(tmp_path)(0, 1).revealed
    assert (first.worth, first.label, first.values) == (1, 0, {0: 1, 1: 0})
    assert (second.worth, second.label, second.values) == (0, 0, {0: 0, 1: 1})


def test_a_reward_reveals_only_what_follows_from_it(tmp_path: Path) -> None:
    """Of a right answer that all others are wrong; of a wrong one nothing about the others."""
    first, second = _two(tmp_path)(0, 1, feedback="reward").revealed
    assert (first.worth, first.label, first.values) == (1, 0, {0: 1, 1: 0})
    assert (second.worth, second.label, second.values) == (0, None, {0: 0})


def test_without_feedback_nothing_is_revealed(tmp_path: Path) -> None:
    assert _two(tmp_path)(0, feedback="none").revealed == []


def test_a_free_form_label_is_known_only_if_a_member_gave_it(tmp_path: Path) -> None:
    line = {"id": "1", "label": "7", "outputs": {"a": output("8"), "b": output("7")}}
    table = table_of(tmp_path, [line], PRICES)
    for asked, label in (((0,), None), ((0, 1), 1)):
        strategy = Scripted(*asked)
        play(strategy, table, np.arange(1))
        assert strategy.revealed[0].label == label
        assert strategy.revealed[0].text == "7"


def test_the_task_is_shown_only_if_asked_for(tmp_path: Path) -> None:
    table = table_of(tmp_path, [closed(0, {"a": 0}, task="sums")], PRICES)
    for shown, task in ((False, None), (True, "sums")):
        strategy = Scripted(0)
        play(strategy, table, np.arange(1), show_task=shown)
        assert strategy.turns[0].query.task == task


def test_each_asked_member_is_paid_for_once(tmp_path: Path) -> None:
    table = table_of(tmp_path, [closed(0, {"a": 0, "b": 1, "c": 0})], PRICES)
    played = play(Scripted(0, 2, 2), table, np.arange(1))
    assert played.usd.tolist() == pytest.approx([110e-6 * 5])
    assert played.asked.tolist() == [[True, False, True]]
    assert played.worth.tolist() == [1.0]


def test_an_endpoint_without_output_cannot_be_asked(tmp_path: Path) -> None:
    table = table_of(tmp_path, [closed(0, {"a": 0})], PRICES)
    turn = Turn(table, 0)
    assert turn.available == (0,)
    with pytest.raises(KeyError):
        turn.ask(1)


# -- feedback as it is in life -----------------------------------------------------------------------------------------


def _told(table: LogTable, rows: I64, *endpoints: int, **plan: Any) -> Scripted:
    """What a strategy that asks these endpoints is told by a plan."""
    strategy = Scripted(*endpoints or (0, 1, 2))
    play(strategy, table, rows, feedback=FeedbackStream(FeedbackPlan(**plan)))
    return strategy


def _about(strategy: Scripted) -> set[str]:
    return {name for what, name in strategy.events if what == "learn"}


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> LogTable:
    """3,000 questions; the first endpoint is right on 80 % of them."""
    return table_of(tmp_path_factory.mktemp("long"), stream(3000, {"a": 0.8, "b": 0.6, "c": 0.5}), PRICES)


def test_the_share_of_queries_with_feedback_does_not_depend_on_the_member(long: LogTable) -> None:
    rows = np.arange(3000)
    told, other = _told(long, rows, share=0.05, seed=1), _told(long, rows, 2, share=0.05, seed=1)
    assert len(told.revealed) / 3000 == pytest.approx(0.05, abs=0.01)
    assert _about(told) == _about(other) != _about(_told(long, rows, share=0.05, seed=2))
    assert {one.values[0] == one.worth for one in told.revealed} == {True}


def test_feedback_comes_delay_queries_later_and_from_one_play_to_the_next(tmp_path: Path) -> None:
    table = table_of(tmp_path, stream(5, {"a": 0.5}), {"a": 1.0})
    strategy, feedback = Scripted(0), FeedbackStream(FeedbackPlan(delay=2))
    play(strategy, table, np.arange(3), feedback=feedback)
    assert strategy.events[-2:] == [("answer", "q2"), ("learn", "q0")]
    play(strategy, table, np.arange(3, 5), feedback=feedback)
    assert strategy.events[-4:] == [("answer", "q3"), ("learn", "q1"), ("answer", "q4"), ("learn", "q2")]
    assert [one.worth for one in strategy.revealed] == [table.worth(n, int(table.candidate[n, 0])) for n in range(3)]


def test_a_wrong_label_names_another_choice(long: LogTable) -> None:
    told = _told(long, np.arange(3000), noise=0.1)
    wrong = [one for one, label in zip(told.revealed, long.label, strict=True) if one.label != label]
    assert len(wrong) / 3000 == pytest.approx(0.1, abs=0.02)
    for turn, one in zip(told.turns, told.revealed, strict=True):
        assert one.label in range(3)
        assert one.values == {i: float(reply.candidate == one.label) for i, reply in turn.replies.items()}
        assert one.worth == one.values[0]


def test_a_wrong_label_of_a_free_form_question_is_another_answer_or_none_that_was_given(tmp_path: Path) -> None:
    lines = [
        {"id": "1", "label": "7", "outputs": {"a": output("7"), "b": output("8")}},
        {"id": "2", "label": "7", "outputs": {"a": output("7"), "b": output("7")}},
    ]
    first, second = _told(table_of(tmp_path, lines, PRICES), np.arange(2), 0, 1, noise=1.0).revealed
    assert (first.worth, first.label, first.values, first.text) == (0, 1, {0: 0, 1: 1}, "8")
    assert (second.worth, second.label, second.values) == (0, None, {0: 0, 1: 0})
    assert second.text not in (None, "7")


def test_a_wrong_reward_is_turned_round(tmp_path: Path) -> None:
    lines = [closed(0, {"a": 0, "b": 1}), closed(1, {"a": 2, "b": 0}), closed(2, {"a": None, "b": 0})]
    told = _told(table_of(tmp_path, lines, PRICES), np.arange(3), 0, 1, kind="reward", noise=1.0).revealed
    assert [(one.worth, one.label) for one in told] == [(0, None), (1, 2), (0, None)]
    assert [one.values for one in told[:2]] == [{0: 0}, {0: 1, 1: 0}]


def test_a_wrong_score_is_turned_round(tmp_path: Path) -> None:
    line = {"id": "1", "outputs": {"a": output(None, score=0.75), "b": output(None, score=0.25)}}
    (told,) = _told(table_of(tmp_path, [line], PRICES), np.arange(1), 0, 1, noise=1.0).revealed
    assert (told.worth, told.values) == (0.25, {0: 0.25, 1: 0.75})


@pytest.mark.slow
@pytest.mark.parametrize(("share", "mean"), [pytest.param(0.05, 0.05, marks=pytest.mark.slow), (1.0, 0.2 + 0.8 / 5)])
def test_biased_feedback_is_of_wrong_answers_five_times_as_often(long: LogTable, share: float, mean: float) -> None:
    """The share stays as it is in the mean, up to where every wrong answer gets it."""
    counts = np.zeros((2, 2))
    for seed in range(5):
        strategy = _told(long, np.arange(3000), kind="reward", share=share, bias="negative", seed=seed)
        told = _about(strategy)
        for n in range(3000):
            counts[int(long.value[n, 0]), int(f"q{n}" in told)] += 1
    wrong, right = counts[:, 1] / counts.sum(axis=1)
    assert wrong / right == pytest.approx(5, rel=0.2)
    assert counts[:, 1].sum() / counts.sum() == pytest.approx(mean, rel=0.1)


def test_only_members_that_were_waited_for_and_answered_make_an_answer_disputed(tmp_path: Path) -> None:
    lines = [closed(0, {"a": 0, "b": 0, "c": 1}), closed(1, {"a": 0, "b": 1}), closed(2, {"a": 0, "b": None})]
    seen, given_up = {}, {}

    class Probes(Scripted):
        def answer(self, turn: Turn) -> int:
            if 2 in turn.available:
                turn.ask(2, waited_for=False)
            answer = super().answer(turn)
            seen[turn.query.id] = turn.disputed
            turn.give_up(1)
            given_up[turn.query.id] = turn.disputed
            return answer

    play(Probes(0, 1), table_of(tmp_path, lines, PRICES), np.arange(3))
    assert seen == {"q0": False, "q1": True, "q2": False}
    assert not any(given_up.values())


def test_feedback_comes_mostly_where_members_differ(long: LogTable) -> None:
    told = _about(_told(long, np.arange(3000), 0, 1, share=0.1, bias="disputed", seed=3))
    differ = {f"q{n}" for n in range(3000) if long.candidate[n, 0] != long.candidate[n, 1]}
    assert len(told) / 3000 == pytest.approx(0.1, abs=0.02)
    assert len(told & differ) / len(told) == pytest.approx(0.75 + 0.25 * len(differ) / 3000, abs=0.06)


def test_all_options_together_are_repeatable(long: LogTable) -> None:
    plan = {"kind": "reward", "share": 0.3, "delay": 20, "noise": 0.2, "bias": "negative", "seed": 4}
    once, again = (_told(long, np.arange(500), **plan) for _ in range(2))
    assert once.events == again.events
    assert once.revealed == again.revealed
    assert 50 < len(once.revealed) < 250


def test_members_are_waited_for_at_once_or_one_after_the_other(tmp_path: Path) -> None:
    outputs = {name: output(0, latency_s=seconds) for name, seconds in (("a", 1.0), ("b", 3.0), ("c", 2.0))}
    table = table_of(tmp_path, [{**closed(0, {}), "outputs": outputs}], PRICES)

    class OneByOne(Scripted):
        def answer(self, turn: Turn) -> int:
            for i in self.endpoints:
                turn.ask(i)
                turn.wait()
            return 0

    def seconds(strategy: Scripted) -> float:
        taken = play(strategy, table, np.arange(1)).seconds
        assert taken is not None
        return float(taken[0])

    assert (seconds(Scripted(0, 1, 2)), seconds(OneByOne(0, 1, 2)), seconds(Scripted(2))) == (3, 6, 2)


def test_seconds_that_a_log_does_not_have_are_by_tokens_and_price(tmp_path: Path) -> None:
    lines = [closed(n, {"a": 0, "b": 0, "c": 0}) for n in range(400)]
    seconds = table_of(tmp_path, lines, PRICES).seconds
    assert np.median(seconds, axis=0) == pytest.approx((0.3 + 10 / 80) * np.array([0.5, 1, 2]) ** (1 / 3), rel=0.1)


def test_a_part_of_a_result_has_all_of_its_columns() -> None:
    whole = ReplayResult(np.arange(3.0), np.arange(3.0) + 1, np.eye(3, dtype=bool), seconds=np.arange(3.0) + 2)
    part = whole.part(slice(1, None))
    assert (part.worth.tolist(), part.usd.tolist()) == ([1, 2], [2, 3])
    assert part.asked.tolist() == [[False, True, False], [False, False, True]]
    assert part.seconds is not None
    assert part.seconds.tolist() == [3, 4]
    assert ReplayResult(whole.worth, whole.usd, whole.asked).part(slice(1)).seconds is None
