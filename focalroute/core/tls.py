"""Says why a connection failed, and what to do about a certificate that is not trusted."""

from __future__ import annotations

import asyncio
import ssl

# OpenSSL's numbers of what is wrong with a certificate.
_NOT_YET_VALID, _EXPIRED, _OTHER_HOST, _OTHER_IP = 9, 10, 62, 64


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
