"""Computes each choice's probability from the log-probabilities of tokens: of a label, or of each whole choice.

For whole choices, each is appended to the question as its answer, and its likelihood there counts (Brown et al. 2020,
arXiv 2005.14165, section 2.4; RL-Focal, arXiv 2502.04492). That needs no letters, no order of the choices and no reply
to parse, but a prompt for every choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from focalroute.endpoints.elicit.parse import DECORATION, ChoiceParser, NamedChoice
from focalroute.endpoints.wire.fields import Token

_MOST_ENDS = 4  # tokens: the end, and a blank or two before it


def drop_end_tokens(tokens: Sequence[Token], text: str) -> Sequence[Token]:
    """Drop tokens after a text that is not empty: some services (vLLM) also list the token that ended it.

    >>> [token.text for token in drop_end_tokens([Token("B", 0.0, {}), Token("<|im_end|>", 0.0, {})], "B")]
    ['B']
    """
    text = text.strip()
    if not text:
        return tokens
    for _ in range(_MOST_ENDS):
        if len(tokens) < 2 or not "".join(token.text for token in tokens[:-1]).strip().endswith(text):
            break
        tokens = tokens[:-1]
    return tokens


def label_probabilities(tokens: Sequence[Token], reader: ChoiceParser, choice: int) -> tuple[float, ...] | None:
    """Return the mass on each choice at the place where the reply names ``choice``, given the text before.

    Alternatives that differ only in decoration or case (" A", "(A", "**A", "a") add up. A label of several tokens gets
    the product along the sampled tokens. Mass on anything else, or beyond the alternatives that came back, is unknown:
    the sum is at most 1 and is never scaled up.

    Returns:
        Shape (K,), or None where the tokens do not spell the reply, or give the choices no mass.
    """
    text = "".join(token.text for token in tokens)
    found = reader.find(text)
    if found is None or found.choice != choice:
        return None
    probabilities = [0.0] * len(reader.choices)
    first, lead = _locate(tokens, found)
    _Walk(tokens, reader.labels, probabilities).at(first, "", 1.0, lead)
    if not found.label:
        probabilities[found.choice] += math.exp(_path(tokens, found))
    total = sum(probabilities)
    if total <= 0:
        return None
    return tuple(probability / max(total, 1.0) for probability in probabilities)  # above 1 by rounding only


def _locate(tokens: Sequence[Token], found: NamedChoice) -> tuple[int, str]:
    """Return the index of the token in which the answer begins, and that token's text before it."""
    at = 0
    for i, token in enumerate(tokens):
        if at + len(token.text) > found.start:
            return i, token.text[: found.start - at]
        at += len(token.text)
    return len(tokens) - 1, ""


def _path(tokens: Sequence[Token], found: NamedChoice) -> float:
    """Return the log-probability of the sampled tokens that spell the answer."""
    at, total = 0, 0.0
    for token in tokens:
        if at < found.end and at + len(token.text) > found.start:
            total += token.logprob
        at += len(token.text)
    return total


class _Walk:
    """Follows the sampled tokens through a label, adding the alternatives at each step to their labels' masses."""

    def __init__(self, tokens: Sequence[Token], labels: Sequence[str], probabilities: list[float]) -> None:
        self._tokens = tokens
        self._labels = [label.casefold() for label in labels]
        self._masses = probabilities

    def at(self, position: int, prefix: str, probability: float, lead: str = "") -> None:
        token = self._tokens[position]
        for text, logprob in {token.text: token.logprob, **token.top}.items():
            name, closed = _extended(prefix, text.removeprefix(lead))
            self._add(position, name, closed, probability * math.exp(logprob), sampled=text == token.text)

    def _add(self, position: int, name: str, closed: bool, probability: float, *, sampled: bool) -> None:
        longer = not closed and any(label != name and label.startswith(name) for label in self._labels)
        last = position + 1 >= len(self._tokens)
        if longer and name and sampled and not last:
            self.at(position + 1, name, probability)
        elif name in self._labels and (not longer or (sampled and last)):
            self._masses[self._labels.index(name)] += probability


def _extended(prefix: str, text: str) -> tuple[str, bool]:
    """Return the label so far with ``text`` appended, and whether it surely ends there."""
    if prefix and not text[:1].isalnum():
        return prefix, True
    core = text.strip(DECORATION)
    return (prefix + core).casefold(), not text.endswith(core)


def write_out_choices(messages: Sequence[Mapping[str, Any]], choices: Sequence[str]) -> tuple[str, ...] | None:
    """Return the question with each choice appended; None if its messages are not just text.

    >>> write_out_choices(({"role": "user", "content": "7 or 9, which is larger?"},), ("7", "9"))[1]
    '7 or 9, which is larger?\\n\\nAnswer: 9'
    """
    texts = [_text(message) for message in messages]
    if None in texts:
        return None
    question = "\n\n".join(text for text in texts if text)
    return tuple([f"{question}\n\nAnswer: {choice}" for choice in choices])


def _text(message: Mapping[str, Any]) -> str | None:
    content = message.get("content")
    if message.keys() - {"role", "content", "name"}:  # tool calls and their results
        return None
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else [{}]
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    return "".join(map(str, texts)) if None not in texts else None


def choice_probabilities(texts: Sequence[Sequence[Token]]) -> tuple[float, ...]:
    """Return the likelihood of each text, normalised over all, shape (K,); their common beginning cancels out."""
    columns = zip(*texts, strict=False)
    shared = sum(1 for _ in takewhile(lambda tokens: len({token.text for token in tokens}) == 1, columns))
    logs = [math.fsum(token.logprob for token in tokens[shared:]) for tokens in texts]
    most = max(logs)
    likelihoods = [math.exp(log - most) for log in logs]
    total = math.fsum(likelihoods)
    return tuple([likelihood / total for likelihood in likelihoods])
