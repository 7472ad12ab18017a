"""Bounds of time and memory: inputs that would take a reader with a quadratic step minutes or hours."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from focalroute.answers import KINDS, normal_form
from focalroute.core.errors import CallFailed
from focalroute.core.records import Query
from focalroute.endpoints.capabilities import Capabilities
from focalroute.endpoints.elicit import plan
from focalroute.endpoints.elicit.closed import choice_parser
from focalroute.endpoints.wire import MAX_REPLY_BYTES, decode, decode_bytes
from focalroute.endpoints.wire.stream import StreamDecoder
from focalroute.money.prices import read_listing
from tests.loopback import completion

PLANETS = ("Jupiter", "Saturn", "Mars")


def test_a_line_that_comes_byte_by_byte_is_put_together_once() -> None:
    decoder = StreamDecoder()
    event = json.dumps({"choices": [{"delta": {"content": "x" * 300_000}, "finish_reason": "stop"}]}).encode()
    for byte in b"data: " + event + b"\r\n\r\n":
        decoder.feed(bytes((byte,)))
    assert len(decoder.finish().choices[0].text) == 300_000


@pytest.mark.parametrize("ends", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_lines_end_in_all_three_ways_wherever_the_pieces_are_cut(ends: bytes, size: int) -> None:
    """A line feed that follows a carriage return in the next piece ends no other line."""
    lines = [b'data: {"choices": [{"delta":', b'data: {"content": "B"}, "finish_reason": "stop"}]}', b"", b": x"]
    body = ends.join([*lines, b""])
    decoder = StreamDecoder()
    for at in range(0, len(body), size):
        decoder.feed(body[at : at + size])
    assert decoder.finish().choices[0].text == "B"


def test_arguments_of_a_tool_call_are_put_together_once() -> None:
    decoder = StreamDecoder()
    call = {"index": 0, "id": "7", "function": {"name": "f", "arguments": "x" * 400}}
    event = b"data: " + json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}).encode() + b"\n\n"
    count = MAX_REPLY_BYTES // len(event) - 1
    for _ in range(count):
        decoder.feed(event)
    decoder.event({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    (found,) = decoder.finish().choices[0].tool_calls
    assert (found["id"], found["function"]["name"], len(found["function"]["arguments"])) == ("7", "f", 400 * count)


@pytest.mark.parametrize("part", [b"[],", b"{},", b"[{}],"])
def test_a_reply_of_nothing_but_parts_is_refused_before_it_is_parsed(part: bytes) -> None:
    with pytest.raises(CallFailed, match="too many parts"):
        decode_bytes(b"[" + part * (MAX_REPLY_BYTES // len(part)) + b"0]")


def test_a_long_text_may_hold_many_brackets() -> None:
    reply = json.dumps(completion("[" * 90_000 + "x" * 10**6)).encode()
    assert len(decode_bytes(reply).choices[0].text) == 1_090_000


def test_a_reply_with_thousands_of_samples_is_refused() -> None:
    with pytest.raises(CallFailed, match="too many choices"):
        decode(completion(choices=completion()["choices"] * 1025))


def test_no_member_has_more_votes_than_were_asked_for() -> None:
    """Ten samples were wanted; a thousand came, of which the eleventh and all others say something else."""
    able = Capabilities(logprobs=False, top_logprobs=0, n=True, structured_choice=False, stream_usage=True)
    said = ["B"] * 10 + ["A"] * 990
    choices = [completion(text)["choices"][0] for text in said]
    reading = plan(Query("q", (), PLANETS), able, samples=10).read(decode(completion(choices=choices)))
    assert reading.probabilities == (0.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("x" + "“" * 19_000, None),
        ("x “the answer is A” " + "“" * 15_000 + " the answer is B", 1),
        ("x " + '""' * 4_000 + " answer: A" * 900, 0),
        ("x" + "(" * 19_000, None),
        ("<think>" * 100_000, None),
        ("B" * 10**6, None),
        *(
            (piece * (19_000 // len(piece)), None)
            for piece in ("so it is ", "(A) or (B) ", "answer is not ", "Mars isn't ")
        ),
    ],
)
def test_a_text_made_to_be_slow_is_read_at_once(text: str, named: int | None) -> None:
    found = choice_parser(PLANETS).find(text)
    assert (found and found.choice) == named


def test_a_text_of_combining_characters_is_not_a_short_answer() -> None:
    """Normalising it would take time with the square of its length; plain text may be as long as it likes."""
    assert normal_form("a" + "\u0300\u0316" * 4_000_000, "short") is None
    assert normal_form("\u00e9 " * 4_000, "short") is not None
    assert normal_form("x" * 4_000_000 + "\nthe answer is: " + "x" * 9_000, "short") == "x" * 9_000
    assert normal_form("the answer is: " + "x" * 4_000_000, "short") is None


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "text"])
@pytest.mark.parametrize(
    "piece", ["answer is ", "\\boxed{", "1 1/", "(((x+1)^9-", "$\\(", "not no ", "3 march ", "<answer>"]
)
def test_ten_megabytes_of_anything_are_read(piece: str, kind: str) -> None:
    """An answer stands at the end: the rest is not looked at closely."""
    text = piece * (10_000_000 // len(piece))
    for reply in (text, "The answer is " + text[:19_000], f"\\boxed{{{text[:380]}}}"):
        form = normal_form(reply, kind)
        assert form is None or normal_form(form, kind) == form


@pytest.mark.parametrize("text", ["9" * 4_000_000, "1,111" * 10**6, "1e" * 10**6, "1." * 10**6, "1e" + "9" * 10**6])
def test_numbers_of_any_length_are_read(text: str) -> None:
    form = normal_form(text, "number")
    assert form is None or normal_form(form, "number") == form


@pytest.mark.parametrize("cost", ["1e-999999999", "0e-999999999", 1e-300, "1e999999999", "9" * 1_000])
def test_a_cost_or_price_of_endless_digits_is_unknown(cost: Any) -> None:
    """Written out somewhere it would be a gigabyte."""
    usage = decode(completion(usage={"prompt_tokens": 1, "completion_tokens": 1, "cost": cost})).usage
    assert usage is not None
    assert usage.cost_usd is None
    assert read_listing([{"id": "m", "pricing": {"input": cost, "output": 1}}], "together") == {}
    assert read_listing([{"id": "m", "pricing": {"input": Decimal("0.1"), "output": 1}}], "together") != {}


@pytest.mark.parametrize(
    "values", [None, [], "x", 5, {"top_logprobs": "5", "logprobs": 1}, {"n": [], "top_logprobs": True}]
)
def test_capabilities_of_wrong_types_are_ignored(values: Any) -> None:
    assert Capabilities.from_dict(values) == Capabilities(False, 0, False, False, False)
