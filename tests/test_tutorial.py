"""The tutorial and the guides, followed word by word in an empty folder, print what they show."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from standins import ANSWERS, ollama_like, openai_like, running, vllm_like

DOCS = Path(__file__).resolve().parent.parent / "docs"
TRANSCRIPT = runpy.run_path(str(DOCS / "transcript.py"))
GUIDES = sorted(path.name for path in (DOCS / "guides").glob("*.md"))
SERVERS = {"ollama.md": ollama_like, "vllm.md": vllm_like, "openai.md": openai_like}
MODELS = ("qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct", "gpt-4o-mini")


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_tutorial_prints_what_it_shows() -> None:
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    assert TRANSCRIPT["with_outputs"](page) == page, "run: python docs/transcript.py docs/tutorial.md"


def test_only_what_varies_and_what_is_left_out_may_differ() -> None:
    agrees = TRANSCRIPT["agrees"]
    printed = "20261126-062531-f3su\nauto  15 flagged  8.0 s\n────\nserved at http://127.0.0.1:8421/\n"
    again = "20270101-000000-aaaa\nauto  15 flagged  90 ms\n──────\nserved at http://127.0.0.1:1/\n"
    assert agrees(printed, again) and agrees("20261126-062531-f3su\n…\n", printed) and agrees("…\n", printed)
    assert not agrees(printed, again.replace("15", "16"))
    assert not agrees("auto  15 flagged\n…\n", printed)
    assert not agrees(printed, f"{printed}warning: more\n")


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_prints_what_it_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    page = (DOCS / "guides" / name).read_text(encoding="utf-8")
    answering = SERVERS.get(name, ollama_like)(
        models=MODELS, says=lambda body: "Yes", answers=(*ANSWERS, "Yes")
    )
    with running(answering) as server:
        url = server.url if name in SERVERS else None
        assert TRANSCRIPT["with_outputs"](page, url) == page
