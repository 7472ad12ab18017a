"""The command line reads the keys of a ``.env``, and nothing else of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from focalroute.cli.app import main, read_env_file
from focalroute.core.errors import ConfigError
from tests.permissions import barred


def test_keys_and_our_settings_are_taken_and_what_is_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"SET_KEY": "before"})
    (tmp_path / ".env").write_text(
        "\ufeff# keys\n\nexport ONE_API_KEY='a b'\nTWO_TOKEN = \"c#d\"\nTHREE_KEY=e # mine\nSET_KEY=after\n"
        "FOCALROUTE_POOL=p.toml\nHTTPS_PROXY=http://evil\nSSL_CERT_FILE=evil.pem\nPATH=/evil\n"
        "SSLKEYLOGFILE=evil.log\nAPI_KEYS_2=f\n"
    )
    read_env_file(tmp_path / ".env")
    expected = {
        "ONE_API_KEY": "a b",
        "TWO_TOKEN": "c#d",
        "THREE_KEY": "e",
        "FOCALROUTE_POOL": "p.toml",
        "API_KEYS_2": "f",
    }
    assert os.environ == {"SET_KEY": "before", **expected}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"ONE_KEY=a\nsk-secret-word\n", "line 2: write NAME=value"),
        (b"ONE_KEY=secret\0\n", "line 1: write NAME=value"),
        (b"\xff\xfe", "cannot be read"),
        (b"A=b\n" * 20_000, "larger than 64 KiB"),
    ],
)
def test_a_wrong_file_is_named_and_not_quoted(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / ".env").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"\.env: .*{says}") as raised:
        read_env_file(tmp_path / ".env")
    assert "secret" not in str(raised.value)


def test_the_command_line_reads_the_one_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(sys, "argv", ["focalroute", "key", "me"])
    (tmp_path / ".env").write_text("STUMBLE_KEY=x\n")
    with pytest.raises(SystemExit):
        main()
    assert os.environ["STUMBLE_KEY"] == "x"


def test_a_folder_that_may_not_be_entered_has_none(tmp_path: Path) -> None:
    """A service may be started in one; every command failed."""
    with barred(tmp_path):
        read_env_file(tmp_path / ".env")


@pytest.mark.parametrize("asked", [["--version"], ["--help"], ["ask", "--help"]], ids=str)
def test_a_wrong_file_stops_no_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("no line of its kind\n")
    for arguments, code in ((asked, 0), (["key", "me"], 2)):
        monkeypatch.setattr(sys, "argv", ["focalroute", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == code
