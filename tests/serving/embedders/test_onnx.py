"""A local encoder: a real ONNX file and a real tokenizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from focalroute import ConfigError, OnnxEmbedder
from tests.serving.embedders.encoder import WORDS, table, write_encoder


def mean_of(*words: str) -> np.ndarray:
    mean: np.ndarray = table()[[WORDS.index(word) for word in words]].mean(axis=0)
    return mean


@pytest.mark.parametrize(
    "made",
    [
        {},
        {"inputs": ["input_ids"]},
        {"inputs": ["input_ids", "attention_mask", "token_type_ids"]},
        {"kind": TensorProto.INT32},
    ],
)
def test_a_text_is_the_mean_of_its_tokens(tmp_path: Path, made: dict[str, Any]) -> None:
    """Whatever of the usual inputs the model wants."""
    embed = OnnxEmbedder(*write_encoder(tmp_path, **made))
    assert embed("What IS this") == pytest.approx(mean_of("[CLS]", "what", "is", "[UNK]"), abs=1e-6)


def test_a_model_that_pools_by_itself_is_taken_as_it_is(tmp_path: Path) -> None:
    embed = OnnxEmbedder(*write_encoder(tmp_path, output="pooled"))
    assert embed("moons") == pytest.approx(2 * mean_of("[CLS]", "moons"), abs=1e-6)


def test_a_long_text_is_cut(tmp_path: Path) -> None:
    embed = OnnxEmbedder(*write_encoder(tmp_path), max_tokens=3)
    assert embed("which planet " * 1000) == pytest.approx(mean_of("[CLS]", "which", "planet"), abs=1e-6)


def test_its_name_tells_files_and_limit_and_not_where_they_lie(tmp_path: Path) -> None:
    first, moved = (OnnxEmbedder(*write_encoder(tmp_path / folder)) for folder in ("a", "b"))
    other = OnnxEmbedder(*write_encoder(tmp_path / "c", kind=TensorProto.INT32))
    shorter = OnnxEmbedder(*write_encoder(tmp_path / "a"), max_tokens=7)
    assert first.name == moved.name
    assert len({first.name, other.name, shorter.name}) == 3


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"inputs": ["input_ids", "pixels"]}, r"inputs must be integers.*pixels: tensor\(int64\)"),
        ({"inputs": ["words"]}, "inputs must be integers"),
        ({"kind": TensorProto.FLOAT}, "inputs must be integers|onnxruntime cannot open it"),
        ({"output": "integers"}, "first output must be floats"),
        ({"output": "scalars"}, "first output must be floats"),
    ],
)
def test_a_model_of_another_kind_is_refused(tmp_path: Path, made: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        OnnxEmbedder(*write_encoder(tmp_path, **made))


def test_errors_in_the_files_are_named(tmp_path: Path) -> None:
    model, tokenizer = write_encoder(tmp_path)
    with pytest.raises(ConfigError, match=r"none\.onnx: cannot be read"):
        OnnxEmbedder(tmp_path / "none.onnx", tokenizer)
    with pytest.raises(ConfigError, match=r"tokenizer\.json: onnxruntime cannot open it"):
        OnnxEmbedder(tokenizer, tokenizer)
    with pytest.raises(ConfigError, match=r"model\.onnx: is not a tokenizer"):
        OnnxEmbedder(model, model)
    with pytest.raises(ConfigError, match="tokenizer: give the path of a file, got int"):
        OnnxEmbedder(model, 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_tokens"):
        OnnxEmbedder(model, tokenizer, max_tokens=0)


def test_without_tokenizers_the_extra_is_named(tmp_path: Path) -> None:
    """In a process where that package cannot be imported."""
    code = """
import sys
sys.modules["tokenizers"] = None
from focalroute import OnnxEmbedder
try:
    OnnxEmbedder(*sys.argv[1:])
except ValueError as error:
    print(error)
"""
    files = map(str, write_encoder(tmp_path))
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", code, *files]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(root)})
    assert "pip install 'focalroute[embed]'" in done.stdout
