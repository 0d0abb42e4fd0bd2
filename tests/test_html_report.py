"""The report as a file: what stands in it, for every kind of run, and what it leaves out and says so."""

from __future__ import annotations

import hashlib
import re
import xml.etree.ElementTree as ElementTree
from base64 import b64encode
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import magistrate
from magistrate import Run, ScriptedEngine
from magistrate.errors import SpecError
from magistrate.report.html.outcomes import Mark, listed, marked
from magistrate.types import FAITHFUL, HALLUCINATED, Failure, Sample, Verdict
from reported import CLAIMS, outcomes_of, samples_of, stored
from terminal import Call
from tiers import tries

VOID = {"meta", "input", "br", "link", "img"}


class Reading(HTMLParser):
    """The elements of a page; fails where one is closed that is not open."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.ids += [str(value) for name, value in attributes if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.ids += [str(value) for name, value in attributes if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.texts).split())


def page_of(run: Run, folder: Path, **options: object) -> str:
    run.export(folder / "page.html", replace=True, **options)
    return (folder / "page.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    samples = samples_of(30)
    return stored(tmp_path_factory.mktemp("run"), samples, outcomes_of(samples))


# --- the file ----------------------------------------------------------------------------------------


def test_the_figures_are_those_of_the_report(run: Run, tmp_path: Path) -> None:
    words = Reading(page_of(run, tmp_path)).words
    (judge,) = run.summary().judges
    assert judge.result is not None
    found = judge.result.metrics["balanced_accuracy"]
    assert found.value is not None and found.low is not None and found.high is not None
    told = f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]".replace("0.", ".")
    assert f"Balanced accuracy is {told}" in words
    right = judge.result.confusion.true_positive + judge.result.confusion.true_negative
    assert f"Right on {right} of {judge.result.confusion.n} labelled samples" in words
    for fact in ("3 timeout", "3 over_length", "judge=rubric@2", "32,400 read", "Begun", *judge.remarks):
        assert fact in words
    assert judge.recipe is not None and judge.recipe in words


def test_a_page_is_well_formed_with_ids_of_its_own(run: Run, tmp_path: Path) -> None:
    found = Reading(page_of(run, tmp_path))
    assert len(found.ids) > 5
    assert len(set(found.ids)) == len(found.ids)


def test_nothing_outside_is_named_and_the_policy_holds_the_hashes(run: Run, tmp_path: Path) -> None:
    text = page_of(run, tmp_path)
    assert re.findall(r"(?:https?:)?//[a-z]", re.sub(r"<script>.*</script>", "", text, flags=re.S)) == []
    assert not re.search(r"""\s(?:src|style|on\w+|srcset|action)\s*=""", re.sub(r">[^<]*<", "><", text))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    assert "unsafe" not in policy and "default-src &#39;none&#39;" in policy
    for tag in ("style", "script"):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.S)
        digest = b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in policy


def test_the_same_run_makes_the_same_bytes(run: Run, tmp_path: Path) -> None:
    assert page_of(run, tmp_path) == page_of(run, tmp_path)


def test_a_page_of_one_judge_is_about_that_one(tmp_path: Path) -> None:
    samples = samples_of(10)
    outcomes = [*outcomes_of(samples, "strict"), *outcomes_of(samples, "lenient")]
    run = stored(tmp_path, samples, outcomes, judges=("strict", "lenient"))
    both = page_of(run, tmp_path)
    assert both.count('<li class="row') == 20 and "Judges</h2>" in both
    one = page_of(run, tmp_path, judge="strict")
    assert one.count('<li class="row') == 10 and "lenient" not in one
    with pytest.raises(SpecError, match="no judge 'strct'; it has: strict, lenient"):
        run.export(tmp_path / "page.html", judge="strct", replace=True)


# --- every kind of run -------------------------------------------------------------------------------


def test_a_run_without_labels_measures_nothing_and_shows_its_scores(tmp_path: Path) -> None:
    samples = samples_of(12, labelled=False)
    words = Reading(page_of(stored(tmp_path, samples, outcomes_of(samples)), tmp_path)).words
    assert "verdicts say hallucinated; none has a gold label" in words
    assert "Scores" in words and "ROC" not in words and "Reliability" not in words


def test_a_run_of_one_label_has_no_curves_and_says_why(tmp_path: Path) -> None:
    samples = [sample for sample in samples_of(20) if sample.label == FAITHFUL]
    words = Reading(page_of(stored(tmp_path, samples, outcomes_of(samples)), tmp_path)).words
    assert "AUROC: every sample is faithful" in words and "not defined" in words
    assert "Reliability" in words and "Precision and recall" not in words
    assert "nan" not in words.lower().split()


def test_a_run_without_a_verdict_or_an_outcome_is_a_page(tmp_path: Path) -> None:
    samples = samples_of(3)
    failed = [Failure(sample.id, "rubric", "engine_error", "gone") for sample in samples]
    words = Reading(page_of(stored(tmp_path, samples, failed, status="failed"), tmp_path)).words
    assert "There is no verdict" in words and "3 engine_error" in words and "gone" in words
    empty = Reading(page_of(stored(tmp_path, samples, [], status="running"), tmp_path)).words
    assert "There are no outcomes yet" in empty and "0 of 3 judgements are done" in empty
    nobody = Reading(page_of(stored(tmp_path, [], [], judges=()), tmp_path)).words
    assert "no judge and no outcome" in nobody


def test_one_sample_and_labels_of_other_names(tmp_path: Path) -> None:
    sample = Sample("only", "yes", label="GOOD")
    verdict = Verdict("only", "tone", "friendly", 1.0)
    text = page_of(stored(tmp_path, [sample], [verdict], judges=("tone",)), tmp_path)
    words = Reading(text).words
    assert "friendly" in words and "GOOD" in words and "There is none." in words
    assert "<svg" not in text, "scores of other labels mean something else"


def test_what_is_listed_is_what_somebody_should_see(tmp_path: Path) -> None:
    samples = {sample.id: sample for sample in samples_of(100)}
    outcomes = outcomes_of(list(samples.values()))
    found = listed(samples, outcomes, 40)
    wrong = [o for o in outcomes if isinstance(o, Verdict) and o.label != samples[o.sample_id].label]
    assert len(found.outcomes) == 40 and sum(found.left_out.values()) == 60
    failed = [o for o in outcomes if isinstance(o, Failure)]
    first = {o.sample_id for o in [*wrong, *failed][:40]}
    assert [o.sample_id for o in found.outcomes] == [i for i in samples if i in first], "in their order"
    assert found.words is not None and found.words.startswith("40 of 100 outcomes are listed")
    assert listed(samples, outcomes, 100).words is None
    run = stored(tmp_path, samples.values(), outcomes)
    text = page_of(run, tmp_path, rows=5)
    assert text.count('<li class="row') == 5
    assert "5 of 100 outcomes are listed" in text
    assert '<li class="row' not in page_of(run, tmp_path, rows=0)


def test_the_command_says_what_it_wrote(call: Call, run: Run, tmp_path: Path) -> None:
    store = ("--store", run.store)
    done = call("export", "last", "--to", "r.html", *store)
    assert (done.code, done.out) == (0, "wrote a report of 30 outcomes to r.html\n")
    done = call("export", "last", "--to", "r.html", "--rows", 4, "--force", *store)
    assert done.out == "wrote a report of 30 outcomes, 4 of them listed (--rows) to r.html\n"
    data = call("export", "last", "--to", "r.html", "--rows", 4, "--force", "--json", *store).data
    assert (data["rows"], data["listed"]) == (30, 4)
    for words, message in (
        (("--to", "r.html"), "--force"),
        (("--to", "x.html", "--judge", "nobody"), "it has: rubric"),
        (("--to", "x.html", "--rows", -1), "--rows"),
        (("--to", "nothere/x.html"), "cannot write"),
    ):
        done = call("export", "last", *words, *store)
        assert (done.code, done.out) == (2, "")
        assert message in done.err
    assert {path.name for path in tmp_path.iterdir()} == {"r.html"}


# --- marked texts ------------------------------------------------------------------------------------


@settings(max_examples=tries(200), deadline=None)
@given(
    st.text(max_size=60),
    st.lists(st.tuples(st.integers(-5, 70), st.integers(-5, 70)), max_size=6),
)
def test_marks_cover_their_words_whatever_overlaps(text: str, places: list[tuple[int, int]]) -> None:
    marks = [Mark(start, end, "agreement", "t", n) for n, (start, end) in enumerate(places, 1)]
    found = ElementTree.fromstring(f"<p>{visible(marked(text, marks))}</p>")
    assert len("".join(found.itertext())) == len(text), "nothing is lost and nothing added"
    for mark in marks:
        own = [e for e in found if str(mark.claim) in e.get("data-claims", "").split()]
        start, end = max(mark.start, 0), min(mark.end, len(text))
        assert sum(len(e.text or "") for e in own) == max(end - start, 0)
        begins = [e for e in own if str(mark.claim) in e.get("data-begins", "").split()]
        assert len(begins) == (1 if start < end else 0)


def visible(text: str) -> str:
    """Without the few characters that HTML may hold and XML may not."""
    return re.sub("[\ufffe\uffff]", "\ufffd", text).replace("\r", "\ufffd")


def test_a_long_text_keeps_its_beginning_and_what_is_near_a_mark() -> None:
    text = "".join(f"{n:06d} " for n in range(20_000))
    shown = str(marked(text, [Mark(100_000, 100_014, "agreement", "t", 1)], longest=20_000))
    assert text[100_000:100_014] in shown and shown.startswith("000000 ")
    gaps = [int(n.replace(",", "")) for n in re.findall(r"… ([\d,]+) characters", shown)]
    assert len(gaps) == 2
    assert len(re.sub(r'<span class="gap">.*?</span>|<[^>]+>', "", shown)) + sum(gaps) == len(text)
    assert "omitted" not in marked("x" * 20_000, [], longest=20_000)


def test_every_claim_is_there_in_words_and_in_both_texts(run: Run, tmp_path: Path) -> None:
    text = page_of(run, tmp_path)
    for claim in CLAIMS:
        assert claim.output_text in Reading(text).words
        if claim.context_text:
            assert f"<small>context 1</small>{claim.context_text}" in text
    assert {kind for kind in ("contradiction", "unsupported", "gold") if f'class="{kind}"' in text} == {
        "contradiction",
        "unsupported",
        "gold",
    }
    assert HALLUCINATED in text


def test_dollars_stand_where_a_price_is_known(tmp_path: Path) -> None:
    rows = [{"output": "true", "context": "c", "label": "faithful"}] * 2
    engine = ScriptedEngine(lambda prompt: {"faithful": 1})
    options = {"judges": "faithfulness", "model": engine, "store": tmp_path / "runs.db", "progress": False}
    paid = magistrate.evaluate(rows, price="10/20", **options)
    (judge,) = paid.summary().judges
    dollars = (10 * judge.usage.prompt + 20 * judge.usage.generated) / 1e6
    assert dollars > 0 and f"${dollars:,.4f} at $10 in, $20 out" in Reading(page_of(paid, tmp_path)).words
    free = magistrate.evaluate(rows, **options)
    assert "$" not in Reading(page_of(free, tmp_path)).words


def test_every_label_of_a_filter_is_one_that_is_listed(run: Run, tmp_path: Path) -> None:
    text = page_of(run, tmp_path)
    for name, attribute in (("judged", "judged"), ("gold", "gold")):
        (choices,) = re.findall(rf'<select name="{name}">(.*?)</select>', text)
        offered = set(re.findall(r'<option value="([^"]+)"', choices)) - {"-"}
        assert offered == set(re.findall(rf'data-{attribute}="([^"]+)"', text)) - {"-"}
