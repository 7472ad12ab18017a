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

import logging

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
