"""The example of five language models, with two that hardly learned anything: every step of it on real servers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from examples.tiny_pool import elicited, recipe
from examples.tiny_pool.wording import prompt, tokenizer, tokens
from focalroute.evaluate.outcomes import LoggedQuery, Output
from focalroute.sim import generate
from tests.real import build
from tests.real.conftest import require
from tests.real.servers import llama_serving

pytestmark = pytest.mark.real


def brief(name: str, topic: str, seed: int, steps: int = 30) -> recipe.Recipe:
    """A model that learns for a second: just that a letter is wanted, of two where the choices are two."""
    shape = recipe.Shape(width=32, blocks=1, heads=2, feed_forward=64)
    return recipe.Recipe(name, shape, {topic: 1, "logic": 1}, steps, seed, Decimal("0.1"), alone=5, batch=8, rate=3e-3)


@pytest.fixture
def cache(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where models are kept while a test runs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    require(build.llama_server_ready(), "llama-server")
    return tmp_path


def test_the_server_reads_and_answers_as_the_model_that_was_trained(cache: Path, torch: Any) -> None:
    """The same tokens of the very prompts, the same likeliest one after them, its log-probability within .01."""
    from examples.tiny_pool import training
    from examples.tiny_pool.gguf_file import CONTEXT, write_gguf

    made = tokenizer(recipe.TOPICS)
    model, _ = training.train(brief("alike", "counting", 1, steps=10))
    path = write_gguf(cache / "alike.gguf", "alike", model, made)
    questions = [generate(topic, Random(i)) for topic in recipe.TOPICS for i in range(5)]
    serving = llama_serving(path, cache / "log", slots=2, context=CONTEXT)
    with serving as (root, _), httpx.Client(base_url=root, trust_env=False) as client:
        for question in questions:
            ids = tokens(made, question).ids
            assert served_tokens(client, prompt(question)) == ids[:-1]
            token, log_probability = served_answer(client, prompt(question))
            with torch.no_grad():
                expected = torch.log_softmax(model.logits(model(torch.tensor([ids]))[0, -1]), -1)
            assert token == int(expected.argmax())
            assert math.isclose(log_probability, float(expected.max()), abs_tol=0.01)


def served_tokens(client: httpx.Client, text: str) -> Any:
    reply = client.post("/tokenize", json={"content": text, "add_special": False})
    return reply.raise_for_status().json()["tokens"]


def served_answer(client: httpx.Client, text: str) -> tuple[int, float]:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 1, "logprobs": True}
    reply = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    (first,) = reply["choices"][0]["logprobs"]["content"]
    return first["id"], first["logprob"]


def believed(mass: Sequence[float], label: int, tokens: int = 2) -> LoggedQuery:
    """A question of three choices, and what one endpoint gave for it."""
    output = Output(max(range(3), key=mass.__getitem__), tuple(mass), None, 60, tokens, 1e-5 * tokens, 0.1, None)
    return LoggedQuery("q", "counting", (), ("1", "2", "3"), label, {"ann": output}, 1)


def test_two_ways_to_have_probabilities_are_compared_answer_by_answer() -> None:
    """By hand: three quarters right at .75 is calibrated, at 1 it is .25 off; an answer without a pair is left out."""
    labels = [0, 0, 0, 1] * 20
    sober = [believed((0.75, 0.25, 0), label) for label in labels]
    bold = [believed((1, 0, 0), label, tokens=20) for label in labels]
    silent = replace(bold[0], outputs={"ann": replace(bold[0].outputs["ann"], probabilities=None)})
    found = elicited.compared([*sober, sober[0]], [*bold, silent], ["ann"])
    assert (found.answers, found.questions) == (80, 80)
    assert found.first.accuracy == found.second.accuracy == 0.75
    assert found.first.error == pytest.approx(0)
    assert found.second.error == pytest.approx(0.25)
    assert found.first.brier == pytest.approx(0.75 * 2 * 0.25**2 + 0.25 * 2 * 0.75**2)
    assert found.second.brier == pytest.approx(0.25 * 2)
    assert found.second.log_loss == pytest.approx(0.25 * -math.log(0.01))
    assert found.low.brier < found.second.brier - found.first.brier < found.high.brier
    assert found.low.brier > 0, "it is surely worse, pair by pair"
    assert found.low.tokens == found.high.tokens == 18


def test_every_step_of_the_loop_runs(cache: Path) -> None:
    """Collecting, training, all streams with a server killed and one that joins; tables, figure and page."""
    from examples.tiny_pool import training
    from examples.tiny_pool.__main__ import played, write
    from examples.tiny_pool.experiment import CHANGING, STEADY, Sizes

    models = tuple(brief(name, topic, i) for i, (name, topic) in enumerate((("ann", "logic"), ("ben", "counting"))))
    roster = recipe.Roster(models, "ben", brief("cid", "counting", 7))
    for each in (*models, roster.newcomer):
        training.ready(each)
    sizes = Sizes(training=24, stream=20, sampled=5, iterations=2)
    seed = played(cache / "seed", 0, sizes, roster)
    assert set(seed.lives) == {*STEADY, CHANGING}
    assert all(len(live.right) == 20 and live.unanswered == 0 for live in seed.lives.values())
    assert {question.id for question in seed.training}.isdisjoint(question.id for question in seed.stream)
    changing = seed.lives[CHANGING]
    assert not any(changing.asked[n][2] for n in range(12))  # the newcomer is not there yet
    write([seed], cache)
    shown = (cache / "tables.md").read_text()
    assert "ben killed" in shown
    assert "ten samples" in shown
    assert (cache / "accuracy.svg").stat().st_size > 1000
    assert "ann" in (cache / "report.html").read_text()
