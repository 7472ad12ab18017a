"""Turns a query into a request to one endpoint (`plan`), and reads the answer from the reply (`Plan.read`).

A closed question lists its choices as lettered lines and asks for the letter alone, unless the endpoint is asked for
the likelihood of each whole choice (see `focalroute.endpoints.elicit.closed`). The endpoint's capabilities decide how
probabilities are elicited, best first:

1. log-probabilities with alternatives: the probability of every label at the place of the answer;
2. several samples: the share of each choice;
3. the sampled token's log-probability alone: the probability of the given answer, the rest unknown;
4. one reply, parsed: a vote, no probabilities.

Samples come before (3) because they also cover the other choices. A model that thinks before it answers would bill its
thinking with each sample, so it is asked for samples only if the query says so. Structured answers are constrained to
their schema where possible, and always checked. All other free-form questions are passed on unchanged. If several
samples are wanted, one request draws them from an endpoint with that capability, and the share of each answer is
counted (Wang et al. 2023, self-consistency, arXiv 2203.11171).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from focalroute.answers import AnswerKind, NormaliserFailed, TypedAnswer, normal_form
from focalroute.answers.final import find_final
from focalroute.answers.structured import Structure
from focalroute.answers.tool_calls import LONGEST_CALLS, MOST_CALLS, ToolOffer, parse_calls
from focalroute.core.errors import CallFailed
from focalroute.core.records import WITHHELD, Failure, Method, Query, Usage
from focalroute.endpoints.capabilities import Capabilities
from focalroute.endpoints.elicit.closed import (
    DECORATION,
    ChoiceParser,
    NamedChoice,
    choice_parser,
    choice_probabilities,
    drop_end_tokens,
    label_probabilities,
    write_out_choices,
)
from focalroute.endpoints.wire import Completion, CompletionChoice, Request

#: Enough for a letter and the sentence that some models put around it; thinking has room of its own
#: (`focalroute.endpoints.quirks`).
MAX_TOKENS = 32
#: Of free-form samples, which must differ and still be good (the paper on self-consistency uses 0.5 to 0.7).
TEMPERATURE = 0.7

_NO_ANSWER = "the reply holds no answer of the kind asked for"
_NOT_VALID = "the reply is not JSON that is valid against the schema"
_EMPTY = "the reply is empty"
_ALL_THOUGHT = "the reply holds thinking alone"
#: Some reasoning parsers, such as vLLM's deepseek_r1, take all text of a model that does not think for thinking.
_HINTS = {
    _EMPTY: "ask another model (or without stop, if it is set): this one wrote nothing",
    _ALL_THOUGHT: "check the service's reasoning parser, or ask another model: this one's text is marked as thinking",
}
_CUT = ("length", *WITHHELD)
_FIRST_WORD = re.compile(r"\S+\s?")
_MORE = "555"  # appended to an unfinished answer it changes its normal form: 4, "4," (of 4,000), "4.", a year, a name
_MOST_REPAIRED = 20_000  # characters of an invalid reply that is shown to its model again


@dataclass  # a frozen one takes five times as long to make
class ParsedReply:
    """The answer read from a reply; the fields are those of `Reply`.

    Attributes:
        text: the reply's text; of several samples, that of the first one with the answer.
        choice: index of the most probable choice; None for a free-form question.
        probabilities: of each choice, shape (K,); they sum to at most 1, the rest is unknown. None: a vote without.
        method: how they were elicited.
        tool_calls: the tools it calls, in OpenAI's format; they are the answer to a free-form question.
        shares: of several samples of a free-form answer, see `Reply`; None: there was one sample.
        samples: the number of samples behind ``shares``.
        form: the normal form of a free-form answer in ``text``.
        reasoning: the reasoning before ``text``; None: unknown.
        reasoning_details: see `Reply`.
    """

    text: str
    choice: int | None
    probabilities: tuple[float, ...] | None
    method: Method
    finish_reason: str | None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    shares: tuple[tuple[str, float], ...] | None = None
    samples: int = 1
    form: str | None = None
    reasoning: str | None = None
    reasoning_details: tuple[Mapping[str, Any], ...] = ()
    model: str | None = None
    response_id: str | None = None


class NotValid(CallFailed):
    """A structured reply that is not valid against its schema.

    Attributes:
        repair: the plan that asks for it again; None: that was done already, or the reply was cut off.
    """

    def __init__(self, failure: Failure, usage: Usage | None, repair: Plan | None) -> None:
        super().__init__(failure, usage)
        self.repair = repair


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Plan:
    """One request, and how to read its reply.

    Attributes:
        method: how the request elicits the answer.
        choices: those of the query; None for a free-form question.
        kind: the kind of a free-form answer.
        fallback: the plan to use if the service refuses the schema or cannot score texts; None: there is none.
        repairs: whether the request asks again for a structured reply that was not valid.
        logprobs_optional: whether the reply may lack log-probabilities.
    """

    request: Request
    method: Method
    choices: tuple[str, ...] | None
    kind: AnswerKind | None = None
    fallback: Plan | None = None
    repairs: bool = False
    logprobs_optional: bool = False

    def read(self, completion: Completion, params: Mapping[str, Any] | None = None) -> ParsedReply:
        """Read the answer from a reply.

        Args:
            params: the endpoint's own parameters, which were sent with the request.

        Raises:
            CallFailed: no answer can be read from it ("unusable"), or the requested log-probabilities are missing.
            ConfigError: the caller's own normaliser returned something other than a string or None.
        """
        parsed = self._read(completion, self.request.params_over(params or {}))
        reasoning = next((sample.reasoning for sample in completion.choices if sample.text == parsed.text), "")
        parsed.reasoning = reasoning or None
        parsed.model, parsed.response_id = completion.model, completion.id
        return parsed

    def _read(self, completion: Completion, params: Mapping[str, Any]) -> ParsedReply:
        samples = completion.choices[: self.request.n]  # more samples than asked for get no vote
        if self.choices is None:
            called = _called(completion, params)
            if called is not None:
                return called
            try:
                return _free_form(completion, samples, self.kind)
            except CallFailed as error:
                if not isinstance(self.kind, Structure):
                    raise
                raise NotValid(error.failure, error.usage, self._repair(samples[0], self.kind)) from None
        if self.method == "likelihood":
            return _likeliest(completion, self.choices)
        parser = choice_parser(self.choices)
        if self.method == "samples" and len(samples) > 1:
            return _counted(completion, samples, parser)
        if self.logprobs_optional and completion.choices[0].tokens is None:
            return _single(completion, parser, "parsed")
        return _single(completion, parser, self.method)

    def _repair(self, reply: CompletionChoice, structure: Structure) -> Plan | None:
        """Return the plan that shows the model what is wrong with its structured reply, and asks for it again."""
        if self.repairs or reply.finish_reason in _CUT:
            return None
        asked = f"That is not valid: {structure.problem(reply.text)}.\n{structure.instruction}"
        added = (
            {"role": "assistant", "content": reply.text[:_MOST_REPAIRED] or "{}"},
            {"role": "user", "content": asked},
        )
        request = replace(self.request, messages=(*self.request.messages, *added))
        return replace(self, request=request, fallback=None, repairs=True)

    def with_optional_logprobs(self) -> Plan:
        """Return the plan for an endpoint whose capabilities are only assumed."""
        return replace(self, fallback=self.fallback and self.fallback.with_optional_logprobs(), logprobs_optional=True)


def plan(query: Query, capabilities: Capabilities, *, samples: int = 10) -> Plan:
    """Return the best plan for a query to an endpoint with these capabilities.

    Args:
        samples: how many to draw if probabilities come from samples and the query does not say how many.
    """
    if isinstance(query.answer, Structure):
        return _structured(query, query.answer, constrained=capabilities.structured_choice)
    if query.choices is None:
        return _free_form_plan(query, capabilities)
    labelled = _labelled(query, query.choices, capabilities, samples if query.samples is None else query.samples)
    scored = write_out_choices(query.messages, query.choices) if capabilities.whole_choices else None
    if scored is None:
        return labelled
    return Plan(Request((), 0, params=query.params, scored=scored), "likelihood", query.choices, fallback=labelled)


def _labelled(query: Query, choices: tuple[str, ...], capabilities: Capabilities, samples: int) -> Plan:
    """Return the plan that gives the choices as lettered lines."""
    labels = choice_parser(choices).labels
    messages = append_text(query.messages, _choices_text(choices, labels))
    constrained = labels if capabilities.structured_choice else None
    if capabilities.logprobs and capabilities.top_logprobs >= 2:
        request = Request(messages, MAX_TOKENS, 0.0, 1, capabilities.top_logprobs, constrained, params=query.params)
        return Plan(request, "logprobs", choices)
    if capabilities.n and samples > 1 and (query.samples or not capabilities.thinks):
        request = Request(messages, MAX_TOKENS, 1.0, samples, None, constrained, params=query.params)
        return Plan(request, "samples", choices)
    if capabilities.logprobs:
        return Plan(Request(messages, MAX_TOKENS, 0.0, 1, 0, constrained, params=query.params), "logprobs", choices)
    return Plan(Request(messages, MAX_TOKENS, None, 1, None, constrained, params=query.params), "parsed", choices)


def needs_capabilities(query: Query) -> bool:
    """Whether the best plan depends on an endpoint's capabilities."""
    return query.choices is not None or (query.samples or 1) > 1 or isinstance(query.answer, Structure)


def _structured(query: Query, structure: Structure, *, constrained: bool) -> Plan:
    """Constrain the reply to the schema; if that is not possible, or the service refuses it, put it in the prompt."""
    prompted = Request(append_text(query.messages, structure.instruction), None, params=query.params)
    fallback = Plan(prompted, "text", None, structure)
    if not constrained or not structure.is_object or "response_format" in query.params:
        return fallback
    params = {**query.params, "response_format": structure.response_format}
    return Plan(Request(query.messages, None, params=params), "text", None, structure, fallback)


def _free_form_plan(query: Query, capabilities: Capabilities) -> Plan:
    """Return the plan that asks for several samples, if they are wanted and one call can return them, or for one."""
    samples = query.samples or 1
    if samples == 1 or not capabilities.n:
        return Plan(Request(query.messages, None, params=query.params), "text", None, query.answer)
    request = Request(query.messages, None, TEMPERATURE, samples, params=query.params)
    return Plan(request, "samples", None, query.answer)


def _choices_text(choices: Sequence[str], labels: Sequence[str]) -> str:
    """Return the choices as lettered lines, and how to answer."""
    kind: Literal["letter", "number"] = "number" if labels[0].isdigit() else "letter"
    if all(choice.strip(DECORATION) == label for choice, label in zip(choices, labels, strict=True)):
        return f"Answer with one of these only: {', '.join(labels)}."
    lines = "\n".join(f"{label}. {choice}" for label, choice in zip(labels, choices, strict=True))
    return f"{lines}\n\nAnswer with the {kind} of one choice only."


def _called(completion: Completion, params: Mapping[str, Any]) -> ParsedReply | None:
    """Return the tools that a reply calls; None: it calls none, or none were offered, so its text is the answer."""
    first = completion.choices[0]
    if not params or not (offer := ToolOffer.of(params)).open:
        return None
    if len(first.tool_calls) > MOST_CALLS:
        raise _unusable(completion, f"the reply calls tools more than {MOST_CALLS} times")
    if len(str(first.tool_calls)) > LONGEST_CALLS:
        raise _unusable(completion, f"the reply's tool calls are longer than {LONGEST_CALLS} characters")
    try:
        json.dumps([first.tool_calls, first.reasoning_details], allow_nan=False)  # all of it is passed on
    except (ValueError, RecursionError):
        raise _unusable(completion, "the reply's tool calls hold numbers that JSON lacks") from None
    calls = parse_calls(first.tool_calls)
    if calls is None:
        raise _unusable(completion, "the reply calls a tool with arguments that are not a JSON object")
    refusal = offer.refusal(calls)
    if refusal is not None:
        raise _unusable(completion, _why(first, refusal, refusal))
    if not calls:
        return None
    details = first.reasoning_details
    return ParsedReply(first.text, None, None, "text", first.finish_reason, calls, reasoning_details=details)


def _single(completion: Completion, parser: ChoiceParser, method: Method) -> ParsedReply:
    """Read one sample: the choice it names and, with method "logprobs", the probability of each choice."""
    sample = completion.choices[0]
    found = _named(sample, parser)
    if found is None:
        raise _unusable(completion, _why(sample))
    if method != "logprobs":
        return ParsedReply(sample.text, found.choice, None, "parsed", sample.finish_reason)
    if sample.tokens is None:
        hint = "set logprobs = false of the endpoint where this happens often"
        raise _unusable(completion, "the log-probabilities asked for did not come back", hint)
    probabilities = label_probabilities(drop_end_tokens(sample.tokens, sample.text), parser, found.choice)
    if probabilities is None:
        return ParsedReply(sample.text, found.choice, None, "parsed", sample.finish_reason)
    choice = max(range(len(probabilities)), key=lambda i: (probabilities[i], i == found.choice))
    return ParsedReply(sample.text, choice, probabilities, "logprobs", sample.finish_reason)


def _likeliest(completion: Completion, choices: Sequence[str]) -> ParsedReply:
    """Read the likelihoods of the question with each choice appended."""
    tokens = [choice.tokens for choice in completion.choices if choice.tokens is not None]
    if len(tokens) < len(choices):
        hint = "leave whole_choices of the endpoint out"
        raise _unusable(completion, "no log-probabilities of the prompt came back", hint)
    probability = choice_probabilities(tokens)
    choice = probability.index(max(probability))
    return ParsedReply(choices[choice], choice, probability, "likelihood", None)


def _free_form(completion: Completion, samples: Sequence[CompletionChoice], kind: AnswerKind | None) -> ParsedReply:
    """Return the most frequent answer (of several, the first) and the share of each among all samples."""
    giving: dict[str, list[CompletionChoice]] = {}  # the normal form of an answer -> the samples that give it
    why, hint = "", ""
    for sample in samples:
        try:
            form = _form(sample, kind)
        except NormaliserFailed as error:  # the caller's own raised an error on this text
            form, why, hint = None, str(error), error.hint
        if form is not None:
            giving.setdefault(form, []).append(sample)
    if not giving:
        none = f"{_NOT_VALID}{kind.misfits(samples[0].text)}" if isinstance(kind, Structure) else _NO_ANSWER
        raise _unusable(completion, why or _why(samples[0], none), hint)
    most_first = sorted(giving, key=lambda form: len(giving[form]), reverse=True)
    form, first = most_first[0], giving[most_first[0]][0]
    if len(samples) == 1:
        return ParsedReply(first.text, None, None, "text", first.finish_reason, form=form)
    shares = tuple((giving[one][0].text, len(giving[one]) / len(samples)) for one in most_first)
    return ParsedReply(
        first.text, None, None, "samples", first.finish_reason, shares=shares, samples=len(samples), form=form
    )


def _form(sample: CompletionChoice, kind: AnswerKind | None) -> str | None:
    """Return the normal form of a sample's answer, None if it has none.

    The last number of a sample that was cut may be an intermediate result. So such a sample must mark its answer, as in
    "the answer is", or begin with it. The answer must also end before the cut, where "4" may be the beginning of 42,
    unless it is yes or no.
    """
    text, name = sample.text, kind.kind if isinstance(kind, TypedAnswer) else kind
    form = normal_form(text, kind)
    if form is None or name == "text" or not isinstance(name, str) or sample.finish_reason not in _CUT:
        return form
    final = find_final(text)
    if final is None or not final.marked:
        text = "".join(_FIRST_WORD.findall(text)[:1])
        if normal_form(text, kind) != form:
            return None
    whole = name == "yes-no" or text[-1].isspace() or normal_form(text + _MORE, kind) == form
    return form if whole else None


def _named(sample: CompletionChoice, parser: ChoiceParser) -> NamedChoice | None:
    return parser.find(sample.text, cut=sample.finish_reason in _CUT)


def _counted(completion: Completion, samples: Sequence[CompletionChoice], parser: ChoiceParser) -> ParsedReply:
    """Return the share of each choice among all samples, also those without an answer."""
    named = [found.choice for sample in samples if (found := _named(sample, parser)) is not None]
    first = samples[0]
    if not named:
        raise _unusable(completion, _why(first))
    shares = tuple(named.count(i) / len(samples) for i in range(len(parser.choices)))
    choice = max(range(len(shares)), key=lambda i: (shares[i], i == named[0]))
    return ParsedReply(first.text, choice, shares, "samples", first.finish_reason)


def _why(
    sample: CompletionChoice,
    fallback: str = "the reply names none of the choices, or more than one",
    calling: str = "the reply calls a tool, and none was offered",
) -> str:
    """Return why a sample has no answer; ``fallback``: why its text has none, ``calling``: why its tool calls do."""
    if sample.finish_reason == "length":
        return "the reply was cut at its token limit before it answered"
    if sample.finish_reason == "content_filter":
        return "the reply was withheld by the service's content filter"
    if sample.finish_reason == "refusal":
        return "the model refused to answer"
    if sample.text.strip():
        return fallback
    if sample.tool_calls:
        return calling
    return _ALL_THOUGHT if sample.reasoning else _EMPTY


def _unusable(completion: Completion, why: str, hint: str = "") -> CallFailed:
    ended = completion.choices[0].finish_reason
    code = ended if ended in WITHHELD else None
    hint = _HINTS.get(why, hint)
    return CallFailed(Failure("unusable", why, cut=ended == "length", code=code, hint=hint), completion.usage)


def append_text(messages: Sequence[Mapping[str, Any]], text: str) -> tuple[Mapping[str, Any], ...]:
    """Append a text to the last user message; if there is none, as a message of its own.

    >>> append_text(({"role": "user", "content": "Why?"},), "Be brief.")[0]["content"]
    'Why?\\n\\nBe brief.'
    """
    for i in range(len(messages) - 1, -1, -1):
        if messages[i].get("role") == "user":
            content = _joined(messages[i].get("content"), text)
            return (*messages[:i], {**messages[i], "content": content}, *messages[i + 1 :])
    return (*messages, {"role": "user", "content": text})


def _joined(content: Any, text: str) -> Any:
    if isinstance(content, str):
        return f"{content}\n\n{text}"
    return [*(content or ()), {"type": "text", "text": text}]
