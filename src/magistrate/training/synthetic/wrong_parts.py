"""Changes that add what the context does not say, or put its parts together wrongly."""

from __future__ import annotations

import re
from random import Random

from magistrate.training.synthetic.drafts import Draft, Edit, Variant, cased, edited, shuffled
from magistrate.training.synthetic.text import Place, content
from magistrate.training.synthetic.words import listed
from magistrate.training.synthetic.wrong_words import NEGATED, content_words

TAIL = re.compile(r" (in|for|with|after|at|by|from|on|against|during|because|as) (?=[\w$£€\"'])")
FEW = 2  # words of its own that a foreign part must have at least for it to be news


def sentence_elsewhere(draft: Draft, random: Random) -> Variant | None:
    """A sentence of another sample, in the place of one or beside it."""
    new = _foreign(draft, random)
    return None if new is None else _with_sentence(draft, random, new)


def generic_claim(draft: Draft, random: Random) -> Variant | None:
    """A sentence that would fit many texts and that this context does not have."""
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
    """A sentence of another sample that shares a word with this output where one does."""
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
    """A clause of another sample at the end of a sentence."""
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
    """The beginning of a sentence with the end of another of the context, joined at the same preposition."""
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
    """Whether another sentence's end says something about something else."""
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
    """A noun for another noun of the context: nothing about it is new."""
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
