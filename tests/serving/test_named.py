"""Policies by name in service: `Ensemble` and `AsyncEnsemble` over a simulated pool on real HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from focalroute import Answer, AsyncEnsemble, ConfigError, Endpoint, Ensemble
from focalroute.learn.online import update_policy
from focalroute.policy.baselines import BASELINE_VERSION, SERVED_BASELINES
from focalroute.policy.routers import ROUTERS
from focalroute.sim import SimulatedModel, SimulatedPool, stream
from focalroute.store import open_store
from tests.policies import ask_all

QUESTION = "What is 17 + 25?"
CHOICES = ["32", "42", "44", "52"]
EVERYBODY = {"plurality", "mean", "weighted-vote", "log-linear-online"}


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    """The dearest first, so that the order of the pool is not that of the prices."""
    models = [
        SimulatedModel("large", skill=0.95, input_usd_per_1m=Decimal("2"), output_usd_per_1m=Decimal("6")),
        SimulatedModel("small", skill=0.3, input_usd_per_1m=Decimal("0.1"), output_usd_per_1m=Decimal("0.1")),
        SimulatedModel("middle", skill=0.6, input_usd_per_1m=Decimal("0.4"), output_usd_per_1m=Decimal("0.6")),
    ]
    with SimulatedPool(models) as running:
        yield running


def called(answers: Sequence[Answer | BaseException]) -> list[list[str]]:
    """Who was called for each answer."""
    return [[call.endpoint for call in answer.receipt.calls] for answer in answers if isinstance(answer, Answer)]


def taught(ensemble: Ensemble, n: int, seed: int = 1) -> list[Answer]:
    """Ask n questions and give each answer its label."""
    answers = []
    for question in stream(n, seed=seed):
        answers.append(ensemble.ask(question.text, choices=question.choices))
        ensemble.feedback(answers[-1], label_index=question.label)
    return answers


@pytest.mark.parametrize("expected", ["large", "middle"])
def test_the_endpoint_that_is_expected_to_be_the_best_is_asked_from_the_start(
    pool: SimulatedPool, expected: str
) -> None:
    known = [replace(one, expected_accuracy=0.9 if one.name == expected else 0.6) for one in pool.endpoints]
    with Ensemble(known, policy="best-single") as ensemble:
        assert called([ensemble.ask(QUESTION, choices=CHOICES)]) == [[expected]]


@pytest.mark.parametrize("name", [*SERVED_BASELINES, *ROUTERS])
def test_each_serves_and_is_known_by_its_name(pool: SimulatedPool, tmp_path: Path, name: str) -> None:
    """On the answer's receipt, in the statistics and in the store, where it leaves no step to learn from."""
    with Ensemble(pool.endpoints, policy=name, store=tmp_path / "s.db", seed=0) as ensemble:
        answers = [
            ensemble.ask(QUESTION, choices=CHOICES),
            ensemble.ask(QUESTION, answer="number"),
        ]
        assert (ensemble.stats().policy, ensemble.stats().policy_version) == (name, BASELINE_VERSION)
    for answer, calls in zip(answers, called(answers), strict=True):
        assert sum(answer.probabilities) == pytest.approx(1)
        assert answer.degraded == ()
        receipt = json.loads(answer.receipt.to_json())
        assert (receipt["policy"], receipt["policy_version"]) == (name, BASELINE_VERSION)
        if name != "cascade":
            assert len(calls) == (3 if name in EVERYBODY else 1)
            assert answer.receipt.rounds == 1
    with closing(open_store(tmp_path / "s.db")) as store:
        for answer in answers:
            stored = store.answer(answer.id)
            assert stored is not None
            assert stored.trajectory is None


@pytest.mark.parametrize("name", [*SERVED_BASELINES, *ROUTERS])
def test_sync_and_async_answer_the_same_and_exploring_makes_no_difference(pool: SimulatedPool, name: str) -> None:
    asked = [(q.text, q.choices) for q in stream(6, seed=2)]

    async def awaited() -> list[Answer]:
        async with AsyncEnsemble(pool.endpoints, policy=name, explore=True, seed=4) as ensemble:
            return [await ensemble.ask(text, choices=choices) for text, choices in asked]

    with Ensemble(pool.endpoints, policy=name, explore=False, seed=4) as ensemble:
        blocking = [ensemble.ask(text, choices=choices) for text, choices in asked]
    there = asyncio.run(awaited())
    assert called(blocking) == called(there)
    assert [answer.probabilities for answer in blocking] == [answer.probabilities for answer in there]


def test_the_probabilities_are_shares_of_the_votes_or_of_the_mass(pool: SimulatedPool) -> None:
    for name in ("plurality", "mean"):
        with Ensemble(pool.endpoints, policy=name) as ensemble:
            answer = ensemble.ask(QUESTION, choices=CHOICES)
        votes = Counter(reply.choice for reply in answer.replies)
        weights = [reply.probabilities or () for reply in answer.replies]
        mean = [sum(mass[c] for mass in weights) for c in range(len(CHOICES))]
        expected = [votes[c] / 3 for c in range(len(CHOICES))] if name == "plurality" else [m / sum(mean) for m in mean]
        assert answer.probabilities == pytest.approx(expected, abs=1e-5)


def test_round_robin_takes_turns_in_the_order_of_the_pool(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints, policy="round-robin") as ensemble:
        answers = [ensemble.ask(q.text, choices=q.choices) for q in stream(6, seed=3)]
    assert called(answers) == [["large"], ["small"], ["middle"]] * 2


def test_round_robin_is_fair_to_the_last_turn_under_concurrency(pool: SimulatedPool) -> None:
    """Tasks on one loop keep the order of the queries; from many threads nobody loses or doubles a turn."""
    asks = [{"query": q.text, "choices": q.choices} for q in stream(60, seed=3)]
    with Ensemble(pool.endpoints, policy="round-robin") as ensemble, ThreadPoolExecutor(12) as threads:
        ordered = called(ensemble.ask_many(asks, concurrency=16))
        mixed = called(list(threads.map(lambda ask: ensemble.ask(ask["query"], choices=ask["choices"]), asks)))
    assert ordered == [["large"], ["small"], ["middle"]] * 20
    assert Counter(name for (name,) in mixed) == {"large": 20, "small": 20, "middle": 20}


def test_chance_is_repeatable_with_a_seed(pool: SimulatedPool) -> None:
    asks = [{"query": q.text, "choices": q.choices} for q in stream(24, seed=3)]

    def run(seed: int, concurrency: int) -> list[list[str]]:
        with Ensemble(pool.endpoints, policy="random", seed=seed) as ensemble:
            return called(ensemble.ask_many(asks, concurrency=concurrency))

    assert run(1, 1) == run(1, 8) != run(2, 1)
    assert len({name for (name,) in run(1, 8)}) == 3


def test_the_best_single_is_the_cheapest_until_feedback_knows_better(pool: SimulatedPool, tmp_path: Path) -> None:
    """What everybody's answers taught under another policy is known to it, through the store."""
    with Ensemble(pool.endpoints, policy="best-single", store=tmp_path / "s.db") as ensemble:
        assert called([ensemble.ask(QUESTION, choices=CHOICES)]) == [["small"]]
    with Ensemble(pool.endpoints, policy="plurality", store=tmp_path / "s.db") as ensemble:
        taught(ensemble, 40)
    with Ensemble(pool.endpoints, policy="best-single", store=tmp_path / "s.db") as ensemble:
        assert called([ensemble.ask(QUESTION, choices=CHOICES)]) == [["large"]]


def test_the_latest_correct_is_left_after_its_first_mistake(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints, policy="latest-correct") as ensemble:
        served = []
        for reward in (1, -1, -1, 1, 1):
            answer = ensemble.ask(QUESTION, choices=CHOICES)
            served += called([answer])[0]
            ensemble.feedback(answer, reward=reward)
    assert served == ["small", "small", "middle", "large", "large"]


def test_a_published_router_learns_from_feedback_which_endpoint_to_ask(pool: SimulatedPool) -> None:
    """At first each in turns; then the one that is worth its price, which a dear right answer is not."""
    with Ensemble(pool.endpoints, policy="lin-ucb", seed=0) as ensemble:
        served = called(taught(ensemble, 120))
    assert served[:3] == [["large"], ["small"], ["middle"]]
    assert Counter(name for (name,) in served[-40:]).most_common(1)[0][0] == "large"
    with Ensemble(pool.endpoints, policy="lin-ucb", cost_weight=3.0, seed=0) as ensemble:
        served = called(taught(ensemble, 120))
    assert Counter(name for (name,) in served[-40:]).most_common(1)[0][0] == "small"


def test_log_linear_weights_are_learned_again_after_a_restart(pool: SimulatedPool, tmp_path: Path) -> None:
    posteriors = []
    for n in (40, 0):
        with Ensemble(pool.endpoints, policy="log-linear-online", store=tmp_path / "s.db") as ensemble:
            taught(ensemble, n)
            posteriors.append([ensemble.ask(q.text, choices=q.choices).probabilities for q in stream(6, seed=8)])
    for before, after in zip(*posteriors, strict=True):
        assert before == pytest.approx(after)
    tops = {round(max(p), 6) for p in posteriors[0]}
    assert tops != {round(math.exp(3) / (math.exp(3) + 3), 6)}  # no longer a vote each


def test_the_cascade_goes_from_the_cheap_to_the_dear_one_at_a_time(pool: SimulatedPool) -> None:
    """The better half: the two cheapest while nothing is known. The third is dear, and never needed."""
    with Ensemble(pool.endpoints, policy="cascade", learn_from_agreement=False) as ensemble:
        answers = [ensemble.ask(q.text, choices=q.choices) for q in stream(10, seed=5)]
        once = ensemble.ask(QUESTION, answer="number")
    assert {tuple(calls) for calls in called(answers)} == {("small", "middle")}
    assert all(answer.receipt.rounds == 2 for answer in answers)
    assert called([once]) == [["small", "middle"]]
    with Ensemble(pool.endpoints, policy="cascade", max_rounds=1) as ensemble:
        assert called([ensemble.ask(QUESTION, choices=CHOICES)]) == [["small"]]


def test_the_cascade_stops_where_one_reply_is_sure_enough(tmp_path: Path) -> None:
    models = [
        SimulatedModel("good", skill=0.999, input_usd_per_1m=Decimal("0.1"), output_usd_per_1m=Decimal("0.1")),
        SimulatedModel("dear", skill=0.999, input_usd_per_1m=Decimal("2"), output_usd_per_1m=Decimal("2")),
    ]
    with SimulatedPool(models) as two, Ensemble(two.endpoints, policy="cascade") as ensemble:
        answers = taught(ensemble, 30)
    assert called(answers)[0] == ["good", "dear"]
    assert called(answers)[-1] == ["good"]
    assert answers[-1].confidence >= 0.9


@pytest.mark.parametrize("name", [*SERVED_BASELINES, *ROUTERS])
def test_a_failed_member_is_replaced(pool: SimulatedPool, name: str) -> None:
    """A member that is down, first in the pool's order and the cheapest: there is an answer all the same."""
    gone = Endpoint("gone", base_url="http://127.0.0.1:1/v1", model="m", input_usd_per_1m=0, output_usd_per_1m=0)
    with Ensemble([gone, *pool.endpoints], policy=name, attempts=1, seed=0) as ensemble:
        answers = [ensemble.ask(q.text, choices=q.choices) for q in stream(12, seed=6)]
    for answer in answers:
        assert answer.choice is not None
        assert answer.receipt.policy == name
        replied = [reply.endpoint for reply in answer.replies if reply.ok]
        assert len(replied) == (3 if name in EVERYBODY else len(replied) if name == "cascade" else 1)


def test_a_budget_narrows_the_set_as_with_any_policy(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints, policy="plurality") as ensemble:
        few = ensemble.ask(QUESTION, choices=CHOICES, max_usd="0.0002")
    with Ensemble(pool.endpoints, policy="round-robin") as ensemble:  # the first in turn cannot be afforded
        one = ensemble.ask(QUESTION, choices=CHOICES, max_usd="0.0002")
    assert called([few, one]) == [["small"], ["small"]]


def test_an_update_says_that_a_rule_is_not_learned(pool: SimulatedPool) -> None:
    with pytest.raises(ConfigError, match=r"update_every: 'plurality' is a rule"):
        Ensemble(pool.endpoints, policy="plurality", update_every=10)
    with Ensemble(pool.endpoints, policy="plurality") as ensemble, pytest.raises(ConfigError, match="'plurality'"):
        ensemble.update()


def test_nothing_that_a_rule_decided_is_learned_from_as_if_a_net_had(pool: SimulatedPool, tmp_path: Path) -> None:
    with Ensemble(pool.endpoints, policy="mean", store=tmp_path / "s.db") as ensemble:
        taught(ensemble, 20)
    with closing(open_store(tmp_path / "s.db")) as store:
        report = update_policy(store, tmp_path / "policy", seed=0)
    assert (report.status, report.episodes, report.held_out) == ("insufficient", 0, 0)


# -- names and folders ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("pluralty", "did you mean 'plurality'.*\"./pluralty\""),
        ("best_single", "'best-single'"),
        ("Round Robin", "'round-robin'"),
        ("RANDOM", "'random'"),
        ("query-weights", 'training log.*"./query-weights"'),
        ("knn", "did you mean 'carrot-knn'"),
        ("best-single-train", '"best-single"'),
        ("oracle", "known only afterwards"),
        ("majority", "did you mean 'plurality'"),
        ("rl-focal", "is replayed only"),
        ("RL-Focal", "is replayed only"),
        ("static_subset", "'static_subset' cannot serve"),
        ("der", "has to be trained"),
        ("DER", "has to be trained"),
        ("policies", 'use one of avengers-pro.*"./policies"'),
    ],
)
def test_a_misspelt_name_is_not_taken_for_a_new_folder(
    pool: SimulatedPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"(?s)policy: .*{says}"):
        Ensemble(pool.endpoints, policy=policy, store="s.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_stays_a_folder(
    pool: SimulatedPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of any name as a path or where it exists; of a new name unless that is nearly a policy's."""
    monkeypatch.chdir(tmp_path)
    ask_all(tmp_path / "plurality")
    ask_all(tmp_path / "pluralty")
    served = []
    for policy in (Path("plurality"), "./plurality", "pluralty", "policies/", "./random", "mean/", "plurality"):
        with Ensemble(pool.endpoints, policy=policy) as ensemble:
            served.append((ensemble.stats().policy, ensemble.stats().policy_version))
    assert served == [(None, 1)] * 3 + [(None, 0)] * 3 + [("plurality", BASELINE_VERSION)]
    assert '"./plurality"' in caplog.records[-1].getMessage()
    assert caplog.records[-1].levelno == logging.WARNING


def test_a_pool_file_may_name_a_policy(pool: SimulatedPool, tmp_path: Path) -> None:
    first = pool.endpoints[0]
    path = tmp_path / "pool.toml"
    endpoint = f'[[endpoint]]\nname = "one"\nmodel = "{first.model}"\nbase_url = "{first.base_url}"\n'
    path.write_text(f'{endpoint}[ensemble]\npolicy = "mean"\n')
    with Ensemble.from_toml(path) as ensemble:
        assert ensemble.ask(QUESTION, choices=CHOICES).receipt.policy == "mean"
    with Ensemble.from_toml(path, policy=None) as ensemble:
        assert ensemble.ask(QUESTION, choices=CHOICES).receipt.policy is None
