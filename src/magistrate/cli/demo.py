"""`magistrate demo`: judge the built-in set, and show the figures and three samples on one screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from magistrate.cli.options import json_option, store_option
from magistrate.cli.output import console, print_json
from magistrate.judges.registry import DEFAULT_JUDGE
from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Span, Verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from magistrate.api.run import Run
    from magistrate.runs.progress import ProgressBar
    from magistrate.types import Outcome

QUICKSTART = "quickstart"
WORDING = "novelty"  # compares the wording only
PROMPTED = "faithfulness"  # asks the embedded model
AROUND = 45  # characters shown on each side of what is marked
LONGEST = 132  # characters of a sample that are shown


@click.command(
    short_help="Judge the built-in set, and show figures and three samples.",
    epilog="Example: magistrate demo; magistrate demo --pull",
)
@click.option(
    "--pull",
    is_flag=True,
    help="Pull the small embedded model (98 MB) first, and ask it too.",
)
@store_option
@json_option
def command(pull: bool, store: str | None, as_json: bool) -> int:
    """Judge the built-in set of 72 samples, and show figures, a catch, a miss and a false alarm.

    Without --pull nothing is downloaded: the embedded model is asked if it is here. Beside the default judge
    is `novelty`, which compares the wording only. If nothing has changed since the last time, that run is
    shown again.
    """
    from magistrate.cli.exit_codes import DONE, ENGINE_GONE
    from magistrate.report.formatting import plain
    from magistrate.report.screen import print_figures, print_head, print_remark
    from magistrate.runs.progress import ProgressBar

    if pull:
        _pull()
    judges = [DEFAULT_JUDGE, WORDING, *([PROMPTED] if _model_is_here() else [])]
    run = _judged(judges, store, ProgressBar(console(error=True), lines=True))
    report = run.summary()
    chosen = interesting(run.samples(), run.outcomes(), DEFAULT_JUDGE)
    if as_json:
        samples = [{"what": what, "sample": sample.id} for what, sample, _ in chosen]
        print_json(report.to_dict() | {"interesting": samples})
    else:
        terminal = console()
        print_head(report, terminal)
        terminal.print()
        print_figures(report, terminal)
        print_remark(report, terminal, alone=True)
        for what, sample, verdict in chosen:
            _print_sample(what, sample, verdict, terminal)
        _print_next(chosen, store, terminal)
    if told := report.without_verdict:
        click.echo(plain(told), err=True)
        return ENGINE_GONE
    return DONE


def _judged(judges: Sequence[str], store: str | None, bar: ProgressBar) -> Run:
    """Return the last such run of the built-in set, continued if it is not done, or a new one.

    Any change in data, judges or model needs a new one.
    """
    from magistrate import _async
    from magistrate.api.evaluate import RunSession
    from magistrate.api.run import Run
    from magistrate.runs.resume import find_done
    from magistrate.runs.spec import spec_from

    spec = spec_from({"dataset": {"source": QUICKSTART}, "judges": list(judges), "name": "demo"})
    with RunSession(store) as session:
        plan = session.prepare(spec)
        if session.existing_store is not None:
            if (done := find_done(session.store, plan)) is not None:
                click.echo(f"nothing has changed since run {done.id}, which is shown again", err=True)
                return Run(done.id, session.store.place)
            if (unfinished := session.unfinished(plan)) is not None:
                return _async.run(session.resume(unfinished, plan, bar))
        return _async.run(session.start(plan, bar))


def interesting(
    samples: Iterable[Sample], outcomes: Iterable[Outcome], judge: str
) -> list[tuple[str, Sample, Verdict]]:
    """Return the surest catch, miss and false alarm of `judge`, each if there is one."""
    by_id: Mapping[str, Sample] = {sample.id: sample for sample in samples}
    kinds: tuple[tuple[str, str, str], ...] = (
        ("caught", HALLUCINATED, HALLUCINATED),
        ("missed", HALLUCINATED, FAITHFUL),
        ("false alarm", FAITHFUL, HALLUCINATED),
    )
    verdicts = [each for each in outcomes if isinstance(each, Verdict) and each.judge == judge]
    found = []
    for what, truth, said in kinds:
        of_kind = [each for each in verdicts if each.label == said and by_id[each.sample_id].label == truth]
        if of_kind:
            # The surest one; among equals, one whose marks meet those of the people who wrote the set.
            best = max(
                of_kind,
                key=lambda each: (abs(each.score - 0.5), _meets(each, by_id[each.sample_id])),
            )
            found.append((what, by_id[best.sample_id], best))
    return found


def _meets(verdict: Verdict, sample: Sample) -> bool:
    marks = [claim.output_quote for claim in verdict.claims]
    return any(a.start < b.end and b.start < a.end for a in marks for b in sample.spans)


def _pull() -> None:
    """Download the embedded model, if it is not here yet."""
    from magistrate.cli.models import Stages
    from magistrate.engines import models

    with Stages(console(error=True)) as stages:
        models.pull(_asked(), stages.report)


def _asked() -> str:
    """Return the name of the model that is asked."""
    from magistrate.judges import registry

    return registry.usual_model([registry.judge(PROMPTED)])


def _model_is_here() -> bool:
    """Return whether the embedded model can be asked."""
    from magistrate.engines import models
    from magistrate.engines.registry import KINDS

    runs_here = not any(kind.absent for kind in KINDS if not kind.word)
    return runs_here and models.is_pulled(_asked())


def _print_sample(what: str, sample: Sample, verdict: Verdict, terminal: Console) -> None:
    """Print a sample's output around the first mark: the judge's, or for a miss what people marked.

    Below it stands the passage that contradicts it, if the judge found one.
    """
    from rich.padding import Padding
    from rich.text import Text

    from magistrate.report.formatting import decimal

    if what == "missed":
        spans: Sequence[Span] = sample.spans
        told = "marked by people, not by the judge"
    else:
        spans = [claim.output_quote for claim in verdict.claims]
        told = "marked by the judge" if spans else "nothing is marked"
    facts = f"  {sample.id}  score {decimal(verdict.score)}; ⟦⟧ {told}"
    terminal.print()
    terminal.print(Text.assemble((what, "bold"), (facts, "dim")))
    shown = [_excerpt(sample.output or "", spans)]
    for claim in verdict.claims:
        if claim.context_quote is not None and claim.context_index is not None:
            place = claim.context_quote
            quote = sample.sources[claim.context_index][place.start : place.end]
            shown.append(Text("context: ", "dim").append_text(_excerpt(quote, [Span(0, len(quote))])))
            break
    for line in shown:
        terminal.print(Padding(line, (0, 0, 0, 2), expand=False))


def _excerpt(text: str, spans: Sequence[Span]) -> Text:
    from rich.text import Text

    from magistrate.report.formatting import around, marked

    first = min(spans, key=lambda each: each.start, default=Span(0, 0))
    start, _ = around(text, first.start, first.end, AROUND)
    end = len(text)
    if end - start > LONGEST:
        end = text.rfind(" ", start, start + LONGEST)
        end = end if end > start else start + LONGEST
    inside = [
        Span(each.start - start, min(each.end, end) - start) for each in spans if start <= each.start < end
    ]
    shown = Text("… " if start else "")
    shown.append_text(marked(text[start:end].replace("\n", " "), inside, "bold red underline"))
    return shown.append(" …" if end < len(text) else "")


def _print_next(chosen: Sequence[tuple[str, Sample, Verdict]], store: str | None, terminal: Console) -> None:
    """Print the three commands that follow."""
    import shlex

    from rich.text import Text

    from magistrate.report.formatting import plain

    place = "" if store is None else f" --store {shlex.quote(store)}"
    commands = [("magistrate init answers.csv", "your own data: a run file and a CI job")]
    if chosen:
        sample = chosen[0][1].id
        commands.insert(0, (f"magistrate show last --sample {sample}{place}", "why this verdict"))
    commands.append((f"magistrate export last --to report.html{place}", "all of it as a page"))
    terminal.print()
    for words, purpose in commands:
        terminal.print(
            Text.assemble(("next  ", "dim"), plain(words), (f"  # {purpose}", "dim")), soft_wrap=True
        )
