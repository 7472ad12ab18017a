"""Runs a simulated pool in a separate process, and controls it from this one."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args
from urllib.parse import quote

from focalroute.core.errors import ConfigError, FocalrouteError
from focalroute.sim.faults import Fault, ModelStats
from focalroute.sim.models import SimulatedModel, default_models

if TYPE_CHECKING:  # the process that serves does not need them
    from focalroute.core.config import Endpoint
    from focalroute.core.dollars import Amount

#: The dialects that can be served. "minimal" ignores n, log-probabilities and structured output.
DialectName = Literal["openai", "together", "deepinfra", "vllm", "llamacpp", "openrouter", "minimal"]

_SPOKEN = {name: name for name in get_args(DialectName)[:-1]}  # for all others the endpoint's dialect is "openai"
_ROOT = Path(__file__).resolve().parents[2]
_STOP_S = 5.0
_CONTROL_S = 30.0


class SimulatedPool:
    """Serves simulated models over real HTTP on a free port of this machine, from a separate process.

    Use it as a context manager (``with``, or ``async with`` if start-up must not block the event loop). The process
    ends with the context, and in any case with this process.

    Args:
        models: the models to serve; default: `default_models`.
        dialects: the dialect of all models, or model name -> dialect (others use "openai").
        keys: model name -> the environment variable with the key to require; other models need no key.

    Raises:
        ConfigError: names repeat, a dialect or model does not exist, or a key's variable is not set.

    Examples:
        >>> with SimulatedPool() as pool:
        ...     [endpoint.name for endpoint in pool.endpoints][:2]
        ['swift-8b', 'swift-24b']
    """

    def __init__(
        self,
        models: Sequence[SimulatedModel] | None = None,
        *,
        dialects: DialectName | Mapping[str, DialectName] = "openai",
        keys: Mapping[str, str] | None = None,
    ) -> None:
        if models is not None and not isinstance(models, Iterable):
            raise ConfigError(f"models: give a list of SimulatedModels, got {type(models).__name__}")
        self.models = tuple(default_models() if models is None else models)
        for model in self.models:
            if not isinstance(model, SimulatedModel):
                raise ConfigError(f"models: give SimulatedModels, got {type(model).__name__}")
        names = [model.name for model in self.models]
        if not names:
            raise ConfigError("models: the pool is empty; give at least one SimulatedModel")
        if len(set(names)) < len(names):
            raise ConfigError("models: names must be unique")
        given = dict.fromkeys(names, dialects) if isinstance(dialects, str) else dialects
        self._dialects = _by_model("dialects", given, names)
        self._keys = _by_model("keys", keys or {}, names)
        known = (*get_args(DialectName), *(dialect for model in self.models for dialect in model.dialects))
        for name, dialect in self._dialects.items():
            if dialect not in known:
                raise ConfigError(
                    f"dialects: {name}: unknown dialect {dialect!r}; use one of {', '.join(dict.fromkeys(known))}"
                )
        self._process: subprocess.Popen[str] | None = None
        self._port = 0

    def __enter__(self) -> Self:
        models = [(type(model).__module__, type(model).__name__, asdict(model)) for model in self.models]
        spec = {"models": models, "keys": self._secrets()}
        self._process = self._start_process()
        try:
            self._port = self._send_spec(self._process, json.dumps(spec, default=str))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        import anyio.to_thread

        return await anyio.to_thread.run_sync(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        import anyio.to_thread

        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.close)

    def close(self) -> None:
        """End the process. Idempotent."""
        process, self._process = self._process, None
        if process is None or process.stdin is None or process.stdout is None:
            return
        with contextlib.suppress(OSError):
            process.stdin.close()  # signals it to end
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    @property
    def port(self) -> int:
        """The port on 127.0.0.1 that the pool listens on.

        Raises:
            ConfigError: the pool is not running.
        """
        if self._process is None:
            raise ConfigError("SimulatedPool: is not running; use it inside its with statement")
        return self._port

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The models as endpoints, ready to ask; with the prices at the pool's start."""
        return pool_endpoints(self.models, self.port, self._dialects, self._keys)

    def stats(self) -> dict[str, ModelStats]:
        """Return the service's counts so far, by model."""
        counts = self._call("GET", "/sim/stats")
        return {name: ModelStats(**{**values, "usd": Decimal(values["usd"])}) for name, values in counts.items()}

    def set(
        self,
        model: str,
        *,
        faults: Sequence[Fault] | Fault | None = None,
        drifted: bool | None = None,
        latency_s: float | None = None,
        jitter_s: float | None = None,
        input_usd_per_1m: Amount | None = None,
        output_usd_per_1m: Amount | None = None,
        verbosity: int | None = None,
    ) -> None:
        """Change one model while it is served; settings not given stay as they are.

        Args:
            model: the model's name.
            faults: the faults from now on, replacing all earlier ones; an empty list ends them.
            drifted: whether the skills after the drift switch apply.
            latency_s: as in `SimulatedModel`, like the arguments after it.

        Raises:
            ConfigError: there is no such model, or a value is invalid.
        """
        given: dict[str, Any] = {
            "drifted": drifted, "latency_s": latency_s, "jitter_s": jitter_s, "verbosity": verbosity,
            "input_usd_per_1m": input_usd_per_1m, "output_usd_per_1m": output_usd_per_1m,
        }  # fmt: skip
        if faults is not None:
            several = [faults] if isinstance(faults, Fault) else faults
            if not isinstance(several, Iterable) or not all(isinstance(fault, Fault) for fault in several):
                raise ConfigError('faults: give Faults, such as Fault("reset")')
            given["faults"] = [asdict(fault) for fault in several]
        switches = {name: value for name, value in given.items() if value is not None}
        self._call("POST", f"/sim/model/{quote(str(model), safe='')}", switches)

    def drift(self, drifted: bool = True) -> None:
        """Switch every model to its skills after (or before) the drift."""
        for model in self.models:
            self.set(model.name, drifted=drifted)

    def reset(self) -> None:
        """Undo all changes and reset the counts; calls still under way are not counted."""
        self._call("POST", "/sim/reset")

    def _secrets(self) -> dict[str, str]:
        unset = sorted({variable for variable in self._keys.values() if not os.environ.get(variable)})
        if unset:
            raise ConfigError(f"keys: the environment variable {unset[0]} is not set; set it to any key")
        return {name: os.environ[variable] for name, variable in self._keys.items()}

    @staticmethod
    def _start_process() -> subprocess.Popen[str]:
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return subprocess.Popen(
            [sys.executable, "-m", "focalroute.sim", "--from-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # so that Ctrl-C here does not end it before we do
        )

    def _send_spec(self, process: subprocess.Popen[str], spec: str) -> int:
        """Send the spec to the process; return the port that it listens on."""
        if process.stdin is None or process.stdout is None:
            raise FocalrouteError("SimulatedPool: the process has no pipes")
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(spec + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line.strip().isdigit():
            raise FocalrouteError("SimulatedPool: the process ended before it was listening; its own output says why")
        return int(line)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_CONTROL_S)
        try:
            sent = None if body is None else json.dumps(body, default=str)  # prices may be decimals
            connection.request(method, path, sent)
            response = connection.getresponse()
            status, payload = response.status, json.loads(response.read())
        finally:
            connection.close()
        if status != 200:
            raise ConfigError(f"SimulatedPool: {payload['error']}")
        return dict(payload)


def _by_model(field: str, given: object, names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not all(isinstance(one, str) for one in given.values()):
        raise ConfigError(f'{field}: give the text of each model by its name, such as {{"{names[0]}": "..."}}')
    unknown = sorted(set(given) - set(names), key=str)
    if unknown:
        raise ConfigError(f"{field}: no model is called {unknown[0]!r}; there are {', '.join(names)}")
    return dict(given)


def pool_endpoints(
    models: Sequence[SimulatedModel], port: int, dialects: Mapping[str, DialectName], keys: Mapping[str, str]
) -> tuple[Endpoint, ...]:
    """The models served on a port as endpoints."""
    from focalroute.core.config import Endpoint

    return tuple(
        Endpoint(
            model.name,
            model=model.name,
            base_url=f"http://127.0.0.1:{port}/{dialects.get(model.name, 'openai')}/v1",
            api_key_env=keys.get(model.name),
            input_usd_per_1m=model.input_usd_per_1m,
            output_usd_per_1m=model.output_usd_per_1m,
            dialect=_SPOKEN.get(dialects.get(model.name, "openai"), "openai"),
        )
        for model in models
    )


def pool_toml(endpoints: Sequence[Endpoint]) -> str:
    """The endpoints as a pool file."""

    def line(endpoint: Endpoint, name: str) -> str:
        value = getattr(endpoint, name)
        return f"{name} = {json.dumps(value, ensure_ascii=False) if isinstance(value, str) else format(value, 'f')}\n"

    names = ("name", "model", "base_url", "dialect", "input_usd_per_1m", "output_usd_per_1m")
    return "\n".join("[[endpoint]]\n" + "".join(line(endpoint, name) for name in names) for endpoint in endpoints)
