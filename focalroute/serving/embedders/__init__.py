"""Features of a query's text by an embedder of the user's choice, in place of the built-in hashed ones.

    an Endpoint     its /embeddings          sources.Service
    a function      text -> vector           sources.Function
    OnnxEmbedder    a local encoder          onnx.py (a function, too)

`embedding.Embedding` asks it while an ensemble serves, `offline.embedded` for a whole log.
"""

from __future__ import annotations

from focalroute.serving.embedders.embedding import Embedding
from focalroute.serving.embedders.offline import embedded
from focalroute.serving.embedders.onnx import OnnxEmbedder
from focalroute.serving.embedders.pool_file import embedder_of
from focalroute.serving.embedders.sources import TextEmbedder

__all__ = ["Embedding", "OnnxEmbedder", "TextEmbedder", "embedded", "embedder_of"]
