"""What the tests of all adapters judge, and engines of which no verdict comes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import EngineError, InvalidOutput

CONTEXT = ["Bern is the capital of Switzerland.", "The museum opens at nine and closes at five."]
TRUE = "Bern is the capital of Switzerland."
FALSE = "Geneva hosts 47 embassies of Portugal."
QUESTION = "What is Bern?"
SECRET = "sk-not-to-be-seen"
SAID = '{"reasons": ["no embassy is named"], "score": 0.75}'  # what a judge `hallucination` is answered


def answering(*answers: Any) -> ScriptedEngine:
    """An engine that gives these answers in turn."""
    return ScriptedEngine(list(answers))


ENGINES: dict[str, Callable[[], ScriptedEngine]] = {
    "an engine that breaks": lambda: ScriptedEngine(lambda prompt: EngineError("the card caught fire")),
    "an answer that is none": lambda: ScriptedEngine(lambda prompt: InvalidOutput("no JSON at all", "uh")),
    "an engine that is gone": lambda: answering(),
    "a window too small": lambda: ScriptedEngine(lambda prompt: {"yes": 1.0, "no": 0.0}, context_window=3),
}
REASONS = {
    "an engine that breaks": "the card caught fire",
    "an answer that is none": "no JSON at all",
    "an engine that is gone": "no answers left",
    "a window too small": "over_length",
}


def run_example(heading: str, of: str = "adapters.md") -> str:
    """Run the example under a heading of a page; the answer is what the page says that it prints."""
    page = (Path(__file__).parents[2] / "docs" / of).read_text(encoding="utf-8")
    section = page.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    code = section.split("```py\n", 1)[1].split("```", 1)[0]
    exec(compile(code, f"docs/{of}: {heading}", "exec"), {"__name__": "__main__"})
    return section.split("```text\n", 1)[1].split("```", 1)[0] if "```text\n" in section else ""
