from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from focalroute.core.records import Decision, Observation, Trajectory
from focalroute.learn.losses import likelihood
from focalroute.learn.nets import DeciderNet, FusionNet, decider_pass, decider_state, fusion_state
from focalroute.learn.trajectory import Episode, batch, grown, unlimited, vocabulary
from focalroute.observe.layout import CONTEXT, ENDPOINT, slices, width
from tests.learn.made import context, evidence
from tests.policy.chances import log_probability


def observation(n: int, seed: int, cost_weight: float = 0.5) -> Observation:
    rows = np.random.default_rng(seed).standard_normal((n, width(ENDPOINT))).astype(np.float32)
    return Observation(context(1, cost_weight), rows)


def decision(round: int, order: tuple[int, ...], picked: tuple[int, ...], log_mu: float | None = -1.0) -> Decision:
    return Decision(round, round == 1, order, (True,) * len(order), (0.5,) * 4, picked, log_mu)


LONG = Episode(
    "long",
    Trajectory(
        1,
        ("a", "b", "c", "d"),
        (
            (observation(4, 0, 0.5), decision(1, (2, 0, 1, 3), (0, 3))),
            (observation(4, 1, 0.5), decision(2, (2, 1), (), log_mu=None)),
            (observation(4, 2, 10.0), decision(3, (1, 2), (1,))),
        ),
        evidence({3: 0, 0: 1}),
        0,
    ),
    (0.5, 0.25, 0.1),
    -1.0,
    1,
    True,
)
SHORT = Episode(
    "short",
    Trajectory(1, ("e", "b"), ((observation(2, 3), decision(1, (0, 1), (1,))),), evidence({1: 2}, k=3), 2),
    (1.0,),
    0.5,
    None,
    False,
)
NAMES = vocabulary(("b",), [LONG, SHORT])


def test_known_names_come_first_then_new_ones_as_they_appear() -> None:
    assert NAMES == ("b", "a", "c", "d", "e")


def test_heads_lie_in_visiting_order_and_greedy_decisions_stay_out() -> None:
    found = batch([LONG, SHORT], NAMES).decisions
    assert found.log_mu.tolist() == [-1, -1, -1]
    assert found.ids.tolist() == [[3, 2, 1, 4], [1, 3, 0, 0], [5, 1, 0, 0]]
    assert found.heads.picked.tolist() == [
        [False, True, False, True],
        [True, *[False] * 3],
        [False, True, *[False] * 2],
    ]
    assert found.heads.visited.sum(axis=1).tolist() == [4, 2, 2]
    assert found.heads.must_pick.tolist() == [True, False, True]
    assert found.heads.pool.tolist() == [4, 4, 2]
    assert list(zip(found.episode.tolist(), found.step.tolist(), strict=True)) == [(0, 0), (0, 2), (1, 2)]
    seen, made = LONG.trajectory.decisions[0]
    np.testing.assert_array_equal(found.endpoints[0], seen.endpoints[[2, 0, 1, 3]])
    half = likelihood(np.zeros((3, 4)), found.heads).log_pi
    np.testing.assert_allclose(half[0], log_probability((0.5,) * 4, made), rtol=1e-9)


def test_steps_fill_rows_from_the_right_and_pay_their_own_lambda() -> None:
    steps = batch([LONG, SHORT], NAMES).steps
    assert steps.taken.tolist() == [[True] * 4, [False, False, True, True]]
    np.testing.assert_allclose(steps.rewards, [[-0.25, -0.125, -1, -1], [0, 0, -0.5, 0.5]], rtol=1e-5)
    np.testing.assert_array_equal(steps.states[0, 1], decider_state(LONG.trajectory.decisions[1][0]))
    last = fusion_state(LONG.trajectory.decisions[2][0], LONG.trajectory.evidence)
    np.testing.assert_array_equal(steps.states[0, 3], last)
    assert not steps.states[1, :2].any()


def test_the_fusions_padding_is_absent_members_and_candidates_not_offered() -> None:
    found = batch([LONG, SHORT], NAMES).fusions
    assert found.members.shape[:3] == (2, 4, 2)
    assert found.ids.tolist() == [[4, 2], [1, 0]]
    assert found.offered.tolist() == [[True] * 4, [True] * 3 + [False]]
    assert not found.members[1, :, 1].any()
    assert not found.members[1, 3].any()
    assert (found.right.tolist(), found.labelled.tolist()) == ([1, -1], [True, False])
    assert (found.answered.tolist(), found.reward.tolist()) == ([0, 2], [-1, 0.5])


def test_an_episode_without_a_sampled_decision_still_counts_for_critic_and_fusion() -> None:
    seen, made = SHORT.trajectory.decisions[0]
    greedy = replace(SHORT, trajectory=replace(SHORT.trajectory, decisions=((seen, replace(made, log_mu=None)),)))
    found = batch([greedy], NAMES)
    assert found.decisions.log_mu.shape == (0,)
    assert found.steps.taken.tolist() == [[True, True]]


@pytest.mark.parametrize("kind", [DeciderNet, FusionNet])
def test_growing_keeps_what_is_known_and_starts_new_names_small(kind: Any) -> None:
    rng = np.random.default_rng(0)
    net = kind.initial(rng, vocabulary=2)
    net.names[1:] = 7
    more = grown(net, 5, rng)
    assert more.names.shape == (6, 8)
    assert more.names.dtype == np.float32
    np.testing.assert_array_equal(more.names[:3], net.names)
    assert 0 < np.abs(more.names[3:]).max() < 1
    assert kind is DeciderNet or more.vote.shape == (6,)
    assert grown(net, 2, rng).names.shape == (3, 8)


def test_an_unlimited_net_decides_the_same_with_and_without_a_cap() -> None:
    rng, left = np.random.default_rng(0), slices(CONTEXT)["budget_left"]
    net = DeciderNet.initial(rng)
    net = replace(
        net, out=rng.standard_normal(32).astype("f4"), skip_context=rng.standard_normal(width(CONTEXT)).astype("f4")
    )
    one = rng.standard_normal((6, width(CONTEXT))).astype("f4")
    half = one.copy()
    one[:, left], half[:, left] = 1.0, 0.5
    endpoints, ids = rng.standard_normal((6, 4, width(ENDPOINT))).astype("f4"), np.zeros(4, np.int64)
    free, _ = decider_pass(unlimited(net), one, endpoints, ids)
    np.testing.assert_allclose(free, decider_pass(net, one, endpoints, ids)[0], atol=1e-5)
    np.testing.assert_array_equal(decider_pass(unlimited(net), half, endpoints, ids)[0], free)
