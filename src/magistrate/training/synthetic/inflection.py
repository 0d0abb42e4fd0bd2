"""English inflections by rule and by exception: from a form to its base, and from a base to a form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from magistrate.training.synthetic.words import listed, word_set

PartOfSpeech = Literal["noun", "verb", "adjective", "adverb"]
Form = Literal["base", "s", "ing", "ed", "past", "participle", "er", "est"]
"""`s`: plural of a noun, third person of a verb; `ed`: past and participle where they are the same."""

PLURALS = dict(row.split() for row in listed("irregular_plurals"))
INVARIABLE = word_set("invariable")
DEGREES = {"good": ("better", "best"), "bad": ("worse", "worst"), "far": ("farther", "farthest")}
# Verbs of several syllables that double their last letter before -ed and -ing.
DOUBLING = word_set("doubling")
VOWELS = "aeiou"


@dataclass(frozen=True, slots=True)
class Analysis:
    """A form taken apart."""

    base: str
    part: PartOfSpeech
    form: Form


VERBS = {base: (past, participle) for base, past, participle in map(str.split, listed("irregular_verbs"))}
FORMS: dict[str, list[Analysis]] = {}
for _base, (_past, _participle) in VERBS.items():
    if _past == _participle:
        FORMS.setdefault(_past, []).append(Analysis(_base, "verb", "ed"))
    else:
        FORMS.setdefault(_past, []).append(Analysis(_base, "verb", "past"))
        FORMS.setdefault(_participle, []).append(Analysis(_base, "verb", "participle"))
for _base, _many in PLURALS.items():
    FORMS.setdefault(_many, []).append(Analysis(_base, "noun", "s"))
for _base, (_er, _est) in DEGREES.items():
    FORMS.setdefault(_er, []).append(Analysis(_base, "adjective", "er"))
    FORMS.setdefault(_est, []).append(Analysis(_base, "adjective", "est"))


def analyses(word: str) -> Iterator[Analysis]:
    """What a lower-case form may be; most bases do not exist, so the caller looks them up."""
    irregular = FORMS.get(word, ())
    yield from irregular
    for part in ("noun", "verb", "adjective", "adverb"):
        if not any(each.part == part for each in irregular):
            yield Analysis(word, part, "base")
    if word in INVARIABLE:
        return
    for ending, form, parts in (
        ("s", "s", ("noun", "verb")),
        ("ed", "ed", ("verb",)),
        ("ing", "ing", ("verb",)),
        ("er", "er", ("adjective",)),
        ("est", "est", ("adjective",)),
    ):
        if not word.endswith(ending) or len(word) < len(ending) + 3 or word.endswith(("ss", "us", "is")):
            continue
        for base in _bases(word[: -len(ending)], ending):
            for part in parts:
                # A base is right only if it is inflected back to what stands there.
                if inflected(base, part, form) == word:  # type: ignore[arg-type]
                    yield Analysis(base, part, form)  # type: ignore[arg-type]


def _bases(stem: str, ending: str) -> Iterator[str]:
    yield stem
    if ending != "s":
        yield stem + "e"
        if len(stem) > 2 and stem[-1] == stem[-2]:
            yield stem[:-1]
        if stem.endswith("i"):
            yield stem[:-1] + "y"
    elif stem.endswith("ie"):
        yield stem[:-2] + "y"
    elif stem.endswith("e"):
        yield stem[:-1]


def inflected(base: str, part: PartOfSpeech, form: Form) -> str | None:
    """The form of a base, or None where it has none of that kind."""
    if form == "base":
        return base
    if part == "noun":
        return _plural(base) if form == "s" else None
    if part == "verb":
        return _verb(base, form)
    if part == "adjective" and form in ("er", "est"):
        return _degree(base, form)
    return None


def _plural(base: str) -> str | None:
    if base in INVARIABLE:
        return None
    return PLURALS.get(base) or (
        base[:-3] + "men" if base.endswith("man") and len(base) > 5 else _with_s(base)
    )


def _with_s(base: str) -> str:
    if re.search(r"(?:s|x|z|ch|sh)$", base):
        return base + "es"
    if base.endswith("y") and base[-2:-1] not in VOWELS:
        return base[:-1] + "ies"
    return base + ("es" if base in ("go", "do", "undergo", "veto", "echo") else "s")


def _verb(base: str, form: Form) -> str | None:
    if form == "s":
        return {"be": "is", "have": "has"}.get(base) or _with_s(base)
    if form == "ing":
        if base.endswith("ie"):
            return base[:-2] + "ying"
        return (base[:-1] if base.endswith("e") and not base.endswith(("ee", "oe", "ye")) and base != "be"
                else _doubled(base)) + "ing"  # fmt: skip
    if base in VERBS:
        past, participle = VERBS[base]
        if form == "ed":
            return past if past == participle else None
        return past if form == "past" else participle
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2:-1] not in VOWELS:
        return base[:-1] + "ied"
    return _doubled(base) + "ed"


def _degree(base: str, form: Form) -> str | None:
    if base in DEGREES:
        return DEGREES[base][form == "est"]
    if len(re.findall(r"[aeiouy]+", base.removesuffix("e"))) > 1 and not base.endswith("y"):
        return None  # such adjectives take more and most
    ending = "er" if form == "er" else "est"
    if base.endswith("e"):
        return base + ending[1:]
    if base.endswith("y"):
        return base[:-1] + "i" + ending
    return _doubled(base) + ending


def _doubled(base: str) -> str:
    """The base with its last consonant doubled where English doubles it before an ending."""
    short = re.fullmatch(r"[^aeiou]*(?:qu)?[aeiouy][bdfgklmnprtvz]", base)
    return base + base[-1] if short or base in DOUBLING else base
