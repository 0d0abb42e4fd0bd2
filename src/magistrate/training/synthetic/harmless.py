"""Changes that leave what an output claims as it is, or drop some of it."""

from __future__ import annotations

import re
from random import Random

from magistrate.training.synthetic.drafts import Draft, Edit, Variant, edited, sort_of
from magistrate.training.synthetic.text import STOP
from magistrate.training.synthetic.words import listed
from magistrate.training.synthetic.wrong_words import replaced

CONTRACTIONS = tuple(tuple(row.split(" = ")) for row in listed("contractions"))


def synonyms(draft: Draft, random: Random) -> Variant | None:
    """One to four words for others that mean the same."""
    return replaced(draft, random, draft.lexicon.synonyms, random.choice((1, 2, 2, 3, 3, 4, 5)), wrong=False)


def contraction(draft: Draft, random: Random) -> Variant | None:
    """Is not for isn't, or the other way round."""
    text = draft.output.text
    edits = []
    for long, short in CONTRACTIONS:
        # Expanding 's is left alone where it may be a possessive or has.
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
    """12 for twelve, 50 percent for 50%, $3 million for 3 million dollars."""
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
        and not re.match(rf" (?:{'|'.join(listed('months'))})", text[each.end :], re.I)
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
    """May 5, 2010 for 5 May 2010, and back."""
    text, months = draft.output.text, "|".join(listed("months"))
    edits = [Edit(m.start(), m.end(), f"{m.group(2)} {m.group(1)} {m.group(3)}")
             for m in re.finditer(rf"\b({months}) (\d\d?), (\d{{4}})\b", text)]  # fmt: skip
    edits += [Edit(m.start(), m.end(), f"{m.group(2)} {m.group(1)}, {m.group(3)}")
              for m in re.finditer(rf"\b(\d\d?) ({months}) (\d{{4}})\b", text)]  # fmt: skip
    return edited(text, [random.choice(edits)]) if edits else None


def name_shortened(draft: Draft, random: Random) -> Variant | None:
    """A name of two words by its last one, where the context does so, too."""
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
    """The US for the United States."""
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
    """Words before or after an answer that claim nothing."""
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
    """The same in small letters."""
    lower = draft.output.text.lower()
    return None if lower == draft.output.text else Variant(lower)


def spacing(draft: Draft, random: Random) -> Variant | None:
    """Marks set apart from words, or the last one left off."""
    text = draft.output.text
    new = re.sub(r"(?<=\w)([.,!?])(?=\s|$)", r" \1", text) if random.random() < 0.5 else text.rstrip(".! ")
    return None if new == text or not new else Variant(new)
