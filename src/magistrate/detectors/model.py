"""A detector that reads samples: windows in, probabilities of every token and of the whole out."""

from __future__ import annotations

import atexit
import threading
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from magistrate import forking
from magistrate.deadline import checked, held
from magistrate.detectors.encoding import Encoder, Window
from magistrate.detectors.folder import NETWORK, TOKENIZER, Manifest, check_files, read_manifest
from magistrate.engines.local.cores import available_cores
from magistrate.engines.quiet import import_openvino
from magistrate.errors import MissingExtra, ModelError
from magistrate.stats.calibration import sigmoid
from magistrate.types import Sample

STEP = 32  # windows are padded to multiples, so that few shapes are compiled
TOGETHER = 8  # windows of one sample in one pass
PAD = 0
KEPT = 8  # detectors that stay loaded


@dataclass(frozen=True, slots=True)
class Word:
    """Characters `[start, end)` of the output, and the probability that the context does not support them."""

    start: int
    end: int
    probability: float


@dataclass(frozen=True, slots=True)
class Detection:
    """What a detector found: the logit of the whole, not calibrated, and the probability of every word."""

    logit: float
    words: tuple[Word, ...]
    windows: int
    tokens: int


class Detector:
    """The detector of a folder, ready to read. One pass at a time uses all cores."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._turn = forking.PerProcess(threading.Lock)
        self._turn.get()
        self._networks = forking.PerProcess(self._load)

    def detect(self, sample: Sample) -> Detection | None:
        """What stands in a sample's output; None where nothing in it can be read."""
        with held(self._turn.get()):
            windows = self._encoder.windows(sample)
            if not windows:
                return None
            read = [
                each
                for at in checked(range(0, len(windows), TOGETHER), 1)
                for each in self.read(windows[at : at + TOGETHER])
            ]
        # An output is as unsupported as its worst part.
        logit = max(of_sample for _, of_sample in read)
        words = _words(sample.output or "", windows, [tokens for tokens, _ in read])
        size = sum(len(window.text.ids) for window in windows)
        return Detection(logit, words, len(windows), size)

    def read(self, windows: Sequence[Window]) -> list[tuple[Sequence[float], float]]:
        """The logits of each window's output tokens, and of the whole."""
        import numpy as np

        longest = max(len(window.text.ids) for window in windows)
        shape = len(windows), -(-longest // STEP) * STEP
        ids, types = np.full(shape, PAD, np.int64), np.zeros(shape, np.int64)
        for row, window in enumerate(windows):
            ids[row, : len(window.text.ids)] = window.text.ids
            types[row, : len(window.text.ids)] = window.text.types
        found = self._networks.get()({"ids": ids, "types": types})
        tokens, whole = found["tokens"], found["sample"]
        return [
            (tokens[row, window.begin : window.end].tolist(), float(whole[row, 0]))
            for row, window in enumerate(windows)
        ]

    @cached_property
    def _encoder(self) -> Encoder:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingExtra("tokenizers", "local") from error
        return Encoder(Tokenizer.from_file(str(self.folder / TOKENIZER)), self.manifest.window)

    def _load(self) -> Any:
        openvino = import_openvino()
        check_files(self.folder, self.manifest)
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": available_cores(),
            "ENABLE_CPU_PINNING": False,
        }
        try:
            return openvino.Core().compile_model(self.folder / NETWORK, "CPU", settings)
        except Exception as error:  # the package raises nothing more specific
            said = " ".join(str(error).split())[:300]
            raise ModelError(f"the network in {self.folder} cannot be loaded: {said}") from error


def detector(folder: Path) -> Detector:
    """The detector of a folder, its network loaded once. Raises `SpecError` for another folder."""
    manifest = read_manifest(folder)
    return _loaded(folder, manifest.text())


@lru_cache(maxsize=KEPT)
def _loaded(folder: Path, manifest: str) -> Detector:
    """One for what a folder holds now."""
    return Detector(folder, Manifest.model_validate_json(manifest))


@atexit.register
def _unload() -> None:
    """Let networks go before the interpreter takes away what they stand on."""
    _loaded.cache_clear()


def _words(output: str, windows: Sequence[Window], logits: Sequence[Sequence[float]]) -> tuple[Word, ...]:
    """Whole words, each as doubtful as its most doubtful token; space is none, whatever is said of it."""
    found: list[Word] = []
    for window, values in zip(windows, logits, strict=True):
        for (start, end), logit in zip(window.places, values, strict=True):
            if start == end:
                continue
            probability = sigmoid(logit)
            last = found[-1] if found else None
            # Tokens that are parts of one character all stand where it stands.
            if last is not None and (start < last.end or (last.end == start and _joined(output, start))):
                found[-1] = Word(last.start, max(last.end, end), max(last.probability, probability))
            else:
                found.append(Word(start, end, probability))
    return tuple(found)


def _joined(output: str, at: int) -> bool:
    """Whether the characters before and at `at` are of one word; accents and vowel signs are."""
    return all(each.isalnum() or unicodedata.category(each)[0] == "M" for each in output[at - 1 : at + 1])
