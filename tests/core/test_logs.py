"""Warnings reach standard error by themselves; FOCALROUTE_LOG shows every attempt there, without keys and texts."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from aiohttp import web

from tests.loopback import completion, json_reply, serving

KEY = "sk-logged0KEY1never2to3be4seen"
STALE = "the prices of only are more than 30 days old; renew them with focalroute pool prices --write"
#: A user's program, which sets up no logging.
PROGRAM = f"""
import sys
from datetime import date
from focalroute import Endpoint, Ensemble
only = Endpoint("only", model="m-1", base_url=sys.argv[1], api_key="{KEY}", logprobs=False, n=False,
                input_usd_per_1m=1, output_usd_per_1m=1, prices_as_of=date(2025, 1, 1), structured_choice=False)
with Ensemble([only]) as ensemble:
    ensemble.ask("What is the secret of the sea?")
"""


@pytest.mark.parametrize(
    "level", ["", *(pytest.param(level, marks=pytest.mark.slow) for level in ("info", "nonsense")), "debug"]
)
def test_the_log_on_standard_error(level: str) -> None:
    async def say(request: web.Request, body: Any) -> web.StreamResponse:
        return json_reply(completion("That it is salty."))

    environment = {**os.environ, "FOCALROUTE_LOG": level}
    with serving(say) as server:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, server.url], env=environment, capture_output=True, text=True, timeout=60
        )
    assert (done.returncode, done.stdout) == (0, "")
    assert STALE in done.stderr
    host = server.url.removeprefix("http://").removesuffix("/v1")
    assert (f"only (m-1 at {host}), query " in done.stderr) == (level == "debug")
    assert ("FOCALROUTE_LOG: give debug" in done.stderr) == (level == "nonsense")
    assert not any(text in done.stderr for text in (KEY, "secret of the sea", "salty"))
