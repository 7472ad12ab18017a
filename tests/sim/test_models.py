"""Simulated models: skill, calibration, kinship and determinism, measured on a fixed stream."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from focalroute.core.errors import ConfigError
from focalroute.sim import TOPICS, Question, SimulatedModel, default_models, stream
from focalroute.sim.models import distribution, sample, uniforms

QUESTIONS = list(stream(1200, seed=11))


def answers(
    model: SimulatedModel, questions: Sequence[Question] = QUESTIONS, *, drifted: bool = False
) -> list[tuple[float, ...]]:
    return [distribution(model, q.text, q.topic, q.choices, q.label, drifted=drifted) for q in questions]


def hits(model: SimulatedModel, questions: Sequence[Question] = QUESTIONS) -> NDArray[np.float64]:
    said = answers(model, questions)
    return np.array([p.index(max(p)) == q.label for p, q in zip(said, questions, strict=True)], dtype=float)


@pytest.mark.parametrize("skill", [0.55, 0.7, 0.9])
def test_a_model_is_right_as_often_as_its_skill_says(skill: float) -> None:
    assert hits(SimulatedModel("m", skill=skill)).mean() == pytest.approx(skill, abs=0.03)


def test_no_model_is_worse_than_chance() -> None:
    chance = np.mean([1 / len(q.choices) for q in QUESTIONS])
    assert hits(SimulatedModel("m", skill=0.0)).mean() == pytest.approx(chance + 0.015, abs=0.03)


@pytest.mark.parametrize("skill", [0.5, 0.75])
def test_every_probability_of_a_calibrated_model_is_how_often_it_comes_true(skill: float) -> None:
    """Over all choices, not only the leading one, in ten bins."""
    said = answers(SimulatedModel("m", skill=skill))
    mass = np.concatenate(said)
    true = np.concatenate([np.arange(len(q.choices)) == q.label for q in QUESTIONS])
    for low, high in pairwise(np.linspace(0, 1, 11)):
        inside = (mass >= low) & (mass < high)
        if inside.sum() > 100:
            spread = math.sqrt(0.25 / inside.sum())
            assert true[inside].mean() == pytest.approx(mass[inside].mean(), abs=3.5 * spread)


def test_sharpness_makes_a_model_surer_but_not_better() -> None:
    calibrated, overconfident = SimulatedModel("m", skill=0.6), SimulatedModel("m", skill=0.6, sharpness=2.5)
    assert (hits(calibrated) == hits(overconfident)).all()
    sure = np.mean([max(p) for p in answers(overconfident)])
    assert sure > hits(overconfident).mean() + 0.15


def test_kin_share_mistakes_and_strangers_do_not() -> None:
    kin = [SimulatedModel(name, skill=0.6, kin="k", correlation=0.7) for name in "ab"]
    stranger = SimulatedModel("c", skill=0.6)
    within = np.corrcoef(hits(kin[0]), hits(kin[1]))[0, 1]
    between = np.corrcoef(hits(kin[0]), hits(stranger))[0, 1]
    assert within > 0.35
    assert abs(between) < 0.15


def test_kin_make_the_same_mistake_not_only_at_the_same_time() -> None:
    """Where both are wrong, full kin give the same wrong answer; strangers usually do not."""
    questions = [q for q in QUESTIONS if len(q.choices) >= 5]

    def agreement(one: SimulatedModel, other: SimulatedModel) -> float:
        pairs = zip(questions, answers(one, questions), answers(other, questions), strict=True)
        leads = [(q.label, p.index(max(p)), r.index(max(r))) for q, p, r in pairs]
        wrong = [(a, b) for label, a, b in leads if label not in (a, b)]
        return sum(a == b for a, b in wrong) / len(wrong)

    full = [SimulatedModel(name, skill=0.5, kin="k", correlation=1.0) for name in "ab"]
    strangers = [SimulatedModel(name, skill=0.5) for name in "cd"]
    assert agreement(*full) == 1.0
    assert agreement(*strangers) < 0.4


def test_the_order_of_the_choices_does_not_matter() -> None:
    model = SimulatedModel("m", skill=0.6)
    for q in QUESTIONS[:200]:
        p = distribution(model, q.text, q.topic, q.choices, q.label)
        turned = distribution(model, q.text, q.topic, q.choices[::-1], len(q.choices) - 1 - q.label)
        assert turned[::-1] == pytest.approx(p)


def test_distributions_are_distributions_with_one_leader() -> None:
    for model in default_models():
        for p in answers(model, QUESTIONS[:500]):
            assert sum(p) == pytest.approx(1)
            assert min(p) > 0
            first, second = sorted(p)[::-1][:2]
            assert first > second


def test_the_same_seed_gives_the_same_answers_and_another_seed_others() -> None:
    one, same, other = (SimulatedModel("m", seed=seed) for seed in (1, 1, 2))
    assert answers(one) == answers(same)
    assert answers(one) != answers(other)


def test_drift_changes_only_the_skills_named() -> None:
    model = SimulatedModel("m", skill=0.9, drifted={"dates": 0.5})
    before, after = answers(model), answers(model, drifted=True)
    for question, old, new in zip(QUESTIONS, before, after, strict=True):
        assert (old == new) == (question.topic != "dates")
    dates = [(q.label, p) for q, p in zip(QUESTIONS, after, strict=True) if q.topic == "dates"]
    assert np.mean([p.index(max(p)) == label for label, p in dates]) == pytest.approx(0.5, abs=0.08)


def test_a_question_without_its_right_choice_is_guessed() -> None:
    p = distribution(SimulatedModel("m", skill=1.0), "What is 2 + 2?", "arithmetic", ("1", "2", "3"), None)
    assert max(p) < 0.4
    assert distribution(SimulatedModel("m"), "q", None, ("only",), None) == (1.0,)


def test_samples_follow_the_distribution_and_temperature_zero_is_greedy() -> None:
    p = (0.2, 0.5, 0.3)
    drawn = [sample(p, uniforms("draw", i)[0]) for i in range(4000)]
    assert np.bincount(drawn) / 4000 == pytest.approx(p, abs=0.03)
    assert {sample(p, u, 0.0) for u in (0.0, 0.5, 0.999)} == {1}
    cold = [sample(p, uniforms("draw", i)[0], 0.5) for i in range(4000)]
    assert np.mean(np.equal(cold, 1)) == pytest.approx(0.25 / 0.38, abs=0.03)


def test_no_default_model_is_best_at_every_topic() -> None:
    best = set()
    for topic in TOPICS:
        questions = [q for q in QUESTIONS if q.topic == topic]
        best.add(max(default_models(), key=lambda m: hits(m, questions).mean()).name)
    assert len(best) >= 3


def test_a_cheap_subset_of_the_default_pool_fused_beats_its_best_single_model() -> None:
    models = {model.name: model for model in default_models()}
    cheap = [models[name] for name in ("tally-7b", "quill-9b", "almanac-12b")]
    mass = [
        np.log(np.array(p)) for p in zip(*(answers(m) for m in cheap), strict=True) if len({len(x) for x in p}) == 1
    ]
    fused = np.mean([p.sum(axis=0).argmax() == q.label for p, q in zip(mass, QUESTIONS, strict=True)])
    best = max(hits(model).mean() for model in models.values())
    assert fused > best + 0.05
    assert sum(m.price[0] for m in cheap) < models["atlas-70b"].price[0] / 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"skill": 1.5},
        {"skills": {"physics": 0.5}},
        {"skills": {"dates": -0.1}},
        {"drifted": {"dates": 2}},
        {"correlation": -1},
        {"skill": "high"},
        {"skill": True},
        {"skills": {"dates": None}},
        {"skills": 0.9},
        {"name": 5},
        {"verbosity": "low"},
        {"sharpness": 0},
        {"latency_s": -1},
        {"input_usd_per_1m": "cheap"},
        {"output_usd_per_1m": Decimal("-1")},
    ],
)
def test_a_wrong_model_is_a_config_error_that_names_the_field(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SimulatedModel(**{"name": "m", **wrong})  # type: ignore[arg-type]


def test_a_model_survives_json_with_its_prices_exact() -> None:
    for model in default_models(seed=3):
        assert SimulatedModel(**json.loads(json.dumps(asdict(model), default=str))) == model
