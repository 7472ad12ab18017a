"""Runs ``focalroute report``."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from focalroute.core.errors import ConfigError
from focalroute.evaluate.eval_page import eval_page, read_eval
from focalroute.evaluate.files import STANDARD_OUTPUT, check_writable, write_file
from focalroute.evaluate.report_page.page import Page, Section, check_extra, html, pngs
from focalroute.evaluate.store_report.history import read_history
from focalroute.evaluate.store_report.store_page import store_page
from focalroute.evaluate.store_report.updates import updates_section
from focalroute.policy import bundle
from focalroute.store import display_name, is_redis, open_store, require_existing

#: How many of a store's latest answers are read.
LATEST = 10_000

_SQLITE = b"SQLite format 3\0"


def report_command(
    evaluation: Path | None,
    store: str | None,
    *,
    policy: str | None = None,
    last: int = LATEST,
    out: Path,
    png: Path | None = None,
    as_json: bool = False,
) -> None:
    """Write the page about a store or an evaluation, and its drawings as PNGs, and print what was written.

    Args:
        evaluation: what ``focalroute eval --json`` wrote.
        store: a SQLite file, or a redis:// address; one of both is given.
        policy: a policy folder, for what its updates did.
        last: of the store, so many of the latest answers.
        out: the page; "-" is standard output, which then has nothing else.
        png: folder for the PNGs; made if missing.
        as_json: print it as JSON.

    Raises:
        ConfigError: an argument is wrong, what is given is something else, or a file cannot be written.
        PolicyError: a version in the policy folder does not pass its checks.
        StoreError: the store cannot be read.
    """
    check_extra()
    check_writable(out)
    updates = None if policy is None else _updates(policy)
    page = _page(evaluation, store, last, updates)
    write_file(out, html(page))
    drawn = [] if png is None else _write_pngs(page, png)
    missing = {
        name: section.caption
        for name, section in page.sections.items()
        if section.drawing is None and section.table is None
    }
    if out == STANDARD_OUTPUT:
        return
    if as_json:
        summary = {"page": str(out), "pngs": [str(file) for file in drawn], "missing": missing}
        print(json.dumps(summary, indent=2))
        return
    print(page.lead)
    print(f"{out}: written" + (f", and {len(drawn)} PNGs to {png}" if png else ""))
    if missing:
        print(f"without data, each says what it needs: {', '.join(missing)}")


def _page(evaluation: Path | None, store: str | None, last: int, updates: Section | None) -> Page:
    if (evaluation is None) == (store is None):
        raise ConfigError("report: give EVAL.json, what focalroute eval --json wrote, or --store STORE")
    if evaluation is not None:
        return eval_page(read_eval(_json(evaluation), str(evaluation)), updates)
    assert store is not None  # noqa: S101 - one of both is there
    with closing(open_store(require_existing(store))) as opened:
        name = display_name(store) if is_redis(store) else Path(store).name
        return store_page(read_history(opened.recent(last)), name, updates)


def _json(file: Path) -> object:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    if content.startswith(_SQLITE):
        raise ConfigError(f"{file}: is a store; give it as --store {file}")
    try:
        found: object = json.loads(content)
    except (ValueError, RecursionError):
        raise ConfigError(f"{file}: is not JSON; give the file that focalroute eval --json wrote") from None
    return found


def _updates(folder: str) -> Section:
    if not Path(folder).is_dir():
        raise ConfigError(
            f"{folder}: there is no such folder; give the folder of policy bundles that updates publish to"
        )
    return updates_section(folder) if bundle.versions(folder) else Section(f"{folder} holds no policy yet.")


def _write_pngs(page: Page, folder: Path) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made: {error.strerror}") from None
    written = []
    for name, content in pngs(page):
        write_file(folder / f"{name}.png", content)
        written.append(folder / f"{name}.png")
    return written
