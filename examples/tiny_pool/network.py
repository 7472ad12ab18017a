"""A Llama in torch (llama.cpp's architecture "llama"), small enough to train on two cores."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from examples.tiny_pool.recipe import Shape

__all__ = ["EPSILON", "THETA", "Llama"]

EPSILON = 1e-5  # of the norms
THETA = 100.0  # base of the rotary embedding; a prompt has some 80 tokens


class _Block(nn.Module):  # type: ignore[misc]
    """Pre-norm attention with rotary positions, then SwiGLU; no biases."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, inner = shape.width, shape.feed_forward
        self.heads = shape.heads
        self.attn_norm = nn.RMSNorm(width, EPSILON)
        self.attn_qkv = nn.Linear(width, 3 * width, bias=False)
        self.attn_output = nn.Linear(width, width, bias=False)
        self.ffn_norm = nn.RMSNorm(width, EPSILON)
        self.ffn_gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.ffn_down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Any, turns: Any) -> Any:
        batch, length, width = x.shape
        heads = _linear(self.attn_qkv, self.attn_norm(x)).view(batch, length, 3, self.heads, -1)
        query, key = _rotated(heads[:, :, :2], turns).permute(2, 0, 3, 1, 4)
        value = heads[:, :, 2].transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + _linear(self.attn_output, mixed.transpose(1, 2).reshape(batch, length, width))
        gate, up = _linear(self.ffn_gate_up, self.ffn_norm(x)).chunk(2, -1)
        return x + _linear(self.ffn_down, functional.silu(gate) * up)


class Llama(nn.Module):  # type: ignore[misc]
    """The whole model; the output weights are the embedding's.

    ``forward`` takes token ids, int64, shape (batch, length), and returns the normed hidden states, float32, shape
    (batch, length, width). Sequences shorter than the batch's are padded on the right, which no position attends to.
    """

    def __init__(self, shape: Shape, vocabulary: int) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(vocabulary, shape.width)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.blocks))
        self.norm = nn.RMSNorm(shape.width, EPSILON)
        for name, weights in self.named_parameters():
            if weights.dim() > 1:
                last = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(weights, std=0.06 if "embedding" in name else shape.width**-0.5)
                if last:
                    weights.data.mul_((2 * shape.blocks) ** -0.5)

    def forward(self, tokens: Any) -> Any:
        return self.states(tokens)[-1]

    def states(self, tokens: Any, blocks: int | None = None) -> list[Any]:
        """Return the states after each of the first ``blocks`` (all by default), as ``forward`` gives them."""
        x = self.embedding(tokens)
        turns = _turns(tokens.shape[1], self.shape.width // self.shape.heads)
        found = []
        for block in self.blocks[:blocks]:
            x = block(x, turns)
            found.append(self.norm(x))
        return found

    def logits(self, hidden: Any) -> Any:
        """Of the next token, shape (..., vocabulary)."""
        return functional.linear(hidden, self.embedding.weight)

    @property
    def size(self) -> int:
        """How many parameters it has."""
        return sum(weights.numel() for weights in self.parameters())


def _turns(length: int, width: int) -> Any:
    frequencies = THETA ** (-torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(length), frequencies)
    return torch.polar(torch.ones_like(angles), angles)[:, None, None]


def _rotated(heads: Any, turns: Any) -> Any:
    """Neighbours are rotated as pairs, as llama.cpp does for this architecture (Su et al. 2021, arXiv 2104.09864)."""
    pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2)


def _linear(layer: Any, x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16, enabled=layer.training):
        return layer(x).float()
