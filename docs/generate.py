"""Writes what can be taken from the code: commands.md, schemas of YAML files, marked parts of other pages.

`python docs/generate.py` brings the files up to date, `--check` only says which are not (exit status 1).
A marked part stands between the lines `<!-- begin: NAME -->` and `<!-- end: NAME -->`.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import click

from magistrate import cli
from magistrate._yaml import SCHEMAS, schema_path
from magistrate.datasets.fields import ALIASES, LABELS, POLARITY, TRUTH
from magistrate.datasets.named import NamedSet, catalogue
from magistrate.engines.base import Capability
from magistrate.engines.registry import KINDS, SHORTHANDS
from magistrate.judges import definitions, geval, registry
from magistrate.report.judges import cost, worth
from magistrate.runs import spec as specs
from magistrate.training.detector import recipe
from magistrate.types import FAITHFUL, HALLUCINATED
from magistrate.watch import rules

ROOT = Path(__file__).resolve().parent.parent
POLES = (FAITHFUL, HALLUCINATED)


def pages() -> dict[Path, str]:
    """The text that every page with generated parts should have."""
    written = {ROOT / "docs" / "commands.md": commands_page(), **schema_files()}
    for name in ("docs/index.md", "docs/judges.md", "docs/data.md", "docs/engines.md"):
        path = ROOT / name
        written[path] = with_parts(path.read_text(encoding="utf-8"))
    return written


def schema_files() -> dict[Path, str]:
    """The JSON Schemas of YAML files, which the package ships."""
    modules = {"run": specs, "rules": rules, "judge": definitions, "steps": geval, "recipe": recipe}
    assert modules.keys() == SCHEMAS.keys()
    return {
        schema_path(name): json.dumps(module.schema(), indent=2, ensure_ascii=False) + "\n"
        for name, module in modules.items()
    }


def with_parts(text: str) -> str:
    """`text` with every marked part written anew. Raises KeyError for a name that has no writer."""

    def part(match: re.Match[str]) -> str:
        return f"{match[1]}\n{PARTS[match['name']]()}\n{match[3]}"

    marked = r"(<!-- begin: (?P<name>\w+) -->)\n.*?(<!-- end: (?P=name) -->)"
    return re.sub(marked, part, text, flags=re.DOTALL)


# --- the commands --------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command and subcommand with its full name, in the order of `magistrate --help`."""
    yield from _below(cli.command, click.Context(cli.command, info_name="magistrate"))


def _below(
    command: click.Command, context: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        inner = click.Context(child, info_name=name, parent=context)
        yield inner.command_path, child, inner
        yield from _below(child, inner)


def commands_page() -> str:
    """docs/commands.md."""
    sections = [_section(*each) for each in commands()]
    codes = inspect.getdoc(cli.main) or ""
    codes = " ".join(codes.partition("\n\n")[2].split())
    return (
        "# Commands\n\n"
        "This page is written by `make docs` from the commands themselves; `--help` says the same.\n\n"
        f"Exit codes: {codes}\n\n" + "\n".join(sections)
    )


def _section(name: str, command: click.Command, context: click.Context) -> str:
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    options = [
        record
        for parameter in command.params
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context))
    ]
    lines = [f"{'#' * (name.count(' ') + 1)} {name}", "", inspect.cleandoc(command.help or ""), ""]
    lines += ["```text", usage, "```", ""]
    lines += [f"- `{flags}`: {_one_line(text)}" for flags, text in options] + [""] * bool(options)
    lines += ["```console", *(f"$ {line}" for line in examples(command)), "```", ""]
    return "\n".join(lines)


def examples(command: click.Command) -> list[str]:
    """The command lines of a command's epilog."""
    text = _one_line((command.epilog or "").removeprefix("Example:"))
    return re.split(r";\s+(?=magistrate )", text) if text else []


def _one_line(text: str) -> str:
    return " ".join(text.split())


def commands_part() -> str:
    """The commands that stand right under `magistrate`, one a row."""
    rows = []
    for name, command, _ in commands():
        if name.count(" ") == 1:
            anchor = name.replace(" ", "-")
            first = re.split(r"(?<=\.)\s", _one_line(command.help or ""))[0]
            rows.append([f"[`{name}`](commands.md#{anchor})", first])
    return table(["command", "what it does"], rows)


# --- judges and data -----------------------------------------------------------------------------


def judges_part() -> str:
    """The judges of this package with their options and defaults, their cost and their measured worth."""
    rows = []
    for name, entry in registry.judge_entries().items():
        if entry.module.startswith("magistrate."):
            judge: Any = registry.judge(name)
            set_to = [(field.name, getattr(judge, field.name)) for field in registry.settable(judge)]
            words = [
                option if value is None else f"{option}={registry.spell(value)}" for option, value in set_to
            ]
            told = [cost(judge) or "–", worth(judge) or "–"]
            rows.append([f"`{name}`", judge.info.summary, codes(words), *told])
    return table(["judge", "how it decides", "options and their defaults", "cost", "worth"], rows)


def fields_part() -> str:
    """The column names that are understood."""
    rows = [[f"`{field}`", codes(aliases)] for field, aliases in ALIASES.items()]
    return table(["field", "column names that mean it"], rows)


def labels_part() -> str:
    """The words that a label column may use."""
    words = {label: codes(word for word, says in LABELS.items() if says == label) for label in POLES}
    rows = [["`label`", words[FAITHFUL], words[HALLUCINATED]]]
    for field, (yes, _) in POLARITY.items():
        faithful, hallucinated = (
            codes(word for word, says in TRUTH.items() if says == (yes == label)) for label in POLES
        )
        rows.append([f"`{field}`", faithful, hallucinated])
    return table(["field", "means faithful", "means hallucinated"], rows)


def sets_part() -> str:
    """The named sets with their views."""
    rows = [row for known in catalogue().values() for row in _views(known)]
    return table(["name", "rows", "file in `MAGISTRATE_DATA_DIR`", "download", "licence"], rows)


def _views(known: NamedSet) -> Iterator[list[str]]:
    if known.packaged:
        yield [f"`{known.name}`", _packaged_rows(known), "in the package", "", known.licence]
    pin = f"{known.repository} at `{known.revision[:12]}`"
    for view in known.views:
        rows = f"{view.rows:,}" if view.rows else "?"
        local = f"`{view.local}`" if view.local else ""
        yield [f"`{known.name}:{view.name}`", rows, local, pin if view.upstream else "", known.licence]


def _packaged_rows(known: NamedSet) -> str:
    from magistrate.datasets import load

    return f"{sum(1 for _ in load(known.name)):,}"


# --- engines -------------------------------------------------------------------------------------


def kinds_part() -> str:
    """The kinds of engines, and how one of each is asked."""
    rows = []
    for kind in KINDS:
        installed = f"`pip install 'magistrate[{kind.extra}]'`"
        rows.append([f"`{kind.word}:MODEL`" if kind.word else "a name, a file", kind.summary, installed])
        for short in SHORTHANDS:
            if short.kind == kind.word:
                told = f"{short.server} at `{short.base_url}`, unless `--base-url` says otherwise"
                rows.append([f"`{short.word}:MODEL`", told, installed])
    return table(["`--model`", "what it is", "installed by"], rows)


def capabilities_part() -> str:
    """What was seen of each engine that was recorded, and what the code declares of the others."""
    seen = recorded_engines().read()
    told = [(each["engine"], set(each["can"]), each["ways"]) for each in seen]
    unseen = [kind for kind in KINDS if kind.word and kind.word not in {each["kind"] for each in seen}]
    told += [(f"{kind.word} (declared)", set(kind.most), {}) for kind in unseen]
    rows = [
        [f"`{name}`", *("yes" if name in can else "no" for _, can, _ in told)]
        for name in get_args(Capability)
    ]
    ways = sorted({name for _, _, each in told for name in each})
    rows += [[f"how: {name}", *(each.get(name, "") for _, _, each in told)] for name in ways]
    return table(["", *(name for name, _, _ in told)], rows)


def agreement_part() -> str:
    """The same samples judged over every engine that was recorded."""
    recorded = recorded_engines()
    return table(*recorded.agreement(recorded.read()))


def recorded_engines() -> Any:
    """benchmarks/engines.py as a module."""
    spec = importlib.util.spec_from_file_location("engines", ROOT / "benchmarks" / "engines.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def codes(words: Iterable[str]) -> str:
    """Words as code, with commas between."""
    return ", ".join(f"`{word}`" for word in words)


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


PARTS: dict[str, Callable[[], str]] = {
    "commands": commands_part,
    "judges": judges_part,
    "fields": fields_part,
    "labels": labels_part,
    "sets": sets_part,
    "kinds": kinds_part,
    "capabilities": capabilities_part,
    "engine_agreement": agreement_part,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` name those that are out of date."""
    stale = [
        path
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        name = path.relative_to(ROOT)
        if "--check" in arguments:
            print(f"{name} is out of date; run: make docs")
        else:
            path.write_text(pages()[path], encoding="utf-8")
            print(f"wrote {name}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    with TemporaryDirectory() as nothing:  # what is on this machine changes no page
        os.environ["MAGISTRATE_HOME"] = nothing
        sys.exit(main(sys.argv[1:]))
