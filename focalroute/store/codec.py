"""Records to text and bytes and back, exactly. No pickle: JSON, and raw little-endian float32."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

import numpy as np

from focalroute.errors import StoreError
from focalroute.records import F32, Decision, Evidence, Member, Observation, Trajectory
from focalroute.store.base import StoredAnswer

__all__ = ["from_pico", "pack", "read_answer", "to_pico", "unpack", "write_answer"]

_PICO = Decimal(10) ** 12
_HEAD = struct.Struct("<I")


def to_pico(usd: Decimal | None) -> int | None:
    """USD as whole picodollars, rounded half to even."""
    return None if usd is None else int((usd * _PICO).to_integral_value(ROUND_HALF_EVEN))


def from_pico(pico: int | None) -> Decimal | None:
    """Picodollars as USD, exactly."""
    return None if pico is None else Decimal(pico) / _PICO


def write_answer(answer: StoredAnswer) -> str:
    """What is small and plain of an answer, as JSON."""
    members = {
        name: [m.round, m.candidate, m.completion_tokens, m.latency_s, None if m.usd is None else str(m.usd)]
        for name, m in answer.members.items()
    }
    record = [answer.keys, answer.kind, answer.answered, answer.probabilities, members]
    return json.dumps(record, separators=(",", ":"))


def read_answer(
    row: tuple[str, float, str, bytes | None, str, str | None],
) -> StoredAnswer:
    """The answer of a row (id, created_at, record, trajectory, receipt, texts); StoreError if it is damaged."""
    answer_id, created_at, record, trajectory, receipt, texts = row
    try:
        keys, kind, answered, probabilities, members = json.loads(record)
        return StoredAnswer(
            id=answer_id,
            created_at=created_at,
            keys=tuple(keys),
            kind=kind,
            answered=answered,
            probabilities=tuple(probabilities),
            members={name: _member(*values) for name, values in members.items()},
            trajectory=None if trajectory is None else unpack(trajectory),
            receipt=receipt,
            texts=texts,
        )
    except (ValueError, TypeError, KeyError, IndexError, ArithmeticError, struct.error) as error:
        raise StoreError(f"answer {answer_id}: its row is damaged ({type(error).__name__}: {error})") from None


def _member(number: int, candidate: int, tokens: int, latency_s: float, usd: str | None) -> Member:
    return Member(number, candidate, tokens, latency_s, None if usd is None else Decimal(usd))


def pack(trajectory: Trajectory) -> bytes:
    """A trajectory as bytes: a JSON head with the shapes, then all arrays behind each other."""
    arrays: list[F32] = []
    for observation, _ in trajectory.decisions:
        arrays += (observation.context, observation.endpoints)
    arrays += (trajectory.evidence.members, trajectory.evidence.candidates)
    head = {
        "version": trajectory.version,
        "endpoints": trajectory.endpoints,
        "decisions": [dataclasses.astuple(decision) for _, decision in trajectory.decisions],
        "members": trajectory.evidence.endpoints,
        "fused": trajectory.fused,
        "fusion_log_mu": trajectory.fusion_log_mu,
        "shapes": [array.shape for array in arrays],
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    return b"".join((_HEAD.pack(len(text)), text, *(array.astype("<f4", copy=False).tobytes() for array in arrays)))


def unpack(data: bytes) -> Trajectory:
    """The trajectory that `pack` wrote; ValueError and its like if it did not."""
    (size,) = _HEAD.unpack_from(data)
    start = _HEAD.size + size
    head = json.loads(data[_HEAD.size : start])
    arrays = iter(_arrays(data, start, head["shapes"]))
    decisions = tuple((Observation(next(arrays), next(arrays)), _decision(*values)) for values in head["decisions"])
    evidence = Evidence(next(arrays), next(arrays), tuple(head["members"]))
    return Trajectory(
        head["version"], tuple(head["endpoints"]), decisions, evidence, head["fused"], head["fusion_log_mu"]
    )


def _arrays(data: bytes, start: int, shapes: Sequence[Sequence[int]]) -> list[F32]:
    arrays: list[F32] = []
    for shape in shapes:
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(data, "<f4", count, start).reshape(shape).astype(np.float32, copy=False))
        start += 4 * count
    if start != len(data):
        raise ValueError(f"{len(data) - start} bytes too many")
    return arrays


def _decision(number: int, must_pick: bool, order: Any, eligible: Any, p: Any, picked: Any, log_mu: Any) -> Decision:
    return Decision(number, must_pick, tuple(order), tuple(eligible), tuple(p), tuple(picked), log_mu)
