"""Variants of faithful samples, as many wrong as harmless ones, with the exact spans of the errors."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random

from magistrate.training.synthetic import contexts, harmless, wrong
from magistrate.training.synthetic.draft import Draft, Pools, Text, Variant, content, sort_of
from magistrate.training.synthetic.lexicon import Lexicon
from magistrate.types import FAITHFUL, HALLUCINATED, Sample

Make = Callable[[Draft, Random], Variant | None]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of change: its label, its weight in random choices, and its function."""

    name: str
    label: str
    weight: float
    make: Make


def _kinds(label: str, kinds: Mapping[str, tuple[float, Make]]) -> tuple[Kind, ...]:
    return tuple(Kind(name, label, weight, make) for name, (weight, make) in kinds.items())


WRONG = _kinds(
    HALLUCINATED,
    {
        "name_from_context": (4, wrong.name_from_context),
        "name_from_elsewhere": (0.7, wrong.name_from_elsewhere),
        "roles_exchanged": (4, wrong.roles_exchanged),
        "number": (2, wrong.number),
        "date": (2, wrong.date),
        "unit": (2, wrong.unit),
        "negation_inserted": (2.5, wrong.negation_inserted),
        "negation_removed": (3, wrong.negation_removed),
        "antonym": (4, wrong.antonym),
        "quantifier": (1.5, wrong.quantifier),
        "preposition": (1.5, wrong.preposition),
        "modality": (1.5, wrong.modality),
        "qualifier_dropped": (3, wrong.qualifier_dropped),
        "nationality": (1.5, wrong.nationality),
        "sibling": (2.5, wrong.sibling),
        "other_word": (1, wrong.other_word),
        "word_from_context": (2.5, wrong.word_from_context),
        "sentence_elsewhere": (0.5, wrong.sentence_elsewhere),
        "generic_claim": (0.2, wrong.generic_claim),
        "clause_inserted": (0.5, wrong.clause_inserted),
        "merged": (2.5, wrong.merged),
        "fact_changed": (2.5, contexts.fact_changed),
        "support_removed": (0.8, contexts.support_removed),
    },
)
HARMLESS = _kinds(
    FAITHFUL,
    {
        "synonyms": (12, harmless.synonyms),
        "contraction": (2, harmless.contraction),
        "number_format": (2, harmless.number_format),
        "date_format": (2, harmless.date_format),
        "same_name": (2, harmless.same_name),
        "name_shortened": (1.5, harmless.name_shortened),
        "opener": (1.2, harmless.opener),
        "lower_case": (0.3, harmless.lower_case),
        "spacing": (0.3, harmless.spacing),
        "dropped": (1, harmless.dropped),
        "sentence_dropped": (0.4, harmless.sentence_dropped),
        "reordered": (1, harmless.reordered),
        "time_moved": (2, harmless.time_moved),
        "voice_changed": (4, harmless.voice_changed),
        "extracted": (1, harmless.extracted),
        "only_extracted": (0.3, harmless.only_extracted),
        "irrelevant_added": (0.6, contexts.irrelevant_added),
        "irrelevant_removed": (0.6, contexts.irrelevant_removed),
        "both_changed": (2.5, contexts.both_changed),
        "context_reworded": (3, contexts.context_reworded),
        "shuffled_context": (0.5, contexts.shuffled_context),
    },
)
KINDS = {kind.name: kind for kind in (*WRONG, *HARMLESS)}
# Changes that may come before the change itself, equally often for wrong and harmless ones.
BEFORE = {
    "synonyms": 2, "opener": 2, "irrelevant_added": 1.5, "irrelevant_removed": 1, "context_reworded": 1.5,
    "both_changed": 1, "lower_case": 0.4, "spacing": 0.4, "contraction": 1, "number_format": 1,
    "dropped": 0.5, "extracted": 1, "sentence_dropped": 0.3, "time_moved": 0.5, "reordered": 0.5,
}  # fmt: skip
FIRST = tuple(replace(KINDS[name], weight=weight) for name, weight in BEFORE.items())
TWICE = 0.45  # share of variants with such a first change
# Of this many wrong and harmless candidates, the pair that is most alike on the surface is taken, as an
# observational study matches its cases and controls.
WRONG_CANDIDATES, HARMLESS_CANDIDATES = 2, 5
CLAUSE = re.compile(
    r"(?:, (?:which|who|where)|"
    r",? (?:after|before|because|while|since) (?:his|her|its|their|he|she|it|they|being)) "
    r"[^,.;:\"“”()?!\n]{12,70}(?=\.(?:\s|$))"
)
TALK = re.compile(r"\b(?:you|your|me|my)\b|\bi\b(?! (?:think|believe|heard|guess|can recommend)\b)", re.I)
MOST_POOLED = 8  # sentences of one text that other samples may take
LOOKED_AT = 3000  # characters of a context that are searched for them


def perturb(
    samples: Iterable[Sample],
    *,
    seed: int,
    lexicon: Lexicon,
    per_sample: int = 4,
) -> Iterator[Sample]:
    """Yield variants of samples that are not labelled hallucinated, for each as many wrong as harmless ones.

    There are at most `per_sample` per original, fewer if its text offers no place for changes. A variant's id
    is the original's, `~`, the kind and a number. `metadata` has `kind`, `of` (the original's id) and, if a
    harmless change was made before, its kind as `first`. `spans` are the wrong characters of the output. The
    same seed, samples and lexicon give the same variants, in any order of the samples.
    """
    faithful = [
        each
        for each in samples
        if each.label != HALLUCINATED and (each.output or "").strip() and each.sources
    ]
    pools = gathered(faithful, lexicon)
    for sample in faithful:
        draft = Draft(sample, lexicon, pools)
        yield from _variants(draft, Random(_seed(seed, sample.id)), per_sample)


def _seed(seed: int, id: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{id}".encode()).digest()[:8], "big")


def _variants(draft: Draft, random: Random, per_sample: int) -> Iterator[Sample]:
    taken: set[tuple[str | None, tuple[str, ...]]] = {(draft.sample.output, draft.sample.context)}
    used: set[str] = set()
    for number in range(per_sample // 2):
        wrongs, rights = (
            list(
                itertools.islice(
                    (each for each in _made(draft, random, kinds, used) if each.texts not in taken), most
                )
            )
            for kinds, most in ((WRONG, WRONG_CANDIDATES), (HARMLESS, HARMLESS_CANDIDATES))
        )
        if not wrongs or not rights:
            return
        wrong, right = min(
            itertools.product(wrongs, rights), key=lambda pair: _distance(pair[0].shape, pair[1].shape)
        )
        for place, each in enumerate((wrong, right)):
            taken.add(each.texts)
            used.add(each.kind.name)
            yield each.named(f"{draft.sample.id}~{each.kind.name}{2 * number + place}", draft.sample.id)


@dataclass(frozen=True, slots=True)
class Made:
    """A variant: its kind, the kind of the change before it, if any, and its shape."""

    kind: Kind
    first: str | None
    sample: Sample
    shape: tuple[float, float]

    @property
    def texts(self) -> tuple[str | None, tuple[str, ...]]:
        return self.sample.output, self.sample.context

    def named(self, id: str, of: str) -> Sample:
        first = {"first": self.first} if self.first else {}
        return replace(self.sample, id=id, metadata={"kind": self.kind.name, "of": of, **first})


def _made(draft: Draft, random: Random, kinds: tuple[Kind, ...], used: set[str]) -> Iterator[Made]:
    """Yield variants of different kinds, in an order drawn by weight. Many have a harmless change first."""
    size = len(draft.output.words)
    for kind in _drawn([each for each in kinds if each.name not in used], random):
        base, first = draft, None
        if random.random() < TWICE:
            base, first = _changed_first(draft, random, kind)
        variant = kind.make(base, random)
        if variant is None or not _claimed(variant):
            continue
        after = base if variant.context is None else base.with_variant(variant)
        new = len(after.novel(variant.output))
        sample = replace(after.sample, output=variant.output, label=kind.label, spans=variant.spans)
        yield Made(kind, first, sample, (new, len(variant.output.split()) - size))


def _claimed(variant: Variant) -> bool:
    """Return whether all errors are in claims about the world: not in questions or in talk of you and me."""
    sentences = Text(variant.output).sentences if variant.spans else ()
    return not any(
        each.text.endswith("?") or TALK.search(each.text)
        for span in variant.spans
        for each in sentences
        if each.start < span.end and span.start < each.end
    )


def _changed_first(draft: Draft, random: Random, kind: Kind) -> tuple[Draft, str | None]:
    first = next(_drawn(FIRST, random))
    variant = first.make(draft, random) if first.name != kind.name else None
    return (draft, None) if variant is None else (draft.with_variant(variant), first.name)


def _drawn(kinds: Iterable[Kind], random: Random) -> Iterator[Kind]:
    """Yield the kinds in a random order, greater weights first on average (Efraimidis and Spirakis, 2006)."""
    yield from sorted(kinds, key=lambda kind: random.random() ** (1 / kind.weight), reverse=True)


def _distance(shape: tuple[float, float], other: tuple[float, float]) -> float:
    """Return how much two variants differ in their number of novel words and in their change of length."""
    return 1.5 * abs(math.log1p(shape[0]) - math.log1p(other[0])) + 0.15 * abs(shape[1] - other[1])


def gathered(samples: Iterable[Sample], lexicon: Lexicon) -> Pools:
    """Collect the names, sentences, clauses and words of all samples, in the order of their ids."""
    names: dict[str, dict[str, None]] = {}
    words: dict[str, dict[str, None]] = {}
    sentences: list[tuple[str, str]] = []
    clauses: dict[str, None] = {}
    for sample in sorted(samples, key=lambda each: each.id):
        draft = Draft(sample, lexicon)
        for name in draft.names:
            names.setdefault(sort_of(name.text, lexicon), {})[name.text] = None
        for found, analysis, _ in wrong.content_words(draft):
            words.setdefault(f"{analysis.part} {analysis.form}", {})[found.lower] = None
        for text in (draft.output, *(Text(each[:LOOKED_AT]) for each in sample.context)):
            own = [each.text for each in text.sentences if 20 < len(each.text) < 250 and each.text[-1] == "."]
            sentences += [(sample.id, each) for each in own[:MOST_POOLED]]
            clauses.update(dict.fromkeys(match.group() for match in CLAUSE.finditer(text.text)))
    by_word: dict[str, list[int]] = {}
    for place, (_, sentence) in enumerate(sentences):
        for word in set(content(re.findall(r"\w+", sentence.lower()))):
            by_word.setdefault(word, []).append(place)
    return Pools(
        {sort: tuple(each) for sort, each in names.items()},
        sentences,
        by_word,
        tuple(clauses),
        {form: tuple(each) for form, each in words.items()},
    )
