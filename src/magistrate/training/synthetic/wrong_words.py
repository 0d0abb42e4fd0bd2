"""Changes that make an output say something else: negation, opposites, other words, stronger claims."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from magistrate.training.synthetic.drafts import Draft, Edit, Variant, cased, edited, shuffled
from magistrate.training.synthetic.inflection import Analysis
from magistrate.training.synthetic.text import STOP, Word
from magistrate.training.synthetic.words import listed

VERBS = r"is|are|was|were|would|could|should|must|has|have|had"
BEING = re.compile(rf"\b({VERBS}|will|can|does|did|do)\b(?! not\b|n't|'t| no\b| n[eo]ver\b)", re.I)
NOT = re.compile(rf"\b({VERBS}|will|can) (?:not|never) |\b({VERBS})n['’]t ", re.I)
DID_NOT = re.compile(r"\b(do|does|did)(?: not|n['’]t) ([a-z]+)\b")
NEGATED = re.compile(rf"n't\b|\b(?:{'|'.join(listed('negations'))})\b", re.I)
COMPOUND = frozenset("-'/’")


def negation_inserted(draft: Draft, random: Random) -> Variant | None:
    """A plain claim denied."""
    text = draft.output.text
    choices = [
        Edit.wrong(match.start(), match.end(), f"{match.group()} not")
        for sentence in draft.output.sentences
        if not sentence.text.endswith("?") and not NEGATED.search(sentence.text)
        for match in BEING.finditer(text, sentence.start, sentence.end)
        if match.start() > sentence.start and re.match(r" [a-z\"'A-Z0-9]", text[match.end() :])
    ]
    for place, analysis, before in content_words(draft):
        if (
            analysis.part == "verb"
            and analysis.form in ("past", "ed")
            and _after_subject(draft, place, before)
        ):
            sentence = draft.sentence_at(place.start)
            if not sentence.text.endswith("?") and not NEGATED.search(sentence.text):
                choices.append(Edit.wrong(place.start, place.end, f"did not {analysis.base}"))
    return edited(text, [random.choice(choices)]) if choices else None


def _after_subject(draft: Draft, place: Word, before: str) -> bool:
    """Whether a name or a pronoun stands right before a verb, so that it is no participle."""
    return before in ("he", "she", "they", "it", "we", "i", "who") or any(
        name.end == place.start - 1 for name in draft.names
    )


def negation_removed(draft: Draft, random: Random) -> Variant | None:
    """A denial made a claim."""
    text = draft.output.text
    choices = [
        Edit.wrong(match.start(), match.end() - 1, match.group(1) or match.group(2))
        for match in NOT.finditer(text)
        if not re.match(r"(?:only|yet|any\w*|until|just|even|to)\b", text[match.end() :])
    ]
    for match in DID_NOT.finditer(text):
        analysis = Analysis(match.group(2), "verb", "base")
        if draft.lexicon.wordnet and not _is_verb(draft, match.group(2)):
            continue
        form = {"do": match.group(2), "does": _inflected(analysis, "s"), "did": _inflected(analysis, "past")}[
            match.group(1).lower()
        ]
        if form and not re.match(r" (?:any\w*|until|yet|either)\b", text[match.end() :]):
            choices.append(Edit.wrong(match.start(), match.end(), form))
    return edited(text, [random.choice(choices)]) if choices else None


def _is_verb(draft: Draft, word: str) -> bool:
    reading = draft.lexicon.reading(word, "to")
    return reading is not None and reading.part == "verb"


def _inflected(of: Analysis, form: str) -> str | None:
    from magistrate.training.synthetic.inflection import inflected

    return inflected(of.base, "verb", form)  # type: ignore[arg-type]


def content_words(draft: Draft) -> list[tuple[Word, Analysis, str]]:
    """Words of the output that are no names and can be read clearly, with the word before them."""
    found: list[tuple[Word, Analysis, str]] = []
    text = draft.output.text
    taken = {place for name in draft.names for place in range(name.start, name.end)}
    before = ""
    for word in draft.output.words:
        lower = word.lower
        plain = word.text.isalpha() and lower not in STOP and word.start not in taken
        joined = text[word.end : word.end + 1] in COMPOUND or text[word.start - 1 : word.start] in COMPOUND
        common = plain and not joined and (word.text.islower() or word.start in draft.output.starts)
        if common and (reading := draft.lexicon.reading(lower, before)):
            found.append((word, reading, before))
        before = lower
    return found


def antonym(draft: Draft, random: Random) -> Variant | None:
    """A word for its opposite."""
    return replaced(draft, random, draft.lexicon.antonyms, 1)


def sibling(draft: Draft, random: Random) -> Variant | None:
    """A noun for another under the same heading: brother for cousin, oak for elm."""
    return replaced(draft, random, draft.lexicon.siblings, 1)


def other_word(draft: Draft, random: Random) -> Variant | None:
    """A word for one of the same part of speech and form from another sample."""
    for word, analysis, _ in shuffled(random, content_words(draft)):
        pool = draft.pools.words.get(f"{analysis.part} {analysis.form}", ())
        if analysis.part == "adverb" or not pool:
            continue
        new = random.choice(pool)
        if new in draft.known or new == word.lower:
            continue
        return edited(
            draft.output.text,
            [Edit.wrong(word.start, word.end, cased(_article(draft, word, new), word.text))],
        )
    return None


def _article(draft: Draft, word: Word, new: str) -> str:
    return new


def replaced(
    draft: Draft,
    random: Random,
    others: Callable[[Analysis, str], tuple[str, ...]],
    most: int,
    *,
    wrong: bool = True,
) -> Variant | None:
    """Up to `most` words changed for one of those that `others` gives; `a` and `an` before them follow."""
    text = draft.output.text
    edits: list[Edit] = []
    for word, analysis, before in shuffled(random, content_words(draft)):
        choices = [other for other in others(analysis, before) if other != word.lower]
        if not choices:
            continue
        new = cased(random.choice(choices), word.text)
        start = word.start
        if before in ("a", "an") and (new[0].lower() in "aeiou") != (word.lower[0] in "aeiou"):
            start = word.start - len(before) - 1
            new = cased("an " if new[0].lower() in "aeiou" else "a ", text[start]) + new
        edits.append(Edit.wrong(start, word.end, new) if wrong else Edit(start, word.end, new))
        if len(edits) == most:
            break
    return edited(text, edits) if edits else None


def quantifier(draft: Draft, random: Random) -> Variant | None:
    """All for some, at least for at most, always for never."""
    choices: list[Edit] = []
    for family in listed("quantifiers"):
        for word in family:
            # "No, he did": an answer and no quantifier; "only" and "more than" have others around them.
            for match in re.finditer(
                rf"\b{word}\b(?! the\b| of\b| own\b|,| (?:i|he|she|it|but)\b| \d)", draft.output.text, re.I
            ):
                other = random.choice([each for each in family if each != word])
                choices.append(Edit.wrong(match.start(), match.end(), cased(other, match.group())))
    return edited(draft.output.text, [random.choice(choices)]) if choices else None


def nationality(draft: Draft, random: Random) -> Variant | None:
    """One nationality for another."""
    names = listed("nationalities")
    choices = []
    for word in draft.output.words:
        if word.text.capitalize() in names and word.text[1:].islower():
            new = random.choice([name for name in names if name != word.text.capitalize()])
            new = new if word.text[0].isupper() else new.lower()
            start = word.start
            if article := re.search(r"\b([Aa])n? $", draft.output.text[:start]):
                start, new = article.start(), article.group(1) + ("n " if new[0] in "AEIOaeio" else " ") + new
            choices.append(Edit.wrong(start, word.end, new))
    return edited(draft.output.text, [random.choice(choices)]) if choices else None


def preposition(draft: Draft, random: Random) -> Variant | None:
    """Before for after, with for without."""
    choices = [
        Edit.wrong(match.start(), match.end(), cased(family[1 - at], match.group()))
        for family in listed("prepositions")
        for at, word in enumerate(family)
        for match in re.finditer(rf"\b{word}\b(?= [a-z0-9A-Z\"'])", draft.output.text, re.I)
    ]
    return edited(draft.output.text, [random.choice(choices)]) if choices else None


def qualifier_dropped(draft: Draft, random: Random) -> Variant | None:
    """A word left out that made a claim smaller: former, alleged, nearly. The word after it is marked."""
    words = "|".join(listed("hedges") + listed("qualifiers"))
    choices = [
        Edit.wrong(match.start(), match.end(), cased(match.group(2), match.group()))
        for match in re.finditer(rf"\b({words}) ([A-Za-z]\w+)\b", draft.output.text, re.I)
        if _fits(draft.output.text[: match.start()], match.group(1).lower(), match.group(2))
    ]
    return edited(draft.output.text, [random.choice(choices)]) if choices else None


def _fits(before: str, word: str, after: str) -> bool:
    """Whether a qualifier can go: adjectives after a determiner, adverbs anywhere but after a denial."""
    if article := re.search(r"\b(an?) $", before, re.I):
        return (after[0].lower() in "aeiou") == (len(article.group(1)) == 2)
    if word in listed("hedges"):
        return not re.search(r"\b(?:no|not) $", before, re.I)
    return re.search(r"(?:^|[.!?] |\b(?:the|his|her|its|their|by|with|and|as) )$", before, re.I) is not None


STRONGER = (
    (re.compile(r"\b(?:may|might|could) (?=[a-z]+\b)(?!not\b|have\b)"), "will "),
    (re.compile(r"\b(?:was|were) (?=[a-z]+\b)(?!not\b|born\b)"), "will be "),
    (re.compile(r"\bis (?=[a-z]+\b)(?!not\b)"), "used to be "),
    (re.compile(r"\bwill (?=be\b)"), "will never "),
    (re.compile(r"\b(?:plans|hopes|wants|intends|expects|aims) to (?=[a-z]+)"), "refuses to "),
    (re.compile(r"\b(?:planned|hoped|wanted|intended|expected|tried) to (?=[a-z]+)"), "refused to "),
)


def modality(draft: Draft, random: Random) -> Variant | None:
    """A possibility made certain, a past made a future, a plan made a refusal."""
    text = draft.output.text
    choices = [
        Edit.wrong(match.start(), match.end(), new)
        for pattern, new in STRONGER
        for match in pattern.finditer(text)
        if not re.search(r"(?:\b(?:not|is|are|was|were|be|been)|n't) $", text[: match.start()])
    ]
    return edited(text, [random.choice(choices)]) if choices else None
