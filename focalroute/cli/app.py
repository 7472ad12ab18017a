"""The command line, ``focalroute``: registers all commands, and declares `eval` and `report`."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

import typer

from focalroute.cli import EngineOption, JsonOption, SkipBadRowsOption, named_folder, was_given
from focalroute.cli.batch import batch
from focalroute.cli.collect import collect, import_
from focalroute.cli.console import ask, chat
from focalroute.cli.demo import demo
from focalroute.cli.init import init
from focalroute.cli.ledger import ledger
from focalroute.cli.policy import policies
from focalroute.cli.pool import pools
from focalroute.cli.server import key, serve
from focalroute.cli.train import train
from focalroute.cli.update import update
from focalroute.core import __version__
from focalroute.core.errors import ConfigError, FocalrouteError

_MAX_BYTES = 64 * 1024
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")
#: Variables taken from an .env file: keys and our own settings. In a folder of someone else, it must not set a proxy, a
#: certificate or a file (SSLKEYLOGFILE) that would expose keys.
_TAKEN = re.compile(r"FOCALROUTE_.*|.*(?:KEY|TOKEN|SECRET|PASSWORD)S?\d*(?:_.*)?", re.IGNORECASE)


def read_env_file(path: Path) -> None:
    """Set the variables of an .env file that hold keys or are ours, unless set already; do nothing without a file.

    Raises:
        ConfigError: the file cannot be read, is larger than 64 KiB, or has a line that is not ``NAME=value``.
    """
    if not (os.path.lexists(path) and path.is_file()):  # lexists is also False if the folder may not be entered
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


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(policies, name="policy")
app.add_typer(pools, name="pool")
for command in (serve, key, demo, init, ask, chat, batch, update, ledger, train, collect):
    app.command()(command)
app.command("import")(import_)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Ask a small, learned subset of a pool of LLM endpoints and fuse their replies into one answer.

    Exit code 0: done; 1: failed; 2: something to correct, which the message names.
    """
    if "--help" not in sys.argv:  # help has to work even if the file is invalid
        read_env_file(Path(".env"))


#: Parameters of eval that apply only with --live, and those that apply with and without it.
_LIVE_ONLY = frozenset({"queries", "answer", "quality", "max_rounds", "out"})
_LIVE_TOO = frozenset({"live", "train_fraction", "seed", "seeds", "json_file"})


@app.command("eval")
def evaluate(
    context: typer.Context,
    log: Annotated[
        Path | None, typer.Argument(help="The outcome log (.jsonl or .jsonl.gz): what a pool answered in the past.")
    ] = None,
    pool: Annotated[Path | None, typer.Option(help="The pool file (TOML) with the endpoints' prices.")] = None,
    split: Annotated[
        Literal["stream", "per-task"], typer.Option(help="Split the whole log once, or each of its tasks.")
    ] = "stream",
    train_fraction: Annotated[float, typer.Option(help="Share of the log, from its start, used for training.")] = 0.8,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same report.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to train and replay with.")] = 1,
    operating_points: Annotated[
        str, typer.Option(help="Target cost ratios, separated by commas; 1 is the cost of asking every endpoint.")
    ] = "",
    policy: Annotated[
        str, typer.Option(help="Serve this instead of training: a folder, folder@version, or cold for the shipped one.")
    ] = "",
    feedback: Annotated[
        Literal["label", "reward", "none"], typer.Option(help="The kind of feedback after each answer.")
    ] = "label",
    feedback_share: Annotated[float, typer.Option(help="Share of the queries that get feedback.")] = 1.0,
    feedback_delay: Annotated[int, typer.Option(min=0, help="Feedback comes this many queries later.")] = 0,
    feedback_noise: Annotated[float, typer.Option(help="Share of the feedback that is wrong.")] = 0.0,
    feedback_bias: Annotated[
        Literal["none", "negative", "disputed"],
        typer.Option(
            help="negative: wrong answers get feedback five times as often; disputed: mostly where members differ."
        ),
    ] = "none",
    usd_per_second: Annotated[float, typer.Option(help="The price of a second of waiting for the answer.")] = 0.0,
    show_task: Annotated[bool, typer.Option("--show-task", help="Let the policies see the task.")] = False,
    preset: Annotated[
        list[str] | None, typer.Option(help="Add a paper's method, rl-focal or der; may be repeated.")
    ] = None,
    skip_bad_rows: SkipBadRowsOption = False,
    engine: EngineOption = "local",
    live: Annotated[
        str, typer.Option(help="Instead of a log, ask this pool: a pool file, or sim for a simulated one.")
    ] = "",
    queries: Annotated[Path | None, typer.Option(help="With --live: a file of questions, as for collect.")] = None,
    answer: Annotated[str | None, typer.Option(help="With --live: kind of a free-form answer.")] = None,
    quality: Annotated[str | None, typer.Option(help="With --live: metric that scores free-form answers.")] = None,
    max_rounds: Annotated[int, typer.Option(min=1, help="With --live: length of the longest chain.")] = 3,
    out: Annotated[
        Path | None,
        typer.Option(parser=named_folder, metavar="PATH", help="With --live: folder to publish the trained DER to."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the report to this file as JSON, or print it (-).")
    ] = None,
    html_file: Annotated[
        Path | None,
        typer.Option(
            "--html", help="Write the report to this file as a page with plots (extra report), or print it (-)."
        ),
    ] = None,
) -> None:
    """Replay recorded answers with focalroute and baselines, each query answered before its outcome is revealed.

    With --live and --queries, ask a pool instead: single endpoints, chains that improve an answer in steps, and DER.
    """
    _check_eval_parameters(context, live=bool(live))
    if live:
        from focalroute.evaluate.live import LiveOptions, live_command

        live_options = LiveOptions(answer, quality, train_fraction, seed, seeds, max_steps=max_rounds, publish_to=out)
        return live_command(live, queries, live_options, json_file=json_file)
    if log is None or pool is None:
        raise ConfigError("eval: give a log and its --pool, or --live and --queries")
    from focalroute.evaluate.eval_result import ReplayOptions
    from focalroute.evaluate.report import EvalOptions, cost_ratios, evaluate_command
    from focalroute.policy.references import load_reference

    options = EvalOptions(
        **{field.name: context.params[field.name] for field in fields(ReplayOptions)},
        split_by=split,
        operating_points=cost_ratios(operating_points),
        policy=load_reference(policy) if policy else None,
        presets=preset or (),
        skip_bad_rows=skip_bad_rows,
    )
    evaluate_command(log, pool, options, engine=engine, json_file=json_file, html_file=html_file)


def _check_eval_parameters(context: typer.Context, *, live: bool) -> None:
    """Raise ConfigError if a parameter was given that does not apply with, or without, --live."""
    for parameter in context.command.params:
        name = parameter.name or ""
        applies = name in _LIVE_TOO or (name in _LIVE_ONLY) == live
        if not applies and was_given(context, name):
            where = "without --live" if live else "with --live"
            raise ConfigError(f"eval: {parameter.opts[0]} applies only {where}; leave it out")


@app.command()
def report(
    evaluation: Annotated[
        Path | None, typer.Argument(metavar="EVAL.json", help="A report written by focalroute eval --json.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="Instead of a report: a SQLite file, or redis:// address, with answers and feedback."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Folder of policy bundles, to also show the effect of its updates.")
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="With --store: how many of the latest answers; default: 10,000.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The page to write; - prints it, and nothing else.")] = Path("report.html"),
    png: Annotated[Path | None, typer.Option(help="Folder to also write the plots to, as PNG files.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write one self-contained page about a store or an evaluation: cost, quality, and which endpoints are asked when.

    Needs the extra report. Sections without data say what they need.
    """
    from focalroute.evaluate.report_page.report_command import report_command

    report_command(evaluation, store, policy=policy, last=last, out=out, png=png, as_json=as_json)


def main() -> None:
    """Run the command line: exit code 2 for errors that the user can correct, 1 for other failures."""
    if sys.stderr is None:  # it was closed; messages would go to standard output
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
    logging.basicConfig(format="%(levelname)s: %(message)s")  # warnings, on standard error
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack characters of a paid answer
    if sys.stdin is None:  # it was closed
        sys.stdin = io.TextIOWrapper(io.BytesIO())
    sys.argv = _with_bare_json(sys.argv)
    try:
        app()
    except FocalrouteError as error:
        typer.echo(f"error: {error}", err=True)
        if isinstance(error, ConfigError):
            sys.exit(2)
        sys.exit(1)
    except OSError as error:  # such as a full disk; errors with a setting are ConfigErrors
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)


def _with_bare_json(arguments: list[str]) -> list[str]:
    """Let ``eval --json`` without a file print the report, as --json does in other commands."""
    if arguments[1:2] != ["eval"] or "--json" not in arguments:
        return arguments
    after = arguments.index("--json") + 1
    bare = after == len(arguments) or arguments[after].startswith("--")
    return [*arguments[:after], "-", *arguments[after:]] if bare else arguments
