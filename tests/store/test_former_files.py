"""Files that were written before the renaming of November 2026 still open.

`tests/data/before_renaming` holds a store with 25 answers, 13 of them with feedback, and version 1 of a policy that was
trained on the same simulated pool; both say "price_of_money" where it is "cost_weight" today.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from focalroute import Budget, ConfigError, Ensemble
from focalroute.money.pacing import make_pacers
from focalroute.policy import bundle
from focalroute.sim import SimulatedPool, stream
from focalroute.sim.process import pool_toml
from focalroute.store import Store, open_store
from focalroute.store.codec import pack

FORMER = Path(__file__).parents[1] / "data" / "before_renaming"

COSTS = {
    "almanac-12b": "0.00008676",
    "quill-9b": "0.0000712",
    "swift-24b": "0.0000435",
    "swift-8b": "0.00004958",
    "tally-7b": "0.00007266",
}


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """A copy of the former files."""
    return Path(shutil.copytree(FORMER, tmp_path / "former"))


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    """The pool that they were written with."""
    with SimulatedPool() as running:
        yield running


@pytest.fixture
def store(former: Path) -> Iterator[Store]:
    opened = open_store(former / "store.db")
    yield opened
    opened.close()


def test_answers_and_their_feedback_are_read(store: Store) -> None:
    rows = list(store.recent(100))
    assert len(rows) == 25
    assert [len(feedback) for _, feedback in rows] == [1, 0] * 12 + [1]
    for answer, _ in rows:
        receipt = json.loads(answer.receipt)
        assert (receipt["answer_id"], receipt["tags"]) == (answer.id, ["old"])
        assert answer.texts is not None
        assert answer.trajectory is not None
        assert answer.trajectory.version == 1
        assert sum(answer.probabilities) == pytest.approx(1)
        found = store.answer(answer.id)
        assert found is not None
        assert found.trajectory is not None
        assert (found.receipt, pack(found.trajectory)) == (answer.receipt, pack(answer.trajectory))


def test_the_ledger_adds_up_to_what_was_paid(store: Store) -> None:
    assert {name: row.cost for name, row in store.totals().items()} == {k: Decimal(v) for k, v in COSTS.items()}
    (everything,) = store.ledger("all")
    assert (everything.asks, everything.calls, everything.unpriced) == (25, 55, 0)
    assert (everything.cost, everything.held) == (Decimal("0.00032370"), Decimal(0))
    assert {row.key: row.asks for row in store.ledger("tag")} == {"": 0, "old": 25}


def older_rows(store: Store) -> list[str]:
    """The beginnings of what `verify` says, which is only that rows are older than checksums."""
    return [problem.partition(" rows are older than checksums;")[0] for problem in store.verify()]


def test_verify_says_which_rows_are_older_than_checksums(store: Store) -> None:
    assert older_rows(store) == ["answers: 25", "feedback: 13", "probes: 1", "ledger: 55"]


def test_the_pacer_starts_from_the_former_price_of_money(store: Store) -> None:
    """The latest answers were paced far below their cost, so theirs is as high as it then might be."""
    assert all(json.loads(answer.receipt)["price_of_money"] for answer, _ in store.recent(16))
    pacer, _ = make_pacers(Budget(usd_per_query="0.000001"), store, 0.2, 0.0, 1.0)
    assert pacer.weight == pytest.approx(8)


def test_a_former_policy_is_loaded_with_its_curve(former: Path) -> None:
    policy = bundle.load(former / "policy")
    curve = policy.metrics["curve"]
    assert [point["cost_weight"] for point in curve] == [0.003, 0.01, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0]
    assert all(set(point) == {"cost_weight", "accuracy", "cost_ratio", "calls"} for point in curve)


def test_an_ensemble_serves_and_learns_with_both(former: Path, pool: SimulatedPool) -> None:
    budget = Budget(usd_total=5)
    with Ensemble(pool.endpoints, store=former / "store.db", policy=former / "policy", budget=budget) as one:
        assert one.stats().asks == 25
        assert one.stats().cost == Decimal("0.00032370")
        for question in stream(2, seed=3):
            answer = one.ask(question.text, choices=question.choices)
            assert answer.receipt.policy_version == 1
            assert answer.durable
            assert not answer.degraded
            one.feedback(answer, label_index=question.label)
        assert one.stats().asks == 27
    store = open_store(former / "store.db")
    assert older_rows(store) == ["answers: 25", "feedback: 13", "probes: 1", "ledger: 55"]
    store.close()


def test_a_pool_file_with_the_former_key_is_refused_and_told_the_new_one(tmp_path: Path, pool: SimulatedPool) -> None:
    file = tmp_path / "pool.toml"
    file.write_text(f"{pool_toml(pool.endpoints)}\n[ensemble]\nprice_of_money = 0.2\n")
    with pytest.raises(ConfigError, match=r"pool\.toml: ensemble: .*did you mean 'cost_weight'"):
        Ensemble.from_toml(file)
