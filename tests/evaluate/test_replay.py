"""Prequential replay: answer, reveal, learn; and nothing is visible that was not asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from focalroute.evaluate.replay import FeedbackKind, Revealed, Turn, play
from tests.evaluate.logs import closed, output, table_of

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


def test_a_label_tells_of_the_asked_and_of_nobody_else(tmp_path: Path) -> None:
    first, second = _two(tmp_path)(0, 1).revealed
    assert (first.worth, first.label, first.values) == (1, 0, {0: 1, 1: 0})
    assert (second.worth, second.label, second.values) == (0, 0, {0: 0, 1: 1})


def test_a_reward_tells_what_follows_from_it(tmp_path: Path) -> None:
    """Of a right answer that all others are wrong; of a wrong one nothing about the others."""
    first, second = _two(tmp_path)(0, 1, feedback="reward").revealed
    assert (first.worth, first.label, first.values) == (1, 0, {0: 1, 1: 0})
    assert (second.worth, second.label, second.values) == (0, None, {0: 0})


def test_without_feedback_nothing_is_revealed(tmp_path: Path) -> None:
    assert _two(tmp_path)(0, feedback="none").revealed == []


def test_a_free_form_label_is_known_only_if_it_was_heard(tmp_path: Path) -> None:
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


def test_what_is_paid_is_what_was_asked_each_once(tmp_path: Path) -> None:
    table = table_of(tmp_path, [closed(0, {"a": 0, "b": 1, "c": 0})], PRICES)
    played = play(Scripted(0, 2, 2), table, np.arange(1))
    assert played.usd.tolist() == pytest.approx([110e-6 * 5])
    assert played.asked.tolist() == [[True, False, True]]
    assert played.worth.tolist() == [1.0]


def test_who_has_no_output_cannot_be_asked(tmp_path: Path) -> None:
    table = table_of(tmp_path, [closed(0, {"a": 0})], PRICES)
    turn = Turn(table, 0)
    assert turn.available == (0,)
    with pytest.raises(KeyError):
        turn.ask(1)
