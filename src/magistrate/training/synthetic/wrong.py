"""Changes that make an output wrong: other words, names, numbers and roles, and unsupported parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random

from magistrate.training.synthetic.draft import (
    STOP,
    Draft,
    Edit,
    Place,
    Variant,
    Word,
    cased,
    content,
    edited,
    shuffled,
    sort_of,
)
from magistrate.training.synthetic.lexicon import Analysis, inflected, listed

VERBS = r"is|are|was|were|would|could|should|must|has|have|had"
BEING = re.compile(rf"\b({VERBS}|will|can|does|did|do)\b(?! not\b|n't|'t| no\b| n[eo]ver\b)", re.I)
NOT = re.compile(rf"\b({VERBS}|will|can) (?:not|never) |\b({VERBS})n['’]t ", re.I)
DID_NOT = re.compile(r"\b(do|does|did)(?: not|n['’]t) ([a-z]+)\b")
NEGATED = re.compile(rf"n't\b|\b(?:{'|'.join(listed('negations'))})\b", re.I)
COMPOUND = frozenset("-'/’")


def negation_inserted(draft: Draft, random: Random) -> Variant | None:
    """Negate a positive claim."""
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
    """Return whether a name or a pronoun comes right before a verb, so that it is not a participle."""
    return before in ("he", "she", "they", "it", "we", "i", "who") or any(
        name.end == place.start - 1 for name in draft.names
    )


def negation_removed(draft: Draft, random: Random) -> Variant | None:
    """Remove a negation."""
    text = draft.output.text
    choices = [
        Edit.wrong(match.start(), match.end() - 1, match.group(1) or match.group(2))
        for match in NOT.finditer(text)
        if not re.match(r"(?:only|yet|any\w*|until|just|even|to)\b", text[match.end() :])
    ]
    for match in DID_NOT.finditer(text):
        word, auxiliary = match.group(2), match.group(1).lower()
        if draft.lexicon.wordnet and not _is_verb(draft, word):
            continue
        if auxiliary == "do":
            form: str | None = word
        else:
            form = inflected(word, "verb", "s" if auxiliary == "does" else "past")
        if form and not re.match(r" (?:any\w*|until|yet|either)\b", text[match.end() :]):
            choices.append(Edit.wrong(match.start(), match.end(), form))
    return edited(text, [random.choice(choices)]) if choices else None


def _is_verb(draft: Draft, word: str) -> bool:
    reading = draft.lexicon.reading(word, "to")
    return reading is not None and reading.part == "verb"


def content_words(draft: Draft) -> list[tuple[Word, Analysis, str]]:
    """Return unambiguous words of the output that are not names, with the word before each."""
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
    """Replace a word by its opposite."""
    return replaced(draft, random, draft.lexicon.antonyms, 1)


def sibling(draft: Draft, random: Random) -> Variant | None:
    """Replace a noun by another with the same hypernym: cousin by brother, elm by oak."""
    return replaced(draft, random, draft.lexicon.siblings, 1)


def other_word(draft: Draft, random: Random) -> Variant | None:
    """Replace a word by one of the same part of speech and form from another sample."""
    for word, analysis, _ in shuffled(random, content_words(draft)):
        pool = draft.pools.words.get(f"{analysis.part} {analysis.form}", ())
        if analysis.part == "adverb" or not pool:
            continue
        new = random.choice(pool)
        if new in draft.known or new == word.lower:
            continue
        return edited(
            draft.output.text,
            [Edit.wrong(word.start, word.end, cased(new, word.text))],
        )
    return None


def replaced(
    draft: Draft,
    random: Random,
    others: Callable[[Analysis, str], tuple[str, ...]],
    most: int,
    *,
    wrong: bool = True,
) -> Variant | None:
    """Replace up to `most` words by results of `others`, and adjust `a` and `an` before them."""
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
    """Replace a quantifier by another: some by all, at most by at least, never by always."""
    choices: list[Edit] = []
    for family in listed("quantifiers"):
        for word in family:
            # In "No, he did", "no" is an answer; "only" and "more than" need other words around them.
            for match in re.finditer(
                rf"\b{word}\b(?! the\b| of\b| own\b|,| (?:i|he|she|it|but)\b| \d)", draft.output.text, re.I
            ):
                other = random.choice([each for each in family if each != word])
                choices.append(Edit.wrong(match.start(), match.end(), cased(other, match.group())))
    return edited(draft.output.text, [random.choice(choices)]) if choices else None


def nationality(draft: Draft, random: Random) -> Variant | None:
    """Replace a nationality by another."""
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
    """Replace a preposition by its opposite: after by before, without by with."""
    choices = [
        Edit.wrong(match.start(), match.end(), cased(family[1 - at], match.group()))
        for family in listed("prepositions")
        for at, word in enumerate(family)
        for match in re.finditer(rf"\b{word}\b(?= [a-z0-9A-Z\"'])", draft.output.text, re.I)
    ]
    return edited(draft.output.text, [random.choice(choices)]) if choices else None


def qualifier_dropped(draft: Draft, random: Random) -> Variant | None:
    """Drop a word that limits a claim: former, alleged, nearly. The word after it is marked."""
    words = "|".join(listed("hedges") + listed("qualifiers"))
    choices = [
        Edit.wrong(match.start(), match.end(), cased(match.group(2), match.group()))
        for match in re.finditer(rf"\b({words}) ([A-Za-z]\w+)\b", draft.output.text, re.I)
        if _can_be_dropped(draft.output.text[: match.start()], match.group(1).lower(), match.group(2))
    ]
    return edited(draft.output.text, [random.choice(choices)]) if choices else None


def _can_be_dropped(before: str, word: str, after: str) -> bool:
    """Return whether a qualifier can go: adjectives after a determiner, adverbs except after a negation."""
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
    """Make a possibility certain, a past event future, or a plan a refusal."""
    text = draft.output.text
    choices = [
        Edit.wrong(match.start(), match.end(), new)
        for pattern, new in STRONGER
        for match in pattern.finditer(text)
        if not re.search(r"(?:\b(?:not|is|are|was|were|be|been)|n't) $", text[: match.start()])
    ]
    return edited(text, [random.choice(choices)]) if choices else None


JOINED = re.compile(
    r"[\s,/&'-]*(?:(?:and|or|with|versus|vs|v|the|both|as well as|to|between|of)\b[\s,]*)*\.?", re.I
)
MUTUAL = re.compile(rf"\b(?:{'|'.join(listed('mutual'))})\b", re.I)


def name_from_context(draft: Draft, random: Random) -> Variant | None:
    """Replace a name by another of the same sort from the context."""
    return _renamed(draft, random, draft.source_names)


def name_from_elsewhere(draft: Draft, random: Random) -> Variant | None:
    """Replace a name by another of the same sort from other samples."""
    for name in shuffled(random, draft.names):
        pool = draft.pools.names.get(sort_of(name.text, draft.lexicon), ())
        for _ in range(5 if pool else 0):
            other = pool[random.randrange(len(pool))]
            if not draft.known.intersection(other.lower().split()) and _fits(draft, name, other):
                return edited(draft.output.text, [Edit.wrong(name.start, name.end, other)])
    return None


def _renamed(draft: Draft, random: Random, others: list[str]) -> Variant | None:
    for name in shuffled(random, draft.names):
        sort = sort_of(name.text, draft.lexicon)
        for other in shuffled(random, others):
            if sort_of(other, draft.lexicon) == sort and _fits(draft, name, other):
                return edited(draft.output.text, [Edit.wrong(name.start, name.end, other)])
    return None


def _fits(draft: Draft, name: Place, other: str) -> bool:
    """Return whether `other` can replace a name: another bearer, and not in that sentence already."""
    sentence = draft.sentence_at(name.start).text
    in_list = re.match(
        r",? (?:and|or) |, [A-Z]", draft.output.text[name.end :]
    )  # members of lists are interchangeable
    article = name.text.lower().startswith("the ") != other.lower().startswith("the ")
    return not (
        draft.same_bearer(name.text, other) or other in sentence or in_list or article or "\n" in other
    )


def roles_exchanged(draft: Draft, random: Random) -> Variant | None:
    """Swap two names of a sentence."""
    text = draft.output.text
    pairs: list[tuple[Place, Place]] = []
    for sentence in draft.output.sentences:
        names = [name for name in draft.names if sentence.start <= name.start < sentence.end]
        pairs += [
            (first, second)
            for first, second in pairwise(names)
            if not draft.same_bearer(first.text, second.text)
            and sort_of(first.text, draft.lexicon) == sort_of(second.text, draft.lexicon)
            and not JOINED.fullmatch(text, first.end, second.start)
            and not MUTUAL.search(text, first.end, second.start)
            and "," not in text[first.end : second.start]  # members of a list are interchangeable
            and len(text[first.end : second.start].split()) < 12
        ]
    for first, second in shuffled(random, pairs):
        return edited(
            text,
            [
                Edit.wrong(first.start, first.end, second.text),
                Edit.wrong(second.start, second.end, first.text),
            ],
        )
    return None


def number(draft: Draft, random: Random) -> Variant | None:
    """Replace a number, in digits or in words, by another one near it."""
    text = draft.output.text
    choices = [
        Edit.wrong(place.start, place.end, other)
        for place in draft.output.numbers
        if (other := _other_number(draft, place, random))
    ]
    names = listed("numbers")
    for word in draft.output.words:
        if word.lower in names[2:] and not re.match(r" (?:of|another)\b|-", text[word.end :]):
            other = (
                names[max(2, names.index(word.lower) + random.choice((-3, -2, -1, 1, 2, 3)))]
                if names.index(word.lower) < 18
                else "twelve"
            )
            if other != word.lower:
                choices.append(
                    Edit.wrong(word.start, word.end, other.capitalize() if word.text[0].isupper() else other)
                )
    return edited(text, [random.choice(choices)]) if choices else None


def _other_number(draft: Draft, place: Place, random: Random) -> str | None:
    plain = place.text.replace(",", "")
    if "." in plain:
        digits = len(plain.partition(".")[2])
        value = float(plain)
        step = max(0.3, round(value * random.uniform(0.08, 0.5), digits))
        other = f"{max(0.1, value + random.choice((-1, 1)) * step):.{digits}f}"
    elif len(plain) == 4 and plain[:2] in ("15", "16", "17", "18", "19", "20") and "," not in place.text:
        other = str(int(plain) + random.choice((-30, -12, -10, -7, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 7, 10)))
    else:
        value = int(plain)
        step = (
            random.choice((1, 2, 3, 5))
            if value < 30
            else random.choice((10, 20, 50))
            if value < 200
            else max(10, value // 5)
        )
        other = str(value + step if value <= step or random.random() < 0.5 else value - step)
        other = f"{int(other):,}" if "," in place.text else other
        if plain.startswith("0"):
            return None
    known = [
        each.text
        for source in draft.sources
        for each in source.numbers
        if len(each.text) == len(place.text) and ("." in each.text) == ("." in plain)
    ]
    if known and random.random() < 0.5:  # a number from elsewhere in the context is not new to it
        other = random.choice(known)
    return None if other.replace(",", "") == plain or other in draft.output.text else other


def date(draft: Draft, random: Random) -> Variant | None:
    """Replace a month or a day of the week by another."""
    choices: list[Edit] = []
    for names in (listed("months"), listed("weekdays")):
        for word in draft.output.words:
            if (word.text in names and word.text not in ("May", "March")) or (
                word.text in ("May", "March") and re.match(r" \d", draft.output.text[word.end :])
            ):
                others = [name for name in names if name != word.text]
                choices.append(Edit.wrong(word.start, word.end, random.choice(others)))
    return edited(draft.output.text, [random.choice(choices)]) if choices else None


def unit(draft: Draft, random: Random) -> Variant | None:
    """Replace a unit or a scale after a number by another: billion by million, months by weeks."""
    choices: list[Edit] = []
    for word, (base, others) in _units(draft):
        others = [other for other in others if other != base]
        new = random.choice(others)
        choices.append(Edit.wrong(word.start, word.end, new + ("s" if word.lower != base else "")))
    return edited(draft.output.text, [random.choice(choices)]) if choices else None


def _units(draft: Draft) -> Iterator[tuple[Word, tuple[str, list[str]]]]:
    families = [listed("scales"), *(family for family in listed("units") if "foot" not in family)]
    words = draft.output.words
    for before, word in pairwise(words):
        if before.text[0].isdigit() or before.lower in listed("numbers"):
            for family in families:
                base = word.lower.removesuffix("s")
                if base in family and word.lower in (base, base + "s"):
                    yield word, (base, family)
                    break


TAIL = re.compile(r" (in|for|with|after|at|by|from|on|against|during|because|as) (?=[\w$£€\"'])")
FEW = 2  # least number of novel words in an inserted part


def sentence_elsewhere(draft: Draft, random: Random) -> Variant | None:
    """Insert a sentence of another sample in place of one or next to it."""
    new = _foreign(draft, random)
    return None if new is None else _with_sentence(draft, random, new)


def generic_claim(draft: Draft, random: Random) -> Variant | None:
    """Insert a sentence that would fit many texts and that this context does not support."""
    new: str = random.choice(listed("generic"))
    if len(draft.novel(new)) < FEW:
        return None
    return _with_sentence(draft, random, new)


def _with_sentence(draft: Draft, random: Random, new: str) -> Variant | None:
    text, sentences = draft.output.text, draft.output.sentences
    new = new.lower() if text.islower() else new
    at = random.choice(sentences)
    if len(sentences) > 1 and random.random() < 0.6:
        return edited(text, [Edit.wrong(at.start, at.end, new)])
    if at.text[-1] not in ".!?":
        return edited(text, [Edit.wrong(at.start, at.start, f"{new} ")])
    return edited(text, [Edit.wrong(at.end, at.end, f" {new}")])


def _foreign(draft: Draft, random: Random) -> str | None:
    """Return a sentence of another sample, preferably one that shares a word with this output."""
    pools = draft.pools
    words = content(word.lower for word in draft.output.words)
    for attempt in range(8):
        word = random.choice(words) if words and attempt < 6 else ""
        places = pools.by_word.get(word) or range(len(pools.sentences))
        if not places:
            return None
        owner, sentence = pools.sentences[places[random.randrange(len(places))]]
        if owner == draft.sample.id or sentence in draft.output.text or sentence.lower() in draft.source_text:
            continue
        if len(draft.novel(sentence)) >= FEW:
            return sentence
    return None


def clause_inserted(draft: Draft, random: Random) -> Variant | None:
    """Insert a clause of another sample at the end of a sentence."""
    clauses = draft.pools.clauses
    ends = [each.end - 1 for each in draft.output.sentences if each.text[-1] == "." and len(each.text) > 25]
    for _ in range(4 if clauses and ends else 0):
        clause = clauses[random.randrange(len(clauses))]
        if len(draft.novel(clause)) >= FEW:
            at = random.choice(ends)
            clause = clause.lower() if draft.output.text.islower() else clause
            return edited(draft.output.text, [Edit.wrong(at, at, clause)])
    return None


def merged(draft: Draft, random: Random) -> Variant | None:
    """Join the beginning of a sentence to the end of a context sentence at the same preposition."""
    pieces = [
        (sentence, match)
        for sentence in draft.output.sentences
        if not sentence.text.endswith("?") and not NEGATED.search(sentence.text)
        for match in TAIL.finditer(sentence.text)
        if len(sentence.text[: match.start()].split()) > 2
    ]
    for sentence, match in shuffled(random, pieces)[:4]:
        head, tail = sentence.text[: match.start()], sentence.text[match.end() :]
        for other in shuffled(random, _context_sentences(draft)[:60]):
            for found in TAIL.finditer(other.text):
                new = other.text[found.end() :].rstrip(" .")
                if found.group(1) == match.group(1) and _unlike(head, tail, new, other.text):
                    start = sentence.start + match.end()
                    end = sentence.end - (sentence.text[-1] in ".!")
                    if draft.output.text.islower():
                        new = new.lower()
                    return edited(draft.output.text, [Edit.wrong(start, end, new)])
    return None


def _unlike(head: str, tail: str, new: str, other: str) -> bool:
    """Return whether the end of another sentence is about something else."""
    if not 2 <= len(new.split()) <= 14 or re.search(r"[.;:\"“”()?!]", new):
        return False
    mine = set(content(re.findall(r"\w+", f"{head} {tail}".lower())))
    about = set(content(re.findall(r"\w+", other.lower())))
    words = content(re.findall(r"\w+", new.lower()))
    return len(words) >= FEW and not mine & set(words) and len(mine & about) <= 1


def _context_sentences(draft: Draft) -> list[Place]:
    sources = draft.sources[: len(draft.sample.context)]
    return [each for source in sources for each in source.sentences if 30 < len(each.text) < 300]


def word_from_context(draft: Draft, random: Random) -> Variant | None:
    """Replace a noun by another noun of the context, which is not new to it."""
    for word, analysis, before in shuffled(random, content_words(draft)):
        if analysis.part != "noun":
            continue
        sentence = draft.sentence_at(word.start).text.lower()
        for new in shuffled(random, draft.source_nouns.get(analysis.form, ())[:200])[:5]:
            if (
                new not in sentence
                and not draft.lexicon.akin(word.lower, new)
                and not draft.near(word.lower, new)
            ):
                fits = before not in ("a", "an") or (new[0] in "aeiou") == (word.lower[0] in "aeiou")
                if fits:
                    return edited(
                        draft.output.text, [Edit.wrong(word.start, word.end, cased(new, word.text))]
                    )
    return None
