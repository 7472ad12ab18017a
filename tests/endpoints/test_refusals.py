"""What services say when they refuse, and what a user then reads: each body as its service documents or sends it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
from aiohttp import web

from focalroute import AsyncEnsemble, Endpoint, Ensemble, PoolError
from focalroute.endpoints.wire.refusals import located, refusal_of
from tests.loopback import completion, json_reply, serving, speaking, sse

KEY = "sk-planted0KEY1never2to3be4seen"
QUESTION = "who is the violet walrus?"


class Said(NamedTuple):
    """One error: who sends it (and where that is to be read), and what a user sees."""

    service: str
    source: str
    status: int
    body: Any
    advice: str
    told: str


SAID = (
    Said(
        "openai, wrong key", "https://platform.openai.com/docs/guides/error-codes", 401,
        {"error": {"message": "Incorrect API key provided: sk-plant***********************seen. You can find your API "
                              "key at https://platform.openai.com/account/api-keys.",
                   "type": "invalid_request_error", "param": None, "code": "invalid_api_key"}},
        "set SOME_KEY to a key that HOST accepts",
        "HTTP 401 (invalid_api_key): Incorrect API key provided: [...] You can find your API key at "
        "https://platform.openai.com/account/api-keys.",
    ),
    Said(
        "openai, no credit", "https://platform.openai.com/docs/guides/error-codes", 429,
        {"error": {"message": "You exceeded your current quota, please check your plan and billing details.",
                   "type": "insufficient_quota", "param": None, "code": "insufficient_quota"}},
        "add credit to the account at HOST",
        "HTTP 429 (insufficient_quota): You exceeded your current quota, please check your plan and billing details.",
    ),
    Said(
        "openai, wrong model", "https://platform.openai.com/docs/guides/error-codes", 404,
        {"error": {"message": "The model `gpt-55` does not exist or you do not have access to it.",
                   "type": "invalid_request_error", "param": None, "code": "model_not_found"}},
        "correct the model 'gpt-55': focalroute pool check says what HOST lists",
        "HTTP 404 (model_not_found): The model `gpt-55` does not exist or you do not have access to it.",
    ),
    Said(
        "openai, unknown effort", "https://platform.openai.com/docs/guides/reasoning", 400,
        {"error": {"message": "Unsupported value: 'reasoning_effort' does not support 'xhigh' with this model.",
                   "type": "invalid_request_error", "param": "reasoning_effort", "code": "unsupported_value"}},
        "leave reasoning_effort out, or ask another model",
        "HTTP 400 (takes no reasoning_effort): Unsupported value: 'reasoning_effort' does not support 'xhigh' with "
        "this model.",
    ),
    Said(
        "openai, too long", "https://platform.openai.com/docs/guides/error-codes", 400,
        {"error": {"message": "This model's maximum context length is 8192 tokens. However, your messages resulted in "
                              "9001 tokens. Please reduce the length of the messages.",
                   "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}},
        "shorten the prompt, or ask a model with a longer context",
        "HTTP 400 (context_length_exceeded, messages): This model's maximum context length is 8192 tokens.",
    ),
    Said(
        "azure, no deployment", "https://github.com/chatboxai/chatbox/issues/861", 404,
        {"error": {"code": "DeploymentNotFound",
                   "message": "The API deployment for this resource does not exist. If you created the deployment "
                              "within the last 5 minutes, please wait a moment and try again."}},
        "correct the model 'gpt-55': focalroute pool check says what HOST lists",
        "HTTP 404 (DeploymentNotFound): The API deployment for this resource does not exist.",
    ),
    Said(
        "azure, filtered", "https://learn.microsoft.com/azure/ai-foundry/openai/concepts/content-filter", 400,
        {"error": {"code": "content_filter", "status": 400, "param": "prompt", "type": None,
                   "message": "The response was filtered due to the prompt triggering Azure OpenAI's content "
                              "management policy. Please modify your prompt and retry."}},
        "rephrase the prompt: the service's filter withholds it",
        "HTTP 400 (content_filter, prompt): The response was filtered due to the prompt triggering Azure OpenAI's",
    ),
    Said(
        "together, overloaded", "https://docs.together.ai/docs/error-codes", 503,
        {"error": {"message": "The engine is currently overloaded, please try again later", "type": "overloaded",
                   "param": None, "code": None}},
        "try again later: HOST fails",
        "HTTP 503 (overloaded): The engine is currently overloaded, please try again later",
    ),
    Said(
        "together, log-probabilities", "https://github.com/stanford-crfm/helm/pull/2325", 400,
        {"error": {"message": "5 is greater than the maximum of 1 - 'logprobs'", "type": "invalid_request_error",
                   "param": "logprobs", "code": None}},
        "check the parameters: the service does not take the request as it is",
        "HTTP 400 (invalid_request_error, logprobs): 5 is greater than the maximum of 1 - 'logprobs'",
    ),
    Said(
        "deepinfra, no login", "https://deepinfra.com/docs/openai_api", 401,
        {"detail": {"error": "User not authenticated"}},
        "set SOME_KEY to a key that HOST accepts",
        "HTTP 401: User not authenticated",
    ),
    Said(
        "openrouter, no credit", "https://openrouter.ai/docs/api-reference/errors", 402,
        {"error": {"code": 402, "message": "Insufficient credits. Add more using https://openrouter.ai/settings/credits"}},
        "add credit to the account at HOST",
        "HTTP 402: Insufficient credits. Add more using https://openrouter.ai/settings/credits",
    ),
    Said(
        "openrouter, from behind it", "https://openrouter.ai/docs/api-reference/errors", 400,
        {"error": {"code": 400, "message": "Provider returned error",
                   "metadata": {"provider_name": "X",
                                "raw": '{"error": {"message": "reasoning_effort is not supported"}}'}}},
        "leave reasoning_effort out, or ask another model",
        "HTTP 400 (takes no reasoning_effort): Provider returned error: reasoning_effort is not supported",
    ),
    Said(
        "groq, no tool call", "https://github.com/pydantic/pydantic-ai/pull/2774", 400,
        {"error": {"message": "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more "
                              "details.", "type": "invalid_request_error", "code": "tool_use_failed"}},
        "try again, or ask another model: 'gpt-55' wrote no readable tool call",
        "HTTP 400 (tool_use_failed): Failed to call a function. Please adjust your prompt.",
    ),
    Said(
        "deepseek, image", "https://github.com/vercel/ai/issues/9179", 400,
        {"error": {"message": "Failed to deserialize the JSON body into the target type: messages[3]: unknown variant "
                              "`image_url`, expected `text` at line 1 column 4198046",
                   "type": "invalid_request_error", "param": None, "code": "invalid_request_error"}},
        "leave images out, or ask another model",
        "HTTP 400 (takes no images): Failed to deserialize the JSON body into the target type",
    ),
    Said(
        "groq, wrong model", "https://github.com/lobehub/lobehub/issues/3367", 404,
        {"error": {"message": "The model `gpt-55` does not exist or you do not have access to it.",
                   "type": "invalid_request_error", "code": "model_not_found"}},
        "correct the model 'gpt-55': focalroute pool check says what HOST lists",
        "HTTP 404 (model_not_found): The model `gpt-55` does not exist or you do not have access to it.",
    ),
    Said(
        "groq, too fast", "https://console.groq.com/docs/rate-limits", 429,
        {"error": {"message": "Rate limit reached for model `gpt-55` on tokens per minute (TPM): Limit 6000.",
                   "type": "tokens", "code": "rate_limit_exceeded"}},
        "set requests_per_minute or max_concurrency of the endpoint to what its plan allows",
        "HTTP 429 (rate_limit_exceeded): Rate limit reached for model `gpt-55` on tokens per minute (TPM)",
    ),
    Said(
        "mistral, unknown field", "https://github.com/partITech/php-mistral/issues/76", 422,
        {"object": "error", "message": {"detail": [{"type": "extra_forbidden", "loc": ["body", "verbosity"],
                                                    "msg": "Extra inputs are not permitted", "input": "low"}]},
         "type": "invalid_request_error", "param": None, "code": None},
        "leave verbosity out, or ask another model",
        "HTTP 422 (takes no verbosity): verbosity: Extra inputs are not permitted",
    ),
    Said(
        "deepseek, no credit", "https://github.com/Aider-AI/aider/issues/4851", 402,
        {"error": {"message": "Insufficient Balance", "type": "unknown_error", "param": None,
                   "code": "invalid_request_error"}},
        "add credit to the account at HOST",
        "HTTP 402 (invalid_request_error): Insufficient Balance",
    ),
    Said(
        "anthropic, wrong key", "https://docs.claude.com/en/api/errors", 401,
        {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}},
        "set SOME_KEY to a key that HOST accepts",
        "HTTP 401 (authentication_error): invalid x-api-key",
    ),
    Said(
        "anthropic, overloaded", "https://docs.claude.com/en/api/errors", 529,
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        "try again later: HOST fails",
        "HTTP 529 (overloaded_error): Overloaded",
    ),
    Said(
        "gemini, wrong key", "https://github.com/cequence-io/openai-scala-client/issues/109", 400,
        [{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.",
                    "status": "INVALID_ARGUMENT"}}],
        "set SOME_KEY to a key that HOST accepts",
        "HTTP 400 (INVALID_ARGUMENT): API key not valid. Please pass a valid API key.",
    ),
    Said(
        "xai, effort", "https://github.com/BerriAI/litellm/pull/16265", 400,
        {"code": "Client specified an invalid argument",
         "error": "Model gpt-55 does not support parameter reasoningEffort."},
        "leave reasoning_effort out, or ask another model",
        "HTTP 400 (takes no reasoning_effort): Model gpt-55 does not support parameter reasoningEffort.",
    ),
    Said(
        "vllm, wrong model", "https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html", 404,
        {"error": {"message": "The model `gpt-55` does not exist.", "type": "NotFoundError", "param": "model",
                   "code": 404}},
        "correct the model 'gpt-55': focalroute pool check says what HOST lists",
        "HTTP 404 (NotFoundError, model): The model `gpt-55` does not exist.",
    ),
    Said(
        "ollama, not pulled", "https://github.com/netease-youdao/QAnything/issues/555", 404,
        {"error": {"message": 'model "gpt-55" not found, try pulling it first', "type": "api_error", "param": None,
                   "code": None}},
        "correct the model 'gpt-55': focalroute pool check says what HOST lists",
        'HTTP 404 (api_error): model "gpt-55" not found, try pulling it first',
    ),
    Said(
        "litellm, no key", "https://docs.litellm.ai/docs/proxy/virtual_keys", 401,
        {"error": {"message": f"Authentication Error, Invalid proxy server token passed. Received API Key = {KEY}",
                   "type": "token_not_found_in_db", "param": "key", "code": "401"}},
        "set SOME_KEY to a key that HOST accepts",
        "HTTP 401 (token_not_found_in_db, key): Authentication Error, Invalid proxy server token passed. Received API "
        "Key = [...]",
    ),
    Said(
        "a web server", "https://nginx.org/en/docs/", 404, None,
        "check base_url URL: /v1 may be missing",
        "HTTP 404",
    ),
    Said(  # "The plain HTTP request was sent to HTTPS port", "No required SSL certificate was sent"
        "a web server, TLS", "https://nginx.org/en/docs/http/ngx_http_ssl_module.html#errors", 400, None,
        "check base_url (is it https?) and cert: a web server in front of the service does not take the call",
        "HTTP 400",
    ),
    Said(
        "a proxy", "https://www.rfc-editor.org/rfc/rfc9110#status.407", 407, None,
        "give the proxy's user and password in its address, as http://user:password@proxy:3128",
        "HTTP 407",
    ),
)  # fmt: skip


@pytest.mark.parametrize("said", SAID, ids=lambda said: said.service)
def test_a_refusal_is_told_with_what_to_do_first(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to do, then model, host, status, code and the provider's own words; never the key."""
    monkeypatch.setenv("SOME_KEY", KEY)

    async def refuse(_: web.Request, __: Any) -> web.StreamResponse:
        return (
            web.Response(text="<html>", status=said.status) if said.body is None else json_reply(said.body, said.status)
        )

    with serving(refuse) as server:
        url = server.url.removesuffix("/v1") if said.body is None else server.url
        host = url.removeprefix("http://").removesuffix("/v1")
        pool = [Endpoint("member", model="gpt-55", base_url=url, api_key_env="SOME_KEY")]
        with Ensemble(pool, attempts=1) as ensemble, pytest.raises(PoolError) as failed:
            ensemble.ask("Why is the sky blue?")
    text = str(failed.value)
    assert text.startswith(f"{said.advice}; every asked endpoint failed (member, gpt-55 at {host}: status: ".replace(
        "HOST", host).replace("URL", url))  # fmt: skip
    assert said.told in text
    assert KEY not in text
    assert len(text) < 700
    failure = failed.value.replies[0].error
    assert failure is not None
    assert (failure.status, failure.host, failure.model) == (said.status, host, "gpt-55")
    assert failure.retryable == (said.status >= 500 or "try again" in said.advice or "too fast" in said.service)
    assert not failure.of_request or said.body is not None  # a web server has not read the question


def test_the_page_has_them_all_under_what_to_do() -> None:
    page = (Path(__file__).parents[2] / "docs" / "refusals.md").read_text("utf-8")
    shown = {
        (section[1].replace("reasoning_effort", "..."), service, words.strip("`"))
        for section in re.finditer(r"^\*\*`(.+?)`\*\*.*?\n\n((?:- .*\n)+)", page, re.MULTILINE)
        for services, words in re.findall(r"^- (.+?): (`+.*)$", section[2], re.MULTILINE)
        for service in services.split(", ")
    }
    said = [(re.sub("reasoning_effort|verbosity|images", "...", said.advice), said.service, said.told) for said in SAID]
    for advice, service, told in said:
        words = [words for to_do, by, words in shown if (to_do, by) == (advice, service.partition(",")[0])]
        assert any(told.startswith(f"HTTP {begun}") for begun in words), service
    assert len(shown) == len(said) >= 20


def test_a_service_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = [Endpoint("member", model="m", base_url="http://127.0.0.1:9/v1")]
    with (
        Ensemble(pool, attempts=1) as ensemble,
        pytest.raises(PoolError, match=r"127\.0\.0\.1:9 could not be reached; every"),
    ):
        ensemble.ask("?")


def test_a_redirect_and_a_refusal_say_what_they_are() -> None:
    replies: list[web.StreamResponse] = [
        web.Response(status=308, headers={"Location": "https://elsewhere.test/v1"}),
        json_reply({"choices": [{"message": {"content": None, "refusal": "SECRET"}, "finish_reason": "stop"}]}),
    ]

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return replies.pop(0)

    with serving(handler) as server, Ensemble([Endpoint("a", model="m", base_url=server.url)]) as ensemble:
        with pytest.raises(PoolError, match=f"check base_url {server.url}: it redirects") as redirected:
            ensemble.ask("?")
        with pytest.raises(PoolError, match="unusable: the model refused to answer") as refused:
            ensemble.ask("?")
        assert "SECRET" not in str(refused.value)
    errors = [reply.error for raised in (redirected, refused) for reply in raised.value.replies]
    assert [error and error.of_request for error in errors] == [False, True]


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ("no healthy upstream", 503, "try again later: HOST fails; .*: HTTP 503: no healthy upstream"),
        ("404 page not found\n", 404, r"check base_url URL: its path may be wrong; .*: HTTP 404: 404 page not found"),
        ("<html>Bad Gateway</html>", 502, r"try again later: HOST fails; .*: HTTP 502\)"),
        ("Method Not Allowed", 405, r"check base_url URL: its path may be wrong; .*: HTTP 405"),
        (f"No auth: {KEY}", 400, r"HTTP 400: No auth: \[...\]"),
    ],
)
def test_an_error_in_plain_text_is_told(body: str, status: int, told: str, ready: bool) -> None:
    """As proxies and Go's and Rust's servers write them; a web page is not. Only the status was told."""

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return web.Response(text=body, status=status)

    async def run(url: str) -> str:
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
            reached: dict[str, Any] = {"client": client} if ready else {"base_url": url, "api_key": KEY}
            async with AsyncEnsemble([Endpoint("a", model="m", **reached)], attempts=1) as ensemble:
                with pytest.raises(PoolError) as failed:
                    await ensemble.ask(QUESTION)
        return str(failed.value)

    with serving(handler) as server:
        host = server.url.split("/")[2]
        shown = asyncio.run(run(server.url))
    assert re.search(told.replace("HOST", host).replace("URL", host if ready else server.url), shown), shown


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize(
    ("reported", "said"),
    [
        ({"message": "the violet walrus is overloaded", "type": "overloaded_error"}, (
            "try again later: HOST fails", "the reply reports an error (overloaded_error): [...] is overloaded"
        )),
        ({"message": f"No auth: {KEY}", "code": 401}, ("set ", "status: the reply reports error 401: No auth: [...]")),
        ("Rate limit exceeded", ("try again later", "the reply reports an error: Rate limit exceeded")),
        (True, ("check base_url: is HOST an OpenAI-compatible service", "protocol: the reply reports an error)")),
    ],
)  # fmt: skip
def test_an_error_in_a_successful_response_is_told_in_the_service_s_words(
    reported: Any, said: tuple[str, str], ready: bool, streamed: bool
) -> None:
    """Without what was sent, as in a refusal. It said only that there was an error, and to check base_url."""

    async def handler(request: web.Request, _: Any) -> web.StreamResponse:
        return await sse(request, {"error": reported}) if streamed else json_reply({"error": reported})

    async def run(url: str) -> str:
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
            reached: dict[str, Any] = {"client": client} if ready else {"base_url": url, "api_key": KEY}
            async with AsyncEnsemble([Endpoint("a", model="m", **reached)], attempts=1) as ensemble:
                with pytest.raises(PoolError) as failed:
                    await (anext(ensemble.stream(QUESTION)) if streamed else ensemble.ask(QUESTION))
        return str(failed.value)

    with serving(handler) as server:
        told = asyncio.run(run(server.url))
        first, then = (part.replace("HOST", server.url.split("/")[2]) for part in said)
    assert told.startswith(first)
    assert then in told


def test_a_header_of_thirty_kilobytes_is_read() -> None:
    """As some proxies send. It was said to be no HTTP."""
    sent = json.dumps(completion("42")).encode()
    head = b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 30_000 + b"\r\nContent-Length: %d\r\n\r\n" % len(sent)

    async def run() -> str:
        async with (
            speaking(head + sent) as url,
            AsyncEnsemble([Endpoint("a", model="m", base_url=url)], attempts=1) as ensemble,
        ):
            return (await ensemble.ask("?")).text

    assert asyncio.run(run()) == "42"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"-ERR unknown command\r\n", "what answers there does not speak HTTP"),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", "an OpenAI-compatible service"),
    ],
)
def test_something_else_than_a_web_service_is_named(raw: bytes, said: str) -> None:
    """Such as a port of something else. It was said not to be reached; and to redirect."""

    async def run() -> str:
        async with (
            speaking(raw) as url,
            AsyncEnsemble([Endpoint("a", model="m", base_url=url)], attempts=1) as ensemble,
        ):
            with pytest.raises(PoolError) as failed:
                await ensemble.ask("?")
        return str(failed.value)

    told = asyncio.run(run())
    assert told.startswith("check base_url")
    assert said in told


@pytest.mark.parametrize(
    ("message", "lacks"),
    [
        ("You are not allowed to request logprobs from this model", "logprobs"),
        ("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
         "max_tokens"),
        ("litellm.UnsupportedParamsError: gpt-5-nano doesn't support temperature=0.1 while reasoning is active. Only "
         "temperature=1 is supported unless reasoning_effort resolves to 'none'", "temperature"),
        ("invalid temperature: only 1 is allowed for this model", "temperature"),  # Moonshot
        ("zai does not support parameters: ['max_completion_tokens'], for model=glm-5.2.", "max_completion_tokens"),
        ("Unable to submit request because Logprobs is not supported for this model.", "logprobs"),
        ("'max_tokens' is too large: 8224. This model supports at most 4096 completion tokens", "the token limit"),
        ("Your prompt holds an unknown word", None),
        ("max_tokens must be an integer", None),
    ],
)  # fmt: skip
def test_refused_fields_are_read_from_the_services_message(message: str, lacks: str | None) -> None:
    """Of the statuses that stand for a refusal; of no other."""
    body = {"error": {"message": message}}
    for status in (400, 403, 404, 422):
        assert refusal_of(status, {}, body, ()).lacks == lacks
    assert refusal_of(500, {}, body, ()).lacks is None


@pytest.mark.parametrize(
    "error",
    [
        {"message": "Invalid schema for function 'get_balance': array schema missing items.",
         "param": "tools[0].function.parameters", "code": "invalid_function_parameters"},
        {"message": "tools.0.custom.input_schema: property billing_address: JSON schema is invalid"},
        {"message": "Invalid 'messages[1].content': the model found no text", "param": "messages[1].content"},
        {"message": "Invalid image: its source cannot be authenticated"},
    ],
)  # fmt: skip
def test_a_name_that_the_caller_chose_is_not_taken_for_the_account_key_or_model(error: dict[str, str]) -> None:
    failure = located(refusal_of(400, {}, {"error": error}, ()), Endpoint("e", model="m", base_url="http://h/v1"))
    assert failure.hint == "check the parameters: the service does not take the request as it is"
    assert failure.of_request


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("Invalid schema for function 'unsupported-tools': schema must be an object.", None),
        ('Invalid schema for function "unknown-max_tokens": schema must be an object.', None),
        ("In context=('properties', 'temperature'), `deg` is not a supported type", None),
        ("tools.0.custom.input_schema.properties.temperature.unit: Extra inputs are not permitted", None),
        ("Unknown type of the temperature", "tools[0].function.parameters"),
    ],
)
def test_what_the_caller_named_is_not_taken_for_a_field_or_feature(message: str, param: str | None) -> None:
    """One caller's tool would take a parameter, or all tools, from the others."""
    properties = {"temperature": {"type": "deg"}}
    functions = [{"name": name, "parameters": properties} for name in ("unsupported-tools", "unknown-max_tokens")]
    sent = {"model": "m", "temperature": 0.5, "tools": [{"type": "function", "function": one} for one in functions]}
    assert refusal_of(400, {}, {"error": {"message": message, "param": param}}, (json.dumps(sent),)).lacks is None
    sent["tools"] = []
    told = refusal_of(400, {}, {"error": {"message": "'temperature' is not supported"}}, (json.dumps(sent),))
    assert told.lacks == "temperature"


def test_an_error_does_not_repeat_what_was_sent() -> None:
    """Runs of the prompt, and words of it that are names or numbers, in any form; the rest of the message is."""
    sent = '{"model": "gpt-5", "messages": [{"role": "user", "content": "the violet walrus\\nis hunter2 of a@b.cd"}]}'

    def told(message: str) -> str | None:
        return refusal_of(400, {}, {"error": {"message": message}}, (sent, KEY)).provider_message

    assert told("gpt-5 refuses: the violet walrus is x") == "gpt-5 refuses: [...]x"
    assert told("hunter2 and a@b.cd are wrong") == "[...] and [...] are wrong"
    assert told(f"no key {KEY[3:12]} nor Bearer abc") == "no key [...] nor [...]"
    assert told("\x1b[31mred " + "x" * 5000) == "[31mred " + "x" * (300 - 9)
    assert refusal_of(400, {}, {"error": {"message": "x"}}, ("y" * 10**6, KEY)).provider_message is None


@pytest.mark.parametrize("ready", [False, True])
def test_of_headers_only_those_that_the_user_gave_are_hidden_in_errors(ready: bool) -> None:
    """Through our own HTTP and through a ready client; "identity", which is sent as well, hides no identifier."""

    async def refuse(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply({"error": {"message": "this identifier is wrong, walrus-team"}}, 400)

    async def run(url: str) -> PoolError:
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            reached: dict[str, Any] = {"client": client} if ready else {"base_url": url}
            one = Endpoint("member", model="m", headers={"x-team": "walrus-team"}, **reached)
            async with AsyncEnsemble([one], attempts=1) as ensemble:
                with pytest.raises(PoolError) as failed:
                    await ensemble.ask("?")
        return failed.value

    with serving(refuse) as server:
        failure = asyncio.run(run(server.url)).replies[0].error
    assert failure is not None
    assert failure.provider_message == "this identifier is wrong, [...]"


@pytest.mark.parametrize(
    "payload", [{"error": [{}] * 9}, {"error": {"error": {"error": {}}}}, [[[[[[[[[["x"]]]]]]]]]], 5]
)
def test_any_body_is_read(payload: Any) -> None:
    assert refusal_of(400, {}, payload, ()).kind == "status"


def test_an_attempt_is_logged_without_text(caplog: pytest.LogCaptureFixture) -> None:
    """At DEBUG: endpoint, model, host, what went wrong, tokens and cost."""

    async def refuse(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply({"error": {"message": "no such thing"}}, 418)

    with serving(refuse) as server, caplog.at_level("DEBUG", "focalroute"):
        with Ensemble([Endpoint("member", model="m", base_url=server.url)]) as ensemble, pytest.raises(PoolError):
            ensemble.ask("violet walrus")
        host = server.url.removeprefix("http://").removesuffix("/v1")
        assert f"member (m at {host})" in caplog.text
        assert "status: HTTP 418: no such thing after" in caplog.text
        assert "walrus" not in caplog.text


@pytest.mark.parametrize(
    "date", ["Sun, 29 Nov 2026 20:00:00 GMT", "Sun Nov 29 20:00:00 2026", "Sun, 29 Nov 2026 20:00:00 -0000"]
)
def test_a_date_without_a_zone_is_in_utc_wherever_this_machine_is(date: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In New York the endpoint was left out for five hours."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        failure = refusal_of(429, {"Date": "Sun, 29 Nov 2026 19:59:00 GMT", "Retry-After": date}, {}, ())
    finally:
        monkeypatch.undo()
        time.tzset()
    assert failure.retry_after_s == 60.0
