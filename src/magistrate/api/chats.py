"""A judge of a stored run as chats to fine-tune a model on."""

from __future__ import annotations

from pathlib import Path

from magistrate.analysis.columns import one_judge
from magistrate.api.run import refuse_damaged
from magistrate.api.stored import RunRef, StorePlace, record_of
from magistrate.errors import SpecError
from magistrate.judges.base import Judge
from magistrate.judges.calibrated import words_of
from magistrate.report.sft import Written, check_files, examples, write_examples
from magistrate.runs.resume import objects_of, stored_spec
from magistrate.runs.spec import judges_of
from magistrate.store import RunRecord, Store


def export_sft(
    run: RunRef,
    target: str | Path,
    judge: str | Judge | None = None,
    *,
    corrected: bool = False,
    test: float = 0.0,
    seed: int = 0,
    replace: bool = False,
    store: StorePlace | None = None,
) -> Written:
    """Write what a judge was asked, with the answers that people's labels bear out, one chat a line.

    Kept is where its label is the person's; with `corrected` also where it is not, with the person's label
    and no reasoning. The share `test` of contexts goes to a second file. `judge` is the one that is meant,
    as an object where the run got one. Raises `SpecError` and `InputError` where nothing can be written,
    and `StoreError` once it is written where something that is damaged in the store is left out.
    """
    path = Path(target)
    check_files(path, test=test, replace=replace)
    record, place = record_of(run, store)
    named = judge if judge is None or isinstance(judge, str) else judge.info.name
    chosen = one_judge(record.judges, named, f"run {record.name or record.id}")
    asked = _known(record, chosen, judge)
    with Store.open(place) as opened, opened.snapshot() as moment:
        damaged: list[str] = []
        samples, outcomes = moment.readable(record.id, damaged, judge=chosen, with_steps=True)
        found, left_out = examples(samples, outcomes, asked, corrected=corrected)
    words = words_of(asked)
    written = write_examples(found, left_out, path, judge=words, test=test, seed=seed, replace=replace)
    refuse_damaged(damaged, path)
    return written


def _known(record: RunRecord, name: str, given: str | Judge | None) -> Judge:
    """The judge that a run asked, as it was then."""
    if given is not None and not isinstance(given, str):
        found = given
    elif "judges" in objects_of(record):
        raise SpecError(
            f"the judges of run {record.id} came from Python and cannot be written down; export it there: "
            "magistrate.api.chats.export_sft(run, FILE, judge=…)"
        )
    else:
        found = next(each for each in judges_of(stored_spec(record)) if each.info.name == name)
    recipe = record.recipes[name]
    if (found.info.prompt, found.info.constraint) != (recipe.prompt, recipe.constraint):
        raise SpecError(
            f"judge {name!r} asks something else now than in run {record.id} (prompt {found.info.prompt}, "
            f"then {recipe.prompt}); run it again to export it"
        )
    return found
