from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from focalroute.core.records import Feedback, Member, Observation
from focalroute.learn.trajectory import Costs, Stratum, counting_feedback, episode, feedback_weights, rewarded
from focalroute.store.base import SYNTHESIS
from tests.learn.made import NAMES, USD, fresh_learner, play

ANSWER, SAID = play(fresh_learner(), 1, 0)[0]


def call(endpoint: str, round: int, cost: str | None, attempts: int = 1, **rest: object) -> dict[str, object]:
    made = {"endpoint": endpoint, "round": round, "cost": cost, "attempts": attempts}
    return made | {"cost_source": "price", "error": None} | rest


def receipt(*calls: dict[str, object]) -> str:
    return json.dumps({"calls": calls})


def said(source: str, reward: float) -> Feedback:
    return Feedback("x", reward, None, source, 0.0)


def test_a_round_costs_its_calls_as_a_share_of_asking_all() -> None:
    """Calls of other rounds do not count; failed ones do."""
    answer = replace(ANSWER, receipt=receipt(call("left", 1, "0.3"), call("right", 1, "0.1"), call("left", 2, "9")))
    assert ANSWER.trajectory is not None
    assert Costs(USD).shares(answer, ANSWER.trajectory) == pytest.approx((0.4,))


def test_a_damaged_receipt_counts_as_none() -> None:
    """Every update failed as long as the answer was among the latest."""
    assert ANSWER.trajectory is not None
    damaged = Costs(USD).shares(replace(ANSWER, receipt='{"calls": ['), ANSWER.trajectory)
    assert damaged == Costs(USD).shares(replace(ANSWER, receipt="{}"), ANSWER.trajectory)


def test_an_unknown_cost_is_the_typical_one_and_a_call_never_made_costs_nothing() -> None:
    answer = replace(ANSWER, receipt=receipt(call("left", 1, None), call("right", 1, None, attempts=0)))
    assert ANSWER.trajectory is not None
    assert Costs(USD).shares(answer, ANSWER.trajectory) == pytest.approx((0.3,))


def test_the_reservation_of_a_call_that_was_given_up_is_not_taken_for_its_cost() -> None:
    """Of one whose service never says its usage it is the best that is known."""
    given_up = call("left", 1, "50", cost_source="reserved", error={"kind": "cancelled"})
    silent = call("right", 1, "0.3", cost_source="reserved")
    answer = replace(ANSWER, receipt=receipt(call("left", 1, "0.2"), given_up, silent))
    assert ANSWER.trajectory is not None
    assert Costs.of([answer]).usd == pytest.approx({"left": 0.2, "right": 0.3})
    assert Costs(USD).shares(answer, ANSWER.trajectory) == pytest.approx((0.2 + USD["left"] + 0.3,))


def test_without_any_price_a_call_costs_an_nth_and_a_free_pool_nothing() -> None:
    answer = replace(ANSWER, receipt=receipt(call("left", 1, None), call("right", 1, None)))
    assert ANSWER.trajectory is not None
    assert Costs({}).shares(answer, ANSWER.trajectory) == pytest.approx((2 / 3,))
    free = replace(ANSWER, receipt=receipt(call("left", 1, "0")))
    assert Costs(dict.fromkeys(NAMES, 0.0)).shares(free, ANSWER.trajectory) == (0.0,)


def test_typical_costs_are_means_over_known_calls_of_receipts_or_else_of_members() -> None:
    answers = [
        replace(ANSWER, receipt=receipt(call("left", 1, "0.2"), call("left", 2, "0.4"), call("right", 1, None))),
        ANSWER,
    ]
    costs = Costs.of(answers)
    expected = (0.2 + 0.4 + 0.3) / 3 if "left" in ANSWER.members else 0.3
    assert costs.usd["left"] == pytest.approx(expected)
    assert costs.typical("new") == pytest.approx(sum(costs.usd.values()) / len(costs.usd))


def test_feedback_counts_the_more_the_fewer_answers_of_its_kind_have_any() -> None:
    """Answers that no policy decided do not count."""
    differing = {name: Member(1, k, 5, 0.1, None) for k, name in enumerate(USD)}
    disputed, other = replace(ANSWER, members=differing), replace(ANSWER, members={"left": differing["left"]})
    open_text = replace(ANSWER, kind="text")
    rows = [(disputed, [SAID])] * 10 + [(other, [SAID])] * 10 + [(other, [])] * 20
    rows += [(open_text, [])] * 7 + [(replace(disputed, trajectory=None), [SAID])] * 9
    assert [weight for *_, weight in rewarded(rows)] == [0.5] * 10 + [1.5] * 10
    assert [weight for *_, weight in rewarded(rows[:20])] == [1.0] * 20
    assert rewarded([(disputed, [])]) == rewarded([]) == []
    found = episode(other, SAID, Costs(USD), 1.5)
    assert found is not None
    assert found.weight == 1.5


def test_no_feedback_counts_more_than_five_times_and_the_mean_stays_one() -> None:
    """Else the rest of it is lost, and all gains of a trial come out seven times too small."""
    disputed: Stratum = frozenset((1, None)), "choice", True
    other: Stratum = frozenset((1, None)), "choice", False
    found = feedback_weights({disputed: 99, other: 901}, {disputed: 99, other: 1})
    assert found == pytest.approx({disputed: 95 / 99, other: 5})


def test_feedback_on_a_trial_counts_the_same_whatever_the_answers_before_it_were() -> None:
    """Its gains came out too small if members had differed less often, so that fewer answers had feedback."""
    alone: dict[Stratum, int] = {(frozenset((1, 2)), "choice", True): 40, (frozenset((1, 2)), "choice", False): 60}
    before: dict[Stratum, int] = {(frozenset((1, None)), "choice", False): 900}
    told = {stratum: number // 10 for stratum, number in alone.items()}
    found = feedback_weights(alone | before, told | dict.fromkeys(before, 9))
    assert found == feedback_weights(alone, told) | dict.fromkeys(before, 1.0)


def test_a_label_names_the_right_candidate_if_one_is_right() -> None:
    found = episode(ANSWER, replace(SAID, label="k2"), Costs(USD))
    nobody = episode(ANSWER, replace(SAID, label="other"), Costs(USD))
    bare = episode(ANSWER, replace(SAID, label=None), Costs(USD))
    assert found is not None
    assert nobody is not None
    assert bare is not None
    assert (found.right, found.labelled) == (2, True)
    assert (nobody.right, nobody.labelled) == (None, True)
    assert (bare.right, bare.labelled) == (None, False)


def test_a_label_for_what_was_written_from_the_candidates_is_none_of_them() -> None:
    assert ANSWER.trajectory is not None
    written = replace(
        ANSWER, kind=SYNTHESIS, keys=(*ANSWER.keys, "w"), answered=len(ANSWER.keys),
        probabilities=(*ANSWER.probabilities, 0.0), trajectory=replace(ANSWER.trajectory, fused=-1),
    )  # fmt: skip
    found = episode(written, replace(SAID, label="w"), Costs(USD))
    assert found is not None
    assert (found.right, found.labelled) == (None, True)


def test_answers_without_a_policy_or_of_another_layout_are_not_episodes() -> None:
    steps = ANSWER.trajectory
    assert steps is not None
    seen, made = steps.decisions[0]
    other = Observation(np.zeros(3, np.float32), seen.endpoints)
    assert episode(replace(ANSWER, trajectory=None), SAID, Costs(USD)) is None
    assert episode(replace(ANSWER, trajectory=replace(steps, decisions=((other, made),))), SAID, Costs(USD)) is None


def test_a_users_feedback_outranks_a_judges_and_later_outranks_earlier() -> None:
    assert counting_feedback([]) is None
    assert counting_feedback([said("user", 1), said("judge", -1)]) == said("user", 1)
    assert counting_feedback([said("judge", -1), said("user", 1)]) == said("user", 1)
    assert counting_feedback([said("user", 1), said("ops", -1)]) == said("ops", -1)
