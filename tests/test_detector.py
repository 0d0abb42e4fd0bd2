"""A detector: what it reads of a sample, what its folder must hold, what its verdict says."""

from __future__ import annotations

import asyncio
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from benchmarks.detector import speed
from benchmarks.detector.evidence import kinds_of, words_of
from magistrate.detectors.detector import (
    PADDED,
    TOGETHER,
    Detection,
    SentenceScores,
    _passes,
    _readings,
    detector,
    supported_once,
)
from magistrate.detectors.folder import SHIPPED, WEIGHTS
from magistrate.detectors.weights import products, read_weights
from magistrate.detectors.windows import Change, Reader, Rewritten, in_units_of_context, rewritten
from magistrate.engines.none import NONE
from magistrate.errors import ModelError, SpecError
from magistrate.features.splitting import lines
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.judges.combined import Combined
from magistrate.judges.detector import Detector
from magistrate.types import Abstention, Outcome, Sample, Span, Turn, Verdict
from terminal import Call
from tiny_detector import MARKS, change, write_detector, write_tokenizer

BRIDGE = "The bridge in Bern was built in 1844. It is blue. The town is old and large."
WRONG = "1850 red"
OTHER = "Is it new? Anna paid by filler words of little use"
TEXTS = (BRIDGE, WRONG, OTHER)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_detector(tmp_path / "tiny", TEXTS)


def tokenizer(tmp_path: Path) -> Tokenizer:
    write_tokenizer(tmp_path / "tokenizer.json", TEXTS)
    return Tokenizer.from_file(str(tmp_path / "tokenizer.json"))


def sample(output: str, *context: str, **fields: object) -> Sample:
    return Sample("s", output, context or (BRIDGE,), **fields)  # type: ignore[arg-type]


def judged(folder: Path, output: str, **options: object) -> Outcome:
    return asyncio.run(Detector(folder, **options).judge(sample(output), NONE))  # type: ignore[arg-type]


# --- what is read ---------------------------------------------------------------------------------


def test_context_question_and_output_stand_in_one_window(tmp_path: Path) -> None:
    told = tokenizer(tmp_path)
    asked = sample(
        "It is blue.", "The town is old.", input="Is it new?", messages=(Turn("user", "Anna paid"),)
    )
    (window,) = Reader(told, 128).windows(asked)
    read = told.decode(list(window.ids), skip_special_tokens=False)
    assert read == "[CLS] the town is old . anna paid [SEP] is it new [UNK] [SEP] it is blue . [SEP]"
    assert window.ids[window.second] == told.token_to_id("is")
    said = [asked.output[start:end] for start, end in window.places]  # type: ignore[index]
    assert said == ["It", "is", "blue", "."]
    assert [asked.sources[each.index][each.start : each.end] for each in window.passages] == [
        "The town is old.",
        "Anna paid",
    ]


def test_every_token_of_an_output_is_read_once_with_its_place_in_sentences_that_stay_whole(
    tmp_path: Path,
) -> None:
    read = Reader(tokenizer(tmp_path), 128)
    draw = random.Random(1)
    for number in range(200):
        parts = [
            draw.choice(("The bridge was built in 1850.", "It is blue!", "Old town\n", "naïve 한국 🌉"))
            for _ in range(draw.randrange(1, 30))
        ]
        output = draw.choice((" ", "  ", "\n")).join(parts)
        windows = read.windows(sample(output, BRIDGE * draw.randrange(1, 9)))
        places = [place for window in windows for place in window.places]
        assert places == sorted(places), number
        covered = {at for start, end in places for at in range(start, end)}
        assert covered == {at for at, each in enumerate(output) if not each.isspace()}, number
        for window in windows:
            assert len(window.ids) <= 128
            ends = [window.begin, *(each.end for each in window.sentences)]
            assert ends[-1] == window.end and ends == sorted(ends)


def test_of_a_long_context_the_sentences_are_read_that_share_most_with_the_output(tmp_path: Path) -> None:
    told = tokenizer(tmp_path)
    filler = "Filler words of little use. " * 80
    (window,) = Reader(told, 128).windows(
        sample("The bridge in Bern was built", filler + BRIDGE + " " + filler)
    )
    assert "the bridge in bern was built in 1844" in told.decode(list(window.ids[: window.begin]))


def test_each_sentence_is_compared_with_the_passage_that_shares_most_words_with_it(tmp_path: Path) -> None:
    told = tokenizer(tmp_path)
    filler = "Filler words of little use. " * 80
    asked = sample(
        "Anna paid. The bridge in Bern was built", filler + BRIDGE, "Anna paid", input="Is it new?"
    )
    first, second = Reader(told, 128).pairs(asked)
    read = [told.decode(list(each.ids), skip_special_tokens=False) for each in (first, second)]
    assert read[0] == "[CLS] anna paid [SEP] anna paid . [SEP]", "without the question"
    assert read[1].startswith("[CLS] the bridge in bern was built in 1844")
    (passage,) = first.passages
    assert (passage.index, asked.sources[1][passage.start : passage.end]) == (1, "Anna paid")
    (nothing,) = Reader(told, 128).pairs(sample("Anna paid", " "))
    assert nothing.passages == () and nothing.second == 2


def test_tables_and_json_become_lines_that_can_be_read_alone() -> None:
    table = "Prices\n| item | price |\n|---|---|\n| tea | 2 |\n| cake | 3 |\nAll with tax. Cash only."
    read = [line for _, _, line in lines(table)]
    assert read[:4] == ["Prices", "| item | price |", "item: tea; price: 2", "item: cake; price: 3"]
    assert read[4:] == ["All with tax.", "Cash only."]
    assert [table[start:end] for start, end, _ in lines(table)][2] == "| tea | 2 |"
    told = json.dumps({"hours": {"Mon": "9-5", "days_off": ["Sat", "Sun"]}, "open": True})
    assert [line for _, _, line in lines(told)] == [
        "hours Mon: 9-5",
        "hours days off: Sat, Sun",
        "open: True",
    ]
    assert [line for _, _, line in lines("{not json}")] == ["{not json}"]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_rows_of_csv_become_lines_with_the_names_of_their_columns(mark: str) -> None:
    table = mark.join("abc") + "\n" + mark.join(("x", '"y, z"', "1.5")) + "\n" + mark.join("uv2")
    text = f"Sold, so far:\n{table}\nAll paid, and sent."
    read = [(text[start:end], line) for start, end, line in lines(text)]
    assert [line for _, line in read] == [
        "Sold, so far:", mark.join("abc"), "a: x; b: y, z; c: 1.5", "a: u; b: v; c: 2", "All paid, and sent."
    ]  # fmt: skip
    assert read[3][0] == mark.join("uv2")
    for prose in ("We sold tea, cake, and ham.\nThey ate, drank, and left.\nThen, at last, it rained.",
                  "1,2,3\n4,5,6\n7,8,9", "a,b,c\n1,2\n3,4,5", "a,b,c\n1,2,3"):  # fmt: skip
        assert " ".join(line for _, _, line in lines(prose)).split() == prose.split()


def test_what_the_context_has_in_another_form_is_read_in_that_form_and_places_stay(tmp_path: Path) -> None:
    context = "Paid on 2026-03-14 at 17:30, and not later."
    write_tokenizer(tmp_path / "tokenizer.json", (*TEXTS, context))
    told = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    asked = sample("Paid on March 14th at 5:30 pm.", context)
    reader = Reader(told, 128)
    for window in (*reader.pairs(asked), *reader.windows(asked)):
        read = told.decode(list(window.ids[window.begin : window.end]), skip_special_tokens=False)
        assert read.replace(" ", "") == "paidon2026[UNK]03[UNK]14at17[UNK]30."
        said = [(asked.output or "")[start:end] for start, end in window.places]
        assert list(dict.fromkeys(said)) == ["Paid", "on", "March 14th", "at", "5:30 pm", "."]


def test_an_amount_can_be_read_in_the_unit_of_the_context_and_places_stay(tmp_path: Path) -> None:
    context = "The loan runs for 24 months. The bank is in Bern."
    write_tokenizer(tmp_path / "tokenizer.json", (*TEXTS, context))
    told = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    asked = sample("It is in Bern. The loan runs two years.", context)
    changes = in_units_of_context(asked)
    assert changes == [(29, 38, "24 months", True)]
    reader = Reader(told, 128)
    pairs = reader.pairs(asked, changes)
    assert [context[each.passages[0].start : each.passages[0].end] for each in pairs] == [
        "The bank is in Bern.",
        "The loan runs for 24 months.",
    ]
    for window in (pairs[-1], *reader.windows(asked, changes)):
        read = told.decode(list(window.ids[window.begin : window.end]), skip_special_tokens=False)
        assert read.replace(" ", "").endswith("theloanruns24months.")
        said = [(asked.output or "")[start:end] for start, end in window.places]
        assert [*dict.fromkeys(said[:-1])][-4:] == ["The", "loan", "runs", "two years"] and said[-1] == "."


@pytest.mark.parametrize(
    ("output", "context", "read"),
    [
        ("It takes a fortnight.", "It takes two weeks.", "It takes two weeks."),
        ("It takes half an hour.", "A 30-minute walk.", "It takes 30 minute."),
        ("An hour and a half, or 2.5 km.", "90 minutes, 2,500 m", "90 minutes, or 2,500 m."),
        ("Half a kilo, 50 cents.", "500 g cost $0.50.", "500 g, $0.50."),
        ("A three-year loan.", "A 24-month loan.", "36 month loan."),  # another amount, and below too
        (
            "Two hundred square feet.",
            "It has 3 acres.",
            "Two hundred square feet.",
        ),  # no short number says it
        ("Four litres.", "750 ml or two gallons.", "4000 ml."),
        ("Two years, three years.", "In 24 months.", "24 months, 36 months."),
        ("Three cents.", "It costs $5.", "Three cents."),
        ("Two years.", "In 24 months, or 2 years.", "Two years."),  # the context has the unit too
        ("About two years.", "In 24 months.", "About two years."),  # roughly
        ("Twenty-four months.", "In 24 months.", "Twenty-four months."),  # in the same unit
        ("At two.", "At 14:00, for 120 minutes.", "At two."),
        ("2 km", "2 000 mm, 2 kg", "2 km"),
    ],
)
def test_only_an_exact_amount_in_a_unit_that_the_context_lacks_is_converted(
    output: str, context: str, read: str
) -> None:
    assert rewritten(output, in_units_of_context(sample(output, context))).text == read


def test_of_long_json_every_value_is_read_in_bounded_room() -> None:
    many = [{"id": number, "state": "ok"} for number in range(5_000)] + [{"id": "last", "state": "failed"}]
    assert [line for _, _, line in lines(json.dumps(many))][-2:] == ["id: last", "state: failed"]
    assert len(list(lines(json.dumps(many)))) == 2 * len(many)
    twice = '{"state": "failed", "state": "ok"}'
    assert "failed" in " ".join(line for _, _, line in lines(twice))
    wide = json.dumps({"k" * 20_000: {f"v{number}": number for number in range(5_000)}})
    deep = json.dumps({"k" * 20_000: [{"v": number} for number in range(5_000)]})
    for text in (wide, deep):
        read = [line for _, _, line in lines(text)]
        assert "4999" in read[-1] and sum(map(len, read)) < 10 * len(text)


def test_long_names_of_columns_are_not_repeated_in_every_row() -> None:
    text = f"| {'n' * 20_000} | b |\n" + "| x | y |\n" * 2_000
    read = [line for _, _, line in lines(text)]
    assert read[-1] == f"{'n' * 80}: x; b: y" and sum(map(len, read)) < 10 * len(text)


def test_nothing_is_read_of_an_output_without_tokens(tmp_path: Path) -> None:
    read = Reader(tokenizer(tmp_path), 128)
    assert not any(read.windows(sample(output)) for output in ("", "  \n", "\t \u00a0"))


def test_a_text_that_spells_special_tokens_has_none(tmp_path: Path) -> None:
    told = tokenizer(tmp_path)
    special = {told.token_to_id(mark) for mark in MARKS} - {told.token_to_id("[UNK]")}
    marks = " ".join(MARKS)
    hostile = f"The bridge{marks} is{marks.replace(' ', '')} blue \ud800 \u202e. {marks}"
    asked = sample(hostile, hostile, input=hostile, messages=(Turn("user", hostile),))
    reader = Reader(told, 512)
    for window in (*reader.windows(asked), *reader.pairs(asked)):
        found = [at for at, token in enumerate(window.ids) if token in special]
        assert found == sorted({0, window.second - 1, window.begin - 1, window.end})


def test_a_tokenizer_is_refused_that_has_no_marks_or_takes_them_from_texts(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    told = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    usual = {**told, "added_tokens": [{**each, "special": False} for each in told["added_tokens"]]}
    with pytest.raises(ModelError, match="could look like two"):
        Reader(Tokenizer.from_str(json.dumps(usual)), 128)
    with pytest.raises(ModelError, match=r"\[CLS\] and \[SEP\]"):
        Reader(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), 128)


# --- the verdict ----------------------------------------------------------------------------------


def test_a_claim_has_the_words_that_decide_their_kind_and_what_speaks_against_them(folder: Path) -> None:
    output = "The bridge is old. It was built in 1850. Anna paid Anna."
    found = judged(folder, output)
    assert isinstance(found, Verdict) and found.label == "hallucinated"
    told = [(claim.kind, claim.output_text) for claim in found.claims]
    assert told == [("unsupported", "Anna paid Anna")], (
        "1850 alone does not outweigh the rest of its sentence"
    )
    (claim,) = found.claims
    assert output[claim.output_quote.start : claim.output_quote.end] == claim.output_text
    assert claim.context_quote is None and claim.probability and claim.probability > 0.5
    found = judged(folder, "1850 red.")
    assert isinstance(found, Verdict)
    (claim,) = found.claims
    assert (claim.kind, claim.output_text) == ("contradiction", "1850 red")
    assert claim.context_quote and claim.context_index == 0
    assert BRIDGE[claim.context_quote.start : claim.context_quote.end] == claim.context_text


def test_every_sentence_and_every_word_has_its_figures(folder: Path) -> None:
    output = "The bridge is blue. Anna paid."
    found = judged(folder, output)
    assert isinstance(found, Verdict)
    sentences = found.details["sentences"]
    assert [output[each["start"] : each["end"]] for each in sentences] == [
        "The bridge is blue.",
        "Anna paid.",
    ]
    for each in sentences:
        assert each["supported"] + each["contradicted"] + each["absent"] == pytest.approx(1, abs=1e-3)
    supported = math.prod(1 - each["unsupported"] for each in sentences) ** (1 / math.sqrt(2))
    assert found.score == pytest.approx(1 - supported, abs=1e-2), "two count as √2 independent ones"
    heat = found.details["heat"]
    assert heat["text"] == output
    assert [output[start:end] for start, end, _ in heat["pieces"]] == [
        "The", "bridge", "is", "blue", ".", "Anna", "paid", ".",
    ]  # fmt: skip
    assert [value > 0.5 for *_, value in heat["pieces"]] == [False] * 5 + [True, True, False]


@pytest.mark.parametrize("judge", [Detector(), Combined()])
def test_the_words_of_a_supported_sentence_are_not_marked(judge: Judge) -> None:
    right = "The ticket costs 12 euros and children under six enter free."
    wrong = "Adults pay a reduced price."
    context = "Admission is EUR 12. Kids below the age of six do not pay. Adults always pay the full price."
    found = asyncio.run(judge.judge(sample(f"{right} {wrong}", context), NONE))
    assert isinstance(found, Verdict) and found.label == "hallucinated"
    heat = {start: value for start, _, value in found.details["heat"]["pieces"]}
    assert max(value for start, value in heat.items() if start < len(right)) < 0.5
    assert heat[len(right) + 1 + wrong.index("reduced")] > 0.5
    first, second = (each["unsupported"] for each in found.details["sentences"])
    assert max(heat.values()) <= second and first < 0.5


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("The lease runs until the end of June.", "contradiction"),
        ("The deposit is two months of rent.", "contradiction"),
        ("Cats are forbidden in the flat.", "contradiction"),
        ("A parking space belongs to the flat.", "unsupported"),
        ("The kitchen was renovated in spring.", "unsupported"),
    ],
)
def test_a_changed_fact_is_a_contradiction_and_a_new_one_is_unsupported(said: str, kind: str) -> None:
    context = "The lease runs until the end of May. The deposit is three months of rent. Cats are allowed."
    found = asyncio.run(Combined().judge(sample(said, context), NONE))
    assert isinstance(found, Verdict) and found.label == "hallucinated"
    assert {claim.kind for claim in found.claims} == {kind}


def test_kinds_are_counted_for_the_wrong_sentences_of_clear_errors_alone() -> None:
    def read(*shares: tuple[float, float, float]) -> Detection:
        sentences = (
            SentenceScores(10 * at, 10 * at + 9, 0.0, each, (), None) for at, each in enumerate(shares)
        )
        return Detection(tuple(sentences), 1, 10)

    both = Sample("1", "x" * 20, spans=(Span(10, 14),))
    contradicted, absent = (0.0, 0.8, 0.2), (0.0, 0.6, 0.4)
    kinds = ("number", "unsupported", "cause", "role")
    found = [
        read(absent, contradicted),
        read(contradicted, absent),
        read(absent, contradicted),
        read(absent, absent),
    ]
    assert kinds_of([both] * 4, kinds, found) == (0.5, 0.0)
    assert math.isnan(kinds_of([both], ["cause"], found[:1])[0])


def test_words_are_measured_by_their_rank_in_wrong_outputs_and_their_heat_in_right_ones() -> None:
    wrong = Sample("1", "blue old boat", spans=(Span(0, 4),))
    right = Sample("2", "old boat")
    marked = [[(0, 4, 0.4), (5, 8, 0.1), (9, 13, 0.6)], [(0, 3, 0.5), (4, 8, 0.0)]]
    assert words_of([wrong, right, right], [*marked, [(0, 3, 0.4)]]) == (0.5, 0.5)


def test_phrases_to_the_reader_are_not_read_and_places_stay(folder: Path) -> None:
    plain = "The bridge is blue. Anna paid."
    framed = f"According to the text, {plain} Let me know if you have any questions."
    one, other = judged(folder, plain), judged(folder, framed)
    assert isinstance(one, Verdict) and isinstance(other, Verdict)
    assert other.score == one.score
    said = [framed[each["start"] : each["end"]] for each in other.details["sentences"]]
    assert said == ["The bridge is blue.", "Anna paid."]
    assert other.details["heat"]["text"] == framed
    assert [claim.output_text for claim in other.claims] == [claim.output_text for claim in one.claims]


def test_a_faithful_output_has_no_claims(folder: Path) -> None:
    found = judged(folder, "The bridge in Bern was built in 1844")
    assert isinstance(found, Verdict)
    assert (found.label, found.claims) == ("faithful", ())
    assert found.probability == pytest.approx(1 - found.score)


def test_the_base_rate_and_the_threshold_move_the_label_not_the_ranking(folder: Path) -> None:
    change(folder, scale=0.25)
    usual, rare = judged(folder, "by Anna"), judged(folder, "by Anna", base_rate=0.1)
    known = judged(folder, "The bridge", base_rate=0.1)
    assert isinstance(usual, Verdict) and isinstance(rare, Verdict) and isinstance(known, Verdict)
    assert (usual.label, rare.label) == ("hallucinated", "faithful")
    assert usual.score > rare.score > known.score
    # Odds are multiplied by those of the base rate (Elkan 2001).
    odds = usual.score / (1 - usual.score) / 9
    assert rare.score == pytest.approx(odds / (1 + odds))
    strict = judged(folder, "by Anna", threshold=0.9)
    assert isinstance(strict, Verdict) and strict.label == "faithful"


def test_a_detector_that_reads_pairs_only_asks_for_no_whole_context(tmp_path: Path, folder: Path) -> None:
    narrow = write_detector(tmp_path / "narrow", TEXTS)
    change(narrow, readings=["pairs"])
    output = sample("The bridge is blue. Anna paid. It is old.")
    found, whole = (Detector(each).model.detect(output) for each in (narrow, folder))
    assert found is not None and whole is not None
    assert (found.windows, whole.windows) == (3, 4)
    assert [each.start for each in found.sentences] == [each.start for each in whole.sentences]
    model = Detector(folder).model
    (window,) = model.reader.windows(output)
    within = list(_readings(output.output or "", window, model._logits([window])[0]))
    wanted = [
        supported_once(near.logit, each.logit) for near, each in zip(found.sentences, within, strict=True)
    ]
    assert [each.logit for each in whole.sentences] == pytest.approx(wanted, abs=1e-4)
    marked = [[word.probability for word in each.words] for each in whole.sentences]
    assert marked == [pytest.approx([word.probability for word in each.words], abs=1e-4) for each in within]
    assert [each.shares for each in whole.sentences] == [
        pytest.approx(each.shares, abs=1e-4) for each in within
    ]
    assert [each.passage for each in whole.sentences] == [each.passage for each in found.sentences]
    with pytest.raises(SpecError, match="readings"):
        change(narrow, readings=["windows"])
        Detector(narrow)


def test_a_short_answer_is_only_read_with_its_question(folder: Path) -> None:
    model = Detector(folder).model
    short = sample("Blue, or red.", input="Which colour has the bridge?")
    found = model.detect(short)
    assert found is not None and found.windows == 1
    (window,) = model.reader.windows(short)
    (answer,) = _readings(short.output or "", window, model._logits([window])[0])
    (told,) = found.sentences
    assert told.logit == pytest.approx(answer.logit, abs=1e-4)
    (pair,) = model.reader.pairs(short)
    assert told.passage == pair.passages[0], "shown beside it all the same"
    statement = replace(short, output="The bridge over the river is blue, or red.")
    for other in (replace(short, input=None), statement):
        both = model.detect(other)
        assert both is not None and both.windows == 2, "a statement by itself"


@pytest.mark.parametrize("known", [True, False])
def test_a_converted_sentence_has_the_reading_that_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    model = Detector(folder).model
    said = sample("It is blue. It stood for 1850 months. It is old.", "It is blue. It stood for 1850 weeks.")
    plain = model._detect(said)
    start = (said.output or "").index("1850 months")
    for words in ("1850 red", "blue"):
        change = Change(start, start + len("1850 months"), words, known)
        monkeypatch.setattr("magistrate.detectors.detector.in_units_of_context", lambda _, one=change: [one])
        found, again = model.detect(said), model._detect(said, [change])
        assert plain is not None and found is not None and again is not None
        assert (found.windows, found.tokens) == (2 * plain.windows, plain.tokens + again.tokens)
        assert found.sentences[::2] == plain.sentences[::2], "nothing is changed there"
        one, other = plain.sentences[1], again.sentences[1]
        assert one.logit != other.logit
        assert found.sentences[1] == (other if (other.logit < one.logit) is known else one)


def test_windows_of_similar_length_are_read_together_and_padded_little() -> None:
    order = random.Random(1)
    for lengths in ([], [254], [42, 254], [40] * 20, [order.randint(20, 384) for _ in range(99)]):
        passes = _passes(lengths)
        assert sorted(at for some in passes for at in some) == list(range(len(lengths)))
        for some in passes:
            sizes = [lengths[at] for at in some]
            assert len(some) <= TOGETHER and len(some) * max(sizes) <= PADDED * sum(sizes)
    assert _passes([42, 254]) == [[0], [1]], "a short window is not padded to a long one"
    assert [len(some) for some in _passes([40] * 20)] == [8, 8, 4]


def test_support_that_one_reading_finds_counts() -> None:
    for near, whole in ((2.0, -1.0), (-1.0, 2.0), (0.3, 0.3), (-4.0, 5.0)):
        odds = (math.exp(-near) + math.exp(-whole)) / 2
        assert supported_once(near, whole) == pytest.approx(-math.log(odds))
    assert supported_once(1e4, -1e4) == pytest.approx(-1e4, abs=1), "far beyond what exp can hold"
    assert supported_once(1e4, 1e4) == 1e4


def test_an_output_without_words_is_no_verdict(folder: Path) -> None:
    assert isinstance(judged(folder, " \n"), Abstention)


def test_it_is_a_judge_of_code_that_says_what_it_was_trained_on(folder: Path) -> None:
    info = registry.judge(f"detector:{folder}").info
    assert (info.kind, info.asks, info.trained_on) == ("code", False, frozenset({"begin"}))
    assert info.name == "detector:tiny", "where it lies is no part of the name"
    assert info.prompt == Detector(folder).model.manifest.digest


def test_a_run_with_it_needs_no_engine(home: Path, call: Call, folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(
        '{"context": "The bridge is blue", "output": "The bridge is blue"}\n' * 3, encoding="utf-8"
    )
    ran = call("run", str(data), "--judge", f"detector:{folder}", "--json")
    assert ran.code == 0, ran.err
    assert "model=none" in ran.out


# --- the folder -----------------------------------------------------------------------------------


def test_another_folder_is_refused_with_what_it_lacks(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError, match=r"detector\.json"):
        registry.judge(f"detector:{tmp_path / 'empty'}")
    change(folder, scale=-1.0)
    with pytest.raises(SpecError, match="scale"):
        Detector(folder)


def test_a_changed_file_is_refused_before_anything_is_judged(folder: Path) -> None:
    weights = folder / WEIGHTS
    weights.write_bytes(weights.read_bytes() + b"\0")
    with pytest.raises(ModelError, match=WEIGHTS):
        judged(folder, "The bridge")


def test_what_decides_is_in_the_digest_and_what_is_only_told_is_not(folder: Path) -> None:
    before = Detector(folder).info.prompt
    change(folder, recipe={"note": "told"})
    assert Detector(folder).info.prompt == before
    change(folder, offset=0.5)
    assert Detector(folder).info.prompt != before


def test_the_benchmark_of_speed_measures_what_it_says() -> None:
    model = detector(SHIPPED)
    sample = speed.sample_of(model)
    texts = [Rewritten(text) for text in (*sample.sources, sample.output or "")]
    size = sum(len(model.reader._encode(text).ids) for text in texts)
    assert speed.TOKENS - 10 <= size <= speed.TOKENS
    computed = products(read_weights(SHIPPED / WEIGHTS))
    assert speed.weights_of(SHIPPED) == sum(each.size for each in computed.values() if each.dtype == np.int8)


SENT = "The parcel was sent on {}."


@pytest.mark.parametrize(
    ("context", "right", "wrong"),
    [
        (SENT.format("2026-03-14"), "It was sent on March 14, 2026.", "It was sent on March 17, 2026."),
        (SENT.format("14.03.2026"), "It was sent on 14 March 2026.", "It was sent on 14 May 2026."),
        (SENT.format("14/03/2026"), "It was sent on March 14th.", "It was sent on March 17th."),
        (SENT.format("14 March 2026"), "It was sent on 2026-03-14.", "It was sent on 2026-05-14."),
        ("The shop closes at 17:30.", "It closes at 5:30 pm.", "It closes at 7:30 pm."),
        ("It costs €50 a month.", "The price is EUR 50 a month.", "The price is EUR 15 a month."),
        (
            "Return it within 21 days.",
            "You have three weeks to return it.",
            "You have five weeks to return it.",
        ),
        ("The trail is 4,500 m long.", "The trail is 4.5 km long.", "The trail is 45 km long."),
        ("Notice is given one quarter ahead.", "The notice is three months.", "The notice is two months."),
    ],
)
def test_the_shipped_one_knows_dates_times_money_and_amounts_in_other_forms(
    context: str, right: str, wrong: str
) -> None:
    found = [asyncio.run(Detector().judge(sample(said, context), NONE)) for said in (right, wrong)]
    assert [isinstance(each, Verdict) and each.label for each in found] == ["faithful", "hallucinated"]
