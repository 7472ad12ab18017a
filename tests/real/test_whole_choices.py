"""The example of whole choices: vLLM returns a trained model's own probabilities."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from examples.tiny_pool import recipe
from examples.tiny_pool.wording import tokenizer
from focalroute.endpoints.elicit.closed import write_out_choices
from focalroute.sim import generate
from tests.real import build
from tests.real.conftest import require

if TYPE_CHECKING:
    from examples.tiny_pool.network import Llama

pytestmark = pytest.mark.real


def test_a_served_model_is_as_sure_of_each_choice_as_it_was_when_trained(torch: Any) -> None:
    from examples.paper import whole_choices
    from examples.tiny_pool import training

    require(build.vllm_ready(), "vLLM", must=False)
    brief = replace(whole_choices.recipes(0)[0], steps=30, alone=5, batch=8)
    questions = [generate(topic, Random(i)) for topic in recipe.TOPICS for i in range(5)]
    found = whole_choices.played([brief], questions)
    model, _ = training.train(brief, whole_choices.written)
    for question, logged in zip(questions, found["whole choices"], strict=True):
        texts = write_out_choices(({"role": "user", "content": question.text},), question.choices)
        assert texts is not None
        masses = torch.softmax(torch.tensor([likelihood(torch, model, text) for text in texts]), 0)
        assert logged.outputs[brief.name].probabilities == pytest.approx(masses.tolist(), abs=0.01)


def likelihood(torch: Any, model: Llama, text: str) -> float:
    """The sum over all tokens but the first."""
    ids = torch.tensor([tokenizer(recipe.TOPICS).encode(text).ids])
    with torch.no_grad():
        logs = torch.log_softmax(model.logits(model(ids))[0, :-1], -1)
    return float(logs.gather(1, ids[0, 1:, None]).sum())
