"""A small language model that writes what training needs: ends of texts, and words that may stand in them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer

from magistrate.detectors.encoding import marks
from magistrate.errors import ModelError
from magistrate.train.detector.bases import Encoder, model_type
from magistrate.train.lora.bases import quiet_transformers
from magistrate.train.synthetic.drafts import Guess
from magistrate.train.synthetic.written import begun, continued
from magistrate.types import HALLUCINATED, Sample

TOGETHER = 32  # texts in one pass
LONGEST = 160  # tokens of a text that are read
NEW = 40  # tokens that are written
TEMPERATURE, TOP_P = 0.8, 0.95
GUESSES = 40  # likeliest tokens at each place
WORD = re.compile(r"[ Ġ][a-z]{3,}")


class Writer:
    """A causal language model. It sees a text's beginning and no context.

    The same texts, seed and machine give the same words. What it has written is kept in the folder `keep`, so
    that a training in several sittings asks for it once. Raises `ModelError` for a model that cannot write.
    """

    def __init__(self, base: Encoder, keep: Path | None = None) -> None:
        if model_type(base.folder) != "llama":
            raise ModelError(f"{base.name} reads and cannot write; a writer is a Llama, such as smollm2-135m")
        self._folder = base.folder
        self._kept = Kept(None if keep is None else keep / f"written-{base.sha256[:12]}.jsonl")
        self._tokenizer = Tokenizer.from_file(str(base.folder / "tokenizer.json"))
        self._tokenizer.encode_special_tokens = True
        self._end = marks(self._tokenizer)[1]
        self._words = {
            number: token[1:]
            for token, number in self._tokenizer.get_vocab().items()
            if WORD.fullmatch(token)
        }

    @cached_property
    def _model(self) -> Any:
        model = quiet_transformers().AutoModelForCausalLM.from_pretrained(
            self._folder, local_files_only=True, dtype=torch.bfloat16
        )
        return model.eval()

    def continued(self, samples: Sequence[Sample], seed: int) -> Iterator[Sample]:
        """Pairs of a faithful output and one with an end that the model made up."""
        random = Random(f"{seed}/continued")
        begins = [
            each for sample in samples if sample.label != HALLUCINATED and (each := begun(sample, random))
        ]
        begins.sort(key=lambda pair: len(pair[1]))
        for at in range(0, len(begins), TOGETHER):
            batch = begins[at : at + TOGETHER]
            texts = [beginning for _, beginning in batch]
            ends = self._kept.value(["ends", seed, texts], partial(self._ends, texts, seed + at))
            for (sample, beginning), written in zip(batch, ends, strict=True):
                yield from continued(sample, beginning, written)

    def guesses(self, samples: Sequence[Sample]) -> dict[str, tuple[Guess, ...]]:
        """By the ids of samples, for the words of their outputs others that the model finds likely there."""
        found = {}
        order = sorted(samples, key=lambda each: len(each.output or ""))
        for at in range(0, len(order), TOGETHER):
            batch = order[at : at + TOGETHER]
            texts = [each.output or "" for each in batch]
            likely = self._kept.value(["guesses", texts], partial(self._likely, texts))
            for sample, guesses in zip(batch, likely, strict=True):
                found[sample.id] = tuple(Guess(start, tuple(words)) for start, words in guesses)
        return found

    def _ends(self, beginnings: Sequence[str], seed: int) -> list[str]:
        torch.manual_seed(seed)
        ids = [self._tokenizer.encode(each, add_special_tokens=False).ids[-LONGEST:] for each in beginnings]
        longest = max(map(len, ids))
        read = torch.tensor([[0] * (longest - len(each)) + each for each in ids])
        mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in ids])
        with torch.no_grad():
            found = self._model.generate(
                input_ids=read,
                attention_mask=mask,
                do_sample=True,
                temperature=TEMPERATURE,
                top_p=TOP_P,
                max_new_tokens=NEW,
                eos_token_id=self._end,
                pad_token_id=self._end,
            )
        return [self._tokenizer.decode(_until(row[longest:].tolist(), self._end)) for row in found]

    def _likely(self, texts: Sequence[str]) -> list[list[tuple[int, list[str]]]]:
        """For each text the places of its words, each with the words that are likely there."""
        read = [self._tokenizer.encode(each, add_special_tokens=False) for each in texts]
        longest = min(max(len(each.ids) for each in read), LONGEST)
        ids = torch.tensor([(each.ids + [0] * longest)[:longest] for each in read])
        with torch.no_grad():
            rows = self._model(input_ids=ids).logits.topk(GUESSES, dim=-1).indices.tolist()
        return [
            list(self._at_words(text, each.offsets[:longest], likely))
            for text, each, likely in zip(texts, read, rows, strict=True)
        ]

    def _at_words(
        self, text: str, offsets: Sequence[tuple[int, int]], likely: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, list[str]]]:
        for at in range(1, len(offsets)):
            start = offsets[at][0] + (text[offsets[at][0] : offsets[at][1]][:1] == " ")
            if start == 0 or text[start - 1] != " ":
                continue
            if words := [self._words[token] for token in likely[at - 1] if token in self._words]:
                yield start, words


def _until(row: list[int], end: int) -> list[int]:
    return row[: row.index(end)] if end in row else row


class Kept:
    """Values by what they were made of, in memory and, a line each, in a file where there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._values: dict[str, Any] = {}
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):  # cut short where a process was killed, or empty
                    key, value = json.loads(line)
                    self._values[key] = value

    def value(self, of: Any, make: Callable[[], Any]) -> Any:
        """What was made of the same before, or is made now."""
        key = hashlib.sha256(json.dumps(of).encode()).hexdigest()
        if key not in self._values:
            self._values[key] = make()
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("a", encoding="utf-8") as file:
                    file.write("\n" + json.dumps([key, self._values[key]]))  # on a line of its own
        return self._values[key]
