"""focalroute: a learned ensemble over a pool of OpenAI-compatible endpoints.

A query goes through these steps, each of them one module:

    query          query.py      what the caller passes, checked
    observation    observe/      window of outcomes, diversity, features of the text -> vectors
    decision       policy/       the Decider: whom to ask next, or to stop (ONNX)
    replies        pool.py       asks concurrently, through elicit/ and endpoint.py
    (next round, or)
    answer         policy/       the Fusion: candidates scored (ONNX)
    receipt        ask.py        who was asked, why, what it cost
    store          store/        what feedback and learning need
    feedback       learn/        credit for each member -> window of outcomes

`AsyncEnsemble` (ensemble.py) reads like this list; `Ensemble` (sync.py) is its synchronous face.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from focalroute.answer_stream import AsyncAnswerStream
    from focalroute.config import Budget, Endpoint
    from focalroute.embedders import OnnxEmbedder
    from focalroute.ensemble import AsyncEnsemble
    from focalroute.errors import (
        BadLabel,
        BudgetExceeded,
        ConfigError,
        DeadlineExceeded,
        FeedbackConflict,
        FeedbackError,
        FocalrouteError,
        PolicyError,
        PoolError,
        StoreError,
        StreamBroken,
        UnknownAnswer,
    )
    from focalroute.judge import Judge, JudgeStats
    from focalroute.receipts import Call, Choice, Limit, Receipt
    from focalroute.records import Answer, Failure, Reply, Usage
    from focalroute.stats import EndpointStats, Stats
    from focalroute.sync import AnswerStream, Ensemble

__version__ = "0.1.0"

logging.getLogger("focalroute").addHandler(logging.NullHandler())  # quiet, unless the program says otherwise

__all__ = [
    "Answer",
    "AnswerStream",
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
    "Failure",
    "FeedbackConflict",
    "FeedbackError",
    "FocalrouteError",
    "Judge",
    "JudgeStats",
    "Limit",
    "OnnxEmbedder",
    "PolicyError",
    "PoolError",
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
        "answer_stream": "AsyncAnswerStream",
        "config": "Budget Endpoint",
        "embedders": "OnnxEmbedder",
        "ensemble": "AsyncEnsemble",
        "errors": "BadLabel BudgetExceeded ConfigError DeadlineExceeded FeedbackConflict FeedbackError FocalrouteError "
        "PolicyError PoolError StoreError StreamBroken UnknownAnswer",
        "judge": "Judge JudgeStats",
        "receipts": "Call Choice Limit Receipt",
        "records": "Answer Failure Reply Usage",
        "stats": "EndpointStats Stats",
        "sync": "AnswerStream Ensemble",
    }.items()
    for name in names.split()
}


if not TYPE_CHECKING:  # or a checker would take any name for a public one

    def __getattr__(name: str) -> object:
        """A public name, on its first use (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        """All public names, those that are not loaded yet included."""
        return sorted({*globals(), *__all__})
