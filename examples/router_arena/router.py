"""Names one model for each prompt, as RouterArena expects (https://github.com/RouteWorks/RouterArena). Asks none.

A submission is a configuration that names the models, and a JSON list with one object for each query: ``global index``,
``prompt``, ``prediction`` (a model's name), and three fields that RouterArena's own scripts fill in. Its rules forbid
training on its data: give the shipped policy, or one trained on other questions.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from focalroute.core.config import Endpoint
from focalroute.core.errors import ConfigError
from focalroute.core.pool import load_pool, validate_pool
from focalroute.money.budget import BudgetGuard
from focalroute.observe.observer import Observer
from focalroute.policy.fallback import Guarded
from focalroute.policy.references import resolve_policy
from focalroute.policy.slot import PolicySlot
from focalroute.serving.ask import Ask
from focalroute.serving.query import make_query

_INDEX = "global index"


class ArenaRouter:
    """Names the one model that the policy picks for a prompt, the same for the same prompt.

    Args:
        pool: the endpoints, or a pool file; ``model`` of each is its name in RouterArena. It needs no address.
        policy: as `focalroute.Ensemble`.
        cost_weight: as in `focalroute.Ensemble`.

    Raises:
        ConfigError: the pool or the policy is wrong, two endpoints have one model, or the policy asks in a sequence.
    """

    def __init__(
        self, pool: Sequence[Endpoint] | str | Path, policy: str | Path | None = None, *, cost_weight: float = 0.1
    ) -> None:
        endpoints = load_pool(pool).endpoints if isinstance(pool, str | Path) else pool
        self.endpoints = validate_pool(endpoints)
        model, times = Counter(endpoint.model for endpoint in self.endpoints).most_common(1)[0]
        if times > 1:
            raise ConfigError(f"pool: the model {model!r} is there {times} times; keep one: RouterArena knows names")
        names = tuple(endpoint.name for endpoint in self.endpoints)
        self._policy = PolicySlot.open(resolve_policy(policy, names, seed=0)).current
        if Guarded(self._policy, names).sequential:
            raise ConfigError(f"policy: {policy} asks one endpoint after another; RouterArena takes one for each query")
        self._names, self._cost_weight = names, cost_weight
        self._guard = BudgetGuard(None, self.endpoints)
        self._observer = Observer.of(self.endpoints)
        self._observer.adopt(self._policy.experience)

    def choose(self, prompt: str) -> str:
        """Return the name of the model to ask this prompt.

        Raises:
            ConfigError: the prompt is empty.
        """
        query = make_query(prompt, combine="pick")
        ask = Ask(
            query,
            policy=Guarded(self._policy, self._names),
            view=self._observer.begin(query),
            ask_budget=self._guard.ask_budget(None, query.id),
            deadline=math.inf,
            rng=random.Random(prompt),
        )
        decision = ask.decide(
            ask.observe(self._cost_weight), order=self._observer.order(), eligible=lambda *_: True, explore=False
        )
        return self.endpoints[decision.picked[0]].model

    def export(self, dataset: str | Path, folder: str | Path, name: str) -> None:
        """Write ``config/NAME.json``, ``predictions/NAME.json`` and ``cost/NAME.json`` into a folder.

        The first two belong into RouterArena's ``router_inference``; the last has the known prices as entries for its
        ``model_cost/cost.json``.

        Args:
            dataset: a split as its ``prep_datasets.py`` writes it, such as ``router_data_10.json``.

        Raises:
            ConfigError: the dataset cannot be read, or an entry of it is wrong.
        """
        rows = _read(Path(dataset))
        predictions = [
            {
                _INDEX: row[_INDEX], "prompt": _prompt(row), "prediction": self.choose(_prompt(row)),
                "generated_result": None, "cost": None, "accuracy": None,
            }
            for row in rows
        ]  # fmt: skip
        models = [endpoint.model for endpoint in self.endpoints]
        costs = {
            endpoint.model: {
                "input_token_price_per_million": float(endpoint.price.prompt),
                "output_token_price_per_million": float(endpoint.price.completion),
            }
            for endpoint in self.endpoints
            if endpoint.price is not None
        }
        config = {"pipeline_params": {"router_name": name, "models": models}}
        for part, content in (("config", config), ("predictions", predictions), ("cost", costs)):
            path = Path(folder, part, f"{name}.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content, indent=2, ensure_ascii=False), "utf-8")


def _prompt(row: Mapping[str, Any]) -> str:
    return row.get("prompt_formatted") or row.get("prompt") or ""


def _read(path: Path) -> list[dict[str, Any]]:
    """Read the entries of a split, and check that each has a unique index and a prompt."""
    try:
        rows = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"dataset: {path}: cannot be read as JSON ({type(error).__name__})") from None
    if not isinstance(rows, list) or not rows:
        raise ConfigError(f"dataset: {path}: give a list of entries, as prep_datasets.py writes it")
    seen = set()
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or not row.get(_INDEX) or not isinstance(_prompt(row), str) or not _prompt(row):
            raise ConfigError(f"dataset: {path}: entry {number}: lacks {_INDEX!r} or its prompt")
        if row[_INDEX] in seen:
            raise ConfigError(f"dataset: {path}: entry {number}: {_INDEX!r} {row[_INDEX]} is there twice")
        seen.add(row[_INDEX])
    return rows
