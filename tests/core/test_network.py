"""The remedy for an untrusted certificate depends on what is wrong with it."""

from __future__ import annotations

import ssl

import pytest

from focalroute.core.network import untrusted


@pytest.mark.parametrize(
    ("number", "hint"), [(9, "renew the"), (10, "renew the"), (62, "name"), (64, "name"), (18, "authority")]
)
def test_the_remedy_fits_what_is_wrong_with_a_certificate(number: int, hint: str) -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = number, "it is odd"
    why, remedy = untrusted(error, authority="authority", name="name")
    assert why == "SSLCertVerificationError: it is odd"
    assert remedy.startswith(hint)
