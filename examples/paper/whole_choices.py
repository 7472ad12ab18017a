"""Ways to elicit probabilities from real models: whole choices, labels, ten samples; calibration and cost.

python -m examples.paper.whole_choices [--questions 300] [--seeds 5]

Three Llamas of half a million parameters are taught counting and logic like those of `examples.tiny_pool`, and also to
write the answer out after the question. A real vLLM serves each; it is asked the same questions in three ways through
the public API. Needs torch and `make real`; some six minutes a seed.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from examples.paper.common import parser_of, show
from examples.tiny_pool.elicited import Calibration, compared
from examples.tiny_pool.gguf_file import CONTEXT, named_weights
from examples.tiny_pool.network import EPSILON, THETA, Llama
from examples.tiny_pool.recipe import TOPICS, Recipe, Shape
from examples.tiny_pool.streams import fresh
from examples.tiny_pool.training import train
from examples.tiny_pool.wording import ANSWER, END, TEMPLATE, tokenizer
from focalroute import Answer, AsyncEnsemble, Endpoint
from focalroute.endpoints.elicit.closed import write_out_choices
from focalroute.evaluate.outcomes import LoggedQuery, Output
from focalroute.sim import Question
from tests.real.hugging_face import write_folder
from tests.real.servers import vllm_serving

__all__ = ["WAYS", "main", "played", "recipes", "written"]

#: How an endpoint is asked -> what its pool file says.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "labels' log-probabilities": {"logprobs": True, "top_logprobs": 20, "n": False},
    "whole choices": {"whole_choices": True, "logprobs": True, "top_logprobs": 20, "n": False},
    "10 samples": {"logprobs": False, "top_logprobs": 0, "n": True},
}
_PRICE = Decimal("0.5")
_MEASURES = ("right", "Brier", "log-loss", "ECE", "ms a call", "USD per million", "tokens back")
_SCALES = (100, 100, 1, 100, 1000, 1e6, 1)
_DIGITS = (1, 1, 3, 1, 0, 1, 1)


def recipes(seed: int) -> list[Recipe]:
    """The models' recipes, with heads of width 32, as vLLM needs on a CPU."""
    small, large = Shape(96, 4, 3, 256), Shape(128, 4, 4, 256)
    return [
        Recipe("counter", small, {"counting": 1}, 900, 10 * seed + 1, _PRICE, alone=500),
        Recipe("reasoner", small, {"logic": 1}, 300, 10 * seed + 2, _PRICE, alone=150),
        Recipe("both", large, {"counting": 0.6, "logic": 0.4}, 500, 10 * seed + 3, _PRICE, alone=250),
    ]


def written(model: Llama, questions: Sequence[Question]) -> Any:
    """Return the cross entropy of the right answer's text after its question, as whole choices are scored."""
    made = tokenizer(TOPICS)
    texts = [(write_out_choices(_said(question), (question.answer,)) or ("",))[0] for question in questions]
    whole = [made.encode(text).ids for text in texts]
    asked = [len(made.encode(text[: text.rindex("Answer:") + 7]).ids) for text in texts]
    ids = torch.zeros(len(whole), max(map(len, whole)), dtype=torch.long)
    for row, tokens in enumerate(whole):
        ids[row, : len(tokens)] = torch.tensor(tokens)
    places = [(row, at) for row, tokens in enumerate(whole) for at in range(asked[row] - 1, len(tokens) - 1)]
    rows, at = (torch.tensor(column) for column in zip(*places, strict=True))
    return functional.cross_entropy(model.logits(model(ids)[rows, at]), ids[rows, at + 1])


def _said(question: Question) -> tuple[Mapping[str, Any], ...]:
    return ({"role": "user", "content": question.text},)


def _model_folder(folder: Path, recipe: Recipe) -> Path:
    """The trained model, as vLLM reads it."""
    model, _ = train(recipe, written)
    return write_folder(
        folder / recipe.name,
        tokenizer(TOPICS),
        dict(named_weights(model)),
        special=(ANSWER, END),
        template=TEMPLATE,
        heads=recipe.shape.heads,
        context=CONTEXT,
        epsilon=EPSILON,
        theta=THETA,
    )


async def _asked(root: str, name: str, questions: Sequence[Question], way: Mapping[str, Any]) -> list[Output]:
    """One model's answers, elicited in one way."""
    endpoint = Endpoint(
        name,
        model=name,
        base_url=f"{root}/v1",
        dialect="vllm",
        input_usd_per_1m=_PRICE,
        output_usd_per_1m=_PRICE,
        structured_choice=False,
        stream_usage=True,
        **way,
    )
    put = [{"query": question.text, "choices": question.choices} for question in questions]
    async with AsyncEnsemble([endpoint], policy="best-single") as pool:
        return list(map(_output, await pool.ask_many(put, concurrency=1, return_exceptions=True)))


def _output(answer: Answer | BaseException) -> Output:
    """Return an answer in the log's format; an unreadable one has no probabilities, so it is not compared."""
    reply = answer.replies[0] if isinstance(answer, Answer) else None
    if reply is None or reply.usage is None:
        return Output(None, None, None, 0, 0, None, None, str(answer))
    prompt, completion = reply.usage.prompt_tokens, reply.usage.completion_tokens
    cost = None if reply.cost is None else float(reply.cost)
    return Output(reply.choice, reply.probabilities, None, prompt, completion, cost, reply.latency_s, None)


def played(roster: Sequence[Recipe], questions: Sequence[Question]) -> dict[str, list[LoggedQuery]]:
    """The answers of newly trained models, by the way they were elicited."""
    outputs: dict[str, list[dict[str, Output]]] = {way: [{} for _ in questions] for way in WAYS}
    with tempfile.TemporaryDirectory() as name:
        for recipe in roster:
            model = _model_folder(Path(name), recipe)
            with vllm_serving(model, Path(name) / f"{recipe.name}.log") as root:
                for way, settings in WAYS.items():
                    found = asyncio.run(_asked(root, recipe.name, questions, settings))
                    for place, output in zip(outputs[way], found, strict=True):
                        place[recipe.name] = output
    return {
        way: [
            LoggedQuery(question.id, question.topic, _said(question), question.choices, question.label, given, 0)
            for question, given in zip(questions, every, strict=True)
        ]
        for way, every in outputs.items()
    }


def main() -> None:
    """Train, ask and print."""
    parser = parser_of(__doc__ or "")
    parser.add_argument("--questions", type=int, default=300)
    given = parser.parse_args()
    rosters = [recipes(seed) for seed in range(given.seeds)]
    if given.quick:
        given.questions, rosters = 5, [[replace(rosters[0][0], steps=20, alone=5, batch=8)]]
    runs = [played(roster, fresh(given.questions, 1000 + seed, TOPICS, set())) for seed, roster in enumerate(rosters)]
    every = {way: list(chain.from_iterable(run[way] for run in runs)) for way in WAYS}
    names = [recipe.name for recipe in rosters[0]]
    first, *others = WAYS
    rows: list[list[str]] = []
    for way in others:
        found = compared(every[first], every[way], names)
        rows += [] if rows else [[first, *_cells(found.first)]]
        low, high = _cells(found.low, "+"), _cells(found.high, "+")
        rows.append([way, *_cells(found.second)])
        rows.append(["minus the labels', 95 %", *(f"{a} to {b}" for a, b in zip(low, high, strict=True))])
    title = f"{len(names)} models on a real vLLM, {given.questions} questions, {len(rosters)} seeds"
    show(title, ["", *_MEASURES], rows)


def _cells(of: Calibration, sign: str = "") -> list[str]:
    measured = zip(astuple(of), _SCALES, _DIGITS, strict=True)
    return [f"{value * scale:{sign}.{digits}f}" for value, scale, digits in measured]


if __name__ == "__main__":
    main()
