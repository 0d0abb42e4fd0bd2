"""Changes that keep what an output claims, or omit part of it."""

from __future__ import annotations

import re
from random import Random

from magistrate.training.synthetic.draft import STOP, Draft, Edit, Variant, edited, shuffled, sort_of
from magistrate.training.synthetic.lexicon import listed, word_set
from magistrate.training.synthetic.wrong import NEGATED, replaced

CONTRACTIONS = tuple(tuple(row.split(" = ")) for row in listed("contractions"))


def synonyms(draft: Draft, random: Random) -> Variant | None:
    """Replace one to five words by synonyms."""
    return replaced(draft, random, draft.lexicon.synonyms, random.choice((1, 2, 2, 3, 3, 4, 5)), wrong=False)


def contraction(draft: Draft, random: Random) -> Variant | None:
    """Replace "is not" by "isn't", or the other way round."""
    text = draft.output.text
    edits = []
    for long, short in CONTRACTIONS:
        # 's is not expanded: it may be a possessive, or stand for "has".
        pairs = [(long, short)] + (
            [(short, long)] if short.endswith(("n't", "'re", "'m", "'ve", "'ll")) else []
        )
        for old, new in pairs:
            for match in re.finditer(rf"\b{old}\b(?=[ ])", text, re.I):
                found = new[0].upper() + new[1:] if match.group()[0].isupper() else new
                edits.append(
                    Edit(match.start(), match.end(), found.replace("i'm", "I'm").replace("i am", "I am"))
                )
    return edited(text, edits[: random.choice((1, 2, 9))]) if edits else None


def number_format(draft: Draft, random: Random) -> Variant | None:
    """Replace "twelve" by 12, 50% by "50 percent", or $3 million by "3 million dollars"."""
    text, names = draft.output.text, listed("numbers")
    choices = [
        Edit(each.start, each.end, names[int(each.text)])
        for each in draft.output.numbers
        if each.text.isdigit()
        and int(each.text) < 21
        and each.text[0] != "0"
        and not re.search(rf"(?:{'|'.join(listed('months'))}|[A-Z]\w*) $", text[: each.start])
        and not re.match(rf" (?:{'|'.join(listed('months'))})", text[each.end :], re.I)
        and re.match(r" [a-z]", text[each.end :])
        and not re.search(r"[$£€:/#-]$", text[: each.start])
    ]
    choices += [
        Edit(word.start, word.end, str(names.index(word.lower)))
        for word in draft.output.words
        if word.lower in names[2:] and word.text.islower() and re.match(r" [a-z]", text[word.end :])
    ]
    choices += [Edit(m.start(), m.end(), " percent") for m in re.finditer(r"(?<=\d)%", text)]
    choices += [Edit(m.start(), m.end(), "%") for m in re.finditer(r"(?<=\d) (?:percent|per cent)\b", text)]
    choices += [
        Edit(m.start(), m.end(), f"{m.group(1)} {m.group(2)} dollars")
        for m in re.finditer(r"(?<![A-Z])\$(\d[\d.,]*) (million|billion|trillion)\b", text)
    ]
    return edited(text, [random.choice(choices)]) if choices else None


def date_format(draft: Draft, random: Random) -> Variant | None:
    """Replace "5 May 2010" by "May 5, 2010", or the other way round."""
    text, months = draft.output.text, "|".join(listed("months"))
    edits = [Edit(m.start(), m.end(), f"{m.group(2)} {m.group(1)} {m.group(3)}")
             for m in re.finditer(rf"\b({months}) (\d\d?), (\d{{4}})\b", text)]  # fmt: skip
    edits += [Edit(m.start(), m.end(), f"{m.group(2)} {m.group(1)}, {m.group(3)}")
              for m in re.finditer(rf"\b(\d\d?) ({months}) (\d{{4}})\b", text)]  # fmt: skip
    return edited(text, [random.choice(edits)]) if edits else None


def name_shortened(draft: Draft, random: Random) -> Variant | None:
    """Shorten a name of two words to its last one, if the context does so too."""
    choices = []
    for name in draft.names:
        _, _, last = name.text.partition(" ")
        if last and " " not in last and sort_of(name.text, draft.lexicon) == "person":
            full = draft.source_text.count(name.text.lower())
            alone = len(re.findall(rf"\b{re.escape(last.lower())}\b", draft.source_text)) - full
            others = [each for each in draft.source_names if each.endswith(" " + last) and each != name.text]
            if full and alone > 0 and not others:
                choices.append(Edit(name.start, name.end, last))
    return edited(draft.output.text, [random.choice(choices)]) if choices else None


def _started(draft: Draft, start: int, name: str) -> str:
    return name[0].upper() + name[1:] if start in draft.output.starts else name


def same_name(draft: Draft, random: Random) -> Variant | None:
    """Replace a name by another of the same bearer, such as "the United States" by "the US"."""
    choices = [
        Edit(
            match.start(),
            match.end(),
            _started(draft, match.start(), random.choice([each for each in family if each != name])),
        )
        for family in listed("same_names")
        for name in family
        for match in re.finditer(rf"(?<![\w.]){re.escape(name)}(?![\w'])(?!\.\w)", draft.output.text)
    ]
    return edited(draft.output.text, [random.choice(choices)]) if choices else None


def opener(draft: Draft, random: Random) -> Variant | None:
    """Add words before or after an answer that claim nothing."""
    text = draft.output.text
    if random.random() < 0.3:
        return (
            edited(text, [Edit(len(text.rstrip()), len(text), random.choice(listed("closers")))])
            if text.rstrip()[-1:] in tuple(".!")
            else None
        )
    new = random.choice(listed("openers"))
    first = draft.output.words[0] if draft.output.words else None
    if first is None or draft.output.sentences[0].text.endswith("?"):
        return None
    if new.endswith(", ") or new[-2].islower():
        lower = (
            first.text[0].lower() + first.text[1:]
            if first.lower in STOP and first.text != "I"
            else first.text
        )
    else:
        lower = first.text
    return edited(text, [Edit(first.start, first.end, new + lower)])


def lower_case(draft: Draft, random: Random) -> Variant | None:
    """Convert the output to lower case."""
    lower = draft.output.text.lower()
    return None if lower == draft.output.text else Variant(lower)


def spacing(draft: Draft, random: Random) -> Variant | None:
    """Separate punctuation from words, or drop it at the end."""
    text = draft.output.text
    new = re.sub(r"(?<=\w)([.,!?])(?=\s|$)", r" \1", text) if random.random() < 0.5 else text.rstrip(".! ")
    return None if new == text or not new else Variant(new)


ADVERB = re.compile(rf" (?:{'|'.join(listed('dropped_adverbs'))})(?= [a-z])")
MONTHS = "|".join(listed("months"))
DAYS = "|".join(listed("weekdays"))
WHEN = rf"(?:on (?:{DAYS})|last (?:week|month|year|night)|in (?:19|20)\d\d|in (?:{MONTHS}))"
ADJUNCT = re.compile(rf",? {WHEN}(?=[.,])")
LAST = re.compile(rf"^([A-Z][^.?!:;\"]+) ({WHEN})\.$")
FIRST = re.compile(rf"^({WHEN}), ([A-Z][^.?!:;\"]+)\.$", re.I)
ASIDE = re.compile(r", (?:who|which|an?|the) [^,.;]{5,80}, (?=[a-z])|\s?\([^()]{2,80}\)")
# Past by participle, for verbs whose passive voice means the same as the active one.
PARTICIPLES = {row.split()[-1]: row.split()[0] for row in listed("agent_verbs")}
POINTING = word_set("pointing")


def dropped(draft: Draft, random: Random) -> Variant | None:
    """Drop an adverb, a time or an aside from a sentence without negation."""
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
    """Drop a sentence that the next one does not depend on."""
    sentences = draft.output.sentences
    places = [
        at for at in range(1, len(sentences)) if at + 1 == len(sentences) or not leans(sentences[at + 1].text)
    ]
    if not places:
        return None
    at = random.choice(places)
    return edited(draft.output.text, [Edit(sentences[at - 1].end, sentences[at].end, "")])


def reordered(draft: Draft, random: Random) -> Variant | None:
    """Reorder sentences, if none depends on the one before it."""
    sentences = [each.text for each in draft.output.sentences]
    if len(sentences) < 2 or any(leans(each) for each in sentences):
        return None
    order = shuffled(random, sentences)
    output = " ".join(order)
    return None if order == sentences or output == draft.output.text else Variant(output)


def leans(sentence: str) -> bool:
    """Return whether a sentence begins with a word that points back, or is incomplete."""
    first = sentence.split()[0].lower().strip("\"'(,")
    return first.partition("'")[0] in POINTING or sentence[-1] not in ".!?"


def time_moved(draft: Draft, random: Random) -> Variant | None:
    """Move a time from the end of its sentence to the beginning, or the other way round."""
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
    """Replace "B was directed by A" by "A directed B", or the other way round, if both are names."""
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
    """Insert a sentence of the context in place of one of the output's, or next to it."""
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
    """Replace the whole output by one or two sentences of the context."""
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
