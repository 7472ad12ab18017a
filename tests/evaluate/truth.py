"""Off-policy estimates against the truth: where every endpoint's answer is recorded, any policy can be played for real.

One set of rows stands for all queries there are. An observer learns from other rows and then learns no more, so every
policy sees the same observation before its first decision on a row, and what a policy is worth is a plain mean: over
all rows, played many times with exploration. A log is what the shipped policy did on rows drawn at random; estimating
from it what another policy would have done has that mean as its target, and logs can be drawn again and again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.core.pool import load_pool
from focalroute.core.records import Feedback
from focalroute.evaluate.offpolicy import ESTIMATORS, MEASURES, Estimate, PolicyComparison, compare_policies
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.replay import Turn, play
from focalroute.evaluate.serving import Serving
from focalroute.evaluate.table import LogTable, join
from focalroute.learn.export import decider_model, decider_net, fusion_model, fusion_net
from focalroute.learn.nets import DeciderNet, FusionNet
from focalroute.learn.reward import USER
from focalroute.observe import layout
from focalroute.policy.bundle import Policy, cold, load
from focalroute.policy.publish import publish
from focalroute.sim import default_models, stream
from focalroute.sim.models import distribution
from focalroute.store.base import StoredAnswer
from tests.evaluate.logs import Line, write_log, write_pool

Judged = tuple[StoredAnswer, tuple[Feedback, ...]]

PRICE_OF_MONEY = 0.1


def simulated_table(folder: Path, queries: int, seed: int = 0) -> LogTable:
    """The package's own questions, put to its simulated models, every answer recorded."""
    models = default_models(seed)
    rng = random.Random(seed)
    lines: list[Line] = []
    for n, question in enumerate(stream(queries, seed)):
        outputs: dict[str, Any] = {}
        for model in models:
            mass = distribution(model, question.text, question.topic, question.choices, question.label)
            outputs[model.name] = {
                "answer": max(range(len(mass)), key=mass.__getitem__), "probabilities": mass,
                "prompt_tokens": len(question.text) // 4, "completion_tokens": 1 + rng.randrange(2 * model.verbosity),
            }  # fmt: skip
        lines.append({"id": str(n), "prompt": question.text, "choices": list(question.choices),
                      "label": question.label, "outputs": outputs})  # fmt: skip
    log = write_log(folder / "log.jsonl", lines)
    prices = {model.name: float(model.input_usd_per_1m) for model in models}
    return join(read_log(log), load_pool(write_pool(folder / "pool.toml", prices)), log)


def targets(root: Path) -> dict[str, Policy]:
    """Policies that differ from the shipped one: in how many they ask, whom they prefer, and how they fuse."""
    shipped = cold()
    decider, fusion = decider_net(shipped.decider_onnx), fusion_net(shipped.fusion_onnx)
    made: dict[str, tuple[DeciderNet, FusionNet]] = {
        "cheaper": (_weighed(decider, bias=-2.4, price=-4.8), fusion),
        "generous": (_weighed(decider, bias=1.2, price=1.2), fusion),
        "accurate": (_weighed(decider, bias=0.0, accuracy=12.0), fusion),
        "other fusion": (decider, replace(fusion, skip_member=_more(fusion.skip_member, "probability", 3.75))),
        "bold": (_weighed(decider, bias=3.6, price=1.2), fusion),
        "far": (_weighed(decider, bias=12.0, price=3.2), fusion),
    }
    for name, (one, two) in made.items():
        folder = root / name.replace(" ", "-")
        publish(folder, decider=decider_model(one), fusion=fusion_model(two), names=(), parent=None)
    return {name: load(root / name.replace(" ", "-")) for name in made}


def _weighed(net: DeciderNet, *, bias: float, **weights: float) -> DeciderNet:
    endpoint = net.skip_endpoint.copy()
    for name, value in weights.items():
        endpoint[layout.slices(layout.ENDPOINT)[name]] += value
    return replace(net, skip_endpoint=endpoint, bias=net.bias + np.float32(bias))


def _more(weights: Any, name: str, value: float) -> Any:
    changed = weights.copy()
    changed[layout.slices(layout.MEMBER)[name]] += value
    return changed


@dataclass(frozen=True)
class World:
    """Rows to play, and one observer that has learned and learns no more.

    Attributes:
        serving: plays whatever policy is set.
        rows: (n,) all queries there are.
        ask_all_usd: C, mean USD of asking all.
    """

    table: LogTable
    serving: Serving
    rows: NDArray[np.int64]
    ask_all_usd: float

    @classmethod
    def of(cls, table: LogTable, *, warm: int, last: int, seed: int = 0) -> World:
        """The observer learns from the first ``warm`` rows; those up to ``last`` are what there is."""
        serving = Serving(cold(), table.endpoints, seed=seed, cost_weight=PRICE_OF_MONEY, learn_from_agreement=False)
        play(serving, table, np.arange(warm))
        rows = np.arange(warm, last)
        return cls(table, serving, rows, float(table.usd[rows].sum(axis=1).mean()))

    def log(self, size: int, rng: np.random.Generator) -> list[Judged]:
        """What the shipped policy did on so many rows drawn at random, with what was said of it."""
        self.serving.policy = cold()
        found: list[Judged] = []
        for row in rng.choice(self.rows, size).tolist():
            turn = Turn(self.table, row)
            answer = self.serving.answer(turn)
            stored = turn.memo
            reward = 2 * self.table.worth(row, answer) - 1
            key = stored.keys[int(self.table.label[row])]
            found.append((stored, (Feedback(stored.id, reward, key, USER, 0.0),)))
        return found

    def truth(self, policy: Policy, samples: int) -> NDArray[np.float64]:
        """What a policy is worth, (measure, samples): each time every row is played, by the same chance for all.

        Probes are not in the cost: they belong to no answer, and no estimate can know of them.
        """
        self.serving.policy = policy
        self.serving.history.clear()
        rows = np.tile(self.rows, samples)
        played = play(self.serving, self.table, rows, feedback="none")
        picked = ([i for round_ in rounds for i in round_] for rounds in self.serving.history)
        usd = np.array([self.table.usd[row, some].sum() for row, some in zip(rows, picked, strict=True)])
        accuracy = 100 * played.worth.reshape(samples, -1).mean(axis=1)
        cost = usd.reshape(samples, -1).mean(axis=1) / self.ask_all_usd
        return np.stack([accuracy, cost, accuracy - 50 * PRICE_OF_MONEY * cost])


@dataclass(frozen=True)
class Trial:
    """How estimates of one quantity did, over many logs, against the truth; in the quantity's own units.

    Attributes:
        bias: mean error.
        bias_error: its standard error, that of the truth left out.
        rmse: root mean squared error.
        coverage: share of 95 % intervals that hold the truth.
    """

    bias: float
    bias_error: float
    rmse: float
    coverage: float

    @classmethod
    def of(cls, estimates: Sequence[Estimate], truth: float) -> Trial:
        """Over at least two logs."""
        errors = np.array([one.value - truth for one in estimates])
        return cls(
            bias=float(errors.mean()),
            bias_error=float(errors.std(ddof=1)) / len(errors) ** 0.5,
            rmse=float(np.sqrt((errors**2).mean())),
            coverage=float(np.mean([one.low <= truth <= one.high for one in estimates])),
        )


@dataclass(frozen=True)
class Quantity:
    """One measure of a policy, or of its difference to the shipped one.

    Attributes:
        truth: by playing it.
        truth_error: its standard error.
        trials: estimator -> how it did; none where fewer than two logs held sufficient evidence.
    """

    truth: float
    truth_error: float
    trials: Mapping[str, Trial]

    @classmethod
    def of(cls, played: NDArray[np.float64], estimates: Sequence[Mapping[str, Estimate]]) -> Quantity:
        """From what it was each time that it was played, and what each log said."""
        truth = float(played.mean())
        enough = len(estimates) > 1
        return cls(
            truth=truth,
            truth_error=float(played.std(ddof=1)) / len(played) ** 0.5,
            trials={how: Trial.of([one[how] for one in estimates], truth) for how in ESTIMATORS} if enough else {},
        )


@dataclass(frozen=True)
class Study:
    """Estimates of one policy, and of its difference to the shipped one, over many logs.

    Attributes:
        size: mean effective sample size.
        answered: share of logs with sufficient evidence; the others are in none of the figures.
        value: measure -> what is known of it.
        gain: likewise, of the difference.
    """

    size: float
    answered: float
    value: Mapping[str, Quantity]
    gain: Mapping[str, Quantity]


def study(
    world: World,
    policies: Mapping[str, Policy],
    *,
    logs: int,
    size: int,
    samples: int,
    seed: int = 0,
    advance: Callable[[int], object] = lambda _: None,
) -> dict[str, Study]:
    """Draw logs of ``size`` answers, compare each policy with the shipped one on each, and score the estimates."""
    rng = np.random.default_rng(seed)
    base = world.truth(cold(), samples)
    truths = {}
    for name, policy in policies.items():
        truths[name] = world.truth(policy, samples)
        advance(1)
    found: dict[str, list[PolicyComparison]] = {name: [] for name in policies}
    for number in range(logs):
        log = world.log(size, rng)
        for name, policy in policies.items():
            found[name].append(compare_policies(log, cold(), policy, seed=number))
        advance(1)
    return {name: _study(found[name], truths[name], base) for name in policies}


def _study(found: Sequence[PolicyComparison], truth: NDArray[np.float64], base: NDArray[np.float64]) -> Study:
    values = [one.b.estimates for one in found if one.b.estimates is not None]
    gains = [one.difference for one in found if one.difference is not None]
    return Study(
        size=float(np.mean([one.b.effective_sample_size for one in found])),
        answered=len(values) / len(found),
        value={m: Quantity.of(truth[i], [one[m] for one in values]) for i, m in enumerate(MEASURES)},
        gain={m: Quantity.of((truth - base)[i], [one[m] for one in gains]) for i, m in enumerate(MEASURES)},
    )
