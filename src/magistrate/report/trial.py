"""The trial of a courtroom, read from the details of its verdict, for the terminal and the sample's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magistrate._text import decimal

SPEECHES = 100  # of a charge, at most; a courtroom hears far fewer


@dataclass(frozen=True, slots=True)
class Said:
    """What a side says of a charge; `quote` are words of the context, `does` what it does without words."""

    side: str
    does: str
    quote: str
    argument: str


@dataclass(frozen=True, slots=True)
class ChargeHeard:
    """A charge, what was said of it and, in a few words, what came of it."""

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
    """The trial among a verdict's details; None where there is none, or what is there is no trial."""
    try:
        return _trial(details)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        return None  # a store may hold anything, and the details are shown as data too


def _trial(details: Mapping[str, Any]) -> TrialHeard:
    rounds = int(details["rounds"])
    heard = f", after {rounds} {'reply' if rounds == 1 else 'replies'} of each side" if rounds else ""
    opening = (
        f"before the hearing the context was found not to bear the output out: {_share(details['opening'])}"
    )
    return TrialHeard(
        opening, f"it ended: {details['stopped']}{heard}", tuple(map(_charge, _listed(details["trial"])))
    )


def _charge(each: Mapping[str, Any]) -> ChargeHeard:
    share = each["probability"]
    sure = "" if share is None else f", {_share(share)} that the charge is right"
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
    does = "" if quote is not None else "quotes nothing of the context"
    if said["yields"]:
        does = "concedes" if side == "defence" else "rests"
    elif charge and quote is None:
        does = "the context says nothing of the kind"
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
