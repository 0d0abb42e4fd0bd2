"""`magistrate judges new` and `try`: begin a judge of one's own, and run it on one sample."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.judges_shown import grid, labels_of
from magistrate.cli.options import console, json_option, model_options, print_json, tell_unasked
from magistrate.report.export import outcome_data
from magistrate.report.judges import asks_of, facts

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from magistrate.datasets import Dataset
    from magistrate.engines.base import Engine
    from magistrate.types import Sample

QUICKSTART = "quickstart"


@click.command(epilog="Example: magistrate judges new tone; magistrate judges try tone.yaml")
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
    from magistrate.report.formatting import plain

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


@click.command(
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
@click.pass_context
def try_judge(
    context: click.Context,
    /,
    name: str,
    source: str,
    model: str | None,
    base_url: str | None,
    device: str | None,
    threads: int | None,
    timeout: float | None,
    as_json: bool,
) -> int:
    """Run the judge NAME on one sample and show it all. Prompts, what may be answered, what was answered.

    NAME is a YAML file or one of `magistrate judges`, perhaps with options. An abstention says why; exits
    with 3 if there is no verdict.
    """
    from magistrate.api import judge as judging
    from magistrate.cli import DONE, ENGINE_GONE
    from magistrate.datasets import load
    from magistrate.engines.settings import EngineSettings
    from magistrate.judges import registry
    from magistrate.report.terminal import print_outcome
    from magistrate.runs.progress import waiting
    from magistrate.types import Verdict

    judge = registry.judge(name)
    tell_unasked([judge], context)
    dataset = load(source, need_output=False)
    sample = _first(dataset)
    engine = registry.engine_for(
        [judge], model, EngineSettings(base_url=base_url, device=device, threads=threads, timeout=timeout)
    )
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
    """The first sample that can be read; rows before it that cannot are told on standard error."""
    from magistrate.report.formatting import plain

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
    from magistrate.report.formatting import plain

    info, asks = judge.info, asks_of(judge)
    has = [name for name in FIELDS if present(sample, name, (name,))]
    has += [f"metadata.{name}" for name in sample.metadata]
    what = f"{sample.id} of {dataset}, with {', '.join(has) or 'nothing'}"
    rows = [("judge", f"{info.name}@{info.version}"), ("model", engine.info.model), ("sample", what)]
    terminal.print(grid(rows))
    parts: list[tuple[str, RenderableType]] = []
    if asks.labels:
        parts.append(("answers", labels_of(asks.labels)))
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
