"""Words behind a model's name, addresses and keys of engines on servers."""

from __future__ import annotations

from types import ModuleType

import pytest

from magistrate.engines import anthropic
from magistrate.engines.anthropic import open_engine as open_anthropic
from magistrate.engines.base import EngineSettings
from magistrate.engines.openai import engine as openai
from magistrate.engines.openai import open_engine as open_openai
from magistrate.errors import SpecError

SERVICES = pytest.mark.parametrize("service", [openai, anthropic], ids=["openai", "anthropic"])


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI", "ANTHROPIC"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
        monkeypatch.delenv(f"{name}_BASE_URL", raising=False)


def test_options_stand_behind_the_model() -> None:
    assert openai.read_options("qwen2.5:0.5b") == ("qwen2.5:0.5b", openai.Options())
    model, options = openai.read_options("org/model,stream=true,draws=5,choose=sampled")
    assert model == "org/model"
    assert options == openai.Options(stream=True, draws=5, choose="sampled")
    assert anthropic.read_options("claude,form=tool,stream=false,anew=0") == (
        "claude",
        anthropic.Options(form="tool", anew=0),
    )


WRONG = ["", ",draws=5", "m,draw=5", "m,draws=0", "m,draws=x", "m,draws=-1", "m,draws=²", "m,choose=all"]
WRONG += ["m,stream=1", "m,anew=9999999999", "m,x"]


@SERVICES
@pytest.mark.parametrize("words", WRONG)
def test_options_that_are_not_known_are_refused(service: ModuleType, words: str) -> None:
    with pytest.raises(SpecError):
        service.read_options(words)


def test_what_is_wrong_is_told_with_what_is_known() -> None:
    with pytest.raises(
        SpecError, match="not an option of anthropic:m; known, as name=value: choose, draws, form"
    ):
        anthropic.read_options("m,window=5")
    with pytest.raises(SpecError, match="window must be a whole number of at least 1, got '0'"):
        openai.read_options("m,window=0")
    with pytest.raises(SpecError, match="form='xml' is unknown; known: best, schema, tool, words"):
        anthropic.read_options("m,form=xml")
    with pytest.raises(SpecError, match="openai:MODEL"):
        openai.read_options("")


ODD = ["localhost:8080", "ftp://host/v1", "http://", "http://[x", "https://me:secret@host/v1"]
ODD += ["https://host/v1?key=secret"]


@pytest.mark.parametrize("url", ODD)
def test_what_is_no_address_or_holds_a_secret_is_refused_without_showing_it(url: str) -> None:
    for address in (openai.base_url, anthropic.base_url):
        with pytest.raises(SpecError) as caught:
            address(url)
        assert "secret" not in str(caught.value)


def test_the_address_is_the_environments_where_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert openai.base_url(None) == openai.OFFICIAL
    assert anthropic.base_url(None) == anthropic.OFFICIAL
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://gateway:1/v1/")
    assert openai.base_url(None) == "http://127.0.0.1:8000/v1"
    assert openai.base_url(" http://here:2/api/ ") == "http://here:2/api"
    assert anthropic.base_url(None) == "http://gateway:1"
    assert anthropic.base_url("http://here:2") == "http://here:2"


@pytest.mark.parametrize(
    ("service", "variable"), [(openai, "OPENAI_API_KEY"), (anthropic, "ANTHROPIC_API_KEY")]
)
def test_only_the_official_server_needs_a_key(
    service: ModuleType, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service.key_for("http://127.0.0.1:1") == "none"
    open_engine = open_openai if service is openai else open_anthropic
    with pytest.raises(SpecError, match=variable):
        open_engine("model", EngineSettings())
    monkeypatch.setenv(variable, " sk-1234 ")
    assert service.key_for(service.OFFICIAL) == "sk-1234"
