"""Changes that leave out, move or add whole parts of an output and make no claim of their own."""

from __future__ import annotations

import re
from random import Random

from magistrate.training.synthetic.drafts import Draft, Edit, Variant, edited, shuffled
from magistrate.training.synthetic.words import listed, word_set
from magistrate.training.synthetic.wrong_words import NEGATED

ADVERB = re.compile(rf" (?:{'|'.join(listed('dropped_adverbs'))})(?= [a-z])")
MONTHS = "|".join(listed("months"))
DAYS = "|".join(listed("weekdays"))
WHEN = rf"(?:on (?:{DAYS})|last (?:week|month|year|night)|in (?:19|20)\d\d|in (?:{MONTHS}))"
ADJUNCT = re.compile(rf",? {WHEN}(?=[.,])")
LAST = re.compile(rf"^([A-Z][^.?!:;\"]+) ({WHEN})\.$")
FIRST = re.compile(rf"^({WHEN}), ([A-Z][^.?!:;\"]+)\.$", re.I)
ASIDE = re.compile(r", (?:who|which|an?|the) [^,.;]{5,80}, (?=[a-z])|\s?\([^()]{2,80}\)")
# Verbs that say in the passive voice just what they say in the active one: participle and past.
PARTICIPLES = {row.split()[-1]: row.split()[0] for row in listed("agent_verbs")}
POINTING = word_set("pointing")


def dropped(draft: Draft, random: Random) -> Variant | None:
    """An adverb, a time or an aside left out of a sentence that denies nothing."""
    text = draft.output.text
    choices = [
        Edit(
            match.start(), match.end(), " " if match.group()[:1] == "," and match.group()[-1:] == " " else ""
        )
        for pattern in (ADJUNCT, ADVERB, ASIDE)
        for match in pattern.finditer(text)
        if not NEGATED.search(draft.sentence_at(match.start() + 1).text)
    ]
    return edited(text, [random.choice(choices)]) if choices else None


def sentence_dropped(draft: Draft, random: Random) -> Variant | None:
    """A sentence left out that no later one leans on."""
    sentences = draft.output.sentences
    places = [
        at for at in range(1, len(sentences)) if at + 1 == len(sentences) or not leans(sentences[at + 1].text)
    ]
    if not places:
        return None
    at = random.choice(places)
    return edited(draft.output.text, [Edit(sentences[at - 1].end, sentences[at].end, "")])


def reordered(draft: Draft, random: Random) -> Variant | None:
    """Sentences in another order, where none leans on the one before it."""
    sentences = [each.text for each in draft.output.sentences]
    if len(sentences) < 2 or any(leans(each) for each in sentences):
        return None
    order = shuffled(random, sentences)
    output = " ".join(order)
    return None if order == sentences or output == draft.output.text else Variant(output)


def leans(sentence: str) -> bool:
    """Whether a sentence begins with a word that points back, or is no whole sentence."""
    first = sentence.split()[0].lower().strip("\"'(,")
    return first.partition("'")[0] in POINTING or sentence[-1] not in ".!?"


def time_moved(draft: Draft, random: Random) -> Variant | None:
    """A time from the end of its sentence to the beginning, or the other way round."""
    edits = []
    for sentence in draft.output.sentences:
        if match := LAST.match(sentence.text):
            body, when = match.groups()
            edits.append(Edit(sentence.start, sentence.end, f"{when[0].upper()}{when[1:]}, {body}."))
        elif match := FIRST.match(sentence.text):
            when, body = match.groups()
            edits.append(Edit(sentence.start, sentence.end, f"{body} {when[0].lower()}{when[1:]}."))
    return edited(draft.output.text, [random.choice(edits)]) if edits else None


def voice_changed(draft: Draft, random: Random) -> Variant | None:
    """A directed B for B was directed by A, and back, where both are names."""
    text, edits = draft.output.text, []
    for first, second in zip(draft.names, draft.names[1:], strict=False):
        between = text[first.end : second.start]
        if re.match(r"\s*(?:and|or|&|,\s*(?:and\s+)?[A-Z])|'s|’s", text[second.end :]):
            continue
        if first.start and not re.search(r"(?:^|[.!?,] )(?:Yes, |Sure, )?$", text[: first.start]):
            continue
        if match := re.fullmatch(rf" (?:was|is) ({'|'.join(PARTICIPLES)}) by ", between):
            past = PARTICIPLES[match.group(1)]
            edits.append(Edit(first.start, second.end, f"{second.text} {past} {first.text}"))
        elif match := re.fullmatch(rf" ({'|'.join(PARTICIPLES.values())}) ", between):
            participle = next(each for each, past in PARTICIPLES.items() if past == match.group(1))
            edits.append(Edit(first.start, second.end, f"{second.text} was {participle} by {first.text}"))
    return edited(text, [random.choice(edits)]) if edits else None


def extracted(draft: Draft, random: Random) -> Variant | None:
    """A sentence of the context, in the place of one of the output's or beside it."""
    new = _own(draft, random)
    if new is None:
        return None
    text, sentences = draft.output.text, draft.output.sentences
    number = random.randrange(len(sentences))
    at = sentences[number]
    leaning = number + 1 < len(sentences) and leans(sentences[number + 1].text)
    if len(sentences) > 1 and random.random() < 0.6 and not leaning:
        return edited(text, [Edit(at.start, at.end, new)])
    if at.text[-1] not in ".!?" or leaning:
        return edited(text, [Edit(0, 0, f"{new} ")])
    return edited(text, [Edit(at.end, at.end, f" {new}")])


def only_extracted(draft: Draft, random: Random) -> Variant | None:
    """One or two sentences of the context instead of the whole output."""
    found = [each for _ in range(random.choice((1, 1, 2))) if (each := _own(draft, random))]
    output = " ".join(dict.fromkeys(found))
    return Variant(output) if output and output != draft.output.text else None


def _own(draft: Draft, random: Random) -> str | None:
    contexts = draft.sources[: len(draft.sample.context)]
    sentences = [each.text for source in contexts for each in source.sentences if 25 < len(each.text) < 300]
    for found in shuffled(random, sentences)[:8]:
        whole = found[-1] in ".!" and found[0].isalnum() and not leans(found)
        if whole and found not in draft.output.text and not re.match(r"\[?\w+\]?:", found):
            return found.lower() if draft.output.text.islower() else found
    return None
