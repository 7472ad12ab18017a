"""A sentence encoder on this machine: an ONNX file and its tokenizer. The only module that imports tokenizers."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from focalroute.core.errors import ConfigError, PolicyError, needing
from focalroute.core.files import refusing
from focalroute.core.records import F32
from focalroute.policy.onnx_model import open_model

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_TRIAL = "Which planet has the most moons?"


class OnnxEmbedder:
    """Embeds texts with a local encoder, such as one of sentence-transformers exported to ONNX: a function of a text.

    A text's vector is the mean of its tokens' vectors, over the attention mask (Reimers & Gurevych 2019), later
    scaled to norm 1; a model's output of one vector per text is used as it is. It runs on the calling thread.

    The files are opened unchecked, on the CPU: use only files that you trust. Needs the extra ``embed``.

    Args:
        model: the ONNX file. Its inputs are ``input_ids`` and, if needed, ``attention_mask`` and ``token_type_ids``,
            integers (1, L); its first output floats (1, L, D) or (1, D).
        tokenizer: the tokenizer's file, ``tokenizer.json``.
        max_tokens: longer texts are truncated.

    Attributes:
        name: "onnx" and a hash of both files and ``max_tokens``: the same wherever the files are.

    Raises:
        ConfigError: a file is missing or of another kind, or the model has other inputs or outputs.
    """

    def __init__(self, model: str | Path, tokenizer: str | Path, *, max_tokens: int = 256) -> None:
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise ConfigError(f"max_tokens: must be a whole number of at least 1, not {max_tokens!r}")
        digest = hashlib.sha256(str(max_tokens).encode())
        for file in (model, tokenizer):
            digest.update(_digest(Path(file)))
        self.name = f"onnx {digest.hexdigest()[:16]}"
        self._tokenizer = _tokenizer(tokenizer, max_tokens)
        self._model = str(model)
        try:
            self._session = open_model(self._model)
        except PolicyError as error:
            raise ConfigError(f"{model}: {error}") from None
        self._inputs = {value.name: _INTEGERS.get(value.type) for value in self._session.get_inputs()}
        if "input_ids" not in self._inputs or not self._inputs.keys() <= set(_INPUTS) or None in self._inputs.values():
            found = ", ".join(f"{value.name}: {value.type}" for value in self._session.get_inputs())
            raise ConfigError(f"{model}: its inputs must be integers, of {', '.join(_INPUTS)}; they are {found}")
        self._width = self._run(_TRIAL).size

    def __call__(self, text: str) -> F32:
        """Return a text's vector, float32 (D,), not scaled; zeros if the text has no token."""
        return self._run(text)

    def _run(self, text: str) -> F32:
        encoding = self._tokenizer.encode(text)
        if not encoding.ids:
            return np.zeros(self._width, np.float32)
        given = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
        }
        feed = {name: np.array([given[name]], kind) for name, kind in self._inputs.items()}
        failed = ""
        try:
            output = np.asarray(self._session.run(None, feed)[0])
        except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions have no common base
            failed = type(error).__name__
        if failed:
            raise ConfigError(f"{self._model}: onnxruntime cannot run it on {len(encoding.ids)} tokens ({failed})")
        if output.dtype.kind != "f" or output.shape[:-1] not in ((1,), (1, len(encoding.ids))):
            raise ConfigError(
                f"{self._model}: its first output must be floats (1, tokens, D) or (1, D); "
                f"it is {output.dtype} {output.shape} for {len(encoding.ids)} tokens"
            )
        rows = output.reshape(-1, output.shape[-1]).astype(np.float32)
        mask = np.array(encoding.attention_mask if output.ndim == 3 else [1], np.float32)
        mean: F32 = mask @ rows / max(float(mask.sum()), 1.0)
        return mean


def _digest(file: Path) -> bytes:
    with refusing(file, "read"), file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()


def _tokenizer(file: str | Path, max_tokens: int) -> Any:
    with needing("OnnxEmbedder: needs the package tokenizers", "embed"):
        from tokenizers import Tokenizer
    try:
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.enable_truncation(max_tokens)
    except Exception as error:  # noqa: BLE001 - tokenizers raises plain exceptions
        raise ConfigError(f"{file}: is not a tokenizer: {error}") from None
    tokenizer.no_padding()
    return tokenizer
