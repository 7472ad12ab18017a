"""Opens and runs one ONNX model, on the caller's thread. The only module that imports onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, TypeAlias

from numpy.typing import NDArray

from focalroute.core.errors import PolicyError
from focalroute.core.records import F32
from focalroute.policy.onnx_graph import Graph

#: Input or output name -> (element type as onnxruntime names it, shape with None for a free axis).
Signature: TypeAlias = Mapping[str, tuple[str, tuple[int | None, ...]]]
Inputs: TypeAlias = Mapping[str, NDArray[Any]]

_SILENT = 4  # log nothing below "fatal": failures are raised, and onnxruntime would print them as well
_OUTPUT = ["logits"]
_SMALL = 2  # the size of a free axis for which a model is checked before it is opened
_NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"


class Session:
    """An opened model that maps named arrays to "logits". Immutable; may run in several threads at once.

    It can be pickled.

    Args:
        model: the ONNX file's bytes.
        signature: the inputs the model must have, and "logits".

    Raises:
        PolicyError: onnxruntime cannot open it, it is not small and plain (see `Graph`), or has another signature.
    """

    __slots__ = ("_check", "_made_of", "_run")

    def __init__(self, model: bytes, signature: Signature) -> None:
        graph = Graph(model)
        graph.check([(name, _sized(shape)) for name, (_, shape) in signature.items() if name not in _OUTPUT])
        session = open_model(model)
        found = {
            value.name: (value.type, _shape(value.shape)) for value in session.get_inputs() + session.get_outputs()
        }
        if found != dict(signature):
            raise PolicyError(f"has inputs and outputs {found}, expected {dict(signature)}")
        self._run = getattr(session, "_sess", session).run  # without its wrapper's checks, which are made here once
        self._check = lru_cache(maxsize=1024)(graph.check)
        self._made_of = model, signature

    def __reduce__(self) -> tuple[type[Session], tuple[bytes, Signature]]:
        return Session, self._made_of

    def run(self, inputs: Inputs) -> F32:
        """The logits; PolicyError if it takes too much or fails, or anything in them is not finite."""
        self._check(tuple([(name, array.shape) for name, array in inputs.items()]))
        try:
            logits: F32 = self._run(_OUTPUT, inputs, None)[0]
        except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions have no common base
            raise PolicyError(f"onnxruntime: {error}") from None
        if not isfinite(sum(logits.ravel().tolist())):  # a handful of numbers: four times as fast as numpy
            raise PolicyError("its output is not finite")
        return logits


def open_model(model: bytes | str) -> Any:
    """An onnxruntime session on one thread: at these sizes handing work to another costs more than doing it.

    Args:
        model: the file's bytes, or its path; nothing of it is checked here.

    Raises:
        PolicyError: onnxruntime cannot be imported, or cannot open it.
    """
    onnxruntime = _runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = _SILENT
    try:
        providers = ["CPUExecutionProvider"]
        return onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=0)  # which prints
    except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions have no common base
        raise PolicyError(f"onnxruntime cannot open it: {error}") from None


def _runtime() -> Any:
    """The module without its telemetry: from 1.31 on it keeps a device id, and reports to its makers what it runs.

    The variable is read once, while it is imported. Who has set it, or has imported onnxruntime before, has decided.
    """
    before = os.environ.get(_NO_TELEMETRY)
    os.environ.setdefault(_NO_TELEMETRY, "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise PolicyError(f"onnxruntime cannot be imported: {error}") from None
    finally:
        if before is None:
            os.environ.pop(_NO_TELEMETRY, None)
    return onnxruntime


def _shape(shape: list[int | str | None]) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in shape)


def _sized(shape: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(_SMALL if size is None else size for size in shape)
