"""The frozen records that travel through focalroute; shapes and units are stated here, once.

Letters used throughout: N endpoints in the pool, K candidates of a query, m members that replied, R rounds. Money is
USD as `Decimal`, ``None`` where unknown (unknown is never zero). Times are seconds; instants are Unix time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from focalroute.core.json_values import objects_in

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: The name of the built-in features of a text (`focalroute.observe.features.text_features`).
HASHED = "text_features"

#: The cost weights (lambda) that policies are trained for; policies see others clipped to this range.
COST_WEIGHT_RANGE = (0.003, 4.0)

FailureKind = Literal[
    "connection",  # no answer: refused, reset, DNS, TLS
    "timeout",  # this call, or the whole ask, ran out of time
    "status",  # the service answered with an error status
    "protocol",  # the service answered something that is not the chat completion format
    "unusable",  # a well-formed reply from which no answer could be read
    "cancelled",  # by us: no longer needed
    "limited",  # not called at all: its rate limit leaves no room in time
    "unavailable",  # not called at all: no longer affordable
]
Method = Literal["likelihood", "logprobs", "samples", "parsed", "text"]
#: How replies become the answer: see `Query`.
Combine = Literal["choose", "pick", "synthesise"]
#: Where a cost comes from: the reply stated it; tokens x the pool file's own price, a listing's or a price library's
#: (see `Endpoint.prices_from`); an estimate within the reservation, as no usage came back; unknown.
CostSource = Literal["provider", "price", "listing", "library", "reserved", "unknown"]


def texts_of(content: object) -> list[str]:
    """Return the texts in a message's content: itself, or those of its parts.

    >>> texts_of("Why?"), texts_of([{"type": "text", "text": "Why?"}, {"type": "image_url"}]), texts_of(None)
    (['Why?'], ['Why?'], [])
    """
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in objects_in(content) if isinstance(part.get("text"), str)]


@dataclass(frozen=True, slots=True)
class Query:
    """One query. Its repr holds nothing of the prompt.

    Attributes:
        messages: OpenAI chat messages, passed on as they are.
        choices: the closed set of answers (at least 2, distinct), or None for a free-form question.
        values: the objects that the choices stand for, where those are not texts; aligned with ``choices``.
        answer: the kind of a free-form answer, see `focalroute.answers`; or a callable that maps a reply's text to its
            normal form (None: no answer in it), such as a `focalroute.answers.structured.Structure`.
        samples: replies to request from each member; None: one for a free-form question, the ensemble's setting for a
            closed one.
        task: a topic name the caller gives; None unless given.
        tags: labels for the ledger (user, tenant, ...).
        params: provider parameters, passed through to every member.
        metadata: the caller's own data, returned on the answer.
        combine: "choose": the Fusion chooses among the replies; "pick": the Decider picks the one member whose reply is
            the answer; "synthesise": an endpoint writes one text from the replies.
        max_usd: limit on its cost; None, here and for the next two: the ensemble's setting.
        deadline_s: seconds for the whole ask.
        usd_per_second: what a second until the answer is worth to the caller.
    """

    id: str
    messages: tuple[Mapping[str, Any], ...] = field(repr=False)
    choices: tuple[str, ...] | None = field(default=None, repr=False)
    values: tuple[Any, ...] | None = field(default=None, repr=False)
    answer: Any = None
    samples: int | None = None
    task: str | None = None
    tags: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict, repr=False)
    metadata: Mapping[str, Any] | None = field(default=None, repr=False)
    combine: Combine = "choose"
    max_usd: Decimal | float | str | None = None
    deadline_s: float | None = None
    usd_per_second: float | None = None

    @property
    def open(self) -> bool:
        """Whether its answers are open text, where no two need be alike."""
        return self.choices is None and self.answer in (None, "text")

    @property
    def text(self) -> str:
        """The text of the last user message, from which the query features are computed."""
        for message in reversed(self.messages):
            if message.get("role") == "user":
                return " ".join(texts_of(message.get("content")))
        return ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call, or of several added up.

    Attributes:
        prompt_tokens: all prompt tokens, the cached ones included.
        completion_tokens: all generated tokens, the reasoning ones included.
        cached_tokens: the part of ``prompt_tokens`` read from the provider's cache.
        reasoning_tokens: the part of ``completion_tokens`` spent on hidden reasoning.
        cost_usd: the call's cost as stated by the provider; None where it states none.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: Decimal | None = None

    def __add__(self, other: Usage) -> Usage:
        known = self.cost_usd is not None and other.cost_usd is not None
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cost_usd + other.cost_usd if known else None,  # type: ignore[operator]
        )


#: Finish reasons of a reply in which the service or its model withholds an answer; `Failure.code` then has the same.
WITHHELD = ("content_filter", "refusal")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call failed. Never holds a key, a prompt or a reply's text.

    Attributes:
        message: what happened, in one line, the provider's words included.
        status: HTTP status, where there was one.
        retry_after_s: how long the service asks to wait, or until its rate limit ends.
        lacks: what the service says it does not support: "tools", "images", "json_schema", or a field of the request.
        host: the host that was called; ``model``: the model.
        code: the provider's own name of the error.
        param: the field that the provider names.
        provider_message: the provider's message, at most 300 characters, without the keys and texts it quotes.
        hint: what to do about it; empty: nothing is known to help.
        cut: whether the reply reached its token limit before it answered.
        of_request: whether the request caused it rather than the endpoint or its account, so that another request could
            be answered.
    """

    kind: FailureKind
    message: str
    status: int | None = None
    retry_after_s: float | None = None
    lacks: str | None = None
    host: str | None = None
    model: str | None = None
    code: str | None = None
    param: str | None = None
    provider_message: str | None = None
    hint: str = ""
    cut: bool = False
    of_request: bool = False

    @property
    def brief(self) -> str:
        """The message without the provider's own words, which may name an account."""
        return f"HTTP {self.status}" if self.kind == "status" else self.message

    @property
    def advised(self) -> str:
        """The message after what to do about it."""
        return f"{self.hint}; {self.message}" if self.hint else self.message

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed a moment later (408, 409, 425, 429, 5xx, connection faults).

        So may a call that Groq refused because its model wrote no readable tool call.
        """
        if self.kind == "status":
            if self.code == "insufficient_quota":  # OpenAI's 429 of an account without credit
                return False
            return self.status in (408, 409, 425, 429) or (self.status or 0) >= 500 or self.code == "tool_use_failed"
        return self.kind in ("connection", "protocol")


@dataclass(frozen=True, slots=True)
class Reply:
    """One member's reply.

    Attributes:
        text: the reply's text, None on failure. Of several samples, the first; for a free-form question, the first with
            the most frequent answer.
        choice: index of the most probable choice; None for a free-form question or on failure.
        probabilities: mass on each choice, shape (K,), sums to at most 1; the rest is unknown, not zero.
        method: how ``probabilities`` were elicited.
        cost: USD of all attempts, None where unknown; see ``cost_source``.
        latency_s: from the first attempt's start to the reply, waits between attempts included.
        started: when the first attempt started, by `time.perf_counter` of this process.
        sent: when its latest attempt was sent, by the same clock; None: none was.
        first_token: when the first piece of its text came, by the same clock; None: it was not streamed.
        attempts: calls made, 0 if none was.
        error: why there is no usable answer; None on success.
        hedge_of: the endpoint whose late call it hedged; None: it was picked.
        tool_calls: the tools it calls, in OpenAI's shape; empty where it answers with text alone.
        shares: for several samples of a free-form answer: each different answer as the text of its first sample, with
            its share of the samples, largest first; samples without an answer are unknown mass. None: one reply.
        samples: the number of samples behind ``shares``.
        form: the normal form of a free-form answer in ``text``; None where it was not computed.
        reasoning: the model's reasoning, as far as its service returns it; None: it returned none.
        reasoning_details: data that OpenRouter expects back with the tool calls, such as signatures of the reasoning.
    """

    endpoint: str
    text: str | None = None
    choice: int | None = None
    probabilities: tuple[float, ...] | None = None
    method: Method | None = None
    usage: Usage | None = None
    cost: Decimal | None = None
    cost_source: CostSource = "unknown"
    latency_s: float = 0.0
    attempts: int = 0
    model: str | None = None
    response_id: str | None = None
    finish_reason: str | None = None
    error: Failure | None = None
    hedge_of: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    shares: tuple[tuple[str, float], ...] | None = field(default=None, repr=False)
    samples: int = 1
    form: str | None = field(default=None, repr=False)
    started: float = 0.0
    sent: float | None = None
    first_token: float | None = None
    reasoning: str | None = field(default=None, repr=False)
    reasoning_details: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """Whether the member gave a usable answer."""
        return self.error is None

    @property
    def length(self) -> int:
        """Its completion tokens, the mean per sample where ``shares`` were counted; 0 if unknown."""
        return self.usage.completion_tokens // self.samples if self.usage else 0


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Observation:
    """The Decider's input before one decision (named slices, see `focalroute.observe.layout`).

    Attributes:
        context: float32 (Dc,).
        endpoints: float32 (N, De), rows in pool order.
    """

    context: F32
    endpoints: F32


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Evidence:
    """The Fusion's input.

    Attributes:
        members: float32 (K, m, Fm): features of candidate k by the reply of member j.
        candidates: float32 (K, Fc).
        endpoints: the pool index of each member, length m.
    """

    members: F32
    candidates: F32
    endpoints: tuple[int, ...]


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Decision:
    """One step of the Decider.

    Attributes:
        round: 1-based.
        must_pick: whether an endpoint had to be picked: in round 1, and until one has answered.
        order: the endpoints eligible before the first pick (not asked, breaker closed, affordable), in the order in
            which their heads were visited; empty: the STOP was forced.
        eligible: for each visited head, whether its endpoint was still eligible after the picks before it.
        probabilities: p_i of every endpoint after clipping, pool order.
        picked: the endpoints decided on, in visiting order; empty means STOP.
        log_mu: log-probability of ``picked`` under the policy that chose it; None when served greedily or forced.
        one: whether exactly one endpoint was to be picked.
    """

    round: int
    must_pick: bool
    order: tuple[int, ...]
    eligible: tuple[bool, ...]
    probabilities: tuple[float, ...]
    picked: tuple[int, ...]
    log_mu: float | None
    one: bool = False


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Round:
    """One round: what was seen, what was decided, what came back."""

    observation: Observation
    decision: Decision
    replies: tuple[Reply, ...]


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Trajectory:
    """The steps of one query, as the learner needs them: exactly what the policies saw and did.

    Attributes:
        version: the policy version that took every step.
        endpoints: the pool's endpoint names at the time; indices elsewhere point into it.
        decisions: (observation, decision) of every real decision, a STOP included.
        evidence: what the Fusion saw at the end.
        fused: index of the candidate given as the answer; -1: the answer was synthesised or assembled from several.
        fusion_log_mu: log-probability of that candidate if it was sampled, None if it was the argmax.
        features: float32 (D,), of the query's text, which the memory of texts compares; empty if there are none.
        task: the query's.
        embedder: name of what made the features (see `focalroute.observe.features.name_of`); features with different
            names cannot be compared.
        rival: the other policy version of the trial in which this query was drawn; None: there was no trial.
    """

    version: int
    endpoints: tuple[str, ...]
    decisions: tuple[tuple[Observation, Decision], ...]
    evidence: Evidence
    fused: int
    fusion_log_mu: float | None = None
    features: F32 = field(default_factory=lambda: np.zeros(0, np.float32))
    task: str | None = None
    embedder: str = HASHED
    rival: int | None = None


@dataclass(frozen=True, slots=True)
class Feedback:
    """Feedback on an answer.

    Attributes:
        reward: in [-1, 1]; given, or derived from the label.
        label: the key of the right candidate (see `focalroute.answers.candidate_key`), or a `preference`; None for a
            bare reward.
        source: who gave it; of each source, the latest feedback on an answer counts.
    """

    answer_id: str
    reward: float
    label: str | None
    source: str
    created_at: float

    @property
    def right(self) -> str | None:
        """The key of the right candidate; None: unknown."""
        return None if self.preference else self.label

    @property
    def preference(self) -> tuple[str, str] | None:
        """The keys of the better and of the worse of two candidates; None: it is not a preference."""
        better, than, worse = (self.label or "").partition(_THAN)
        return (better, worse) if than else None


_THAN = ">"  # no key has it


def preference(better: str, worse: str) -> str:
    """Return a label that says which of two candidates is better, but not that either is right."""
    return f"{better}{_THAN}{worse}"


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Member:
    """How one endpoint that replied took part in one answered query.

    Attributes:
        round: the round it was asked in, 1-based; 0: probed after the answer.
        candidate: index of the candidate it backs; None: no answer could be read from its reply, which then counts as
            wrong.
        completion_tokens: length of its reply.
        usd: what it cost, None if unknown.
    """

    round: int
    candidate: int | None
    completion_tokens: int
    latency_s: float
    usd: Decimal | None


@dataclass(frozen=True, slots=True)
class Masses:
    """The probabilities that members gave on a closed question whose right choice is known.

    Attributes:
        task: the query's; None unless given.
        label: index of the right choice.
        size: number of choices, K.
        log_mass: endpoint -> float32 (K,), the log of its mass on each choice, at least -30.
    """

    task: str | None
    label: int
    size: int
    log_mass: Mapping[str, F32]


class Labelled(NamedTuple):
    """A closed question whose right choice is known.

    Attributes:
        task: the query's; None unless given.
        choices: the key of each choice (see `focalroute.answers.candidate_key`).
        right: index of the right one.
    """

    task: str | None
    choices: tuple[str, ...]
    right: int


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Outcome:
    """The outcome of one answered query for its members: a row of the window.

    Attributes:
        answer_id: the answer it belongs to; a later outcome with the same id replaces it.
        members: endpoint -> how it took part. Members not asked, failed or cancelled are absent.
        right: endpoint -> 1.0 right, 0.0 wrong, between: inferred from a bare reward; absent where nothing is known.
        inferred: the endpoints whose value was inferred rather than known; they never enter diversity counts.
        features: of the query's text, as on `Trajectory`; None: not kept.
        masses: the members' probabilities; None where no member gave any, or the right choice is neither known nor
            inferred.
        embedder: as on `Trajectory`.
        posterior: posterior of the given answer; None: it has none of its own.
        correct: how right the given answer was, in [0, 1].
        labelled: the choices and the right one; None: it is not known, or the question was not closed.
    """

    answer_id: str
    members: Mapping[str, Member]
    right: Mapping[str, float]
    inferred: frozenset[str] = frozenset()
    features: F32 | None = None
    masses: Masses | None = None
    embedder: str = HASHED
    posterior: float | None = None
    correct: float = 0.0
    labelled: Labelled | None = None

    @property
    def disputed(self) -> bool:
        """Whether members, without those probed after the answer, gave different answers."""
        return differ(member.candidate for member in self.members.values() if member.round)


def differ(candidates: Iterable[int | None]) -> bool:
    """Return whether members back different candidates; None (no readable answer) does not count."""
    return len({*candidates} - {None}) > 1
