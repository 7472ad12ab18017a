"""Questions as a model gets them: the exact prompt that focalroute sends, as tokens of an own vocabulary."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from focalroute.endpoints.capabilities import NONE
from focalroute.endpoints.elicit import plan
from focalroute.serving.query import make_query
from focalroute.sim import Question, generate

__all__ = ["ANSWER", "END", "TEMPLATE", "Tokens", "letters", "merges", "prompt", "tokenizer", "tokens"]

ANSWER, END = 0, 1
_SPECIAL = ("<|answer|>", "<|end|>")

#: One question and one answer: what was said is followed by the token after which the answer stands.
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}<|answer|>"

_VOCABULARY = 1024


class Tokens(NamedTuple):
    """A question to learn from.

    Attributes:
        ids: the prompt, which ends with `ANSWER`.
        letter: the token of the right answer.
        asked: where the question has ended, before its choices.
        idea: the token with which the right answer's text begins.
        ends: of each choice, where its line ends.
        label: which of them is right.
    """

    ids: list[int]
    letter: int
    asked: int
    idea: int
    ends: list[int]
    label: int


def prompt(question: Question) -> str:
    """Return the prompt that focalroute sends."""
    query = make_query(question.text, choices=question.choices)
    return str(plan(query, NONE).request.messages[0]["content"])


@functools.cache
def tokenizer(topics: Sequence[str]) -> Any:
    """A byte-level BPE vocabulary as GPT-2's, learned from questions without their digits: those stay single tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        show_progress=False,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator((re.sub(r"\d", "", text) for text in _texts(topics)), trainer)
    return made


def _texts(topics: Sequence[str]) -> Iterator[str]:
    rng = Random(0)
    for topic in topics:
        for _ in range(2000):
            yield prompt(generate(topic, rng))


def merges(made: Any) -> list[str]:
    """The merges of a tokenizer, in order, as GGUF has them."""
    return [" ".join(merge) for merge in json.loads(made.to_str())["model"]["merges"]]


def letters(made: Any) -> list[int]:
    """The tokens of the letters A to H."""
    return [made.token_to_id(letter) for letter in "ABCDEFGH"]


def tokens(made: Any, question: Question) -> Tokens:
    """A question as tokens. Every line of its choices ends with one line feed, after the two that end the question."""
    ids = [*made.encode(prompt(question)).ids, ANSWER]
    feed, blank = made.token_to_id("Ċ"), made.token_to_id("Ġ")
    feeds = [i for i, token in enumerate(ids) if token == feed]
    idea = next(token for token in made.encode(f" {question.answer}").ids if token != blank)
    ends = feeds[2 : 2 + len(question.choices)]
    return Tokens(ids, letters(made)[question.label], feeds[0], idea, ends, question.label)
