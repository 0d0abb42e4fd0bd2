"""The self-test of logits: it passes every right build of the default model and catches wrong ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from magistrate.engines import models
from magistrate.engines.disable_telemetry import import_openvino
from magistrate.engines.embedded.chat_tokenizer import ChatTokenizer
from magistrate.engines.models.selftest import SelfTest, expected, problem

openvino = import_openvino()

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


@pytest.fixture(scope="module")
def card(model_folder: Path) -> models.ModelCard:
    return models.describe(model_folder)


@pytest.fixture(scope="module")
def known(card: models.ModelCard) -> SelfTest:
    assert card.selftest is not None
    return card.selftest


def answered(
    folder: Path, known: SelfTest, config: dict[str, Any], change: Callable[[Any], None]
) -> np.ndarray:
    """Logits at the test's positions by the model in `folder`, after `change` had its way with it."""
    model = openvino.Core().read_model(folder / "openvino_model.xml")
    change(model)
    length = len(known.tokens)
    feeds = {
        "input_ids": np.array([known.tokens]),
        "attention_mask": np.ones((1, length), np.int64),
        "position_ids": np.arange(length)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    logits = openvino.Core().compile_model(model, "CPU", config)(feeds)[0][0]
    return np.array(logits[list(known.positions)])


def nothing(model: Any) -> None:
    """A right build."""


def faster_rotations(model: Any) -> None:
    """Positions turn twice as far as they should."""
    table = next(op for op in model.get_ops() if op.get_type_name() == "Cos")
    double = openvino.opset13.multiply(table.input_value(0), np.float32(2))
    for op in model.get_ops():
        if op.get_type_name() in ("Cos", "Sin"):
            op.input(0).replace_source_output(double.output(0))


def shuffled_heads(model: Any) -> None:
    """Every head's result goes to the next head's place."""
    for op in model.get_ops():
        if op.get_type_name() == "ScaledDotProductAttention":
            readers = list(op.output(0).get_target_inputs())
            heads = op.get_output_partial_shape(0)[1].get_length()
            turned = openvino.opset13.gather(op.output(0), np.roll(np.arange(heads), 1), 1)
            for reader in readers:
                reader.replace_source_output(turned.output(0))


@pytest.mark.full
@pytest.mark.parametrize(
    "config",
    [
        {"INFERENCE_PRECISION_HINT": "f32"},
        {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "KV_CACHE_PRECISION": "f16"},
    ],
    ids=["usual", "one thread, f16 cache"],
)
def test_a_right_build_passes(config: dict[str, Any], model_folder: Path, known: SelfTest) -> None:
    assert problem(known, answered(model_folder, known, config, nothing)) is None


@pytest.mark.full
def test_without_quantized_activations_it_computes_what_transformers_does(
    model_folder: Path, known: SelfTest
) -> None:
    strict = dataclasses.replace(known, mean=0.005, most=0.02)  # some weights are rounded to 16 bits
    assert problem(strict, answered(model_folder, known, EXACT, nothing)) is None


@pytest.mark.full
@pytest.mark.parametrize("defect", [faster_rotations, shuffled_heads])
def test_a_wrong_build_is_caught(defect: Callable[[Any], None], model_folder: Path, known: SelfTest) -> None:
    found = problem(known, answered(model_folder, known, EXACT, defect))
    assert found is not None
    assert "on average" in found or "likeliest token is wrong" in found


def made(known: SelfTest, off: np.ndarray | float = 0.0, vocabulary: int = 49152) -> np.ndarray:
    """Logits whose log-probabilities are the expected ones, moved by `off`, and the rest spread evenly."""
    logits = np.empty((len(known.positions), vocabulary))
    for row, ids, logprobs in zip(logits, known.ids, known.logprobs, strict=True):
        rest = max(1 - np.exp(logprobs).sum(), 1e-9) / (vocabulary - len(ids))
        row[:] = np.log(rest)
        row[list(ids)] = logprobs
    places = np.array(known.ids)
    np.put_along_axis(logits, places, np.take_along_axis(logits, places, 1) + off, 1)
    return logits + 3.0  # a constant changes no probability


@pytest.mark.parametrize("weights", models.WEIGHTS)
def test_its_bounds_are_what_it_says(weights: models.Weights) -> None:
    known = expected(models.default().sha256, weights)
    assert known is not None
    assert problem(known, made(known)) is None
    # Moved to the likeliest token's disadvantage, a token's change is nearly that of its log-probability.
    shape = np.array(known.ids).shape
    one = np.zeros(shape)
    one[0, -1] = 0.8 * known.most
    assert problem(known, made(known, one)) is None
    one[0, -1] = 1.3 * known.most
    assert "at most; the limits are" in str(problem(known, made(known, one)))
    every = np.zeros(shape)
    every[:, 1:] = -0.8 * known.mean
    assert problem(known, made(known, every)) is None
    every[:, 1:] = -2.0 * known.mean
    assert "on average" in str(problem(known, made(known, every)))


def test_garbage_is_named(known: SelfTest) -> None:
    right = made(known)
    assert "not finite" in str(problem(known, np.where(right == right[0, 0], np.nan, right)))
    assert "wrong at 4 of 4 positions" in str(problem(known, np.roll(right, 1, axis=1)))
    assert "shape [3, 49152]" in str(problem(known, right[:3]))
    assert "shape [4, 100]" in str(problem(known, right[:, :100]))
    assert problem(known, right.astype(np.float32)) is None


def test_the_catalogue_says_which_models_have_one(card: models.ModelCard) -> None:
    have = {row.name for row in models.entries() if row.selftest is not None}
    assert have == {"smollm2-135m-instruct", "smollm2-135m-judge", "qwen2.5-coder-0.5b-instruct"}
    assert dataclasses.replace(card, gguf_sha256=None).selftest is None
    assert models.entry("qwen3-0.6b").selftest is None
    tight, usual = (models.entry(f"smollm2-135m-instruct:{weights}").selftest for weights in ("f16", "q8"))
    assert tight is not None and usual is not None
    assert tight.tokens == usual.tokens and tight.mean < usual.mean and tight.most < usual.most


@pytest.mark.full
def test_its_values_are_log_probabilities_after_a_chat_prompt(
    card: models.ModelCard, model_folder: Path, known: SelfTest
) -> None:
    for row in models.entries():
        if (found := row.selftest) is not None:
            assert len(found.positions) == len(found.ids) == len(found.logprobs) == 4
            assert sorted(set(found.positions)) == list(found.positions) and len(found.tokens) < 40
            assert found.positions[-1] < len(found.tokens)
            for ids, logprobs in zip(found.ids, found.logprobs, strict=True):
                assert len(set(ids)) == len(ids) == len(logprobs) == 8
                assert sorted(logprobs, reverse=True) == list(logprobs)
                assert logprobs[0] - logprobs[1] >= 1 and np.exp(logprobs).sum() <= 1
    shown = [ChatTokenizer(model_folder, card).show(token) for token in known.tokens]
    assert shown[:2] == ["<|im_start|>", "system"] and "".join(shown).endswith(
        "assistant\nThe capital of France is"
    )
    assert ChatTokenizer(model_folder, card).show(known.ids[-1][0]) == " Paris"
