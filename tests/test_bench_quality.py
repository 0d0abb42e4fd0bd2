"""`benchmarks.quality`: a protocol that does not move, and figures that are what the outcomes say."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score

from benchmarks.machine import Machine
from benchmarks.quality import __main__ as program
from benchmarks.quality import rows, tables
from benchmarks.quality.baselines import ruled
from benchmarks.quality.measure import Measurement, faithfulness_judges, measure, row_of, session
from benchmarks.quality.protocol import SETS, data_in, draw, here, named
from benchmarks.quality.rows import QualityRow
from magistrate import ScriptedEngine
from magistrate.cli import main
from magistrate.engines.base import Engine
from magistrate.errors import DatasetError, SpecError
from magistrate.features.signals import SIGNALS, readings
from magistrate.judges import registry
from magistrate.judges.base import FolderJudge, JudgeInfo
from magistrate.types import FAITHFUL, HALLUCINATED, Outcome, Prompt, Sample, Verdict
from terminal import Call, Done

pytestmark = pytest.mark.full  # it measures, and judges nothing for anybody

MACHINE = Machine("a cpu", 2, "Linux", "3.11", "0.1.0", "abc123")
SUMMEDITS = named(["summedits"])[0]


@pytest.fixture
def call(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """`python -m benchmarks.quality` in this process."""

    def called(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["quality", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main(program.command, "quality")
        assert isinstance(ended.value.code, int)
        printed = capsys.readouterr()
        return Done(ended.value.code, printed.out, printed.err)

    return called


@pytest.fixture
def data(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of labelled sets: 240 samples over 80 contexts under the name of SummEdits."""
    folder = tmp_path / "data"
    folder.mkdir()
    lines = list[dict[str, Any]]()
    for number in range(240):
        hallucinated = number % 3 == 0
        lines.append(
            {
                "id": f"s{number}",
                "question": None,
                "context": f"The tower number {number // 3} is {10 + number // 3} metres high.",
                "answer": f"It is {'nine hundred' if hallucinated else 10 + number // 3} m high, {number}.",
                "label": "hallucinated" if hallucinated else "faithful",
                "spans": [],
                "meta": {},
            }
        )
    with gzip.open(folder / "summedits_dev.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setenv("MAGISTRATE_DATA_DIR", str(folder))
    return folder


def scripted(model: str, seen: list[Prompt] | None = None) -> ScriptedEngine:
    """Right about nine in ten, and less sure of what it is wrong about."""

    def answer(prompt: Prompt) -> dict[str, float]:
        if seen is not None:
            seen.append(prompt)
        output = next((part.text for part in prompt.data() if part.name == "output"), "")
        number = int(output.rpartition(" ")[2].rstrip(".") or 0) if output else 0
        wrong = "nine hundred" in output
        share = 0.3 if number % 10 == 0 else 0.9
        yes = share if wrong else 1 - share
        return {"hallucinated": yes, "faithful": 1 - yes, "yes": 1 - yes, "no": yes}

    return ScriptedEngine(answer, name=model)


def measured(data: Path, tmp_path: Path, **options: Any) -> QualityRow:
    what = Measurement(draw(SUMMEDITS, 60), "scripted", "faithfulness")
    return row_of(measure(what, tmp_path / "quality.db", scripted, "abc123", **options), MACHINE)


def test_parts_share_no_context_and_are_the_same_every_time(data: Path) -> None:
    split = draw(SUMMEDITS, 0)
    assert len(split.samples) == 240
    assert {s.context for s in split.dev}.isdisjoint({s.context for s in split.test})
    assert 0.2 < len(split.dev) / 240 < 0.5
    assert draw(SUMMEDITS, 0) == split


def test_a_smaller_draw_is_the_beginning_of_a_larger_one(data: Path) -> None:
    small, large = draw(SUMMEDITS, 20), draw(SUMMEDITS, 50)
    assert (len(small.test), len(small.dev), len(large.test), len(large.dev)) == (20, 10, 50, 25)
    assert large.test[:20] == small.test
    assert large.dev[:10] == small.dev


def test_the_order_of_the_file_changes_nothing(data: Path) -> None:
    before = draw(SUMMEDITS, 30)
    path = data / "summedits_dev.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join(reversed(lines))))
    assert draw(SUMMEDITS, 30) == before


def test_a_draw_of_one_label_is_refused(data: Path) -> None:
    with pytest.raises(DatasetError, match="one label only; draw more with --samples"):
        draw(SUMMEDITS, 1)


def test_figures_are_those_of_scikit_learn_at_a_threshold_that_dev_alone_chose(
    data: Path, tmp_path: Path
) -> None:
    row = measured(data, tmp_path)
    split = draw(SUMMEDITS, 60)
    engine_says = {s.id: _score(s.output or "") for s in split.samples}
    truth = [s.label == "hallucinated" for s in split.test]
    scores = [engine_says[s.id] for s in split.test]
    assert row.threshold is not None
    said = [score >= row.threshold for score in scores]
    assert row.tuned["f1"][0] == pytest.approx(f1_score(truth, said))
    assert row.tuned["balanced_accuracy"][0] == pytest.approx(balanced_accuracy_score(truth, said))
    assert row.auroc[0] == pytest.approx(roc_auc_score(truth, scores))
    dev_truth = [s.label == "hallucinated" for s in split.dev]
    dev_scores = [engine_says[s.id] for s in split.dev]
    best = max(
        balanced_accuracy_score(dev_truth, [score >= cut for score in dev_scores]) for cut in set(dev_scores)
    )
    assert balanced_accuracy_score(dev_truth, [s >= row.threshold for s in dev_scores]) == pytest.approx(best)
    assert (row.n, row.n_dev, row.n_ok, row.coverage, row.commit) == (60, 30, 60, 1.0, "abc123")
    assert row.run is not None
    assert "faithfulness" in row.recipe


def _score(output: str) -> float:
    number, wrong = int(output.rpartition(" ")[2].rstrip(".")), "nine hundred" in output
    share = 0.3 if number % 10 == 0 else 0.9
    return share if wrong else 1 - share


def test_what_was_measured_is_not_asked_again_unless_that_is_wanted(data: Path, tmp_path: Path) -> None:
    asked: list[Prompt] = []
    what = Measurement(draw(SUMMEDITS, 20), "scripted", "faithfulness")

    def go(**options: Any) -> str:
        found = measure(what, tmp_path / "q.db", lambda model: scripted(model, asked), "abc", **options)
        return found.run.id

    first = go()
    n = len(asked)
    assert n == 31  # thirty samples, and one question that warms it up
    assert go() == first
    assert len(asked) == n
    assert go(again=True) != first
    assert len(asked) == 2 * n


def test_a_measurement_that_was_cut_off_is_gone_on_with(data: Path, tmp_path: Path) -> None:
    what = Measurement(draw(SUMMEDITS, 20), "scripted", "faithfulness")
    asked: list[Prompt] = []

    class Cut(KeyboardInterrupt):
        pass

    def breaking(model: str) -> Engine:
        engine = scripted(model, asked)
        inner, count = engine.choose, iter(range(1000))

        async def choose(*words: Any, **options: Any) -> Any:
            if next(count) == 12:
                raise Cut
            return await inner(*words, **options)

        engine.choose = choose  # type: ignore[method-assign]
        return engine

    with pytest.raises(Cut):
        measure(what, tmp_path / "q.db", breaking, "abc")
    done = len(asked)
    assert 0 < done < 31
    found = measure(what, tmp_path / "q.db", lambda model: scripted(model, asked), "abc")
    assert found.run.record.status == "done"
    assert found.run.record.n_verdicts == 30
    assert len(asked) < done + 31


def test_another_model_is_measured_anew(data: Path, tmp_path: Path) -> None:
    split = draw(SUMMEDITS, 20)
    first = measure(Measurement(split, "one", "faithfulness"), tmp_path / "q.db", scripted, "abc")
    other = measure(
        Measurement(split, "one", "faithfulness"), tmp_path / "q.db", lambda model: scripted("two"), "abc"
    )
    assert first.run.id != other.run.id


def test_trivial_rules_look_at_dev_alone_for_their_direction(data: Path) -> None:
    split = draw(SUMMEDITS, 40)
    flipped = replace(
        split,
        test=tuple(
            replace(s, label="faithful" if s.label == "hallucinated" else "hallucinated") for s in split.test
        ),
    )
    for rule, again in zip(ruled(split), ruled(flipped), strict=True):
        assert rule.test.scores.tolist() == again.test.scores.tolist()
    names = [rule.name for rule in ruled(split)]
    assert names[:3] == ["always hallucinated", "length", "new bigrams"]
    assert names[3:] == [f"signal:{name}" for name in SIGNALS]


def test_contexts_that_differ_in_case_or_white_space_are_in_one_part(data: Path) -> None:
    path = data / "summedits_dev.jsonl.gz"
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    twins = [
        {**line, "id": f"twin-{line['id']}", "context": line["context"].upper().replace(" ", "\n ")}
        for line in lines
    ]
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines + twins).encode()))
    split = draw(SUMMEDITS, 0)
    dev, test = ({s.id.removeprefix("twin-") for s in part} for part in (split.dev, split.test))
    assert len(split.samples) == 480
    assert dev.isdisjoint(test)


@pytest.fixture
def two_sets(data: Path) -> Path:
    """BEGIN beside SummEdits, with other numbers and the labels of every second context turned round."""
    lines = gzip.decompress((data / "summedits_dev.jsonl.gz").read_bytes()).splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        row["context"] = f"Said of old: {row['context']}"
    (data / "begin_dev.jsonl.gz").write_bytes(
        gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    )
    return data


def test_the_cut_of_a_signal_is_fixed_by_sets_of_other_families(two_sets: Path) -> None:
    split, other = draw(SUMMEDITS, 60), draw(named(["begin"])[0])
    alone = {rule.name: rule for rule in ruled(split, [draw(SUMMEDITS)])}
    assert alone["signal:numbers"].said is None and alone["signal:numbers"].fixed_on == ()
    found = {rule.name: rule for rule in ruled(split, [draw(SUMMEDITS), other])}
    rule = found["signal:content_words"]
    assert rule.fixed_on == ("begin",) and rule.at is not None and rule.said is not None
    values = [readings(s, names=["content_words"])["content_words"].value for s in other.dev]
    truth = [s.label == "hallucinated" for s in other.dev]
    best = max(
        balanced_accuracy_score(truth, [v is not None and v >= cut for v in values])
        for cut in {v for v in values if v is not None}
    )
    at = [v is not None and v >= rule.at for v in values]
    assert balanced_accuracy_score(truth, at) == pytest.approx(best)
    turned = [
        replace(s, label="faithful" if s.label == "hallucinated" else "hallucinated") for s in split.dev
    ]
    again = {r.name: r for r in ruled(replace(split, dev=tuple(turned)), [other])}["signal:content_words"]
    assert (again.at, again.said.tolist() if again.said is not None else None) == (
        rule.at,
        rule.said.tolist(),
    )


def test_a_signal_that_has_nothing_to_look_at_is_no_label(data: Path, tmp_path: Path) -> None:
    row = {row.judge: row for row in go(data, tmp_path)}["signal:quotations"]
    assert row.n_ok == 0
    assert row.abstentions == {"undefined": row.n}
    assert row.auroc[0] is None and row.tuned == {} and row.own == {}


@dataclass(frozen=True)
class Trained(FolderJudge):
    """A judge of code that lies in a folder and has learnt from the set that its folder names."""

    folder: Path | None = None
    name: str = "trained"

    @property
    def info(self) -> JudgeInfo:
        learnt = "begin" if self.folder is None else (self.folder / "learnt.txt").read_text()
        return JudgeInfo(
            self.name,
            labels=(FAITHFUL, HALLUCINATED),
            kind="code",
            prompt=learnt,
            trained_on=frozenset({learnt}),
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        wrong = "nine hundred" in (sample.output or "")
        return Verdict(sample.id, self.name, HALLUCINATED if wrong else FAITHFUL, 0.4 if wrong else 0.1)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Folders `without-FAMILY` of a judge named `trained`, each of which learnt from another family."""
    known = dict(registry.judge_entries())
    known["trained"] = EntryPoint("trained", f"{__name__}:Trained", registry.JUDGES)
    for place in ("magistrate.judges.registry", "magistrate.judges.registry"):
        monkeypatch.setattr(f"{place}.judge_entries", lambda: known)
    for family, learnt in (("summedits", "begin:dev"), ("begin", "summedits:dev")):
        folder = tmp_path / "folders" / f"without-{family}"
        folder.mkdir(parents=True)
        (folder / "learnt.txt").write_text(learnt)
    return tmp_path / "folders"


def test_a_judge_trained_without_the_family_of_each_set_has_one_name(
    call: Call, two_sets: Path, trained: Path, scripted_models: Any
) -> None:
    words = f"trained:{trained}/without-{{family}}"
    done = call("--judge", words, "--samples", 60, "--append", "rows.jsonl", "--json")
    assert done.code == 0, done.err
    found = [row for row in done.data["rows"] if row["judge"].startswith("trained")]
    assert [(row["set"], row["judge"], row["model"], row["seen"]) for row in found] == [
        ("summedits", "trained:without-{family}", "none", []),
        ("begin", "trained:without-{family}", "none", []),
    ]
    for row in found:  # its own threshold, not one of the dev part: .4 is hallucinated
        assert row["own"]["balanced_accuracy"][0] == 1
    shown = call("--tables-only", "--append", "rows.jsonl")
    assert "(trained" not in shown.out


def test_a_judge_that_was_trained_on_a_family_is_refused_there(
    call: Call, two_sets: Path, trained: Path, scripted_models: Any
) -> None:
    words = ("--judge", f"trained:{trained}/without-begin", "--samples", 60)
    done = call(*words, "--append", "rows.jsonl")
    assert done.code == 2
    assert "was trained on summedits:dev, and summedits is of that making" in done.err
    assert "without-{family}" in done.err and not Path("rows.jsonl").exists()
    seen = call(*words, "--append", "rows.jsonl", "--seen", "--set", "summedits", "--json")
    assert seen.code == 0, seen.err
    assert seen.data["rows"][-1]["seen"] == ["summedits:dev"]
    (section,) = tables.sections(rows.newest(rows.read(Path("rows.jsonl"))))
    assert section.lines[-3][0] == "trained:without-begin (trained on this family)"


def test_rows_of_an_earlier_protocol_are_read_and_not_mixed_with_later_ones(
    data: Path, tmp_path: Path
) -> None:
    (*_, row) = go(data, tmp_path)
    old = row.model_dump(exclude={"seen", "fixed_on"}) | {"protocol": 1, "n": 400}
    path = tmp_path / "old.jsonl"
    path.write_text(json.dumps(old) + "\n" + row.model_dump_json() + "\n")
    both = rows.read(path)
    assert [each.protocol for each in both] == [1, 2]
    assert rows.newest(both) == [row]
    assert rows.newest(both[:1]) == both[:1]


def test_failures_and_abstentions_are_seen_and_are_no_label(data: Path, tmp_path: Path) -> None:
    class Refusing(ScriptedEngine):
        async def choose(self, prompt: Prompt, options: Any, **others: Any) -> Any:
            output = next((part.text for part in prompt.data() if part.name == "output"), "")
            if "nine hundred" in output:
                raise ValueError("no")
            return await super().choose(prompt, options, **others)

    def opened(model: str) -> Engine:
        return Refusing(
            lambda prompt: {"yes": 0.5, "no": 0.5, "faithful": 0.5, "hallucinated": 0.5}, name=model
        )

    what = Measurement(draw(SUMMEDITS, 60), "refusing", "faithfulness")
    row = row_of(measure(what, tmp_path / "q.db", opened, None), MACHINE)
    assert row.n_ok < row.n
    assert row.n_dev_ok < row.n_dev
    assert sum(row.failures.values()) == row.n - row.n_ok
    assert row.threshold is None
    assert row.tuned == {}
    assert row.auroc[0] is None


def go(data: Path, tmp_path: Path, **options: Any) -> list[QualityRow]:
    return list(
        session(
            [SUMMEDITS],
            ["scripted"],
            ["faithfulness"],
            40,
            file=tmp_path / "rows.jsonl",
            store=tmp_path / "q.db",
            opened=scripted,
            machine=MACHINE,
            tell=lambda text: None,
            watching=lambda: None,
            **options,
        )
    )


def test_rows_are_appended_once_and_read_back_the_same(data: Path, tmp_path: Path) -> None:
    first = go(data, tmp_path)
    assert [row.judge for row in first] == [
        *("always hallucinated", "length", "new bigrams"),
        *(f"signal:{name}" for name in SIGNALS),
        "faithfulness",
    ]
    assert rows.read(tmp_path / "rows.jsonl") == first
    go(data, tmp_path)
    assert rows.read(tmp_path / "rows.jsonl") == first
    go(data, tmp_path, again=True)
    assert len(rows.read(tmp_path / "rows.jsonl")) == len(first) + 1
    assert len(rows.newest(rows.read(tmp_path / "rows.jsonl"))) == len(first)


def test_a_broken_row_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('\n{"kind": "quality"}\n')
    with pytest.raises(SpecError, match=r"rows.jsonl, line 2 is no row of figures: protocol"):
        rows.read(tmp_path / "rows.jsonl")


def test_the_page_gets_the_tables_between_its_marks(data: Path, tmp_path: Path) -> None:
    found = go(data, tmp_path)
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- begin: quality -->\nof yesterday\n<!-- end: quality -->\nafter\n")
    tables.write(path, found)
    text = path.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert "of yesterday" not in text
    row = found[-1]
    assert f"| faithfulness, scripted | 40 | {tables.figure(row.own['balanced_accuracy'])} |" in text
    assert "| GPT-4 (published) | – | .82 | – |" in text
    assert "Not measured yet: halubench and ragtruth" in text
    assert "judge=faithfulness@" in text and "abc123" in text
    tables.write(path, found)
    assert path.read_text() == text
    path.write_text("nothing")
    with pytest.raises(SpecError, match="has no lines <!-- begin: quality -->"):
        tables.write(path, found)


def test_halubench_and_ragtruth_are_laid_out_side_by_side_with_the_drop_between_them(
    data: Path, tmp_path: Path
) -> None:
    (*_, row) = go(data, tmp_path)
    assert row.own["f1"][0] is not None
    higher = row.model_copy(
        update={"set": "halubench", "own": {**row.own, "f1": (0.8, 0.7, 0.9), "recall": (0.5, 0.4, 0.6)}}
    )
    lower = row.model_copy(update={"set": "ragtruth", "own": {**row.own, "f1": (0.72, 0.7, 0.9)}})
    lines = {line[0]: line[1:] for line in tables.pairs([higher, lower])}
    assert lines["faithfulness, scripted"][0].endswith("/ .50 / .80")
    assert lines["faithfulness, scripted"][1] == "40/40"
    assert lines["faithfulness, scripted"][4] == "+.08"
    datadog = (".87 / .82 / .84", "–", ".79 / .83 / .81", "–", "+.03")
    assert lines["Datadog rubric, GPT-4o (published)"] == datadog
    assert lines["RAG-HAT 8B (published)"] == ("–", "–", "– / – / .84", "–", "–")


def test_a_quick_look_does_not_displace_a_row_that_rests_on_more(data: Path, tmp_path: Path) -> None:
    (*_, row) = go(data, tmp_path)
    small = row.model_copy(update={"n": 20, "run": "quick"})
    assert rows.newest([row, small]) == [row]
    later = row.model_copy(update={"run": "later"})
    assert rows.newest([row, small, later]) == [later]


def test_published_figures_name_their_source() -> None:
    for name, entries in tables.published().items():
        assert name in {each.name for each in SETS}
        for entry in entries:
            assert entry.source
            assert entry.f1 is not None or entry.balanced_accuracy is not None


def test_a_judge_that_does_not_load_is_told_of_and_not_left_out_in_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = dict(registry.judge_entries())
    known["broken"] = EntryPoint("broken", "no.such.module:Judge", registry.JUDGES)
    for place in ("magistrate.judges.registry", "magistrate.judges.registry"):
        monkeypatch.setattr(f"{place}.judge_entries", lambda: known)
    told: list[str] = []
    assert "faithfulness" in faithfulness_judges(told.append)
    (line,) = told
    assert line.startswith("left out: judge 'broken' (no.such.module:Judge) cannot be loaded")


def test_judges_of_faithfulness_are_found_and_others_are_not() -> None:
    told: list[str] = []
    found = faithfulness_judges(told.append)
    assert told == []
    assert {
        "faithfulness",
        "hallucination",
        "candidates",
        "rubric",
        "sentences",
        "windows",
        "passages",
    } <= set(found)
    assert not {"relevance", "moderation", "context_relevance", "calibrated"} & set(found)


def test_unknown_sets_and_missing_folders_are_refused(home: Path) -> None:
    with pytest.raises(
        SpecError, match=r"no set 'sumedits' \(did you mean 'summedits'\?\); known: summedits"
    ):
        named(["sumedits"])
    with pytest.raises(SpecError, match="there is no folder"), data_in(Path("nowhere")):
        pass
    assert not any(here(each) for each in SETS)


@pytest.fixture
def scripted_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Engine]]:
    monkeypatch.setattr(program, "open_model", scripted)
    yield scripted


def test_the_command_measures_prints_appends_and_writes(
    call: Call, data: Path, tmp_path: Path, scripted_models: Any
) -> None:
    Path("page.md").write_text("<!-- begin: quality -->\n<!-- end: quality -->\n")
    words = ("--judge", "faithfulness", "--samples", 40, "--append", "rows.jsonl")
    done = call(*words, "--page", "page.md")
    assert done.code == 0, done.err
    assert "summedits" in done.out and "faithfulness" in done.out and "new bigrams" in done.out
    assert "not here, left out: begin" in done.err
    assert "### summedits" in Path("page.md").read_text()
    again = call(*words, "--json")
    assert [row["judge"] for row in again.data["rows"]][-1] == "faithfulness"
    assert len(Path("rows.jsonl").read_text().splitlines()) == 4 + len(SIGNALS)
    shown = call("--tables-only", "--append", "rows.jsonl")
    assert "faithfulness" in shown.out


def test_what_cannot_be_used_is_told_before_anything_is_measured(
    call: Call, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Prompt] = []

    def opened(model: str) -> Engine:
        if model == "nope":
            raise SpecError("unknown model 'nope'")
        return scripted(model, asked)

    monkeypatch.setattr(program, "open_model", opened)
    done = call("--judge", "faithfulness", "--model", "good", "--model", "nope")
    assert done.code == 2 and "unknown model 'nope'" in done.err
    Path("page.md").write_text("no marks")
    done = call("--judge", "faithfulness", "--model", "good", "--page", "page.md")
    assert done.code == 2 and "page.md has no lines" in done.err
    assert asked == []


def test_the_command_says_what_is_missing(call: Call, home: Path) -> None:
    done = call()
    assert done.code == 2
    assert "none of the protocol's sets is here" in done.err
    assert call("--tables-only").code == 2
    page = call("--tables-only", "--page", "nowhere.md")
    assert page.code == 2 and "cannot read nowhere.md" in page.err
    wrong = call("--judge", "rubrik")
    assert wrong.code == 2 and "unknown judge 'rubrik'" in wrong.err
