"""How many files this process may have open: each connection is one, and beyond the limit much else fails, too."""

from __future__ import annotations


def most_files() -> int | None:
    """The limit; None: unknown, or without one."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_limit(files: int) -> None:
    """Raise the limit to this many, as far as the system lets it; one that is higher stays."""
    soft = most_files()
    if soft is None or soft >= files:
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files if hard == resource.RLIM_INFINITY else min(files, hard), hard))
