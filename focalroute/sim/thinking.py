"""Services of models that think before they answer: what they refuse, and how they tell what was thought.

Each row of `THINKING` does as the pages say that stand beside it; `ALL_DIALECTS` has the others, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from focalroute.sim.dialects import DIALECTS, Dialect, Json, RequestRefused, Thinking


def _openai_error(message: str, param: str | None, code: str | None) -> Json:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def _refuse_openai(body: Mapping[str, Any], *, logprobs: int) -> None:
    """Refuse what OpenAI's reasoning models do not take: log-probabilities, ``max_tokens`` and any temperature but 1.

    https://platform.openai.com/docs/guides/latest-model#gpt-5-parameter-compatibility: with effort "none" they take
    them, but for ``max_tokens``. https://learn.microsoft.com/azure/ai-foundry/openai/how-to/reasoning has the list.
    """
    if "max_tokens" in body:
        raise _unsupported("max_tokens", " Use 'max_completion_tokens' instead.")
    if body.get("reasoning_effort") == "none":
        return
    if body.get("logprobs") and logprobs == 403:
        message = "You are not allowed to request logprobs from this model"
        raise RequestRefused(403, message, body=_openai_error(message, None, None))
    for field in ("logprobs", "top_logprobs", "presence_penalty", "frequency_penalty"):
        if body.get(field):
            raise _unsupported(field)
    for field in ("temperature", "top_p"):
        if body.get(field, 1) != 1:
            value = (
                f"'{field}' does not support {body[field]} with this model. Only the default (1) value is supported."
            )
            raise RequestRefused(
                400, value, body=_openai_error(f"Unsupported value: {value}", field, "unsupported_value")
            )


def _unsupported(field: str, advice: str = "") -> RequestRefused:
    message = f"Unsupported parameter: '{field}' is not supported with this model.{advice}"
    return RequestRefused(400, message, body=_openai_error(message, field, "unsupported_parameter"))


def _refuse_deepseek(body: Mapping[str, Any]) -> None:
    """Log-probabilities are an error, while temperature and penalties are ignored.

    https://api-docs.deepseek.com/guides/reasoning_model
    """
    for field in ("logprobs", "top_logprobs"):
        if body.get(field):
            message = f"deepseek-reasoner does not support the parameter `{field}`"
            raise RequestRefused(400, message, body=_openai_error(message, None, "invalid_request_error"))


def _refuse_gemini(body: Mapping[str, Any]) -> None:
    """Errors are a list of one (https://github.com/mscraftsman/generative-ai/issues/135 has this one)."""
    if body.get("logprobs"):
        message = "Logprobs is not enabled for models/gemini-2.5-pro"
        error = {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}
        raise RequestRefused(400, message, body=[{"error": error}])


def _refuse_grok(body: Mapping[str, Any]) -> None:
    """Penalties are refused, by names in camel case (https://docs.x.ai/docs/guides/reasoning)."""
    for field, name in {"presence_penalty": "presencePenalty", "frequency_penalty": "frequencyPenalty"}.items():
        if field in body:
            message = f"Argument not supported on this model: {name}"
            raise RequestRefused(400, message, body={"code": "Client specified an invalid argument", "error": message})


_STARVED = (
    "Could not finish the message because max_tokens or model output limit was reached. "
    "Please try again with higher max_tokens."
)

THINKING: Mapping[str, Dialect] = MappingProxyType({
    # hidden; an empty reply where the limit leaves no room (https://platform.openai.com/docs/guides/reasoning)
    "gpt-5": Dialect(refuse=lambda body: _refuse_openai(body, logprobs=403), thinking=Thinking()),
    # the same, but a refusal (https://github.com/spiceai/spiceai/issues/7126)
    "o-series": Dialect(
        refuse=lambda body: _refuse_openai(body, logprobs=400), thinking=Thinking(starved=_STARVED), max_n=1,
    ),
    # reasoning_content (https://api-docs.deepseek.com/guides/reasoning_model)
    "deepseek-r1": Dialect(
        refuse=_refuse_deepseek, thinking=Thinking("reasoning_content"), logprobs=None, max_n=1, structured=frozenset(),
    ),
    # vLLM without a reasoning parser: the chat template has the opening tag
    # (https://huggingface.co/Qwen/Qwen3-30B-A3B-Thinking-2507)
    "qwen-thinking": Dialect(
        thinking=Thinking("", "", "\n</think>\n\n", counted="in"), structured=frozenset(), end="<|im_end|>",
    ),
    # with one: a field, and log-probabilities of all tokens
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
    # tags of its own, where a server does not parse them (https://docs.mistral.ai/capabilities/reasoning)
    "magistral": Dialect(
        thinking=Thinking("", "[THINK]", "[/THINK]", counted="in"), structured=frozenset(), logprobs=None, max_n=1,
    ),
    # thinking is in the total alone (https://ai.google.dev/gemini-api/docs/openai#thinking)
    "gemini": Dialect(refuse=_refuse_gemini, thinking=Thinking(counted="total"), logprobs=None),
    # thinking is counted apart (https://docs.x.ai/docs/guides/reasoning)
    "grok": Dialect(refuse=_refuse_grok, thinking=Thinking("reasoning_content", counted="apart"), logprobs=None),
})  # fmt: skip

#: Every dialect, by the name that stands first in its path.
ALL_DIALECTS: Mapping[str, Dialect] = MappingProxyType({**DIALECTS, **THINKING})
