"""``focalroute ledger``: sums up the store's ledger, estimates savings, and checks the balances of budgets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import astuple, fields, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from focalroute.cli import printable, was_given
from focalroute.core.errors import ConfigError
from focalroute.core.spelling import counted

if TYPE_CHECKING:
    from focalroute.core.records import Feedback
    from focalroute.money.cost import Saving
    from focalroute.serving.settings import Settings
    from focalroute.store.base import BalanceDifference, LedgerSum, Store, StoredAnswer

_HEADS = ("asks", "calls", "tokens in", "tokens out", "USD", "estimated", "held")
Form = Literal["text", "csv", "json"]


def ledger(
    context: typer.Context,
    store: Annotated[str, typer.Option(help="The SQLite file, or the redis:// address.")],
    by: Annotated[Literal["endpoint", "tag", "day", "all"], typer.Option(help="What to sum by.")] = "endpoint",
    saved: Annotated[
        Path | None,
        typer.Option(
            "--saved", help="Estimate what was saved against asking all endpoints of this pool file, or only the best."
        ),
    ] = None,
    reconcile: Annotated[
        bool,
        typer.Option(
            "--reconcile", help="Compare the running balances of budgets with the ledger; exit code 1 if they differ."
        ),
    ] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Set those balances to the ledger's sums.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Sum up calls and their cost, failed and cancelled calls included.

    With --saved, estimate savings instead. With --reconcile or --repair, compare the running balances of budgets with
    the ledger, or correct them.
    """
    from focalroute.store import open_store, require_existing

    if as_csv and as_json:
        raise ConfigError("--csv, --json: give one of them")
    if saved is not None and (reconcile or repair):
        raise ConfigError("--saved: cannot be combined with --reconcile or --repair; leave one out")
    if was_given(context, "by") and (saved is not None or reconcile or repair):
        raise ConfigError("--by: cannot be combined with --saved, --reconcile or --repair; leave it out")
    form: Form = "text"
    if as_csv:
        form = "csv"
    elif as_json:
        form = "json"
    settings = None if saved is None else read_settings(saved)
    with closing(open_store(require_existing(store))) as opened:
        if reconcile or repair:
            found = opened.reconcile(repair=repair)
            typer.echo(show_differences(found, form))
            if found and not repair:
                raise typer.Exit(1)
            if found:
                typer.echo("repaired: these balances now equal the ledger's sums", err=True)
        elif settings is not None:
            typer.echo(show_savings(read_savings(settings, opened), form))
        else:
            typer.echo(show_spending(opened.ledger(by), by, form))


def show_spending(sums: Sequence[LedgerSum], by: str, form: Form) -> str:
    """Format the sums as a table, as CSV, or as a JSON list with exact USD."""
    if form == "text":
        return "\n".join(_table(sums, by))
    from focalroute.store.base import LedgerSum

    _, *names = (field.name for field in fields(LedgerSum))
    rows = [(one.key, *(one.known_cost if name == "cost" else getattr(one, name) for name in names)) for one in sums]
    return _machine_readable((by, *names), rows, form)


def _machine_readable(names: Sequence[str], records: Iterable[Any], form: Literal["csv", "json"]) -> str:
    rows = [dict(zip(names, map(_plain, record), strict=True)) for record in records]
    if form == "json":
        return json.dumps(rows, indent=2)
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(row.values() for row in rows)
    return written.getvalue().rstrip("\n")


def _plain(value: object) -> object:
    return f"{value:f}" if isinstance(value, Decimal) else value


def _table(sums: Sequence[LedgerSum], by: str) -> Iterator[str]:
    yield _line(by, _HEADS)
    for one in sums:
        usd = map(_dollars, (one.known_cost, one.estimated_cost, one.held))
        yield _line(one.key or "(none)", (one.asks, one.calls, one.prompt_tokens, one.completion_tokens, *usd))
    unpriced = sum(one.unpriced for one in sums)
    if unpriced:
        yield f"not in these sums: {counted(unpriced, 'call')} of unknown cost"


def _dollars(usd: Decimal | None) -> str:
    return "unknown" if usd is None else f"{usd:.6f}"


def _line(key: str, cells: Iterable[object]) -> str:
    return f"{printable(key):28} " + " ".join(f"{cell:>12}" for cell in cells)


_DIFFERENCE = ("tag", "period_s", "spent", "reserved", "ledger_spent", "ledger_reserved")


def show_differences(found: Sequence[BalanceDifference], form: Form) -> str:
    """Format differences as a table, as CSV, or as a JSON list, with exact USD; null: a damaged balance."""
    rows = []
    for one in found:
        kept = (None, None) if one.kept is None else (one.kept.spent, one.kept.reserved)
        rows.append((one.account.tag, one.account.period_s, *kept, one.summed.spent, one.summed.reserved))
    if form != "text":
        return _machine_readable(_DIFFERENCE, rows, form)
    if not found:
        return "every balance equals the ledger's sum"
    lines = [_line("account", ("spent", "reserved", "by ledger", "reserved"))]
    for tag, period_s, *amounts in rows:
        name = tag or "(all)"
        if period_s:
            name += f" in {period_s} s"
        lines.append(_line(name, ("damaged" if usd is None else f"{usd:f}" for usd in amounts)))
    return "\n".join(lines)


# -- what was saved ----------------------------------------------------------------------------------------------------


def read_settings(pool: Path) -> Settings:
    """Return the settings of an ensemble from this pool file, without its judge and embedder."""
    from focalroute.serving.settings import Settings, pool_settings

    return Settings(**pool_settings(pool, {"embedder": None, "judge": None}))


def read_savings(settings: Settings, store: Store) -> tuple[Saving, ...]:
    """Estimate savings from the store's ledger; the best single endpoint is what an ensemble starting now would see."""
    from focalroute.core.pool import validate_pool
    from focalroute.learn.reward import credit, outranks, unjudged
    from focalroute.money.cost import savings
    from focalroute.observe.observer import Observer
    from focalroute.serving.feedback import learn_stored

    endpoints = validate_pool(settings.endpoints)
    observer = Observer.of(endpoints, window=settings.window)
    sources: dict[str, str] = {}
    agreement = settings.learn_from_agreement

    def absorb(rows: Sequence[tuple[StoredAnswer, Feedback]]) -> None:
        for stored, feedback in rows:
            known = sources.get(stored.id)
            if known is None or outranks(feedback.source, known):
                if agreement:
                    observer.agree(*unjudged(stored), new="nothing")
                observer.learn(credit(stored, feedback), feedback.created_at)
                sources[stored.id] = feedback.source

    learn_stored(store, observer, absorb, window=settings.window, learn_from_agreement=agreement)
    return savings(endpoints, store.totals(), observer.accuracy())


def show_savings(saved: Sequence[Saving], form: Form) -> str:
    """Format savings as a table, as CSV, or as a JSON list; paid USD are exact, estimates have 12 places."""
    rounded = [replace(one, otherwise=_rounded(one.otherwise), saved=_rounded(one.saved)) for one in saved]
    if form != "text":
        from focalroute.money.cost import Saving

        return _machine_readable([field.name for field in fields(Saving)], map(astuple, rounded), form)
    lines = [_line("instead of", ("asks", "USD", "would cost", "saved"))]
    for one in rounded:
        amounts = map(_dollars, (one.cost, one.otherwise, one.saved))
        lines.append(_line(one.against, (one.asks, *amounts)))
    return "\n".join([*lines, "would cost: estimated from the mean cost of an endpoint's calls so far"])


def _rounded(usd: Decimal | None) -> Decimal | None:
    return None if usd is None else round(usd, 12)
