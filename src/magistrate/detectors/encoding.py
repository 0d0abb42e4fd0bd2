"""From a sample to what a detector reads: token ids, what is known of each token, and where it stands."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from magistrate.deadline import checked
from magistrate.errors import ModelError, SpecError
from magistrate.scratch import once
from magistrate.signals.splitting import sentences
from magistrate.types import Sample

if TYPE_CHECKING:
    from tokenizers import Tokenizer

OUTPUT_SHARE = 0.5  # of a window's tokens at most; a longer output takes several windows
INPUT_TOKENS = 48  # of what was asked at most, its end: what came right before the output
LEAST_WINDOW = 32
DAMPING = 8  # tokens that a sentence is taken to be longer, so that very short ones do not come first
# What begins a window and what ends its texts; of these a tokenizer's are the first that it has.
MARKS = (
    ("[CLS]", "[SEP]"),
    ("<|im_start|>", "<|im_end|>"),
    ("<|begin_of_text|>", "<|end_of_text|>"),
    ("<s>", "</s>"),
    ("<|endoftext|>", "<|endoftext|>"),
)

# What is known of a token, as its type id. Those of the output say three things at once: whether it stands in
# the context (not at all, there, or there after the same token as here), and how it is written.
CONTEXT, INPUT, OUTPUT = 0, 1, 2
NOVEL, KNOWN, IN_SEQUENCE = 0, 1, 2
PLAIN, CAPITAL, DIGIT = 0, 1, 2
END = OUTPUT + 9  # the token behind an output, which sums it up
TYPES = END + 1


class Text(NamedTuple):
    """Token ids, and the type of each."""

    ids: tuple[int, ...]
    types: tuple[int, ...]

    def then(self, other: Text) -> Text:
        """This text and another one behind it."""
        return Text((*self.ids, *other.ids), (*self.types, *other.types))


@dataclass(frozen=True, slots=True)
class Window:
    """What is read at once: `[CLS] input context [SEP] output [SEP]`, the output from token `begin` to `end`.

    `places` are the half-open character offsets into the sample's output of the tokens from `begin` to `end`,
    without space around them: empty for a token of space alone, and the same for all tokens of one character.
    """

    text: Text
    begin: int
    end: int
    places: tuple[tuple[int, int], ...]


class _Encoded(NamedTuple):
    """A text's token ids, and where each stands."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class _Piece(NamedTuple):
    """A sentence of what the output may rely on: its tokens, and whether it is context or was said before."""

    kind: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """What an output is held against: what was asked, and the sentences that it may rely on."""

    asked: _Piece
    pieces: tuple[_Piece, ...]
    known: Known
    weights: Mapping[int, float]

    def chosen(self, output: Sequence[int], room: int) -> list[_Piece]:
        """What was asked, and the sentences that cover an output best, in at most `room` tokens."""
        return [self.asked, *chosen(self.pieces, output, self.weights, room - len(self.asked.ids))]


class Encoder:
    """Cuts samples into windows of at most `window` tokens.

    A context that does not fit is represented by those of its sentences that cover the output best, in their
    own order; an output that does not fit is cut between sentences, and each part is read with sentences of
    its own. So every token of the output is read once, and the cost grows with the output, not the context.
    A text that spells one of the tokenizer's special tokens is only text. Raises `ModelError` for a tokenizer
    without `MARKS`, or where a text could become one.
    """

    def __init__(self, tokenizer: Tokenizer, window: int) -> None:
        if window < LEAST_WINDOW:
            raise SpecError(f"a window needs at least {LEAST_WINDOW} tokens, got {window}")
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True  # as text, where a text spells them
        self._tokenizer = tokenizer
        self.window = window
        self._first, self._sep = marks(tokenizer)

    @property
    def longest_output(self) -> int:
        """Tokens of an output that are read at once."""
        return int(self.window * OUTPUT_SHARE) - 3

    def windows(self, sample: Sample) -> list[Window]:
        """The windows of a sample, none for an output without tokens."""
        source = self.source(sample)
        output = sample.output or ""
        text, places = self.output(output, source)
        found = []
        for part in checked(self._parts(output, places), 1):
            ids, types = text.ids[part.start : part.stop], text.types[part.start : part.stop]
            before = self.before(source, ids, self.window - len(ids))
            begin = len(before.ids)
            read = before.then(Text(ids, types)).then(self.end)
            found.append(Window(read, begin, begin + len(ids), places[part.start : part.stop]))
        return found

    def source(self, sample: Sample) -> Source:
        """What a sample's output is held against; encoded once in a `scratch`."""
        key = ("encoded", self, sample.context, sample.messages, sample.input)
        return once(key, lambda: self._source(sample))

    def _source(self, sample: Sample) -> Source:
        asked = _Piece(INPUT, tuple(self._encode(sample.input or "").ids[-INPUT_TOKENS:]))
        pieces = (
            *self._pieces(CONTEXT, sample.context),
            *self._pieces(INPUT, [turn.text for turn in sample.messages]),
        )
        return Source(asked, pieces, Known(piece.ids for piece in [asked, *pieces]), _weights(pieces))

    def output(self, text: str, source: Source) -> tuple[Text, tuple[tuple[int, int], ...]]:
        """An output's tokens with what is known of each, and where each stands; none where all is space."""
        written = self._encode(text)
        places = tuple(_trimmed(text, *offsets) for offsets in written.offsets)
        if not any(start < end for start, end in places):
            return Text((), ()), ()
        return Text(tuple(written.ids), tuple(source.known.types(written.ids, places, text))), places

    def before(self, source: Source, output: Sequence[int], room: int) -> Text:
        """What is read before an output: what covers it best, within `room` tokens with all separators."""
        read = source.chosen(output, room - 3)
        ids = (self._first, *(token for piece in read for token in piece.ids), self._sep)
        return Text(ids, (CONTEXT, *(piece.kind for piece in read for _ in piece.ids), CONTEXT))

    @property
    def end(self) -> Text:
        """What is read behind an output."""
        return Text((self._sep,), (END,))

    def _pieces(self, kind: int, texts: Iterable[str]) -> Iterator[_Piece]:
        for text in texts:
            encoded = self._encode(text)
            at = 0
            for _, end in sentences(text):
                begin = at
                while at < len(encoded.ids) and encoded.offsets[at][0] < end:
                    at += 1
                if at > begin:
                    yield _Piece(kind, tuple(encoded.ids[begin:at]))

    def _parts(self, output: str, places: Sequence[tuple[int, int]]) -> Iterator[range]:
        """Runs of the output's tokens, cut between sentences where that can be."""
        most = self.longest_output
        starts = {start for start, _ in sentences(output)} if len(places) > most else set()
        begin, count = 0, len(places)
        while begin < count:
            end = min(begin + most, count)
            if end < count:
                fits = [at for at in range(begin + 1, end + 1) if places[at][0] in starts]
                end = fits[-1] if fits else end
            yield range(begin, end)
            begin = end

    def _encode(self, text: str) -> _Encoded:
        found = self._tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False)
        return _Encoded(found.ids, found.offsets)  # each of these two is made anew whenever it is asked for


class Known:
    """Which tokens, and which pairs of them, the output may rely on."""

    def __init__(self, texts: Iterable[Sequence[int]]) -> None:
        self._tokens: set[int] = set()
        self._pairs: set[tuple[int, int]] = set()
        for ids in texts:
            self._tokens.update(ids)
            self._pairs.update(pairwise(ids))

    def types(self, ids: Sequence[int], places: Sequence[tuple[int, int]], output: str) -> Iterator[int]:
        """The type id of each of the output's tokens."""
        before = None
        for token, (start, _) in zip(ids, places, strict=True):
            novelty = NOVEL
            if token in self._tokens:
                novelty = IN_SEQUENCE if (before, token) in self._pairs else KNOWN
            first = output[start : start + 1]  # nothing where the output ends in space
            form = DIGIT if first.isdigit() else CAPITAL if first.isupper() else PLAIN
            before = token
            yield OUTPUT + 3 * novelty + form


def chosen(
    pieces: Sequence[_Piece], output: Sequence[int], weights: Mapping[int, float], room: int
) -> list[_Piece]:
    """The sentences that cover an output best, of at most `room` tokens, in their own order.

    The best is taken first, and what it covers counts a quarter from then on, so that every part of the
    output finds its own support.
    """
    if sum(len(piece.ids) for piece in pieces) <= room:
        return list(pieces)
    worth = {token: weights.get(token, 0.0) for token in set(output)}
    shared = [worth.keys() & set(piece.ids) for piece in checked(pieces)]

    def gain(at: int) -> float:
        return sum(worth[token] for token in shared[at]) / math.sqrt(len(pieces[at].ids) + DAMPING)

    # What a sentence adds only falls as others are taken, so only the first of the queue is looked at anew.
    queue = [(-gain(at), at) for at in range(len(pieces))]
    heapq.heapify(queue)
    taken: dict[int, _Piece] = {}
    while queue and room > 0:
        at = queue[0][1]
        now = (-gain(at), at)
        if now > queue[0]:
            heapq.heapreplace(queue, now)
            continue
        heapq.heappop(queue)
        if len(pieces[at].ids) > room and taken:
            continue
        taken[at] = _Piece(pieces[at].kind, pieces[at].ids[:room])
        room -= len(taken[at].ids)
        for token in shared[at]:
            worth[token] /= 4
    return [taken[at] for at in sorted(taken)]


def marks(tokenizer: Tokenizer) -> tuple[int, int]:
    """The ids of the tokens that begin a window and end its texts. Raises `ModelError` where it has none."""
    for names in MARKS:
        first, last = map(tokenizer.token_to_id, names)
        if first is None or last is None:
            continue
        spelled = "{0} {1}{0} a{1}".format(*names)
        if {first, last}.intersection(tokenizer.encode(spelled, add_special_tokens=False).ids):
            raise ModelError(
                f"the tokenizer takes {' and '.join(names)} in a text for its own marks, so that a text "
                "could pass for two; a detector needs a tokenizer.json that calls them special"
            )
        return first, last
    known = ", ".join(" and ".join(names) for names in MARKS)
    raise ModelError(
        f"the tokenizer of a detector has marks for where texts begin and end ({known}); none here"
    )


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """A place without the space that tokens of some vocabularies begin with."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def _weights(pieces: Sequence[_Piece]) -> dict[int, float]:
    """How much it says of a sentence that it has a token: its inverse document frequency."""
    found = Counter(token for piece in pieces for token in set(piece.ids))
    return {token: math.log(1 + len(pieces) / count) for token, count in found.items()}
