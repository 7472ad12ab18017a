"""Telemetry that is sent by OTLP over HTTP, as the standard variables say (``OTEL_EXPORTER_OTLP_ENDPOINT``, ...)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from focalroute.core.errors import ConfigError
from focalroute.serving.telemetry import NEEDED, Telemetry


@contextlib.contextmanager
def exporting() -> Iterator[Telemetry]:
    """Providers of its own, sending in the background; what is left is sent at the end.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(NEEDED) from None
    resource = Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", "focalroute")})
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    meters = MeterProvider([reader], resource, shutdown_on_exit=False)
    loggers = LoggerProvider(resource, shutdown_on_exit=False)
    loggers.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    try:
        yield Telemetry(tracers, meters, loggers)
    finally:
        for provider in (tracers, meters, loggers):
            provider.shutdown()
