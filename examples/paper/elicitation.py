"""Ways to elicit probabilities: labels' log-probabilities, 10 samples, or one parsed reply; calibration and cost.

python -m examples.paper.elicitation [--questions 500] [--seeds 5]

Simulated models (`focalroute.sim.default_models`), asked through the project's own elicitation, each time as an
endpoint with these capabilities. Brier is the mean squared error over the choices; ECE, of the leading choice, the mean
distance of confidence and share right over ten bins of equal width. A parsed reply counts as certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from examples.paper.common import mean_se, parser_of, show
from examples.paper.in_process import complete
from focalroute.endpoints.capabilities import Capabilities
from focalroute.endpoints.elicit import plan
from focalroute.endpoints.wire import decode, encode
from focalroute.serving.query import make_query
from focalroute.sim import Question, SimulatedModel, default_models, stream

#: What an endpoint can do -> how it is asked: logprobs, alternatives, several samples, a choice held to, usage.
WAYS = {
    "labels' log-probabilities": Capabilities(True, 20, True, True, True),
    "10 samples": Capabilities(False, 0, True, True, True),
    "one reply, parsed": Capabilities(False, 0, False, True, True),
}
_BINS = 10


@dataclass(frozen=True, slots=True)
class Found:
    """One model's accuracy, Brier score, ECE, and mean USD per question."""

    right: float
    brier: float
    ece: float
    usd: float


def measured(model: SimulatedModel, questions: Sequence[Question], way: Capabilities) -> Found:
    """Ask one model in one way."""
    right, errors, confidence, usd = [], [], [], 0.0
    for question in questions:
        put = plan(make_query(question.text, choices=question.choices), way)
        completion = decode(complete(model, encode(put.request, model.name, "openai")))
        reading = put.read(completion)
        size = len(question.choices)
        mass = np.array(reading.probabilities or np.eye(size)[reading.choice or 0])
        right.append(float(reading.choice == question.label))
        errors.append(float(((mass - np.eye(size)[question.label]) ** 2).sum()))
        confidence.append(float(mass.max()))
        if completion.usage is not None:
            usd += completion.usage.prompt_tokens * float(model.input_usd_per_1m) / 1e6
            usd += completion.usage.completion_tokens * float(model.output_usd_per_1m) / 1e6
    bins = np.minimum((np.array(confidence) * _BINS).astype(int), _BINS - 1)
    gaps = [
        (bins == b).mean() * abs(np.mean(np.array(confidence)[bins == b]) - np.mean(np.array(right)[bins == b]))
        for b in set(bins.tolist())
    ]
    return Found(float(np.mean(right)), float(np.mean(errors)), float(sum(gaps)), usd / len(questions))


def main() -> None:
    """Ask and print."""
    parser = parser_of(__doc__ or "")
    parser.add_argument("--questions", type=int, default=500)
    asked = parser.parse_args()
    if asked.quick:
        asked.questions, asked.seeds = 20, 1
    rows = []
    for way, able in WAYS.items():
        runs = []
        for seed in range(asked.seeds):
            questions = list(stream(asked.questions, seed))
            runs.append([measured(model, questions, able) for model in default_models(seed)])
        columns = [
            [float(np.mean([getattr(one, part) for one in run])) for run in runs]
            for part in ("right", "brier", "ece", "usd")
        ]
        rows.append(
            [way, *(mean_se(column, digits=1) for column in columns[:3]), mean_se(columns[3], scale=1e6, digits=1)]
        )
    show(
        f"Six simulated models, {asked.questions} questions a seed",
        ["", "right %", "Brier x 100", "ECE %", "USD per million questions"],
        rows,
    )


if __name__ == "__main__":
    main()
