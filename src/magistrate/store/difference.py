"""What became of the samples of one data set in another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b

from magistrate.store.codec import dumps
from magistrate.types import Sample

COMPARED = tuple(field.name for field in fields(Sample) if field.name != "id")
_MARK = 8  # bytes: two different values have the same mark once in 2**64


@dataclass(frozen=True, slots=True)
class Difference:
    """Samples by their ids: only in the second, only in the first, in both with other fields; how many alike.

    `added` has the order of the second, the others that of the first.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: Mapping[str, tuple[str, ...]]
    n_same: int

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def difference(before: Iterable[Sample], after: Iterable[Sample]) -> Difference:
    """Both are gone through once; some 200 bytes a sample of `before` are held."""
    left = {sample.id: _marks(sample) for sample in before}
    added: list[str] = []
    changes: dict[str, tuple[str, ...]] = {}
    seen: set[str] = set()
    for sample in after:
        seen.add(sample.id)
        marks = left.get(sample.id)
        if marks is None:
            added.append(sample.id)
        elif marks != (now := _marks(sample)):
            changes[sample.id] = tuple(
                name
                for place, name in enumerate(COMPARED)
                if marks[place * _MARK : (place + 1) * _MARK] != now[place * _MARK : (place + 1) * _MARK]
            )
    removed = tuple(id for id in left if id not in seen)
    changed = {id: changes[id] for id in left if id in changes}
    return Difference(tuple(added), removed, changed, len(left) - len(removed) - len(changed))


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
