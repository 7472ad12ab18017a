"""What the caller passes to ``ask``, checked at the door and made a `Query`."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, cast, get_args

from focalroute.answers import AnswerKind, normaliser
from focalroute.answers.structured import Wanted, structure_of
from focalroute.core.config import MOST_SAMPLES, RESERVED_PARAMS
from focalroute.core.errors import ConfigError
from focalroute.core.records import Combine, Query

Prompt = str | Sequence[Mapping[str, Any]]

#: The most a query may have of each.
MAX_CHOICES = 1000
MAX_TAGS = 64
MAX_TAG_LENGTH = 256
#: Parameters that count generated tokens or replies; a bound on the cost of a call is made of them.
_COUNTS = ("max_tokens", "max_completion_tokens", "n")
_LARGEST_COUNT = 10_000_000

_MODES: tuple[str, ...] = get_args(Combine)


class QueryOptions(TypedDict, total=False):
    """What `make_query` takes besides the prompt, for whoever passes it on."""

    choices: Sequence[str] | None
    answer: AnswerKind | Wanted | None
    samples: int | None
    task: str | None
    tags: Sequence[str]
    metadata: Mapping[str, Any] | None
    params: Mapping[str, Any] | None
    combine: Combine


def new_id() -> str:
    """A unique id that sorts by time: 12 hex digits of milliseconds, 20 of randomness."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def make_query(
    prompt: Prompt,
    *,
    choices: Sequence[str] | None = None,
    answer: AnswerKind | Wanted | None = None,
    samples: int | None = None,
    task: str | None = None,
    tags: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    combine: Combine = "choose",
) -> Query:
    """Check the arguments of an ask.

    Raises:
        ConfigError: something is wrong with an argument; the message names it.
    """
    if choices is not None and answer is not None:
        raise ConfigError("choices, answer: a closed question has choices, a free-form one a kind; give one of them")
    structure = structure_of(answer)
    if answer is not None and structure is None:
        normaliser(cast("AnswerKind", answer))
    if samples is not None and (type(samples) is not int or not 1 <= samples <= MOST_SAMPLES):
        raise ConfigError(f"samples: give a whole number from 1 to {MOST_SAMPLES}")
    if (samples or 1) > 1 and (structure is not None or "tools" in (params or ())):
        raise ConfigError("samples: a structured answer, or one that may call tools, takes one reply of each member")
    if combine not in _MODES:
        raise ConfigError(f"combine: unknown mode {combine!r}; use one of {', '.join(_MODES)}")
    if params is not None and not isinstance(params, Mapping):
        raise ConfigError('params: give a mapping such as {"temperature": 0.2}')
    reserved = RESERVED_PARAMS & set(params or ())
    if reserved:
        raise ConfigError(f"params: {min(reserved)}: is set by focalroute; remove it")
    messages = _messages(prompt)
    if not isinstance(prompt, str):
        _require_json("query", [dict(message) for message in messages])
    if params:
        _require_json("params", dict(params))
        _check_counts(params)
    query = Query(
        id=new_id(),
        messages=messages,
        choices=None if choices is None else _choices(choices),
        answer=structure or answer,
        samples=samples,
        task=task,
        tags=_tags(tags),
        params=dict(params or {}),
        metadata=metadata,
        combine=combine,
    )
    if combine == "synthesise" and (not query.open or "tools" in query.params):
        raise ConfigError(
            'combine: only open text is synthesised; leave out choices, tools, and answer (or give "text")'
        )
    return query


def _messages(prompt: Prompt) -> tuple[Mapping[str, Any], ...]:
    if isinstance(prompt, str):
        if not prompt.strip():
            raise ConfigError("query: is empty; give the question as text or as OpenAI messages")
        return ({"role": "user", "content": prompt},)
    messages: tuple[Any, ...] = tuple(prompt) if isinstance(prompt, Sequence) else ()
    if not messages or not all(map(_is_message, messages)):
        raise ConfigError('query: give a string, or a list of messages such as {"role": "user", "content": "..."}')
    return messages


def _require_json(what: str, value: object) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what}: cannot be sent as JSON ({type(error).__name__}); give plain values only") from None


def _check_counts(params: Mapping[str, Any]) -> None:
    for name in _COUNTS:
        count = params.get(name, 1)
        if type(count) is not int or not 1 <= count <= _LARGEST_COUNT:
            raise ConfigError(f"params: {name}: give a whole number from 1 to {_LARGEST_COUNT}")


def _is_message(message: object) -> bool:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        return False
    if message["role"] == "user" and not message.get("content"):
        return False
    return isinstance(message.get("content"), str | Sequence | None)


def _tags(tags: Sequence[str]) -> tuple[str, ...]:
    listed = tuple(tags) if isinstance(tags, Iterable) and not isinstance(tags, str) else None
    if listed is None or not all(isinstance(tag, str) for tag in listed):
        raise ConfigError("tags: give a list of strings")
    if len(listed) > MAX_TAGS or any(len(tag) > MAX_TAG_LENGTH for tag in listed):
        raise ConfigError(f"tags: give at most {MAX_TAGS}, each of at most {MAX_TAG_LENGTH} characters")
    try:
        "".join(listed).encode()
    except UnicodeEncodeError:
        raise ConfigError("tags: hold a lone surrogate, which no text has; decode them properly") from None
    return listed


def _choices(choices: Sequence[str]) -> tuple[str, ...]:
    if isinstance(choices, str) or not isinstance(choices, Iterable):
        raise ConfigError("choices: give a list of strings")
    choices = tuple(choices)
    if not all(isinstance(choice, str) and choice.strip() for choice in choices):
        raise ConfigError("choices: every choice must be a non-empty string")
    if len(choices) < 2:
        raise ConfigError(f"choices: a closed question needs at least 2 choices, got {len(choices)}")
    if len(choices) > MAX_CHOICES:
        raise ConfigError(f"choices: a closed question has at most {MAX_CHOICES} choices, got {len(choices)}")
    first: dict[str, int] = {}
    for number, choice in enumerate(map(str.strip, choices), 1):
        if choice in first:
            raise ConfigError(f"choices: must be distinct; number {first[choice]} is there more than once")
        first[choice] = number
    return choices
