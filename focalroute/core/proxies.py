"""The HTTP proxy that an endpoint is called through."""

from __future__ import annotations

import urllib.request
from urllib.parse import urlsplit

from focalroute.core.config import Endpoint, is_http
from focalroute.core.errors import ConfigError
from focalroute.core.services import is_loopback


def proxy_of(endpoint: Endpoint) -> str | None:
    """Return the endpoint's proxy, else the environment's current one for its address; None: it is called directly.

    Raises:
        ConfigError: the environment's proxy is not an HTTP address.
    """
    parts = urlsplit(endpoint.base_url or "")
    host = parts.hostname or ""
    if endpoint.proxy or is_loopback(host) or urllib.request.proxy_bypass(host):
        return endpoint.proxy
    proxies = urllib.request.getproxies()
    kind = parts.scheme if proxies.get(parts.scheme) else "all"
    address = proxies.get(kind)
    if not address:
        return None
    proxy = address if "://" in address else f"http://{address}"
    if not is_http(proxy):
        raise ConfigError(f"Endpoint {endpoint.name!r}: {kind}_proxy: is not an address such as http://proxy:3128")
    return proxy
