"""`magistrate judges`: who can judge; look at one, begin one of your own, try it."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.options import as_data, console, json_option, model_options, print_json
from magistrate.cli.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table

    from magistrate.datasets import Dataset
    from magistrate.engines.base import Engine
    from magistrate.types import Sample

EXAMPLE = "Example: magistrate judges; magistrate run quickstart --judge faithfulness:prior=empty_context"
QUICKSTART = "quickstart"


@click.group(invoke_without_command=True, epilog=EXAMPLE)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the judges that are installed. Options are set as NAME:option=value,option=value.

    A judge of your own is a YAML file: `new` writes one, `try` runs it on one sample. Wherever a judge is
    named, its file can be.
    """
    if context.invoked_subcommand is None:
        _list(as_json)


# --- list and show ------------------------------------------------------------------------------


@command.command("list", epilog="Example: magistrate judges list --json")
@json_option
def list_judges(as_json: bool) -> None:
    """List the judges that are installed. Options are shown as they are unless set."""
    _list(as_json)


def _list(as_json: bool) -> None:
    from magistrate.resolve import judge_entries

    described = [_listed(name) for name in judge_entries()]
    if as_json:
        print_json(described)
        return
    print_table(
        ["judge", "what it does", "inputs", "needs", "options"],
        [_row(each) for each in described],
        wrapped={"what it does": 24, "inputs": 12, "needs": 12, "options": 20},
        spare=("needs", "inputs"),
    )


def _listed(name: str) -> dict[str, Any]:
    """The facts of an installed judge; why there are none where its package is broken."""
    from magistrate import resolve

    try:
        return {**facts(resolve.judge(name)), "name": name}
    except Exception as error:  # a package of somebody else may raise anything
        return {"name": name, "error": f"{type(error).__name__}: {error}"}


def _row(each: Mapping[str, Any]) -> list[str]:
    if "error" in each:
        return [each["name"], f"cannot be used: {each['error']}", "", "", ""]
    options = " ".join(_option(name, value) for name, value in each["options"].items())
    name = f"{each['name']}@{each['version']}"
    return [name, each["summary"], _inputs(each), ", ".join(each["needs"]), options]


@command.command(
    epilog="Example: magistrate judges show faithfulness; magistrate judges show tone.yaml --json"
)
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show what the judge NAME says, reads and needs, and how it is set.

    NAME is one of `magistrate judges`, perhaps with options, or a YAML file.
    """
    from rich.text import Text

    from magistrate import resolve
    from magistrate.report.plain import plain

    judge = resolve.judge(name)
    described = facts(judge)
    if as_json:
        print_json(described)
        return
    terminal = console()
    head = f"{plain(described['name'])}@{described['version']}"
    terminal.print(Text.assemble((head, "bold cyan"), f"  {plain(described['summary'])}"))
    terminal.print()
    terminal.print(_grid(_shown(judge, described)))


def facts(judge: Any) -> dict[str, Any]:
    """All that a judge says of itself, as plain values."""
    info = judge.info
    return {
        **getattr(judge, "describe", info.describe)(),
        "summary": info.summary,
        "reads": list(info.reads),
        "requires": list(info.requires),
        "needs": sorted(info.needs),
        "long": info.long,
        "options": options(judge),
        "prompt": info.prompt,
        "constraint": info.constraint,
    }


def options(judge: Any) -> dict[str, Any]:
    """A judge's options as they are, each as one writes it; None where it has no value."""
    from magistrate.resolve import settable, spell

    fields = settable(judge) if dataclasses.is_dataclass(judge) else []
    values = {field.name: getattr(judge, field.name) for field in fields}
    return {
        name: value if value is None or isinstance(value, bool | int | float | str) else spell(value)
        for name, value in values.items()
    }


def _option(name: str, value: Any) -> str:
    from magistrate.resolve import spell

    return name if value is None else f"{name}={spell(value)}"


def _inputs(described: Mapping[str, Any]) -> str:
    needed = described["requires"]
    return ", ".join(name if name in needed else f"{name}?" for name in described["reads"])


def _shown(judge: Any, described: Mapping[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    asks = _asks(judge)
    yield "kind", "a model decides" if described["kind"] == "llm" else "code decides, without a model"
    good = "low" if described["direction"] == "minimize" else "high"
    yield "direction", f"{described['direction']}: a {good} score is good"
    if asks.labels:
        yield "labels", _labels(asks.labels)
    else:
        yield "labels", ", ".join(described["labels"])
    if asks.rule:
        yield "rule", asks.rule
    if asks.categories:
        yield "categories", ", ".join(asks.categories)
    optional = set(described["reads"]) - set(described["requires"])
    yield "inputs", _inputs(described) + ("   (? may be missing)" if optional else "")
    yield "needs", ", ".join(described["needs"]) or "nothing"
    refuse = "refuse: a sample that does not fit the model is not judged"
    yield "long", refuse if described["long"] == "refuse" else described["long"]
    yield "options", "  ".join(_option(*each) for each in described["options"].items()) or "none"
    yield "prompt", described["prompt"] or "none"
    yield "constraint", described["constraint"] or "none"


@dataclasses.dataclass(frozen=True)
class Asks:
    """What a judge lets its model answer, as far as it is known before there is a sample.

    `labels` may be chosen, by the words that count as each; a text is written under `schema`; `rule` says how
    a written object becomes a label.
    """

    labels: Sequence[Mapping[str, Any]] = ()
    categories: Sequence[str] = ()
    schema: Mapping[str, Any] | None = None
    rule: str = ""


def _asks(judge: Any) -> Asks:
    from magistrate.judges.classify import Classify
    from magistrate.judges.grade import Grade
    from magistrate.judges.question import Answers

    inner = judge
    while hasattr(inner, "of"):
        inner = inner.of
    shape = inner.form.constraint if isinstance(inner, Grade) else getattr(inner, "constraint", None)
    schema = shape.schema if shape is not None and shape.digest == judge.info.constraint else None
    if isinstance(inner, Grade):
        form, (low, high) = inner.form, inner.form.scale
        rule = f"{form.label} from {form.score} {form.at_least:g} on, on a scale of {low:g} to {high:g}"
        return Asks(schema=schema, rule=f"{rule}; else {form.otherwise}")
    if not isinstance(inner, Classify):
        return Asks(schema=schema)
    labels = []
    for label, option in zip(inner.criterion.labels, Answers(inner.criterion.labels).options, strict=True):
        words = list(dict.fromkeys(word.strip() for word in option.surfaces))
        known = {"label": label.name, "score": label.score, "answers": words, "means": label.description}
        labels.append(known)
    return Asks(labels, [name for name, _ in inner.criterion.categories], schema)


# --- new and try --------------------------------------------------------------------------------


@command.command(epilog="Example: magistrate judges new tone; magistrate judges try tone.yaml")
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(["labels", "schema"]),
    default="labels",
    show_default=True,
    help="What the model does: choose one of several labels, or fill in an object of a JSON Schema.",
)
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    default=".",
    help="Where NAME.yaml is written (default: here).",
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@json_option
def new(name: str, kind: str, folder: Path, force: bool, as_json: bool) -> None:
    """Write NAME.yaml, a judge that works as it is. Every key of it is explained, to make your own of."""
    from importlib.resources import files

    from magistrate.errors import SpecError
    from magistrate.judges.definitions import NAME
    from magistrate.report.plain import plain

    if not NAME.fullmatch(name):
        raise SpecError(
            "a judge's name is a letter, then letters, digits, - and _, 64 at most, without an ending; "
            f"got {name!r:.80}"
        )
    template = files("magistrate.judges") / "templates" / f"{kind}.yaml"
    path = folder / f"{name}.yaml"
    _write(path, template.read_text(encoding="utf-8").replace("JUDGE_NAME", name), replace=force)
    following = f"magistrate judges try {shlex.quote(str(path))}"
    if as_json:
        print_json({"path": str(path), "kind": kind, "next": following})
    else:
        click.echo(f"wrote {plain(str(path))}\ntry it: {plain(following)}")


def _write(path: Path, text: str, *, replace: bool) -> None:
    """Make a file; a link of that name is never followed, so nothing is written elsewhere."""
    from magistrate.errors import SpecError

    try:
        if replace:
            path.unlink(missing_ok=True)
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise SpecError(f"{path} is there already; use --force to replace it") from None
    except FileNotFoundError:
        raise SpecError(f"cannot write {path}: there is no folder {path.parent}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecError(f"cannot write {path}: {reason}") from None


@command.command(
    "try",
    epilog="Example: magistrate judges try tone.yaml; magistrate judges try relevance --sample qa.jsonl",
)
@click.argument("name")
@click.option(
    "--sample",
    "source",
    metavar="FILE",
    default=QUICKSTART,
    help="Samples (.jsonl, .json, .csv), of which the first is judged (default: the built-in quickstart).",
)
@model_options
@json_option
def try_judge(
    name: str, source: str, model: str | None, device: str | None, threads: int | None, as_json: bool
) -> int:
    """Run the judge NAME on one sample and show it all. Prompts, what may be answered, what was answered.

    NAME is a YAML file or one of `magistrate judges`, perhaps with options. An abstention says why; exits
    with 3 if no judgement could be made.
    """
    from magistrate import judging, resolve
    from magistrate.cli import DONE, ENGINE_GONE
    from magistrate.datasets import load
    from magistrate.report.progress import waiting
    from magistrate.report.terminal import print_outcome
    from magistrate.types import Failure

    judge = resolve.judge(name)
    dataset = load(source, need_output=False)
    sample = _first(dataset)
    engine = resolve.engine(model, device=device, threads=threads)
    with waiting(engine, console(error=True)):
        outcome = judging.judge_sample(sample, judge=judge, model=engine)
    if as_json:
        asked = dataclasses.asdict(_asks(judge))
        given = dataclasses.asdict(sample)
        judged = as_data(outcome, steps=True)
        print_json({"judge": facts(judge), "asks": asked, "sample": given, "outcome": judged})
    else:
        terminal = console()
        _print_tried(judge, sample, dataset.name, engine, terminal)
        print_outcome(outcome, sample, terminal, steps=True)
    return ENGINE_GONE if isinstance(outcome, Failure) else DONE


def _first(dataset: Dataset) -> Sample:
    """The first sample that can be read; rows before it that cannot are told on standard error."""
    from magistrate.report.plain import plain

    sample = next(iter(dataset))
    if dataset.problems:
        rows = f"{len(dataset.problems)} before it" if len(dataset.problems) > 1 else "one before it"
        click.echo(f"left out {rows} that cannot be read; {plain(str(dataset.problems[0]))}", err=True)
    return sample


def _print_tried(judge: Any, sample: Sample, dataset: str, engine: Engine, terminal: Console) -> None:
    """Who judges what, and what may be answered."""
    import json

    from rich.padding import Padding
    from rich.text import Text

    from magistrate.judges.base import FIELDS
    from magistrate.judges.considering import present
    from magistrate.report.plain import plain

    info, asks = judge.info, _asks(judge)
    has = [name for name in FIELDS if present(sample, name, (name,))]
    has += [f"metadata.{name}" for name in sample.metadata]
    what = f"{sample.id} of {dataset}, with {', '.join(has) or 'nothing'}"
    rows = [("judge", f"{info.name}@{info.version}"), ("model", engine.info.model), ("sample", what)]
    terminal.print(_grid(rows))
    parts: list[tuple[str, RenderableType]] = []
    if asks.labels:
        parts.append(("answers", _labels(asks.labels)))
    if asks.schema is not None:
        written = json.dumps(asks.schema, ensure_ascii=False, indent=2)
        parts.append(("constraint of what is written", Text(plain(written))))
    elif not asks.labels:
        parts.append(("constraint", "made from the texts of each sample"))
    if asks.rule:
        parts.append(("rule", Text(plain(asks.rule))))
    for title, part in parts:
        terminal.print()
        terminal.print(Text(title, style="dim"))
        terminal.print(Padding(part, (0, 0, 0, 2), expand=False))
    terminal.print()


def _grid(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names and, beside them, what they stand for."""
    from rich.table import Table
    from rich.text import Text

    from magistrate.report.plain import plain

    grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, Text(plain(value)) if isinstance(value, str) else value)
    return grid


def _labels(labels: Sequence[Mapping[str, Any]]) -> Table:
    """A label a row: its score, the words that count as its answer, what it means."""
    from rich.table import Table
    from rich.text import Text

    from magistrate.report.plain import plain

    grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    columns = 3 + any(each["means"] for each in labels)
    for each in labels:
        words = f"answered by {' '.join(each['answers'])}"
        cells = [each["label"], f"score {each['score']:g}", words, each["means"]]
        grid.add_row(*(Text(plain(cell)) for cell in cells[:columns]))
    return grid
