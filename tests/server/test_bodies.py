"""Bodies that take long to parse are refused before parsing, and delay no other request."""

from __future__ import annotations

import threading

import pytest

from focalroute.sim import SimulatedModel
from tests.conftest import StartPool
from tests.paired import assert_measured_at_most, cpu_s
from tests.server.heartbeat import ASKED, HOSTILE, longest_hold
from tests.server.running import get, post


def worst_wait(url: str, body: bytes, code: str) -> float:
    """The longest wait for /healthz while this body is asked and refused, in CPU seconds: all work in this process."""
    answers = []

    def send() -> None:
        answers.append(post(f"{url}/v1/chat/completions", body))

    def look() -> None:
        assert get(f"{url}/healthz")[0] == 200

    sender = threading.Thread(target=send)
    sender.start()
    worst = 0.0
    while sender.is_alive():
        worst = max(worst, cpu_s(look))
    sender.join()
    status, got = answers[0]
    assert (status, got["error"]["code"]) == (400, code)
    return worst


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"messages": [[' + b"1," * 8_000_000 + b"1]]}", "too_many_values"),
        (b'{"messages": [' + b"[]," * 5_000_000 + b"[]]}", "too_many_values"),
        (b'{"messages": [' + b",".join([b"1" * 4000] * 4000) + b"]}", "invalid_json"),
        (b'{"messages": ' + b"[" * 90_000 + b"]" * 90_000 + b"}", "nested_too_deep"),
        (b'{"messages": ' + b'{"a":' * 150 + b"1" + b"}" * 150 + b"}", "nested_too_deep"),
    ],
    ids=["flat", "lists", "digits", "deep", "objects"],
)
def test_a_costly_body_is_refused_and_others_are_answered_meanwhile(url: str, body: bytes, code: str) -> None:
    assert_measured_at_most(4, lambda: worst_wait(url, body, code))


#: One of each way to be costly: to parse, to check and to ask.
QUICK = ("long keys", "deep lists", "messages", "asked: text parts")


@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in [*HOSTILE, *ASKED]]
)
def test_no_body_within_the_bounds_holds_the_event_loop(start_pool: StartPool, kind: str) -> None:
    """An idle machine is promised 100 ms, which is about two controls."""
    body, endpoints = {**HOSTILE, **ASKED}[kind](), start_pool([SimulatedModel("e")]).endpoints
    assert_measured_at_most(4, lambda: longest_hold(body, endpoints))


def test_a_body_in_very_many_chunks_does_not_hold_the_event_loop(start_pool: StartPool) -> None:
    endpoints = start_pool([SimulatedModel("e")]).endpoints
    assert_measured_at_most(3, lambda: longest_hold(b" " * 60_000, endpoints, chunked=True))


def test_nesting_up_to_the_bound_is_read(url: str) -> None:
    body = b'{"messages": ' + b"[" * 99 + b"]" * 99 + b', "tools": [' + b"[]," * 100 + b"[]]}"
    status, got = post(f"{url}/v1/chat/completions", body)
    assert (status, got["error"]["param"]) == (400, "model")
