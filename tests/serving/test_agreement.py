"""Learning without feedback, as a user meets it: over HTTP, through a store, with defaults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from focalroute import Ensemble
from focalroute.core.records import Query
from focalroute.observe.layout import ENDPOINT, slices
from focalroute.sim import SimulatedModel, SimulatedPool, stream
from tests.loopback import until


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    usd = Decimal(1)
    models = [
        SimulatedModel(name, skill=skill, input_usd_per_1m=usd, output_usd_per_1m=usd)
        for name, skill in (("poor", 0.3), ("fair", 0.75), ("good", 0.9))
    ]
    with SimulatedPool(models) as running:
        yield running


def settings(pool: SimulatedPool, store: Path | None = None) -> dict[str, Any]:
    """So cheap to ask that several are."""
    return {"endpoints": pool.endpoints, "store": store, "cost_weight": 0.003, "seed": 0}


def told(ensemble: Ensemble) -> dict[str, tuple[int, int, float]]:
    return {name: (e.seen, e.labelled, e.accuracy) for name, e in ensemble.stats().endpoints.items()}


def test_agreement_teaches_which_endpoints_are_good_and_survives_a_restart(pool: SimulatedPool, tmp_path: Path) -> None:
    with Ensemble(**settings(pool, tmp_path / "s.db"), probe_share=0) as ensemble:
        for question in stream(64, seed=1):
            ensemble.ask(question.text, choices=question.choices)
        known = told(ensemble)
    assert all(labelled == 0 < seen for seen, labelled, _ in known.values())
    assert known["poor"][2] < min(known["fair"][2], known["good"][2])
    with Ensemble(**settings(pool, tmp_path / "s.db"), probe_share=0) as again:
        after = told(again)
    assert [seen for seen, _, _ in after.values()] == [seen for seen, _, _ in known.values()]
    assert after["poor"][2] < min(after["fair"][2], after["good"][2])


def test_feedback_takes_the_place_of_agreement(pool: SimulatedPool) -> None:
    with Ensemble(**settings(pool), probe_share=0) as ensemble:
        answers = [(ensemble.ask(q.text, choices=q.choices), q.label) for q in stream(20, seed=2)]
        for answer, label in answers:
            ensemble.feedback(answer, label_index=label)
        after = told(ensemble)
    for name, (seen, labelled, _) in after.items():
        assert seen == labelled == sum(reply.endpoint == name for answer, _ in answers for reply in answer.replies)


def test_how_far_agreement_is_off_is_still_known_after_a_restart(pool: SimulatedPool, tmp_path: Path) -> None:
    """It was not: labels only replaced what agreement said of their own answers, and 0.1 was taken off all others."""
    with Ensemble(**settings(pool, tmp_path / "s.db"), probe_share=0) as ensemble:
        for number, question in enumerate(stream(120, seed=6)):
            answer = ensemble.ask(question.text, choices=question.choices)
            if number % 2:
                ensemble.feedback(answer, label_index=question.label)
        known = ensemble.stats().endpoints
    with Ensemble(**settings(pool, tmp_path / "s.db"), probe_share=0) as again:
        after = again.stats().endpoints
    for name, endpoint in known.items():
        assert after[name].accuracy == pytest.approx(endpoint.accuracy, abs=0.02)
        (low, high), (least, most) = endpoint.accuracy_interval, after[name].accuracy_interval
        assert most - least == pytest.approx(high - low, abs=0.02)


def test_labels_where_members_differ_leave_accuracy_as_right_after_a_restart_as_before(
    pool: SimulatedPool, tmp_path: Path
) -> None:
    """The labelled answers of long ago made members seem to differ more often than they do."""
    options = settings(pool, tmp_path / "s.db") | {"policy": "plurality", "window": 50, "endpoints": pool.endpoints[1:]}
    with Ensemble(**options) as ensemble:
        for question in stream(260, seed=7):
            answer = ensemble.ask(question.text, choices=question.choices)
            if answer.disputed:
                ensemble.feedback(answer, label_index=question.label)
        known = told(ensemble)
    with Ensemble(**options) as again:
        after = told(again)
    for name, (_, labelled, accuracy) in known.items():
        assert labelled == after[name][1] == 50
        assert after[name][2] == pytest.approx(accuracy, abs=0.06)


def test_labels_count_the_same_after_a_restart_for_endpoints_with_an_expected_accuracy(
    pool: SimulatedPool, tmp_path: Path
) -> None:
    """Those of disputed answers did not count while the store was read, so that the shortest window seemed the best."""
    endpoints = [replace(endpoint, expected_accuracy=0.7) for endpoint in pool.endpoints]
    options = settings(pool, tmp_path / "s.db") | {"policy": "plurality", "endpoints": endpoints}
    with Ensemble(**options) as ensemble:
        for question in stream(200, seed=9):
            answer = ensemble.ask(question.text, choices=question.choices)
            ensemble.feedback(answer, label_index=question.label)
        known = seen_by_policies(ensemble)
    with Ensemble(**options) as again:
        assert seen_by_policies(again) == pytest.approx(known, abs=0.01)


def seen_by_policies(ensemble: Ensemble) -> list[float]:
    ask = ensemble._async._observer.begin(Query("q", ({"role": "user", "content": "?"},), ("a", "b")))
    rows = ask.observe(round=1, cost_weight=0.1, budget_left=1.0).endpoints
    found: list[float] = (rows[:, slices(ENDPOINT)["accuracy"].start] / 4).tolist()
    return found


def test_another_process_learns_from_labels_how_far_agreement_is_off(pool: SimulatedPool, tmp_path: Path) -> None:
    """It took 0.1 off what agreement says of its own answers, however many labels others gave, until it began anew."""
    options = settings(pool, tmp_path / "s.db") | {"policy": "plurality", "endpoints": pool.endpoints[1:]}
    with Ensemble(**options) as other, Ensemble(**options) as ensemble:
        for question in stream(80, seed=8):
            answer = other.ask(question.text, choices=question.choices)
            other.feedback(answer, label_index=question.label)
        until(lambda: told(ensemble) == told(other))
        intervals = [e.accuracy_interval for e in ensemble.stats().endpoints.values()]
        for question in stream(40, seed=9):
            ensemble.ask(question.text, choices=question.choices)
        wider = [e.accuracy_interval for e in ensemble.stats().endpoints.values()]
    for (low, high), (least, most) in zip(intervals, wider, strict=True):
        assert most - least < high - low


def test_labels_from_another_process_are_not_forgotten_with_the_first_own_answers(
    pool: SimulatedPool, tmp_path: Path
) -> None:
    """All were of disputed answers. With few own answers, hardly any of them disputed, these labels hardly counted."""
    options = settings(pool, tmp_path / "s.db") | {"policy": "plurality"}
    with Ensemble(**options) as other, Ensemble(**options) as ensemble:
        for question in stream(120, seed=8):
            answer = other.ask(question.text, choices=question.choices)
            if answer.disputed:
                other.feedback(answer, label_index=question.label)
        known = told(other)
        until(lambda: all(told(ensemble)[name][1] == labelled for name, (_, labelled, _) in known.items()))
        for question in stream(6, seed=12):
            ensemble.ask(question.text, choices=question.choices)
        after = told(ensemble)
    for name, (_, _, accuracy) in known.items():
        assert after[name][2] == pytest.approx(accuracy, abs=0.1)


def test_it_can_be_turned_off(pool: SimulatedPool) -> None:
    with Ensemble(**settings(pool), learn_from_agreement=False) as ensemble:
        for question in stream(5, seed=3):
            ensemble.ask(question.text, choices=question.choices)
        assert told(ensemble) == dict.fromkeys(told(ensemble), (0, 0, 0.5))


def test_open_texts_are_not_compared_but_their_cost_is_learned(pool: SimulatedPool) -> None:
    with Ensemble(**settings(pool)) as ensemble:
        for question in stream(5, seed=4):
            ensemble.ask(question.text)
        stats = ensemble.stats().endpoints.values()
    assert {(e.seen, e.accuracy) for e in stats} == {(0, 0.5)}
    assert any(e.latency_s for e in stats)


def test_a_lone_reply_is_as_sure_as_its_writer(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints[2:], seed=0) as ensemble:
        assert ensemble.ask("What is 17 + 25?", answer="number").confidence == pytest.approx(0.5, abs=0.01)
        for question in stream(60, seed=5):
            ensemble.feedback(ensemble.ask(question.text, answer="short"), label=question.choices[question.label])
        last = ensemble.ask("What is 18 + 25?", answer="number")
        right = ensemble.stats().endpoints["good"].accuracy
    assert last.confidence == pytest.approx(right, abs=0.15)
    assert last.confidence < 1
