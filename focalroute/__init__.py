"""focalroute: a learned ensemble over a pool of OpenAI-compatible endpoints.

A query goes through these steps, in this order in `AsyncEnsemble._answer` (serving/ensemble.py):

    query      serving/query.py        checks what the caller passes
    observe    observe/                turns past outcomes, diversity and features of the text into vectors
    decide     policy/                 the Decider picks the endpoints to ask next, or stops (ONNX)
    ask        endpoints/pool.py       asks them at the same time: prompts, retries, limits
    fuse       policy/                 the Fusion scores the candidates (ONNX); then the next round begins
    record     serving/recording.py    after the last round: makes the answer, its receipt and the row for store/
    feedback   serving/feedback.py     later: checks and stores feedback, with which learn/ credits each member

An ensemble's settings are in serving/settings.py; `Ensemble` (serving/sync.py) is the synchronous interface.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from focalroute.core import __version__
    from focalroute.core.config import Budget, Endpoint
    from focalroute.core.errors import (
        BadLabel,
        BudgetExceeded,
        ConfigError,
        DeadlineExceeded,
        EnsembleClosed,
        FeedbackError,
        FocalrouteError,
        PolicyError,
        PoolError,
        StoreError,
        StreamBroken,
        UnknownAnswer,
    )
    from focalroute.core.receipts import Answer, Answers, Call, Choice, Limit, Receipt
    from focalroute.core.records import Failure, Query, Reply, Usage
    from focalroute.serving.embedders import OnnxEmbedder
    from focalroute.serving.ensemble import AsyncEnsemble
    from focalroute.serving.judge import Judge, JudgeStats
    from focalroute.serving.stats import EndpointStats, Stats
    from focalroute.serving.streaming import AsyncAnswerStream
    from focalroute.serving.sync import AnswerStream, Ensemble


def _show_logs(level: str) -> None:
    """Log at this level to standard error, unless the program has log handlers of its own."""
    import logging

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logger = logging.getLogger("focalroute")
    if level.strip().lower() in ("debug", "info", "warning", "error"):
        logger.setLevel(level.strip().upper())
    else:
        logger.warning("FOCALROUTE_LOG: give debug, info, warning or error; the log level is unchanged")


if os.environ.get("FOCALROUTE_LOG"):
    _show_logs(os.environ["FOCALROUTE_LOG"])

__all__ = [
    "Answer",
    "AnswerStream",
    "Answers",
    "AsyncAnswerStream",
    "AsyncEnsemble",
    "BadLabel",
    "Budget",
    "BudgetExceeded",
    "Call",
    "Choice",
    "ConfigError",
    "DeadlineExceeded",
    "Endpoint",
    "EndpointStats",
    "Ensemble",
    "EnsembleClosed",
    "Failure",
    "FeedbackError",
    "FocalrouteError",
    "Judge",
    "JudgeStats",
    "Limit",
    "OnnxEmbedder",
    "PolicyError",
    "PoolError",
    "Query",
    "Receipt",
    "Reply",
    "Stats",
    "StoreError",
    "StreamBroken",
    "UnknownAnswer",
    "Usage",
    "__version__",
]

#: Public name -> its module, which is imported when the name is first used.
_HOMES = {
    name: module
    for module, names in {
        "core": "__version__",
        "core.config": "Budget Endpoint",
        "core.errors": "BadLabel BudgetExceeded ConfigError DeadlineExceeded EnsembleClosed FeedbackError "
        "FocalrouteError PolicyError PoolError StoreError StreamBroken UnknownAnswer",
        "core.receipts": "Answer Answers Call Choice Limit Receipt",
        "core.records": "Failure Query Reply Usage",
        "serving.embedders": "OnnxEmbedder",
        "serving.ensemble": "AsyncEnsemble",
        "serving.judge": "Judge JudgeStats",
        "serving.stats": "EndpointStats Stats",
        "serving.streaming": "AsyncAnswerStream",
        "serving.sync": "AnswerStream Ensemble",
    }.items()
    for name in names.split()
}


if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name

    def __getattr__(name: str) -> object:
        """Import a public name on its first use (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        """Return all names, including public ones that are not loaded yet."""
        return sorted({*globals(), *__all__})
