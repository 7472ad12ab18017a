"""Records an ask once it has ended: its spans, with their original times, and the metrics.

Nothing is done while an ask is under way, so that recording does not slow it down. A decision's span lasts from the end
of the previous round to the first call of its own; the fusion's from the last reply to the answer.

Names that begin with "focalroute." are our own; the others are of OpenTelemetry's conventions for generative AI, which
are in development: https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple, ParamSpec
from urllib.parse import urlsplit

from opentelemetry import metrics, trace
from opentelemetry._logs import LoggerProvider, LogRecord, get_logger
from opentelemetry.context import Context, attach
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from focalroute.core import __version__
from focalroute.core.config import Endpoint
from focalroute.core.errors import ConfigError, FocalrouteError
from focalroute.core.receipts import Answer
from focalroute.core.records import Decision, Failure, Feedback, Query, Reply, texts_of
from focalroute.core.services import service_at
from focalroute.money.cost import total
from focalroute.serving.ask import Ask
from focalroute.serving.openai_api.replies import finish_reason_of
from focalroute.serving.telemetry import Telemetry

_SCOPE = "focalroute"
#: Names of models and replies that are recorded; others may repeat what the service was sent.
_NAME = re.compile(r"[A-Za-z0-9_.:/@-]{1,128}")
_FINISH_REASONS = ("stop", "length", "tool_calls", "function_call", "content_filter")
_FIELDS = {
    "tracer_provider": trace.TracerProvider,
    "meter_provider": metrics.MeterProvider,
    "logger_provider": LoggerProvider,
    "content": bool,
}
_SHORTEST_QUOTE = 8  # characters; a shorter prompt may be part of a name by chance
#: A service -> its name in the conventions; the others keep our name.
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
# The bucket bounds of histograms that the conventions advise.
_SECONDS_BOUNDS = tuple(0.01 * 2**i for i in range(14))
_TOKENS_BOUNDS = tuple(float(4**i) for i in range(14))

_log = logging.getLogger("focalroute")
_W3C = TraceContextTextMapPropagator()

Attributes = dict[str, Any]
P = ParamSpec("P")


def _harmless(record: Callable[P, None]) -> Callable[P, None]:
    """Log a failure to record instead of raising it, so that an answer that was paid for is given."""

    @functools.wraps(record)
    def tried(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            record(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - a processor or exporter may raise anything
            _log.warning("telemetry could not be recorded: %s", type(error).__name__)

    return tried


class _Clock(NamedTuple):
    """Turns `time.perf_counter` into Unix nanoseconds."""

    counter: float
    unix_ns: int

    @classmethod
    def now(cls) -> _Clock:
        return cls(time.perf_counter(), time.time_ns())

    def ns(self, counter: float) -> int:
        return self.unix_ns - round((self.counter - counter) * 1e9)


class Recorder:
    """Records the asks of an ensemble. Safe to use from several event loops.

    Args:
        endpoints: the pool; unknown attributes of an endpoint are left out.

    Raises:
        ConfigError: a field of the telemetry is of another type.
    """

    def __init__(self, telemetry: Telemetry, endpoints: Iterable[Endpoint]) -> None:
        for name, kind in _FIELDS.items():
            value = getattr(telemetry, name)
            if value is not None and not isinstance(value, kind):
                raise ConfigError(f"Telemetry.{name}: give a {kind.__name__}, got {type(value).__name__}")
        self._content = telemetry.content
        self._endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        self._of = {name: _endpoint_attributes(endpoint) for name, endpoint in self._endpoints.items()}
        self._tracer = trace.get_tracer(_SCOPE, __version__, telemetry.tracer_provider)
        self._logger = get_logger(_SCOPE, __version__, telemetry.logger_provider)
        meter = metrics.get_meter(_SCOPE, __version__, telemetry.meter_provider)
        self._call_seconds = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "Duration of a call, its retries included.",
            explicit_bucket_boundaries_advisory=_SECONDS_BOUNDS,
        )  # fmt: skip
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens of a call.",
            explicit_bucket_boundaries_advisory=_TOKENS_BOUNDS,
        )  # fmt: skip
        self._ask_seconds = meter.create_histogram(
            "focalroute.ask.duration", "s", "Duration of an ask.", explicit_bucket_boundaries_advisory=_SECONDS_BOUNDS
        )
        self._cost = meter.create_counter("focalroute.cost", "{USD}", "What calls cost, where it is known.")

    @_harmless
    def answered(self, ask: Ask, answer: Answer) -> None:
        """Record an ask with its answer."""
        receipt = answer.receipt
        about: Attributes = {
            "focalroute.rounds": receipt.rounds,
            "focalroute.candidates": len(answer.candidates),
            "focalroute.confidence": answer.confidence,
            "focalroute.degraded": receipt.degraded,
        }
        if self._content:
            finish = finish_reason_of(answer).replace("tool_calls", "tool_call")  # as the conventions have it here
            output = {**_message(answer.message), "finish_reason": finish}
            about["gen_ai.output.messages"] = json.dumps([output], default=str)
        self._ended(ask, about, receipt.cost, fused_at=ask.started + receipt.latency_s)

    @_harmless
    def failed(self, ask: Ask, error: BaseException) -> None:
        """Record an ask that ended without an answer."""
        spent = total(bill.cost for bill in ask.ask_budget.bills)
        self._ended(ask, {"error.type": type(error).__name__}, spent, error=error)

    @_harmless
    def on_feedback(self, feedback: Feedback) -> None:
        """Record feedback as an event."""
        attributes: Attributes = {
            "gen_ai.evaluation.name": "reward",
            "gen_ai.evaluation.score.value": feedback.reward,
            "gen_ai.response.id": feedback.answer_id,
            "focalroute.feedback.source": feedback.source,
        }
        at = round(feedback.created_at * 1e9)
        self._logger.emit(LogRecord(timestamp=at, event_name="gen_ai.evaluation.result", attributes=attributes))

    def join(self, headers: Mapping[str, str]) -> None:
        """Make this task's asks part of the trace in a request's headers, unless there is a current span."""
        if not trace.get_current_span().get_span_context().is_valid:
            attach(_W3C.extract(headers))

    # -- one ask -----------------------------------------------------------------------------------------------------

    def _ended(
        self,
        ask: Ask,
        about: Attributes,
        cost: Decimal | None,
        *,
        fused_at: float | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Record the span of an ask that ended, the spans of its steps, and its metrics."""
        clock = _Clock.now()
        span = self._tracer.start_span(
            "focalroute.ask",
            kind=SpanKind.INTERNAL,
            start_time=clock.ns(ask.started),
            attributes=self._ask_attributes(ask, about, cost),
        )
        context = trace.set_span_in_context(span)
        if span.is_recording():
            self._steps(ask, context, clock, fused_at)
        for reply in _made(ask):
            self._measure(reply, context)
        for bill in ask.ask_budget.bills:  # of calls that were cut off, too
            if bill.cost:
                self._cost.add(float(bill.cost), {"focalroute.endpoint": bill.endpoint}, context)
        if error is not None and not isinstance(error, asyncio.CancelledError):
            message = str(error) if isinstance(error, FocalrouteError) else None  # others may hold text of a prompt
            span.set_status(StatusCode.ERROR, message)
        span.end(clock.unix_ns)
        failure = {"error.type": about["error.type"]} if "error.type" in about else {}
        self._ask_seconds.record(clock.counter - ask.started, failure, context)

    def _ask_attributes(self, ask: Ask, about: Attributes, cost: Decimal | None) -> Attributes:
        attributes: Attributes = {
            "focalroute.answer.id": ask.query.id,
            "gen_ai.response.id": ask.query.id,  # which links it to its feedback
            "focalroute.members": [reply.endpoint for reply in ask.replies],
            "focalroute.policy.version": ask.policy.version,
            **about,
        }
        if ask.policy.name is not None:
            attributes["focalroute.policy.name"] = ask.policy.name
        if cost is not None:
            attributes["focalroute.cost_usd"] = float(cost)
        if self._content:
            attributes["gen_ai.input.messages"] = json.dumps([_message(one) for one in ask.query.messages], default=str)
        return attributes

    def _steps(self, ask: Ask, context: Context, clock: _Clock, fused_at: float | None) -> None:
        """Record a span for each decision and call, and for the fusion."""
        at = ask.started
        for number, round_ in enumerate(ask.rounds, 1):
            begun = min((reply.started for reply in round_.replies if reply.attempts), default=at)
            self._decision(round_.decision, number, ask, context, (clock.ns(at), clock.ns(max(at, begun))))
            for reply in round_.replies:
                if reply.attempts:
                    self._call(ask, reply, context, clock, number)
                    at = max(at, reply.started + reply.latency_s)
        if ask.written is not None and ask.written.attempts:
            self._call(ask, ask.written, context, clock, 0)
        if fused_at is not None:
            fuse = self._tracer.start_span("focalroute.fuse", context, start_time=clock.ns(at))
            fuse.end(clock.ns(max(at, fused_at)))

    def _decision(self, decision: Decision, number: int, ask: Ask, context: Context, times: tuple[int, int]) -> None:
        pool = ask.policy.endpoints
        attributes: Attributes = {
            "focalroute.round": number,
            "focalroute.considered": [pool[i] for i in decision.order],
            "focalroute.picked": [pool[i] for i in decision.picked],
        }
        if decision.log_mu is not None:
            attributes["focalroute.probability"] = math.exp(decision.log_mu)
        start, end = times
        self._tracer.start_span("focalroute.decide", context, start_time=start, attributes=attributes).end(end)

    def _call(self, ask: Ask, reply: Reply, context: Context, clock: _Clock, number: int) -> None:
        attributes = {
            **self._of.get(reply.endpoint, {}),
            **_reply_attributes(reply),
            **self._named(ask, reply),
            "focalroute.endpoint": reply.endpoint,
            "focalroute.round": number,
            "focalroute.attempts": reply.attempts,
        }
        span = self._tracer.start_span(
            f"chat {attributes.get('gen_ai.request.model', reply.endpoint)}",
            context,
            kind=SpanKind.CLIENT,
            start_time=clock.ns(reply.started),
            attributes=attributes,
        )
        _mark(span, reply.error)
        span.end(clock.ns(reply.started + reply.latency_s))

    def _named(self, ask: Ask, reply: Reply) -> Attributes:
        """Return the model and reply id as the service names them, unless they may repeat the request."""
        endpoint = self._endpoints[reply.endpoint]
        key, texts = _key(endpoint), _texts(ask.query)
        named: Attributes = {}
        for name, value in (("gen_ai.response.model", reply.model), ("gen_ai.response.id", reply.response_id)):
            if value is None or not _NAME.fullmatch(value) or (key and key in value):
                continue
            if value == endpoint.model or not any(_quotes(value, text) for text in texts):
                named[name] = value
        return named

    def _measure(self, reply: Reply, context: Context) -> None:
        """Record a call's metrics, without attributes that its service could fill with arbitrary values."""
        common = {**self._of.get(reply.endpoint, {}), "focalroute.endpoint": reply.endpoint}
        if reply.error is not None:
            common["error.type"] = _error_type(reply.error)
        self._call_seconds.record(reply.latency_s, common, context)
        if reply.usage is not None:
            common.pop("error.type", None)
            counts = {"input": reply.usage.prompt_tokens, "output": reply.usage.completion_tokens}
            for kind, count in counts.items():
                self._tokens.record(count, {**common, "gen_ai.token.type": kind}, context)


def _made(ask: Ask) -> list[Reply]:
    """Return the replies to calls that were made."""
    written = () if ask.written is None else (ask.written,)
    return [reply for reply in (*ask.replies, *written) if reply.attempts]


def _endpoint_attributes(endpoint: Endpoint) -> Attributes:
    """Return the attributes of an endpoint that are known before it is asked."""
    base_url = str(getattr(endpoint.client, "base_url", endpoint.base_url or ""))
    parts = urlsplit(base_url)
    service = endpoint.service or service_at(base_url) or endpoint.spoken
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _PROVIDERS.get(service, service),
        "gen_ai.request.model": endpoint.model,
    }
    if parts.hostname:
        attributes["server.address"] = parts.hostname
        attributes["server.port"] = parts.port or (443 if parts.scheme == "https" else 80)
    return attributes


def _reply_attributes(reply: Reply) -> Attributes:
    """Return the attributes of a reply, as far as it has them."""
    usage, finish = reply.usage, reply.finish_reason
    attributes: Attributes = {
        "gen_ai.response.finish_reasons": [finish if finish in _FINISH_REASONS else "other"] if finish else None,
        "gen_ai.usage.input_tokens": usage and usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage and usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage and usage.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage and usage.reasoning_tokens,
        "focalroute.cost_usd": None if reply.cost is None else float(reply.cost),
        "focalroute.hedge_of": reply.hedge_of,
        "error.type": reply.error and _error_type(reply.error),
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _error_type(failure: Failure) -> str:
    return str(failure.status or failure.kind)


def _key(endpoint: Endpoint) -> str | None:
    if endpoint.client is not None:
        return str(getattr(endpoint.client, "api_key", ""))
    try:
        key = endpoint.key()
    except ConfigError:  # its variable was unset since
        return None
    return None if key is None else key.get_secret_value()


def _texts(query: Query) -> list[str]:
    """Return the private texts that were sent: the text of every message, and the choices."""
    texts = list(query.choices or ())
    for message in query.messages:
        texts += texts_of(message.get("content"))
    return texts


def _quotes(name: str, text: str) -> bool:
    """Whether a name is part of the text, or the text part of the name."""
    return name in text or (len(text) >= _SHORTEST_QUOTE and text in name)


def _mark(span: Span, failure: Failure | None) -> None:
    """Mark a failed call's span; a cancelled call is not an error."""
    if failure is not None and failure.kind != "cancelled":
        span.set_status(StatusCode.ERROR, failure.message)


def _message(message: Mapping[str, Any]) -> Attributes:
    """Return a chat message in the shape of the conventions."""
    content, calls = message.get("content"), message.get("tool_calls") or ()
    if message.get("role") == "tool":
        parts = [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}]
    elif isinstance(content, str):
        parts = [{"type": "text", "content": content}]
    else:
        parts = [_part(part) for part in content or ()]
    return {"role": message.get("role"), "parts": [*parts, *(_tool_call(call) for call in calls)]}


def _part(part: Mapping[str, Any]) -> Attributes:
    return {"type": "text", "content": part.get("text")} if part.get("type") == "text" else dict(part)


def _tool_call(call: Mapping[str, Any]) -> Attributes:
    called = call.get("function") or {}
    return {"type": "tool_call", "id": call.get("id"), "name": called.get("name"), "arguments": called.get("arguments")}
