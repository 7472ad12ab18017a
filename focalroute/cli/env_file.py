"""Reads the ``.env`` file of the working folder into the environment, for the command line only."""

from __future__ import annotations

import os
import re
from pathlib import Path

from focalroute.core.errors import ConfigError

_MAX_BYTES = 64 * 1024
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
#: Keys and our own settings. A folder of a stranger's must not name a proxy, a certificate or a file (SSLKEYLOGFILE) by
#: which keys are read.
_TAKEN = re.compile(r"FOCALROUTE_.*|.*(?:KEY|TOKEN|SECRET|PASSWORD)S?\d*(?:_.*)?", re.IGNORECASE)


def read_env_file(path: Path) -> None:
    """Set the variables that hold keys or are ours, as far as they are not set already; nothing without a file.

    Raises:
        ConfigError: it cannot be read, is larger than 64 KiB, or a line is not ``NAME=value``.
    """
    if not path.is_file():
        return
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({type(error).__name__})") from None
    if len(text) > _MAX_BYTES:
        raise ConfigError(f"{path}: is larger than {_MAX_BYTES // 1024} KiB; keep only keys in it")
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None or "\0" in line:
            raise ConfigError(f"{path}: line {number}: write NAME=value")
        name, value = found[1], found[2]
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
        value = value[1:-1] if quoted else value.split(" #", 1)[0].rstrip()
        if _TAKEN.fullmatch(name):
            os.environ.setdefault(name, value)
