"""The built-in quickstart set: well formed, balanced, and not to be told apart by its surface."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import pytest

Row = dict[str, Any]

ROWS: list[Row] = [
    json.loads(line)
    for line in (files("magistrate.datasets") / "quickstart.jsonl").read_text(encoding="utf-8").splitlines()
]
KINDS = {"contradiction", "unsupported", "misattribution"}
LIMIT = 0.65


def hallucinated(row: Row) -> bool:
    return bool(row["label"] == "hallucinated")


def joined(row: Row) -> str:
    return "\n".join(row["context"])


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def ngrams(tokens: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return list(zip(*(tokens[i:] for i in range(n)), strict=False))


def absent(row: Row, n: int, least: int = 1) -> float:
    """Share of the output's n-grams, of words of at least `least` characters, not in the context."""
    found = ngrams([word for word in words(row["output"]) if len(word) >= least], n)
    known = {
        gram
        for text in row["context"]
        for gram in ngrams([word for word in words(text) if len(word) >= least], n)
    }
    return sum(gram not in known for gram in found) / max(1, len(found))


def absent_numbers(row: Row) -> int:
    number = r"\d+(?:[.,:]\d+)*"
    known = set(re.findall(number, joined(row)))
    return sum(found not in known for found in re.findall(number, row["output"]))


def digits(text: str) -> int:
    return sum(character.isdigit() for character in text)


def balanced_accuracy(guesses: Sequence[bool]) -> float:
    truth = [hallucinated(row) for row in ROWS]
    hit = sum(guess and true for guess, true in zip(guesses, truth, strict=True)) / sum(truth)
    miss = sum(guess and not true for guess, true in zip(guesses, truth, strict=True)) / truth.count(False)
    return (1 + hit - miss) / 2


def best_threshold(values: Sequence[float]) -> float:
    """The highest balanced accuracy of `value >= t` or `value < t` over every threshold t."""
    scores = [balanced_accuracy([value >= t for value in values]) for t in set(values)]
    return max(max(score, 1 - score) for score in scores)


MEASURES: dict[str, Callable[[Row], float]] = {
    "output_characters": lambda row: len(row["output"]),
    "output_words": lambda row: len(row["output"].split()),
    "output_sentences": lambda row: len(re.findall(r"[.;:!?](?:\s|$)", row["output"])),
    "context_characters": lambda row: len(joined(row)),
    "context_words": lambda row: len(joined(row).split()),
    "context_count": lambda row: len(row["context"]),
    "length_ratio": lambda row: len(row["output"]) / len(joined(row)),
    "word_ratio": lambda row: len(row["output"].split()) / len(joined(row).split()),
    "input_characters": lambda row: len(row["input"]),
    "absent_unigrams": lambda row: absent(row, 1),
    "absent_bigrams": lambda row: absent(row, 2),
    "absent_trigrams": lambda row: absent(row, 3),
    "absent_content_words": lambda row: absent(row, 1, least=4),
    "any_absent_bigram": lambda row: float(absent(row, 2) > 0),
    "absent_numbers": absent_numbers,
    "output_digits": lambda row: digits(row["output"]),
    "output_digit_share": lambda row: digits(row["output"]) / len(row["output"]),
    "commas": lambda row: row["output"].count(","),
}


def test_rows_are_many_balanced_and_told_apart_by_id() -> None:
    labels = Counter(row["label"] for row in ROWS)
    assert len(ROWS) >= 60
    assert set(labels) == {"faithful", "hallucinated"}
    assert labels["faithful"] == labels["hallucinated"]
    assert len({row["id"] for row in ROWS}) == len(ROWS)
    assert len({(joined(row), row["output"]) for row in ROWS}) == len(ROWS)


def test_texts_are_there_and_clean() -> None:
    for row in ROWS:
        texts = [row["input"], row["output"], *row["context"]]
        assert 1 <= len(row["context"]) <= 3, row["id"]
        assert all(text and text == text.strip() for text in texts), row["id"]


def test_spans_mark_the_wrong_runs_of_hallucinated_outputs_only() -> None:
    for row in ROWS:
        assert bool(row["spans"]) == hallucinated(row), row["id"]
        end = 0
        for span in row["spans"]:
            assert end <= span["start"] < span["end"] <= len(row["output"]), row["id"]
            quote = row["output"][span["start"] : span["end"]]
            assert quote == quote.strip(), row["id"]
            assert span["kind"] == row["metadata"]["kind"], row["id"]
            end = span["end"]


def test_every_kind_of_fault_is_common() -> None:
    kinds = Counter(row["metadata"]["kind"] for row in ROWS)
    assert set(kinds) == KINDS | {"none"}
    assert all(kinds[kind] >= 8 for kind in KINDS)


def test_domains_are_many_and_have_both_labels_alike() -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in ROWS:
        counts[row["metadata"]["domain"]][row["label"]] += 1
    assert len(counts) >= 8
    assert all(count["faithful"] == count["hallucinated"] for count in counts.values())


def test_labels_are_interleaved() -> None:
    labels = [row["label"] for row in ROWS]
    assert all(len(set(labels[i : i + 5])) == 2 for i in range(len(labels) - 4))


def test_lengths_vary() -> None:
    for lengths in ([len(row["output"]) for row in ROWS], [len(joined(row)) for row in ROWS]):
        assert max(lengths) >= 4 * min(lengths)


@pytest.mark.parametrize("name", MEASURES)
def test_no_surface_measure_tells_the_labels_apart(name: str) -> None:
    assert best_threshold([MEASURES[name](row) for row in ROWS]) < LIMIT


def test_no_common_word_of_the_output_tells_the_labels_apart() -> None:
    present = [set(words(row["output"])) for row in ROWS]
    for word in sorted(set().union(*present)):
        score = balanced_accuracy([word in found for found in present])
        assert max(score, 1 - score) < LIMIT, word


def test_the_question_does_not_tell_the_label() -> None:
    majority: dict[str, Counter[bool]] = defaultdict(Counter)
    for row in ROWS:
        majority[words(row["input"])[0]][hallucinated(row)] += 1
    guesses = [majority[words(row["input"])[0]].most_common(1)[0][0] for row in ROWS]
    assert balanced_accuracy(guesses) < LIMIT
