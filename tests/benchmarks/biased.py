"""A generated outcome log: models whose probabilities favour positions of the choices, differently in each task.

Fixed before anything was tuned on it, and so to stay. Of model m on choice k of a query of task t whose label is y,

    z = s_mt [k = y] + noise + b_mtk,    probabilities = softmax(z / .3)

with s_mt uniform in 0 to 2 (who is good differs by task), noise and the position bias b_mtk standard normal, and y
uniform. Five models at the same price; 24 tasks of 2 to 19 choices; 200 queries a task to train on and 100 to test on,
in random order. Queries have no text, so that only the task, where it is shown, tells of the task.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from focalroute.config import load_pool
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.table import Table, join

__all__ = ["MODELS", "TASKS", "TEST", "TRAIN", "biased_log"]

MODELS = ("a", "b", "c", "d", "e")
TASKS = 24
TRAIN, TEST = 200, 100
TEMPERATURE = 0.3
USD = 0.001


def biased_log(seed: int, folder: Path, *, tasks: int = TASKS, train: int = TRAIN, test: int = TEST) -> Table:
    """The log of one seed, written as the format says, and read again."""
    rng = np.random.default_rng(seed)
    each = [_task(rng, task, 2 + task * 17 // max(tasks - 1, 1), train + test) for task in range(tasks)]
    order = rng.permutation(np.repeat(np.arange(tasks), train + test))
    queues = [iter(lines) for lines in each]
    log, pool = folder / f"biased{seed}.jsonl", folder / "biased.pool.toml"
    log.write_text("".join(next(queues[task]) for task in order), "utf-8")
    pool.write_text("".join(f'[[endpoint]]\nname = "{name}"\nmodel = "m"\n' for name in MODELS), "utf-8")
    return join(read_log(log), load_pool(pool), log)


def _task(rng: np.random.Generator, task: int, choices: int, count: int) -> list[str]:
    shape = (len(MODELS), choices)
    skill = rng.uniform(0, 2, len(MODELS))
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
