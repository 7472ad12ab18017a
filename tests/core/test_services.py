"""Services that are known by name: what one string fills in, and the error for a wrong one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from focalroute import ConfigError, Endpoint
from focalroute.core.pool import validate_pool
from focalroute.core.services import SERVICES


def test_one_string_names_service_and_model() -> None:
    """Service and model, at the first slash; no key and no network are needed to say so."""
    mini = Endpoint("openai/gpt-5-mini")
    assert (mini.name, mini.model, mini.base_url) == ("openai/gpt-5-mini", "gpt-5-mini", "https://api.openai.com/v1")
    assert mini.api_key_env == "OPENAI_API_KEY"
    llama = Endpoint("together/meta-llama/Llama-3.3-70B-Instruct-Turbo")
    assert (llama.model, llama.spoken) == ("meta-llama/Llama-3.3-70B-Instruct-Turbo", "together")


def test_given_fields_are_not_overwritten() -> None:
    own = Endpoint(
        "q", service="vllm", model="m", base_url="http://10.0.0.5:9/v1", api_key_env="MY_KEY", logprobs=False
    )
    assert (own.base_url, own.api_key_env, own.dialect) == ("http://10.0.0.5:9/v1", "MY_KEY", "vllm")
    assert (own.logprobs, own.top_logprobs, own.n) == (False, 0, None)
    assert Endpoint("vllm/Qwen/m", base_url="http://10.0.0.5:9/v1").model == "Qwen/m"
    azure = Endpoint("azure/mini", base_url="https://me.openai.azure.com/openai/v1")
    assert (azure.model, azure.api_key_env) == ("mini", "AZURE_OPENAI_API_KEY")
    fast = Endpoint("groq/m")
    assert (fast.logprobs, fast.top_logprobs, fast.n) == (False, 0, False)
    assert Endpoint("groq/m", logprobs=True).logprobs is True


def test_a_service_s_key_may_go_to_its_own_domains_only() -> None:
    """They are found by the addresses, so a new one is to be looked at here, too."""
    found = {name: one.domains for name, one in SERVICES.items() if one.domains}
    assert found == {
        "anthropic": ("anthropic.com",),
        "cerebras": ("cerebras.ai",),
        "deepinfra": ("deepinfra.com",),
        "deepseek": ("deepseek.com",),
        "fireworks": ("fireworks.ai",),
        "gemini": ("googleapis.com",),
        "groq": ("groq.com",),
        "mistral": ("mistral.ai",),
        "moonshot": ("moonshot.ai", "moonshot.cn"),
        "openai": ("openai.com", "azure.com"),
        "openrouter": ("openrouter.ai",),
        "together": ("together.xyz", "together.ai"),
        "xai": ("x.ai",),
    }


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_makes_an_endpoint_whose_key_may_go_there(name: str) -> None:
    known = SERVICES[name]
    given = {"base_url": known.example} if known.base_url is None else {}
    assert validate_pool([Endpoint("m", service=name, model="m", **given)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "settings", "sent"),
    [
        ("openai", {"reasoning_effort": "low", "verbosity": "low"}, {"reasoning_effort": "low", "verbosity": "low"}),
        ("openai", {"thinking_tokens": 99}, {}),
        ("openrouter", {"reasoning_effort": "high"}, {"reasoning": {"effort": "high"}}),
        ("openrouter", {"thinking_tokens": 99}, {"reasoning": {"max_tokens": 99}}),
        ("anthropic", {"thinking_tokens": 99}, {"thinking": {"type": "enabled", "budget_tokens": 99}}),
        ("gemini", {"thinking_tokens": 99}, {"extra_body": {"google": {"thinking_config": {"thinking_budget": 99}}}}),
    ],
)
def test_how_much_to_think_is_said_as_the_service_has_it(
    name: str, settings: dict[str, Any], sent: dict[str, Any]
) -> None:
    """An endpoint made of another one keeps it."""
    made = Endpoint(f"{name}/m", **settings)
    assert made.params == sent
    assert replace(made, timeout_s=5.0).params == sent


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "opnai/gpt-5"}, "unknown 'opnai'; did you mean 'openai'"),
        ({"name": "gpt-5"}, "model: required"),
        ({"name": "m", "service": "openai"}, "model: required"),
        ({"name": "Qwen/m", "base_url": "http://10.0.0.5:9/v1"}, "model: required"),
        ({"name": "azure/gpt-5"}, "base_url: required at azure, such as https://RESOURCE"),
    ],
)
def test_a_wrong_name_is_an_error_that_says_the_right_one(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Endpoint(**settings)
