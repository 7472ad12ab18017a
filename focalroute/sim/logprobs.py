"""The forms in which services write log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from focalroute.sim.replies import Token

Json = dict[str, Any]

_MISSING = -9999.0  # what vLLM writes for a token that was masked out
_FILLERS = (
    "The",
    "I",
    "**",
    "\n",
    "Answer",
    "Option",
    "#",
    "<",
    "It",
    "So",
    "We",
    "Based",
    "`",
    "-",
    "1",
    "Let",
    "?",
    "=",
    "[",
    "In",
)


def openai(tokens: Sequence[Token], top: int) -> Json:
    """OpenAI's ``content`` list, with the ``top`` likeliest alternatives of each token."""
    return {"content": [_entry(token, token.rivals[:top]) for token in tokens], "refusal": None}


def vllm(tokens: Sequence[Token], top: int) -> Json:
    """As OpenAI's; always ``top`` alternatives, those without any mass at -9999."""
    entries = []
    for token in tokens:
        entry = _entry(token, token.rivals[:top])
        known = {rival["token"] for rival in entry["top_logprobs"]}
        fillers = [filler for filler in _FILLERS if filler not in known][: top - len(known)]
        entry["top_logprobs"] += [{"token": f, "logprob": _MISSING, "bytes": list(f.encode())} for f in fillers]
        entries.append(entry)
    return {"content": entries}


def llamacpp(tokens: Sequence[Token], top: int) -> Json:
    """As OpenAI's, with token ids."""
    entries = [_entry(token, token.rivals[:top]) for token in tokens]
    for entry in entries:
        for item in (entry, *entry["top_logprobs"]):
            item["id"] = _token_id(item["token"])
    return {"content": entries}


def sampled_only(tokens: Sequence[Token], top: int) -> Json:
    """As OpenAI's, without alternatives (DeepInfra)."""
    return {"content": [_entry(token, ()) for token in tokens]}


def together(tokens: Sequence[Token], top: int) -> Json:
    """Together's parallel lists; alternatives as one mapping a token."""
    return {
        "tokens": [token.text for token in tokens],
        "token_ids": [_token_id(token.text) for token in tokens],
        "token_logprobs": [_log(token.p) for token in tokens],
        "top_logprobs": [{text: _log(p) for text, p in token.rivals[:top]} for token in tokens],
    }


def together_chunk(tokens: Sequence[Token], top: int) -> float:
    """In a stream Together gives one number a token."""
    return _log(tokens[0].p)


def _entry(token: Token, rivals: Sequence[tuple[str, float]]) -> Json:
    return {
        "token": token.text,
        "logprob": _log(token.p),
        "bytes": list(token.text.encode()),
        "top_logprobs": [{"token": text, "logprob": _log(p), "bytes": list(text.encode())} for text, p in rivals],
    }


def _log(p: float) -> float:
    return round(math.log(max(p, 1e-30)), 6)


def _token_id(token: str) -> int:
    return int.from_bytes(blake2b(token.encode(), digest_size=2).digest(), "big")
