"""The difference of two data sets: samples added, removed and changed."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b

from magistrate.store.codec import dumps
from magistrate.types import Sample

COMPARED = tuple(field.name for field in fields(Sample) if field.name != "id")
LINE = re.compile(r".*-\d+(~\d+)?", re.DOTALL)  # an id made of a file's name and a line's number
_MARK = 8  # bytes: two different values have the same mark once in 2**64


@dataclass(frozen=True, slots=True)
class Difference:
    """Samples by their ids: only in the second, only in the first, in both with other fields; how many alike.

    `added` has the order of the second, the others that of the first; where a sample has another id in the
    second, `changed` has that of the first.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: Mapping[str, tuple[str, ...]]
    n_same: int

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def difference(before: Iterable[Sample], after: Iterable[Sample]) -> Difference:
    """Both are gone through once; some 200 bytes a sample are held.

    Samples are the same by their ids. An id that ends in a number, as those that are made of a file and a
    line do, says too little for that: such samples are the same by what they hold, and changed where input,
    context and messages are alike, or the output is.
    """
    left = {sample.id: _marks(sample) for sample in before}
    right = {sample.id: _marks(sample) for sample in after}
    pairs = {id: id for id in left if id in right and (not LINE.fullmatch(id) or left[id] == right[id])}
    for alike in (_whole, _question, _answer):
        _pair(left, right, pairs, alike)
    changed = {
        id: tuple(name for name in COMPARED if _of(name, left[id]) != _of(name, right[pairs[id]]))
        for id in left
        if id in pairs and left[id] != right[pairs[id]]
    }
    paired = set(pairs.values())
    added = tuple(id for id in right if id not in paired)
    removed = tuple(id for id in left if id not in pairs)
    return Difference(added, removed, changed, len(pairs) - len(changed))


def _pair(
    left: Mapping[str, bytes],
    right: Mapping[str, bytes],
    pairs: dict[str, str],
    alike: Callable[[bytes], bytes | None],
) -> None:
    """Add pairs of samples that `alike` answers the same of, the same id first, else in their order; only
    where one of both ids is that of a line. What `alike` answers None of is like nothing."""
    taken = set(pairs.values())
    lone = [(id, key) for id, marks in left.items() if id not in pairs and (key := alike(marks)) is not None]
    for id, key in lone:
        if id in right and id not in taken and alike(right[id]) == key:
            pairs[id] = id
            taken.add(id)
    lined: dict[bytes, deque[str]] = defaultdict(deque)
    named: dict[bytes, deque[str]] = defaultdict(deque)
    for id, marks in right.items():
        if id not in taken and (key := alike(marks)) is not None:
            (lined if LINE.fullmatch(id) else named)[key].append(id)
    for id, key in lone:
        if id in pairs:
            continue
        if lined[key]:
            pairs[id] = lined[key].popleft()
        elif named[key] and LINE.fullmatch(id):
            pairs[id] = named[key].popleft()


def _whole(marks: bytes) -> bytes:
    return marks


def _question(marks: bytes) -> bytes | None:
    key = b"".join(_of(name, marks) for name in ("input", "context", "messages"))
    return None if key == _NOTHING_ASKED else key


def _answer(marks: bytes) -> bytes | None:
    key = _of("output", marks)
    return None if key == _mark(None) else key


def _of(name: str, marks: bytes) -> bytes:
    place = COMPARED.index(name) * _MARK
    return marks[place : place + _MARK]


def _marks(sample: Sample) -> bytes:
    return b"".join(_mark(getattr(sample, name)) for name in COMPARED)


def _mark(value: object) -> bytes:
    if isinstance(value, tuple):
        value = [_plain(each) for each in value]
    text = dumps(value, sort_keys=True)
    return blake2b(text.encode("ascii"), digest_size=_MARK).digest()


def _plain(value: object) -> object:
    """A span or a turn as a list, anything else as it is."""
    named = getattr(value, "__dataclass_fields__", None)
    return value if named is None else [getattr(value, name) for name in named]


_NOTHING_ASKED = _mark(None) + _mark(()) * 2
