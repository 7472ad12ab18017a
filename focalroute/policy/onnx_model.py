"""Checks, opens and runs one ONNX model, on the caller's thread. The only module that imports onnxruntime.

What a file asks of its runtime is read without onnx (whose import costs 170 ms) and before onnxruntime opens it. Only
plain graphs of a few tensor operators pass: no control flow (it may never end), no functions, no other operator domains
and no tensors stored in other files. This bounds what a model can do, not how large a product it asks for: it does not
replace a sandbox.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, TypeAlias

from numpy.typing import NDArray

from focalroute.core.errors import PolicyError
from focalroute.core.records import F32

#: Input or output name -> (element type as onnxruntime names it, shape with None for a free axis).
Signature: TypeAlias = Mapping[str, tuple[str, tuple[int | None, ...]]]
Inputs: TypeAlias = Mapping[str, NDArray[Any]]

_SILENT = 4  # log nothing below "fatal": failures are raised, and onnxruntime would print them as well
_OUTPUT = ["logits"]
_NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"


class Session:
    """An opened model that maps named arrays to "logits". Immutable; may run in several threads at once.

    It can be pickled.

    Args:
        model: the ONNX file's bytes.
        signature: the inputs the model must have, and "logits".

    Raises:
        PolicyError: onnxruntime cannot open it, it is not plain (see `inspect`), or has another signature.
    """

    __slots__ = ("_made_of", "_run")

    def __init__(self, model: bytes, signature: Signature) -> None:
        inspect(model)
        session = open_model(model)
        found = {
            value.name: (value.type, _shape(value.shape)) for value in session.get_inputs() + session.get_outputs()
        }
        if found != dict(signature):
            raise PolicyError(f"has inputs and outputs {found}, expected {dict(signature)}")
        self._run = getattr(session, "_sess", session).run  # without its wrapper's checks, which are made here once
        self._made_of = model, signature

    def __reduce__(self) -> tuple[type[Session], tuple[bytes, Signature]]:
        return Session, self._made_of

    def run(self, inputs: Inputs) -> F32:
        """The logits; PolicyError if onnxruntime fails, or anything in them is not finite."""
        try:
            logits: F32 = self._run(_OUTPUT, inputs, None)[0]
        except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions have no common base
            raise PolicyError(f"onnxruntime: {error}") from None
        if not isfinite(sum(logits.ravel().tolist())):  # a handful of numbers: four times as fast as numpy
            raise PolicyError("its output is not finite")
        return logits


def open_model(model: bytes | str) -> Any:
    """An onnxruntime session on one thread: at these sizes handing work to another costs more than doing it.

    Args:
        model: the file's bytes, or its path; nothing of it is checked here.

    Raises:
        PolicyError: onnxruntime cannot be imported, or cannot open it.
    """
    onnxruntime = _runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = _SILENT
    try:
        providers = ["CPUExecutionProvider"]
        return onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=0)  # which prints
    except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions have no common base
        raise PolicyError(f"onnxruntime cannot open it: {error}") from None


def _runtime() -> Any:
    """The module without its telemetry: from 1.31 on it keeps a device id, and reports to its makers what it runs.

    The variable is read once, while it is imported. Who has set it, or has imported onnxruntime before, has decided.
    """
    before = os.environ.get(_NO_TELEMETRY)
    os.environ.setdefault(_NO_TELEMETRY, "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise PolicyError(f"onnxruntime cannot be imported: {error}") from None
    finally:
        if before is None:
            os.environ.pop(_NO_TELEMETRY, None)
    return onnxruntime


def _shape(shape: list[int | str | None]) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in shape)


MAX_BYTES = 32 * 2**20
MAX_NODES = 1000

#: The operators that `focalroute.learn.export` writes.
OPERATORS = frozenset(
    (
        "Add",
        "Concat",
        "Gather",
        "Gemm",
        "MatMul",
        "Mul",
        "Neg",
        "ReduceSum",
        "Relu",
        "Sigmoid",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    )
)

_PLAIN = ""
#: Message -> field number -> the message in it, or plain data
#: (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto). A field that is not here is refused: functions,
#: subgraphs, sparse and external tensors, metadata that configures a runtime.
_SCHEMA: Mapping[str, Mapping[int, str]] = {
    "Model": dict.fromkeys(range(1, 7), _PLAIN) | {7: "Graph", 8: "OperatorSet"},
    "OperatorSet": {1: "domain", 2: _PLAIN},
    "Graph": {1: "Node", 2: _PLAIN, 5: "Tensor", 10: _PLAIN, 11: _PLAIN, 12: _PLAIN, 13: _PLAIN},
    "Node": {1: _PLAIN, 2: _PLAIN, 3: _PLAIN, 4: "operator", 5: "Attribute", 6: _PLAIN, 7: "domain"},
    "Attribute": dict.fromkeys((1, 2, 3, 4, 7, 8, 13, 20), _PLAIN),
    "Tensor": dict.fromkeys((1, 2, 4, 5, 7, 8, 9, 12), _PLAIN),
}
_ALLOWED: Mapping[str, frozenset[str]] = {"domain": frozenset(("", "ai.onnx")), "operator": OPERATORS}


def inspect(model: bytes) -> None:
    """Raise PolicyError, saying why, unless the model is small and plain."""
    if len(model) > MAX_BYTES:
        raise PolicyError(f"{len(model)} bytes are more than the {MAX_BYTES} a policy may have")
    try:
        _walk("Model", memoryview(model))
    except IndexError:
        raise PolicyError("not an ONNX model: it ends in the middle of a field") from None


def _walk(message: str, data: memoryview) -> None:
    nodes = 0
    for field, value in _fields(data):
        inner = _SCHEMA[message].get(field)
        if inner is None:
            raise PolicyError(f"field {field} of its {message} is not allowed in a policy")
        if inner in _ALLOWED:
            if bytes(value).decode("utf-8", "replace") not in _ALLOWED[inner]:
                raise PolicyError(f"{inner} {bytes(value)[:40]!r} is not allowed in a policy")
        elif inner != _PLAIN:
            nodes += inner == "Node"
            if nodes > MAX_NODES:
                raise PolicyError(f"more than {MAX_NODES} operators are not allowed in a policy")
            _walk(inner, value)


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(field number, its bytes) of a protobuf message, see protobuf.dev/programming-guides/encoding; numbers: none."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire, size = key & 7, 0
        if wire == 0:
            _, at = _varint(data, at)
        elif wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise PolicyError("not an ONNX model: a field of unknown encoding")
        if at + size > len(data):
            raise IndexError
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number at ``at``, seven bits a byte, lowest first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise PolicyError("not an ONNX model: a number of more than ten bytes")
