"""Sources of text vectors: a service's /embeddings, a sentence encoder on this machine, or the user's function.

The only module that imports tokenizers.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed, ConfigError, PolicyError, locating, needing
from focalroute.core.event_loops import DaemonThreads
from focalroute.core.files import refusing
from focalroute.core.pool import PoolFile, endpoint_in_table
from focalroute.core.records import F32, Failure, Usage
from focalroute.endpoints.client import EndpointClient, HttpSessions
from focalroute.endpoints.paid_call import reserved
from focalroute.endpoints.rate_limits import Throttle
from focalroute.endpoints.wire import Embeddings, Request
from focalroute.endpoints.wire.fields import protocol_error
from focalroute.endpoints.wire.refusals import located
from focalroute.money.budget import AskBudget
from focalroute.observe.features import unit_vector
from focalroute.policy.onnx_model import open_model

#: What may be given as an embedder.
TextEmbedder = Endpoint | Callable[[str], ArrayLike | Awaitable[ArrayLike]]


class EmbeddingService:
    """An endpoint's /embeddings. Each call is reserved, settled and rate-limited like any other.

    If vectors have another length than the first ones, the service has changed, and the call counts as failed.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._sessions = HttpSessions()
        self._throttle = Throttle(endpoint)
        self._client = EndpointClient(endpoint, self._sessions, on_headers=self._throttle.on_headers)
        self._width = 0

    def prepare(self) -> None:
        """Load the libraries for the first call, outside any time limit. Quick from then on."""
        self._client.prepare()

    async def vectors(self, texts: Sequence[str], ask_budget: AskBudget, left_s: float) -> list[F32]:
        """Return a vector for each text, float32 (D,) of norm 1, always of the same length.

        Raises:
            CallFailed: the service fails now.
        """
        admitted = await self._throttle.enter(sum(map(len, texts)) / 4, left_s)
        failure: Failure | None = Failure("cancelled", "given up before it answered")
        usage: Usage | None = None
        try:
            reply = await self._paid(texts, ask_budget)
            failure, usage = None, reply.usage
        except CallFailed as error:
            error.failure = failure = located(error.failure, self._endpoint)
            usage = error.usage
            raise
        finally:
            self._throttle.leave(admitted, None if usage is None else usage.prompt_tokens, failure)
        return self._checked(reply)

    async def _paid(self, texts: Sequence[str], ask_budget: AskBudget) -> Embeddings:
        request = Request([{"role": "user", "content": text} for text in texts], max_tokens=0)
        async with reserved(ask_budget, self._endpoint, request) as paid_call:
            if paid_call is None:
                raise CallFailed(Failure("unavailable", "not affordable"))
            reply = await self._client.embed(texts)
            paid_call.usage = reply.usage
            return reply

    def _checked(self, reply: Embeddings) -> list[F32]:
        try:
            found = [unit_vector(vector) for vector in reply.vectors]
        except ValueError as error:
            raise protocol_error(str(error)) from None
        self._width = self._width or found[0].size
        if found[0].size != self._width:
            raise protocol_error(f"its vectors now have {found[0].size} numbers, but had {self._width}")
        return found

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        await self._sessions.aclose()


class EmbeddingFunction:
    """The user's function. An exception, or a vector of another length than before, counts as a failed call.

    If its very first result is not a vector, a ConfigError is raised.

    A plain function runs on a thread of its own, one text at a time, as it may be slow and not thread-safe. An
    awaitable that it returns is awaited on the loop that asks.
    """

    def __init__(self, function: Callable[[str], ArrayLike | Awaitable[ArrayLike]]) -> None:
        self._function = function
        call = function if inspect.isroutine(function) else type(function).__call__
        self._worker = None if inspect.iscoroutinefunction(call) else DaemonThreads(1, "focalroute-embedder")
        self._width = 0

    def prepare(self) -> None:
        """Do nothing: there is nothing to load."""

    async def vectors(self, texts: Sequence[str], ask_budget: AskBudget, left_s: float) -> list[F32]:
        """Return a vector for each text, as `EmbeddingService` does.

        Raises:
            CallFailed: the function fails now.
            ConfigError: its first result is not a vector.
        """
        return [await self._vector(text) for text in texts]

    async def _vector(self, text: str) -> F32:
        failed = list[CallFailed]()
        try:
            found = await self._called(text)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it raises; its message may quote the text
            failed.append(CallFailed(Failure("unusable", f"it raised {type(error).__name__}")))
        else:
            try:
                return self._checked(found)
            except ValueError as error:
                if not self._width:
                    raise ConfigError(f"embedder: {error}") from None
                failed.append(CallFailed(Failure("unusable", str(error))))
        raise failed.pop()  # raised here so that it has no context

    def _checked(self, found: Any) -> F32:
        vector = unit_vector(found)
        if self._width and vector.size != self._width:
            raise ValueError(f"gave {vector.size} numbers for a text, but {self._width} for an earlier one")
        self._width = vector.size
        return vector

    async def _called(self, text: str) -> Any:
        if self._worker is None:
            found: Any = self._function(text)
        else:
            found = await asyncio.wrap_future(self._worker.submit(self._function, text))
        return await found if inspect.isawaitable(found) else found

    async def aclose(self) -> None:
        """End the thread after its current text, without waiting for it."""
        if self._worker is not None:
            self._worker.shutdown()


#: The forms of an embedder that make vectors.
VectorSource = EmbeddingService | EmbeddingFunction


def vector_source(embedder: TextEmbedder) -> VectorSource:
    """Return the source for an embedder; ConfigError if it is not an embedder."""
    if isinstance(embedder, Endpoint):
        return EmbeddingService(embedder)
    if not callable(embedder):
        raise ConfigError(
            f"embedder: give an Endpoint, an OnnxEmbedder or a function of a text, got {type(embedder).__name__}"
        )
    return EmbeddingFunction(embedder)


# -- a sentence encoder on this machine --------------------------------------------------------------------------------

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
        for name, file in (("model", model), ("tokenizer", tokenizer)):
            if not isinstance(file, str | Path):
                raise ConfigError(f"{name}: give the path of a file, got {type(file).__name__}")
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


# -- in a pool file ----------------------------------------------------------------------------------------------------

_LOCAL = {"onnx", "tokenizer", "max_tokens"}


def embedder_from_pool_file(pool: PoolFile, path: str | Path) -> TextEmbedder | None:
    """Return the embedder of a pool file, or None.

    Its table has either ``onnx`` and ``tokenizer``, files of a local encoder relative to the pool file; or the keys of
    an endpoint: ``base_url``, ``model``, ``api_key_env``, ``input_usd_per_1m`` and so on, with the default name
    "embedder".

    Raises:
        ConfigError: a key is missing, unknown or wrong; the message names it.
    """
    if pool.embedder is None:
        return None
    table = dict(pool.embedder)
    with locating(f"{path}: embedder", "Endpoint: "):
        return _local(table, Path(path).parent) if _LOCAL & table.keys() else _service(table)


def _service(table: dict[str, Any]) -> Endpoint:
    if "input_usd_per_1m" in table:
        table.setdefault("output_usd_per_1m", 0)  # nothing is generated
    endpoint = endpoint_in_table(table, "embedder")
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
