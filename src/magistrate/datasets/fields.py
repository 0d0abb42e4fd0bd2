"""The names that other tools use for fields and labels.

A column name is compared in lower case with `_` between words, so `Retrieved Contexts`,
`retrieved-contexts` and `retrievedContexts` are all `retrieved_contexts`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from statistics import median
from typing import Any

from magistrate.errors import SpecError
from magistrate.types import FAITHFUL, HALLUCINATED, Sample

ALIASES: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "sample_id"),
    "input": ("input", "question", "query", "user_input", "user_query", "prompt"),
    "output": (
        *("output", "answer", "response", "actual_output", "generation", "summary"),
        *("prediction", "completion", "model_output", "generated_text"),
    ),
    "context": (
        *("context", "contexts", "knowledge", "document", "documents", "passage", "passages"),
        *("retrieved_context", "retrieved_contexts", "retrieved_documents", "retrieval_context"),
        *("reference_text", "reference_texts"),
    ),
    "expected": (
        *("expected", "expected_output", "expected_answer", "reference", "reference_answer"),
        *("ground_truth", "right_answer"),
    ),
    "label": ("label",),
    "hallucination": ("hallucination", "is_hallucination", "hallucination_label"),
    "faithful": ("faithful", "is_faithful"),
    "spans": ("spans", "hallucination_spans"),
    "messages": ("messages",),
    "alternatives": ("alternatives",),
    "metadata": ("metadata", "meta"),
}
"""What a row can say, and the column names it is known by."""

POLARITY = {"hallucination": (HALLUCINATED, FAITHFUL), "faithful": (FAITHFUL, HALLUCINATED)}
"""Yes-or-no columns that give the label: what yes means, what no means."""

PART_OF = {field: "label" if field in POLARITY else field for field in ALIASES}
"""The part of a sample that each field fills: three fields give the label, the others themselves."""

LABELS = {
    **dict.fromkeys(("faithful", "pass", "factual", "supported", "grounded", "consistent"), FAITHFUL),
    **dict.fromkeys(("hallucinated", "fail", "non-factual", "nonfactual"), HALLUCINATED),
    **dict.fromkeys(("unsupported", "ungrounded", "inconsistent"), HALLUCINATED),
}
TRUTH = {
    **dict.fromkeys(("yes", "true", "1", "1.0"), True),
    **dict.fromkeys(("no", "false", "0", "0.0"), False),
}

UNLABELLED = "unlabelled"
MEANINGS = (FAITHFUL, HALLUCINATED, UNLABELLED)
"""What a value of a label column can be said to mean."""

_PAIR = re.compile(r"\s*(?P<value>.*?)\s*=\s*(?P<meaning>[^=,]*?)\s*(?:,|$)", re.DOTALL)

_FIELD_OF = {alias: field for field, aliases in ALIASES.items() for alias in aliases}


@lru_cache(maxsize=4096)
def field_of(column: str) -> str | None:
    """Return the field that `column` is a known name of, or None."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", column.strip())
    return _FIELD_OF.get(re.sub(r"[\s_\-]+", "_", words).lower())


class UnknownLabel(ValueError):
    """A value of a label column that cannot be read as `faithful` or `hallucinated`."""


def label_word(value: object) -> str:
    """Normalize a label value for comparison: case, whitespace and the .0 of a number are ignored."""
    word = re.sub(r"[\s_]+", "-", str(value).strip().lower())
    return word.partition(".")[0] if re.fullmatch(r"-?\d+\.0+", word) else word


def label_of(field: str, value: object, labels: Mapping[str, str] | None = None) -> str | None:
    """Return `faithful`, `hallucinated` or None for the value of a label column; case is ignored.

    `labels` gives the meaning of values, as returned by `check_labels`. Raises UnknownLabel if the value is
    not a known word, or is a yes or no in a column that does not define what yes means.
    """
    word = "" if value is None else label_word(value)
    if not word:
        return None
    if labels and word in labels:
        return None if labels[word] == UNLABELLED else labels[word]
    if field in POLARITY:
        if word not in TRUTH:
            raise UnknownLabel(f"{_shown(value)} is not yes or no (also known: true, false, 1, 0)")
        yes, no = POLARITY[field]
        return yes if TRUTH[word] else no
    if word in LABELS:
        return LABELS[word]
    if word in TRUTH:
        raise UnknownLabel(f"the meaning of {_shown(value)} is unclear; give it with --labels")
    raise UnknownLabel(f"{_shown(value)} is not a known label; known: {', '.join(LABELS)}")


def check_labels(labels: Mapping[Any, Any] | None) -> dict[str, str]:
    """Return the meanings of label values by `label_word`. Raises SpecError if `labels` is malformed."""
    checked: dict[str, str] = {}
    if labels is not None and not isinstance(labels, Mapping):
        raise SpecError(
            f"labels must give the meaning of each value, as in {{'ok': 'faithful'}}; got {_shown(labels)}"
        )
    for value, meaning in (labels or {}).items():
        word, said = label_word(value), label_word(meaning)
        if said not in MEANINGS:
            raise SpecError(
                f"--labels gives {_shown(value)} the meaning {_shown(meaning)}{near(said, MEANINGS)}; it "
                f"must be {', '.join(MEANINGS[:-1])} or {MEANINGS[-1]}"
            )
        if not word:
            raise SpecError("--labels needs a value before each =; blank labels are always unlabelled")
        if checked.setdefault(word, said) != said:
            raise SpecError(
                f"--labels gives two meanings for {_shown(value)}: {checked[word]} and {said}; keep one"
            )
    return checked


def parse_labels(text: str) -> dict[str, str]:
    """Parse `ok=faithful,bad=hallucinated`; a value may contain commas. SpecError for anything else."""
    pairs: dict[str, str] = {}
    place = 0
    while place < len(text) or not pairs:
        found = _PAIR.match(text, place)
        if found is None or not found["value"] or not found["meaning"] or found.end() == place:
            raise SpecError(
                f"write labels as VALUE=MEANING, such as ok=faithful,bad=hallucinated; got {_shown(text)}"
            )
        if pairs.setdefault(found["value"], found["meaning"]) != found["meaning"]:
            raise SpecError(f"--labels gives two meanings for {_shown(found['value'])}; keep one")
        place = found.end()
    check_labels(pairs)
    return pairs


def check_mapping(mapping: Mapping[str, str] | None) -> dict[str, str]:
    """Return `mapping` (field -> column or dotted path). Raises SpecError if it names an unknown field."""
    checked = dict(mapping or {})
    for field, column in checked.items():
        if field not in ALIASES:
            known = ", ".join(ALIASES)
            raise SpecError(f"unknown field {_shown(field)} in --map{near(field, ALIASES)}; known: {known}")
        if not isinstance(column, str) or not column:
            raise SpecError(f"--map {field}= needs the name of a column")
    given = [field for field in checked if PART_OF[field] == "label"]
    if len(given) > 1:
        raise SpecError(f"--map gives the label twice, with {' and '.join(given)}; keep one")
    return checked


def near(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` if one of `known` is close to `word`, else an empty text."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]!r}?)" if found else ""


def plain(text: str, width: int = 60) -> str:
    """Return foreign text made safe for a message: at most `width` characters, no control characters."""
    text = text if len(text) <= width else text[: width - 1] + "…"
    return text if text.isprintable() else ascii(text)[1:-1]


def _shown(value: object) -> str:
    return plain(repr(value))


LOOKED_AT = 50  # samples
LONG = 120  # characters from which a text may be a context, whatever the name of its column
WORDS = (
    *("context", "doc", "source", "passage", "article", "knowledge", "evidence", "background", "retriev"),
    *("chunk", "snippet", "reference", "paragraph", "excerpt", "material", "transcript"),
)


def like_context(samples: Iterable[Sample]) -> tuple[str, ...]:
    """Return unused columns or dotted paths that look like a context, the best first."""
    lengths: dict[str, list[int]] = {}
    outputs = [1]
    looked_at = list(islice(samples, LOOKED_AT))
    for sample in looked_at:
        outputs.append(len(sample.output or ""))
        for path, text in _texts(sample.metadata):
            lengths.setdefault(path, []).append(len(text))
    long = max(LONG, 1.5 * median(outputs))
    found = []
    for path, each in lengths.items():
        named = any(word in path.lower() for word in WORDS)
        typical = median(each)
        if 2 * len(each) >= len(looked_at) and ((named and typical > 1) or typical >= long):
            found.append((not named, -typical, path))
    return tuple(path for _, _, path in sorted(found))


def _texts(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        path = f"{before}{name}"
        if isinstance(value, Mapping) and not before:
            yield from _texts(value, f"{path}.")
        elif isinstance(value, list) and value and all(isinstance(each, str) for each in value):
            yield path, " ".join(value)
        elif isinstance(value, str) and value.strip():
            yield path, value
