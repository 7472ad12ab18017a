"""Encodes records as JSON, and trajectories as JSON and little-endian float32 with a checksum. Decoding is exact."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from pydantic_core import to_json

from focalroute.core.errors import StoreError
from focalroute.core.json_values import read_json
from focalroute.core.records import F32, HASHED, Decision, Evidence, Member, Observation, Trajectory
from focalroute.store.base import StoredAnswer, StoredProbe

_LITTLE = np.dtype("<f4")
_HEAD = struct.Struct("<II")  # CRC-32 of everything after the head, length of the JSON


def _json(value: object) -> bytes:
    """Encode as JSON with pydantic's encoder, which writes numbers five times as fast as Python's own.

    Python's encoder is the fallback: it accepts lone surrogates, and rejects NaN and infinity, which JSON lacks.

    Raises:
        ValueError: a number is not finite.
        TypeError: a value has no JSON form.
    """
    try:
        text = to_json(value)
    except ValueError:
        text = b"NaN"
    if b"NaN" in text or b"Infinity" in text:
        text = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    return text


@lru_cache(256)
def write_tags(tags: tuple[str, ...]) -> str:
    """An ask's tags as JSON, cached as most asks share a few."""
    return json.dumps(tags)


def write_answer(answer: StoredAnswer) -> str:
    """An answer's small fields, as JSON."""
    members = {
        name: [m.round, m.candidate, m.completion_tokens, m.latency_s, None if m.usd is None else str(m.usd)]
        for name, m in answer.members.items()
    }
    return _json([answer.keys, answer.kind, answer.answered, answer.probabilities, members]).decode()


def write_probe(probe: StoredProbe) -> str:
    """A probe as JSON, without the id of its answer."""
    usd = None if probe.usd is None else str(probe.usd)
    return _json([probe.endpoint, probe.key, probe.completion_tokens, probe.latency_s, usd]).decode()


def read_answer(
    row: tuple[str, float, str | bytes, bytes | None, str | bytes, str | bytes | None],
    probes: str | bytes | None = None,
) -> StoredAnswer:
    """Decode an answer's row (id, created_at, record, trajectory, receipt, texts), whose strings may be UTF-8 bytes.

    Args:
        probes: the records of the answer's probes as a JSON list; None: there are none.

    Raises:
        StoreError: the row is damaged.
    """
    answer_id, created_at, record, trajectory, receipt, texts = row
    try:
        keys, kind, answered, probabilities, members = read_json(record)
        return StoredAnswer(
            id=answer_id,
            created_at=created_at,
            keys=tuple(keys),
            kind=kind,
            answered=answered,
            probabilities=tuple(probabilities),
            members={name: _member(*values) for name, values in members.items()},
            trajectory=None if trajectory is None else unpack(trajectory),
            receipt=_text(receipt),
            texts=None if texts is None else _text(texts),
            probes=tuple([_probe(answer_id, *values) for values in read_json(probes)]) if probes else (),
        )
    except Exception as error:  # damage may show as anything
        raise StoreError(
            f"answer {answer_id}: its row is damaged ({type(error).__name__}: {error}); restore a copy"
        ) from error


def _text(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text


def _member(number: int, candidate: int, tokens: int, latency_s: float, usd: str | None) -> Member:
    return Member(number, candidate, tokens, latency_s, None if usd is None else Decimal(usd))


def _probe(answer_id: str, endpoint: str, key: str, tokens: int, latency_s: float, usd: str | None) -> StoredProbe:
    return StoredProbe(answer_id, endpoint, key, tokens, latency_s, None if usd is None else Decimal(usd))


def pack(trajectory: Trajectory) -> bytes:
    """A trajectory as bytes: JSON with the arrays' shapes, padded to align the arrays, then the arrays one by one."""
    arrays: list[F32] = []
    for observation, _ in trajectory.decisions:
        arrays += (observation.context, observation.endpoints)
    arrays += (trajectory.evidence.members, trajectory.evidence.candidates, trajectory.features)
    head = {
        "version": trajectory.version,
        "endpoints": trajectory.endpoints,
        "decisions": [_decision_values(decision) for _, decision in trajectory.decisions],
        "members": trajectory.evidence.endpoints,
        "fused": trajectory.fused,
        "fusion_log_mu": trajectory.fusion_log_mu,
        "shapes": [array.shape for array in arrays],
        "task": trajectory.task,
        "embedder": trajectory.embedder,
        "rival": trajectory.rival,
    }
    text = _json(head)
    text += b" " * (-len(text) % 4)
    body = b"".join([text, *[array.astype(_LITTLE, copy=False).tobytes() for array in arrays]])
    return _HEAD.pack(zlib.crc32(body), len(text)) + body


def unpack(data: bytes) -> Trajectory:
    """The trajectory that `pack` encoded. Other bytes may raise any exception, such as ValueError or KeyError."""
    checksum, size = _HEAD.unpack_from(data)
    if zlib.crc32(memoryview(data)[_HEAD.size :]) != checksum:
        raise ValueError("wrong checksum")
    start = _HEAD.size + size
    head = read_json(data[_HEAD.size : start])
    arrays = iter(_arrays(data, start, head["shapes"]))
    decisions = tuple((Observation(next(arrays), next(arrays)), _decision(*values)) for values in head["decisions"])
    evidence = Evidence(next(arrays), next(arrays), tuple(head["members"]))
    features = next(arrays, np.zeros(0, np.float32))  # earlier versions stored none
    return Trajectory(
        version=head["version"],
        endpoints=tuple(head["endpoints"]),
        decisions=decisions,
        evidence=evidence,
        fused=head["fused"],
        fusion_log_mu=head["fusion_log_mu"],
        features=features,
        task=head.get("task"),
        embedder=head.get("embedder", HASHED),
        rival=head.get("rival"),
    )


def _arrays(data: bytes, start: int, shapes: Sequence[Sequence[int]]) -> list[F32]:
    numbers = np.frombuffer(data, _LITTLE, offset=start).astype(np.float32, copy=False)
    ends = list(accumulate(map(math.prod, shapes), initial=0))
    return [numbers[i:j].reshape(shape) for i, j, shape in zip(ends[:-1], ends[1:], shapes, strict=True)]


def _decision_values(decision: Decision) -> tuple[object, ...]:
    d = decision
    return d.round, d.must_pick, d.order, d.eligible, d.probabilities, d.picked, d.log_mu, d.one


def _decision(
    number: int, must_pick: bool, order: Any, eligible: Any, p: Any, picked: Any, log_mu: Any, one: bool = False
) -> Decision:
    return Decision(number, must_pick, tuple(order), tuple(eligible), tuple(p), tuple(picked), log_mu, one)
