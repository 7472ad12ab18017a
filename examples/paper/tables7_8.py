"""RL-Focal, Tables 7 and 8: parameters, training and inference time; prices.

python -m examples.paper.tables7_8

Times are seconds of CPU on the machine it runs on, without network. A decision is everything between a query and its
answer except the endpoints' own time, in the replay's plain Python.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from examples.paper.common import Benchmark, benchmarks, options, show
from focalroute.evaluate.presets.rl_focal import RlFocal, rl_focal
from focalroute.evaluate.replay import Strategy, Training, Turn
from focalroute.evaluate.training import train_on
from focalroute.evaluate.votes import query_weights, static_subset
from focalroute.learn.nets import parameters
from focalroute.money.prices import installed, look_up

#: Published, Table 8: USD per million tokens at DeepInfra; and what the model is called at Together.
PUBLISHED = {
    "Llama-2-7b": (0.09, "meta-llama/Llama-2-7b-chat-hf"),
    "Llama-2-13b": (0.08, "meta-llama/Llama-2-13b-chat-hf"),
    "Llama-2-70b": (0.63, "meta-llama/Llama-2-70b-chat-hf"),
    "Mistral-7B": (0.085, "mistralai/Mistral-7B-Instruct-v0.2"),
    "Mixtral-8x7B": (0.48, "mistralai/Mixtral-8x7B-Instruct-v0.1"),
    "gemma-2b": (0.11, "google/gemma-2b"),
    "gemma-7b": (0.13, "google/gemma-7b"),
    "phi-2": (0.08, "microsoft/phi-2"),
}
_TOGETHER = "https://api.together.xyz/v1"
_ASKED = 300


def deciding(strategy: Strategy, benchmark: Benchmark) -> float:
    """Return the milliseconds that an answer takes."""
    turns = [Turn(benchmark.table, row) for row in benchmark.parts.test[:_ASKED].tolist()]
    began = time.process_time()
    for turn in turns:
        strategy.answer(turn)
    return 1000 * (time.process_time() - began) / len(turns)


def size_of(strategy: Strategy) -> str:
    """Number of parameters of the Decider and the Fusion."""
    if not isinstance(strategy, RlFocal):
        return ""
    parts = (strategy.agents.decider, strategy.agents.fusion)
    return f"{sum(array.size for part in parts for array in parameters(part.net).values()):,}"


def prices() -> list[list[str]]:
    """Print Table 8, with the price library's prices if it is installed."""
    rows = []
    for name, (published, model) in PUBLISHED.items():
        found = look_up(_TOGETHER, model).price if installed() else None
        rows.append([name, f"{published:g}", "" if found is None else f"{found.prompt:g}"])
    return rows


def main() -> None:
    """Train, measure and print."""
    asked = options(__doc__ or "")
    for benchmark in benchmarks(["ZeroEval", "MMLU-Pro"], asked):
        made: Mapping[str, Callable[[Training], Strategy]] = {
            "RL-Focal, as published": lambda training: rl_focal(training, asked.rl_focal()),
            "static-subset (LLM-TOPLA's shape)": static_subset,
            "query-weights (RLAE's shape)": query_weights,
        }
        rows = []
        for name, make in made.items():
            began = time.process_time()
            strategy = make(benchmark.training(0))
            seconds = time.process_time() - began
            rows.append([name, size_of(strategy), f"{seconds:.1f}", f"{deciding(strategy, benchmark):.3f}"])
        if "default" not in asked.without:
            began = time.process_time()
            found = train_on(benchmark.table, benchmark.parts.train, settings=asked.offline())
            seconds = time.process_time() - began
            size = sum(array.size for net in (found.decider, found.fusion) for array in parameters(net).values())
            rows.append(["focalroute", f"{size:,}", f"{seconds:.1f}", "see speed.md"])
        rows.append(["published: RL-Focal", "17,000", "6,120", "14"])
        show(f"{benchmark.name}", ["", "parameters", "training, s of CPU", "a decision, ms"], rows)
    show("Prices, USD per million tokens", ["model", "published (DeepInfra)", "in the library (Together)"], prices())


if __name__ == "__main__":
    main()
