"""How a question is put to one endpoint, and how its reply is read.

A closed question gets its choices as lettered lines and asks for the letter alone. What an endpoint can do decides how
its probabilities are had, best first:

1. log-probabilities with alternatives: the mass of every label where the reply gives its answer;
2. several samples: the share of each choice;
3. the sampled token's log-probability alone: the mass of the answer given, the rest unknown;
4. one reply, parsed: a vote, no probabilities.

Samples come before (3) because they say something of the other choices too. Free-form questions are passed on as is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from focalroute.answers import AnswerKind, NormaliserFailed, normal_form
from focalroute.capabilities import Capabilities
from focalroute.elicit.messages import added
from focalroute.elicit.parse import DECORATION, Reader, reader_of
from focalroute.elicit.score import score
from focalroute.errors import CallFailed
from focalroute.records import Failure, Method, Query
from focalroute.wire import Completion, CompletionChoice, Request

__all__ = ["Plan", "Reading", "plan"]

#: Enough for a letter and the sentence some models put around it. A model that reasons aloud needs more: set
#: ``max_tokens`` in the endpoint's ``params``.
MAX_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reply says.

    Attributes:
        text: the reply's text, of the first sample.
        choice: index of the most probable choice; None for a free-form question.
        probabilities: mass on each choice, shape (K,), sums to at most 1, the rest is unknown; None for a bare vote.
        method: how they were had.
    """

    text: str
    choice: int | None
    probabilities: tuple[float, ...] | None
    method: Method
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """One request, and how to read what comes back.

    Attributes:
        method: what the request is made for.
        choices: those of the query; None for a free-form question.
        kind: of a free-form question's answer.
    """

    request: Request
    method: Method
    choices: tuple[str, ...] | None
    kind: AnswerKind | None = None

    def read(self, completion: Completion) -> Reading:
        """The reply's answer.

        Raises:
            CallFailed: no answer can be read from it ("unusable"), or the log-probabilities asked for are missing.
            ConfigError: the caller's own normaliser gives something else than a string or None.
        """
        first = completion.choices[0]
        if self.choices is None:
            try:
                form = normal_form(first.text, self.kind)
            except NormaliserFailed as error:  # on this member's text, which may be anything
                raise _unusable(completion, str(error)) from None
            if form is None:
                raise _unusable(completion, _why(first, "the reply holds no answer of the kind asked for"))
            return Reading(first.text, None, None, "text", first.finish_reason)
        reader = reader_of(self.choices)
        samples = completion.choices[: self.request.n]  # nobody has more votes than were asked for
        if self.method == "samples" and len(samples) > 1:
            return _counted(completion, samples, reader)
        return _single(completion, reader, self.method)


def plan(query: Query, capabilities: Capabilities, *, samples: int = 10) -> Plan:
    """The best way to put the query to an endpoint that can do this much.

    Args:
        samples: how many to draw where probabilities come from samples.
    """
    if query.choices is None:
        return Plan(Request(query.messages, None, params=query.params), "text", None, query.answer)
    labels = reader_of(query.choices).labels
    messages = added(query.messages, _asked(query.choices, labels))
    held = labels if capabilities.structured_choice else None
    if capabilities.logprobs and capabilities.top_logprobs >= 2:
        request = Request(messages, MAX_TOKENS, 0.0, 1, capabilities.top_logprobs, held, params=query.params)
        return Plan(request, "logprobs", query.choices)
    if capabilities.n and samples > 1:
        request = Request(messages, MAX_TOKENS, 1.0, samples, None, held, params=query.params)
        return Plan(request, "samples", query.choices)
    if capabilities.logprobs:
        return Plan(Request(messages, MAX_TOKENS, 0.0, 1, 0, held, params=query.params), "logprobs", query.choices)
    return Plan(Request(messages, MAX_TOKENS, None, 1, None, held, params=query.params), "parsed", query.choices)


def _asked(choices: Sequence[str], labels: Sequence[str]) -> str:
    kind: Literal["letter", "number"] = "number" if labels[0].isdigit() else "letter"
    if all(choice.strip(DECORATION) == label for choice, label in zip(choices, labels, strict=True)):
        return f"Answer with one of these only: {', '.join(labels)}."
    lines = "\n".join(f"{label}. {choice}" for label, choice in zip(labels, choices, strict=True))
    return f"{lines}\n\nAnswer with the {kind} of one choice only."


def _single(completion: Completion, reader: Reader, method: Method) -> Reading:
    sample = completion.choices[0]
    found = reader.find(sample.text)
    if found is None:
        raise _unusable(completion, _why(sample))
    if method != "logprobs":
        return Reading(sample.text, found.choice, None, "parsed", sample.finish_reason)
    if sample.tokens is None:
        raise _unusable(
            completion,
            "the log-probabilities asked for did not come back; set logprobs = false where this happens often",
        )
    masses = score(sample.tokens, reader, found.choice)
    if masses is None:
        return Reading(sample.text, found.choice, None, "parsed", sample.finish_reason)
    choice = max(range(len(masses)), key=lambda i: (masses[i], i == found.choice))
    return Reading(sample.text, choice, masses, "logprobs", sample.finish_reason)


def _counted(completion: Completion, samples: Sequence[CompletionChoice], reader: Reader) -> Reading:
    """The share of each choice among the samples that came back; samples without an answer are unknown mass."""
    named = [found.choice for sample in samples if (found := reader.find(sample.text)) is not None]
    first = samples[0]
    if not named:
        raise _unusable(completion, _why(first))
    shares = tuple(named.count(i) / len(samples) for i in range(len(reader.choices)))
    choice = max(range(len(shares)), key=lambda i: (shares[i], i == named[0]))
    return Reading(first.text, choice, shares, "samples", first.finish_reason)


def _why(sample: CompletionChoice, otherwise: str = "the reply names none of the choices, or more than one") -> str:
    if sample.finish_reason == "length":
        return "the reply was cut at its token limit before it answered; set a larger max_tokens in params"
    if sample.finish_reason == "content_filter":
        return "the reply was withheld by the service's content filter"
    return otherwise


def _unusable(completion: Completion, why: str) -> CallFailed:
    return CallFailed(Failure("unusable", why), completion.usage)
