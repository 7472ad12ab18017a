"""OpenTelemetry (extra ``otel``): spans of asks, their decisions and calls, metrics, and an event for each feedback.

It is off unless enabled by ``Ensemble(telemetry=True)``, which uses the program's providers, or by a `Telemetry` with
providers of its own. While it is off, OpenTelemetry is not imported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from focalroute.core.config import Endpoint
from focalroute.core.errors import ConfigError, needing
from focalroute.core.event_loops import DaemonThreads

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from focalroute.serving.telemetry.recorder import Recorder

_NEEDED = "telemetry: needs OpenTelemetry", "otel"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Where spans, metrics and events go.

    Attributes:
        tracer_provider: None: the one that the program has set (`opentelemetry.trace.set_tracer_provider`).
        meter_provider: likewise.
        logger_provider: likewise; it takes the events.
        content: whether the span of an ask has its messages and answer. Nothing else ever holds text.
    """

    tracer_provider: TracerProvider | None = None
    meter_provider: MeterProvider | None = None
    logger_provider: LoggerProvider | None = None
    content: bool = False


def make_recorder(telemetry: Telemetry | bool, endpoints: Iterable[Endpoint]) -> Recorder | None:
    """Make the recorder of these endpoints' asks; None: nothing is recorded.

    Raises:
        ConfigError: it is neither a Telemetry nor a bool, or OpenTelemetry is not installed.
    """
    if telemetry is False:
        return None
    if telemetry is not True and not isinstance(telemetry, Telemetry):
        raise ConfigError(f"telemetry: give True, False or a Telemetry, got {type(telemetry).__name__}")
    with needing(*_NEEDED):
        from focalroute.serving.telemetry.recorder import Recorder
    return Recorder(Telemetry() if telemetry is True else telemetry, endpoints)


@contextlib.contextmanager
def exporting() -> Iterator[Telemetry]:
    """Send telemetry in the background by OTLP over HTTP, configured by the variables ``OTEL_...``.

    Raises:
        ConfigError: OpenTelemetry is not installed, or refuses a variable.
    """
    with needing(*_NEEDED):
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    resource = Resource.create({SERVICE_NAME: "focalroute", **OTELResourceDetector().detect().attributes})
    try:
        spans = BatchSpanProcessor(OTLPSpanExporter())
        events = BatchLogRecordProcessor(OTLPLogExporter())
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    except ValueError as error:
        message = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(f"OTEL_...: OpenTelemetry refuses a variable: {message}; correct it") from None
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracers.add_span_processor(spans)
    meters = MeterProvider([reader], resource, shutdown_on_exit=False)
    loggers = LoggerProvider(resource, shutdown_on_exit=False)
    loggers.add_log_record_processor(events)
    try:
        yield Telemetry(tracers, meters, loggers)
    finally:
        with DaemonThreads(3, "focalroute-telemetry") as threads:
            ends = [threads.submit(one.shutdown) for one in (tracers, meters, loggers)]
            wait(ends)  # all at once, so that a missing collector costs 10 seconds, not 30
