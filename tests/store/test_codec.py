"""Records survive their way to bytes and back, bit for bit, and damage never passes unseen."""

from __future__ import annotations

import dataclasses
import json
import pickle
import struct
import zlib
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from focalroute.core.errors import StoreError
from focalroute.core.records import Decision, Evidence, Member, Observation, Trajectory
from focalroute.store.accounts import from_pico, to_pico
from focalroute.store.base import StoredAnswer
from focalroute.store.codec import pack, read_answer, unpack, write_answer
from tests.store.made import answer, trajectory

FEW = settings(max_examples=20)

floats = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(max_size=8)


def array(*shape: int) -> st.SearchStrategy[Any]:
    return arrays.arrays(np.float32, shape, elements=st.floats(allow_nan=False, width=32))


@st.composite
def decisions(draw: st.DrawFn, n: int) -> tuple[Observation, Decision]:
    order = tuple(draw(st.permutations(range(n))))
    eligible = tuple(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    p = tuple(draw(st.lists(floats, min_size=n, max_size=n)))
    picked = order[: draw(st.integers(0, n))]
    made = Decision(draw(st.integers(1, 9)), draw(st.booleans()), order, eligible, p, picked, draw(st.none() | floats))
    return Observation(draw(array(5)), draw(array(n, 3))), made


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    n, k, m = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(0, 3))
    return Trajectory(
        draw(st.integers(0, 2**63)),
        tuple(draw(st.lists(names, min_size=n, max_size=n))),
        tuple(draw(st.lists(decisions(n), max_size=3))),
        Evidence(draw(array(k, m, 8)), draw(array(k, 4)), tuple(range(m))),
        draw(st.integers(0, k - 1)),
        draw(st.none() | floats),
        draw(array(draw(st.sampled_from((0, 7))))),
    )


def same(a: Any, b: Any) -> bool:
    """Equal types and values; arrays to the last bit."""
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


@FEW
@given(trajectories())
def test_a_trajectory_comes_back_to_the_last_bit(made: Trajectory) -> None:
    """No decisions and no members included."""
    assert same(unpack(pack(made)), made)


def test_a_trajectory_packed_without_features_is_read() -> None:
    """As an earlier version wrote it: the features' shape, the last one, left out; they hold no bytes."""
    made = trajectory()
    head, body = struct.Struct("<II"), pack(made)
    size = head.unpack_from(body)[1]
    text = json.loads(body[head.size : head.size + size])
    assert text["shapes"].pop() == [0]
    older = json.dumps(text).encode()
    older += b" " * (-len(older) % 4) + body[head.size + size :]
    found = unpack(head.pack(zlib.crc32(older), len(older) - len(body) + head.size + size) + older)
    assert same(found, made)


def test_arrays_lie_aligned_and_cannot_be_written() -> None:
    """An engine may use them in place; nobody may change what was recorded."""
    steps = unpack(pack(trajectory()))
    for step, _ in steps.decisions:
        assert step.context.flags.aligned
        assert step.endpoints.flags.aligned
        assert not step.context.flags.writeable


def test_other_memory_layouts_are_stored_as_their_values() -> None:
    """A transposed array is no different from its copy."""
    turned = np.arange(24, dtype=np.float32).reshape(4, 6).T
    made = Trajectory(1, (), (), Evidence(np.zeros((1, 0, 8), np.float32), turned, ()), 0)
    assert np.array_equal(unpack(pack(made)).evidence.candidates, turned)


@FEW
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_any_damaged_byte_of_a_trajectory_is_noticed(where: int, flip: int) -> None:
    """Also one within the numbers, which would otherwise be learned from."""
    data = bytearray(pack(trajectory()))
    data[where % len(data)] ^= flip
    with pytest.raises(StoreError, match="answer x: its row is damaged"):
        read_answer(("x", 1.0, write_answer(answer("x")), bytes(data), "{}", None))


@pytest.mark.parametrize("data", [b"", b"\0" * 7, pack(trajectory())[:-4], pack(trajectory()) + b"more"])
def test_a_cut_or_longer_trajectory_is_noticed(data: bytes) -> None:
    """Whatever is not what was written."""
    with pytest.raises(StoreError, match="damaged"):
        read_answer(("x", 1.0, write_answer(answer("x")), data, "{}", None))


@pytest.mark.parametrize(
    "record", ["", "{", "[]", "null", "[[], 1, 2, [], []]", '[[],"choice",0,[],{"a":[1]}]', "[" * 9999]
)
def test_a_damaged_record_is_a_store_error_that_names_the_answer(record: str) -> None:
    """Whatever it was damaged to."""
    with pytest.raises(StoreError, match="answer x: its row is damaged"):
        read_answer(("x", 1.0, record, None, "{}", None))


def test_pickled_bytes_are_never_run() -> None:
    """A database from somebody else cannot make us call anything."""

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("was unpickled",))

    with pytest.raises(StoreError, match="damaged"):
        read_answer(("x", 1.0, write_answer(answer("x")), pickle.dumps(Evil()), "{}", None))


@FEW
@given(
    st.lists(names, max_size=4),
    st.lists(floats, max_size=4),
    st.dictionaries(names, st.tuples(floats, st.none() | st.decimals(allow_nan=False, allow_infinity=False))),
)
def test_an_answer_comes_back_as_it_was(keys: list[str], q: list[float], members: dict[str, Any]) -> None:
    """Money to the last digit."""
    taken = {name: Member(1, 2, 3, latency, usd) for name, (latency, usd) in members.items()}
    made = StoredAnswer("id", 1.5, tuple(keys), "short", 0, tuple(q), taken, None, "{}", "texts")
    assert read_answer(("id", 1.5, write_answer(made), None, "{}", "texts")) == made


@FEW
@given(st.integers(-(2**63), 2**63 - 1))
def test_picodollars_are_exact_both_ways(pico: int) -> None:
    """Whatever fits into a column."""
    assert to_pico(from_pico(pico)) == pico


@pytest.mark.parametrize(("usd", "pico"), [("0.0000000000005", 0), ("0.0000000000015", 2), ("-0.0000000000015", -2)])
def test_finer_money_is_rounded_half_to_even(usd: str, pico: int) -> None:
    """Below 1e-12 USD; unknown stays unknown."""
    assert to_pico(Decimal(usd)) == pico
    assert to_pico(None) is None
