"""Engines whose models run in this process, as far as they go without torch and llama.cpp."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from magistrate.engines.llamacpp.gguf import opened
from magistrate.engines.local import open_engine
from magistrate.engines.settings import EngineSettings
from magistrate.engines.transformers.folder import obstacle
from magistrate.errors import MissingExtra, ModelError, SpecError

TOKENS = ["<unk>", "<s>", "</s>", "▁yes", "▁no"]
CONTROL, NORMAL = 3, 1
ADDED = [{"id": number, "content": TOKENS[number], "special": True} for number in range(3)]


@pytest.mark.parametrize(
    ("kind", "module", "package"),
    [
        ("transformers", "torch", "torch"),
        ("transformers", "transformers", "transformers"),
        ("llamacpp", "llama_cpp", "llama-cpp-python"),
    ],
)
def test_the_package_is_named_where_it_is_missing(kind: str, module: str, package: str) -> None:
    # Those that are looked for before it are made to be there, in name.
    code = (
        "import importlib.machinery, sys, types\n"
        "for name in ('torch', 'transformers', 'safetensors'):\n"
        "    sys.modules[name] = types.ModuleType(name)\n"
        "    sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)\n"
        f"sys.modules[{module!r}] = None\n"
        f"from magistrate.engines.{kind} import open_engine\n"
        "from magistrate.engines.settings import EngineSettings\n"
        "open_engine('model', EngineSettings())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.rstrip().endswith(str(MissingExtra(package, kind)))


def test_the_embedded_engine_has_no_use_for_an_address(model_folder: Path) -> None:
    with pytest.raises(SpecError, match="--base-url"):
        open_engine("any", EngineSettings(base_url="http://127.0.0.1:1/v1"))
    asked = EngineSettings(threads=1, timeout=2.0, hidden_states=True)
    info = open_engine(str(model_folder), asked).info
    assert "hidden_states" in info.can and info.fingerprint


ODD: dict[str, tuple[dict[str, Any], str]] = {
    "code of its own": ({"auto_map": {}}, "code"),
    "two halves": ({"is_encoder_decoder": True}, "encoder"),
    "eyes": ({"vision_config": {}}, "vision_config"),
    "a state": ({"layer_types": ["full_attention", "mamba"]}, "mamba"),
    "moving positions": ({"rope_scaling": {"type": "dynamic"}}, "dynamic"),
    "moving positions of one kind of layers": (
        {"rope_parameters": {"full_attention": {"rope_type": "longrope"}}},
        "longrope",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_models_that_blocks_cannot_hold_are_told_by_their_configuration(case: str) -> None:
    config, told = ODD[case]
    assert told in obstacle(config)


def test_models_that_blocks_can_hold_are_not_refused() -> None:
    windows = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 512}
    scaled = {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}, "quantization_config": {}}
    assert [obstacle(config) for config in ({}, windows, scaled)] == ["", "", ""]


# --- a GGUF whose tokenizer is of another kind than those that are read ---------------------------


def written(folder: Path) -> Path:
    """A file of no weights with a tokenizer of word pieces."""
    path = folder / "words.gguf"
    writer = GGUFWriter(path, "strange")
    writer.add_context_length(512)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_types([CONTROL] * 3 + [NORMAL] * 2)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def put_beside(folder: Path, added: list[dict[str, Any]]) -> None:
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    (folder / "tokenizer_config.json").write_text("{}")


def test_a_tokenizer_beside_a_gguf_is_taken_where_its_own_cannot_be_read(tmp_path: Path) -> None:
    path, scratch = written(tmp_path), tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(ModelError, match=r"'llama'.*put tokenizer.json and tokenizer_config.json"):
        opened(path, scratch)
    put_beside(tmp_path, ADDED)
    card = opened(path, scratch)
    assert (card.name, card.architecture, card.context_length) == ("words", "strange", 512)
    assert (card.vocab_size, card.eos_ids, card.chat_template) == (5, (2,), "{{ messages }}")
    assert (scratch / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("added", [[{**ADDED[2], "content": "<end>"}], [{**ADDED[2], "id": 9}]])
def test_another_models_tokenizer_is_refused(tmp_path: Path, added: list[dict[str, Any]]) -> None:
    put_beside(tmp_path, added)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(ModelError, match="another model's tokenizer"):
        opened(written(tmp_path), scratch)
