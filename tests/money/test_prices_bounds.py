"""A hostile listing of prices ends in bounded time and memory, as an error of its endpoint."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest
from aiohttp import web

from focalroute.core.config import Endpoint
from focalroute.money import prices
from focalroute.money.prices import NotListed, fetch_models
from tests.loopback import json_reply, serving


@pytest.mark.parametrize("headers_come", [True, False])
def test_a_listing_that_drips_is_given_up(headers_come: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, the last one never does, be it of the body or of the headers."""
    monkeypatch.setattr(prices, "_LONGEST_S", 0.5)

    async def handler(request: web.Request, _: Any) -> web.StreamResponse:
        response = web.StreamResponse()
        if headers_come:
            await response.prepare(request)
        assert request.transport is not None
        if not headers_come:
            request.transport.write(b"HTTP/1.1 200 OK\r\nX: ")
        for _ in range(400):  # 20 seconds
            await asyncio.sleep(0.05)
            if request.transport is None or request.transport.is_closing():
                break
            request.transport.write(b"1\r\n \r\n" if headers_come else b"x")
        return response

    with serving(handler) as server, pytest.raises(NotListed, match="takes too long"):
        fetch_models(Endpoint("a", model="m", base_url=server.url))


def test_a_listing_that_does_not_end_is_given_up() -> None:
    async def handler(request: web.Request, _: Any) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while request.transport is not None and not request.transport.is_closing():
            await response.write(b" " * 2**20)
        return response

    with serving(handler) as server, pytest.raises(NotListed, match="too long"):
        fetch_models(Endpoint("a", model="m", base_url=server.url))


def test_a_compressed_listing_is_not_unpacked() -> None:
    """It was asked for as it is; a small packed one may unpack to gigabytes."""

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return web.Response(body=gzip.compress(b"[]"), headers={"Content-Encoding": "gzip"})

    with serving(handler) as server:
        with pytest.raises(NotListed, match="is compressed"):
            fetch_models(Endpoint("a", model="m", base_url=server.url))
        assert server.received[0].headers["Accept-Encoding"] == "identity"


def test_a_listing_is_fetched_from_within_an_event_loop() -> None:
    """As by a notebook."""

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply({"data": []})

    async def fetch(url: str) -> object:
        return fetch_models(Endpoint("a", model="m", base_url=url))

    with serving(handler) as server:
        assert asyncio.run(fetch(server.url)) == {"data": []}
