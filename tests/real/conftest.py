"""Fixtures that hand out running third-party servers, one set for each test process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest

from tests.real import build, servers
from tests.real.servers import Server


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave what needs vLLM, which takes minutes to start, to `make verify`."""
    for item in items:
        named = item.nodeid.startswith("tests/real/") and "vllm" in item.name
        if named or "vllm_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


def require(ready: bool, name: str, *, must: bool = True) -> None:
    """Skip where a server is not built; fail instead where FOCALROUTE_REAL=1 says that it must be (if ``must``)."""
    if ready:
        return
    reason = f"{name} is not built; `make real` does it"
    if must and os.environ.get("FOCALROUTE_REAL") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture
def torch() -> Iterator[Any]:
    """Torch, which takes seconds to import: not in every process that collects. Its threads are as before after it."""
    torch = pytest.importorskip("torch", "2.9", reason="torch 2.9 or newer trains the models; the extra train has it")
    threads = torch.get_num_threads()
    yield torch
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def llama_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Server]]:
    """``llama_server(seed)``: a running llama-server with the tiny model of that seed; each seed is started once."""
    require(build.llama_server_ready(), "llama-server")
    folder = tmp_path_factory.mktemp("llama")
    with ExitStack() as stack:
        yield cache(lambda seed: stack.enter_context(servers.llama_server(folder, seed)))


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running vLLM with the tiny model."""
    require(build.vllm_ready(), "vLLM", must=False)  # it takes 3.4 GB
    with servers.vllm_server(tmp_path_factory.mktemp("vllm")) as server:
        yield server


@pytest.fixture(scope="session")
def litellm_proxy(tmp_path_factory: pytest.TempPathFactory, llama_server: Callable[[int], Server]) -> Iterator[Server]:
    """A running LiteLLM proxy in front of ``llama_server(0)``."""
    require(build.litellm_ready(), "the LiteLLM proxy")
    with servers.litellm_proxy(tmp_path_factory.mktemp("litellm"), llama_server(0)) as proxy:
        yield proxy
