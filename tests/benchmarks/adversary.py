"""Checks that no budget is exceeded, whatever provider and caller do: ``python -m tests.benchmarks.adversary``.

Each case draws random limits of every kind (total, period, tag, ask). Then it asks, one or five at a time, with
parameters, contents and tools many of which are invalid or expensive. The services answer, refuse and break off at
random, report wrong usage and cost in both directions, and add up what they bill. No limit may be exceeded, and every
error must be one of focalroute's own.

A service may bill for a reply with usage: the larger of price times tokens and the cost that it reports, at most what
the request allows. For a call that breaks off it may bill 1.5 times the mean of its replies so far, nothing before the
first. For a refusal (status below 500 other than 408) it may bill nothing. More is not promised, see ``docs/money.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from aiohttp import web

from focalroute import AsyncEnsemble, Budget, Endpoint
from focalroute.core.errors import FocalrouteError
from tests.loopback import completion, json_reply, serving

__all__ = ["Case", "play", "play_all"]

_PRICES = {"plain": Decimal(1), "dear": Decimal("1.5"), "cheap": Decimal("0.75")}  # USD per million tokens
_USUAL = Decimal("0.0006")  # USD, a usual reservation of a call
_NONE = Decimal(10**6)  # no limit
_NO_AMOUNT = Decimal(10) ** 24  # a reported cost from here on is not taken for an amount of money
_TAGS = ("team", "user")
_ASKS = 20
_AT_A_TIME = 8
_REFUSALS = (400, 401, 403, 404, 409, 413, 422, 429, 307)
_BREAKS = (408, 500, 502, 503, 504, 524)
_MARK = re.compile(r"ask-(\d+)")
_EXTRAS = ("web_search_options", "plugins", "audio", "service_tier", "search_parameters", "models", "best_of")
_ODD_COUNTS = (-1, 0, 1, 5, 64, 10**6, 10**30, True, 1.5, math.nan, math.inf, "7", None, [3])
_WAYS = (("status",), ("status", "reset", "page", "usage"))
_ODD_COSTS = (0, -1, 99, 1e300, math.nan, "0.5", "1e-3", True, None, [1], {"usd": 1})
_ODD_USAGES: tuple[Any, ...] = (
    None,
    {},
    [],
    "many",
    {"prompt_tokens": -5, "completion_tokens": 3},
    {"prompt_tokens": math.nan},
)


@dataclass
class Provider:
    """Services that misbehave as far as the module's docstring allows.

    Attributes:
        luck: the random generator.
        breaking: share of calls that break off.
        ways: the ways in which they do.
        billed: ask -> USD billed for it; "": calls that belong to no ask.
        good: model -> USD billed for each complete reply.
        calls: number of calls.
    """

    luck: random.Random
    breaking: float
    ways: Sequence[str]
    billed: dict[str, Decimal] = field(default_factory=dict)
    good: dict[str, list[Decimal]] = field(default_factory=dict)
    calls: int = 0

    async def handle(self, request: web.Request, body: Any) -> web.StreamResponse:
        """Answer one call at random."""
        self.calls += 1
        luck, model, price = self.luck, body["model"], _PRICES[body["model"]]
        written = json.dumps(body["messages"], ensure_ascii=False)
        mark = _MARK.search(written)
        ask = mark.group(1) if mark else ""
        cap = body.get("max_tokens", body.get("max_completion_tokens"))
        room = cap * body.get("n", 1)
        longest = sum(len(part.encode()) for part in _texts(body["messages"]))
        prompt = luck.choice((longest, luck.randint(1, longest)))
        generated = luck.choice((0, luck.randint(0, room), room))
        if any(name in body for name in _EXTRAS):
            price *= 100
        bound = price * (longest + room) / 1_000_000
        act = luck.random()
        if act < 0.05:
            return _status(luck.choice(_REFUSALS))
        if luck.random() < self.breaking and len(self.good) == len(_PRICES):
            self._bill_broken(ask, model, bound)
            return await self._break_off(request)
        usage: Any = {"prompt_tokens": prompt, "completion_tokens": generated}
        if act < 0.2:
            usage = {"prompt_tokens": prompt * 1000, "completion_tokens": generated * 1000}
        if act > 0.75:
            usage["cost"] = luck.choice(_ODD_COSTS)
        reported = price * (usage["prompt_tokens"] + usage["completion_tokens"]) / 1_000_000
        reported = max(reported, _figure(usage.get("cost")))
        self.good.setdefault(model, []).append(min(reported, bound))
        self._bill(ask, min(reported, bound))
        return json_reply(completion(luck.choice("ABC?"), usage=usage))

    def _bill(self, ask: str, usd: Decimal) -> None:
        self.billed[ask] = self.billed.get(ask, Decimal(0)) + usd

    def _bill_broken(self, ask: str, model: str, bound: Decimal) -> None:
        if self.luck.random() < 0.95:
            replies = self.good[model]
            self._bill(ask, min(bound, sum(replies, Decimal(0)) / len(replies) * 3 / 2))

    async def _break_off(self, request: web.Request) -> web.StreamResponse:
        how = self.luck.choice(self.ways)
        if how == "usage":
            return json_reply(completion("A", usage=self.luck.choice(_ODD_USAGES)))
        if how == "page":
            return web.Response(text="<html>", content_type="text/html")
        if how == "reset" and request.transport is not None:
            request.transport.abort()
        return _status(self.luck.choice(_BREAKS))


def _status(status: int) -> web.Response:
    return json_reply({"error": {"message": "no"}}, status, {"Retry-After": "0", "Location": "http://x.invalid/"})


def _texts(messages: Sequence[Any]) -> list[str]:
    """Return all texts of the messages; for an image, a text with as many bytes as any service counts tokens for it."""
    found = []
    for message in messages:
        content = message["content"]
        for part in [{"text": content}] if isinstance(content, str) else content:
            found.append(part.get("text") or ("i" * 48_169 if part.get("type") == "image_url" else json.dumps(part)))
    return found


def _figure(cost: Any) -> Decimal:
    """Return the cost that a reply reports; 0 if the value is not an amount of money."""
    if isinstance(cost, bool) or not isinstance(cost, int | float | str):
        return Decimal(0)
    claimed = Decimal(str(cost))
    return claimed if claimed.is_finite() and 0 < claimed < _NO_AMOUNT else Decimal(0)


@dataclass(frozen=True)
class Case:
    """The result of one case.

    Attributes:
        seed: the case.
        passed: a text for every limit that was exceeded.
        ended: how its asks ended: "answered", or an error's name -> how often.
        calls: number of calls.
    """

    seed: int
    passed: tuple[str, ...]
    ended: Counter[str]
    calls: int


async def play(seed: int) -> Case:
    """Play one case: random providers, one caller, one set of limits.

    Raises:
        Exception: an ask raised an error that is not one of focalroute's own.
    """
    luck = random.Random(seed)
    provider = Provider(random.Random(seed + 1), luck.choice((0.1, 0.4, 0.95)), luck.choice(_WAYS))
    limits: dict[str, Any] = {
        "usd_total": _drawn(luck, 8),
        "usd_per_period": {"day": _drawn(luck, 8)},
        "usd_per_tag": {_TAGS[0]: _drawn(luck, 6), _TAGS[1]: {"day": _drawn(luck, 6)}},
        "max_usd_per_ask": _drawn(luck, 6),
    }
    budget = Budget(**{name: limits[name] for name in luck.sample(list(limits), luck.randint(1, 4))})
    odd = luck.choice((0.0, 0.15))
    gate = asyncio.Semaphore(luck.choice((1, 5)))
    ended: Counter[str] = Counter()
    caps: dict[str, Decimal] = {}
    tags: dict[str, tuple[str, ...]] = {}
    day = time.time() // 86_400
    with serving(provider.handle) as server:
        endpoints = [
            Endpoint(
                name, model=name, base_url=server.url, input_usd_per_1m=price, output_usd_per_1m=price, timeout_s=20
            )
            for name, price in _PRICES.items()
        ]
        settings: dict[str, Any] = {"attempts": luck.choice((1, 1, 2)), "deadline_s": 30.0, "seed": seed}
        async with AsyncEnsemble(endpoints, budget=budget, explore=False, probe_share=0, **settings) as ensemble:

            async def ask(arguments: dict[str, Any]) -> None:
                async with gate:
                    try:
                        await ensemble.ask(**arguments)
                        ended["answered"] += 1
                    except FocalrouteError as error:
                        ended[type(error).__name__] += 1

            asked = [_arguments(luck, number, odd=odd) for number in range(_ASKS)]
            for number, arguments in enumerate(asked):
                own, shared = arguments.get("max_usd", _NONE), limits["max_usd_per_ask"]
                caps[str(number)] = min(own, shared if budget.max_usd_per_ask else _NONE)
                tags[str(number)] = arguments["tags"]
            await asyncio.gather(*map(ask, asked))
    found = provider.billed
    total = sum(found.values(), Decimal(0))
    accounts: list[tuple[str, Decimal, Any]] = [
        ("usd_total", total, budget.usd_total),
        ("day", total, budget.usd_per_period.get("day")),
    ]
    for tag in _TAGS:
        limit = limits["usd_per_tag"][tag] if budget.usd_per_tag else None
        spent = sum((found.get(ask, Decimal(0)) for ask, had in tags.items() if tag in had), Decimal(0))
        accounts.append((tag, spent, limit["day"] if isinstance(limit, dict) else limit))
    accounts += [(f"ask {ask}", found.get(ask, Decimal(0)), cap) for ask, cap in caps.items()]
    over = tuple(
        f"{name}: {spent:f} of {limit:f}" for name, spent, limit in accounts if limit is not None and spent > limit
    )
    return Case(seed, over if time.time() // 86_400 == day else (), ended, provider.calls)


async def play_all(seeds: Iterable[int]) -> list[Case]:
    """Play these cases, `_AT_A_TIME` concurrently."""
    left, played = iter(seeds), []

    async def work() -> None:
        for seed in left:
            played.append(await play(seed))

    await asyncio.gather(*(work() for _ in range(_AT_A_TIME)))
    return played


def _drawn(luck: random.Random, most: float) -> Decimal:
    """Draw a limit, log-uniformly, of 0.7 to ``most`` times the reservation of a usual call."""
    return (_USUAL * Decimal(str(math.exp(luck.uniform(math.log(0.7), math.log(most)))))).quantize(Decimal("1e-9"))


def _arguments(luck: random.Random, number: int, *, odd: float) -> dict[str, Any]:
    """Draw the arguments of an ask; ``odd``: about how often a careless or hostile caller's are among them."""
    text = f"ask-{number}: which of them? " + "ö" * luck.choice((0, 0, 3, 200))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    parts: tuple[dict[str, Any], ...] = (
        image,
        {"type": "text", "text": "more"},
        {"type": "file", "file": {"file_data": "AAAA"}},
        {"type": "video_url", "video_url": {"url": "http://x.invalid"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    )
    arguments: dict[str, Any] = {"tags": tuple(luck.sample(_TAGS, luck.randint(0, 2)))}
    content: Any = text
    if luck.random() < odd:
        content = [{"type": "text", "text": text}, luck.choice(parts)]
    arguments["query"] = [{"role": "user", "content": content}] if luck.random() < 0.3 or content is not text else text
    params: dict[str, Any] = {}
    for name in ("max_tokens", "n", "max_completion_tokens"):
        if luck.random() < odd / 3:
            params[name] = luck.choice(_ODD_COUNTS)
    if luck.random() < odd / 2:
        kind = luck.choice(("function", "custom", "web_search", "code_interpreter"))
        params["tools"] = [{"type": kind, kind: {"name": "look", "parameters": {"type": "object"}}}]
    if luck.random() < odd / 4:
        params[luck.choice(_EXTRAS)] = {}
    if params:
        arguments["params"] = params
    if luck.random() < 0.6:
        arguments["choices"] = ("A", "B", "C")
    else:
        arguments["answer"] = luck.choice(("short", "number", "text"))
        params.setdefault("max_tokens", luck.choice((16, 64, 300)))
        arguments["params"] = params
    if luck.random() < 0.3:
        arguments["max_usd"] = _drawn(luck, 6)
    return arguments


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the number of cases and every limit that was exceeded; fail if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case")
    given = parser.parse_args(arguments)
    cases = asyncio.run(play_all(range(given.seed, given.seed + given.cases)))
    calls, ended = sum(case.calls for case in cases), sum((case.ended for case in cases), Counter[str]())
    passed = [f"seed {case.seed}: {one}" for case in cases for one in case.passed]
    print(f"{len(cases)} cases, seeds {given.seed} to {given.seed + given.cases - 1}; {calls} calls; {dict(ended)}")
    print(f"limits passed: {len(passed)}", *passed, sep="\n")
    assert not passed


if __name__ == "__main__":
    main()
