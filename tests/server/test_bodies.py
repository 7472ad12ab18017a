"""Bodies that take long to parse are refused before they are, and hold nobody else up."""

from __future__ import annotations

import threading
import time

import pytest

from tests.server.heartbeat import ASKED, HOSTILE, longest_hold
from tests.server.running import get, post


def worst_wait(url: str, body: bytes) -> tuple[float, int, str]:
    """The longest wait for /healthz while this body is asked, and the status and code of its response."""
    answers = []

    def send() -> None:
        answers.append(post(f"{url}/v1/chat/completions", body))

    sender = threading.Thread(target=send)
    sender.start()
    worst = 0.0
    while sender.is_alive():
        began = time.perf_counter()
        assert get(f"{url}/healthz")[0] == 200
        worst = max(worst, time.perf_counter() - began)
    sender.join()
    status, got = answers[0]
    return worst, status, got["error"]["code"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"messages": [[' + b"1," * 8_000_000 + b"1]]}", "too_many_values"),
        (b'{"messages": [' + b"[1,1,1]," * 2_000_000 + b"1]}", "too_many_values"),
        (b'{"messages": [' + b",".join([b"1" * 4000] * 4000) + b"]}", "invalid_json"),
        (b'{"messages": ' + b"[" * 90_000 + b"]" * 90_000 + b"}", "nested_too_deep"),
        (b'{"messages": ' + b'{"a":' * 150 + b"1" + b"}" * 150 + b"}", "nested_too_deep"),
    ],
    ids=["flat", "lists", "digits", "deep", "objects"],
)
def test_a_costly_body_is_refused_and_others_are_answered_meanwhile(url: str, body: bytes, code: str) -> None:
    waits = []
    for _ in range(3):  # one undisturbed attempt shows it: sender, asker and server share this process
        worst, *refused = worst_wait(url, body)
        assert refused == [400, code]
        waits.append(worst)
    assert min(waits) < 0.3


#: One of each way to be costly: to parse, to check and to ask.
QUICK = ("long keys", "deep lists", "messages", "asked: text parts")


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in [*HOSTILE, *ASKED]]
)
def test_no_body_within_the_bounds_holds_the_event_loop(kind: str) -> None:
    """100 ms is what is promised, of a machine that does nothing else: with others on it the same work takes longer."""
    assert longest_hold({**HOSTILE, **ASKED}[kind](), attempts=3) < 0.15


def test_nesting_up_to_the_bound_is_read(url: str) -> None:
    body = b'{"messages": ' + b"[" * 99 + b"]" * 99 + b', "tools": [' + b"[]," * 100 + b"[]]}"
    status, got = post(f"{url}/v1/chat/completions", body)
    assert (status, got["error"]["param"]) == (400, "model")
