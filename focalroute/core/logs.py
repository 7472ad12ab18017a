"""The variable FOCALROUTE_LOG: what focalroute logs, shown on standard error without a line of code."""

from __future__ import annotations

import logging

_LEVELS = ("debug", "info", "warning", "error")


def show_logs(level: str) -> None:
    """Show the log of this level on standard error, unless the program has handlers of its own for that."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logger = logging.getLogger("focalroute")
    if level.strip().lower() in _LEVELS:
        logger.setLevel(level.strip().upper())
    else:
        logger.warning("FOCALROUTE_LOG is none of %s: left as it is", ", ".join(_LEVELS))
