"""DER's training: a problem with known best routes, its rewards, and that service sees the states that training saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from examples.paper.in_process import in_process
from focalroute import Ensemble
from focalroute.core.records import F32, Observation
from focalroute.evaluate.live import environment_of, publish_routes
from focalroute.evaluate.live_environment import ChainCall, ChainReply, LiveEnvironment, of_questions
from focalroute.evaluate.presets import Mlp, Ppo, der_bonus, der_reward, mlp_pass
from focalroute.evaluate.presets.der import DerSettings, run_routes, train_routes
from focalroute.observe.layout import width
from focalroute.policy.sequential import ANSWER, QUERY, STEP, STEP_ENDPOINT, flat, load_served
from focalroute.sim import SimulatedPool, relay_models, stream
from focalroute.store import open_store

NAMES = ("a", "b", "c")
FIRST, SECOND = (0, 1), (2, 0)  # by kind of query: who starts it right, and who ends it right once it is


class Relay:
    """Two kinds of queries; each needs two endpoints in its own order, and asking costs a tenth of asking all."""

    def __init__(self) -> None:
        self.asked: list[ChainCall] = []

    def __call__(self, steps: Sequence[ChainCall]) -> list[ChainReply]:
        self.asked += steps
        return [self._reply(step) for step in steps]

    def _reply(self, step: ChainCall) -> ChainReply:
        kind = step.query % 2
        text = step.shown or "nothing"
        if step.shown is None and step.endpoint == FIRST[kind]:
            text = "half"
        elif step.shown == "half" and step.endpoint == SECOND[kind]:
            text = "all"
        features = np.zeros(ANSWER, np.float32)
        features[["nothing", "half", "all"].index(text)] = 1
        return ChainReply(text, text, features, 0.0, float(text == "all"), 1.0)


def relay(queries: int = 40) -> tuple[LiveEnvironment, Relay]:
    features = np.zeros((queries, QUERY), np.float32)
    features[np.arange(queries), np.arange(queries) % 2] = 1
    ask = Relay()
    return LiveEnvironment(features, NAMES, ask), ask


def random_net(rng: np.random.Generator, n: int) -> Mlp:
    inputs = width(STEP) + n * width(STEP_ENDPOINT)
    shapes = ((inputs, 8), (8,), (8, n + 1), (n + 1,))
    return Mlp(*(rng.standard_normal(shape).astype(np.float32) for shape in shapes))


def scripted(plan: Sequence[Sequence[int]], actions: int) -> Callable[[F32], F32]:
    """A policy that takes these actions, step by step, of each route."""
    steps = iter(plan)
    return lambda seen: np.eye(actions, dtype=np.float32)[list(next(steps))] * 99


def greedy(net: Mlp) -> Callable[[F32], F32]:
    return lambda seen: mlp_pass(net, seen)[0].astype(np.float32)


def test_it_finds_the_best_routes_of_a_known_problem() -> None:
    """Two calls for each kind, in its own order, and STOP: nothing else earns as much. No call is made twice."""
    environment, ask = relay()
    settings = DerSettings(max_steps=3, alpha=0.3, passes=80, hidden=16, ppo=Ppo(rate=0.01, entropy=0.05))
    net = train_routes(environment, settings, seed=0)
    routes = run_routes(greedy(net), environment, np.arange(40), settings, None)
    assert routes.worth.tolist() == [1.0] * 40
    assert routes.calls.tolist() == [2] * 40
    for row in range(40):
        assert routes.chosen[row].tolist() == [FIRST[row % 2], SECOND[row % 2], 3]
    assert len(set(ask.asked)) == len(ask.asked)


def test_the_same_seed_learns_the_same() -> None:
    nets = [train_routes(relay(8)[0], DerSettings(passes=2, hidden=4), seed) for seed in (0, 0, 1)]
    assert np.array_equal(nets[0].out, nets[1].out)
    assert not np.array_equal(nets[0].out, nets[2].out)


def test_a_steps_reward_is_the_published_one() -> None:
    environment, _ = relay(2)
    settings = DerSettings(max_steps=2, alpha=0.5, beta=2.0, level=True, threshold=0.5, bonus=0.25)
    plan = [[0, 1], [2, 1]]  # the first query right in two steps, the second never
    routes = run_routes(scripted(plan, 4), environment, np.arange(2), settings, None)
    paid = 1 / 3
    first = der_reward([0, 0], None, [paid, paid], alpha=0.5, beta=2.0, level=True)
    second = der_reward([1, 0], [0, 0], [paid, paid], alpha=0.5, beta=2.0, level=True)
    over = der_bonus([1, 0], [True, True], threshold=0.5, bonus=0.25)
    assert routes.rewards == pytest.approx(np.stack([first, second + over], axis=1), abs=1e-6)
    assert routes.cost.tolist() == [2.0, 2.0]


def test_the_paper_s_full_pay_at_every_step_makes_routes_long() -> None:
    environment, _ = relay()
    common = {"max_steps": 3, "alpha": 0.1, "passes": 60, "hidden": 16, "ppo": Ppo(rate=0.01, entropy=0.05)}
    calls = {}
    for level in (False, True):
        settings = DerSettings(**common, level=level, validation=0.0)  # type: ignore[arg-type]
        net = train_routes(environment, settings, seed=1)
        routes = run_routes(greedy(net), environment, np.arange(40), settings, None)
        calls[level] = float(routes.calls.mean())
    assert calls[True] > calls[False]


def test_an_endpoint_without_a_usable_reply_is_paid_for_and_not_asked_again() -> None:
    nothing = ChainReply(None, "", np.zeros(ANSWER, np.float32), 0.0, 0.0, 1.0)
    environment = LiveEnvironment(np.zeros((1, QUERY), np.float32), NAMES, lambda steps: [nothing for _ in steps])
    routes = run_routes(lambda seen: np.zeros((1, 4)), environment, np.arange(1), DerSettings(max_steps=5), None)
    assert routes.chosen[0, :3].tolist() == [0, 1, 2]
    assert routes.calls.tolist() == [3]
    assert (routes.worth.tolist(), routes.cost.tolist()) == ([0.0], [3.0])
    assert not routes.taken[0, 3:].any()


def test_the_served_model_computes_as_the_trained_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    net = random_net(rng, 3)
    publish_routes(tmp_path, net, NAMES, DerSettings(), seed=0)
    policy = load_served(tmp_path)
    assert policy.hyperparameters["alpha"] == DerSettings().alpha
    context = rng.standard_normal((20, width(STEP))).astype(np.float32)
    endpoints = rng.standard_normal((20, 3, width(STEP_ENDPOINT))).astype(np.float32)
    expected, _ = mlp_pass(net, flat(context, endpoints))
    order = policy.ids(("c", "x", "a", "b"))
    for row in range(20):
        seen = Observation(context[row], endpoints[row][[2, 0, 0, 1]])
        found = policy.actions(seen, order)  # type: ignore[union-attr]
        assert found[[2, 3, 0, 4]] == pytest.approx(expected[row], abs=1e-5)
        assert found[1] < -1000


@pytest.mark.parametrize(("topic", "kind"), [("multi-hop", "number"), ("yes-no", None)])
def test_service_over_http_sees_the_states_that_training_saw(tmp_path: Path, topic: str, kind: str | None) -> None:
    """The same route played in both: every state that the ensemble stored is the one that training rolled through."""
    models = relay_models(3)
    names = [model.name for model in models]
    questions = list(stream(6, seed=3, topics=[topic]))
    queries = of_questions(questions, answer=kind)
    publish_routes(tmp_path / "der", random_net(np.random.default_rng(1), 5), names, DerSettings(), seed=0)
    with SimulatedPool(models) as pool:
        environment = environment_of(pool.endpoints, queries, in_process(models, pool.endpoints, queries))
        with Ensemble(
            pool.endpoints, policy=tmp_path / "der", store=tmp_path / "s.db", seed=2, max_rounds=4
        ) as ensemble:
            answers = [ensemble.ask(q.text, choices=None if kind else q.choices, answer=kind) for q in questions]
    with closing(open_store(tmp_path / "s.db")) as store:
        for row, answer in enumerate(answers):
            stored = store.answer(answer.id)
            assert stored is not None
            assert stored.trajectory is not None
            decisions = stored.trajectory.decisions
            plan = [[d.picked[0] if d.picked else 5] for _, d in decisions] + [[5]] * 4
            routes = run_routes(scripted(plan, 6), environment, np.array([row]), DerSettings(max_steps=4), None)
            for place, (seen, _) in enumerate(decisions):
                context, endpoints = np.split(routes.states[0, place], [width(STEP)])
                assert seen.context == pytest.approx(context, abs=1e-5)
                assert seen.endpoints[:, :2] == pytest.approx(endpoints.reshape(5, -1)[:, :2], abs=1e-6)
            assert answer.cost is not None
            assert routes.cost[0] == pytest.approx(float(answer.cost), rel=1e-5)
            assert routes.worth[0] == queries[row].worth_of(answer)
