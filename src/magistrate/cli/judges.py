"""`magistrate judges`: who can judge, and how each can be set."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from magistrate.cli.options import json_option, print_json
from magistrate.cli.tables import print_table

EXAMPLE = "Example: magistrate judges; magistrate run quickstart --judge faithfulness:prior=empty_context"


@click.command(epilog=EXAMPLE)
@json_option
def command(as_json: bool) -> None:
    """List the judges that are installed. Options are set as NAME:option=value,option=value."""
    from magistrate.resolve import judge_entries

    described = [_describe(name) for name in judge_entries()]
    if as_json:
        print_json(described)
        return
    print_table(
        ["judge", "what it does", "needs", "options"],
        [
            [
                f"{each['name']}@{each['version']}",
                each["summary"],
                ", ".join(each["needs"]),
                " ".join(f"{key}={value}" for key, value in each["options"].items()),
            ]
            for each in described
        ],
        wrapped={"what it does": 24, "needs": 12, "options": 20},
        spare=("needs",),
    )


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
