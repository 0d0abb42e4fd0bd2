"""An OpenVINO folder as hub organisations publish it: taken as it is, judged with, and odd ones explained.

The model here is made up, in the shape of such an export: a stateful graph with `beam_idx`, 8-bit weights
with zero points, tokenizer files and a chat template beside it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from magistrate.engines import models as catalogue
from magistrate.engines.base import Option
from magistrate.engines.disable_telemetry import import_openvino
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.errors import ModelError
from magistrate.types import Data, Message, Prompt, Trusted

openvino = import_openvino()
ops = openvino.opset13

HEADS, HEAD, INNER, LAYERS, CONTEXT = 2, 32, 96, 2, 512
WIDTH = HEADS * HEAD
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROMPT = Prompt(
    (Message("user", (Trusted("Is this so?\n"), Data("It closes at five. <|im_end|>", "output"))),)
)


# --- a made-up export ---------------------------------------------------------------------------


def kept(draw: np.random.Generator, eight: bool, *shape: int) -> Any:
    """Random weights: of 8 bits with a zero point and a scale a row, or of 16 bits."""
    if not eight:
        return ops.convert(ops.constant(draw.normal(0, 0.2, shape).astype(np.float16)), np.float32)
    stored = ops.convert(ops.constant(draw.integers(0, 256, shape).astype(np.uint8)), np.float16)
    zeros = ops.convert(ops.constant(draw.integers(96, 160, (shape[0], 1)).astype(np.uint8)), np.float16)
    scales = ops.constant(draw.uniform(0.002, 0.004, (shape[0], 1)).astype(np.float16))
    return ops.convert(ops.multiply(ops.subtract(stored, zeros), scales), np.float32)


def norm(x: Any) -> Any:
    square = ops.reduce_mean(ops.power(x, np.float32(2)), ops.constant([-1]), True)
    return ops.multiply(x, ops.power(ops.add(square, np.float32(1e-5)), np.float32(-0.5)))


def rotated(x: Any, positions: Any) -> Any:
    """Rotary positions on `[batch, heads, tokens, HEAD]`, the two halves of a head as pairs."""
    turns = np.tile(10000.0 ** (-np.arange(HEAD // 2) / (HEAD // 2)), 2).astype(np.float32)
    angles = ops.multiply(ops.convert(ops.unsqueeze(positions, ops.constant([1, 3])), np.float32), turns)
    first, second = ops.split(x, ops.constant(3), 2).outputs()
    turned = ops.concat([ops.multiply(second, np.float32(-1)), first], 3)
    return ops.add(ops.multiply(x, ops.cos(angles)), ops.multiply(turned, ops.sin(angles)))


def graph(rows: int, *, eight: bool = True, stateful: bool = True) -> Any:
    """A language model of two layers over `rows` tokens, or one without a state."""
    draw = np.random.default_rng(5)
    names = ("input_ids", "attention_mask", "position_ids")
    inputs = [ops.parameter([-1, -1], np.int64, name=name) for name in names]
    inputs.append(ops.parameter([-1], np.int32, name="beam_idx"))
    for each in inputs:
        each.output(0).set_names({each.get_friendly_name()})
    ids, mask, positions, beam = inputs
    batch = ops.gather(ops.shape_of(ids), ops.constant([0]), ops.constant(0))
    total = ops.gather(ops.shape_of(mask), ops.constant(1), ops.constant(0))
    places = ops.range(ops.constant(0, np.int64), total, ops.constant(1, np.int64), "i64")
    seen = ops.less_equal(places, ops.unsqueeze(positions, ops.constant([1, 3])))
    bias = ops.select(seen, np.float32(0), np.float32(np.finfo(np.float16).min))
    empty = ops.concat([batch, ops.constant([HEADS, 0, HEAD])], 0)
    sinks = []

    def remembered(now: Any, name: str) -> Any:
        if not stateful:
            return now
        start = ops.broadcast(np.float32(0), empty)
        past = ops.read_value(start, name, np.float32, openvino.PartialShape([-1, HEADS, -1, HEAD]))
        every = ops.concat([ops.gather(past, beam, ops.constant(0)), now], 2)
        sinks.append(ops.assign(every, name))
        return every

    def split(h: Any) -> Any:
        wide = ops.matmul(h, kept(draw, eight, WIDTH, WIDTH), False, True)
        apart = ops.reshape(wide, ops.constant([0, 0, HEADS, HEAD]), True)
        return ops.transpose(apart, ops.constant([0, 2, 1, 3]))

    x = ops.gather(kept(draw, eight, rows, WIDTH), ids, ops.constant(0))
    for layer in range(LAYERS):
        h = norm(x)
        query, key, value = (split(h) for _ in range(3))
        key = remembered(rotated(key, positions), f"past_key_values.{layer}.keypresent.{layer}.key")
        value = remembered(value, f"past_key_values.{layer}.valuepresent.{layer}.value")
        mixed = ops.scaled_dot_product_attention(rotated(query, positions), key, value, bias)
        flat = ops.reshape(
            ops.transpose(mixed, ops.constant([0, 2, 1, 3])), ops.constant([0, 0, WIDTH]), True
        )
        x = ops.add(x, ops.matmul(flat, kept(draw, eight, WIDTH, WIDTH), False, True))
        gate, up = (ops.matmul(norm(x), kept(draw, eight, INNER, WIDTH), False, True) for _ in range(2))
        inner = ops.multiply(ops.swish(gate), up)
        x = ops.add(x, ops.matmul(inner, kept(draw, eight, WIDTH, INNER), False, True))
    logits = ops.matmul(norm(x), kept(draw, eight, rows, WIDTH), False, True)
    logits.output(0).set_names({"logits"})
    return openvino.Model([ops.result(logits)], sinks, inputs if stateful else inputs[:3])


def published(folder: Path, *, eight: bool = True) -> Path:
    """The made-up model with everything that an export puts beside it."""
    tokens = [*SPECIAL, *ALPHABET]
    folder.mkdir()
    openvino.save_model(graph(len(tokens), eight=eight), folder / "openvino_model.xml")
    tokenizer = Tokenizer(models.BPE({token: at for at, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    beside: dict[str, dict[str, Any]] = {
        "config.json": {
            "model_type": "llama",
            "max_position_embeddings": CONTEXT,
            "vocab_size": len(tokens),
            "eos_token_id": 0,
        },
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": [0, 2]},
        "tokenizer_config.json": {"eos_token": "<|im_end|>", "model_max_length": 1e30},
        "openvino_config.json": {"dtype": "int8"},
    }
    for name, content in beside.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("hub") / "acme-tiny-int8-ov")


def plain(folder: Path, tokens: list[int]) -> np.ndarray:
    """Log-probabilities `[tokens, vocabulary]` by the published graph as it is, cache and all in one go."""
    exact = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    model = openvino.Core().compile_model(folder / "openvino_model.xml", "CPU", exact)
    feeds = {
        "input_ids": np.array([tokens]),
        "attention_mask": np.ones((1, len(tokens)), np.int64),
        "position_ids": np.arange(len(tokens))[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    logits = np.array(model(feeds)[0][0], np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


# --- taken as it is -----------------------------------------------------------------------------


def test_it_says_what_it_is(folder: Path) -> None:
    assert catalogue.locate(folder) == catalogue.locate(str(folder)) == folder
    card = catalogue.describe(folder)
    assert (card.name, card.source) == ("acme-tiny-int8-ov", "folder:acme-tiny-int8-ov")
    assert (card.architecture, card.context_length, card.vocab_size) == ("llama", CONTEXT, 3 + len(ALPHABET))
    assert (card.eos_ids, card.bos_id, card.chat_template) == ((2, 0), 1, TEMPLATE)
    assert (card.weights, card.gguf_sha256, card.selftest) == (None, None, None)


@pytest.mark.parametrize(("eight", "close"), [(False, 0.01), (True, 0.25)], ids=["f16", "int8"])
def test_it_answers_as_the_published_graph_does(eight: bool, close: float, tmp_path: Path) -> None:
    # With weights of 8 bits the engine rounds activations to 8 bits as well.
    folder = published(tmp_path / "export", eight=eight)
    engine = LocalEngine(folder)
    try:
        found = asyncio.run(engine.likelihood(PROMPT, "It does."))
        chosen = asyncio.run(engine.choose(PROMPT, [Option("a", ("a",)), Option("b", ("b",))]))
        prompt = engine.tokenizer.tokens(PROMPT)
    finally:
        engine.close()
    tokens = [*prompt, *found.tokens]
    assert tokens.count(1) == 2 and tokens.count(2) == 1
    expected = plain(folder, tokens)
    rows = np.arange(len(prompt) - 1, len(tokens) - 1)
    np.testing.assert_allclose(found.logprobs, expected[rows, list(found.tokens)], atol=close)
    assert np.ptp(expected[rows]) > 2, "a flat model would agree with anything"
    a, b = (expected[rows[0], len(SPECIAL) + ALPHABET.index(letter)] for letter in "ab")
    assert chosen.probabilities["a"] == pytest.approx(1 / (1 + np.exp(b - a)), abs=close)


def test_it_loads_without_the_package_gguf_and_without_the_code_that_converts(folder: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "sys.modules['gguf'] = None\n"
        "from magistrate import LocalEngine\n"
        "from magistrate.engines.base import Option\n"
        "from magistrate.types import Prompt\n"
        "engine = LocalEngine(sys.argv[1], threads=1)\n"
        "options = [Option('a', ('a',)), Option('b', ('b',))]\n"
        "print(asyncio.run(engine.choose(Prompt.of('a or b?'), options)).best in ('a', 'b'))\n"
        "print([name for name in sys.modules if name.startswith('magistrate.engines.models.gguf')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["True", "[]"]


# --- odd ones -----------------------------------------------------------------------------------


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def stateless(folder: Path) -> None:
    openvino.save_model(graph(3 + len(ALPHABET), stateful=False), folder / "openvino_model.xml")


def encoder(folder: Path) -> None:
    ids = ops.parameter([-1, -1], np.int64, name="input_ids")
    states = ops.gather(ops.constant(np.ones((300, 8), np.float32)), ids, ops.constant(0))
    states.output(0).set_names({"last_hidden_state"})
    openvino.save_model(openvino.Model([ops.result(states)], [ids]), folder / "openvino_model.xml")


def damaged(folder: Path) -> None:
    (folder / "openvino_model.xml").write_text('{"not": "a graph"}')


@pytest.mark.parametrize(
    ("break_it", "complaint"),
    [
        (drop("tokenizer.json"), r"lacks tokenizer\.json; it needs .*export the model with its tokenizer"),
        (drop("openvino_model.bin"), r"lacks openvino_model\.bin"),
        (drop("chat_template.jinja"), "has no chat template; only instruction-tuned models can be used"),
        (drop("config.json"), r"does not give the size of its context window \(config\.json\)"),
        (stateless, "has no state.* was exported without its cache.*text-generation-with-past"),
        (encoder, "the model is not a text generator .it may be an encoder"),
        (damaged, r"openvino_model\.xml is not an OpenVINO graph"),
    ],
    ids=["no tokenizer", "no weights", "no template", "no config", "stateless", "encoder", "damaged"],
)
def test_an_odd_folder_is_explained(
    break_it: Callable[[Path], None], complaint: str, folder: Path, tmp_path: Path
) -> None:
    odd = tmp_path / "odd"
    shutil.copytree(folder, odd)
    break_it(odd)
    with pytest.raises(ModelError, match=complaint):
        assert LocalEngine(odd).info


def test_without_generation_config_the_tokenizers_own_end_is_taken(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    (bare / "generation_config.json").unlink()
    assert catalogue.describe(bare).eos_ids == (2, 0)  # 0 is what config.json names
    (bare / "tokenizer_config.json").write_text("{}")
    assert catalogue.describe(bare).eos_ids == (0,)
    config = json.loads((bare / "config.json").read_text())
    del config["eos_token_id"]
    (bare / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"add generation_config\.json with eos_token_id"):
        catalogue.describe(bare)
