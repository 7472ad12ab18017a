"""focalroute: a learned ensemble over a pool of OpenAI-compatible endpoints.

A query goes through these steps, in this order in `AsyncEnsemble._answer` (serving/ensemble.py):

    query      serving/query.py        what the caller passes, checked
    observe    observe/                past outcomes, diversity, features of the text -> vectors
    decide     policy/                 the Decider picks the endpoints to ask next, or stops (ONNX)
    ask        endpoints/pool.py       the members, concurrently: elicitation, retries, limits
    fuse       policy/                 the Fusion: candidates scored (ONNX); then the next round, or
    record     serving/recording.py    the answer, its receipt, the row for store/
    feedback   serving/feedback.py     validated, stored; learn/ credits each member with it

serving/settings.py has an ensemble's settings; `Ensemble` (serving/sync.py) is the synchronous interface.
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
    """Show the log at this level on standard error, unless the program has its own handlers."""
    import logging

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logger = logging.getLogger("focalroute")
    if level.strip().lower() in ("debug", "info", "warning", "error"):
        logger.setLevel(level.strip().upper())
    else:
        logger.warning("FOCALROUTE_LOG is none of debug, info, warning, error: the log level is unchanged")


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

#: The module of each public name; it is imported when the name is first used.
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


if not TYPE_CHECKING:  # else a type checker would accept any name

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
