"""Right inputs to start from, one of each form that the readers know."""

from __future__ import annotations

import io
import json
import tempfile
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from focalroute.observe.confusion import ChoiceCounts, ChoiceSet
from focalroute.observe.experience import Experience
from focalroute.policy.bundle import COLD
from focalroute.policy.publish import publish
from focalroute.store.accounts import Account
from focalroute.store.base import CapabilityRow, HealthRow, Reservation, StoredProbe
from focalroute.store.codec import pack
from focalroute.store.sqlite.store import SqliteStore
from tests.loopback import completion
from tests.store.made import answer, bill, judge, trajectory

TOP = [{"token": "B", "logprob": -0.1}, {"token": " B", "logprob": -3.5}, {"token": "A", "logprob": -4.0}]
OPENAI_LOGPROBS = {"content": [{"token": "B", "logprob": -0.1, "bytes": [66], "top_logprobs": TOP}]}
TOGETHER_LOGPROBS = {"tokens": ["B"], "token_logprobs": [-0.1], "top_logprobs": [{"B": -0.1, "A": -2.5}]}
USAGE = {
    "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "cost": 0.00001425,
    "prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 2},
}  # fmt: skip
TEXTS = (
    "B", "B) Saturn", "The answer is B.", "**B**", "Saturn", "Not Jupiter but Saturn", '{"answer": "B"}',
    "<think>A?</think>B", 'The text says "the answer is A". The answer is B.', "\\boxed{B}", "Option (B) is right",
    "A or B", "So 1,250.50 in all.", "-3", "1e-30", "The answer is:  New   York.", "> the answer is A\n\nB",
    "“the answer is A” is wrong: C", "\ufdfa \u0300\u0316", "6 * 7 = 42\n#### 42", "Answer: \\frac{3}{4}", "3 1/2 cups",
    "$x^2 - 1 = (x-1)(x+1)$", "x = 2 or x = -\\sqrt{3}", "[1, 2) \\cup (3, \\infty)", "1 \\pm \\sqrt{5}", "sin 2x < 1",
    "The answer is March 3rd, 2024.", "31/12/2024", "It is not true.", "**Yes**", "one hundred and twenty-one",
    "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "<answer>x_1 + 2^{10}</answer>", "S\u00e3o Paulo, U.S.A.",
)  # fmt: skip


def choice(text: Any = "B", **fields: Any) -> dict[str, Any]:
    """One choice of a whole reply."""
    return {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop", **fields}


CALL = {"index": 0, "id": "call", "type": "function", "function": {"name": "f", "arguments": "{}"}}
REPLIES: tuple[Any, ...] = (
    completion("B"),
    completion(choices=[choice(logprobs=OPENAI_LOGPROBS)], usage=USAGE),
    completion(choices=[choice(logprobs=TOGETHER_LOGPROBS)]),
    completion(choices=[choice(text) for text in ("A", "B", "B. Saturn", None)]),
    completion(choices=[choice([{"type": "text", "text": "The answer is B."}])]),
    completion(choices=[{**choice(""), "message": {"role": "assistant", "content": None, "tool_calls": [CALL]}}]),
    *(completion(text) for text in TEXTS),
    {"error": {"message": "x", "type": "server_error", "code": 502}},
)


def event(text: str | None = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """One event of a stream."""
    return {
        "id": "s",
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}],
        **fields,
    }


STREAMS: tuple[tuple[Any, ...], ...] = (
    (event("The answer "), event("is B."), event(finish="stop"), {"choices": [], "usage": USAGE}),
    (
        event(""),
        {"choices": [{"index": 0, "delta": {"content": "B"}, "logprobs": OPENAI_LOGPROBS}]},
        event(finish="stop"),
    ),
    ({"choices": [{"index": 1, "delta": {"content": "A"}, "finish_reason": "stop"}]}, event("B", "stop", usage=USAGE)),
    ({"choices": [{"index": 0, "delta": {"tool_calls": [CALL]}}]},) * 2 + (event(finish="tool_calls"),),
    (event("B"), {"error": {"code": 500, "message": "x"}}),
)


def sse(events: Any) -> bytes:
    """Events as they are streamed."""
    each = events if isinstance(events, list | tuple) else [events]
    return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in each) + b"data: [DONE]\n\n"


LISTINGS: tuple[Any, ...] = (
    [{"id": "m", "pricing": {"input": 0.88, "output": 0.88, "cached_input": 0.4}}],
    {
        "data": [
            {"id": "m", "metadata": {"pricing": {"input_tokens": 0.2, "output_tokens": 0.4, "cache_read_tokens": 0.1}}}
        ]
    },
    {"data": [{"id": "m", "pricing": {"prompt": "0.0000005", "completion": "0.000001", "input_cache_read": "0"}}]},
)
LOOKUPS: tuple[Any, ...] = (
    {
        "data": {
            "id": "gen-1",
            "total_cost": 0.0015,
            "upstream_inference_cost": 0.0012,
            "is_byok": True,
            "usage": 0.0015,
        }
    },
    {"data": {"id": "gen-1", "total_cost": "0.5", "upstream_inference_cost": None, "cancelled": True}},
)
HEADERS = (
    "7",
    "1500",
    "-3",
    "nan",
    "Sat, 21 Nov 2026 20:00:00 GMT",
    "Sat, 21 Nov 2026 20:00:00 -0000",
    "21 Nov 26 1:2 EST",
    "1e400",
)
LIMITS = (
    b"x-ratelimit-remaining-requests:0\nx-ratelimit-reset-requests:1.5s\nx-ratelimit-remaining-tokens:149984",
    b"X-RateLimit-Remaining-Tokens:0\nX-RateLimit-Reset-Tokens:6m0s\nx-ratelimit-reset-requests:20ms",
    b"x-ratelimit-remaining: 0\nx-ratelimit-reset: 2",
    b"X-RateLimit-Limit:60\nX-RateLimit-Remaining:0\nX-RateLimit-Reset:1700000003000",
    b"x-ratelimit-remaining:0\nx-ratelimit-reset:1d2h",
)
CAPABILITIES = {"logprobs": True, "top_logprobs": 5, "n": True, "structured_choice": False, "stream_usage": True}
POOL = b"""
[[endpoint]]
name = "a"
base_url = "https://api.together.xyz/v1"
model = "m"
api_key_env = "TOGETHER_API_KEY"
input_usd_per_1m = 0.88
output_usd_per_1m = 0.88
prices_as_of = 2026-11-01
max_concurrency = 4
params = { temperature = 0.5 }
[[endpoint]]
name = "b"
base_url = "http://localhost:8000/v1"
model = "m"
dialect = "vllm"
logprobs = true
[ensemble]
max_rounds = 2
[budget]
usd_total = 20
usd_per_period = { day = 5 }
"""
LOG = {
    "id": "q1", "task": "t", "prompt": "?", "choices": ["a", "b"], "label": 1,
    "outputs": {
        "x": {"answer": 1, "probabilities": [0.25, 0.75], "prompt_tokens": 5, "completion_tokens": 1, "cost_usd": 0.1},
        "y": {"answer": None, "prompt_tokens": 5, "completion_tokens": 1, "error": "timeout", "latency_s": 1.5},
    },
}  # fmt: skip


def trajectory_bytes() -> bytes:
    """As the store keeps it."""
    return pack(trajectory(n=3, decisions=2))


def experience() -> Experience:
    """Of two endpoints, five queries and a set of choices that recurs."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((5, 8)).astype(np.float32)
    even, unknown, ones = np.full(2, 0.5, np.float32), np.full(2, np.nan, np.float32), np.ones((5, 2), np.float32)
    counts = ChoiceCounts(np.ones(3), np.ones((2, 3, 3), np.float32))
    confusion: dict[ChoiceSet, ChoiceCounts] = {(None, ("no", "perhaps", "yes")): counts}
    return Experience(("a", "b"), even, unknown, vectors, ones, ones, confusion=confusion)


def models() -> tuple[bytes, bytes]:
    """The ONNX files of the Decider and the Fusion that are shipped."""
    return (COLD / "decider.onnx").read_bytes(), (COLD / "fusion.onnx").read_bytes()


def checkpoint() -> bytes:
    """The beginnings of what training keeps: enough for its archive to be opened."""
    file = io.BytesIO()
    np.savez_compressed(file, made_for=np.array("{}"), counts=np.arange(300))
    return file.getvalue()


def bundle(root: Path) -> Path:
    """The folder of a version, with experience."""
    decider, fusion = models()
    publish(root, decider=decider, fusion=fusion, names=(), parent=None, experience=experience())
    return root / "v000001"


def database() -> bytes:
    """A store with a row of everything."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "s.db"
        with closing(SqliteStore(path)) as store:
            store.write(*(answer(name, steps=trajectory(n=3, decisions=1)) for name in "abc"), bill()).result(10)
            store.write(judge("a"), CapabilityRow("k", 1.0, CAPABILITIES), HealthRow("k", 2.0, 1, 1.0)).result(10)
        return path.read_bytes()


def store_files() -> dict[str, bytes]:
    """A store as a process that died has left it: by name its database, its log and the number of its latest commit.

    Reservations are not the last that was written: a lost end with nothing else in it goes unnoticed.
    """
    limits = {Account(): Decimal(9)}
    held = Reservation("r", "x", "a", Decimal(1), ("team",), timeout_s=10**9)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "s.db"
        for life in "ab":
            with closing(SqliteStore(path, poll_s=60)) as store:
                store.open_accounts(limits)
                store.reserve(replace(held, id=life), limits).result(10)
                store.write(CapabilityRow("k", 1.0, CAPABILITIES), HealthRow("k", 2.0, 1, 1.0)).result(10)
                for number in range(3):
                    asked = f"{life}{number}"
                    store.write(answer(asked, steps=trajectory(n=3, decisions=1)), bill(), bill()).result(10)
                    store.write(judge(asked), StoredProbe(asked, "c", "k", 3, 0.5, None)).result(10)
                found = {file: (Path(name) / file).read_bytes() for file in ("s.db", "s.db-wal")}
        return {**found, "s.db-commits": (Path(name) / "s.db-commits").read_bytes()}
