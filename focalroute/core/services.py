"""Lists the services known by name, as in ``Endpoint("openai/gpt-5-mini")``: address, key, dialect, what each lacks.

Nothing is fetched. An entry that is wrong or out of date is corrected by the service's refusals, and every field can be
given to the endpoint instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from focalroute.core.spelling import did_you_mean


class KnownService(NamedTuple):
    """One service.

    Attributes:
        base_url: None: each customer has its own address, such as ``example``.
        api_key_env: None: it needs no key.
        dialect: as `focalroute.Endpoint`.
        lacks: capabilities that none of its models has.
        budget: how a budget of reasoning tokens is sent; "": it takes none.
        also: its domains besides that of ``base_url``.
    """

    base_url: str | None
    api_key_env: str | None
    dialect: Literal["openai", "together", "deepinfra", "vllm", "llamacpp", "openrouter"] = "openai"
    lacks: tuple[str, ...] = ()
    budget: Literal["", "reasoning", "google", "thinking"] = ""
    example: str = ""
    also: tuple[str, ...] = ()

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains that its key may be sent to; none if it needs no key, or each customer has an address."""
        if self.base_url is None or self.api_key_env is None:
            return ()
        host = urlsplit(self.base_url).hostname or ""
        return ".".join(host.split(".")[-2:]), *self.also


#: Above each row is the page to check it by and, in brackets, what was checked against a stored copy of that page on
#: 24 November 2026: all, or the address. The rest is as known in November 2026.
SERVICES: Mapping[str, KnownService] = {
    # https://docs.claude.com/en/api/openai-sdk (all)
    "anthropic": KnownService(
        "https://api.anthropic.com/v1",
        "ANTHROPIC_API_KEY",
        lacks=("logprobs", "n", "structured_choice"),
        budget="thinking",
    ),
    # https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle (address)
    "azure": KnownService(None, "AZURE_OPENAI_API_KEY", example="https://RESOURCE.openai.azure.com/openai/v1"),
    # https://docs.aws.amazon.com/bedrock/latest/userguide/inference-chat-completions.html (address)
    "bedrock": KnownService(
        None,
        "AWS_BEARER_TOKEN_BEDROCK",
        example="https://bedrock-runtime.REGION.amazonaws.com/openai/v1",
    ),
    # https://inference-docs.cerebras.ai/resources/openai
    "cerebras": KnownService("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    # https://deepinfra.com/docs/openai_api (address)
    "deepinfra": KnownService("https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY", dialect="deepinfra"),
    # https://api-docs.deepseek.com/api/create-chat-completion
    "deepseek": KnownService("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", lacks=("n",)),
    # https://docs.fireworks.ai/tools-sdks/openai-compatibility
    "fireworks": KnownService("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    # https://ai.google.dev/gemini-api/docs/openai (address)
    "gemini": KnownService(
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_API_KEY",
        lacks=("logprobs",),
        budget="google",
    ),
    # https://console.groq.com/docs/openai (all)
    "groq": KnownService("https://api.groq.com/openai/v1", "GROQ_API_KEY", lacks=("logprobs", "n")),
    # https://docs.litellm.ai/docs/proxy/user_keys
    "litellm": KnownService("http://localhost:4000/v1", None),
    # https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
    "llamacpp": KnownService("http://localhost:8080/v1", None, dialect="llamacpp"),
    # https://lmstudio.ai/docs/developer/openai-compat
    "lmstudio": KnownService("http://localhost:1234/v1", None),
    # https://docs.mistral.ai/api/
    "mistral": KnownService("https://api.mistral.ai/v1", "MISTRAL_API_KEY", lacks=("logprobs",)),
    # https://platform.moonshot.ai/docs/api-reference (address)
    "moonshot": KnownService("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", also=("moonshot.cn",)),
    # https://docs.ollama.com/api/openai-compatibility (address)
    "ollama": KnownService("http://localhost:11434/v1", None),
    # https://platform.openai.com/docs/api-reference/chat/create
    "openai": KnownService("https://api.openai.com/v1", "OPENAI_API_KEY", also=("azure.com",)),
    # https://openrouter.ai/docs/use-cases/reasoning-tokens (all)
    "openrouter": KnownService(
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
        dialect="openrouter",
        budget="reasoning",
    ),
    # https://docs.sglang.ai/basic_usage/openai_api_completions.html
    "sglang": KnownService("http://localhost:30000/v1", None),
    # https://docs.together.ai/docs/inference/openai-compatibility
    "together": KnownService(
        "https://api.together.xyz/v1", "TOGETHER_API_KEY", dialect="together", also=("together.ai",)
    ),
    # https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
    "vllm": KnownService("http://localhost:8000/v1", None, dialect="vllm"),
    # https://docs.x.ai/docs/guides/reasoning
    "xai": KnownService("https://api.x.ai/v1", "XAI_API_KEY"),
}

# Names of models that think before they answer, so that the first call has room for it; others show it in replies.
_THINKING = re.compile(
    r"(?:^|[/:])(?:o[134]|gpt-5|gpt-oss|gemini-(?:2\.5|3)|grok-(?:3-mini|4)|magistral|qwq|deepseek-reasoner|kimi-k2\.[5-9])(?![a-z0-9])"
    r"|deepseek-r1|thinking|reasoning",
    re.IGNORECASE,
)


#: Other names of services, such as LiteLLM's prefixes.
_INSTEAD = {"google": "gemini", "grok": "xai", "hosted_vllm": "vllm", "lm_studio": "lmstudio", "ollama_chat": "ollama"}


def find_service(name: str) -> KnownService:
    """Return the service of this name; ValueError with a suggestion if there is none."""
    if name not in SERVICES:
        raise ValueError(
            f"service: unknown {name[:60]!r}; {did_you_mean(name, SERVICES, _INSTEAD)} Others need base_url and model"
        )
    return SERVICES[name]


def service_at(base_url: str | None) -> str | None:
    """Return the name of the hosted service at this address; None: unknown.

    >>> service_at("https://api.openai.com/v1"), service_at("http://localhost:8000/v1")
    ('openai', None)
    """
    host = urlsplit(base_url or "").hostname
    for name, one in SERVICES.items():
        if one.base_url and one.api_key_env and urlsplit(one.base_url).hostname == host:
            return name
    return None


def service_within(host: str) -> str | None:
    """Return the name of the hosted service that has this host, or the domain that it is in; None: unknown.

    >>> service_within("api.together.ai"), service_within("nottogether.ai")
    ('together', None)
    """
    for name, one in SERVICES.items():
        if any(host == domain or host.endswith("." + domain) for domain in one.domains):
            return name
    return None


def is_loopback(host: str) -> bool:
    """Whether a host is this machine; the environment's proxies are not used for it.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("::1"), is_loopback("127.0.0.1.evil.example")
    (True, True, True, False)
    """
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def thinks(model: str) -> bool:
    """Whether a model of this name is known to think before it answers.

    >>> thinks("gpt-5-mini"), thinks("openai/o3"), thinks("Qwen/Qwen3-30B-A3B-Thinking-2507"), thinks("gpt-4o")
    (True, True, True, False)
    """
    return _THINKING.search(model) is not None and "non-reasoning" not in model


def thinking_params(
    base_url: str | None, effort: str | None, tokens: int | None, verbosity: str | None
) -> dict[str, Any]:
    """Return the request's parameters for reasoning effort or budget, and for verbosity.

    A budget in tokens is sent where the service has a field for it; elsewhere it only bounds the reply.
    """
    name = service_at(base_url)
    kind = SERVICES[name].budget if name else ""
    params: dict[str, Any] = {} if verbosity is None else {"verbosity": verbosity}
    if effort is not None:
        params |= {"reasoning": {"effort": effort}} if kind == "reasoning" else {"reasoning_effort": effort}
    elif tokens is not None and kind == "reasoning":
        params["reasoning"] = {"max_tokens": tokens}
    elif tokens is not None and kind == "thinking":
        params["thinking"] = {"type": "enabled", "budget_tokens": tokens}
    elif tokens is not None and kind == "google":
        params["extra_body"] = {"google": {"thinking_config": {"thinking_budget": tokens}}}
    return params
