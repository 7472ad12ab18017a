"""``focalroute policy``: compares policies, shows them, and rolls them back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focalroute.cli import JsonOption, printable
from focalroute.core.errors import ConfigError, PolicyError

if TYPE_CHECKING:
    from focalroute.policy.bundle import Policy
    from focalroute.policy.sequential import Der

policies = typer.Typer(no_args_is_help=True, help="Compare policies, show a folder's versions, roll back to one.")


@policies.command()
def compare(
    a: Annotated[str, typer.Argument(help="A policy: a folder, folder@version, or cold for the shipped one.")],
    b: Annotated[str, typer.Argument(help="The policy to compare with A.")],
    store: Annotated[str, typer.Option(help="The SQLite file, or redis:// address, with answers and feedback.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split of answers that the critic is fitted on.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Estimate the value of two policies on answers that were drawn with exploration and got feedback.

    No endpoint is asked: answers are weighted by the propensities that were stored with them.
    """
    from focalroute.evaluate.offpolicy import compare_command

    compare_command(a, b, store, seed=seed, as_json=as_json)


@policies.command("show")
def show_policy(
    policy: Annotated[str, typer.Argument(help="A folder, folder@version, or cold for the shipped one.")],
    as_json: JsonOption = False,
) -> None:
    """Show the versions in a folder, and details of one of them (default: the one that serves)."""
    shown = describe(policy)
    if as_json:
        print(json.dumps(shown, indent=2))
        return
    for line in _described(shown):
        print(printable(line))  # a bundle made elsewhere may hold any text


def _described(shown: Mapping[str, Any]) -> Iterator[str]:
    """Format the result of `describe` as lines."""
    if "folder" in shown:
        roles = {shown["challenger"]: " (on trial)", shown["current"]: " (serves)"}
        kept = ", ".join(f"{version}{roles.get(version, '')}" for version in shown["versions"])
        yield f"{shown['folder']}: versions {kept}"
        for verdict in shown["record"]:
            yield f"version {verdict['version']} was {verdict['outcome']}: {verdict['reason']}"
    made = datetime.fromtimestamp(shown["created_at"], UTC).isoformat(" ", "seconds") if shown["created_at"] else "-"
    origin = {None: "no other version", 0: "the shipped policy"}.get(shown["parent"], shown["parent"])
    yield f"version {shown['version']}, learned from {origin}, made {made}"
    yield f"endpoints: {', '.join(shown['names']) or 'none by name'}"
    for part in ("hyperparameters", "metrics"):
        yield f"{part}:" if shown[part] else f"{part}: none"
        for key, value in shown[part].items():
            if isinstance(value, list):
                yield f"  {key}:"
                yield from (f"    {json.dumps(one)}" for one in value)
            else:
                yield f"  {key}: {json.dumps(value)}"


def describe(reference: str) -> dict[str, Any]:
    """Return details of a policy, and of its folder, as plain values.

    Raises:
        ConfigError: there is no such folder or version.
        PolicyError: the policy does not pass its checks.
    """
    from focalroute.learn.trial import read_trial
    from focalroute.policy import bundle
    from focalroute.policy.references import SHIPPED, parse_reference
    from focalroute.policy.sequential import load_served

    kept: dict[str, Any] = {}
    if reference == SHIPPED:
        policy: Policy | Der = bundle.cold()
    else:
        folder, wanted = parse_reference(reference)
        policy = load_served(folder, wanted)
        serves, challenger = bundle.current(folder), bundle.challenger(folder)
        kept = {"folder": str(folder), "versions": list(bundle.versions(folder)), "current": serves}
        kept |= {"challenger": challenger, "record": list(read_trial(folder, serves, challenger).record)}
    shown = ("version", "parent", "created_at", "hyperparameters", "metrics")
    return {**kept, **{name: getattr(policy, name) for name in shown}, "names": list(policy.names)}


@policies.command("rollback")
def roll_back(
    folder: Annotated[str, typer.Argument(help="Folder of policy bundles, or the redis:// address of a fleet.")],
    version: Annotated[int | None, typer.Argument(help="The version; default: the parent of the current one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make an earlier version serve again; processes that serve it, or the whole fleet, notice within a second."""
    from focalroute.learn.fleet import rollback_fleet_command
    from focalroute.store import is_redis

    if is_redis(folder):
        rollback_fleet_command(folder, version, as_json=as_json)
        return
    path = Path(folder)
    serving = roll_back_folder(path, version)
    if as_json:
        print(json.dumps({"folder": str(path), "version": serving}, indent=2))
    else:
        print(f"{path}: version {serving} serves now")


def roll_back_folder(folder: Path, version: int | None) -> int:
    """Make a version of a folder serve again and return it; None: the parent of the current version.

    Raises:
        ConfigError: there is no such folder or version, or no version to go back to.
        PolicyError: the policy does not pass its checks; the current one stays.
    """
    from focalroute.policy.bundle import versions
    from focalroute.policy.publish import make_current
    from focalroute.policy.references import check_folder
    from focalroute.policy.sequential import load_served

    check_folder(folder, version)
    if version is None:
        try:
            current = load_served(folder)
        except PolicyError as error:
            found, kept = str(error).partition("; ")[0], ", ".join(map(str, versions(folder)))
            raise PolicyError(f"{found}; name the version to go back to: {kept}") from None
        version = current.parent
        if not version:
            raise ConfigError(
                f"{folder}: version {current.version} has no parent in this folder; name a version to go back to, or "
                "serve without a policy folder"
            )
        check_folder(folder, version)
    return make_current(folder, version)
