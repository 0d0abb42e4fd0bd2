"""`magistrate judges`: who can judge, and how each can be set."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from magistrate.cli.options import json_option, print_json, print_table

EXAMPLE = "Example: magistrate judges; magistrate run quickstart --judge faithfulness:prior=empty_context"


@click.group(invoke_without_command=True, epilog=EXAMPLE)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the judges that are installed. Options are set as NAME:option=value,option=value."""
    if context.invoked_subcommand is not None:
        return
    described = [_describe(name) for name in _names()]
    if as_json:
        print_json(described)
        return
    print_table(
        ["judge", "what it does", "needs of the engine", "options"],
        [
            [
                f"{each['name']}@{each['version']}",
                each["summary"],
                ", ".join(each["needs"]),
                " ".join(f"{key}={value}" for key, value in each["options"].items()),
            ]
            for each in described
        ],
    )


def _names() -> list[str]:
    from magistrate.resolve import judge_entries

    return list(judge_entries())


def _describe(name: str) -> dict[str, Any]:
    from magistrate import resolve

    judge: Any = resolve.judge(name)
    info = judge.info
    options = {field.name: field.default for field in dataclasses.fields(judge) if field.name != "name"}
    return {
        "name": info.name,
        "version": info.version,
        "summary": info.summary,
        "labels": list(info.labels),
        "direction": info.direction,
        "reads": list(info.reads),
        "needs": sorted(info.needs),
        "options": options,
        "prompt": info.prompt,
        "constraint": info.constraint,
    }
