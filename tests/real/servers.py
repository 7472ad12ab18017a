"""Start and stop real third-party servers on loopback ports of their own choosing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.real.build import LITELLM, LLAMA_SERVER, VLLM
from tests.real.tiny_model import BLOCKS, write_tiny_folder, write_tiny_model

__all__ = ["Server", "litellm_proxy", "llama_server", "llama_serving", "vllm_server", "vllm_serving"]

_ADDRESS = re.compile(r"(?:listening|running|server) on (http://127\.0\.0\.1:\d+)")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        base_url: up to and including ``/v1``.
        model: the model name it serves.
        key: the bearer key it wants; None: none.
    """

    base_url: str
    model: str
    key: str | None = field(default=None, repr=False)


@contextlib.contextmanager
def llama_server(
    folder: Path,
    seed: int = 0,
    *,
    slots: int = 12,
    template: str | None = None,
    options: Sequence[str] = (),
    blocks: int = BLOCKS,
) -> Iterator[Server]:
    """llama.cpp's server with the tiny model of ``seed``. It refuses ``n`` above ``slots`` with status 400.

    Args:
        template: a chat template in place of the model's, which knows of no tools.
        options: more of its command line.
        blocks: of the model.
    """
    model = write_tiny_model(folder / f"tiny-{seed}.gguf", seed, blocks=blocks)
    if template is not None:
        (folder / "template.jinja").write_text(template)
        options = ["--chat-template-file", str(folder / "template.jinja"), *options]
    with llama_serving(model, folder / f"llama-server-{seed}.log", slots=slots, options=options) as (root, _):
        yield Server(f"{root}/v1", f"tiny-{seed}")


@contextlib.contextmanager
def llama_serving(
    model: Path, log: Path, *, slots: int = 12, context: int = 2048, options: Sequence[str] = ()
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """llama.cpp's server with a model file, on one thread: its root address, and its process.

    Args:
        slots: requests at a time, each with ``context`` tokens.
        options: more of its command line.
    """
    command = [str(LLAMA_SERVER), "--model", str(model), "--host", "127.0.0.1", "--port", "0", "--no-ui"]
    command += ["--threads", "1", "--parallel", str(slots), "--ctx-size", str(context * slots), *options]
    with _running(command, log, "/health", timeout_s=60) as running:
        yield running


@contextlib.contextmanager
def litellm_proxy(folder: Path, upstream: Server) -> Iterator[Server]:
    """A LiteLLM proxy in front of ``upstream``; it takes 6 s and 0.4 GB, and wants a key."""
    key = f"sk-{secrets.token_hex(32)}"  # it refuses to start with a weak one
    behind = {"model": f"openai/{upstream.model}", "api_base": upstream.base_url, "api_key": upstream.key or "none"}
    config = folder / "litellm.yaml"  # YAML, of which JSON is a part
    config.write_text(json.dumps({"model_list": [{"model_name": "tiny", "litellm_params": behind}]}))
    env = {"LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1"}
    command = [str(LITELLM), "--config", str(config), "--host", "127.0.0.1", "--port", "0", "--num_workers", "1"]
    with _running(command, folder / "litellm.log", "/health/liveliness", timeout_s=180, env=env) as (root, _):
        yield Server(f"{root}/v1", "tiny", key)


@contextlib.contextmanager
def vllm_server(folder: Path, seed: int = 0) -> Iterator[Server]:
    """vLLM with the tiny model of ``seed``; it takes half a minute to start."""
    model = write_tiny_folder(folder / f"tiny-{seed}", seed)
    with vllm_serving(model, folder / "vllm.log") as root:
        yield Server(f"{root}/v1", model.name)


@contextlib.contextmanager
def vllm_serving(model: Path, log: Path, options: Sequence[str] = ()) -> Iterator[str]:
    """vLLM with the model in this folder, on one thread: its root address."""
    command = [str(VLLM), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--enforce-eager"]
    command += ["--served-model-name", model.name, "--host", "127.0.0.1", "--max-num-seqs", "16"]
    command += [*options, "--port", str(_free_port())]  # it would serve on one of its own choice, and not say which
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with _running(command, log, "/health", timeout_s=600, env=env) as (root, _):
        yield root


@contextlib.contextmanager
def _running(
    command: Sequence[str], log: Path, health: str, *, timeout_s: float, env: Mapping[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a server until the block ends; yields its root address, once ``health`` answers 200, and its process."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            cwd=log.parent,
        ) as process,
    ):
        try:
            yield _wait_until_ready(process, log, health, time.monotonic() + timeout_s), process
        finally:
            _stop(process)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path, health: str, deadline: float) -> str:
    while process.poll() is None and time.monotonic() < deadline:
        address = _ADDRESS.search(log.read_text(errors="replace"))
        if address and _healthy(address[1] + health):
            return address[1]
        time.sleep(0.02)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    raise RuntimeError(f"the server did not become ready (exit code {process.poll()}):\n{tail}")


def _healthy(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
