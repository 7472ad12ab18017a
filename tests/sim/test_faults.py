"""Every fault as a client meets it, and that it can be switched while the pool runs."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import httpx
import pytest

from focalroute.core.errors import ConfigError
from focalroute.sim import Fault
from focalroute.sim.faults import BILLED, KINDS
from tests.loopback import until
from tests.sim.conftest import Client

ASKED = "What is 17 + 25?\n\nA. 32\nB. 42\n\nAnswer with the letter of one choice only."
SCORED = {"logprobs": True, "top_logprobs": 2}


def test_an_error_status_comes_with_its_retry_after_and_as_often_as_told(own: Client) -> None:
    own.pool.set("sure", faults=Fault("status", status=429, retry_after_s=2, count=2))
    first, second, third = (own.post(ASKED) for _ in range(3))
    assert (first.status_code, first.headers["retry-after"]) == (429, "2")
    assert first.json()["error"]["code"] == "rate_limit_exceeded"
    assert (second.status_code, third.status_code) == (429, 200)
    own.pool.set("sure", faults=[Fault("status", status=500, count=1), Fault("status", status=503, count=1)])
    assert [own.post(ASKED).status_code for _ in range(3)] == [500, 503, 200]


def test_a_probability_strikes_that_often_and_an_empty_list_ends_it(own: Client) -> None:
    own.pool.set("sure", faults=[Fault("status", probability=0.3)])
    codes = Counter(own.post(ASKED).status_code for _ in range(100))
    assert 15 <= codes[503] <= 45
    assert own.pool.stats()["sure"].faults == codes[503]
    own.pool.set("sure", faults=[])
    assert own.post(ASKED).status_code == 200


def test_faults_of_one_model_leave_the_others_alone(own: Client) -> None:
    own.pool.set("sure", faults=Fault("status"))
    assert own.post(ASKED, model="wordy").status_code == 200


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("cut", httpx.RemoteProtocolError),
        ("reset", (httpx.ReadError, httpx.RemoteProtocolError)),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_connections_break(own: Client, kind: str, error: Any, streamed: bool) -> None:
    own.pool.set("sure", faults=Fault(kind))
    with pytest.raises(error):
        own.post(ASKED, stream=streamed)


def test_a_hanging_call_ends_without_an_answer_and_a_client_may_leave_it(own: Client) -> None:
    own.pool.set("sure", faults=Fault("hang", seconds=0.05))
    with pytest.raises(httpx.RemoteProtocolError):
        own.post(ASKED)
    own.pool.set("sure", faults=Fault("hang", seconds=600))
    url = f"http://127.0.0.1:{own.pool.port}/openai/v1/chat/completions"
    body = {"model": "sure", "messages": [{"role": "user", "content": ASKED}]}
    with pytest.raises(httpx.ReadTimeout):
        own.http.post(url, json=body, timeout=1.5)
    until(lambda: own.pool.stats()["sure"].cancelled == 1)


def test_a_client_that_leaves_a_slow_stream_is_seen(own: Client) -> None:
    own.pool.set("wordy", latency_s=60)
    url = f"http://127.0.0.1:{own.pool.port}/openai/v1/chat/completions"
    body = {"model": "wordy", "messages": [{"role": "user", "content": "What is 17 + 25?"}], "stream": True}
    with pytest.raises(httpx.ReadTimeout):
        own.http.post(url, json=body, timeout=1.5)
    until(lambda: own.pool.stats()["wordy"].cancelled == 1)


def test_a_dripping_reply_is_right_in_the_end(own: Client) -> None:
    own.pool.set("sure", faults=Fault("drip", seconds=0.1))
    assert own.ask(ASKED, temperature=0)["choices"][0]["message"]["content"] == "B"
    assert own.post(ASKED, stream=True).text.endswith("data: [DONE]\n\n")


def test_a_short_stream_ends_politely_without_saying_so(own: Client) -> None:
    own.pool.set("sure", faults=Fault("short"))
    response = own.post("What is 17 + 25?", stream=True)
    assert response.status_code == 200
    assert "[DONE]" not in response.text
    assert '"finish_reason": "stop"' not in response.text
    with pytest.raises(json.JSONDecodeError):
        own.post("What is 17 + 25?").json()


def test_a_redirect_points_elsewhere(own: Client) -> None:
    own.pool.set("sure", faults=Fault("redirect", location="http://elsewhere.invalid/"))
    response = own.post(ASKED)
    assert (response.status_code, response.headers["location"]) == (307, "http://elsewhere.invalid/")


def test_spoiled_bodies_are_spoiled_as_told(own: Client) -> None:
    def met(kind: str, **fields: Any) -> httpx.Response:
        own.pool.set("sure", faults=Fault(kind, size=50_000))
        return own.post(ASKED, **fields)

    assert met("html").headers["content-type"].startswith("text/html")
    with pytest.raises(json.JSONDecodeError):
        met("bad_json").json()
    assert met("wrong_content_type").headers["content-type"].startswith("text/plain")
    assert met("empty_choices").json()["choices"] == []
    assert met("null_content").json()["choices"][0]["message"]["content"] is None
    assert "NaN" in met("nan_logprobs", **SCORED).text
    assert "usage" not in met("no_usage").json()
    assert met("wrong_type").json()["choices"] == 42
    assert len(met("huge").content) > 50_000


def test_streams_are_spoiled_too(own: Client) -> None:
    def met(kind: str, **fields: Any) -> str:
        own.pool.set("sure", faults=Fault(kind, size=50_000))
        return own.post(ASKED, stream=True, stream_options={"include_usage": True}, **fields).text

    assert "total_tokens" not in met("no_usage")
    assert "NaN" in met("nan_logprobs", **SCORED)
    assert len(met("huge")) > 50_000
    assert '"choices": 42' in met("wrong_type")
    with pytest.raises(json.JSONDecodeError):
        json.loads(met("bad_json").splitlines()[0].removeprefix("data: "))


def test_a_fault_is_billed_only_where_a_service_would(own: Client) -> None:
    for kind in KINDS:
        before = own.pool.stats()["sure"]
        own.pool.set("sure", faults=Fault(kind, seconds=0, size=10))
        try:
            own.post(ASKED)
        except httpx.TransportError:
            assert kind in ("hang", "cut", "reset")
        after = own.pool.stats()["sure"]
        assert after.faults == before.faults + 1
        assert (after.usd > before.usd) == (kind in BILLED), kind


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "gremlin"},
        {"probability": 1.5},
        {"count": -1},
        {"status": 200},
        {"status": "503"},
        {"retry_after_s": -1},
        {"seconds": float("inf")},
        {"size": 0},
    ],
)
def test_a_wrong_fault_is_a_config_error_that_names_the_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Fault(**{"kind": "status", **wrong})
