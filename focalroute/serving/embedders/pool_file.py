"""The ``[embedder]`` table of a pool file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from focalroute.core.config import Endpoint
from focalroute.core.errors import ConfigError
from focalroute.core.pool import PoolFile
from focalroute.serving.embedders.onnx import OnnxEmbedder
from focalroute.serving.embedders.sources import TextEmbedder

_LOCAL = {"onnx", "tokenizer", "max_tokens"}


def embedder_of(pool: PoolFile, path: str | Path) -> TextEmbedder | None:
    """The embedder that a pool file names; None: none.

    Either ``onnx`` and ``tokenizer``, files of a local encoder relative to the pool file; or the keys of an endpoint:
    ``base_url``, ``model``, ``api_key_env``, ``input_usd_per_1m`` and so on. Its name is "embedder" unless given.

    Raises:
        ConfigError: a key is missing, unknown or wrong; the message names it.
    """
    if pool.embedder is None:
        return None
    table = dict(pool.embedder)
    try:
        return _local(table, Path(path).parent) if _LOCAL & table.keys() else _service(table)
    except ConfigError as error:
        raise ConfigError(f"{path}: embedder: {error}") from None


def _service(table: dict[str, Any]) -> Endpoint:
    named: dict[str, Any] = {"name": "embedder", **table}
    if "input_usd_per_1m" in named:
        named.setdefault("output_usd_per_1m", 0)  # nothing is generated
    if "client" in named:
        raise ConfigError("client: a pool file cannot hold one; give base_url")
    endpoint = Endpoint(**named)
    if endpoint.base_url is None:
        raise ConfigError("base_url: give it and a model, or onnx and tokenizer")
    return endpoint


def _local(table: dict[str, Any], folder: Path) -> OnnxEmbedder:
    unknown = sorted(table.keys() - _LOCAL)
    if unknown:
        raise ConfigError(f"unknown key {unknown[0]!r}; a local encoder has onnx, tokenizer and max_tokens")
    for key in ("onnx", "tokenizer"):
        if not isinstance(table.get(key), str):
            raise ConfigError(f"{key}: required, the path of a file")
    settings = {"max_tokens": table["max_tokens"]} if "max_tokens" in table else {}
    return OnnxEmbedder(folder / table["onnx"], folder / table["tokenizer"], **settings)
