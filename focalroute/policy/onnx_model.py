"""Opens and runs one ONNX model, on the caller's thread. The only module that imports onnxruntime.

A file is checked before it is opened, without onnx, whose import takes 170 ms. Only plain graphs of a few tensor
operators pass: no control flow (it may never end), no functions, no other operator domains and no tensors stored in
other files. The shape of every tensor follows from the inputs' shapes, so that a run's memory and time are known, and
bounded, before it begins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from math import isfinite, prod
from typing import Any, TypeAlias

from numpy.typing import NDArray

from focalroute.core.errors import PolicyError
from focalroute.core.records import F32

Shape: TypeAlias = tuple[int, ...]
_Fields: TypeAlias = Mapping[int, Sequence[Any]]

MAX_BYTES = 32 * 2**20
MAX_NODES = 1000
MAX_FIELDS = 100_000
#: Elements of all tensors of a run, weights included: at most half a gigabyte, at 8 bytes each.
MAX_ELEMENTS = 2**26
#: Multiply-adds of a run: about a second.
MAX_STEPS = 2**32

_LEAST_OPSET = 13  # in earlier ones, axes were attributes
_INT64 = 7  # TensorProto.INT64
_MOST_AXES = 16
#: The wire types that a field may have: protobuf ignores fields of others.
_WIRES = {"int": {0}, "ints": {0, 2}, "float": {5}, "floats": {2, 5}}
#: Message -> field number -> the message in it, or a key of `_WIRES`, else bytes
#: (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto). Other fields are refused: functions, subgraphs, sparse and
#: external tensors, metadata that configures a runtime.
_SCHEMA: Mapping[str, Mapping[int, str]] = {
    "Model": {1: "int", 2: "text", 3: "text", 4: "text", 5: "int", 6: "text", 7: "Graph", 8: "OperatorSet"},
    "OperatorSet": {1: "domain", 2: "int"},
    "Graph": {1: "Node", 2: "text", 5: "Tensor", 10: "text", 11: "text", 12: "text", 13: "text"},
    "Node": {1: "text", 2: "text", 3: "text", 4: "operator", 5: "Attribute", 6: "text", 7: "domain"},
    "Attribute": {1: "text", 2: "float", 3: "int", 8: "ints", 13: "text", 20: "int"},
    "Tensor": {1: "ints", 2: "int", 4: "floats", 5: "ints", 7: "ints", 8: "text", 9: "text", 12: "text"},
}
#: AttributeProto.AttributeType -> the field that holds a value of this type.
_VALUE_FIELDS = {1: 2, 2: 3, 7: 8}
#: Operator -> the attributes that it may have, with their type.
_ATTRIBUTES: Mapping[str, Mapping[str, int]] = {
    "Concat": {"axis": 2},
    "Gather": {"axis": 2},
    "Gemm": {"alpha": 1, "beta": 1, "transA": 2, "transB": 2},
    "ReduceSum": {"keepdims": 2, "noop_with_empty_axes": 2},
    "Transpose": {"perm": 7},
}


@dataclass(frozen=True, slots=True)
class _Node:
    operator: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any]


class Graph:
    """The operators of a model and the shapes of its weights. Immutable.

    Args:
        model: the ONNX file's bytes.

    Raises:
        PolicyError: it is too large or not plain; the message says why.
    """

    __slots__ = ("_axes", "_nodes", "_weights")

    def __init__(self, model: bytes) -> None:
        if len(model) > MAX_BYTES:
            raise PolicyError(f"{len(model)} bytes are more than the {MAX_BYTES} a policy may have")
        try:
            read = _read("Model", memoryview(model), iter(range(MAX_FIELDS)))
            if any(_last_int(opset, 2) < _LEAST_OPSET for opset in read.get(8, ())):
                raise PolicyError(f"operators older than version {_LEAST_OPSET} are not allowed in a policy")
            nodes = [node for graph in read.get(7, ()) for node in graph.get(1, ())]
            if len(nodes) > MAX_NODES:
                raise PolicyError(f"more than {MAX_NODES} operators are not allowed in a policy")
            self._nodes = [_node(node) for node in nodes]
            tensors = [tensor for graph in read.get(7, ()) for tensor in graph.get(5, ())]
            self._weights = [(_name(tensor.get(8)), tuple(_ints(tensor.get(1, ())))) for tensor in tensors]
            self._axes = {_name(tensor.get(8)): axes for tensor in tensors if (axes := _axes_in(tensor)) is not None}
        except IndexError:  # packed integers are read with their tensor
            raise PolicyError("not an ONNX model: it ends in the middle of a field") from None

    def check(self, inputs: Sequence[tuple[str, Shape]]) -> None:
        """Raise PolicyError, saying why, if a run on inputs of these shapes would exceed a bound."""
        self.shapes(inputs)

    def shapes(self, inputs: Sequence[tuple[str, Shape]]) -> Mapping[str, Shape]:
        """Return the shapes of all tensors of a run on inputs of these shapes; PolicyError if it exceeds a bound."""
        shapes: dict[str, Shape] = {}
        elements = steps = 0
        for name, shape in (*inputs, *self._weights):
            if name in shapes or min(shape, default=0) < 0:
                raise PolicyError("a tensor that is given twice or has a negative size is not allowed in a policy")
            shapes[name] = shape
            elements += prod(shape)
        for node in self._nodes:
            try:
                given = [shapes[name] for name in node.inputs]
                axes = self._axes.get(node.inputs[1]) if len(given) > 1 else None
                shape, terms = OPERATORS[node.operator](given, axes, **node.attributes)
            except (LookupError, TypeError, ValueError):
                raise PolicyError(f"its {node.operator} does not fit its inputs") from None
            if node.output in shapes:
                raise PolicyError("two outputs of the same name are not allowed in a policy")
            shapes[node.output] = shape
            elements += prod(shape)
            steps += prod(shape) * terms
            if elements > MAX_ELEMENTS or steps > MAX_STEPS:
                raise PolicyError(
                    f"a run takes {elements} numbers and {steps} steps up to its {node.operator}; "
                    f"at most {MAX_ELEMENTS} and {MAX_STEPS} are allowed in a policy"
                )
        return shapes


# -- shapes: an operator's output shape, and of how many terms each of its elements is the sum -------------------------

_Output: TypeAlias = tuple[Shape, int]
_Axes: TypeAlias = Shape | None


def _same(given: Sequence[Shape], _: _Axes) -> _Output:
    (shape,) = given
    return shape, 1


def _broadcast(given: Sequence[Shape], _: _Axes = None) -> _Output:
    one, other = given
    sizes = []
    for a, b in zip_longest(one[::-1], other[::-1], fillvalue=1):
        if a != 1 and b != 1:
            _require_equal(a, b)
        sizes.append(b if a == 1 else a)
    return tuple(sizes[::-1]), 1


def _concat(given: Sequence[Shape], _: _Axes, *, axis: int) -> _Output:
    first = given[0]
    at = range(len(first))[axis]
    for shape in given:
        _require_equal(shape[:at], first[:at])
        _require_equal(shape[at + 1 :], first[at + 1 :])
    return (*first[:at], sum(shape[at] for shape in given), *first[at + 1 :]), 1


def _gather(given: Sequence[Shape], _: _Axes, *, axis: int = 0) -> _Output:
    data, indices = given
    at = range(len(data))[axis]
    return (*data[:at], *indices, *data[at + 1 :]), 1


def _gemm(given: Sequence[Shape], _: _Axes, **attributes: Any) -> _Output:
    one, other = given[:2]
    rows, inner = one[::-1] if attributes.get("transA", 0) else one
    inner_too, columns = other[::-1] if attributes.get("transB", 0) else other
    _require_equal(inner, inner_too)
    for bias in given[2:]:
        _require_equal(_broadcast((bias, (rows, columns)))[0], (rows, columns))
    return (rows, columns), inner + 1


def _matmul(given: Sequence[Shape], _: _Axes) -> _Output:
    one, other = given
    *outer, rows, inner = (1, *one) if len(one) == 1 else one
    *outer_too, inner_too, columns = (*other, 1) if len(other) == 1 else other
    _require_equal(inner, inner_too)
    ends = ((rows,) if len(one) > 1 else ()) + ((columns,) if len(other) > 1 else ())
    return (*_broadcast((tuple(outer), tuple(outer_too)))[0], *ends), inner


def _reduce_sum(given: Sequence[Shape], axes: _Axes, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> _Output:
    shape = given[0]
    if axes is None and len(given) > 1:
        raise ValueError("axes that are computed")
    over = _places(axes or (() if noop_with_empty_axes else range(len(shape))), len(shape))
    left = [1 if at in over else size for at, size in enumerate(shape) if keepdims or at not in over]
    return tuple(left), prod(shape[at] for at in over)


def _squeeze(given: Sequence[Shape], axes: _Axes) -> _Output:
    shape = given[0]
    if axes is None:
        raise ValueError("no axes, or computed ones")
    gone = _places(axes, len(shape))
    for at in gone:
        _require_equal(shape[at], 1)
    return tuple(size for at, size in enumerate(shape) if at not in gone), 1


def _transpose(given: Sequence[Shape], _: _Axes, *, perm: Shape | None = None) -> _Output:
    (shape,) = given
    order = tuple(reversed(range(len(shape)))) if perm is None else perm
    _require_equal(tuple(sorted(order)), tuple(range(len(shape))))
    return tuple(shape[at] for at in order), 1


def _unsqueeze(given: Sequence[Shape], axes: _Axes) -> _Output:
    shape = given[0]
    if axes is None:
        raise ValueError("computed axes")
    added = _places(axes, len(shape) + len(axes))
    sizes = iter(shape)
    return tuple(1 if at in added else next(sizes) for at in range(len(shape) + len(axes))), 1


def _places(axes: Sequence[int], rank: int) -> frozenset[int]:
    places = frozenset(range(rank)[axis] for axis in axes)
    _require_equal(len(places), len(axes))
    return places


def _require_equal(size: Any, other: Any) -> None:
    if size != other:
        raise ValueError(f"{size} is not {other}")


#: The operators that `focalroute.learn.export` writes.
OPERATORS: Mapping[str, Callable[..., _Output]] = {
    "Add": _broadcast,
    "Concat": _concat,
    "Gather": _gather,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Mul": _broadcast,
    "Neg": _same,
    "ReduceSum": _reduce_sum,
    "Relu": _same,
    "Sigmoid": _same,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
_ALLOWED = {"domain": frozenset(("", "ai.onnx")), "operator": frozenset(OPERATORS)}


# -- the file ----------------------------------------------------------------------------------------------------------


def _node(read: _Fields) -> _Node:
    operator = _name(read.get(4))
    if len(read.get(2, ())) != 1:
        raise PolicyError(f"its {operator} must have exactly one output")
    attributes = dict(_attribute(operator, attribute) for attribute in read.get(5, ()))
    return _Node(operator, tuple(_name([name]) for name in read.get(1, ())), _name(read[2]), attributes)


def _attribute(operator: str, read: _Fields) -> tuple[str, Any]:
    name, kind = _name(read.get(1)), _last_int(read, 20)
    at = _VALUE_FIELDS.get(kind, 0)
    if _ATTRIBUTES.get(operator, {}).get(name) != kind or set(read) - {13} != {1, 20, at}:
        raise PolicyError(f"attribute {name[:40]!r} of its {operator} is not allowed in a policy")
    if kind == 1:
        return name, None  # a factor
    return name, tuple(_ints(read[at])) if kind == _INT64 else _last_int(read, at)


def _axes_in(tensor: _Fields) -> Shape | None:
    """Return the values of a short list of integers; None: it is something else."""
    shape = tuple(_ints(tensor.get(1, ())))
    if _last_int(tensor, 2) != _INT64 or len(shape) != 1 or not 0 <= shape[0] <= _MOST_AXES:
        return None
    if 9 in tensor:
        raw = bytes(tensor[9][-1])
        found = [int.from_bytes(raw[at : at + 8], "little", signed=True) for at in range(0, len(raw), 8)]
    else:
        found = [*_ints(tensor.get(7, ()))]
    return tuple(found) if len(found) == shape[0] else None


def _name(values: Sequence[Any] | None) -> str:
    """Return the last text of a field, the one protobuf uses; different bytes are different names."""
    return bytes(values[-1]).decode("latin-1") if values else ""


def _last_int(read: _Fields, field: int) -> int:
    return next(_ints(read.get(field, ())[-1:]), 0)


def _ints(values: Sequence[Any]) -> Iterator[int]:
    """Yield signed integers, packed or not."""
    for value in values:
        if isinstance(value, int):
            yield _signed(value)
            continue
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            yield _signed(number)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _read(message: str, data: memoryview, left: Iterator[int]) -> _Fields:
    """Return the fields of a message by number, each with its values in order."""
    found: dict[int, list[Any]] = {}
    for field, wire, value in _fields(data):
        if next(left, None) is None:
            raise PolicyError(f"more than {MAX_FIELDS} fields are not allowed in a policy")
        inner = _SCHEMA[message].get(field, "")
        if wire not in _WIRES.get(inner, {2} if inner else ()):
            raise PolicyError(f"field {field} of its {message} is not allowed in a policy")
        if inner in _ALLOWED and _name([value]) not in _ALLOWED[inner]:
            raise PolicyError(f"{inner} {_name([value])[:40]!r} is not allowed in a policy")
        found.setdefault(field, []).append(_read(inner, value, left) if inner in _SCHEMA else value)
    return found


def _fields(data: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Yield (field number, wire type, number or bytes), see protobuf.dev/programming-guides/encoding."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire, size = key & 7, 0
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, wire, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise PolicyError("not an ONNX model: a field of unknown encoding")
        if at + size > len(data):
            raise IndexError
        yield key >> 3, wire, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the number at ``at``, seven bits per byte, lowest first, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value % 2**64, at
    raise PolicyError("not an ONNX model: a number of more than ten bytes")


#: Input or output name -> (element type as onnxruntime names it, shape with None for a free axis).
Signature: TypeAlias = Mapping[str, tuple[str, tuple[int | None, ...]]]
Inputs: TypeAlias = Mapping[str, NDArray[Any]]

_SILENT = 4  # log nothing below "fatal": failures are raised, and onnxruntime would also print them
_OUTPUT = ["logits"]
_SMALL = 2  # size of the free axes in the check before a model is opened
_NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"


class Session:
    """An opened model that maps named arrays to "logits". Immutable, picklable; may run in several threads at once.

    Args:
        model: the ONNX file's bytes.
        signature: the inputs the model must have, and "logits".

    Raises:
        PolicyError: onnxruntime cannot open it, `Graph` refuses it, or it has another signature.
    """

    __slots__ = ("_check", "_made_of", "_run")

    def __init__(self, model: bytes, signature: Signature) -> None:
        graph = Graph(model)
        graph.check([(name, _sized(shape)) for name, (_, shape) in signature.items() if name not in _OUTPUT])
        session = open_model(model)
        found = {
            value.name: (value.type, _shape(value.shape)) for value in session.get_inputs() + session.get_outputs()
        }
        if found != dict(signature):
            raise PolicyError(f"has inputs and outputs {found}, expected {dict(signature)}")
        self._run = getattr(session, "_sess", session).run  # without the wrapper's checks, which were made above
        self._check = lru_cache(maxsize=1024)(graph.check)
        self._made_of = model, signature

    def __reduce__(self) -> tuple[type[Session], tuple[bytes, Signature]]:
        return Session, self._made_of

    def run(self, inputs: Inputs) -> F32:
        """Return the logits; PolicyError if the run exceeds a bound or fails, or if they are not finite."""
        self._check(tuple([(name, array.shape) for name, array in inputs.items()]))
        try:
            logits: F32 = self._run(_OUTPUT, inputs, None)[0]
        except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions have no common base
            raise PolicyError(f"onnxruntime: {error}") from None
        if not isfinite(sum(logits.ravel().tolist())):  # for a few numbers, four times as fast as numpy
            raise PolicyError("its output is not finite")
        return logits


def open_model(model: bytes | str) -> Any:
    """Open an onnxruntime session on one thread: at these sizes, handing work to another costs more than doing it.

    Args:
        model: the file's bytes, or its path; not checked here.

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
    """Import onnxruntime without its telemetry: from 1.31 on it stores a device id and reports what it runs.

    The variable is read once, during the import; a user's own setting of it, or earlier import, is respected.
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


def _sized(shape: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(_SMALL if size is None else size for size in shape)
