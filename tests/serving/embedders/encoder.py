"""A sentence encoder small enough to be made in a test: real files, run by the real engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

__all__ = ["WORDS", "table", "write_encoder"]

#: The vocabulary; a word's id is its place.
WORDS = ("[UNK]", "[CLS]", "what", "is", "17", "25", "planet", "moons", "which", "the")
_WIDTH = 5


def table() -> np.ndarray:
    """The vector of each word, (words, 5)."""
    return np.random.default_rng(1).standard_normal((len(WORDS), _WIDTH)).astype(np.float32)


def write_encoder(
    folder: Path,
    *,
    inputs: Sequence[str] = ("input_ids", "attention_mask"),
    kind: int = TensorProto.INT64,
    output: str = "tokens",
) -> tuple[Path, Path]:
    """Write model and tokenizer; ``output``: "tokens", "pooled" (their sum), "integers" or "scalars"."""
    folder.mkdir(parents=True, exist_ok=True)
    nodes = [helper.make_node("Gather", ["table", inputs[0]], ["tokens"])]
    axes = numpy_helper.from_array(np.array([1] if output == "pooled" else [1, 2], np.int64), "axes")
    if output == "integers":
        nodes.append(helper.make_node("Cast", ["tokens"], [output], to=TensorProto.INT64))
    elif output != "tokens":
        nodes.append(helper.make_node("ReduceSum", ["tokens", "axes"], [output], keepdims=0))
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info(name, kind, [1, "L"]) for name in inputs],
        [helper.make_tensor_value_info(output, TensorProto.INT64 if output == "integers" else TensorProto.FLOAT, None)],
        [numpy_helper.from_array(table(), "table"), axes],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(folder / "model.onnx"))
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "model.onnx", folder / "tokenizer.json"
