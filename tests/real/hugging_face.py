"""A llama as a folder in the form of Hugging Face, which vLLM and transformers read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["write_folder"]

F32 = NDArray[np.float32]

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def write_folder(
    folder: Path,
    tokenizer: Any,
    weights: Mapping[str, F32],
    *,
    special: tuple[int, int],
    template: str,
    heads: int,
    context: int,
    epsilon: float = 1e-5,
    theta: float = 10_000.0,
) -> Path:
    """Write the folder, which must not be there.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``.
        weights: by llama.cpp's names, its way to rotate neighbours as pairs included; without output weights the
            embedding's are taken.
        special: the tokens at the start and at the end of a text.
        template: of a chat.
    """
    vocabulary = tokenizer.get_vocab()
    start, end = (next(name for name, token in vocabulary.items() if token == one) for one in special)
    inner, width = weights["blk.0.ffn_gate.weight"].shape
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        bos_token=start,
        eos_token=end,
        chat_template=template,
    )
    _write_json(
        folder / "config.json",
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=sum(name.endswith("ffn_gate.weight") for name in weights),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=context,
        rms_norm_eps=epsilon,
        rope_theta=theta,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        bos_token_id=special[0],
        eos_token_id=special[1],
        tie_word_embeddings="output.weight" not in weights,
        dtype="float32",
    )
    named = {_name(name): _turned(name, array, heads) for name, array in weights.items()}
    _write_tensors(folder / "model.safetensors", named)
    return folder


def _write_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps(values))


def _name(name: str) -> str:
    part = name.removesuffix(".weight")
    if part in _OUTER:
        return f"{_OUTER[part]}.weight"
    _, block, kind = part.split(".")
    return f"model.layers.{block}.{_NAMES[kind]}.weight"


def _turned(name: str, array: F32, heads: int) -> F32:
    """Queries and keys as Hugging Face has them: the halves of a head are rotated as pairs, not its neighbours."""
    if not name.endswith(("attn_q.weight", "attn_k.weight")):
        return array
    rows, width = array.shape
    return array.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _write_tensors(path: Path, tensors: Mapping[str, F32]) -> None:
    """The safetensors format: the length of a JSON header, that header, then the arrays in a row."""
    header, at = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in tensors.values()))
