"""``focalroute serve --telemetry`` sends OTLP over real HTTP; what arrives is decoded from its protobufs."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from focalroute import Endpoint
from focalroute.sim import SimulatedPool
from focalroute.sim.process import pool_toml
from tests.cli.calling import focalroute
from tests.server.running import ask, post, started


@pytest.fixture
def collector() -> Iterator[tuple[str, dict[str, list[bytes]]]]:
    """An OTLP/HTTP receiver: its address, and the bodies that it got, by path."""
    got: dict[str, list[bytes]] = defaultdict(list)

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got[self.path].append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_metrics_and_events_arrive(collector: tuple[str, dict[str, list[bytes]]], tmp_path: Path) -> None:
    """All of them once the server has ended, the last ones too."""
    address, got = collector
    environment = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": address,
        "OTEL_RESOURCE_ATTRIBUTES": "service.name=the-service",
    }
    with SimulatedPool() as pool:
        (tmp_path / "pool.toml").write_text(pool_toml(pool.endpoints))
        with started(tmp_path / "pool.toml", "--telemetry", env=environment) as (process, url):
            status, answer = post(f"{url}/v1/chat/completions", ask(focalroute={"choices": ["32", "42"]}))
            assert status == 200
            assert post(f"{url}/v1/feedback", {"id": answer["id"], "label": "42"})[0] == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
    traces = [ExportTraceServiceRequest.FromString(body) for body in got["/v1/traces"]]
    resources = [resource for request in traces for resource in request.resource_spans]
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    (root,) = (span for span in spans if span.name == "focalroute.ask")
    assert {attribute.key for attribute in root.attributes} >= {
        "focalroute.cost_usd",
        "focalroute.confidence",
        "focalroute.members",
    }
    members = answer["focalroute"]["members"]
    assert sorted(span.name for span in spans if span.parent_span_id == root.span_id and span.kind == 3) == sorted(
        f"chat {name}" for name in members
    )
    told = {attribute.key: attribute.value.string_value for attribute in resources[0].resource.attributes}
    assert told["service.name"] == "the-service"
    metrics = [ExportMetricsServiceRequest.FromString(body) for body in got["/v1/metrics"]]
    sent = {
        metric.name
        for request in metrics
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert sent >= {
        "gen_ai.client.operation.duration",
        "gen_ai.client.token.usage",
        "focalroute.cost",
        "focalroute.ask.duration",
    }
    logs = [ExportLogsServiceRequest.FromString(body) for body in got["/v1/logs"]]
    (event,) = (
        log
        for request in logs
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for log in scope.log_records
    )
    assert event.event_name == "gen_ai.evaluation.result"


@pytest.mark.slow
def test_a_collector_that_hangs_is_waited_for_once(tmp_path: Path) -> None:
    """Its three requests are given up at the same time; each has the seconds that the variable says."""
    with SimulatedPool() as pool, socket.create_server(("127.0.0.1", 0)) as silent:
        (tmp_path / "pool.toml").write_text(pool_toml(pool.endpoints))
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        never = dict.fromkeys(("OTEL_BSP_SCHEDULE_DELAY", "OTEL_BLRP_SCHEDULE_DELAY"), "600000")  # before the end
        environment = {**os.environ, **never, "OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_EXPORTER_OTLP_TIMEOUT": "5"}
        with started(tmp_path / "pool.toml", "--telemetry", env=environment) as (process, url):
            status, answer = post(f"{url}/v1/chat/completions", ask(focalroute={"choices": ["32", "42"]}))
            assert status == 200
            assert post(f"{url}/v1/feedback", {"id": answer["id"], "label": "42"})[0] == 200
            process.send_signal(signal.SIGTERM)
            silent.settimeout(60)
            with ExitStack() as stack:
                requests = [stack.enter_context(silent.accept()[0]) for _ in range(3)]
                assert not any(given_up(request) for request in requests)
                assert process.wait(60) == 0


def given_up(request: socket.socket) -> bool:
    """Whether its client has hung up."""
    request.setblocking(False)
    try:
        while request.recv(2**16):
            pass
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("OTEL_METRIC_EXPORT_INTERVAL", "-1", "interval value -1.0 is invalid"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "max_queue_size must be a positive integer; correct it"),
    ],
)
def test_a_variable_that_opentelemetry_refuses_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(name, value)
    (tmp_path / "pool.toml").write_text(
        pool_toml([Endpoint("e", model="m", base_url="http://127.0.0.1:1", input_usd_per_1m=1, output_usd_per_1m=1)])
    )
    done = focalroute("serve", "--pool", str(tmp_path / "pool.toml"), "--telemetry")
    assert done.returncode == 2
    assert f"OTEL_...: OpenTelemetry refuses a variable: {why}" in done.stderr
