"""What a notebook shows, as IPython asks for it: HTML in the notebook's own colours; nothing in it runs."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from IPython.core.formatters import DisplayFormatter

from magistrate import Run
from magistrate._text import card, table
from magistrate.types import Abstention, Failure, Sample, Verdict
from reported import CLAIMS, outcomes_of, samples_of, stored

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>"


def shown(value: object) -> str:
    """The HTML that IPython takes for a value; fails where it would show a text instead."""
    data, _ = DisplayFormatter().format(value)
    assert "text/html" in data
    return str(data["text/html"])


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += f"{data} "


@pytest.fixture
def run(tmp_path: Path) -> Run:
    samples = samples_of(30)
    outcomes = [*outcomes_of(samples), *outcomes_of(samples, "second")]
    return stored(tmp_path, samples, outcomes, judges=("rubric", "second"))


def test_a_run_is_tables_of_its_figures(run: Run) -> None:
    html, report = shown(run), run.summary()
    assert html == shown(report)
    tags = Tags(html)
    assert "pre" not in tags.names and tags.names.count("table") == 1 + 3 * len(report.judges)
    judge = report.judges[0]
    assert judge.result is not None and judge.recipe is not None
    area = judge.result.metrics["auroc"]
    assert area.value is not None and area.low is not None and area.high is not None
    told = f"{area.value:.2f} [{area.low:.2f}, {area.high:.2f}]".replace("0.", ".")
    for words in (told, "n-gram overlap", "3 timeout", judge.recipe, *judge.remarks):
        assert words in tags.words


@pytest.mark.parametrize("value", ["run", "verdict", "failure", "abstention"])
def test_it_takes_the_colours_of_the_notebook(run: Run, value: str) -> None:
    found: object = {
        "run": run,
        "verdict": Verdict("s", "rubric", "hallucinated", 0.9, 0.9, "why", claims=CLAIMS),
        "failure": Failure("s", "rubric", "timeout", "no answer"),
        "abstention": Abstention("s", "rubric", "no_context", "there is none"),
    }[value]
    html = shown(found)
    assert not re.search(r"background(?:-color)?:\s*(?:#|white|black|rgb\()", html)
    assert not re.search(r"(?<![-\w])color:\s*(?!inherit)", html), "words are in the colour of the page"


def test_a_verdict_has_its_quotes_beside_each_other() -> None:
    verdict = Verdict("s", "rubric", "hallucinated", 0.9, 0.8, "four, not two", claims=CLAIMS)
    html = shown(verdict)
    for claim in CLAIMS:
        row = next(row for row in html.split("<tr") if claim.output_text in row)
        assert claim.kind in row
        assert (claim.context_text or "nothing quoted") in row
    tags = Tags(html)
    assert tags.names.count("mark") == sum(1 + (claim.context_text is not None) for claim in CLAIMS)
    assert "80.0%" in tags.words and "four, not two" in tags.words


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    sample = Sample("s", HOSTILE, (HOSTILE,), label="faithful")
    verdict = Verdict("s", HOSTILE, HOSTILE, 0.5, 0.5, HOSTILE)
    run = stored(tmp_path, [sample], [verdict], name=HOSTILE, dataset=HOSTILE, judges=[HOSTILE])
    failed = Failure("s", HOSTILE, "timeout", HOSTILE)
    for html in (shown(run), shown(verdict), shown(failed), table([HOSTILE], [[HOSTILE]], title=HOSTILE)):
        assert not {"script", "img"} & set(Tags(html).names)
        assert "alert(1)" in html


def test_a_run_without_labels_or_outcomes_is_shown_too(tmp_path: Path) -> None:
    samples = samples_of(3, labelled=False)
    assert "No sample is labelled" in shown(stored(tmp_path, samples, outcomes_of(samples)))
    assert "3 not judged" in shown(stored(tmp_path, samples, [], status="failed"))


def test_tables_and_cards_escape_and_align() -> None:
    html = table(["name", "n"], [["a<b", "1"]], title="t")
    assert "a&lt;b" in html and html.count("text-align:right") == 2
    assert table(["a", "b"], [["x", "y"]], left=2).count("text-align:right") == 0
    assert card("t", "#808080", [("a", "<b>")], None).count("&lt;b&gt;") == 1
