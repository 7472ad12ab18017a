"""Settings that would harm their reader, such as hostile names and addresses, are refused by name."""

# ruff: noqa: RUF001 - hosts that look like others

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from focalroute.core.config import Endpoint
from focalroute.core.errors import ConfigError
from focalroute.core.pool import load_pool, validate_pool

# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "a\x07", "a\x9b31m", "a\u202eb", "a\u2028b", "\0"])
@pytest.mark.parametrize("field", ["name", "model"])
def test_unprintable_names_are_refused(field: str, name: str) -> None:
    """Terminals would obey them; the message does not hold them."""
    settings: dict[str, Any] = {"name": "a", "model": "m", field: name}
    with pytest.raises(ConfigError, match=f"{field}: holds control") as caught:
        Endpoint(**settings)
    assert str(caught.value).isprintable()


def test_names_in_a_pool_file_are_checked_the_same_way(tmp_path: Path) -> None:
    """TOML can hold any character."""
    path = tmp_path / "pool.toml"
    path.write_text('[[endpoint]]\nname = "a\\u001b[31m"\nmodel = "m"\n')
    with pytest.raises(ConfigError, match=r"pool.toml: endpoint\[0\] .*: name: holds control"):
        load_pool(path)


@pytest.mark.parametrize("name", ["Llama 3.1 (8B)", "größe/模型", "a" * 200])
def test_names_of_any_script_are_taken(name: str) -> None:
    """Up to 200 characters."""
    assert Endpoint(name, model="m").name == name
    with pytest.raises(ConfigError, match=r"name: .*200"):
        Endpoint("a" * 201, model="m")


# -- hosts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "evil。com",
        "evil．com",
        "evil｡com",
        "ｅｖｉｌ.com",
        "ⓔvil.com",
        "bücher.de",
        "раypal.com",
        "evil%2ecom",
        "a..b",
        "a\\b",
        "-",
    ],
)
def test_hosts_that_are_not_plain_ascii_are_refused(host: str) -> None:
    """What connects may read a dot in them, where the check of keys saw none."""
    with pytest.raises(ConfigError, match=r"base_url: the host '.*' is not plain ASCII") as caught:
        Endpoint("a", model="m", base_url=f"http://{host}/v1")
    assert str(caught.value).isascii()


@pytest.mark.parametrize(
    "host",
    [
        "0x08080808",
        "134744072",
        "010.8.8.8",
        "8.8",
        "8.8.2056",
        "0x8.0x8.0x8.0x8",
        "0X8.8.8.8",
        "8.8.8.8.",
        "1.2.3.4.5",
        "256.1.1.1",
        "0x",
    ],
)
def test_numbers_that_are_not_a_plain_ipv4_address_are_refused(host: str) -> None:
    """Hex, octal, a single integer, too few parts: the system's resolver takes them."""
    with pytest.raises(ConfigError, match=r"base_url: the host '.*' is not an IPv4 address"):
        Endpoint("a", model="m", base_url=f"http://{host}/v1")


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.0.0.1", "[::1]", "[fe80::1%25eth0]", "api.together.xyz", "API.OpenAI.com", "xn--bcher-kva.de",
     "my_host", "a.b-c.internal", "model-7", "gpu1:8000", "3com.com", "example.com."],
)  # fmt: skip
def test_ordinary_hosts_are_taken(host: str) -> None:
    """By name, by address, with a port."""
    assert Endpoint("a", model="m", base_url=f"http://{host}/v1").base_url == f"http://{host}/v1"


def test_a_public_ipv4_address_in_ipv6_is_not_local() -> None:
    """It is 8.8.8.8 to whatever connects."""
    with pytest.raises(ConfigError, match=r"unencrypted|is not a key for"):
        validate_pool([Endpoint("a", model="m", base_url="http://[::ffff:8.8.8.8]/v1", api_key_env="OPENAI_API_KEY")])
