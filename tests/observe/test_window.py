"""The sliding window equals a batch computation over the last T outcomes, exactly."""

from __future__ import annotations

import itertools
import random
from decimal import Decimal

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from focalroute.core.records import Member, Outcome
from focalroute.observe.window import INFERRED_UNIT, CoAsked, Counts, Window

NAMES = ("a", "b", "c", "d")


def member(round: int = 1, tokens: int = 10, latency_s: float = 0.5, usd: str | None = "0.001") -> Member:
    return Member(round, 0, tokens, latency_s, None if usd is None else Decimal(usd))


def known(answer_id: str, **right: float) -> Outcome:
    return Outcome(answer_id, {name: member() for name in right}, right)


members = st.builds(
    Member,
    round=st.integers(1, 3),
    candidate=st.none() | st.integers(0, 3),
    completion_tokens=st.integers(0, 5000),
    latency_s=st.floats(0, 100),
    usd=st.none() | st.decimals(0, 1, places=6),
)


@st.composite
def outcomes(draw: st.DrawFn) -> Outcome:
    asked = draw(st.dictionaries(st.sampled_from(NAMES), members))
    values = st.sampled_from((0.0, 1.0)) | st.floats(0, 1)
    right = draw(st.dictionaries(st.sampled_from(NAMES), values))
    return Outcome(str(draw(st.integers(0, 15))), asked, right, draw(st.frozensets(st.sampled_from(NAMES))))


def last(stream: list[Outcome], size: int) -> list[Outcome]:
    """What a window of this size must hold: the last distinct answers, each with its latest outcome."""
    rows: list[Outcome] = []
    for outcome in stream:
        at = [i for i, row in enumerate(rows) if row.answer_id == outcome.answer_id]
        if at:
            rows[at[0]] = outcome
        else:
            rows = [*rows, outcome][-size:]
    return rows


def exact(row: Outcome, name: str) -> bool:
    return name in row.members and name not in row.inferred and row.right.get(name) in (0.0, 1.0)


def guessed(row: Outcome, name: str) -> bool:
    return name in row.members and name in row.right and not exact(row, name)


def batch_counts(rows: list[Outcome], name: str) -> Counts:
    taken = [row.members[name] for row in rows if name in row.members]
    sure = [int(row.right[name]) for row in rows if exact(row, name)]
    soft = [round(row.right[name] * INFERRED_UNIT) for row in rows if guessed(row, name)]
    tokens = [m.completion_tokens for m in taken if m.completion_tokens and m.candidate is not None]
    latencies = [us for m in taken if (us := round(m.latency_s * 1e6))]
    costs = [round(m.usd * 10**12) for m in taken if m.usd is not None]
    return Counts(
        rows=len(taken),
        known=len(sure),
        right=sum(sure),
        inferred=len(soft),
        inferred_sum=sum(soft),
        lengths=len(tokens),
        tokens=sum(tokens),
        tokens_squared=sum(n * n for n in tokens),
        timed=len(latencies),
        latency_us=sum(latencies),
        priced=len(costs),
        cost_pico=sum(costs),
    )


def batch_fails(rows: list[Outcome], names: tuple[str, ...]) -> np.ndarray:
    common = [row for row in rows if all(exact(row, name) for name in names)]
    return np.array([[1 - row.right[name] for name in names] for row in common]).reshape(-1, len(names))


@settings(max_examples=15)
@given(st.lists(outcomes(), max_size=40), st.integers(1, 8))
def test_every_count_equals_the_batch_over_the_last_rows(stream: list[Outcome], size: int) -> None:
    window = Window(size)
    for outcome in stream:
        window.push(outcome)
    rows = last(stream, size)
    assert len(window) == len(rows)
    for name in NAMES:
        assert window.counts(name) == batch_counts(rows, name)
        assert window.disputed(name) == batch_counts([row for row in rows if row.disputed], name)
    for first, second in itertools.permutations(NAMES, 2):
        fails = batch_fails(rows, (first, second))
        failed_first, failed_second = fails.sum(axis=0)
        common = [row for row in rows if exact(row, first) and exact(row, second)]
        disputed = sum(row.disputed for row in common)
        expected = CoAsked(len(fails), failed_first, failed_second, int(fails.prod(axis=1).sum()), disputed)
        assert window.co_asked(first, second) == expected


def test_an_outcome_replaces_the_one_of_the_same_answer_where_it_stands() -> None:
    window = Window(2)
    window.push(known("1", a=1.0))
    window.push(known("2", a=0.0))
    assert window.push(known("1", a=0.0)) == (("a",), ("a",))
    assert window.counts("a")[:3] == (2, 2, 0)
    window.push(known("3", b=1.0))  # drives out answer 1, the oldest still
    assert window.counts("a").rows == 1
    window.push(known("1", a=1.0))  # long gone: a new row, which drives out answer 2
    assert (window.counts("a").known, window.counts("a").right) == (1, 1)


def test_an_endpoint_without_rows_is_forgotten() -> None:
    window = Window(1)
    window.push(known("1", old=1.0))
    window.push(known("2", new=1.0))
    assert window.counts("old") == Counts()
    assert window.co_asked("old", "new") == (0, 0, 0, 0, 0)


def test_an_outcome_of_a_non_member_is_ignored() -> None:
    window = Window()
    window.push(Outcome("1", {"a": member()}, {"a": 1.0, "b": 0.0}))
    assert window.counts("b") == Counts()


def test_inferred_values_never_enter_the_diversity_counts() -> None:
    window = Window()
    window.push(Outcome("1", {"a": member(), "b": member()}, {"a": 0.0, "b": 1.0}, frozenset("b")))
    assert window.counts("b").inferred_sum == INFERRED_UNIT
    assert window.co_asked("a", "b") == (0, 0, 0, 0, 0)


def test_every_push_changes_the_version() -> None:
    window = Window(1)
    versions = {window.version}
    for answer_id in ("1", "1", "2"):
        window.push(known(answer_id, a=1.0))
        versions.add(window.version)
    assert len(versions) == 4


def test_unknown_is_not_zero() -> None:
    window = Window()
    window.push(Outcome("1", {"a": member(tokens=0, latency_s=0.0, usd=None)}, {}))
    counts = window.counts("a")
    assert (counts.rows, counts.known, counts.lengths, counts.timed, counts.priced) == (1, 0, 0, 0, 0)
    window.push(Outcome("2", {"a": member(usd="0")}, {}))
    assert (window.counts("a").priced, window.counts("a").cost_pico) == (1, 0)


def test_forgetting_leaves_the_window_as_if_the_endpoint_had_not_been_asked() -> None:
    """All but its newest known rows go, inferred ones between included; everybody else's stay as they were."""
    rng = random.Random(0)
    stream = []
    for n in range(60):
        asked = rng.sample(NAMES, 3)
        inferred = frozenset(name for name in asked if rng.random() < 0.3)
        right = {name: rng.choice((0.0, 1.0)) for name in asked}
        stream.append(Outcome(str(n), {name: member() for name in asked}, right, inferred))
    window, expected = Window(40), Window(40)
    for outcome in stream:
        window.push(outcome)
    window.forget("a", 5)
    newest = [n for n, outcome in enumerate(stream) if exact(outcome, "a")][-5]
    for n, outcome in enumerate(stream):
        kept = {name: part for name, part in outcome.members.items() if name != "a" or n >= newest}
        expected.push(Outcome(outcome.answer_id, kept, outcome.right, outcome.inferred))
    for name in NAMES:
        assert window.counts(name) == expected.counts(name)
        assert window.disputed(name) == expected.disputed(name)
    for first, second in itertools.permutations(NAMES, 2):
        assert window.co_asked(first, second) == expected.co_asked(first, second)
    assert window.counts("a").known == 5
    for outcome in stream[:40]:  # and it slides on exactly
        window.push(Outcome(f"again {outcome.answer_id}", outcome.members, outcome.right, outcome.inferred))
    fresh = Window(40)
    for outcome in stream[:40]:
        fresh.push(Outcome(f"again {outcome.answer_id}", outcome.members, outcome.right, outcome.inferred))
    assert {name: window.counts(name) for name in NAMES} == {name: fresh.counts(name) for name in NAMES}


def test_an_answer_is_disputed_by_members_that_answered_and_were_not_probed() -> None:
    backing = [Member(1, k, 10, 0.5, None) for k in (0, 1)]
    unread, probed = Member(1, None, 10, 0.5, None), Member(0, 1, 10, 0.5, None)
    assert Outcome("1", {"a": backing[0], "b": backing[1]}, {}).disputed
    assert not Outcome("2", {"a": backing[0], "b": unread, "c": probed}, {}).disputed


def test_a_window_says_which_members_of_an_answer_it_knows() -> None:
    window = Window(2)
    window.push(Outcome("1", {"a": member(), "b": member(), "c": member()}, {"a": 1.0, "b": 0.0, "c": 0.5}))
    assert window.known("1") == {"a": True, "b": False}
    assert window.known("2") == {}
    assert "1" in window
    assert "2" not in window
