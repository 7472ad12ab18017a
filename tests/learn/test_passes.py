from __future__ import annotations

import sys

import pytest

from focalroute.core.errors import ConfigError
from focalroute.learn.backend import NUMPY, Backend, BackendName, open_backend
from focalroute.learn.nets import critic_pass, decider_pass, fusion_pass


@pytest.mark.parametrize("device", [None, "cpu"])
def test_numpy_is_the_default(device: str | None) -> None:
    assert open_backend(device=device) is open_backend("numpy", device) is NUMPY
    assert Backend(decider_pass, fusion_pass, critic_pass) == NUMPY


def test_numpy_computes_on_the_processor_only() -> None:
    with pytest.raises(ConfigError, match=r"^device: .*'cuda'.*backend='torch'"):
        open_backend("numpy", "cuda")


def test_a_backend_that_does_not_exist_is_named() -> None:
    nowhere: BackendName = "jax"  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"^backend: .*'jax'"):
        open_backend(nowhere)


def test_without_torch_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"pip install 'focalroute\[train\]'"):
        open_backend("torch")
