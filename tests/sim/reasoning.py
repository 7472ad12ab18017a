"""The services of reasoning models, as documented on the pages linked beside them, for models that think."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from focalroute.sim import SimulatedModel
from focalroute.sim.dialects import Dialect, RequestRefused, Thinking, openai_error

__all__ = ["SERVICES", "Thinker"]


def _refuse_openai(body: Mapping[str, Any], *, logprobs: int) -> None:
    """Refuse what OpenAI's reasoning models do not accept: log-probabilities, ``max_tokens``, a temperature not 1.

    With effort "none" they accept all but ``max_tokens``
    (https://platform.openai.com/docs/guides/latest-model#gpt-5-parameter-compatibility).
    https://learn.microsoft.com/azure/ai-foundry/openai/how-to/reasoning has the list.
    """
    if "max_tokens" in body:
        raise _unsupported("max_tokens", " Use 'max_completion_tokens' instead.")
    if body.get("reasoning_effort") == "none":
        return
    if body.get("logprobs") and logprobs == 403:
        message = "You are not allowed to request logprobs from this model"
        raise RequestRefused(403, message, body=openai_error(message, None, None))
    for name in ("logprobs", "top_logprobs", "presence_penalty", "frequency_penalty"):
        if body.get(name):
            raise _unsupported(name)
    for name in ("temperature", "top_p"):
        if body.get(name, 1) != 1:
            value = f"'{name}' does not support {body[name]} with this model. Only the default (1) value is supported."
            raise RequestRefused(
                400, value, body=openai_error(f"Unsupported value: {value}", name, "unsupported_value")
            )


def _unsupported(name: str, advice: str = "") -> RequestRefused:
    message = f"Unsupported parameter: '{name}' is not supported with this model.{advice}"
    return RequestRefused(400, message, body=openai_error(message, name, "unsupported_parameter"))


def _refuse_deepseek(body: Mapping[str, Any]) -> None:
    """Refuse log-probabilities; temperature and penalties are ignored.

    https://api-docs.deepseek.com/guides/reasoning_model
    """
    for name in ("logprobs", "top_logprobs"):
        if body.get(name):
            message = f"deepseek-reasoner does not support the parameter `{name}`"
            raise RequestRefused(400, message, body=openai_error(message, None, "invalid_request_error"))


def _refuse_gemini(body: Mapping[str, Any]) -> None:
    """Refuse log-probabilities; the error is a list of one (https://github.com/mscraftsman/generative-ai/issues/135)."""
    if body.get("logprobs"):
        message = "Logprobs is not enabled for models/gemini-2.5-pro"
        error = {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}
        raise RequestRefused(400, message, body=[{"error": error}])


def _refuse_grok(body: Mapping[str, Any]) -> None:
    """Refuse penalties, naming them in camel case (https://docs.x.ai/docs/guides/reasoning)."""
    for name, given in {"presence_penalty": "presencePenalty", "frequency_penalty": "frequencyPenalty"}.items():
        if name in body:
            message = f"Argument not supported on this model: {given}"
            raise RequestRefused(400, message, body={"code": "Client specified an invalid argument", "error": message})


_STARVED = (
    "Could not finish the message because max_tokens or model output limit was reached. "
    "Please try again with higher max_tokens."
)

#: Every service, by the name that begins its path.
SERVICES: Mapping[str, Dialect] = MappingProxyType({
    # thinking is hidden; the reply is empty if the limit leaves no room (https://platform.openai.com/docs/guides/reasoning)
    "gpt-5": Dialect(refuse=lambda body: _refuse_openai(body, logprobs=403), thinking=Thinking()),
    # the same, but refused if there is no room (https://github.com/spiceai/spiceai/issues/7126)
    "o-series": Dialect(
        refuse=lambda body: _refuse_openai(body, logprobs=400), thinking=Thinking(starved=_STARVED), max_n=1,
    ),
    # reasoning_content (https://api-docs.deepseek.com/guides/reasoning_model)
    "deepseek-r1": Dialect(
        refuse=_refuse_deepseek, thinking=Thinking("reasoning_content"), logprobs=None, max_n=1, structured=frozenset(),
    ),
    # vLLM without a reasoning parser: the opening tag is in the chat template, not the reply
    # (https://huggingface.co/Qwen/Qwen3-30B-A3B-Thinking-2507)
    "qwen-thinking": Dialect(
        thinking=Thinking("", "", "\n</think>\n\n", counted="in"), structured=frozenset(), end="<|im_end|>",
    ),
    # vLLM with a reasoning parser: thinking has a field, and log-probabilities cover all tokens
    # (https://docs.vllm.ai/en/latest/features/reasoning_outputs.html)
    "vllm-reasoning": Dialect(
        thinking=Thinking("reasoning", counted="in"), structured=frozenset({"choice", "json_schema"}), end="<|im_end|>",
    ),
    # channels as the model writes them (https://cookbook.openai.com/articles/openai-harmony)
    "gpt-oss": Dialect(
        thinking=Thinking(
            "", "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>", "<|return|>",
            counted="in",
        ),
        structured=frozenset(), logprobs=None,
    ),
    # the model's own tags, on a server that does not parse them (https://docs.mistral.ai/capabilities/reasoning)
    "magistral": Dialect(
        thinking=Thinking("", "[THINK]", "[/THINK]", counted="in"), structured=frozenset(), logprobs=None, max_n=1,
    ),
    # thinking is counted only in the total (https://ai.google.dev/gemini-api/docs/openai#thinking)
    "gemini": Dialect(refuse=_refuse_gemini, thinking=Thinking(counted="total"), logprobs=None),
    # thinking is counted apart (https://docs.x.ai/docs/guides/reasoning)
    "grok": Dialect(refuse=_refuse_grok, thinking=Thinking("reasoning_content", counted="apart"), logprobs=None),
})  # fmt: skip


class Thinker(SimulatedModel):
    """A simulated model that can also be served as these services do."""

    dialects: ClassVar[Mapping[str, Dialect]] = SERVICES
