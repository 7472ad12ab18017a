from __future__ import annotations

import math
import random

import numpy as np
import pytest

from focalroute.learn.cold import cold_decider, cold_files
from focalroute.learn.nets import F32
from focalroute.observe.layout import CANDIDATE, CONTEXT, ENDPOINT, MEMBER, slices, width
from focalroute.policy.bundle import COLD, Policy, cold
from focalroute.policy.decider import decide, pick_probabilities
from focalroute.policy.fusion import posterior
from focalroute.records import Evidence, Observation


def observation(n: int, round: int, margin: float = 0.0, **endpoint: list[float]) -> Observation:
    context, endpoints = np.zeros(width(CONTEXT), np.float32), np.zeros((n, width(ENDPOINT)), np.float32)
    values = {"first": float(round == 1), "round": (round - 1) / 4, "log_pool": math.log(n) / 4, "margin": margin}
    for name, value in values.items():
        context[slices(CONTEXT)[name]] = value
    for name, column in endpoint.items():
        endpoints[:, slices(ENDPOINT)[name]] = np.array(column)[:, None]
    return Observation(context, endpoints)


def probabilities(policy: Policy, seen: Observation) -> tuple[float, ...]:
    return pick_probabilities(policy.decider_logits(seen, np.zeros(len(seen.endpoints), np.int64)))


def evidence(votes: list[int], k: int, accuracy: list[float]) -> Evidence:
    """Members that vote, each with a believed accuracy."""
    members, named = np.zeros((k, len(votes), width(MEMBER)), np.float32), slices(MEMBER)
    members[:, :, named["present"]] = 1
    for j, (vote, a) in enumerate(zip(votes, accuracy, strict=True)):
        members[vote, j, named["vote"]] = members[vote, j, named["probability"]] = 1
        members[vote, j, named["evidence"]] = math.log((k - 1) * a / (1 - a))
    return Evidence(members, np.zeros((k, width(CANDIDATE)), np.float32), tuple(range(len(votes))))


def fused(policy: Policy, seen: Evidence) -> F32:
    return policy.fusion_logits(seen, np.zeros(len(seen.endpoints), np.int64))


def test_the_shipped_files_are_what_the_code_writes() -> None:
    assert {path.name: path.read_bytes() for path in COLD.iterdir()} == cold_files()


def test_the_hidden_layers_do_nothing_yet() -> None:
    net = cold_decider()
    assert not net.out.any()
    assert net.hidden_context.any()


@pytest.mark.parametrize(
    ("n", "low", "high"), [(2, 1.4, 1.9), (3, 1.8, 2.5), (6, 2.6, 3.4), (12, 2.6, 3.6), (64, 2.5, 3.3)]
)
def test_round_1_asks_about_three_whatever_the_pool(n: int, low: float, high: float) -> None:
    policy, rng = cold(), random.Random(n)
    logits = policy.decider_logits(observation(n, 1), np.zeros(n, np.int64))
    picks = [
        len(
            decide(
                logits, round=1, must_pick=True, order=range(n), eligible=lambda i, p: True, explore=True, rng=rng
            ).picked
        )
        for _ in range(2000)
    ]
    assert low < sum(picks) / len(picks) < high


@pytest.mark.parametrize("n", [9, 12, 64])
def test_later_rounds_ask_one_or_two_more_on_disagreement_and_hardly_anyone_on_agreement(n: int) -> None:
    policy = cold()
    for round in (2, 3):
        left = n - 3 * (round - 1)
        assert 0.5 < sum(probabilities(policy, observation(n, round, margin=0.0))[:left]) < 2.5
        assert sum(probabilities(policy, observation(n, round, margin=1.0))[:left]) < 0.2


def test_the_accurate_the_cheap_and_the_unseen_are_preferred() -> None:
    policy = cold()
    worse, better = probabilities(policy, observation(2, 1, accuracy=[-0.4, 0.4]))
    dear, cheap = probabilities(policy, observation(2, 1, price=[0.5, -0.5]))
    known, unseen = probabilities(policy, observation(2, 1, seen=[0.9, 0.0]))
    assert better > worse
    assert cheap > dear
    assert unseen > known


def test_fusion_is_the_plurality_while_accuracies_are_equal() -> None:
    policy, rng = cold(), random.Random(0)
    for _ in range(100):
        k = rng.randrange(2, 6)
        votes = [rng.randrange(k) for _ in range(rng.randrange(1, 8))]
        counts = [votes.count(c) for c in range(k)]
        assert int(fused(policy, evidence(votes, k, [0.6] * len(votes))).argmax()) == counts.index(max(counts))


def test_fusion_weighs_votes_by_accuracy_and_breaks_ties_by_it() -> None:
    policy = cold()
    assert fused(policy, evidence([0, 1], 4, [0.6, 0.7])).argmax() == 1
    assert fused(policy, evidence([0, 0, 1], 4, [0.3, 0.3, 0.9])).argmax() == 1


def test_fusion_is_surer_the_more_members_agree() -> None:
    policy = cold()
    confidence = [float(posterior(fused(policy, evidence([1] * m, 4, [0.6] * m))).max()) for m in (1, 2, 3)]
    split = float(posterior(fused(policy, evidence([1, 2], 4, [0.6, 0.6]))).max())
    assert 0.25 < split < 0.5 < confidence[0] < confidence[1] < confidence[2] < 1
