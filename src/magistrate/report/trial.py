"""Read a trial, or a cross-examination, from a verdict's details, for the terminal and sample pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magistrate._text import decimal

MOVES = {"attack": "attacks, and ", "ask": "asks, and "}
SPEECHES = 100  # per charge, at most; a courtroom has far fewer


@dataclass(frozen=True, slots=True)
class Said:
    """A side's statement on a charge. `quote` is from the context; `does` names an act without words."""

    side: str
    does: str
    quote: str
    argument: str


@dataclass(frozen=True, slots=True)
class ChargeHeard:
    """A charge, the statements on it and its outcome in a few words."""

    number: int
    kind: str
    words: str
    said: tuple[Said, ...]
    ruling: str
    votes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrialHeard:
    """All charges, and how the hearing began and ended."""

    opening: str
    ended: str
    charges: tuple[ChargeHeard, ...]


def trial_of(details: Mapping[str, Any]) -> TrialHeard | None:
    """Return the trial in a verdict's details, or None if there is none or it is malformed."""
    try:
        return _trial(details)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        return None  # stored details may be anything, and they are also shown as raw data


def examination_of(details: Mapping[str, Any]) -> tuple[str, tuple[Said, ...]] | None:
    """Return how a cross-examination ended and what was said, or None if there is none or it is malformed."""
    try:
        found = details["cross_examination"]
        said = []
        for each in (
            one for challenges in _listed(found["rounds"])[:SPEECHES] for one in _listed(challenges)
        ):
            side, answered = ("A", "B") if each["side"] == "A" else ("B", "A")
            said.append(
                Said(f"side {side}", MOVES.get(each["move"], ""), str(each["quote"]), str(each["text"]))
            )
            reply = each["reply"]
            said.append(
                Said(f"side {answered}", "replies" if reply else "does not reply", "", str(reply or ""))
            )
        return f"it ended: {found['ended']}", tuple(said)
    except (TypeError, KeyError, ValueError, AttributeError):
        return None


def _trial(details: Mapping[str, Any]) -> TrialHeard:
    rounds = int(details["rounds"])
    heard = f", after {rounds} {'reply' if rounds == 1 else 'replies'} of each side" if rounds else ""
    opening = (
        "opening question, before the hearing: the context does not support the output: "
        f"{_share(details['opening'])}"
    )
    return TrialHeard(
        opening, f"it ended: {details['stopped']}{heard}", tuple(map(_charge, _listed(details["trial"])))
    )


def _charge(each: Mapping[str, Any]) -> ChargeHeard:
    share = each["probability"]
    sure = "" if share is None else f", charge right: {_share(share)}"
    return ChargeHeard(
        number=int(each["charge"]),
        kind=str(each["kind"]),
        words=str(each["words"]),
        said=tuple(
            _said(said, first == 0) for first, said in enumerate(_listed(each["speeches"])[:SPEECHES])
        ),
        ruling=f"{'upheld' if each['upheld'] else 'dismissed'}{sure}",
        votes=tuple(map(_vote, _listed(each["votes"])[:SPEECHES])),
    )


def _said(said: Mapping[str, Any], charge: bool) -> Said:
    side, quote = str(said["side"]), said["quote"]
    does = "" if quote is not None else "quotes nothing from the context"
    if said["yields"]:
        does = "concedes" if side == "defence" else "rests"
    elif charge and quote is None:
        does = "the context does not say this"
    return Said(side, does, "" if quote is None else str(quote), str(said["argument"]))


def _vote(vote: Mapping[str, Any]) -> str:
    share = vote["probability"]
    told = f"for the {vote['for']}" if share is None else f"{_share(share)} for the prosecution"
    return f"{vote['arbiter']}, with the {vote['side_1']} as Side 1: {told}"


def _listed(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError("no list")
    return value


def _share(value: Any) -> str:
    return decimal(float(value))
