"""Engines whose models run in this process, as far as they go without torch."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from magistrate.engines.base import EngineSettings
from magistrate.engines.embedded import open_engine
from magistrate.engines.transformers.folder import obstacle
from magistrate.errors import MissingExtra, SpecError


@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_the_package_is_named_where_it_is_missing(module: str) -> None:
    # Those that are looked for before it are made to be there, in name.
    code = (
        "import importlib.machinery, sys, types\n"
        "for name in ('torch', 'transformers', 'safetensors'):\n"
        "    sys.modules[name] = types.ModuleType(name)\n"
        "    sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)\n"
        f"sys.modules[{module!r}] = None\n"
        "from magistrate.engines.transformers import open_engine\n"
        "from magistrate.engines.base import EngineSettings\n"
        "open_engine('model', EngineSettings())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.rstrip().endswith(str(MissingExtra(module, "transformers")))


@pytest.mark.full
def test_the_embedded_engine_has_no_use_for_an_address(model_folder: Path) -> None:
    with pytest.raises(SpecError, match="--base-url"):
        open_engine("any", EngineSettings(base_url="http://127.0.0.1:1/v1"))
    asked = EngineSettings(threads=1, timeout=2.0, hidden_states=True)
    info = open_engine(str(model_folder), asked).info
    assert "hidden_states" in info.can and info.fingerprint


ODD: dict[str, tuple[dict[str, Any], str]] = {
    "its own code": ({"auto_map": {}}, "code"),
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


# --- a model that is not here ---------------------------------------------------------------------


class Hub(BaseHTTPRequestHandler):
    """A model hub without models, one of them gated; it keeps what it was asked."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        code = "GatedRepo" if "gated" in self.path else "RepoNotFound"
        self.send_response(403 if "gated" in self.path else 404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        """Nothing is told to the terminal."""


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """The address of a hub, and what it was asked for."""
    Hub.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", Hub.asked
        server.shutdown()


def sought(folder: Path, endpoint: str, *words: str) -> list[str]:
    """What is said of each of these words where a folder `mine/model` is; in a process of its own, because
    the hub's client keeps the address that it had when it was imported."""
    (folder / "mine" / "model").mkdir(parents=True, exist_ok=True)
    code = (
        "import sys\n"
        "from magistrate.engines.transformers.folder import locate\n"
        "for word in sys.argv[1:]:\n"
        "    try:\n"
        "        print(locate(word))\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(folder / "kept")}
    environment |= {"no_proxy": "127.0.0.1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


MISTYPED = {
    "mine/modle": "there is no folder mine/modle (did you mean 'model'?)",
    "./modle": "there is no folder ./modle;",
    "./mine/modle": "there is no folder ./mine/modle (did you mean 'model'?)",
    "someone/modle/": "there is no folder someone/modle/: there is no folder someone either;",
    "a/b/modle": "there is no folder a/b/modle: there is no folder a/b either;",
    "/nowhere/modle": "there is no folder /nowhere/modle: there is no folder /nowhere either;",
    "~nobody-of-this-name/modle": "there is no folder ~nobody-of-this-name/modle: ",
    "modle": "there is no folder modle;",
}


def test_a_mistyped_folder_is_said_not_to_be_there_and_no_hub_is_asked(
    asked: tuple[str, list[str]], tmp_path: Path
) -> None:
    endpoint, requests = asked
    for told, expected in zip(sought(tmp_path, endpoint, *MISTYPED), MISTYPED.values(), strict=True):
        assert told.startswith(f"SpecError {expected}")
    assert sought(tmp_path, endpoint, "mine/model") == ["mine/model"]
    assert requests == []


def test_a_name_that_neither_this_machine_nor_the_hub_knows(
    asked: tuple[str, list[str]], tmp_path: Path
) -> None:
    endpoint, requests = asked
    nowhere, gated = sought(tmp_path, endpoint, "someone/modle", "someone/gated@main")
    here = "ModelError there is no folder someone"
    assert nowhere.startswith(f"{here}/modle, and the model hub has no public model with this name")
    assert gated.startswith(f"{here}/gated, and the model on the hub is gated: accept its terms")
    assert len(requests) >= 2
    (unreached,) = sought(tmp_path, "http://127.0.0.1:9", "someone/modle")
    assert unreached.startswith(f"{here}/modle, and the model hub could not be reached (")
