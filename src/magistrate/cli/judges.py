"""`magistrate judges`: list the installed judges, show one, write a new one and try it."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magistrate._text import decimal, signed
from magistrate.cli.completion import JUDGES
from magistrate.cli.options import OneOrCommand, json_option, model_options, tell_unasked
from magistrate.cli.output import PIPED, console, is_pipe, print_json, print_table, write_file
from magistrate.report.export import outcome_data
from magistrate.report.judges import asks_of, facts, inputs_of, listed, milliseconds, option_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table

    from magistrate.datasets import Dataset
    from magistrate.engines.base import Engine, EngineSettings
    from magistrate.judges.quality import Compared, Figure, Measured
    from magistrate.types import Sample


EXAMPLE = "Example: magistrate judges; magistrate judges auto; magistrate run quickstart --judge novelty"
FIGURES = ("set", "model", "n", "AUROC [95 %]", "bal. acc. [95 %]", "ms")
READING = (
    "AUROC: mean over labelled sets that the judge was not trained on, n samples in total; .50 is guessing. "
    "Judges that we trained are measured by judges trained the same way without the set's family. Judges "
    "that ask a model were measured with the one that they ask if you name none. ms: median time per "
    "sample. –: not measured. Options and figures of each set: magistrate judges NAME."
)
COMPARED = ("judge", "set", "model", "n", "calls", "tokens", "right [95 %]", "difference [95 %]")
AS_MANY = (
    "right: balanced accuracy; of llmbar the share of pairs that are decided as people did. difference: to "
    "as many votes of one question (chainpoll) as fit into the same tokens. –: no interval, or not measured."
)
UNMEASURED = "Not measured: the package has no figures of how well it judges."
FOLDS = "For {n}, the figures are of judges trained like this one, without any set of that family."


@click.group(
    cls=OneOrCommand,
    invoke_without_command=True,
    short_help="List the judges with their measured quality; NAME shows one.",
    epilog=EXAMPLE,
)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the installed judges with their measured quality; NAME shows one.

    Set options as NAME:option=value,option=value. A judge of your own is a YAML file: `new` writes one,
    `try` runs it on one sample. You can give its file wherever a judge is named.
    """
    if context.invoked_subcommand is None:
        _list(as_json)
    elif as_json:  # `--json` before the name means the same as after it
        context.default_map = {context.invoked_subcommand: {"as_json": True}}


# --- list ---------------------------------------------------------------------------------------


@command.command("list", epilog="Example: magistrate judges list --json")
@json_option
def list_judges(as_json: bool) -> None:
    """List the installed judges, with the defaults of their options."""
    _list(as_json)


def _list(as_json: bool) -> None:
    from rich.text import Text

    from magistrate.judges.registry import DEFAULT_JUDGE, judge, judge_entries

    names = sorted(judge_entries(), key=lambda name: (name != DEFAULT_JUDGE, name))
    described = [listed(name, judge) for name in names]
    if as_json:
        print_json(described)
        return
    print_table(
        ["judge", "AUROC", "n", "ms", "what it does", "inputs", "needs", "options"],
        [_row(each) for each in described],
        wrapped={"what it does": 28, "inputs": 13, "needs": 14, "options": 20},
        spare=("options", "needs", "inputs"),
        piped=PIPED,
    )
    if not is_pipe(terminal := console()):
        terminal.print(Text(READING, style="dim"))


def _row(each: Mapping[str, Any]) -> list[str]:
    from magistrate.engines.none import NO_MODEL
    from magistrate.judges.quality import Measured, summaries

    if "error" in each:
        return [each["name"], "", "", "", f"cannot be used: {each['error']}", "", "", ""]
    found = summaries([Measured(**one) for one in each["measured"]])
    of = next((one for one in found if one.model in (each["model"], NO_MODEL)), None)
    auroc, n, ms = ("–", "–", "–") if of is None else (decimal(of.auroc), str(of.n), milliseconds(of.ms))
    options = " ".join(option_words(name, value) for name, value in each["options"].items())
    name = f"{each['name']}@{each['version']}"
    return [name, auroc, n, ms, each["summary"], inputs_of(each), ", ".join(each["needs"]), options]


# --- show ---------------------------------------------------------------------------------------


@command.command(
    short_help="Show what the judge NAME returns, reads and needs.",
    epilog="Example: magistrate judges show faithfulness; magistrate judges show tone.yaml --json",
)
@click.argument("name", type=JUDGES)
@json_option
def show(name: str, as_json: bool) -> None:
    """Show what the judge NAME returns, reads and needs, its options, and its measured quality.

    NAME is one of `magistrate judges`, with options if you like, or a YAML file. You can leave out `show`.
    """
    from rich.text import Text

    from magistrate.judges import registry
    from magistrate.judges.quality import compared, measured
    from magistrate.report.formatting import plain

    judge = registry.judge(name)
    described = facts(judge)
    if as_json:
        print_json(described)
        return
    terminal = console()
    head = f"{plain(described['name'])}@{described['version']}"
    terminal.print(Text.assemble((head, "bold cyan"), f"  {plain(described['summary'])}"))
    terminal.print()
    terminal.print(_grid(_rows_of_judge(judge, described)))
    terminal.print()
    found, panels = measured(judge), compared(judge)
    if not found and not panels:
        terminal.print(Text(UNMEASURED, style="dim"))
    if found:
        print_table(FIGURES, _figures_of(found), spare=("bal. acc. [95 %]",))
    if stood := [each.set for each in found if each.folds]:
        terminal.print(Text(FOLDS.format(n=", ".join(dict.fromkeys(stood))), style="dim"))
    if panels:
        print_table(
            COMPARED, _comparisons_of(panels), wrapped={"judge": 14, "model": 11}, spare=("n", "tokens")
        )
        terminal.print(Text(AS_MANY, style="dim"))


# --- judges of your own -----------------------------------------------------------------------------


QUICKSTART = "quickstart"
PANELS = ("courtroom", "jury", "geval", "pairwise")


@command.command(epilog="Example: magistrate judges new tone; magistrate judges try tone.yaml")
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(["labels", "schema", *PANELS]),
    help="What the model does: choose one of several labels (the default), fill in an object of a JSON "
    "Schema, or what the judge of that name does (the default for a judge of that name).",
)
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    default=".",
    help="The folder for NAME.yaml (default: the current one).",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@json_option
def new(name: str, kind: str | None, folder: Path, force: bool, as_json: bool) -> None:
    """Write NAME.yaml, a working judge for you to adapt. Each of its keys is explained."""
    from importlib.resources import files

    from magistrate._yaml import editor_line
    from magistrate.errors import SpecError
    from magistrate.judges.definitions import NAME
    from magistrate.report.formatting import plain

    if not NAME.fullmatch(name):
        raise SpecError(
            "a judge's name starts with a letter, followed by letters, digits, - and _, at most 64 "
            f"characters, without a file extension; got {name!r:.80}"
        )
    kind = kind or (name if name in PANELS else "labels")
    template = files("magistrate.judges") / "templates" / f"{kind}.yaml"
    path = folder / f"{name}.yaml"
    text = template.read_text(encoding="utf-8").replace("JUDGE_NAME", name)
    write_file(path, editor_line("judge", folder) + text, replace=force)
    following = f"magistrate judges try {shlex.quote(str(path))}"
    if as_json:
        print_json({"path": str(path), "kind": kind, "next": following})
    else:
        click.echo(f"wrote {plain(str(path))}\ntry it: {plain(following)}")


@command.command(
    epilog="Example: magistrate judges steps tone.yaml --criteria 'Politeness: the reply is friendly.'; "
    "magistrate run answers.jsonl --judge geval:file=tone.yaml"
)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--criteria", required=True, help="What to grade, in one or two sentences.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@model_options
@json_option
def steps(
    file: Path, criteria: str, force: bool, model: str | None, settings: EngineSettings, as_json: bool
) -> None:
    """Let a model write the steps of the judge `geval` into FILE, once. Read them before you use them.

    They become part of the judge, and no run writes them again.
    """
    from magistrate import _async
    from magistrate.errors import SpecError
    from magistrate.judges import registry
    from magistrate.judges.geval import GEval, criteria_text, write_steps
    from magistrate.report.formatting import plain

    if file.suffix not in (".yaml", ".yml"):
        raise SpecError(f"FILE must end in .yaml or .yml; got {file}")
    if file.exists() and not force:
        raise SpecError(f"{file} already exists; use --force to replace it")
    criteria = GEval(criteria).criteria
    engine = registry.engine(model, settings)
    written = _async.run(write_steps(criteria, engine))
    write_file(file, criteria_text(criteria, written, engine.info.model), replace=force)
    if as_json:
        print_json({"path": str(file), "criteria": criteria, "steps": list(written)})
    else:
        click.echo("\n".join(f"{at}. {plain(step)}" for at, step in enumerate(written, 1)))
        click.echo(f"wrote {plain(str(file))}\nuse it: --judge geval:file={plain(str(file))}")


@command.command(
    "try",
    short_help="Run the judge NAME on one sample and show everything.",
    epilog="Example: magistrate judges try tone.yaml; magistrate judges try relevance --sample qa.jsonl",
)
@click.argument("name", type=JUDGES)
@click.option(
    "--sample",
    "source",
    metavar="FILE",
    default=QUICKSTART,
    help="A file of samples (.jsonl, .json, .csv); its first sample is judged (default: the built-in "
    "quickstart).",
)
@model_options
@json_option
@click.pass_context
def try_judge(
    context: click.Context,
    /,
    name: str,
    source: str,
    model: str | None,
    settings: EngineSettings,
    as_json: bool,
) -> int:
    """Run the judge NAME on one sample and show everything: prompts, possible answers, actual answers.

    NAME is a YAML file or one of `magistrate judges`, with options if you like. An abstention gives its
    reason. Exits with 3 if there is no verdict.
    """
    from magistrate.api import judge as judging
    from magistrate.cli.exit_codes import DONE, ENGINE_GONE
    from magistrate.datasets import load
    from magistrate.judges import registry
    from magistrate.report.terminal import print_outcome
    from magistrate.runs.progress import waiting
    from magistrate.types import Verdict

    judge = registry.judge(name)
    tell_unasked([judge], context)
    dataset = load(source, need_output=False)
    sample = _first(dataset)
    if source == QUICKSTART and "alternatives" in judge.info.requires:
        sample = _pair(dataset)
    engine = registry.engine_for([judge], model, settings)
    with waiting(engine, console(error=True)):
        outcome = judging.judge_sample(sample, judge=judge, model=engine)
    if as_json:
        asked = dataclasses.asdict(asks_of(judge))
        given = dataclasses.asdict(sample)
        judged = outcome_data(outcome, steps=True)
        print_json({"judge": facts(judge), "asks": asked, "sample": given, "outcome": judged})
    else:
        terminal = console()
        _print_tried(judge, sample, dataset.name, engine, terminal)
        print_outcome(outcome, sample, terminal, steps=True)
    return DONE if isinstance(outcome, Verdict) else ENGINE_GONE


def _first(dataset: Dataset) -> Sample:
    """Return the first readable sample. Unreadable rows before it are reported on standard error."""
    from magistrate.report.formatting import plain

    sample = next(iter(dataset))
    if dataset.problems:
        rows = f"{len(dataset.problems)} before it" if len(dataset.problems) > 1 else "one before it"
        click.echo(f"skipped {rows} that cannot be read: {plain(str(dataset.problems[0]))}", err=True)
    return sample


def _pair(dataset: Dataset) -> Sample:
    """Return the first sample that another one answers too, with that answer as its alternative."""
    seen: dict[tuple[Any, ...], Sample] = {}
    for sample in dataset:
        first = seen.setdefault((sample.input, sample.context), sample)
        if first is not sample:
            return dataclasses.replace(first, alternatives=(sample.output or "",))
    return next(iter(dataset))


def _print_tried(judge: Any, sample: Sample, dataset: str, engine: Engine, terminal: Console) -> None:
    """Print the judge, the model, the sample and the possible answers."""
    import json

    from rich.padding import Padding
    from rich.text import Text

    from magistrate.judges.base import FIELDS, present
    from magistrate.report.formatting import plain

    info, asks = judge.info, asks_of(judge)
    has = [name for name in FIELDS if present(sample, name, (name,))]
    has += [f"metadata.{name}" for name in sample.metadata]
    what = f"{sample.id} of {dataset}, with {', '.join(has) or 'nothing'}"
    rows = [("judge", f"{info.name}@{info.version}"), ("model", engine.info.model), ("sample", what)]
    terminal.print(_grid(rows))
    parts: list[tuple[str, RenderableType]] = []
    if asks.labels:
        parts.append(("answers", _labels_of(asks.labels)))
    if asks.schema is not None:
        written = json.dumps(asks.schema, ensure_ascii=False, indent=2)
        parts.append(("constraint of the answer", Text(plain(written))))
    elif not asks.labels:
        parts.append(("constraint", "built from the texts of each sample"))
    if asks.rule:
        parts.append(("rule", Text(plain(asks.rule))))
    for title, part in parts:
        terminal.print()
        terminal.print(Text(title, style="dim"))
        terminal.print(Padding(part, (0, 0, 0, 2), expand=False))
    terminal.print()


# --- output -----------------------------------------------------------------------------------------


def _rows_of_judge(judge: Any, described: Mapping[str, Any]) -> Iterator[tuple[str, RenderableType]]:
    asks = asks_of(judge)
    yield "kind", "asks a model" if described["kind"] == "llm" else "runs code, without a model"
    if described["model"]:
        yield "model", f"{described['model']}, if you name none"
    good = "low" if described["direction"] == "minimize" else "high"
    yield "direction", f"{described['direction']}: a {good} score is good"
    if asks.labels:
        yield "labels", _labels_of(asks.labels)
    else:
        yield "labels", ", ".join(described["labels"])
    if asks.rule:
        yield "rule", asks.rule
    if asks.categories:
        yield "categories", ", ".join(asks.categories)
    optional = set(described["reads"]) - set(described["requires"])
    yield "inputs", inputs_of(described) + ("   (? may be missing)" if optional else "")
    yield "needs", ", ".join(described["needs"]) or "nothing"
    refuse = "refuse: a sample that is too long for the model is not judged"
    yield "long", refuse if described["long"] == "refuse" else described["long"]
    yield "options", "  ".join(option_words(*each) for each in described["options"].items()) or "none"
    yield "prompt", described["prompt"] or "none"
    yield "constraint", described["constraint"] or "none"
    if described["lacks"]:
        yield "lacks", described["lacks"]
    if described["trained_on"]:
        yield "trained on", ", ".join(described["trained_on"])
    if described["card"]:
        yield "card", described["card"].strip()


def _figures_of(found: Sequence[Measured]) -> list[list[str]]:
    """Return one row per set and model: both names, sample count, AUROC, balanced accuracy and time."""
    return [
        [
            each.set,
            each.model,
            str(each.n),
            _figure(each.auroc),
            _figure(each.balanced_accuracy),
            milliseconds(each.ms),
        ]
        for each in found
    ]


def _comparisons_of(panels: Sequence[Compared]) -> list[list[str]]:
    """Return one row per judge, set and model: what it costs a sample, and how often it is right."""
    return [
        [
            each.judge,
            each.set,
            each.model,
            str(each.n),
            f"{each.calls:g}",
            f"{each.tokens:,}",
            _figure(each.balanced_accuracy or each.right),
            _figure(each.difference, signed),
        ]
        for each in panels
    ]


def _figure(figure: Figure | None, form: Callable[[float], str] = decimal) -> str:
    if figure is None:
        return "–"
    value, low, high = map(form, figure)
    return f"{value} [{low}, {high}]"


def _grid(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Build a two-column grid of names and values."""
    from rich.table import Table
    from rich.text import Text

    from magistrate.report.formatting import plain

    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(plain(value)) if isinstance(value, str) else value)
    return table


def _labels_of(labels: Sequence[Mapping[str, Any]]) -> Table:
    """Build a grid with one row per label: its score, the words that count as its answer, its meaning."""
    from rich.table import Table
    from rich.text import Text

    from magistrate.report.formatting import plain

    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    columns = 3 + any(each["means"] for each in labels)
    for each in labels:
        words = f"answered by {' '.join(each['answers'])}"
        cells = [each["label"], f"score {each['score']:g}", words, each["means"]]
        table.add_row(*(Text(plain(cell)) for cell in cells[:columns]))
    return table
