"""A detector: what it reads of a sample, what its folder must hold, what its verdict says."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from magistrate import resolve
from magistrate.detectors.encoding import (
    CAPITAL,
    CONTEXT,
    DIGIT,
    END,
    IN_SEQUENCE,
    INPUT,
    KNOWN,
    NOVEL,
    OUTPUT,
    PLAIN,
    Encoder,
)
from magistrate.detectors.folder import WEIGHTS
from magistrate.engines.none import NONE
from magistrate.errors import ModelError, SpecError
from magistrate.judges.detector import Detector
from magistrate.types import Abstention, Outcome, Sample, Turn, Verdict
from terminal import Call
from tiny_detector import change, write_byte_tokenizer, write_detector, write_tokenizer

BRIDGE = "The bridge in Bern was built in 1844. It is blue. The town is old and large."
TEXTS = (BRIDGE, "The bridge was built in 1850 by Anna. Is it blue? Filler words of little use.")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_detector(tmp_path / "tiny", TEXTS)


def byte_encoder(tmp_path: Path, window: int = 64) -> Encoder:
    """Of a vocabulary whose tokens begin with space and may be parts of a character."""
    write_byte_tokenizer(tmp_path / "bytes.json", TEXTS)
    return Encoder(Tokenizer.from_file(str(tmp_path / "bytes.json")), window)


def encoder(tmp_path: Path, window: int = 64) -> Encoder:
    write_tokenizer(tmp_path / "tokenizer.json", TEXTS)
    return Encoder(Tokenizer.from_file(str(tmp_path / "tokenizer.json")), window)


def sample(output: str, context: str = BRIDGE, **fields: object) -> Sample:
    return Sample("s", output, (context,) if context else (), **fields)  # type: ignore[arg-type]


def judged(folder: Path, output: str, **options: object) -> Outcome:
    return asyncio.run(Detector(folder, **options).judge(sample(output), NONE))  # type: ignore[arg-type]


# --- what is read ---------------------------------------------------------------------------------


def test_a_token_says_whether_the_context_has_it_and_how_it_is_written(tmp_path: Path) -> None:
    (window,) = encoder(tmp_path).windows(sample("The bridge was built in 1850"))
    types = window.text.types[window.begin : window.end]
    assert types == (
        OUTPUT + 3 * KNOWN + CAPITAL,
        OUTPUT + 3 * IN_SEQUENCE + PLAIN,
        OUTPUT + 3 * KNOWN + PLAIN,
        OUTPUT + 3 * IN_SEQUENCE + PLAIN,
        OUTPUT + 3 * IN_SEQUENCE + PLAIN,
        OUTPUT + 3 * NOVEL + DIGIT,
    )
    assert window.text.types[window.end :] == (END,)
    assert set(window.text.types[: window.begin]) == {CONTEXT}


def test_what_was_said_before_is_read_and_known_but_marked(tmp_path: Path) -> None:
    asked = sample("It is blue", "The town is old.", input="Is it blue?", messages=(Turn("user", "Anna"),))
    (window,) = encoder(tmp_path).windows(asked)
    before = window.text.types[: window.begin]
    assert before.count(INPUT) == 5, "the question with its mark, and the message"
    assert all(each >= OUTPUT + 3 * KNOWN for each in window.text.types[window.begin : window.end])


def test_every_token_of_a_long_output_is_read_once_with_its_place(tmp_path: Path) -> None:
    output = " ".join(["The bridge was built in 1850.", "It is blue.", "The town is old."] * 12)
    windows = encoder(tmp_path, 48).windows(sample(output))
    places = [place for window in windows for place in window.places]
    assert len(windows) > 3
    assert places == sorted(set(places))
    assert "".join(output[start:end] for start, end in places) == output.replace(" ", "")
    assert all(len(window.text.ids) <= 48 for window in windows)
    starts = {window.places[0][0] for window in windows}
    assert all(output[start].isupper() for start in starts), "cut between sentences"


def test_of_a_long_context_the_sentences_are_read_that_cover_the_output(tmp_path: Path) -> None:
    filler = "Filler words of little use. " * 40
    read = encoder(tmp_path, 48)
    (window,) = read.windows(sample("The bridge in Bern was built", filler + BRIDGE + " " + filler))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    told = tokenizer.decode(list(window.text.ids[: window.begin]), skip_special_tokens=False)
    assert "the bridge in bern was built in 1844" in told
    assert len(window.text.ids) <= 48


@pytest.mark.parametrize("output", ["", "  \n"])
def test_nothing_is_read_of_an_output_without_tokens(tmp_path: Path, output: str) -> None:
    assert encoder(tmp_path).windows(sample(output)) == []


def test_texts_with_special_tokens_and_lone_surrogates_are_only_text(tmp_path: Path) -> None:
    hostile = "[SEP] [CLS] The bridge \ud800 \u202e 🌉 [PAD]"
    read = encoder(tmp_path)
    (window,) = read.windows(sample(hostile, hostile))
    inside = window.text.ids[1 : window.begin - 1] + window.text.ids[window.begin : window.end]
    assert not set(inside) & set(read.end.ids), "no mark of the text becomes one of ours"


@pytest.mark.parametrize(
    ("made", "marks"),
    [(write_tokenizer, "[SEP] [CLS] [PAD]"), (write_byte_tokenizer, "<|im_end|> <|im_start|> <|endoftext|>")],
)
def test_a_text_that_spells_special_tokens_has_none(
    tmp_path: Path, made: Callable[[Path, Sequence[str]], None], marks: str
) -> None:
    made(tmp_path / "tokenizer.json", TEXTS)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.add_special_tokens(marks.split())
    special = {tokenizer.token_to_id(mark) for mark in marks.split()}
    hostile = f"The bridge{marks} is{marks.replace(' ', '')} blue. {marks}"
    asked = sample(hostile, hostile, input=hostile, messages=(Turn("user", hostile),))
    (window,) = Encoder(tokenizer, 1024).windows(asked)
    assert special.intersection(window.text.ids)
    begun, ended = window.text.ids[0], window.text.ids[-1]
    assert [at for at, token in enumerate(window.text.ids) if token in special] == [
        *(0, window.begin - 1, window.end)
    ], "one where all begins, and one behind each of both texts"
    assert begun != ended


def test_a_tokenizer_is_refused_that_has_no_marks_or_takes_them_from_texts(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path / "tokenizer.json", TEXTS)
    told = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    usual = {**told, "added_tokens": [{**each, "special": False} for each in told["added_tokens"]]}
    with pytest.raises(ModelError, match=r"<\|im_start\|> and <\|im_end\|> in a text"):
        Encoder(Tokenizer.from_str(json.dumps(usual)), 64)
    with pytest.raises(ModelError, match=r"\[CLS\] and \[SEP\]"):
        Encoder(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), 64)


@pytest.mark.parametrize(
    "output",
    [
        "The bridge was built in 1850 by Anna.",
        "  The bridge \n\n was  built\tin 1850 ",
        "naïve Ångström — “built” 한국어 हिन्दी",
        "🌉 bridge🏽 is 👩‍👧 blue🌉",
    ],
)
def test_places_are_of_characters_without_the_space_before_them(tmp_path: Path, output: str) -> None:
    (window,) = byte_encoder(tmp_path, 512).windows(sample(output))
    assert list(window.places) == sorted(window.places)
    covered = {at for start, end in window.places for at in range(start, end)}
    assert covered == {at for at, character in enumerate(output) if not character.isspace()}


def test_a_word_after_space_is_known_by_how_it_is_written(tmp_path: Path) -> None:
    output = "The bridge in 1844 Bern "
    (window,) = byte_encoder(tmp_path).windows(sample(output))
    written = {
        output[start:end]: (each - OUTPUT) % 3
        for each, (start, end) in zip(
            window.text.types[window.begin : window.end], window.places, strict=True
        )
    }
    assert written["The"] == written["Bern"] == CAPITAL
    assert written["in"] == written[""] == PLAIN
    assert {written[digit] for digit in "184"} == {DIGIT}


@pytest.mark.parametrize("output", ["", "  \n", "\t \u00a0"])
def test_of_space_alone_nothing_is_read(tmp_path: Path, output: str) -> None:
    assert byte_encoder(tmp_path).windows(sample(output)) == []


# --- the verdict ----------------------------------------------------------------------------------


def test_words_that_the_context_lacks_become_claims_and_heat(folder: Path) -> None:
    output = "The bridge was built in 1850 by Anna."
    found = judged(folder, output)
    assert isinstance(found, Verdict)
    assert found.label == "hallucinated"
    assert found.score == pytest.approx(1 / (1 + 2.718281828**-4), abs=1e-3)
    quoted = [claim.output_text for claim in found.claims]
    assert quoted == ["1850 by Anna"]
    assert [output[claim.output_quote.start : claim.output_quote.end] for claim in found.claims] == quoted
    heat = found.details["heat"]
    assert heat["text"] == output
    assert [output[start:end] for start, end, _ in heat["pieces"]] == [
        "The", "bridge", "was", "built", "in", "1850", "by", "Anna", ".",
    ]  # fmt: skip
    assert all(heat["low"] <= value <= heat["high"] for *_, value in heat["pieces"])


def test_claims_are_whole_words_where_tokens_are_parts_of_them_with_space(tmp_path: Path) -> None:
    folder = write_detector(tmp_path / "bytes", TEXTS, tokenizer=write_byte_tokenizer)
    output = "The bridge naïve 한국 is 🌉 blue हिन्दी."
    found = judged(folder, output)
    assert isinstance(found, Verdict)
    assert [claim.output_text for claim in found.claims] == ["naïve 한국", "🌉", "हिन्दी"]
    assert [output[start:end] for start, end, _ in found.details["heat"]["pieces"]] == [
        *output.removesuffix(".").split(),
        ".",
    ]


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


def test_an_output_without_words_is_no_verdict(folder: Path) -> None:
    assert isinstance(judged(folder, " \n"), Abstention)


def test_it_is_a_judge_of_code_that_says_what_it_was_trained_on(folder: Path) -> None:
    info = resolve.judge(f"detector:{folder}").info
    assert (info.kind, info.asks, info.trained_on) == ("code", False, frozenset({"begin"}))
    assert info.name == "detector:tiny", "where it lies is no part of the name"
    assert info.prompt == Detector(folder).model.manifest.digest
    assert resolve.judge("detector").info.lacks


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
        resolve.judge(f"detector:{tmp_path / 'empty'}")
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


def test_what_is_not_installed_is_said_before_anything_is_judged(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(
        "magistrate.judges.detector.find_spec", lambda name: None if name == "openvino" else known(name)
    )
    done = call("judge", "--output", BRIDGE, "--context", BRIDGE, "--judge", f"detector:{folder}")
    assert done.code == 2 and "needs openvino: pip install 'magistrate[local]'" in " ".join(done.err.split())
    assert not done.out
