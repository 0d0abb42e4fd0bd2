"""`magistrate init`: look at a data file, and write a run file and a CI workflow for it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magistrate._text import counted
from magistrate.cli.options import json_option, reading_options
from magistrate.cli.output import print_json, write_file
from magistrate.datasets.fields import plain as printable
from magistrate.report.formatting import plain, tally

if TYPE_CHECKING:
    from magistrate.runs.spec import RunSpec

RUN_FILE = "magistrate.yaml"
WORKFLOW = ".github/workflows/magistrate.yml"
GATE = "coverage>=0.98"
LOOKED_AT = 200  # rows
LONGEST = 400  # characters of a command in a comment
SHOWN = 12  # columns named in a message


@dataclass(frozen=True, slots=True)
class Findings:
    """What a data file holds: the columns of its fields, what its labels mean, and counts.

    `mapping` and `labels` are what a run must be told; `columns` also has what is found without that.
    `maybe_label` is an unused column whose values look like labels.
    """

    source: str
    columns: Mapping[str, str]
    maybe_label: str | None
    mapping: Mapping[str, str]
    labels: Mapping[str, str]
    max_unread: float
    n: int
    gold: Mapping[str, int]


@click.command(
    "init",
    short_help="Write a run file and a CI workflow for DATA, your answers.",
    epilog="Example: magistrate init answers.csv; magistrate init a.csv --map output=reply",
)
@click.argument("data", required=False)
@reading_options
@click.option("--ci/--no-ci", default=True, help=f"Also write {WORKFLOW} (the default).")
@click.option("--force", is_flag=True, help="Replace the files if they are there.")
@json_option
def command(
    data: str | None,
    mapping: tuple[tuple[str, str], ...],
    labels: dict[str, str],
    max_unread: float,
    ci: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Look at DATA, a file of samples, and write magistrate.yaml, a run file for it, and a CI workflow.

    Without DATA, the only data file of this folder is taken. At a terminal you are asked what is not clear;
    elsewhere the message names the option that says it.
    """
    from magistrate.errors import SpecError

    if not force and (there := [each for each in (RUN_FILE, WORKFLOW)[: 1 + ci] if Path(each).exists()]):
        raise SpecError(f"{' and '.join(there)}: there already; use --force to replace")
    found = _look(data or _only_file(), dict(mapping), labels, max_unread)
    _write_files(found, ci=ci, force=force)
    written = [RUN_FILE, WORKFLOW][: 1 + ci]
    following = [f"magistrate run --spec {RUN_FILE}"]
    if not found.gold:
        following.append(f"magistrate label {_words(found)}")
    if as_json:
        values = {"columns": dict(found.columns), "labels": dict(found.labels), "gold": dict(found.gold)}
        print_json({"data": found.source, "samples": found.n, **values, "wrote": written, "next": following})
        return
    for line in (
        *_told(found),
        *(f"wrote {each}" for each in written),
        *(f"next: {each}" for each in following),
    ):
        click.echo(line)


def _only_file() -> str:
    """Return the only data file of this folder. Raises `SpecError` if there is none, or more than one."""
    from magistrate.datasets.files import format_of
    from magistrate.errors import SpecError

    here = sorted(each.name for each in Path().iterdir() if each.is_file() and format_of(each))
    if len(here) == 1:
        return here[0]
    told = f"; here are {', '.join(map(plain, here[:8]))}" if here else "; there is none in this folder"
    raise SpecError(f"name your data file, a .csv, .jsonl or .json: magistrate init FILE{told}")


# --- looking --------------------------------------------------------------------------------------


def _look(source: str, mapping: dict[str, str], labels: dict[str, str], max_unread: float) -> Findings:
    """Read the file once to the end, after asking for what its columns do not say by themselves."""
    from magistrate.datasets.dataset import load
    from magistrate.datasets.fields import field_of
    from magistrate.datasets.files import open_file
    from magistrate.datasets.rows import Row

    rows = [row.values for row in islice(open_file(source).rows(), LOOKED_AT) if isinstance(row, Row)]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    known = {field: column for column in reversed(columns) if (field := field_of(column)) is not None}
    if rows and not {"output", "messages"} & {*known, *mapping}:
        mapping["output"] = _column("output", "the text to judge", columns, [])
    labels |= _meanings(rows, known | mapping, labels)
    if rows and not {"context", "messages"} & {*known, *mapping}:
        likely = _like_context(source, mapping, labels)
        mapping["context"] = _column("context", "the text to be faithful to", columns, likely)
    used = known | mapping
    maybe = None if _label_field(used) else _like_label(rows, used)
    if maybe is not None and _agreed(maybe):
        mapping["label"] = used["label"] = maybe
        labels |= _meanings(rows, used, labels)
        maybe = None
    dataset = load(source, mapping=mapping, labels=labels, max_unread=max_unread)
    gold: Counter[str] = Counter()
    n = 0
    for sample in dataset:
        n += 1
        if sample.label is not None:
            gold[sample.label] += 1
    return Findings(source, used, maybe, mapping, labels, max_unread, n, dict(gold))


def _like_context(source: str, mapping: Mapping[str, str], labels: Mapping[str, str]) -> Sequence[str]:
    from magistrate.datasets.dataset import load
    from magistrate.datasets.fields import like_context

    return like_context(islice(load(source, mapping=mapping, labels=labels, need_output=False), LOOKED_AT))


def _meanings(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], labels: Mapping[str, str]
) -> dict[str, str]:
    """Ask what unknown values of the label column mean. With nobody to ask, reading the file explains it."""
    from magistrate.cli.run import somebody_is_there
    from magistrate.datasets.fields import MEANINGS, UnknownLabel, check_labels, label_of

    field = _label_field(columns)
    if field is None or not somebody_is_there():
        return {}
    said: dict[str, str] = {}
    given = (row.get(columns[field]) for row in rows)
    for value in dict.fromkeys(str(each) for each in given if each is not None):  # 0 and false are values
        try:
            label_of(field, value, check_labels({**labels, **said}))
        except UnknownLabel:
            asked = f"What does {plain(repr(value))} in column {plain(columns[field])} mean?"
            said[value] = click.prompt(asked, type=click.Choice(MEANINGS), err=True)
    return said


def _label_field(columns: Mapping[str, str]) -> str | None:
    return next((each for each in ("label", "hallucination", "faithful") if each in columns), None)


def _like_label(rows: Sequence[Mapping[str, Any]], used: Mapping[str, str]) -> str | None:
    """Return an unused column of which every value is a word that labels use, and not always the same."""
    from magistrate.datasets.fields import LABELS, TRUTH, label_word

    for column in dict.fromkeys(column for row in rows for column in row):
        words = {label_word(row[column]) for row in rows if row.get(column) not in (None, "")}
        if column not in used.values() and len(words) > 1 and words <= LABELS.keys() | TRUTH.keys():
            return column
    return None


def _agreed(column: str) -> bool:
    """Ask whether a column holds the labels; no if there is nobody to ask."""
    from magistrate.cli.run import somebody_is_there

    return somebody_is_there() and click.confirm(
        f"Does column {plain(column)!r} say whether the output is faithful?", default=True, err=True
    )


def _column(field: str, what: str, columns: Sequence[str], likely: Sequence[str]) -> str:
    """Ask which column is a field. Raises `SpecError` that names the option if there is nobody to ask."""
    from magistrate.cli.run import somebody_is_there
    from magistrate.errors import SpecError

    listed = ", ".join(map(plain, columns[:SHOWN])) + (", …" if len(columns) > SHOWN else "")
    if not somebody_is_there():
        hint = plain(likely[0]) if likely else "COLUMN"
        raise SpecError(
            f"no column is known to be the {field}, {what}; columns: {listed}; "
            f"say which with --map {field}={hint}"
        )
    asked = f"Which column is the {field}, {what}? ({listed})"
    choice = click.Choice([*columns, *(each for each in likely if each not in columns)])
    default = likely[0] if likely else None
    return str(click.prompt(asked, type=choice, default=default, show_choices=False, err=True))


# --- writing --------------------------------------------------------------------------------------


def _write_files(found: Findings, *, ci: bool, force: bool) -> None:
    """Write the run file, and the workflow beside it."""
    write_file(Path(RUN_FILE), _run_file(found), replace=force)
    if ci:
        Path(WORKFLOW).parent.mkdir(parents=True, exist_ok=True)
        text = (files("magistrate.cli") / "workflow.yml").read_text(encoding="utf-8")
        write_file(Path(WORKFLOW), text, replace=force)


def _run_file(found: Findings) -> str:
    """Return the text of the run file: a hint on labels, the specification, and gates to choose."""
    if found.gold:
        hint = [
            f"# Labels: {tally(found.gold)}, of {counted(found.n, 'sample')}.",
            "# Once a run has shown what the judge reaches, hold it under `gates`, such as:",
            "# - lower(balanced_accuracy)>=0.6",
        ]
    else:
        hint = [
            "# Labels: none, so that nobody can tell how good the judge is on this data. Label some samples:",
            f"#   magistrate label {_words(found)}",
            "# or add a column `label` with the values faithful and hallucinated. Without labels you can",
            "# hold, under `gates`, how much the judge flags:",
            "# - flagged<=0.1",
        ]
    from magistrate._yaml import editor_line

    head = [f"# Written by `magistrate init`. Run it: magistrate run --spec {RUN_FILE}", *hint]
    return editor_line("run", Path()) + "\n".join(head) + "\n" + _spec(found).yaml()


def _spec(found: Findings) -> RunSpec:
    from magistrate.datasets.rows import MAX_UNREAD
    from magistrate.judges.registry import DEFAULT_JUDGE
    from magistrate.runs.spec import spec_from

    dataset: dict[str, Any] = {
        "source": found.source,
        "map": dict(found.mapping),
        "labels": dict(found.labels),
    }
    if found.max_unread != MAX_UNREAD:
        dataset["max_unread"] = found.max_unread
    return spec_from({"dataset": dataset, "judges": [DEFAULT_JUDGE], "gates": [GATE]})


def _words(found: Findings) -> str:
    """Return the file and its options as words of a command line."""
    words = [found.source]
    for field, column in found.mapping.items():
        words += ["--map", f"{field}={column}"]
    return printable(shlex.join(words), LONGEST)  # on one line, as in a comment


def _told(found: Findings) -> Iterator[str]:
    """Yield lines that say how the file is read."""
    fields = ("input", "output", "context", "messages", "label", "hallucination", "faithful")
    read = [f"{field} from {found.columns[field]!r}" for field in fields if field in found.columns]
    labels = tally(found.gold) or "no labels"
    yield plain(f"{found.source}: {counted(found.n, 'sample')}, {labels}; {', '.join(read)}")
    if found.maybe_label is not None:
        yield plain(
            f"column {found.maybe_label!r} looks like labels; to use it: --map label={found.maybe_label}"
        )
