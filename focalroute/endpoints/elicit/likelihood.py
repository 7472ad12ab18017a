"""The likelihood of each choice as a whole: how leaderboards, and the paper, have a model answer a closed question.

The choices are not shown. Each is written behind the question as its answer, and what counts is how likely the model
finds it there (Brown et al. 2020, arXiv 2005.14165, section 2.4; RL-Focal, arXiv 2502.04492): no letters, no order of
the choices, no reply to be read, but a prompt for every choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from focalroute.endpoints.wire import Token


def written_out(messages: Sequence[Mapping[str, Any]], choices: Sequence[str]) -> tuple[str, ...] | None:
    """The question with each choice behind it; None where there is more to it than text.

    >>> written_out(({"role": "user", "content": "7 or 9, which is larger?"},), ("7", "9"))[1]
    '7 or 9, which is larger?\\n\\nAnswer: 9'
    """
    said = [_text(message) for message in messages]
    if None in said:
        return None
    question = "\n\n".join(text for text in said if text)
    return tuple([f"{question}\n\nAnswer: {choice}" for choice in choices])


def _text(message: Mapping[str, Any]) -> str | None:
    content = message.get("content")
    if message.keys() - {"role", "content", "name"}:  # calls of tools, and what they gave
        return None
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else [{}]
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    return "".join(map(str, texts)) if None not in texts else None


def choice_masses(texts: Sequence[Sequence[Token]]) -> tuple[float, ...]:
    """The likelihood of each text, normalised over all of them, shape (K,); what they begin with alike cancels out."""
    columns = zip(*texts, strict=False)
    shared = sum(1 for _ in takewhile(lambda tokens: len({token.text for token in tokens}) == 1, columns))
    logs = [math.fsum(token.logprob for token in tokens[shared:]) for tokens in texts]
    most = max(logs)
    likelihoods = [math.exp(log - most) for log in logs]
    total = math.fsum(likelihoods)
    return tuple([likelihood / total for likelihood in likelihoods])
