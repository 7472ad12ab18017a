"""Generated outcome logs, for benchmarks without a public log. Fixed before anything was tuned on them.

`biased_log`: models whose probabilities favour positions of the choices, differently in each task. Of model m on choice
k of a query of task t whose label is y,

    z = s_mt [k = y] + noise + b_mtk,    probabilities = softmax(z / .3)

with s_mt uniform in 0 to 2 (the best model differs by task), noise and the position bias b_mtk standard normal, and y
uniform. Five models at the same price; 24 tasks of 2 to 19 choices; 200 queries a task to train on and 100 to test on,
in random order (`examples.paper.common.benchmarks` cuts the whole log at four fifths, like every other one). Queries
have no text, so only the task name, if shown, identifies the task.

`simulated_log`: questions with a text and six models at different prices, those of `focalroute.sim`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from focalroute.core.pool import load_pool
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.table import LogTable, join
from focalroute.sim import SimulatedModel, default_models, stream
from focalroute.sim.models import distribution

__all__ = ["BBH", "GPQA", "MODELS", "MUSR", "Shape", "biased_log", "simulated_log"]

MODELS = ("a", "b", "c", "d", "e")
TASKS = 24
TEMPERATURE = 0.3
USD = 0.001


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a benchmark.

    Attributes:
        choices: number of choices in each task.
        train: training queries for each task; ``test``: test queries.
        skill: the largest s_mt.
    """

    choices: Sequence[int]
    train: int = 200
    test: int = 100
    skill: float = 2.0


#: 24 tasks; 3 tasks of 250 questions; 1,192 questions at which no model is good.
BBH = Shape([2 + task * 17 // (TASKS - 1) for task in range(TASKS)])
MUSR = Shape((2, 3, 5), train=200, test=50, skill=1.0)
GPQA = Shape((4,), train=954, test=238, skill=0.6)


def biased_log(seed: int, folder: Path, shape: Shape = BBH) -> LogTable:
    """Generate the log of one seed, write it in the log format, and read it again."""
    rng = np.random.default_rng(seed)
    count = shape.train + shape.test
    each = [_task(rng, task, choices, count, shape.skill) for task, choices in enumerate(shape.choices)]
    order = rng.permutation(np.repeat(np.arange(len(each)), count))
    queues = [iter(lines) for lines in each]
    pool = "".join(f'[[endpoint]]\nname = "{name}"\nmodel = "m"\n' for name in MODELS)
    return _read(folder, f"biased{seed}", "".join(next(queues[task]) for task in order), pool)


def _read(folder: Path, name: str, lines: str, endpoints: str) -> LogTable:
    log, pool = folder / f"{name}.jsonl", folder / f"{name}.pool.toml"
    log.write_text(lines, "utf-8")
    pool.write_text(endpoints, "utf-8")
    return join(read_log(log), load_pool(pool), log)


def _task(rng: np.random.Generator, task: int, choices: int, count: int, most: float) -> list[str]:
    shape = (len(MODELS), choices)
    skill = rng.uniform(0, most, len(MODELS))
    bias = rng.standard_normal(shape)
    lines = []
    for n in range(count):
        label = int(rng.integers(choices))
        logits = rng.standard_normal(shape) + bias
        logits[:, label] += skill
        lines.append(_line(f"t{task}q{n}", f"task {task}", choices, label, logits))
    return lines


def _line(name: str, task: str, choices: int, label: int, logits: NDArray[np.float64]) -> str:
    mass = np.exp((logits - logits.max(axis=1, keepdims=True)) / TEMPERATURE)
    mass /= mass.sum(axis=1, keepdims=True)
    outputs = {
        model: {
            "answer": int(p.argmax()),
            "probabilities": [float(f"{x:.9g}") for x in p],
            "cost_usd": USD,
        }
        for model, p in zip(MODELS, mass, strict=True)
    }
    names = [str(choice) for choice in range(choices)]
    return json.dumps({"id": name, "task": task, "choices": names, "label": label, "outputs": outputs}) + "\n"


def simulated_log(seed: int, folder: Path, count: int = 3000) -> LogTable:
    """Return n questions of `focalroute.sim.stream` as `focalroute.sim.default_models` answer them, one letter each."""
    models = default_models(seed)
    unique = {question.id: question for question in stream(count, seed)}
    lines = []
    for question in unique.values():
        tokens = len(question.text) // 4 + 1
        outputs = {
            model.name: {
                "answer": max(range(len(p)), key=p.__getitem__),
                "probabilities": [float(f"{x:.9g}") for x in p],
                "prompt_tokens": tokens,
                "completion_tokens": 1,
            }
            for model in models
            for p in [distribution(model, question.text, question.topic, question.choices, question.label)]
        }
        line = {"id": question.id, "task": question.topic, "prompt": question.text, "choices": question.choices}
        lines.append(json.dumps({**line, "label": question.label, "outputs": outputs}) + "\n")
    return _read(folder, f"simulated{seed}", "".join(lines), "".join(map(_endpoint, models)))


def _endpoint(model: SimulatedModel) -> str:
    prices = f"input_usd_per_1m = {model.input_usd_per_1m}\noutput_usd_per_1m = {model.output_usd_per_1m}\n"
    return f'[[endpoint]]\nname = "{model.name}"\nmodel = "{model.name}"\n{prices}'
