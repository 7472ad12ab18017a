"""DER: what it learns where the best policy is known, and what it must not see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from focalroute.evaluate.presets import Ppo
from focalroute.evaluate.presets.der import RECORDED, der
from focalroute.evaluate.replay import play
from tests.evaluate.logs import closed, output, table_of
from tests.evaluate.presets.worlds import parts, sees_only_what_it_asked, sure_or_not, two_topics

QUICK = replace(RECORDED, max_steps=2, passes=40, batch=128)


def test_it_learns_from_the_query_which_endpoint_to_ask(tmp_path: Path) -> None:
    table = two_topics(tmp_path)
    training, rows = parts(table)
    played = play(der(training, QUICK), table, rows)
    assert played.worth.mean() == 1
    assert played.asked.sum(axis=1).tolist() == [1] * len(rows)


@pytest.mark.slow
def test_it_learns_to_ask_on_only_where_the_answer_is_doubtful(tmp_path: Path) -> None:
    """The cheap one first; the dear one only after an unsure answer. That is right always, at the least cost."""
    table = sure_or_not(tmp_path)
    training, rows = parts(table)
    played = play(der(training, replace(QUICK, alpha=1.0, ppo=Ppo(rate=0.01, entropy=0.1))), table, rows)
    sure = table.value[rows, 0] == 1
    assert played.worth.mean() == 1
    assert played.asked[:, 0].all()
    assert np.array_equal(played.asked[:, 1], ~sure)


def test_paid_in_full_at_every_step_it_never_stops(tmp_path: Path) -> None:
    """The published reward, at worlds where one step is enough, buys a second one that is just as right."""
    lines = [closed(n, {"a": n % 3, "b": n % 3}, n % 3) for n in range(200)]
    table = table_of(tmp_path, lines, {"a": 1.0, "b": 1.0})
    training, rows = parts(table)
    calls = [
        play(der(training, replace(QUICK, level=level)), table, rows).asked.sum(axis=1).mean()
        for level in (False, True)
    ]
    assert calls == [1, 2]


def test_it_is_paid_what_its_answer_is_scored(tmp_path: Path) -> None:
    """An answer that several gave is worth the mean of their scores, so that of the one with the best score is not."""
    outputs = {name: output(said, score=score) for name, said, score in (("a", 1, 0.9), ("b", 1, 0.1), ("c", 2, 0.6))}
    lines = [closed(n, {}) | {"label": None, "outputs": outputs} for n in range(100)]
    training, rows = parts(table_of(tmp_path, lines, dict.fromkeys("abc", 1.0)))
    played = play(der(training, QUICK), training.table, rows)
    assert played.worth.tolist() == [0.6] * len(rows)


def test_only_what_it_asked_is_seen(tmp_path: Path) -> None:
    assert sees_only_what_it_asked(two_topics(tmp_path, 300), lambda training: der(training, QUICK))


def test_the_same_seed_does_the_same(tmp_path: Path) -> None:
    table = two_topics(tmp_path, 200)
    training, rows = parts(table)
    one, other = (play(der(training, replace(QUICK, passes=3)), table, rows) for _ in range(2))
    assert np.array_equal(one.asked, other.asked)


@pytest.mark.slow
def test_its_settings_are_chosen_on_the_training_part(tmp_path: Path) -> None:
    """Rows after it may hold anything."""
    table = two_topics(tmp_path, 100)
    training, rows = parts(table)
    kept = len(training.rows)
    emptied = (replace(query, outputs={}) for query in table.queries[kept:])
    empty = replace(table, queries=(*table.queries[:kept], *emptied))
    one, other = der(training), der(replace(training, table=empty))
    played = [play(strategy, table, rows) for strategy in (one, other)]
    assert np.array_equal(played[0].asked, played[1].asked)


@pytest.mark.parametrize("kind", ["free form", "scores", "gaps", "nobody"])
def test_it_plays_whatever_a_log_holds(tmp_path: Path, kind: str) -> None:
    lines: list[dict[str, Any]] = []
    for n in range(60):
        if kind == "free form":
            outputs = {"a": output(str(n)), "b": output(str(n + n % 2)), "c": output(None)}
            lines.append({"id": str(n), "label": str(n), "outputs": outputs})
        elif kind == "scores":
            outputs = {name: {"score": s, "cost_usd": 1.0} for name, s in (("a", 0.2), ("b", 0.8), ("c", 0.6))}
            lines.append({"id": str(n), "outputs": outputs})
        elif kind == "gaps":
            lines.append(closed(n, {"a": n % 3, "c": None} if n % 3 else {"b": 0}, n % 3))
            if n % 4 == 0:
                lines[-1]["outputs"]["b"] = output(None, error="timeout")
        else:
            lines.append(closed(n, {"a": None, "b": None, "c": None}, n % 3))
    table = table_of(tmp_path, lines, dict.fromkeys("abc", 1.0))
    training, rows = parts(table)
    played = play(der(training, replace(QUICK, max_steps=4, passes=3)), table, rows)
    assert played.asked.any(axis=1).all()
    if kind == "nobody":
        assert not played.worth.any()
