"""From the words after `--model` to an engine, and what each kind of engine says of itself."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from magistrate.engines import models
from magistrate.engines.base import Capability, Engine, EngineSettings
from magistrate.engines.registry import ENGINES, KINDS, Kind
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import SpecError
from magistrate.judges import registry
from magistrate.judges.cascade import Cascade
from magistrate.judges.classify import Classify, classifier
from magistrate.judges.registry import tuned_for
from magistrate.types import FAITHFUL, HALLUCINATED

RECORDED = Path(__file__).parent.parent / "benchmarks" / "engines.jsonl"


class Elsewhere(ScriptedEngine):
    """An engine of another package."""

    def __init__(self, model: str, settings: EngineSettings) -> None:
        super().__init__([], name=model)
        self.settings = settings
        self.at_most: int | None = None

    def sharing(self, concurrency: int) -> Elsewhere:
        share = copy(self)
        share.at_most = concurrency
        return share


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that brings a kind of engines, and one that brings a broken one."""
    known = dict(registry.engine_entries())
    known["elsewhere"] = EntryPoint("elsewhere", f"{__name__}:Elsewhere", ENGINES)
    known["broken"] = EntryPoint("broken", "no_such_module:open_engine", ENGINES)
    monkeypatch.setattr("magistrate.engines.registry.engine_entries", lambda: known)


@pytest.mark.usefixtures("plugin")
def test_packages_bring_kinds_of_engines_of_their_own() -> None:
    settings = EngineSettings(base_url="http://127.0.0.1:1", timeout=5.0)
    made = registry.engine("elsewhere:one,of=them", settings)
    assert isinstance(made, Elsewhere)
    assert (made.info.model, made.settings, made.at_most) == ("one,of=them", settings, None)
    shares = [registry.engine("elsewhere:one,of=them", replace(settings, concurrency=n)) for n in (3, 7)]
    assert [share.at_most for share in shares if isinstance(share, Elsewhere)] == [3, 7]
    assert made.at_most is None
    again = registry.engine("elsewhere:one,of=them", settings)
    assert again is made, "an engine is made once, however many calls others are allowed"
    assert registry.engine("elsewhere:another", settings) is not made
    with pytest.raises(SpecError, match=r"engine 'broken' \(no_such_module:open_engine\) cannot be loaded"):
        registry.engine("broken:model")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("openai:", "'openai' needs a model: openai:MODEL"),
        ("openai", "'openai' needs a model: openai:MODEL"),
        ("opneai:gpt-4o", "unknown kind of engine 'opneai' in 'opneai:gpt-4o'; did you mean 'openai'"),
        ("olama:llama3", "did you mean 'ollama'"),
        ("nothing-alike:x", "unknown model 'nothing-alike:x'"),
    ],
)
def test_words_that_name_no_engine_are_told_what_would(words: str, told: str) -> None:
    with pytest.raises(SpecError) as raised:
        registry.engine(words)
    assert told in str(raised.value)


def test_an_address_without_a_model_of_a_server_is_refused() -> None:
    with pytest.raises(SpecError, match="add its model: --model openai:MODEL"):
        registry.engine(None, EngineSettings(base_url="http://127.0.0.1:1/v1"))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"threads": 0}, "threads must be at least 1"),
        ({"timeout": 0.0}, "timeout must be a finite number"),
        ({"timeout": float("inf")}, "timeout must be a finite number"),
        ({"concurrency": 0}, "concurrency must be at least 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(said: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        EngineSettings(**said)


def test_every_kind_that_is_told_of_is_installed_and_the_other_way_round() -> None:
    assert {kind.word for kind in KINDS} - {""} == set(registry.engine_entries())
    for entry in registry.engine_entries().values():
        assert callable(entry.load()), "opening a kind needs its packages, naming it does not"


def test_what_is_missing_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    can: frozenset[Capability] = frozenset()
    kind = Kind("x", "x", ("no-such-package", "numpy"), "", "", can, "SOME_KEY")
    assert list(kind.missing()) == [
        "not installed: no-such-package; pip install 'magistrate[x]'",
        "SOME_KEY is not set (your own server may not need it)",
    ]
    assert len(kind.found) == 1 and kind.found[0].startswith("numpy ")
    monkeypatch.setenv("SOME_KEY", "secret")
    assert not any("SOME_KEY" in each for each in kind.missing())


def test_no_engine_was_seen_to_do_more_than_its_kind_declares() -> None:
    most = {kind.word or "local": kind.most for kind in KINDS}
    lines = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    assert lines[0]["engine"] == "embedded"
    for line in lines:
        assert set(line["can"]) <= most[line["kind"]], line["engine"]


def test_an_engine_is_passed_through() -> None:
    made: Engine = ScriptedEngine([])
    assert registry.engine(made) is made


@pytest.mark.parametrize("said", [{"base_url": "http://127.0.0.1:1/v1"}, {"threads": 1}, {"timeout": 2.0}])
def test_an_engine_is_told_nothing_that_it_would_not_hear(said: dict[str, Any]) -> None:
    with pytest.raises(
        SpecError, match=r"an existing engine \(ScriptedEngine\) does not support --.*remove it"
    ):
        registry.engine(ScriptedEngine([]), EngineSettings(**said))


# --- models that were tuned for a judge -------------------------------------------------------------


def tuned(name: str, model: str) -> Classify:
    asked = classifier(name, "{{ output }} {{ reply }}", {FAITHFUL: 0, HALLUCINATED: 1})
    return replace(asked, criterion=replace(asked.criterion, model=model))


def test_a_judge_that_a_model_was_tuned_for_asks_it_where_none_is_named() -> None:
    one, other, usual = tuned("one", "a/model.gguf"), tuned("other", "b"), tuned("usual", "")
    code = registry.judge("novelty")
    assert tuned_for([one]) == tuned_for([one, code]) == "a/model.gguf"
    assert tuned_for([usual, code]) is None
    assert tuned_for([Cascade(first=code, then=one)]) == tuned_for([usual, one]) == "a/model.gguf"
    with pytest.raises(SpecError, match=r"\(one: a/model\.gguf; other: b\).*--model"):
        tuned_for([one, usual, other])
    with pytest.raises(SpecError, match=r"a/model\.gguf"):  # and it is really that one which is looked for
        registry.engine_for([one])
    engine = ScriptedEngine([])
    assert registry.engine_for([one, other], engine) is engine
    assert registry.usual_model([one, code]) == "a/model.gguf"
    assert (
        tuned_for([replace(one, explain="before")]) is None
    )  # it has learnt to answer, not to explain first
    assert registry.usual_model([replace(one, explain="before")]) == models.default().name


def test_faithfulness_asks_the_model_that_was_tuned_for_it() -> None:
    wanted = "smollm2-135m-judge"
    for words in (
        "faithfulness",
        "faithfulness:permute=true",
        "sentences",
        "cascade:first=novelty,then=faithfulness",
    ):
        assert registry.usual_model([registry.judge(words)]) == wanted, words
    assert registry.usual_model([registry.judge("hallucination")]) == models.default().name
    assert models.entry(wanted).sha256 == models.default().sha256 and models.entry(wanted).update_file
