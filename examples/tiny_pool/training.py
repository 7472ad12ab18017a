"""Trains the models of a recipe, once; their right and wrong answers are learned, not prescribed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from examples.tiny_pool.gguf_file import write_gguf
from examples.tiny_pool.network import Llama
from examples.tiny_pool.recipe import TOPICS, Recipe, cached
from examples.tiny_pool.wording import END, Tokens, tokenizer, tokens
from focalroute.sim import Question, generate

__all__ = ["Beside", "ready", "right", "train"]

Beside = Callable[[Llama, Sequence[Question]], Any]

_WARM_UP = 50  # steps until the full rate
_COOL_DOWN = 0.2  # of all steps, at the end: from the full rate to none
_LATER = 2  # blocks at the end: to compare the answer with the choices, and to find the letter of the one that fits
_VALIDATION = 200  # questions of each topic
_REPORT_EVERY = 100  # steps, once choices are read


class _Batch(NamedTuple):
    """Questions as tensors, each with the right letter.

    Attributes:
        ids: (B, L), padded on the right.
        asked: (B,) where the question has ended, before its choices. ``idea``: (B,) how its answer's text begins.
        last: (B,) where the prompt ends. ``letter``: (B,) the token that should follow.
        rows, ends: (M,) where the lines of all choices end. ``true``: (M,) 1 for the right ones, else 0.
    """

    ids: Any
    asked: Any
    idea: Any
    last: Any
    letter: Any
    rows: Any
    ends: Any
    true: Any


def ready(recipe: Recipe) -> Path:
    """Return the model file; the model is trained now unless it is cached."""
    path = cached(recipe)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        model, validation = train(recipe)
        path.with_suffix(".json").write_text(json.dumps({"parameters": model.size, "validation": validation}))
        write_gguf(path, recipe.name, model, tokenizer(TOPICS))
    return path


def train(recipe: Recipe, beside: Beside | None = None) -> tuple[Llama, dict[str, float]]:
    """Train a model; also return its accuracy on the validation questions of each topic.

    Args:
        beside: a loss to add in every step, computed from the model and the questions of the step.
    """
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    made, rng = tokenizer(TOPICS), Random(f"train {recipe.seed}")
    model = Llama(recipe.shape, made.get_vocab_size())
    judge = nn.Linear(recipe.shape.width, 1)  # says of each choice whether it is right; not part of the model
    weights = [*model.parameters(), *judge.parameters()]
    optimisers = _optimisers(model, judge, recipe.rate)
    topics, shares = list(recipe.mix), list(recipe.mix.values())
    validation: dict[str, float] = {}
    for step in range(recipe.steps):
        share = min(step / _WARM_UP, (1 - step / recipe.steps) / _COOL_DOWN, 1)
        alone = step < recipe.alone
        drawn = rng.choices(topics, shares, k=2 * recipe.batch if alone else recipe.batch)
        questions = [generate(topic, rng) for topic in drawn]
        batch = _batch([tokens(made, question) for question in questions])
        loss = _first_loss(model, batch) if alone else _loss(model, judge, batch)
        if beside is not None:
            loss = loss + beside(model, questions)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        for optimiser in optimisers:
            optimiser.param_groups[0]["lr"] = share * optimiser.defaults["lr"]
            optimiser.step()
            optimiser.zero_grad()
        if step + 1 == recipe.steps or (step >= recipe.alone and (step + 1) % _REPORT_EVERY == 0):
            validation = right(model)
            shown = ", ".join(f"{topic} {share:.2f}" for topic, share in validation.items())
            print(f"{recipe.name}: {step + 1} steps, {time.process_time():.0f} s of CPU: {shown}", flush=True)
    return model.eval(), validation


def _optimisers(model: Llama, judge: Any, rate: float) -> tuple[Any, Any]:
    """Muon (Jordan et al. 2024) for the matrices of the blocks, AdamW for the rest. Torch has it from 2.9 on."""
    matrices = [weights for weights in model.blocks.parameters() if weights.dim() > 1]
    chosen = set(matrices)
    rest = [weights for weights in (*model.parameters(), *judge.parameters()) if weights not in chosen]
    return (
        torch.optim.Muon(matrices, lr=7 * rate, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(rest, rate, betas=(0.9, 0.98), weight_decay=0.01),
    )


def right(model: Llama) -> dict[str, float]:
    """Return the model's accuracy on the validation questions, by topic; these are drawn separately from all others."""
    made = tokenizer(TOPICS)
    shares = {}
    model.eval()
    for topic in TOPICS:
        rng = Random(f"validation {topic}")
        batch = _batch([tokens(made, generate(topic, rng)) for _ in range(_VALIDATION)])
        with torch.no_grad():
            guess = model.logits(model(batch.ids)[torch.arange(_VALIDATION), batch.last]).argmax(-1)
        shares[topic] = float((guess == batch.letter).float().mean())
    model.train()
    return shares


def _first_loss(model: Llama, batch: _Batch) -> Any:
    """Return the loss of the question alone; the choices, most of the text, are not read."""
    return _guessed(model, model.states(batch.ids[:, : int(batch.asked.max()) + 1], _early(model))[-1], batch)


def _loss(model: Llama, judge: Any, batch: _Batch) -> Any:
    """Return the cross entropy of the letter and of the end after it.

    Two further losses are more informative than the letter: how the answer begins, predicted where the question
    ends, before any choice is read; and for each choice, whether it is right.
    """
    states, each = model.states(batch.ids), torch.arange(len(batch.last))
    hidden = states[-1]
    answered = functional.cross_entropy(model.logits(hidden[each, batch.last]), batch.letter)
    ended = functional.cross_entropy(model.logits(hidden[each, batch.last + 1]), torch.full_like(batch.letter, END))
    guessed = _guessed(model, states[_early(model) - 1], batch)
    compared = states[-2:][0][batch.rows, batch.ends]
    judged = functional.binary_cross_entropy_with_logits(judge(compared).squeeze(-1), batch.true)
    return answered + 0.1 * ended + guessed + judged


def _guessed(model: Llama, hidden: Any, batch: _Batch) -> Any:
    """Return the cross entropy of the answer's first token, predicted where the question ends."""
    return functional.cross_entropy(model.logits(hidden[torch.arange(len(batch.asked)), batch.asked]), batch.idea)


def _early(model: Llama) -> int:
    """The answer is to be known after this many blocks: choices can read only what stands before their own block."""
    return max(len(model.blocks) - _LATER, 1)


def _batch(drawn: Sequence[Tokens]) -> _Batch:
    ids = torch.zeros(len(drawn), 1 + max(len(question.ids) for question in drawn), dtype=torch.long)
    for row, question in enumerate(drawn):
        ids[row, : len(question.ids) + 1] = torch.tensor([*question.ids, question.letter])
    choices = [(row, end, i == q.label) for row, q in enumerate(drawn) for i, end in enumerate(q.ends)]
    rows, ends, true = (torch.tensor(column) for column in zip(*choices, strict=True))
    return _Batch(
        ids,
        torch.tensor([question.asked for question in drawn]),
        torch.tensor([question.idea for question in drawn]),
        torch.tensor([len(question.ids) - 1 for question in drawn]),
        torch.tensor([question.letter for question in drawn]),
        rows,
        ends,
        true.float(),
    )
