"""What is recorded of asks, as the SDK's own exporters in memory get it."""

from __future__ import annotations

import asyncio
import http.client
import inspect
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from opentelemetry import trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from focalroute import AsyncEnsemble, ConfigError, Endpoint, Ensemble, PoolError
from focalroute.serving.telemetry import Telemetry, recorder
from focalroute.serving.telemetry.recorder import _endpoint_attributes
from focalroute.sim import SimulatedPool
from tests.loopback import completion, json_reply, serving
from tests.server.running import ask, served

PROMPT = "What is 17 + 25?"


@dataclass
class Seen:
    """All that was exported."""

    spans_: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)
    events_: InMemoryLogRecordExporter = field(default_factory=InMemoryLogRecordExporter)

    def telemetry(self, **options: Any) -> Telemetry:
        self.tracers = TracerProvider(**options.pop("tracers", {}))
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans_))
        self.meters = MeterProvider([self.reader])
        self.loggers = LoggerProvider()
        self.loggers.add_log_record_processor(SimpleLogRecordProcessor(self.events_))
        return Telemetry(self.tracers, self.meters, self.loggers, **options)

    def handler(self) -> AbstractContextManager[trace.Span]:
        """A span of the program's own, around what it does."""
        return trace.get_tracer("app", tracer_provider=self.tracers).start_as_current_span("handler")

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.spans_.get_finished_spans())

    def one(self, name: str) -> ReadableSpan:
        (span,) = (span for span in self.spans if span.name == name)
        return span

    def below(self, parent: ReadableSpan) -> list[ReadableSpan]:
        return [s for s in self.spans if s.parent is not None and s.parent.span_id == own_id(parent)]

    def metrics(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}

    def everything(self) -> str:
        events = [log.to_json() for log in self.events_.get_finished_logs()]
        return "".join(span.to_json() for span in self.spans) + str(self.metrics()) + str(events)


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    with SimulatedPool() as simulated:
        yield simulated


def own_id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_the_spans_of_an_ask_are_a_tree_that_says_what_its_receipt_does(pool: SimulatedPool) -> None:
    seen = Seen()
    settings: dict[str, Any] = {"seed": 1, "probe_share": 0.0, "telemetry": seen.telemetry()}
    with Ensemble(pool.endpoints, **settings) as ensemble, seen.handler():
        answer = ensemble.ask(PROMPT, choices=["32", "42", "44"], task="sums", tags=["tenant"])
    ask, handler = seen.one("focalroute.ask"), seen.one("handler")
    assert ask.parent is not None
    assert ask.parent.span_id == own_id(handler)
    assert ask.kind is SpanKind.INTERNAL
    told, receipt = attributes(ask), answer.receipt
    assert told["gen_ai.response.id"] == told["focalroute.answer.id"] == answer.id
    assert told["focalroute.members"] == tuple(call.endpoint for call in receipt.calls)
    assert told["focalroute.rounds"] == receipt.rounds
    assert told["focalroute.confidence"] == answer.confidence
    assert told["focalroute.cost_usd"] == pytest.approx(float(receipt.cost or 0))
    assert told["focalroute.policy.version"] == receipt.policy_version
    steps = seen.below(ask)
    assert len(steps) == len(seen.spans) - 2
    decisions = [span for span in steps if span.name == "focalroute.decide"]
    assert [attributes(d)["focalroute.picked"] for d in decisions] == [choice.picked for choice in receipt.decisions]
    assert [attributes(d)["focalroute.considered"] for d in decisions] == [
        choice.considered for choice in receipt.decisions
    ]
    assert [attributes(d).get("focalroute.probability") for d in decisions] == [
        c.probability for c in receipt.decisions
    ]
    calls = [span for span in steps if span.name.startswith("chat ")]
    for span, call in zip(calls, receipt.calls, strict=True):
        told = attributes(span)
        assert (span.kind, span.name) == (SpanKind.CLIENT, f"chat {call.endpoint}")
        assert call.usage is not None
        assert (
            told
            | {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "openai",
                "gen_ai.request.model": call.endpoint,
                "gen_ai.response.model": call.endpoint,
                "server.address": "127.0.0.1",
                "server.port": pool.port,
                "gen_ai.usage.input_tokens": call.usage.prompt_tokens,
                "gen_ai.usage.output_tokens": call.usage.completion_tokens,
                "focalroute.round": call.round,
                "focalroute.attempts": 1,
            }
            == told
        )
        assert told["gen_ai.response.finish_reasons"] == ("stop",)
        assert told["focalroute.cost_usd"] == pytest.approx(float(call.cost or 0))
        assert (span.end_time or 0) - (span.start_time or 0) == pytest.approx(call.latency_s * 1e9, abs=1e3)
    (fuse,) = (span for span in steps if span.name == "focalroute.fuse")
    for span in steps:
        assert (ask.start_time or 0) <= (span.start_time or 0) <= (span.end_time or 0) <= (ask.end_time or 0)
    assert (fuse.start_time or 0) == max(span.end_time or 0 for span in calls)
    assert PROMPT not in seen.everything()
    assert "tenant" not in seen.everything()


def test_metrics_count_calls_tokens_and_dollars(pool: SimulatedPool) -> None:
    seen = Seen()
    with Ensemble(pool.endpoints, policy="plurality", telemetry=seen.telemetry()) as ensemble:
        answers = [ensemble.ask(PROMPT, choices=["32", "42"]) for _ in range(3)]
    calls = [call for answer in answers for call in answer.receipt.calls]
    points = seen.metrics()
    assert sum(point.count for point in points["gen_ai.client.operation.duration"]) == len(calls)
    assert sum(point.sum for point in points["gen_ai.client.operation.duration"]) == pytest.approx(
        sum(c.latency_s for c in calls)
    )
    tokens = dict.fromkeys(("input", "output"), 0.0)
    for point in points["gen_ai.client.token.usage"]:
        tokens[point.attributes["gen_ai.token.type"]] += point.sum
    assert tokens["input"] == sum(call.usage.prompt_tokens for call in calls if call.usage)
    assert tokens["output"] == sum(call.usage.completion_tokens for call in calls if call.usage)
    assert sum(point.value for point in points["focalroute.cost"]) == pytest.approx(
        sum(float(a.cost or 0) for a in answers)
    )
    assert [point.count for point in points["focalroute.ask.duration"]] == [3]
    assert points["gen_ai.client.operation.duration"][0].explicit_bounds == tuple(0.01 * 2**i for i in range(14))


def test_failures_are_marked_with_their_kind(pool: SimulatedPool) -> None:
    """Members that fail beside one that answers; then all of them."""
    seen = Seen()

    async def refuses(_: web.Request, body: Any) -> web.StreamResponse:
        return json_reply({}, 403) if body["model"] == "refuses" else json_reply(completion("42"))

    with serving(refuses) as service:
        both = [Endpoint(name, model=name, base_url=service.url) for name in ("refuses", "answers")]
        settings: dict[str, Any] = {"policy": "plurality", "telemetry": seen.telemetry(), "attempts": 1}
        with Ensemble(both, **settings) as ensemble:
            ensemble.ask(PROMPT)
        assert seen.one("focalroute.ask").status.status_code is StatusCode.UNSET
        failed = seen.one("chat refuses")
        assert failed.status.status_code is StatusCode.ERROR
        assert attributes(failed)["error.type"] == "403"
        assert seen.one("chat answers").status.status_code is StatusCode.UNSET
        seen.spans_.clear()
        with Ensemble(both[:1], **settings) as ensemble, pytest.raises(PoolError):
            ensemble.ask(PROMPT)
    ask = seen.one("focalroute.ask")
    assert ask.status.status_code is StatusCode.ERROR
    assert attributes(ask)["error.type"] == "PoolError"
    assert not any(span.name == "focalroute.fuse" for span in seen.spans)
    errors = {point.attributes.get("error.type"): point.count for point in seen.metrics()["focalroute.ask.duration"]}
    assert errors == {None: 1, "PoolError": 1}
    assert PROMPT not in seen.everything()


def test_a_cancelled_ask_ends_its_span_and_is_not_an_error() -> None:
    seen = Seen()

    async def hangs(_: web.Request, __: Any) -> web.StreamResponse:
        await asyncio.sleep(30)
        return json_reply({})

    async def run(url: str) -> None:
        endpoint = Endpoint("hangs", model="m", base_url=url, input_usd_per_1m=1, output_usd_per_1m=1)
        async with AsyncEnsemble([endpoint], telemetry=seen.telemetry()) as ensemble:
            asking = asyncio.create_task(ensemble.ask(PROMPT, max_usd=1))
            await asyncio.to_thread(service.arrived.wait)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    with serving(hangs) as service:
        asyncio.run(run(service.url))
    ask = seen.one("focalroute.ask")
    assert attributes(ask)["error.type"] == "CancelledError"
    assert ask.status.status_code is StatusCode.UNSET
    (cost,) = seen.metrics()["focalroute.cost"]  # it may have been billed
    assert cost.value == attributes(ask)["focalroute.cost_usd"] > 0


def test_feedback_is_an_event_linked_to_its_answer(pool: SimulatedPool) -> None:
    seen = Seen()
    with Ensemble(pool.endpoints, telemetry=seen.telemetry()) as ensemble:
        answer = ensemble.ask(PROMPT, choices=["32", "42"])
        ensemble.feedback(answer, reward=0.5, source="reviewer")
    (log,) = seen.events_.get_finished_logs()
    assert log.log_record.event_name == "gen_ai.evaluation.result"
    assert dict(log.log_record.attributes or {}) == {
        "gen_ai.evaluation.name": "reward",
        "gen_ai.evaluation.score.value": 0.5,
        "gen_ai.response.id": answer.id,
        "focalroute.feedback.source": "reviewer",
    }


def test_a_stream_belongs_to_the_span_it_was_begun_in(pool: SimulatedPool) -> None:
    seen = Seen()
    with Ensemble(pool.endpoints, telemetry=seen.telemetry(), seed=0) as ensemble, seen.handler():
        assert "".join(ensemble.stream("What is 17 + 25? Think aloud."))
    ask, handler = seen.one("focalroute.ask"), seen.one("handler")
    assert ask.parent is not None
    assert ask.parent.span_id == own_id(handler)


@pytest.mark.parametrize("stream", [False, True])
def test_an_ask_of_the_server_belongs_to_the_trace_of_its_own_request(pool: SimulatedPool, stream: bool) -> None:
    """And not to that of the request before on the same connection."""
    seen, trace_id, span_id = Seen(), "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"Content-Type": "application/json", "traceparent": f"00-{trace_id}-{span_id}-01"}
    with served(pool.endpoints, telemetry=seen.telemetry(), probe_share=0.0) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        for names_a_trace in (True, False):
            if not names_a_trace:
                del headers["traceparent"]
            connection.request("POST", "/v1/chat/completions", json.dumps(ask(stream=stream)), headers)
            response = connection.getresponse()
            assert response.status == 200
            response.read()
        connection.close()
    first, second = (span for span in seen.spans if span.name == "focalroute.ask")
    assert first.parent is not None
    assert f"{first.parent.trace_id:032x}" == trace_id
    assert f"{first.parent.span_id:016x}" == span_id
    assert second.parent is None


def test_text_is_recorded_on_request_alone(pool: SimulatedPool) -> None:
    seen = Seen()
    with Ensemble(pool.endpoints, telemetry=seen.telemetry(content=True)) as ensemble:
        answer = ensemble.ask(PROMPT, choices=["32", "42"])
    told = attributes(seen.one("focalroute.ask"))
    (asked,), (said,) = json.loads(told["gen_ai.input.messages"]), json.loads(told["gen_ai.output.messages"])
    assert asked == {"role": "user", "parts": [{"type": "text", "content": PROMPT}]}
    parts = [{"type": "text", "content": answer.text}]
    assert said == {"role": "assistant", "parts": parts, "finish_reason": "stop"}


def test_a_call_names_its_service_as_the_conventions_do() -> None:
    """They were all openai. A service is known by its name or its host, else by how it speaks."""
    named = {
        "anthropic": Endpoint("anthropic/m"),
        "gcp.gemini": Endpoint("gemini/m"),
        "mistral_ai": Endpoint("e", model="m", base_url="https://api.mistral.ai/v1"),
        "vllm": Endpoint("e", model="m", base_url="http://127.0.0.1:1/v1", dialect="vllm"),
        "openai": Endpoint("e", model="m", base_url="http://127.0.0.1:1/v1"),
    }
    assert [_endpoint_attributes(endpoint)["gen_ai.provider.name"] for endpoint in named.values()] == list(named)


def test_messages_have_the_shape_of_the_conventions(pool: SimulatedPool) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 17, "b": 25}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": PROMPT}, image]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    seen = Seen()
    with Ensemble(pool.endpoints, telemetry=seen.telemetry(content=True)) as ensemble:
        ensemble.ask(messages)
    told = json.loads(attributes(seen.one("focalroute.ask"))["gen_ai.input.messages"])
    assert [message["parts"] for message in told] == [
        [{"type": "text", "content": PROMPT}, image],
        [{"type": "tool_call", "id": "c1", "name": "add", "arguments": '{"a": 17, "b": 25}'}],
        [{"type": "tool_call_response", "id": "c1", "response": "42"}],
    ]


def test_a_service_cannot_inject_text_or_series_through_the_names_it_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The key or the prompt as model, id and finish reason of a reply, plain or within longer names."""
    key, word, asks = "sk-planted0KEY1never2to3be4seen", "violet-walrus-prompt", 12
    monkeypatch.setenv("PLANTED_KEY", key)
    echoed = (key, word, f"m-{key}", f"chatcmpl-{word}", "violet-walrus", f"Say {word}", "m" * 129, "a\x1b[2J")
    sent = itertools.cycle(echoed)

    async def echoes(_: web.Request, __: Any) -> web.StreamResponse:
        name = next(sent)
        choice = {"index": 0, "message": {"role": "assistant", "content": "42"}, "finish_reason": name}
        return json_reply(completion(model=name, id=name, choices=[choice]))

    async def names_itself(_: web.Request, body: Any) -> web.StreamResponse:
        number = next(numbers)
        return json_reply(completion("42", model=f"made-up-{number}", id=f"c-{number}"))

    numbers, seen = itertools.count(), Seen()
    with serving(echoes) as echoing, serving(names_itself) as naming:
        addresses = {"echoes": echoing.url, "names": naming.url}
        pool = [Endpoint(name, model="m", base_url=url, api_key_env="PLANTED_KEY") for name, url in addresses.items()]
        with Ensemble(pool, policy="plurality", telemetry=seen.telemetry()) as ensemble:
            for _ in range(asks):
                ensemble.ask(word, choices=["42", "43"])
    exported = seen.everything()
    for private in (key, "violet-walrus", "\\u001b", "m" * 129):
        assert private not in exported
    told = [attributes(span) for span in seen.spans if span.name == "chat m"]
    assert {one["gen_ai.response.finish_reasons"] for one in told} == {("other",), ("stop",)}
    harmless = {one["gen_ai.response.model"] for one in told if one["focalroute.endpoint"] == "names"}
    assert len(harmless) == asks
    points = seen.metrics()
    assert len(points["gen_ai.client.operation.duration"]) == len(pool)
    assert len(points["gen_ai.client.token.usage"]) == len(pool) * 2


def test_asks_that_are_not_sampled_are_still_measured(pool: SimulatedPool) -> None:
    seen = Seen()
    telemetry = seen.telemetry(tracers={"sampler": ALWAYS_OFF})
    with Ensemble(pool.endpoints, telemetry=telemetry) as ensemble:
        ensemble.ask(PROMPT, choices=["32", "42"])
    assert seen.spans == []
    assert seen.metrics()["focalroute.ask.duration"][0].count == 1


def test_a_recording_that_fails_costs_no_answer(pool: SimulatedPool, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            raise LookupError(PROMPT)

    seen = Seen()
    telemetry = seen.telemetry()
    seen.tracers.add_span_processor(Broken())
    with Ensemble(pool.endpoints, telemetry=telemetry) as ensemble:
        assert ensemble.ask(PROMPT, choices=["32", "42"]).durable
    assert "telemetry could not be recorded: LookupError" in caplog.text
    assert PROMPT not in caplog.text


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_without_telemetry_opentelemetry_is_not_imported(pool: SimulatedPool) -> None:
    code = f"""
import sys
from focalroute import Endpoint, Ensemble
with Ensemble([Endpoint("e", model="swift-8b", base_url={pool.endpoints[0].base_url!r})]) as ensemble:
    answer = ensemble.ask("{PROMPT}", choices=["32", "42"])
    ensemble.feedback(answer, reward=1)
print(any(name.split(".")[0] == "opentelemetry" for name in sys.modules))
"""
    assert python(code) == "False"


def test_missing_packages_and_wrong_settings_are_named() -> None:
    endpoint = Endpoint("e", model="m", base_url="http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="telemetry: give True, False or a Telemetry, got str"):
        Ensemble([endpoint], telemetry="yes")  # type: ignore[arg-type]
    for wrong, said in (
        ({"tracer_provider": trace.get_tracer("app")}, "tracer_provider: give a TracerProvider, got ProxyTracer"),
        ({"meter_provider": 1}, "meter_provider: give a MeterProvider, got int"),
        ({"logger_provider": "x"}, "logger_provider: give a LoggerProvider, got str"),
        ({"content": "no"}, "content: give a bool, got str"),
    ):
        with pytest.raises(ConfigError, match=f"Telemetry.{said}"):
            Ensemble([endpoint], telemetry=Telemetry(**wrong))
    code = """
import sys
sys.modules["opentelemetry"] = None
from focalroute import ConfigError, Endpoint, Ensemble
try:
    Ensemble([Endpoint("e", model="m", base_url="http://127.0.0.1:1")], telemetry=True)
except ConfigError as error:
    print(error)
"""
    assert python(code) == "telemetry: needs OpenTelemetry; pip install 'focalroute[otel]'"


def test_recorded_names_stay_as_dashboards_know_them() -> None:
    """Names on spans and metrics are an interface of their own: moving a module must not change them."""
    ours = set(re.findall(r'"(focalroute\.[a-z_.]+)"', inspect.getsource(recorder)))
    expected = (
        "ask decide fuse endpoint round attempts hedge_of cost_usd answer.id rounds members policy.name "
        "policy.version candidates confidence degraded considered picked probability feedback.source ask.duration cost"
    )
    assert ours == {f"focalroute.{name}" for name in expected.split()}
