"""Which key may go where: to the service its variable is named for, and to one service only.

A pool file names a variable and an address in two lines, and a copied table or a wrong letter would send one service's
key to another one. Hosts of one's own machine or network may be sent any key.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

#: How a variable for the key of a service begins, and the domains of that service.
_SERVICES: Mapping[str, tuple[str, ...]] = {
    "ANTHROPIC": ("anthropic.com",),
    "DEEPINFRA": ("deepinfra.com",),
    "DEEPSEEK": ("deepseek.com",),
    "FIREWORKS": ("fireworks.ai",),
    "GROQ": ("groq.com",),
    "MISTRAL": ("mistral.ai",),
    "OPENAI": ("openai.com", "azure.com"),
    "OPENROUTER": ("openrouter.ai",),
    "TOGETHER": ("together.xyz", "together.ai"),
}
_VARIABLE = re.compile(rf"({'|'.join(_SERVICES)})(?:_?AI)?_(?:API_)?(?:KEY|TOKEN)(?:_.*)?")
_OWN_DOMAINS = ("internal", "invalid", "lan", "local", "localhost", "test")


class KeyUse(NamedTuple):
    """An endpoint, the variable of its key, and the address that the key is sent to."""

    endpoint: str
    variable: str
    base_url: str


def misdirected(uses: Iterable[KeyUse]) -> str | None:
    """What is wrong with where the keys would go, in words; None if nothing is.

    >>> misdirected([KeyUse("a", "GROQ_API_KEY", "https://api.deepinfra.com/v1")])
    'a: api_key_env: GROQ_API_KEY is not a key for api.deepinfra.com; correct one, or name a variable of its own'
    """
    sites: dict[str, tuple[str, str]] = {}
    for use in uses:
        parts = urlsplit(use.base_url)
        host = parts.hostname or ""
        if _own(host):
            continue
        meant, found = _VARIABLE.fullmatch(use.variable.upper()), _service(host)
        if meant and meant[1] != found:
            return (
                f"{use.endpoint}: api_key_env: {use.variable} is not a key for {host}; "
                "correct one, or name a variable of its own"
            )
        if (meant or found) and parts.scheme == "http":
            return f"{use.endpoint}: base_url: a key would be sent to {host} unencrypted; use https://"
        site = found or ".".join(host.split(".")[-2:])
        first = sites.setdefault(use.variable, (site, host))
        if first[0] != site:
            return (
                f"{use.endpoint}: api_key_env: {use.variable} would be sent to {first[1]} and to {host}; "
                "give each service a variable of its own"
            )
    return None


def _service(host: str) -> str | None:
    for name, domains in _SERVICES.items():
        if any(host == domain or host.endswith("." + domain) for domain in domains):
            return name
    return None


def _own(host: str) -> bool:
    """Whether this is a host of one's own machine or network."""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.rsplit(".", 1)[1] in _OWN_DOMAINS
