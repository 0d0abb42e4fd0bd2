"""A BERT-style classifier in Hugging Face's format, of context–output pairs or of the output's tokens."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from magistrate._work import once
from magistrate.detectors.folder import json_of
from magistrate.detectors.hf_network import Graph, graph_of, weights_of
from magistrate.engines.models import disk
from magistrate.errors import InputError, ModelError, SpecError
from magistrate.types import Sample

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Encoding, Tokenizer

HALLUCINATED = frozenset(
    (
        *("hallucinated", "hallucination", "hallucinatory", "unfaithful", "inconsistent", "unsupported"),
        *("not_supported", "ungrounded", "not_grounded", "contradiction", "contradictory", "contradicted"),
        *("contradicts", "refuted", "refutes", "not_entailment", "not_entailed", "non_entailment", "neutral"),
        *("fabricated", "incorrect", "not_enough_info", "baseless", "fail"),
    )
)
FAITHFUL = frozenset(
    (
        *("faithful", "consistent", "supported", "supports", "grounded", "entailment", "entailed", "entails"),
        *("correct", "factual", "not_hallucinated", "no_hallucination", "non_hallucinated", "pass"),
    )
)
OUTSIDE = "o"  # the tag of no entity, as in O, B-hallucination, I-hallucination
ADVICE = (
    "give the labels that mean hallucinated, positive=NAME (several with +), or those that mean faithful, "
    "negative=NAME"
)
NEEDED = ("config.json", "tokenizer.json")
OFFSET = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "longformer")  # positions start at 2
LEAST = 16  # tokens of a window, at least
OVERLAP = 64  # tokens that consecutive windows share, if they have room for four times as many

Pair = Literal["context_output", "output_context"]
Over = Literal["min", "mean", "max"]


@dataclass(frozen=True, slots=True)
class Meaning:
    """The classes that mean hallucinated, by number; with `turned` those that mean faithful.

    With `several` the classes do not exclude each other: each has its own sigmoid. A single class is such a
    case.
    """

    classes: tuple[int, ...]
    turned: bool
    several: bool

    def probability(self, logits: np.ndarray) -> np.ndarray:
        """Return the probability of hallucinated, float64 `[…]`, for logits `[…, classes]`."""
        import numpy as np

        logits = np.asarray(logits, dtype=np.float64)
        if self.several:
            each = 1 / (1 + np.exp(-np.clip(logits, -700, 700)))
            whole = each[..., list(self.classes)].max(-1)
        else:
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            whole = (weights / weights.sum(-1, keepdims=True))[..., list(self.classes)].sum(-1)
        found: np.ndarray = np.clip(1 - whole if self.turned else whole, 0.0, 1.0)
        return found


def meaning(
    labels: Mapping[int, str],
    *,
    positive: Sequence[str] = (),
    negative: Sequence[str] = (),
    several: bool = False,
    tokens: bool = False,
) -> Meaning:
    """Return which labels of a model (by number) mean hallucinated.

    If neither `positive` nor `negative` is given, the names of the labels decide. With `tokens` they may be
    tags such as `B-hallucination` and `O`. Raises `SpecError`, with the labels, if the names are unclear.
    """
    named = {name: number for number, name in labels.items()}
    listed = ", ".join(labels[number] for number in sorted(labels))
    if positive and negative:
        raise SpecError(f"give positive or negative, not both; the labels are {listed}")
    given = positive or negative
    if missing := [name for name in given if name not in named]:
        raise SpecError(f"the model has no label {missing[0]!r}; its labels are {listed}")
    if len(given) == len(labels) > 1:
        raise SpecError(f"not all labels can mean the same; the labels are {listed}")
    several = several or len(labels) == 1
    if given:
        return Meaning(tuple(sorted(named[name] for name in given)), bool(negative), several)
    sides = {number: _side(name, tokens) for number, name in labels.items()}
    wrong = tuple(sorted(number for number, side in sides.items() if side))
    if None in sides.values() or (len(labels) > 1 and len(wrong) in (0, len(labels))):
        raise SpecError(f"the model's labels ({listed}) do not say which means hallucinated; {ADVICE}")
    if not wrong:
        return Meaning(tuple(labels), True, several)  # a single class, which means faithful
    return Meaning(wrong, False, several)


def _side(name: str, tokens: bool) -> bool | None:
    """Return True for a name that means hallucinated, False for faithful, None for neither."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    if tokens:
        if plain == OUTSIDE:
            return False
        plain = re.sub(r"^[bilesu]_", "", plain)
    if plain in FAITHFUL:
        return False
    return True if plain in HALLUCINATED else None


@dataclass(frozen=True, slots=True)
class Scored:
    """A classifier's result for a sample: `score` in [0, 1], 1 for hallucinated.

    `tokens` are `(start, end, probability)` of the output's tokens, as half-open character offsets, if the
    model labels tokens. `windows` is the number of text pairs it read.
    """

    score: float
    tokens: tuple[tuple[int, int, float], ...]
    windows: int

    def spans(self, threshold: float) -> list[tuple[int, int, float]]:
        """Return runs of tokens with at least `threshold`, as `(start, end, highest probability)`."""
        found: list[tuple[int, int, float]] = []
        before = False
        for start, end, share in self.tokens:
            flagged = share >= threshold
            if flagged and before:
                first, _, most = found.pop()
                found.append((first, end, max(most, share)))
            elif flagged:
                found.append((start, end, share))
            before = flagged
        return found


class ClassifierModel:
    """A folder in the format of Hugging Face's libraries: `config.json`, `tokenizer.json`, and the network.

    The network is an OpenVINO graph, an ONNX file, or safetensors, which are converted once with the extra
    `train`. `pair` is the order of context and output. Text that does not fit its window is read in parts.
    The score of a part of the output is the `over` (`min`, `mean` or `max`) of its scores with each part of
    the context. The score of the output is that of its worst part. Raises `ModelError` for an unusable
    folder, `SpecError` for labels of unclear meaning.
    """

    def __init__(
        self,
        folder: Path,
        *,
        positive: Sequence[str] = (),
        negative: Sequence[str] = (),
        pair: Pair = "context_output",
        over: Over = "min",
        window: int = 0,
    ) -> None:
        self.folder = folder
        self.pair, self.over = pair, over
        if missing := [name for name in NEEDED if not (folder / name).is_file()]:
            raise ModelError(f"{folder} is not a classifier: it lacks {' and '.join(missing)}")
        self.config = json_of(folder / "config.json")
        self._tokenizer, self._plain = _tokenizers(folder / "tokenizer.json")
        self._positive, self._negative = tuple(positive), tuple(negative)
        limit = _limit(self.config, folder)
        if window and not LEAST <= window <= limit:
            raise SpecError(f"window must be in [{LEAST}, {limit}], the limits of the model; got {window}")
        self.window = window or limit
        _ = self.meaning  # fail on unclear labels now, not after a download or a conversion

    @classmethod
    def load(cls, folder: str | Path, **options: Any) -> ClassifierModel:
        """Load the classifier in `folder`; `options` are those of the class."""
        return cls(Path(folder).expanduser(), **options)

    @property
    def labels(self) -> dict[int, str]:
        """The names of the model's classes, by number."""
        named = self.config.get("id2label") or {}
        told = self.config.get("num_labels", 2)
        count = len(named) if isinstance(named, dict) and named else told
        if not isinstance(named, dict) or type(count) is not int or count < 1:
            raise ModelError(
                f"{self.folder / 'config.json'} does not define its classes: id2label must map numbers to "
                f"names and num_labels must be a number, got {named!r} and {told!r}"
            )
        return {number: str(named.get(str(number), f"LABEL_{number}")) for number in range(count)}

    @cached_property
    def meaning(self) -> Meaning:
        """The classes that mean hallucinated."""
        named = self.config.get("architectures")
        architecture = str(named[0]) if isinstance(named, list) and named else ""
        return meaning(
            self.labels,
            positive=self._positive,
            negative=self._negative,
            several=self.config.get("problem_type") == "multi_label_classification",
            tokens=architecture.endswith("ForTokenClassification"),
        )

    @cached_property
    def digest(self) -> str:
        """12 hexadecimal digits of the sha256 of configuration, tokenizer and weights."""
        parts = [*(self.folder / name for name in NEEDED), weights_of(self.folder)]
        if parts[-1].suffix == ".xml":
            parts.append(parts[-1].with_suffix(".bin"))
        known = "\n".join(disk.sha256(path) for path in parts)
        return hashlib.sha256(known.encode()).hexdigest()[:12]

    @cached_property
    def graph(self) -> Graph:
        """The network, loaded on first use."""
        found = Graph(graph_of(self.folder))
        if found.length and found.length < self.window:
            self.window = found.length
        return found

    def scores(self, sample: Sample) -> Scored:
        """Score a sample. Raises `InputError` for texts without tokens."""
        import numpy as np

        rows, places = self._rows(sample)
        windows = 0
        parts = []
        for _, read in itertools.groupby(self._read(rows), lambda pair: pair[0]):
            scores = [score for _, score in read]
            parts.append(getattr(np, self.over)(scores, axis=0))
            windows += len(scores)
        shares = np.concatenate(parts)
        tokens = zip(places, shares, strict=True) if self.graph.per_token else ()
        return Scored(
            score=float(shares.max()),
            tokens=tuple((start, end, float(share)) for (start, end), share in tokens),
            windows=windows,
        )

    def _read(self, rows: Iterator[_Row]) -> Iterator[tuple[int, list[float]]]:
        """Yield for each row its part of the output, and its scores: one per token, or a single one."""
        rows, given = itertools.tee(rows)
        for row, logits in zip(rows, self.graph.logits(each.given for each in given), strict=True):
            if logits.shape[-1] != len(self.labels):
                raise ModelError(
                    f"{self.folder}: the network has {logits.shape[-1]} classes, but config.json has "
                    f"{len(self.labels)}"
                )
            shares = self.meaning.probability(logits)
            own = shares[row.begin : row.end] if self.graph.per_token else [shares]
            yield row.part, [float(share) for share in own]

    def _rows(self, sample: Sample) -> tuple[Iterator[_Row], list[tuple[int, int]]]:
        """Return every part of the output paired with every part of the context, and the token offsets."""
        _ = self.graph  # loading it may shorten the window
        output = self._encoded(sample.output or "")
        sources = sample.sources
        context = once(("encoded", self, sources), lambda: self._encoded("\n\n".join(sources)).ids)
        if not output.ids or not context:
            what = "the output" if not output.ids else "the context"
            raise InputError(f"the tokenizer in {self.folder.name} returns no tokens for {what}")
        frame = self._frame
        room = self.window - frame.size
        parts = list(_cut(output.ids, room // 2, 0))
        beside = room - max(map(len, parts))
        overlap = OVERLAP if beside >= 4 * OVERLAP else 0
        pieces = list(_cut(context, beside, overlap))
        rows = (
            frame.row(number, part, piece, self.pair)
            for (number, part), piece in itertools.product(enumerate(parts), pieces)
        )
        return rows, list(output.offsets)

    @cached_property
    def _frame(self) -> _Frame:
        """The special tokens that the tokenizer puts around two texts."""
        made = self._tokenizer.encode("a", "a")
        places = [[at for at, each in enumerate(made.sequence_ids) if each == which] for which in (0, 1)]
        if not all(places):
            raise ModelError(f"the tokenizer in {self.folder} does not support pairs of texts")
        (first, *_), (second, *_) = places
        cuts = slice(first), slice(places[0][-1] + 1, second), slice(places[1][-1] + 1, None)
        ids, types = made.ids, made.type_ids
        return _Frame(
            tuple(tuple(ids[cut]) for cut in cuts),
            tuple(tuple(types[cut]) for cut in cuts),
            (types[first], types[second]),
        )

    def _encoded(self, text: str) -> Encoding:
        # A lone surrogate cannot be encoded as UTF-8.
        return self._plain.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False)


@dataclass(frozen=True, slots=True)
class _Row:
    """One input of the network; tokens `[begin, end)` are part `part` of the output."""

    given: Mapping[str, Sequence[int]]
    part: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class _Frame:
    """Special tokens before, between and after two texts, their type ids, and those of the texts."""

    ids: tuple[tuple[int, ...], ...]
    types: tuple[tuple[int, ...], ...]
    kinds: tuple[int, int]

    @property
    def size(self) -> int:
        return sum(map(len, self.ids))

    def row(self, number: int, output: Sequence[int], context: Sequence[int], pair: Pair) -> _Row:
        texts = (context, output) if pair == "context_output" else (output, context)
        ids, types = list[int](), list[int]()
        begin = 0
        for at, (special, kinds) in enumerate(zip(self.ids, self.types, strict=True)):
            ids += special
            types += kinds
            if at < 2:
                if texts[at] is output:
                    begin = len(ids)
                ids += texts[at]
                types += [self.kinds[at]] * len(texts[at])
        given = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": types}
        return _Row(given, number, begin, begin + len(output))


def _cut(ids: Sequence[int], most: int, overlap: int) -> list[Sequence[int]]:
    """Cut ids into runs of at most `most` tokens, each sharing `overlap` with the one before."""
    step = most - overlap
    last = max(len(ids) - overlap, 1)
    return [ids[at : at + most] for at in range(0, last, step)]


def _tokenizers(path: Path) -> tuple[Tokenizer, Tokenizer]:
    """Load the tokenizer, and a copy without added tokens that reads `[SEP]` in a text as text."""
    from tokenizers import Tokenizer

    content = {**json_of(path), "padding": None, "truncation": None}
    try:
        whole = Tokenizer.from_str(json.dumps(content))
        return whole, Tokenizer.from_str(json.dumps({**content, "added_tokens": []}))
    except Exception as error:  # the package raises nothing more specific
        raise ModelError(f"{path} cannot be read as a tokenizer: {error}") from error


def _limit(config: Mapping[str, Any], folder: Path) -> int:
    """Return the longest pair that the model reads, in tokens."""
    found = config.get("max_position_embeddings")
    length = found - 2 if isinstance(found, int) and config.get("model_type") in OFFSET else found
    settings = folder / "tokenizer_config.json"
    told = json_of(settings).get("model_max_length") if settings.is_file() else None
    # A tokenizer without a limit stores an absurdly large one.
    known = [
        int(each) for each in (length, told) if isinstance(each, int | float) and LEAST <= each < 1 << 20
    ]
    if not known:
        raise ModelError(f"{folder} does not give its maximum number of tokens (max_position_embeddings)")
    return min(known)
