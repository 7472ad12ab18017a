"""The TLS context and the HTTP proxy that an endpoint is called with, and why a connection to it failed."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from focalroute.core.config import Endpoint, is_http
from focalroute.core.errors import ConfigError
from focalroute.core.services import is_loopback

# OpenSSL's numbers of what is wrong with a certificate.
_NOT_YET_VALID, _EXPIRED, _OTHER_HOST, _OTHER_IP = 9, 10, 62, 64


def tls_context(
    verify: bool | str | Path | ssl.SSLContext = True, cert: str | tuple[str, str] | None = None
) -> ssl.SSLContext:
    """Make the context of an endpoint's ``verify`` and ``cert``, as httpx does.

    Raises:
        ConfigError: a file cannot be read, or lacks a certificate or key.
    """
    if verify is True and cert is None:
        return _default_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
    return _make_context(verify, cert)


@functools.lru_cache(4)
def _default_context(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Return the default context, cached: reading all its certificates takes longer than many calls."""
    return _make_context(True, None)


def _make_context(verify: bool | str | Path | ssl.SSLContext, cert: str | tuple[str, str] | None) -> ssl.SSLContext:
    named = "verify"
    try:
        if isinstance(verify, str | Path):
            folder = Path(verify).is_dir()
            context = ssl.create_default_context(capath=verify) if folder else ssl.create_default_context(cafile=verify)
        else:
            import httpx  # takes a while

            named = f"SSL_CERT_FILE: {os.environ.get('SSL_CERT_FILE')}"
            context = httpx.create_ssl_context(verify)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ConfigError(f"{named}: cannot read certificates from it ({error}); give PEM files") from None
    if cert is None:
        return context
    try:
        file, key = (cert, None) if isinstance(cert, str) else cert
        context.load_cert_chain(file, key, password="")  # else it would prompt for one
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        message = f"cert: cannot read a certificate with its unencrypted key ({error}); give PEM files"
        raise ConfigError(message) from None
    return context


def proxy_of(endpoint: Endpoint) -> str | None:
    """Return the endpoint's own proxy, else the environment's for its address; None: it is called directly.

    Raises:
        ConfigError: the environment's proxy is not an HTTP address.
    """
    import urllib.request  # takes a while, too

    parts = urlsplit(endpoint.base_url or "")
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)  # no_proxy may name it, too
    if endpoint.proxy or is_loopback(host) or any(map(urllib.request.proxy_bypass, (host, f"{host}:{port}"))):
        return endpoint.proxy
    proxies = urllib.request.getproxies()
    kind = parts.scheme if proxies.get(parts.scheme) else "all"
    address = proxies.get(kind)
    if not address:
        return None
    proxy = address if "://" in address else f"http://{address}"
    if not is_http(proxy):
        problem = "is not an address such as http://proxy:3128; give other proxies to an http_client"
        raise ConfigError(f"Endpoint {endpoint.name!r}: {kind}_proxy: {problem}")
    return proxy


def innermost(error: BaseException) -> BaseException:
    """Return the root cause, such as a name that was not found or an untrusted certificate."""
    for _ in range(8):
        inner = error.__cause__ or error.__context__
        if inner is None or isinstance(inner, asyncio.CancelledError):  # by which asyncio keeps a time limit
            break
        error = inner
    return error


def untrusted(error: ssl.SSLCertVerificationError, *, authority: str, name: str) -> tuple[str, str]:
    """Return why a server's certificate is not trusted, and what to do about it.

    Args:
        authority: what to do if the authority that signed it is unknown.
        name: what to do if it is a certificate of another host.
    """
    why = f"{type(error).__name__}: {error.verify_message}"
    if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
        return why, "renew the server's certificate, or correct this machine's clock"
    return why, name if error.verify_code in (_OTHER_HOST, _OTHER_IP) else authority
