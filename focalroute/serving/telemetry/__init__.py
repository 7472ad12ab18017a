"""OpenTelemetry (extra ``otel``): spans of asks, their decisions and calls, metrics, and an event for each feedback.

Off unless asked for by ``Ensemble(telemetry=True)``, which takes the providers that the program has set, or by a
`Telemetry` with providers of its own. Off, nothing of OpenTelemetry is imported. What is recorded under which name is
in `focalroute.serving.telemetry.names`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from focalroute.core.config import Endpoint
from focalroute.core.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from focalroute.serving.telemetry.recorder import Recorder

__all__ = ["NEEDED", "Telemetry", "recorder_of"]

NEEDED = "telemetry: needs OpenTelemetry; pip install 'focalroute[otel]'"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Where spans, metrics and events go.

    Attributes:
        tracer_provider: None: the one that the program has set (`opentelemetry.trace.set_tracer_provider`).
        meter_provider: likewise.
        logger_provider: likewise; it takes the events.
        content: whether the messages and the answer stand on the span of an ask. Nothing else ever holds text.
    """

    tracer_provider: TracerProvider | None = None
    meter_provider: MeterProvider | None = None
    logger_provider: LoggerProvider | None = None
    content: bool = False


def recorder_of(telemetry: Telemetry | bool, endpoints: Iterable[Endpoint]) -> Recorder | None:
    """What records the asks of these endpoints; None: nothing is recorded.

    Raises:
        ConfigError: it is neither a Telemetry nor a bool, or OpenTelemetry is not installed.
    """
    if telemetry is False:
        return None
    if telemetry is not True and not isinstance(telemetry, Telemetry):
        raise ConfigError(f"telemetry: give True, False or a Telemetry, got {type(telemetry).__name__}")
    try:
        from focalroute.serving.telemetry.recorder import Recorder
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] != "opentelemetry":
            raise
        raise ConfigError(NEEDED) from None
    return Recorder(Telemetry() if telemetry is True else telemetry, endpoints)
