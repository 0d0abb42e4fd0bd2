"""Changes of an output's context: support removed, or irrelevant text added."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from magistrate.training.synthetic.draft import (
    STOP,
    Draft,
    Edit,
    Place,
    Text,
    Variant,
    content,
    edited,
    shuffled,
    sort_of,
)
from magistrate.types import Span

LOST = 3  # least number of words that only the removed sentence supported
LOST_SHARE = 0.4  # and their least share of the claim's words


def irrelevant_added(draft: Draft, random: Random) -> Variant | None:
    """Insert sentences of other samples between those of the context."""
    contexts, pools = draft.sample.context, draft.pools.sentences
    if not contexts or len(pools) < 20:
        return None
    at = random.randrange(len(contexts))
    own = draft.sources[at].sentences
    edits = []
    for _ in range(random.choice((1, 2, 3))):
        owner, sentence = pools[random.randrange(len(pools))]
        place = random.choice(own).start if own else 0
        if owner != draft.sample.id and not set(content(re.findall(r"\w+", sentence.lower()))) & _words(
            draft.output
        ):
            edits.append(Edit(place, place, f"{sentence} "))
    changed = edited(contexts[at], edits)
    return changed and _under(draft, at, changed.output)


def _words(text: Text) -> set[str]:
    return set(content(word.lower for word in text.words))


def irrelevant_removed(draft: Draft, random: Random) -> Variant | None:
    """Remove a sentence of the context that shares no word with the output."""
    words = _words(draft.output)
    places = [
        (at, before, each)
        for at, source in enumerate(draft.sources[: len(draft.sample.context)])
        for before, each in zip(source.sentences, source.sentences[1:], strict=False)
        if not words & set(content(re.findall(r"\w+", each.text.lower())))
    ]
    if not places:
        return None
    at, before, each = random.choice(places)
    text = draft.sample.context[at]
    return _under(draft, at, text[: before.end] + text[each.end :])


def _under(draft: Draft, at: int, text: str, wrong: Sequence[Place] = ()) -> Variant:
    """Return the output with the context text at `at` replaced. `wrong` is what that leaves unsupported."""
    contexts = (*draft.sample.context[:at], text, *draft.sample.context[at + 1 :])
    return Variant(draft.output.text, tuple(Span(each.start, each.end) for each in wrong), contexts)


def _single(draft: Draft, place: Place) -> tuple[int, int] | None:
    """Return where the context has a text of the output; None unless both have it exactly once."""
    pattern = re.compile(rf"(?<![\w.,]){re.escape(place.text)}(?!\w|[.,]\d)", re.I)
    hits = [(at, m.start()) for at, text in enumerate(draft.sample.context) for m in pattern.finditer(text)]
    aside = (*(turn.text for turn in draft.sample.messages), draft.sample.input or "")
    if len(hits) != 1 or len(pattern.findall(draft.output.text)) != 1 or any(map(pattern.search, aside)):
        return None
    return hits[0]


def _other(draft: Draft, random: Random) -> tuple[Place, int, str] | None:
    """Return a fact that output and context have once, the context's index, and its text with another."""
    for place in shuffled(random, [*draft.output.numbers, *draft.names]):
        named = place.text[0].isalpha()
        new = _other_name(draft, place, random) if named else _other_number(place, random)
        if new is None or new.lower() in draft.source_text:
            continue
        if (hit := _single(draft, place)) is not None:
            at, start = hit
            text = draft.sample.context[at]
            return place, at, text[:start] + new + text[start + len(place.text) :]
    return None


def _other_number(place: Place, random: Random) -> str | None:
    text = place.text
    if len(text) < 2 or text[0] == "0":
        return None
    at = random.choice([at for at, mark in enumerate(text) if mark.isdigit() and at >= len(text) // 2])
    return text[:at] + random.choice([d for d in "123456789" if d != text[at]]) + text[at + 1 :]


def _other_name(draft: Draft, name: Place, random: Random) -> str | None:
    words = [word for word in re.findall(r"\w+", name.text.lower()) if word not in STOP]
    once = all(len(re.findall(rf"\b{re.escape(word)}\b", draft.source_text)) == 1 for word in words)
    pool = draft.pools.names.get(sort_of(name.text, draft.lexicon), ())
    other = pool[random.randrange(len(pool))] if once and pool else None
    return None if other is None or draft.same_bearer(name.text, other) else other


def fact_changed(draft: Draft, random: Random) -> Variant | None:
    """Replace a number or name that occurs once in the context, so that the output becomes wrong."""
    found = _other(draft, random)
    if found is None:
        return None
    place, at, text = found
    return _under(draft, at, text, (place,))


def both_changed(draft: Draft, random: Random) -> Variant | None:
    """Replace a number or name in both context and output, so that the output stays right."""
    found = _other(draft, random)
    if found is None:
        return None
    place, at, text = found
    old = draft.sample.context[at]
    new = text[(_single(draft, place) or (0, 0))[1] :][: len(place.text) + len(text) - len(old)]
    changed = edited(draft.output.text, [Edit(place.start, place.end, new)])
    return changed and replace(_under(draft, at, text), output=changed.output)


def support_removed(draft: Draft, random: Random) -> Variant | None:
    """Remove the only sentence of the context that has most words of a sentence of the output."""
    if len(draft.sample.context) != 1 or draft.sample.messages:
        return None
    own = draft.sources[0].sentences
    if len(own) < 4:
        return None
    holding = [set(content(re.findall(r"\w+", each.text.lower()))) for each in own]
    aside = set(re.findall(r"\w+", (draft.sample.input or "").lower()))
    for sentence in shuffled(random, draft.output.sentences):
        words = set(content(re.findall(r"\w+", sentence.text.lower())))
        at = max(range(len(own)), key=lambda place: len(words & holding[place]))
        left = aside.union(*(held for place, held in enumerate(holding) if place != at))
        lost = (words & holding[at]) - left
        if len(lost) >= max(LOST, LOST_SHARE * len(words)):
            text = draft.sample.context[0]
            return _under(draft, 0, text[: own[at].start] + text[own[at].end :].lstrip(), (sentence,))
    return None


def context_reworded(draft: Draft, random: Random) -> Variant | None:
    """Replace words of the context that the output shares by synonyms."""
    words = _words(draft.output)
    for at in random.sample(range(len(draft.sample.context)), len(draft.sample.context)):
        edits: list[Edit] = []
        before = ""
        for word in draft.sources[at].words:
            if word.text.islower() and word.text in words and word.text not in STOP:
                reading = draft.lexicon.reading(word.text, before)
                if reading and (others := draft.lexicon.synonyms(reading, before)):
                    edits.append(Edit(word.start, word.end, random.choice(others)))
            before = word.lower
        if changed := edited(draft.sample.context[at], edits):
            return _under(draft, at, changed.output)
    return None


def shuffled_context(draft: Draft, random: Random) -> Variant | None:
    """Put the texts of the context in another order."""
    contexts = draft.sample.context
    if len(contexts) < 2:
        return None
    order = tuple(random.sample(contexts, len(contexts)))
    return None if order == contexts else Variant(draft.output.text, (), order)
