"""Training examples of a judge: prompts as token ids, as the engine would send them, and the answers."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from magistrate.analysis.columns import KNOWN, groups_of
from magistrate.engines.embedded.chat_tokenizer import ChatTokenizer
from magistrate.errors import InputError
from magistrate.judges.base import Judge, present
from magistrate.judges.classify import Classify
from magistrate.training.chats import LABELS, Chat, answer_of, asked_of, question_of
from magistrate.training.split import held_out
from magistrate.types import HALLUCINATED, Data, Message, Prompt, Sample


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and the answer to learn, including the end of turn, in token ids.

    `group` is the same for examples that share a context. `wrong` is whether the right label is hallucinated,
    None if unknown. `rival` is the first position in the answer at which the other label's answer differs,
    and its token there; None if labels are not distinguished by one token.
    """

    name: str
    group: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    wrong: bool | None = None
    rival: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True, slots=True)
class Examples:
    """Examples to train on and held-out ones. `left_out` counts, by reason, samples that gave no example."""

    train: tuple[Example, ...]
    test: tuple[Example, ...]
    left_out: Mapping[str, int]

    @property
    def digest(self) -> str:
        """12 hexadecimal digits of a sha256 of all tokens, in order."""
        parts = [[(each.prompt, each.answer) for each in part] for part in (self.train, self.test)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]

    @property
    def contexts(self) -> tuple[int, int]:
        """The number of groups in each part."""
        return len({each.group for each in self.train}), len({each.group for each in self.test})


def from_samples(
    samples: Sequence[Sample], judge: Judge, chat: ChatTokenizer, most: int
) -> tuple[list[Example], Counter[str]]:
    """Return an example for each labelled sample: the judge's question about it and the label's answer.

    An example of more than `most` tokens is left out, not cut: a cut context could make its label wrong.
    """
    answer = answer_of(judge)
    asked = asked_of(judge)
    told_apart = isinstance(asked, Classify)
    found, left_out = list[Example](), Counter[str]()
    for sample, group in zip(samples, groups_of(samples), strict=True):
        if reason := _unusable(sample, judge):
            left_out[reason] += 1
            continue
        assert sample.label is not None
        right, other = (
            _answered(chat, answer(sample, label))
            for label in (sample.label, next(each for each in LABELS if each != sample.label))
        )
        place = next(
            (at for at, pair in enumerate(zip(right, other, strict=False)) if len(set(pair)) > 1), None
        )
        example = Example(
            sample.id,
            str(group),
            tuple(chat.tokens(question_of(asked, sample))),
            right,
            sample.label == HALLUCINATED,
            (place, other[place]) if told_apart and place is not None else None,
        )
        _keep(example, most, found, left_out)
    return found, left_out


def from_chats(chats: Iterable[Chat], chat: ChatTokenizer, most: int) -> tuple[list[Example], Counter[str]]:
    """Return an example for each chat. Its texts are treated as data, so none of them can open a turn."""
    found, left_out = list[Example](), Counter[str]()
    for number, each in enumerate(chats, 1):
        *asked, (_, answer) = each.messages
        prompt = Prompt(tuple(Message(role, (Data(text),)) for role, text in asked))
        known = each.metadata
        shared = known.get("context") or hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]
        label = known.get("label")
        example = Example(
            str(known.get("sample", number)),
            str(shared),
            tuple(chat.tokens(prompt)),
            _answered(chat, answer),
            label == HALLUCINATED if label in KNOWN else None,
        )
        _keep(example, most, found, left_out)
    return found, left_out


def parted(found: Sequence[Example], left_out: Mapping[str, int], test: float, seed: int) -> Examples:
    """Split the examples, with the share `test` of their groups held out.

    Raises `InputError` if there are too few examples, and if all of them have one label.
    """
    if len({each.group for each in found}) < 2 or len(found) < 4:
        why = "; ".join(f"{reason}: {count}" for reason, count in left_out.items())
        raise InputError(
            f"there are only {len(found)} examples, and some must be held "
            f"out{f' (skipped: {why})' if why else ''}; add more labelled data"
        )
    labels = {each.wrong for each in found}
    if len(labels) == 1 and None not in labels:
        label = HALLUCINATED if True in labels else "faithful"
        raise InputError(f"every example is {label}; examples of both labels are needed")
    held = held_out([each.group for each in found], test, seed)
    parts = (
        tuple(each for each, out in zip(found, held, strict=True) if out == wanted)
        for wanted in (False, True)
    )
    train, tested = parts
    return Examples(train, tested, dict(left_out))


def _unusable(sample: Sample, judge: Judge) -> str:
    """Return why a sample cannot be trained on; empty if it can."""
    if sample.label is None:
        return "no label"
    if sample.label not in KNOWN:
        return "another label"
    info = judge.info
    missing = [name for name in info.requires if not present(sample, name, info.reads)]
    return f"no {missing[0]}" if missing else ""


def _answered(chat: ChatTokenizer, text: str) -> tuple[int, ...]:
    return (*chat.encode(text).tokens, chat.ends[0])


def _keep(example: Example, most: int, found: list[Example], left_out: Counter[str]) -> None:
    if len(example) <= most:
        found.append(example)
    else:
        left_out[f"longer than {most:,} tokens"] += 1
