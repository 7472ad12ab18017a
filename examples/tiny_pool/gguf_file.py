"""Writes a trained model as a GGUF file that llama-server runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.tiny_pool.network import EPSILON, THETA, Llama
from examples.tiny_pool.wording import ANSWER, END, TEMPLATE, merges

__all__ = ["CONTEXT", "named_weights", "write_gguf"]

CONTEXT = 512  # tokens, as the model says; the longest question has about 120

F32 = NDArray[np.float32]


def write_gguf(path: Path, name: str, model: Llama, tokenizer: Any) -> Path:
    """Write weights in float32 and vocabulary to ``path``, whole or not at all."""
    import gguf

    partial = path.with_name(f"{path.name}.{os.getpid()}")
    writer = gguf.GGUFWriter(str(partial), "llama")
    _describe(writer, name, model)
    _add_vocabulary(writer, tokenizer)
    for label, weights in named_weights(model):
        writer.add_tensor(label, np.ascontiguousarray(weights))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return partial.replace(path)


def _describe(writer: Any, name: str, model: Llama) -> None:
    shape = model.shape
    writer.add_name(name)
    writer.add_block_count(shape.blocks)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_rope_freq_base(THETA)
    writer.add_vocab_size(model.embedding.num_embeddings)
    writer.add_file_type(0)  # all float32


def _add_vocabulary(writer: Any, tokenizer: Any) -> None:
    import gguf

    vocabulary = tokenizer.get_vocab()
    names = sorted(vocabulary, key=vocabulary.__getitem__)
    special = (ANSWER, END)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types([control if token in special else normal for token in range(len(names))])
    writer.add_token_merges(merges(tokenizer))
    writer.add_bos_token_id(ANSWER)
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def named_weights(model: Llama) -> Iterator[tuple[str, F32]]:
    """The weights by llama.cpp's names; without output weights llama.cpp uses the embedding's."""
    yield "token_embd.weight", _array(model.embedding.weight)
    yield "output_norm.weight", _array(model.norm.weight)
    for number, block in enumerate(model.blocks):
        queries, keys, values = _array(block.attn_qkv.weight).reshape(3, model.shape.width, -1)
        gate, up = _array(block.ffn_gate_up.weight).reshape(2, model.shape.feed_forward, -1)
        named = {"attn_q": queries, "attn_k": keys, "attn_v": values, "ffn_gate": gate, "ffn_up": up}
        for part in ("attn_norm", "attn_output", "ffn_norm", "ffn_down"):
            named[part] = _array(getattr(block, part).weight)
        yield from ((f"blk.{number}.{part}.weight", weights) for part, weights in named.items())


def _array(weights: Any) -> F32:
    array: F32 = weights.detach().float().numpy()
    return array
