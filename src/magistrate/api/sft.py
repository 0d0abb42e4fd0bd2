"""`export_sft`: export a judge of a stored run as chats to fine-tune a model on.

A chat is exported only if a human label confirms the verdict.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from magistrate.analysis.columns import KNOWN, groups_of, missing, one_judge
from magistrate.api.run import refuse_damaged
from magistrate.api.stored import RunRef, StorePlace, record_of
from magistrate.errors import InputError, SpecError
from magistrate.judges.base import Judge
from magistrate.judges.calibrated import words_of
from magistrate.judges.classify import Classify
from magistrate.judges.hallucination import Hallucination
from magistrate.report.export import write_whole
from magistrate.runs.resume import objects_of, stored_spec
from magistrate.runs.spec import judges_of
from magistrate.store import RunRecord, Store
from magistrate.training.chats import answer_of, asked_of, escaped
from magistrate.training.split import held_out
from magistrate.types import Outcome, Sample, Step, Verdict

DISAGREES = "the judge and the label disagree"
NO_WORDS = "corrected: the label alone does not say what the answer should have been"

Messages = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Example:
    """One chat: the prompt, and the answer for `label`; `corrected` if the judge gave another label."""

    sample: Sample
    label: str
    messages: Messages
    corrected: bool = False

    def line(self, judge: str) -> dict[str, Any]:
        """Return the chat as it is written. Texts that look like special tokens are escaped and listed."""
        contents = [(role, *escaped(text)) for role, text in self.messages]
        sources = json.dumps(self.sample.sources or (self.sample.id,)).encode()
        return {
            "messages": [{"role": role, "content": text} for role, text, _ in contents],
            "metadata": {
                "sample": self.sample.id,
                "judge": judge,
                "label": self.label,
                "corrected": self.corrected,
                "context": hashlib.sha256(sources).hexdigest()[:12],
                "escaped": sorted({each for *_, found in contents for each in found}),
            },
        }


@dataclass(frozen=True, slots=True)
class Written:
    """The written files: `n_train` and `n_test` chats, how many `corrected`; `left_out` counts by reason."""

    files: tuple[Path, ...]
    n_train: int
    n_test: int
    corrected: int
    escaped: int
    labels: Mapping[str, int]
    left_out: Mapping[str, int]


def examples(
    samples: Mapping[str, Sample], outcomes: Iterable[Outcome], judge: Judge, *, corrected: bool = False
) -> tuple[list[Example], dict[str, int]]:
    """Return the chats of a judge's outcomes (with their steps), and how many outcomes gave none, by
    reason.

    With `corrected`, a verdict that the label contradicts becomes a chat too, with the label's answer and
    none of the judge's reasoning. Raises `SpecError` for a judge whose verdict is not a model's answer.
    """
    asked = asked_of(judge)
    if asked.info.kind == "code":
        raise SpecError(f"judge {judge.info.name!r} is code: no model was asked, so there is no chat")
    if hasattr(asked, "of"):
        raise SpecError(
            f"judge {judge.info.name!r} asks about parts of an output, but a label is for the whole; run and "
            f"export the judge inside it: {asked.of.info.name}"
        )
    found, left_out = list[Example](), Counter[str]()
    for outcome in outcomes:
        sample = samples[outcome.sample_id]
        made = _examples(sample, outcome, asked, corrected)
        if isinstance(made, str):
            left_out[made] += 1
        else:
            found += made
    return found, dict(left_out.most_common())


def write_examples(
    found: Sequence[Example],
    left_out: Mapping[str, int],
    target: Path,
    *,
    judge: str,
    test: float = 0.0,
    seed: int = 0,
    replace: bool = False,
) -> Written:
    """Write the chats to `target`, and the share `test` of their contexts to `NAME.test.jsonl` beside it.

    Chats about one context stay together. Raises `SpecError` for another suffix than `.jsonl` and for
    existing files, `InputError` if there is nothing to write, `StoreError` if writing fails.
    """
    files = check_files(target, test=test, replace=replace)
    if not found:
        why = "; ".join(f"{reason}: {count}" for reason, count in left_out.items())
        raise InputError(f"no verdict of {judge} can be exported as a chat ({why or 'there are none'})")
    groups = [int(group) for group in groups_of([each.sample for each in found])]
    held = held_out(groups, test, seed)
    parts = [
        [each for each, out in zip(found, held, strict=True) if out == wanted] for wanted in (False, True)
    ]
    lines = [[each.line(judge) for each in part] for part in parts]
    for file, part in zip(files, lines, strict=False):
        write_whole(file, lambda raw, part=part: _write(raw, part))  # type: ignore[misc]
    return Written(
        files=files,
        n_train=len(parts[0]),
        n_test=len(parts[1]),
        corrected=sum(each.corrected for each in found),
        escaped=sum(bool(line["metadata"]["escaped"]) for part in lines for line in part),
        labels=dict(Counter(each.label for each in found).most_common()),
        left_out=dict(left_out),
    )


def check_files(target: Path, *, test: float, replace: bool) -> tuple[Path, ...]:
    """Return the files to write. Raises `SpecError` if they cannot be written or exist already."""
    if target.suffix.lower() != ".jsonl":
        raise SpecError(f"the file for chats must end in .jsonl, got {target.name!r}")
    if not 0 <= test < 1:
        raise SpecError(f"test, the share of held-out contexts, must be in [0, 1); got {test}")
    files = (target, target.with_name(f"{target.stem}.test.jsonl")) if test else (target,)
    for file in files:
        if file.exists() and not replace:
            raise SpecError(f"{file} already exists; use --force to replace it")
    return files


def _write(raw: IO[bytes], lines: Sequence[dict[str, Any]]) -> int:
    for line in lines:
        text = json.dumps(line, ensure_ascii=False, allow_nan=False)
        raw.write(text.encode("utf-8", "backslashreplace") + b"\n")
    return len(lines)


def _examples(sample: Sample, outcome: Outcome, judge: Judge, corrected: bool) -> list[Example] | str:
    """Return the chats of one outcome, or the reason why there are none."""
    if not isinstance(outcome, Verdict):
        return missing(outcome)
    if sample.label is None:
        return "no label by a person"
    if sample.label not in KNOWN or outcome.label not in KNOWN:
        return "another label"
    steps = [step for step in outcome.steps if "error" not in step.result]
    if not steps:
        return "decided without asking a model"
    if sample.label != outcome.label:
        return _corrected(sample, judge, steps[0]) if corrected else DISAGREES
    if isinstance(judge, Classify):
        return _chosen(sample, judge, steps)
    written = [step for step in steps if step.verb == "generate" and step.result.get("text")]
    if isinstance(judge, Hallucination) and written and not _says(judge, written[0], sample.label):
        return _corrected(sample, judge, steps[0]) if corrected else DISAGREES
    chats = [_chat(step, str(step.result["text"])) for step in written]
    return [Example(sample, sample.label, each) for each in chats] or "nothing was written"


def _chosen(sample: Sample, judge: Classify, steps: Sequence[Step]) -> list[Example] | str:
    """Return the question with the word for the label, after the reasoning if that was written first."""
    choice = next((step for step in steps if "best" in step.result), None)
    if choice is None or sample.label is None:
        return "nothing was chosen"
    if judge.criterion.categories:
        return "it was asked once for each category"
    if judge.explain == "before" and choice.result["best"] != sample.label:
        return DISAGREES  # a threshold changed the label, so the reasoning argues against it
    return [Example(sample, sample.label, _chat(choice, _word(judge, choice, sample.label)))]


def _word(judge: Classify, choice: Step, label: str) -> str:
    """Return the answer for a label. A letter is looked up, since labels may be shown in another order."""
    found = next(each for each in judge.criterion.labels if each.name == label)
    if found.answers:
        return found.answers[0]
    shown = re.findall(rf"^([A-Z])\. {re.escape(label)}(?:: |$)", choice.prompt[-1][1], re.MULTILINE)
    return str(shown[-1])


def _corrected(sample: Sample, judge: Judge, first: Step) -> list[Example] | str:
    """Return the prompt with the label's answer, without anything that the judge wrote."""
    assert sample.label is not None
    try:
        word = answer_of(judge)(sample, sample.label)
    except SpecError:
        return NO_WORDS
    if isinstance(judge, Classify):
        word = _word(judge, first, sample.label)
    return [Example(sample, sample.label, (*first.prompt, ("assistant", word)), corrected=True)]


def _says(judge: Hallucination, step: Step, label: str) -> bool:
    """Return whether the written answer matches the label; a calibration may have changed the verdict."""
    found = judge.constraint.parse(str(step.result["text"]).strip())
    return (float(found["score"]) >= judge.threshold) == (label == "hallucinated")


def _chat(step: Step, answer: str) -> Messages:
    """Return prompt and answer. If the prompt contains the start of the answer, both become one message."""
    *before, (role, text) = step.prompt
    if role != "assistant":
        return (*step.prompt, ("assistant", answer))
    between = "" if text[-1:].isspace() or not text else " "
    return (*before, ("assistant", f"{text}{between}{answer}"))


# --- the public function --------------------------------------------------------------------------


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
    """Write a judge's prompts with the answers that human labels confirm, one chat per line.

    A verdict is exported if its label is the human one; with `corrected` also if it is not, with the human
    label and without reasoning. The share `test` of contexts goes to a second file. `judge` selects the
    judge, as an object if the run got one. Raises `SpecError` and `InputError` if nothing can be written,
    and, after writing, `StoreError` if damaged records of the store are left out.
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
    """Return the judge of a run, as it was then."""
    if given is not None and not isinstance(given, str):
        found = given
    elif "judges" in objects_of(record):
        raise SpecError(
            f"the judges of run {record.id} were created in Python; export it in Python too: "
            "magistrate.api.sft.export_sft(run, FILE, judge=…)"
        )
    else:
        found = next(each for each in judges_of(stored_spec(record)) if each.info.name == name)
    recipe = record.recipes[name]
    if (found.info.prompt, found.info.constraint) != (recipe.prompt, recipe.constraint):
        raise SpecError(
            f"the prompt of judge {name!r} has changed since run {record.id} (now {found.info.prompt}, then "
            f"{recipe.prompt}); run it again to export it"
        )
    return found
