"""Checks the arguments of ``ask`` and makes a `Query`."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from decimal import Decimal
from typing import Any, Literal, NewType, TypedDict, TypeVar, get_args

import numpy as np
from pydantic import BaseModel

from focalroute.answers import TYPES, AnswerKind, choice_text, members_of, normaliser
from focalroute.answers.structured import Structure, Wanted, structure_of
from focalroute.answers.tool_calls import ToolOffer
from focalroute.core.config import MOST_CHOICES, MOST_SAMPLES, check_headers, check_params, require_json
from focalroute.core.dollars import parse_usd
from focalroute.core.errors import ConfigError
from focalroute.core.json_values import as_object, is_number
from focalroute.core.records import Combine, Query
from focalroute.core.spelling import by_keyword

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

Prompt = str | Sequence[Mapping[str, Any] | BaseModel]
#: The kinds, and the caller's own normaliser, with which the value of an answer is a str.
TextKind = Literal["short", "yes-no", "date", "math", "text"] | Callable[[str], str | None]

#: Most tags of a query, and most characters of a tag.
MAX_TAGS = 64
MAX_TAG_LENGTH = 256
#: The most that a second may be worth, USD.
MOST_USD_PER_SECOND = 1000
#: The longest that an ask may take.
LONGEST_DEADLINE_S = 86_400
#: Parameters that count generated tokens or replies; they bound the cost of a call.
_COUNTS = ("max_tokens", "max_completion_tokens", "n")
_LARGEST_COUNT = 10_000_000

_MODES: tuple[str, ...] = get_args(Combine)


class ModelParams(TypedDict, total=False):
    """The parameters of OpenAI's chat completions, passed unchanged to every member; None: not given.

    Other parameters of a service go into ``params``.
    """

    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    max_completion_tokens: int | None
    seed: int | None
    stop: str | Sequence[str] | None
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    response_format: Mapping[str, Any] | None
    reasoning_effort: str | None
    verbosity: str | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[str, float] | None
    user: str | None
    prompt_cache_key: str | None
    extra_body: Mapping[str, Any] | None
    extra_headers: Mapping[str, str] | None


_MODEL_PARAMS = tuple(ModelParams.__annotations__)


class AskOptions(ModelParams, total=False):
    """The keyword options of `AsyncEnsemble.ask` besides the choices and the kind of answer."""

    messages: Sequence[Mapping[str, Any]] | None
    system: str | None
    samples: int | None
    combine: Combine
    usd_per_second: float | None
    task: str | None
    tags: Sequence[str]
    metadata: Mapping[str, Any] | None
    params: Mapping[str, Any] | None
    max_usd: Decimal | float | str | None
    deadline_s: float | None


class AskArguments(AskOptions, total=False):
    """All keyword arguments of `AsyncEnsemble.ask`."""

    choices: Iterable[Any] | None
    answer: AnswerKind | Wanted | None


class AskManyArguments(AskArguments, total=False):
    """The keyword options of `AsyncEnsemble.ask_many` besides ``return_exceptions``."""

    concurrency: int
    progress: bool


#: Another name of an argument -> its name here, or what to do.
INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(("prompt", "question", "input", "text", "content"), "query"),
    **dict.fromkeys(("options", "labels", "candidates", "choice"), "choices"),
    **dict.fromkeys(
        ("schema", "response_model", "output_type", "text_format", "json_schema", "kind", "type", "output_schema"),
        "answer",
    ),
    **dict.fromkeys(("timeout", "timeout_s", "deadline"), "deadline_s"),
    **dict.fromkeys(("budget", "max_cost", "max_price", "usd", "limit"), "max_usd"),
    **dict.fromkeys(("system_prompt", "instructions", "developer"), "system"),
    **dict.fromkeys(("extra_params", "kwargs"), "params"),
    **dict.fromkeys(
        ("policy", "store", "max_rounds", "judge", "cost_weight", "cache_ttl_s", "attempts", "explore", "synthesiser"),
        "it is a setting of the Ensemble, not of one ask",
    ),
    **dict.fromkeys(("num_retries", "max_retries", "retries"), "attempts is a setting of the Ensemble, not of one ask"),
    **dict.fromkeys(("caching", "cache"), "cache_ttl_s is a setting of the Ensemble, not of one ask"),
    **dict.fromkeys(("api_key", "base_url", "api_base", "headers"), "it is a setting of an Endpoint, not of one ask"),
    **dict.fromkeys(
        (
            "top_k",
            "min_p",
            "repetition_penalty",
            "logprobs",
            "top_logprobs",
            "service_tier",
            "modalities",
            "audio",
            "prediction",
            "web_search_options",
            "safety_identifier",
            "provider",
            "transforms",
            "plugins",
        ),
        'give it in params, such as params={"top_k": 5}',
    ),
    **dict.fromkeys(("history", "conversation"), "messages"),
    **dict.fromkeys(("context", "documents"), "write it into the question, or into messages"),
    **dict.fromkeys(
        ("image", "images", "files"),
        'give it in messages, as {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}',
    ),
    **dict.fromkeys(("max_calls", "rounds"), "max_rounds is a setting of the Ensemble, not of one ask"),
    **dict.fromkeys(
        ("model", "models", "endpoint", "endpoints", "members", "fallbacks", "route"),
        "the policy chooses the endpoints; leave it out",
    ),
    "stream_options": "leave it out; answers always have their usage",
    "stream": "call stream() instead of ask()",
    "n": "samples",
    "functions": "tools",
    **dict.fromkeys(("max_workers", "workers", "batch_size", "parallelism"), "ask_many() takes concurrency="),
}


def new_id() -> str:
    """Return a unique id that sorts by time: 12 hex digits of milliseconds, 20 random ones."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


def make_query(
    query: Prompt | None = None,
    *,
    choices: Iterable[Any] | None = None,
    answer: AnswerKind | Wanted | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    system: str | None = None,
    samples: int | None = None,
    combine: Combine = "choose",
    max_usd: Decimal | float | str | None = None,
    deadline_s: float | None = None,
    usd_per_second: float | None = None,
    task: str | None = None,
    tags: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int | None = None,
    max_completion_tokens: int | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] | None = None,
    parallel_tool_calls: bool | None = None,
    response_format: Mapping[str, Any] | None = None,
    reasoning_effort: str | None = None,
    verbosity: str | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    logit_bias: Mapping[str, float] | None = None,
    user: str | None = None,
    prompt_cache_key: str | None = None,
    extra_body: Mapping[str, Any] | None = None,
    extra_headers: Mapping[str, str] | None = None,
) -> Query:
    """Check the arguments of an ask, and make its `Query`.

    Raises:
        ConfigError: something is wrong with an argument; the message names it.
    """
    given = locals()
    params = _merged(params, {name: given[name] for name in _MODEL_PARAMS if given[name] is not None})
    if choices is not None and answer is not None:
        raise ConfigError(
            "choices, answer: give choices for a closed question, or answer for a free-form one, not both"
        )
    if answer is not None:
        choices, answer = _wanted(answer)
    _check_options(samples, combine, usd_per_second, deadline_s, task)
    if choices is not None and params.get("tools") and params.get("tool_choice") != "none":
        raise ConfigError('tools: a closed question cannot call any; leave them out, or give tool_choice="none"')
    if (samples or 1) > 1 and (isinstance(answer, Structure) or "tools" in params):
        raise ConfigError("samples: leave it out; structured answers and tool calls need one reply from each member")
    if (query is None) == (messages is None):
        raise ConfigError("query: give either the question as text or messages=")
    asked = _messages(query if messages is None else messages, system)
    if params:
        _check_tools(params.get("tools") or ())
        params = _copied("params", params)
        _check_counts(params)
        _check_tool_choice(params)
    texts, values = (None, None) if choices is None else _choices(choices)
    made = Query(
        id=new_id(),
        messages=asked,
        choices=texts,
        values=values,
        answer=answer,
        samples=samples,
        task=task,
        tags=checked_tags(tags),
        params=params,
        metadata=metadata,
        combine=combine,
        max_usd=None if max_usd is None else parse_usd(max_usd, "max_usd"),
        deadline_s=deadline_s,
        usd_per_second=usd_per_second,
    )
    if combine == "synthesise" and (not made.open or "tools" in made.params):
        raise ConfigError(
            'combine: only open text is synthesised; leave out choices, tools, and answer (or give "text")'
        )
    return made


#: Every argument of an ask.
ARGUMENTS = tuple(inspect.signature(make_query).parameters)


def takes_arguments(method: F) -> F:
    """Show all options of an ask in a method's signature, and advise on calls that do not fit it."""
    signature = inspect.signature(method)
    *own, _ = signature.parameters.values()
    asked = inspect.signature(make_query).parameters.values()
    options = [one for one in asked if one.kind is inspect.Parameter.KEYWORD_ONLY]
    method.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    question = own[1].name  # `ask_many` has several
    renamed = {name: question if meant == "query" else meant for name, meant in INSTEAD.items()}
    advice = 'give all but the question by keyword, such as choices=["yes", "no"]'
    return by_keyword(advice, {**renamed, "query": question})(method)


def _check_options(
    samples: int | None, combine: str, usd_per_second: float | None, deadline_s: float | None, task: str | None
) -> None:
    """Check the type and range of single options."""
    if samples is not None and (type(samples) is not int or not 1 <= samples <= MOST_SAMPLES):
        raise ConfigError(f"samples: give a whole number from 1 to {MOST_SAMPLES}")
    if combine not in _MODES:
        raise ConfigError(f"combine: unknown mode {combine!r}; use one of {', '.join(_MODES)}")
    if usd_per_second is not None and not (is_number(usd_per_second) and 0 <= usd_per_second <= MOST_USD_PER_SECOND):
        raise ConfigError(f"usd_per_second: give USD from 0 to {MOST_USD_PER_SECOND:,}, such as 0.001")
    if deadline_s is not None and not (is_number(deadline_s) and 0 < deadline_s <= LONGEST_DEADLINE_S):
        raise ConfigError(f"deadline_s: give seconds, more than 0 and at most {LONGEST_DEADLINE_S:,}")
    if task is not None and not isinstance(task, str):
        raise ConfigError("task: give a topic's name as text")


def _wanted(answer: Any) -> tuple[Iterable[object] | None, Any]:
    """Return (choices, None) for an Enum or a Literal, else (None, the kind of answer or its `Structure`)."""
    while isinstance(answer, NewType):  # which is callable, and would return the text unchanged
        answer = answer.__supertype__
    members = members_of(answer)
    if members is not None:
        return members, None
    if isinstance(answer, type):
        answer = "text" if answer is str else TYPES.get(answer, answer)
    structure = structure_of(answer)
    if structure is None:
        normaliser(answer)
    return None, structure or answer


def _merged(params: Mapping[str, Any] | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all parameters for the members: ``params``, and those given as arguments.

    Raises:
        ConfigError: one of them is given twice, or set by focalroute.
    """
    if params is None and not given:
        return {}
    if params is not None and not isinstance(params, Mapping):
        raise ConfigError('params: give a mapping such as {"temperature": 0.2}')
    merged = {**(params or {}), **given}
    if isinstance(merged.get("response_format"), type):
        raise ConfigError("response_format: to have a model filled in, give answer=Model instead")
    doubled = sorted(given.keys() & set(params or ()))
    if doubled:
        raise ConfigError(f"{doubled[0]}: is also in params; give it once")
    try:
        merged = check_params(merged)
        if merged.get("extra_headers") is not None:
            merged["extra_headers"] = check_headers(merged["extra_headers"], shared=True)
    except ValueError as error:
        raise ConfigError(f"params: {error}") from None
    return merged


def _messages(prompt: object, system: str | None) -> tuple[Mapping[str, Any], ...]:
    messages: tuple[Any, ...]
    if isinstance(prompt, str):
        if not prompt.strip():
            raise ConfigError("query: is empty; give the question as text or as OpenAI messages")
        messages = ({"role": "user", "content": prompt},)
    else:
        messages = tuple(map(_as_mapping, prompt)) if isinstance(prompt, Sequence) else ()
        if messages and all(isinstance(one, str) for one in messages):
            raise ConfigError("query: is a list of questions; give them to ask_many()")
        if not messages or not all(isinstance(one, Mapping) for one in messages):
            raise ConfigError('query: give a string, or a list of messages such as {"role": "user", "content": "..."}')
        for number, message in enumerate(messages, 1):
            if not _is_message(message):
                wanted = (
                    "give a role, and content that is text or a list of parts, not empty; write a tool's result as JSON"
                )
                raise ConfigError(f"query: message {number}: {wanted}")
        messages = tuple(_copied("query", [dict(message) for message in messages]))
    if system is None:
        return messages
    if not isinstance(system, str) or not system.strip():
        raise ConfigError("system: give the instruction as text, or leave it out")
    if messages[0]["role"] in ("system", "developer"):
        raise ConfigError("system: the messages already begin with one; give it once")
    return ({"role": "system", "content": system}, *messages)


def _copied(what: str, value: T) -> T:
    """Check that a value can be written as JSON, and copy it, because the caller may edit it during the ask.

    Raises:
        ConfigError: it cannot, or it is nested too deeply.
    """
    require_json(what, value)
    try:
        return deepcopy(value)
    except RecursionError:
        raise ConfigError(f"{what}: is nested too deep; give plain values only") from None


def _check_counts(params: Mapping[str, Any]) -> None:
    for name in _COUNTS:
        count = params.get(name, 1)
        if type(count) is not int or not 1 <= count <= _LARGEST_COUNT:
            raise ConfigError(f"params: {name}: give a whole number from 1 to {_LARGEST_COUNT}")


def _check_tools(tools: object) -> None:
    """Check that calls of these tools can be made and read; the service checks tools that it runs itself."""
    form = '{"type": "function", "function": {"name": ..., "parameters": ...}}'
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
        raise ConfigError(f"tools: give a list of {form}")
    for number, tool in enumerate(tools, 1):
        if tool.get("type") == "custom":
            raise ConfigError(f"tools: number {number}: only calls of functions are read; give a function instead")
        if tool.get("type", "function") != "function":
            continue
        function = tool.get("function")
        if not isinstance(function, Mapping):
            function = {}
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise ConfigError(f"tools: number {number}: function.name: give the function's name, as in {form}")
        if not isinstance(function.get("parameters", {}), Mapping):
            raise ConfigError(f"tools: number {number}: function.parameters: give a JSON schema, or leave it out")


def _check_tool_choice(params: Mapping[str, Any]) -> None:
    """Check that a reply can satisfy the tool choice; else each member would be paid for an unusable reply."""
    if params.get("tool_choice") is None:
        return
    offer = ToolOffer.of(params)
    if offer.required and not params.get("tools"):
        raise ConfigError("tool_choice: requires a call, but there are no tools; give tools, or leave it out")
    name = as_object(as_object(params["tool_choice"]).get("function")).get("name")
    if isinstance(name, str) and offer.names is not None and name not in offer.names:
        raise ConfigError("tool_choice: names a function that is not among the tools; name one that is")


def _as_mapping(message: object) -> object:
    """Return a message of the openai library as plain JSON values, without null fields, which some services refuse."""
    if not isinstance(message, BaseModel):
        return message
    plain = message.model_dump(mode="json", exclude_unset=True, exclude={"parsed"})
    return {name: value for name, value in plain.items() if value is not None or name == "content"}


def _is_message(message: Mapping[str, Any]) -> bool:
    role, content = message.get("role"), message.get("content")
    if role == "user" and not content:
        return False
    return isinstance(role, str) and isinstance(content, str | Sequence | None)


def checked_tags(tags: Sequence[str], most: int = MAX_TAGS) -> tuple[str, ...]:
    """Return the tags as a tuple; ConfigError if there are more than ``most``, or one is not a string or too long."""
    if isinstance(tags, tuple) and not tags:
        return ()
    listed = tuple(tags) if isinstance(tags, Iterable) and not isinstance(tags, str) else None
    if listed is None or not all(isinstance(tag, str) for tag in listed):
        raise ConfigError("tags: give a list of strings")
    if len(listed) > most or any(len(tag) > MAX_TAG_LENGTH for tag in listed):
        raise ConfigError(f"tags: give at most {most}, each of at most {MAX_TAG_LENGTH} characters")
    if any("\0" in tag for tag in listed):
        raise ConfigError("tags: hold a NUL character, at which a SQLite store would cut them; remove it")
    try:
        "".join(listed).encode()
    except UnicodeEncodeError:
        raise ConfigError("tags: hold a lone surrogate, which is not valid text; decode them properly") from None
    return listed


def _choices(offered: Iterable[object]) -> tuple[tuple[str, ...], tuple[object, ...]]:
    """Return the choices as texts, and their values."""
    several = isinstance(offered, Iterable) and not isinstance(offered, str | bytes | Mapping)
    if not several or getattr(offered, "ndim", 1) != 1:  # which arrays and tables have
        raise ConfigError(f'choices: give a list such as ["Jupiter", "Saturn"], got {type(offered).__name__}')
    values = tuple([one.item() if isinstance(one, np.generic) else one for one in offered])
    choices = tuple(map(choice_text, values))
    if not all(map(str.strip, choices)):
        raise ConfigError("choices: every choice must be a non-empty string")
    if len(choices) < 2:
        raise ConfigError(f"choices: a closed question needs at least 2 choices, got {len(choices)}")
    if len(choices) > MOST_CHOICES:
        raise ConfigError(f"choices: a closed question has at most {MOST_CHOICES} choices, got {len(choices)}")
    first: dict[str, int] = {}
    for number, choice in enumerate(map(str.strip, choices), 1):
        if choice in first:
            raise ConfigError(f"choices: must be distinct; number {first[choice]} is repeated")
        first[choice] = number
    return choices, values
