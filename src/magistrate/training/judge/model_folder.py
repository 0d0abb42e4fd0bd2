"""The folder that a training writes: the merged model, its adapter, a GGUF, the recipe and a model card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from magistrate._text import decimal
from magistrate.engines.models import disk
from magistrate.errors import SpecError
from magistrate.judges.folders import CARD, check_free, whole
from magistrate.training.judge.bases import TOKENIZER, Base
from magistrate.training.judge.gguf import write_gguf

RECIPE = "recipe.json"
ADAPTER = "adapter"
GGUF = "model.gguf"
WHAT, KIND = "judge", "magistrate judge model"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Figure:
    """A held-out figure, with its 95 % interval if it has one."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """The held-out results before or after training. Both figures are None without one-token labels."""

    loss: float
    balanced_accuracy: Figure | None = None
    f1: Figure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All settings and data that made a model. The same again gives the same weights on the same machine.

    `sources` are the data, each with name, digest and counts. `judge` is None if chats were trained on.
    """

    name: str
    base: Mapping[str, Any]
    judge: Mapping[str, str] | None
    sources: tuple[Mapping[str, Any], ...]
    settings: Mapping[str, Any]
    examples: Mapping[str, int]
    left_out: Mapping[str, int]
    lessons: str
    device: str
    updates: int
    best_update: int
    stopped_early: bool
    history: tuple[tuple[int, float], ...]
    before: Side
    after: Side
    versions: Mapping[str, str]
    no_gguf: str = ""

    def text(self) -> str:
        """Return the content of the file."""
        values = {"kind": KIND, "format": FORMAT, **asdict(self)}
        return json.dumps(values, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def check_target(target: Path, *, force: bool) -> None:
    """Raise `SpecError` if a training must not write to this folder."""
    check_free(target, RECIPE, WHAT, replace=force)
    if (target / RECIPE).is_file() and not _is_own(target / RECIPE):
        raise SpecError(f"{target} already exists and contains no {WHAT}; choose another folder")


def _is_own(path: Path) -> bool:
    """Return whether a recipe is one of a judge model, and not another program's."""
    try:
        return f'"kind": "{KIND}"' in path.read_text(encoding="utf-8")
    except ValueError:
        return False


def write_model(layers: Mapping[str, Any], base: Base, target: Path, recipe: Recipe) -> None:
    """Merge the adapter into a fresh base in 32-bit floats and write everything atomically."""
    from magistrate.training.low_rank import merged as merged_with
    from magistrate.training.low_rank import write_adapter

    with whole(target) as made:
        write_adapter(layers, made / ADAPTER, alpha=recipe.settings["alpha"], base=base.source)
        merged: Any = merged_with(base.load(), made / ADAPTER)
        merged.save_pretrained(made)
        for name in TOKENIZER:
            if (base.tokenizer / name).is_file():
                shutil.copyfile(base.tokenizer / name, made / name)
        if not recipe.no_gguf:
            write_gguf(merged, made / GGUF, base.tokenizer, name=recipe.name, like=base.gguf)
        (made / CARD).write_text(card(recipe), encoding="utf-8")
        digests = {
            path.name: disk.sha256(path)
            for path in sorted(made.iterdir())
            if path.suffix in (".gguf", ".safetensors")
        }
        values = {**json.loads(recipe.text()), "sha256": digests}
        text = json.dumps(values, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        (made / RECIPE).write_text(text, encoding="utf-8")


def card(recipe: Recipe) -> str:
    """Return the model card, in Markdown."""
    judge = recipe.judge["words"] if recipe.judge else None
    licence = recipe.base.get("licence") or "same as the base, which does not state it"
    use = f"magistrate run DATA --judge {judge or 'JUDGE'} --model {recipe.name}/{GGUF}"
    lines = [
        f"# {recipe.name}",
        "",
        f"{recipe.base['source']}, tuned by LoRA to judge whether an output is faithful to its context"
        + (f", with the prompt of the judge `{judge}`." if judge else ", on chats."),
        "",
        "```console",
        f"$ {use}" if not recipe.no_gguf else f"$ # no GGUF: {recipe.no_gguf}",
        "```",
        "",
        "## Training data",
        "",
        *(
            f"- {each['name']}: {each['n']:,} rows (sha256 {str(each['digest'])[:12]}…)"
            for each in recipe.sources
        ),
        *(f"- left out: {count:,} ({reason})" for reason, count in recipe.left_out.items()),
        "",
        f"{recipe.examples['train']:,} examples of {recipe.examples['train_contexts']:,} contexts; "
        f"{recipe.updates:,} updates, the best after {recipe.best_update:,}. Licence: {licence}.",
        "",
        "## Quality",
        "",
        f"On {recipe.examples['test']:,} examples of {recipe.examples['test_contexts']:,} other contexts of "
        "the same data. They decided when training stopped, so the figures are slightly too good: measure it "
        "on unseen data before you rely on it.",
        "",
        "| | before | after |",
        "| --- | --- | --- |",
        *("| " + " | ".join(row) + " |" for row in figures(recipe)),
        "",
        "## Limits",
        "",
        "It was trained on outputs like those above. On other kinds of text, other lengths or another share "
        "of hallucinated outputs, its figures will differ. It was tuned on one prompt; with another judge's "
        "prompt it may be worse than its base.",
    ]
    return "\n".join(lines) + "\n"


def figures(recipe: Recipe) -> list[tuple[str, str, str]]:
    """Return rows of name, value before and value after."""
    rows = [("loss of an answer's token (nats)", decimal(recipe.before.loss), decimal(recipe.after.loss))]
    for name, field in (("balanced accuracy", "balanced_accuracy"), ("F1", "f1")):
        before, after = getattr(recipe.before, field), getattr(recipe.after, field)
        if before is not None and after is not None:
            rows.append((name, _shown(before), _shown(after)))
    return rows


def _shown(figure: Figure) -> str:
    if figure.value is None:
        return "–"
    if figure.low is None or figure.high is None:
        return decimal(figure.value)
    return f"{decimal(figure.value)} [{decimal(figure.low)}, {decimal(figure.high)}]"
