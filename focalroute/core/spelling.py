"""Suggests the closest known name for an unknown one."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def did_you_mean(name: str, known: Collection[str], instead: Mapping[str, str] | None = None) -> str:
    """Return advice on an unknown name: the one that was meant, or which there are.

    Args:
        known: the names that there are.
        instead: what others call something -> its name here, or a sentence that says what to do.

    >>> did_you_mean("polcy", ["policy", "store"]), did_you_mean("timeout", [], {"timeout": "deadline_s"})
    ("did you mean 'policy'?", "did you mean 'deadline_s'?")
    """
    from difflib import get_close_matches  # only errors need it

    meant = (instead or {}).get(name)
    if meant is not None and " " in meant:
        return meant
    near = [meant] if meant else get_close_matches(name.lower().replace("-", "_"), known, 1)
    return f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(sorted(known))}."
