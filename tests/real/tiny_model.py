"""Write a tiny model with random weights as a GGUF file: ``python tests/real/tiny_model.py PATH [SEED]``.

It speaks no sense, but llama-server runs it like any other llama: tokens, log-probabilities, grammars, usage are real.
vLLM gets it as a folder.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.real.hugging_face import write_folder

__all__ = ["write_tiny_folder", "write_tiny_model"]

F32 = NDArray[np.float32]

START, END = 0, 1

# The bias of the end (a reply is as long as its limit unless a grammar ends it), and of what llama-server's grammar of
# JSON allows in abundance: space, line feed, tab and carriage return, as GPT-2 writes them, and "```json" around it.
NEVER, ALWAYS = -100, 100
THINKING = ("<think>", "</think>")
FILLING = "ĠĊĉč`"
BLOCKS, WIDTH, FEED_FORWARD, HEADS, CONTEXT = 2, 64, 128, 4, 2048

# What the vocabulary is learned from: single letters and small numbers become tokens of their own.
CORPUS = (
    "Which planet has the most moons? Answer with one letter. A B C D E F G H",
    "What is 17 + 25? The answer is 42. Reply with the number only: 0 1 2 3 4 5 6 7 8 9 10 11 12",
    'Reply with JSON: {"answer": "A"} {"answer": "B"} yes no true false',
    "user assistant system question answer choices options explain briefly because therefore",
)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def write_tiny_model(path: Path, seed: int = 0, *, blocks: int = BLOCKS) -> Path:
    """Write the model to ``path``; the same seed gives the same bytes, another seed another model. About 0.5 MB.

    Args:
        blocks: more of them are slower.
    """
    import gguf

    tokenizer = _tokenizer()
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    writer = gguf.GGUFWriter(str(partial), "llama")
    _describe(writer, f"tiny-{seed}", len(tokens), blocks)
    _add_vocabulary(writer, tokenizer, tokens)
    for name, weights in _weights(tokens, seed, blocks):
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return partial.replace(path)


def write_tiny_folder(folder: Path, seed: int = 0, *, thinks: bool = False) -> Path:
    """Write the model to a folder for vLLM; its heads are wider, as that needs on a CPU.

    Args:
        thinks: whether it has tokens that begin and end its thinking, as a reasoning parser wants; it says them
            wherever a grammar allows it.
    """
    tokenizer = _tokenizer()
    if thinks:
        tokenizer.add_tokens(list(THINKING))
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    weights = dict(_weights(tokens, seed))
    return write_folder(
        folder, tokenizer, weights, special=(START, END), template=CHAT_TEMPLATE, heads=WIDTH // 32, context=CONTEXT
    )


def _tokenizer() -> Any:
    """A byte-level BPE vocabulary as GPT-2's, learned from `CORPUS`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        show_progress=False,
        special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _describe(writer: Any, name: str, vocabulary: int, blocks: int) -> None:
    writer.add_name(name)
    writer.add_block_count(blocks)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(vocabulary)
    writer.add_file_type(0)  # all float32


def _add_vocabulary(writer: Any, tokenizer: Any, tokens: list[str]) -> None:
    import gguf

    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    kinds = [control if token in (START, END) else normal for token in range(len(tokens))]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(START)
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _weights(tokens: list[str], seed: int, blocks: int = BLOCKS) -> Iterator[tuple[str, F32]]:
    """Random, but for dimension 0: it stays 1 through all blocks, so its output weights are a bias of each token."""
    rng = np.random.default_rng(seed)

    def random(*shape: int) -> F32:
        return rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))

    embedding = random(len(tokens), WIDTH) * np.float32(np.sqrt(WIDTH))
    embedding[:, 0] = 1
    yield "token_embd.weight", embedding
    for block in range(blocks):
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{block}.{name}.weight", np.ones(WIDTH, np.float32)
        for name in ("attn_q", "attn_k", "attn_v"):
            yield f"blk.{block}.{name}.weight", random(WIDTH, WIDTH)
        yield f"blk.{block}.attn_output.weight", _but_first(random(WIDTH, WIDTH))
        for name in ("ffn_gate", "ffn_up"):
            yield f"blk.{block}.{name}.weight", random(FEED_FORWARD, WIDTH)
        yield f"blk.{block}.ffn_down.weight", _but_first(random(WIDTH, FEED_FORWARD))
    yield "output_norm.weight", np.ones(WIDTH, np.float32)
    output = random(len(tokens), WIDTH)
    output[:, 0] = [_bias(token, tokens[END]) for token in tokens]
    yield "output.weight", output


def _bias(token: str, end: str) -> int:
    if token in THINKING:
        return ALWAYS
    return NEVER if token == end or not set(token) - set(FILLING) else 0


def _but_first(weights: F32) -> F32:
    weights[0] = 0  # nothing is added to dimension 0
    return weights


if __name__ == "__main__":
    write_tiny_model(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
