"""Run a trained detector: score each sentence and word of an output."""

from __future__ import annotations

import atexit
import math
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from magistrate._work import PerProcess, checked, held
from magistrate.detectors.folder import (
    GRAPH,
    SHIPPED,
    TOKENIZER,
    WEIGHTS,
    Manifest,
    check_files,
    read_manifest,
)
from magistrate.detectors.weights import products, read_weights
from magistrate.detectors.windows import Change, Passage, Reader, Sentence, Window, begun, in_units_of_context
from magistrate.engines.embedded.cores import available_cores
from magistrate.errors import InputError, ModelError
from magistrate.features.frames import without_phrases
from magistrate.metrics.calibration import joint_odds, sigmoid
from magistrate.types import Sample

if TYPE_CHECKING:
    import numpy as np
    from onnxruntime import InferenceSession, SessionOptions

TOGETHER = 8  # windows per pass, at most
PADDED = 1.15  # a pass has at most as many tokens with padding as it has without, times this
FATAL = 4  # ONNX Runtime logs to standard error from this severity on; it raises the other errors
KEPT = 8  # detectors that stay loaded
LEAST_SHARE = 1 / 3  # a passage contradicts a sentence only above this share
ANSWER_WORDS = 6  # an output of at most so many words is no statement without its question
CLEARLY = 2  # a sentence is called contradicted if that is so many times likelier than that it is absent

Kind = Literal["supported", "contradicted", "absent"]
KINDS: tuple[Kind, ...] = ("supported", "contradicted", "absent")


@dataclass(frozen=True, slots=True)
class Word:
    """Characters `[start, end)` of the output, and the probability that the context does not support them."""

    start: int
    end: int
    probability: float


@dataclass(frozen=True, slots=True)
class SentenceScores:
    """The scores of one sentence, characters `[start, end)` of the output.

    `logit` is the uncalibrated log odds that the context does not support it, by all readings. `passage` is
    the part of the context nearest to it, None without a context. `shares`, the uncalibrated probabilities of
    `KINDS`, which sum to 1, and `words` are of the reading with the whole output: there it is clearer what is
    wrong, and how. If the sentence was only read beside `passage`, they are of that reading.
    """

    start: int
    end: int
    logit: float
    shares: tuple[float, float, float]
    words: tuple[Word, ...]
    passage: Passage | None

    @property
    def kind(self) -> Kind:
        """The kind of fault, if there is one: contradicted by the context, or absent from it."""
        return "contradicted" if self.shares[1] >= CLEARLY * self.shares[2] else "absent"

    @property
    def against(self) -> Passage | None:
        """The passage, if it clearly contradicts the sentence."""
        clear = self.kind == "contradicted" and self.shares[1] > LEAST_SHARE
        return self.passage if clear else None


@dataclass(frozen=True, slots=True)
class Detection:
    """A detector's result for an output: its sentences, and how many windows and tokens were read."""

    sentences: tuple[SentenceScores, ...]
    windows: int
    tokens: int

    @property
    def logit(self) -> float:
        """The log odds that the output is not supported, from those of its sentences."""
        return joint_odds([each.logit for each in self.sentences])


class Detector:
    """The detector in a folder.

    Each pass uses all cores, but not all of the time: as many passes run at once as there are cores.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._turn = PerProcess(lambda: threading.Semaphore(available_cores()))
        self._turn.get()
        self._networks = PerProcess(self._load)

    def detect(self, sample: Sample) -> Detection | None:
        """Score a sample's output; None if it has no readable text besides phrases to its reader.

        A sentence with an amount in a unit that the context does not use is read in a unit of the context as
        well. If the context has that amount, the better supported of both readings counts, otherwise the
        worse supported one.
        """
        sample = replace(sample, output=without_phrases(sample.output or ""))
        found = self._detect(sample)
        if found is None or not (changes := in_units_of_context(sample)):
            return found
        again = self._detect(sample, changes)
        assert again is not None, "its output has the same letters"
        return _converted(found, again, changes)

    def _detect(self, sample: Sample, instead: Sequence[Change] = ()) -> Detection | None:
        """Score a sample's output, read with the changes `instead`."""
        pairs = self.reader.pairs(sample, instead)
        if not pairs:
            return None
        windows = self.reader.windows(sample, instead) if "windows" in self.manifest.readings else []
        alone = [] if windows and _is_answer(sample) else pairs
        output = sample.output or ""
        logits = iter(self._logits([*alone, *windows]))
        near = [each for window in alone for each in _readings(output, window, next(logits))]
        within = [each for window in windows for each in _readings(output, window, next(logits))]
        return Detection(
            tuple(_of_both(near or within, within, pairs) if windows else near),
            len(alone) + len(windows),
            sum(len(window.ids) for window in (*alone, *windows)),
        )

    def read(self, sample: Sample) -> Detection:
        """Score a sample's output. Raises `InputError` if it has no readable text."""
        found = self.detect(sample)
        if found is None:
            raise InputError(f"sample {sample.id!r} has no output that the detector can read")
        return found

    def logits(self, samples: Sequence[Sample]) -> list[float]:
        """Return the logit of each sample's output. Raises `InputError` for one without readable text."""
        return [self.read(each).logit for each in samples]

    def _logits(self, windows: Sequence[Window]) -> list[np.ndarray]:
        """Return float32 `[tokens, 4]` for each window, in order."""
        import numpy as np

        found: list[np.ndarray] = [np.zeros(0)] * len(windows)
        for some in checked(_passes([len(each.ids) for each in windows]), 1):
            shape = len(some), len(windows[some[-1]].ids)
            ids, types, mask = (np.zeros(shape, np.int64) for _ in range(3))
            for row, at in enumerate(some):
                window = windows[at]
                ids[row, : len(window.ids)] = window.ids
                types[row, window.second : len(window.ids)] = 1
                mask[row, : len(window.ids)] = 1
            with held(self._turn.get()):
                (answers,) = self._networks.get().run(None, {"ids": ids, "types": types, "mask": mask})
            if not np.isfinite(answers).all():
                raise ModelError(
                    f"the detector in {self.folder} returns values that are not numbers: it is damaged"
                )
            for row, at in enumerate(some):
                found[at] = np.array(answers[row, : len(windows[at].ids)])
        return found

    @cached_property
    def reader(self) -> Reader:
        """The reader that cuts samples into windows."""
        from tokenizers import Tokenizer

        return Reader(Tokenizer.from_file(str(self.folder / TOKENIZER)), self.manifest.window)

    def _load(self) -> InferenceSession:
        import onnxruntime

        check_files(self.folder, self.manifest)
        onnxruntime.disable_telemetry_events()
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = FATAL
        settings.intra_op_num_threads = available_cores()
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return session_of(self.folder, settings)


def session_of(folder: Path, settings: SessionOptions) -> InferenceSession:
    """Load the network in a folder, with what is computed of its weights. Raises `ModelError` if it fails."""
    from onnxruntime import InferenceSession, OrtValue

    computed = products(read_weights(folder / WEIGHTS))
    try:
        values = [OrtValue.ortvalue_from_numpy(each) for each in computed.values()]
        settings.add_external_initializers(list(computed), values)
        return InferenceSession(folder / GRAPH, settings, ["CPUExecutionProvider"])
    except Exception as error:  # the package raises nothing more specific
        said = " ".join(str(error).split())[:300]
        raise ModelError(f"the network in {folder} cannot be loaded: {said}") from error


def _passes(lengths: Sequence[int]) -> list[list[int]]:
    """Return the numbers of the windows that are read together: those of similar length."""
    found: list[list[int]] = []
    tokens = 0
    for at in sorted(range(len(lengths)), key=lambda at: lengths[at]):
        tokens += lengths[at]
        full = not found or len(found[-1]) == TOGETHER
        if full or (len(found[-1]) + 1) * lengths[at] > PADDED * tokens:
            found.append([])
            tokens = lengths[at]
        found[-1].append(at)
    return found


def _converted(plain: Detection, other: Detection, changes: Sequence[Change]) -> Detection:
    """Return `plain` with sentences of `other`, of the output after changes, where those count."""
    others = {(each.start, each.end): each for each in other.sentences}

    def counted(one: SentenceScores) -> SentenceScores:
        inside = begun(changes, one.start, one.end)
        two = others.get((one.start, one.end)) if inside else None
        if two is None:
            return one
        choose = min if all(each.known for each in inside) else max
        return choose(one, two, key=lambda each: each.logit)

    return Detection(
        tuple(map(counted, plain.sentences)), plain.windows + other.windows, plain.tokens + other.tokens
    )


def _is_answer(sample: Sample) -> bool:
    """Return whether an output is so short that only its question makes it a statement."""
    return bool(sample.input) and len((sample.output or "").split()) <= ANSWER_WORDS


def _of_both(
    near: Sequence[SentenceScores], within: Sequence[SentenceScores], pairs: Sequence[Window]
) -> Iterator[SentenceScores]:
    """Yield each sentence with what its two readings say together, and the passage of its pair."""
    for one, whole, pair in zip(near, within, pairs, strict=True):
        passage = pair.passages[0] if pair.passages else None
        yield replace(whole, logit=supported_once(one.logit, whole.logit), passage=passage)


def supported_once(near: float, whole: float) -> float:
    """Return the logit of *not supported* of a sentence from those of its two readings.

    The odds of *supported* are the mean of both readings', so support that only one of them finds counts.
    """
    least = min(near, whole)
    return least + math.log(2) - math.log1p(math.exp(least - max(near, whole)))


def detector(folder: Path) -> Detector:
    """Return the detector of a folder; its network is loaded once. Raises `SpecError` for another folder."""
    return _shipped() if folder == SHIPPED else _loaded(folder, read_manifest(folder).text())


@cache
def _shipped() -> Detector:
    """The detector of the package, whose folder does not change."""
    return Detector(SHIPPED, read_manifest(SHIPPED))


@lru_cache(maxsize=KEPT)
def _loaded(folder: Path, manifest: str) -> Detector:
    """Cache detectors by folder and manifest, so that a changed folder is loaded again."""
    return Detector(folder, Manifest.model_validate_json(manifest))


@atexit.register
def _unload() -> None:
    """Release networks before interpreter shutdown destroys what they depend on."""
    _loaded.cache_clear()


def _readings(output: str, window: Window, logits: np.ndarray) -> Iterator[SentenceScores]:
    """Yield the scores of a window's sentences; a sentence's logits are the mean over its tokens."""
    for each in window.sentences:
        told = logits[each.begin : each.end]
        means = told[:, 1:].mean(axis=0)
        supported, contradicted, absent = (math.exp(value - float(max(means))) for value in map(float, means))
        total = supported + contradicted + absent
        yield SentenceScores(
            start=each.start,
            end=each.stop,
            logit=math.log(contradicted + absent + 1e-30) - math.log(supported + 1e-30),
            shares=(supported / total, contradicted / total, absent / total),
            words=_words(output, window, each, told[:, 0].tolist()),
            passage=window.passages[0] if window.passages else None,
        )


def _words(output: str, window: Window, sentence: Sentence, logits: Sequence[float]) -> tuple[Word, ...]:
    """Return whole words, each with the highest probability of its tokens; white space is skipped."""
    found: list[Word] = []
    places = window.places[sentence.begin - window.begin : sentence.end - window.begin]
    for (start, end), logit in zip(places, logits, strict=True):
        if start == end:
            continue
        probability = sigmoid(logit)
        last = found[-1] if found else None
        # Tokens that are parts of one character all have the offsets of that character.
        if last is not None and (start < last.end or (last.end == start and _joined(output, start))):
            found[-1] = Word(last.start, max(last.end, end), max(last.probability, probability))
        else:
            found.append(Word(start, end, probability))
    return tuple(found)


def _joined(output: str, at: int) -> bool:
    """Return whether the characters before and at `at` belong to one word; combining marks do."""
    return all(each.isalnum() or unicodedata.category(each)[0] == "M" for each in output[at - 1 : at + 1])
