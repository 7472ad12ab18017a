"""Writes the networks as ONNX and reads them back. The only module that imports onnx.

A graph contains the net's own parameters under their own names, so that it can be read back; onnxruntime computes
everything that depends on parameters alone once, when it opens the model. The linear part of a net is written as two
more hidden units, since s = relu(s) - relu(-s): at these sizes a node costs more than its arithmetic, and this saves
half the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike, NDArray

from focalroute.core.errors import PolicyError
from focalroute.learn.nets import DeciderNet, FusionNet, parameters, restored
from focalroute.observe import layout

OPSET = 17
IR_VERSION = 8  # that of opset 17, which onnxruntime reads since 1.12

_Net = TypeVar("_Net", DeciderNet, FusionNet)
_Shape = Sequence[str | int]


def decider_model(net: DeciderNet) -> bytes:
    """Write ``decider.onnx``: context (B, Dc), endpoints (B, N, De) float32, ids (N,) int64 -> logits (B, N)."""
    g = _Graph(parameters(net))
    names = g("Gather", g("MatMul", "names", g.widened("hidden_name", "skip_name")), "ids")
    bias = g("Concat", "hidden_bias", "bias", g("Neg", "bias"), axis=0)
    shared = g("Gemm", "context", g.widened("hidden_context", "skip_context"), bias)
    own = g("MatMul", "endpoints", g.widened("hidden_endpoint", "skip_endpoint"))
    hidden = g("Relu", g("Add", g("Add", own, g.unsqueezed(shared)), names))
    g.score(hidden)
    inputs = {"context": ("B", net.skip_context.size), "endpoints": ("B", "N", net.skip_endpoint.size)}
    return g.model("decider", inputs, {"ids": ("N",)}, ("B", "N"))


def fusion_model(net: FusionNet) -> bytes:
    """Write ``fusion.onnx``: members (B, K, m, Fm), candidates (B, K, Fc) float32, ids (B, m) int64 -> logits (B, K).

    Every term that depends on a member's name is multiplied by its feature ``present`` or ``vote``. So each name has a
    matrix, the shared one with the name's terms added to those two rows, and one batched product applies them to all
    members.
    """
    g = _Graph(parameters(net))
    phi = net.phi_bias.size
    by_present = g("MatMul", g("Add", g("MatMul", "names", "phi_name"), "phi_bias"), g.constant(np.eye(phi, phi + 2)))
    by_vote = g("MatMul", g.unsqueezed("vote"), g.constant([[0.0] * phi + [1.0, -1.0]]))
    matrix = g("Add", g.widened("phi_member", "skip_member"), g("Mul", g.row("present"), g.unsqueezed(by_present)))
    matrix = g("Add", matrix, g("Mul", g.row("vote"), g.unsqueezed(by_vote)))

    by_member = g("Transpose", "members", perm=[0, 2, 1, 3])
    seen = g("Relu", g("MatMul", by_member, g("Gather", matrix, "ids")))
    pooled = g("ReduceSum", seen, g.constant([1], np.int64), keepdims=0)

    pool = g("MatMul", g.constant(np.eye(phi + 2, phi)), "hidden_pool")
    linear = g.constant([[0.0, 0.0]] * phi + [[1.0, -1.0], [-1.0, 1.0]])
    own = g("MatMul", "candidates", g.widened("hidden_candidate", "skip_candidate"))
    own = g("Add", own, g("Concat", "hidden_bias", g.constant([0.0, 0.0]), axis=0))
    hidden = g("Relu", g("Add", g("MatMul", pooled, g("Concat", pool, linear, axis=1)), own))
    g.score(hidden)
    inputs = {"members": ("B", "K", "m", net.skip_member.size), "candidates": ("B", "K", net.skip_candidate.size)}
    return g.model("fusion", inputs, {"ids": ("B", "m")}, ("B", "K"))


def der_model(net: Mapping[str, NDArray[np.float32]]) -> bytes:
    """Write ``der.onnx``: seen (B, D) -> logits (B, N + 1) = sigmoid(seen hidden + hidden_bias) out + out_bias.

    Args:
        net: "hidden" (D, H), "hidden_bias" (H,), "out" (H, N + 1), "out_bias" (N + 1,).
    """
    g = _Graph(net)
    hidden = g("Sigmoid", g("Gemm", "seen", "hidden", "hidden_bias"))
    g.result("Gemm", hidden, "out", "out_bias")
    return g.model("der", {"seen": ("B", len(net["hidden"]))}, {}, ("B", len(net["out_bias"])))


def decider_net(model: bytes) -> DeciderNet:
    """Read a net that `decider_model` wrote; PolicyError if it did not."""
    return _read(DeciderNet, model)


def fusion_net(model: bytes) -> FusionNet:
    """Read a net that `fusion_model` wrote; PolicyError if it did not."""
    return _read(FusionNet, model)


def _read(kind: type[_Net], model: bytes) -> _Net:
    try:
        tensors = onnx.load_model_from_string(model).graph.initializer
        arrays = {tensor.name: onnx.numpy_helper.to_array(tensor).astype(np.float32) for tensor in tensors}
        return restored(kind, arrays)
    except Exception as error:  # noqa: BLE001 - protobuf and onnx may raise anything on other bytes
        raise PolicyError(f"not a model written from a {kind.__name__}: {type(error).__name__}: {error}") from None


class _Graph:
    """Collects nodes; calling it adds one and returns its output's name."""

    def __init__(self, constants: Mapping[str, NDArray[np.float32]]) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, NDArray[np.generic]] = dict(constants)

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        output = f"{op.lower()}_{len(self._nodes)}"
        self._nodes.append(onnx.helper.make_node(op, inputs, [output], **attributes))
        return output

    def constant(self, value: ArrayLike, dtype: DTypeLike = np.float32) -> str:
        name = f"constant_{len(self._constants)}"
        self._constants[name] = np.asarray(value, dtype)
        return name

    def unsqueezed(self, value: str) -> str:
        """Insert an axis of length 1 after the first."""
        return self("Unsqueeze", value, self.constant([1], np.int64))

    def row(self, feature: str) -> str:
        """Add a column vector (Fm, 1) that is 1 at this feature of a member."""
        column = np.zeros((layout.width(layout.MEMBER), 1))
        column[layout.slices(layout.MEMBER)[feature]] = 1
        return self.constant(column)

    def widened(self, hidden: str, skip: str) -> str:
        """Append the linear weights to hidden weights (D, H) as two more columns: (D, H + 2)."""
        column = self.unsqueezed(skip)
        return self("Concat", hidden, column, self("Neg", column), axis=1)

    def score(self, hidden: str) -> None:
        """Add the output layer: hidden units (B, ., H + 2) -> "logits" (B, .)."""
        column = self.unsqueezed(self("Concat", "out", self.constant([1.0, -1.0]), axis=0))
        self.result("Squeeze", self("MatMul", hidden, column), self.constant([2], np.int64))

    def result(self, op: str, *inputs: str) -> None:
        """Add the last node, whose output is "logits"."""
        self._nodes.append(onnx.helper.make_node(op, inputs, ["logits"]))

    def model(self, name: str, inputs: Mapping[str, _Shape], ids: Mapping[str, _Shape], shape: _Shape) -> bytes:
        """Return the finished, checked model: float ``inputs`` and integer ``ids`` -> "logits" of this shape."""
        values = [_value(key, onnx.TensorProto.FLOAT, size) for key, size in inputs.items()]
        values += [_value(key, onnx.TensorProto.INT64, size) for key, size in ids.items()]
        graph = onnx.helper.make_graph(
            self._nodes,
            name,
            values,
            [_value("logits", onnx.TensorProto.FLOAT, shape)],
            [onnx.numpy_helper.from_array(array, key) for key, array in self._constants.items()],
        )
        model = onnx.helper.make_model(
            graph,
            producer_name="focalroute",
            ir_version=IR_VERSION,
            opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        )
        onnx.checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString(deterministic=True))


def _value(name: str, dtype: int, shape: _Shape) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, dtype, list(shape))
