"""outlines on transformers: CPU torch in 32-bit floats, with the weights of the Q8_0 GGUF.

Several in flight are one call of outlines' batch API, padded on the left, which ends when its last row does.
The work `mask` is left out: outlines-core takes minutes and some 6 GB to compile the rubric for a vocabulary
of 49,152 tokens.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any, Literal, TypeVar

from benchmarks.contenders import workload
from benchmarks.contenders.base import Item, Measured, Weights
from magistrate.errors import EngineError

T = TypeVar("T")

PACKAGES = ("outlines", "outlines-core", "transformers", "torch")
WORKS = ("verdict_only", "verdict_with_reasons", "unconstrained", "prefill", "decode")
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


class OutlinesTransformers:
    """A transformers model under outlines' default backend, greedy."""

    name = "outlines-transformers"
    works = frozenset(WORKS)

    def version(self) -> str:
        """Return the packages involved. Raises `ModuleNotFoundError` for a missing one."""
        return ", ".join(f"{name} {version(name)}" for name in PACKAGES)

    def load(self, weights: Weights, threads: int) -> None:
        """Take the weights out of the GGUF into 32-bit floats, and the tokenizer from its own folder:
        transformers reads another one than the model's out of a GGUF of the llama family."""
        if weights.gguf is None:
            raise EngineError("needs the weights as a GGUF")
        os.environ.update(OFFLINE)
        self._torch: Any = import_module("torch")
        self._torch.set_num_threads(threads)
        transformers: Any = import_module("transformers")
        self._outlines: Any = import_module("outlines")
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(weights.tokenizer)
        self._transformer = transformers.AutoModelForCausalLM.from_pretrained(
            weights.gguf.parent, gguf_file=weights.gguf.name, dtype=self._torch.float32
        ).eval()
        # The end of a turn ends an answer; what the GGUF names as the end may be the end of a document.
        self._transformer.generation_config.eos_token_id = self._tokenizer.eos_token_id
        self._transformer.generation_config.pad_token_id = self._tokenizer.pad_token_id
        self._written_ids: list[Any] = []
        self._transformer.generate = self._remembering(self._transformer.generate)
        self._model = self._outlines.from_transformers(self._transformer, self._tokenizer)
        self._compiled: dict[str, Any] = {}

    def verdict_only(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Multiple choice, the shortest output that outlines can produce."""
        generator = self._generator("choice", Literal[workload.OPTIONS])
        seconds, texts, tokens = self._written(
            generator, items, in_flight, max_new_tokens=workload.MOST_TOKENS
        )
        return Measured(len(texts), tokens, seconds, sum(text in workload.OPTIONS for text in texts))

    def verdict_with_reasons(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Generate the schema's JSON without white space."""
        schema = self._outlines.types.JsonSchema(json.dumps(workload.SCHEMA), whitespace_pattern="")
        generator = self._generator("schema", schema)
        seconds, texts, tokens = self._written(
            generator, items, in_flight, max_new_tokens=workload.MOST_TOKENS
        )
        return Measured(len(texts), tokens, seconds, sum(map(_answers, texts)))

    def unconstrained(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Generate the requested number of tokens, whatever they are."""
        generator = self._generator("free", None)
        n = workload.ANSWER_TOKENS
        seconds, texts, _ = self._written(generator, items, in_flight, min_new_tokens=n, max_new_tokens=n)
        return Measured(len(texts), len(texts) * n, seconds, sum(map(bool, texts)))

    def prefill(self, items: Sequence[Item]) -> Measured:
        """One forward pass per prompt: a batch is no faster here."""
        rows = [self._torch.tensor([item.tokens]) for item in items]
        with self._torch.inference_mode():
            start = time.perf_counter()
            for row in rows:
                self._transformer(row, use_cache=True, logits_to_keep=1)
            seconds = time.perf_counter() - start
        return Measured(len(items), sum(len(item.tokens) for item in items), seconds, len(items))

    def decode(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Measure `generate` of transformers, starting at the logits of the prompts."""
        n = workload.DECODE_TOKENS + 1  # the first is what the prompts' own logits say
        seconds = 0.0
        for group in _groups(items, in_flight):
            inputs = self._tokenizer([item.prompt for item in group], padding=True, return_tensors="pt")
            read = FirstCall()
            self._transformer.generate(
                **inputs, do_sample=False, min_new_tokens=n, max_new_tokens=n, logits_processor=[read]
            )
            seconds += time.perf_counter() - read.at
        return Measured(len(items), len(items) * workload.DECODE_TOKENS, seconds, len(items))

    def close(self) -> None:
        """Nothing is left running."""

    # ------------------------------------------------------------------------------------------------

    def _remembering(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `generate` to keep its tokens, because outlines returns only the text."""

        def remembered(**inputs: Any) -> Any:
            rows = generate(**inputs)
            self._written_ids.append(rows[:, inputs["input_ids"].shape[1] :])
            return rows

        return remembered

    def _generator(self, key: str, kind: Any) -> Any:
        """Return outlines' generator for a type, compiled once."""
        if key not in self._compiled:
            self._compiled[key] = self._outlines.Generator(self._model, kind)
        return self._compiled[key]

    def _written(
        self, generator: Any, items: Sequence[Item], in_flight: int, **limits: int
    ) -> tuple[float, list[str], int]:
        """Return the seconds, the texts, and the number of tokens written."""
        chats = [self._outlines.inputs.Chat([{"role": "user", "content": item.user}]) for item in items]
        texts: list[str] = []
        self._written_ids.clear()
        start = time.perf_counter()
        for group in _groups(chats, in_flight):
            texts += generator.batch(group, do_sample=False, **limits)
        seconds = time.perf_counter() - start
        end = self._tokenizer.eos_token_id  # pads the rows that ended earlier, too
        return seconds, texts, sum(int((rows != end).sum()) for rows in self._written_ids)


class FirstCall:
    """A logits processor that changes nothing and records the time of its first call."""

    at = 0.0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.at = self.at or time.perf_counter()
        return scores


def _answers(text: str) -> bool:
    """Return whether a text fits `workload.SCHEMA`."""
    from jsonschema import Draft202012Validator

    try:
        value = json.loads(text)
    except ValueError:
        return False
    return bool(Draft202012Validator(workload.SCHEMA).is_valid(value))


def _groups(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
