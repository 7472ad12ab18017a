"""``focalroute policy``: its commands, each of which calls the module that does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

policies = typer.Typer(no_args_is_help=True, help="Compare policies, show what a folder holds, go back to a version.")


@policies.command()
def compare(
    a: Annotated[str, typer.Argument(help="A policy: a folder, folder@version, or cold for the shipped one.")],
    b: Annotated[str, typer.Argument(help="Another one.")],
    store: Annotated[str, typer.Option(help="The SQLite file, or redis:// address, with answers and feedback.")],
    seed: Annotated[int, typer.Option(help="Of the parts that the critic is fitted on.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole comparison as JSON.")] = False,
) -> None:
    """Estimate what two policies would have been worth on answers that were decided with exploration and rewarded.

    Nobody is asked: the answers are weighed by the probabilities that were stored with them.
    """
    from focalroute.evaluate.compare import compare_command

    compare_command(a, b, store, seed=seed, as_json=as_json)


@policies.command("show")
def show_policy(
    policy: Annotated[str, typer.Argument(help="A folder, folder@version, or cold for the shipped one.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show the versions that a folder keeps, and what one of them (else the one that serves) was made from."""
    from focalroute.cli.policy_show import show_command

    show_command(policy, as_json=as_json)


@policies.command("rollback")
def roll_back(
    folder: Annotated[str, typer.Argument(help="Folder of policy bundles, or the redis:// address of a fleet.")],
    version: Annotated[
        int | None, typer.Argument(help="The version; without it what the current one came from.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what serves now as JSON.")] = False,
) -> None:
    """Make an earlier version serve again; processes that serve it, or the whole fleet, notice within a second."""
    from focalroute.cli.policy_show import rollback_command
    from focalroute.learn.fleet.rollback import rollback_fleet_command
    from focalroute.store import is_redis

    if is_redis(folder):
        rollback_fleet_command(folder, version, as_json=as_json)
    else:
        rollback_command(Path(folder), version, as_json=as_json)
