"""`magistrate train detector`: a small encoder that flags what the context does not support."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.options import console, json_option, print_json, reading_options

if TYPE_CHECKING:
    from types import ModuleType

    from magistrate.types import Sample

EXAMPLE = (
    "Example: magistrate train detector --data labelled.csv --to my-detector --minutes 9; "
    "magistrate run answers.jsonl --judge detector:my-detector"
)

STOPPING = 300  # samples of each set to stop on: they are judged several times


@click.command(epilog=EXAMPLE)
@click.option("--data", multiple=True, metavar="FILE|NAME", help="Labelled data to learn from; repeatable.")
@click.option(
    "--clean",
    multiple=True,
    metavar="FILE|NAME",
    help="Faithful outputs, labelled or not, that are only changed; repeatable.",
)
@click.option("--to", "target", required=True, type=click.Path(path_type=Path), help="The detector's folder.")
@click.option("--force", is_flag=True, help="Begin anew, and replace the detector that is there.")
@click.option(
    "--base",
    default="minilm-l6",
    show_default=True,
    metavar="NAME|FOLDER",
    help="minilm-l6 (22M), smollm2-135m (tuned by LoRA), or a Hugging Face folder of a BERT or a Llama.",
)
@click.option("--name", help="What it is called (default: the folder's name).")
@click.option(
    "--labelled",
    type=click.IntRange(0),
    default=4000,
    show_default=True,
    help="Labelled samples of each --data.",
)
@click.option(
    "--perturb",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    help="Faithful samples of each source that are changed, wrongly and harmlessly.",
)
@click.option(
    "--variants", type=click.IntRange(2), default=4, show_default=True, help="Of each that is changed."
)
@click.option(
    "--wordnet",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with WordNet's files: more words to change, and its glosses as clean text.",
)
@click.option(
    "--glosses", type=click.IntRange(0), default=0, show_default=True, help="Glosses that are changed."
)
@click.option(
    "--writer",
    metavar="smollm2-135m|FOLDER",
    help="A small language model: it makes up ends of faithful outputs, and wrong words that are likely.",
)
@click.option(
    "--stop-on",
    multiple=True,
    metavar="FILE|NAME",
    help="Labelled data that says which weights are best, and when to stop; repeatable.",
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="Where to compute (default: what is there)."
)
@click.option("--checkpoints", is_flag=True, help="Compute activations twice: less memory, more time.")
@click.option(
    "--left-out",
    multiple=True,
    metavar="FILE|NAME",
    help="Labelled data to measure on at the end; repeatable.",
)
@click.option(
    "--epochs",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="How often all is seen.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=3e-4,
    show_default=True,
    help="The highest learning rate.",
)
@click.option(
    "--window", type=click.IntRange(64, 512), default=256, show_default=True, help="Tokens in training."
)
@click.option("--batch", type=click.IntRange(64), default=5000, show_default=True, help="Tokens of a batch.")
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    help="Stop then; the same command goes on from there.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of what is drawn and of the weights.")
@reading_options
@json_option
def command(
    data: tuple[str, ...],
    clean: tuple[str, ...],
    target: Path,
    force: bool,
    base: str,
    name: str | None,
    labelled: int,
    perturb: int,
    variants: int,
    wordnet: Path | None,
    glosses: int,
    writer: str | None,
    stop_on: tuple[str, ...],
    device: str | None,
    checkpoints: bool,
    left_out: tuple[str, ...],
    epochs: float,
    rate: float,
    window: int,
    batch: int,
    minutes: float | None,
    seed: int,
    mapping: tuple[tuple[str, str], ...],
    labels: dict[str, str],
    max_unread: float,
    as_json: bool,
) -> None:
    """Train a small encoder to flag what an output says beyond its context, and write its folder.

    It learns from labels (with spans, or of whole outputs) and from faithful outputs that are changed,
    wrongly at known places or harmlessly. The same data, options and seed give the same detector.
    """
    from magistrate.datasets.families import family_of
    from magistrate.detectors.folder import MANIFEST
    from magistrate.train.detector.mixture import Portion, mixed
    from magistrate.train.folders import check_free
    from magistrate.train.synthetic import Lexicon

    if not data and not clean:
        raise click.UsageError("name data to learn from: --data FILE")
    if glosses and wordnet is None:
        raise click.UsageError("--glosses are WordNet's: name its folder with --wordnet")
    check_free(target, MANIFEST, "detector", replace=force)
    bases, training = _libraries()
    lexicon = Lexicon.read(wordnet)
    wish = training.Wish(
        name=name or target.name,
        base=bases.base(base),
        schedule=training.Schedule(epochs=epochs, rate=rate, tokens=batch, seed=seed),
        window=window,
        checkpoints=checkpoints,
        trained_on=tuple(dict.fromkeys(family_of(each) for each in [*data, *clean])),
        recipe={
            "lexicon": lexicon.name,
            "labelled": labelled,
            "perturb": perturb,
            "variants": variants,
            "writer": writer,
        },
    )
    read = partial(_samples, mapping=dict(mapping), labels=labels, max_unread=max_unread)
    ends = perturb // 2 if writer else 0
    sources: dict[str, tuple[list[Sample], Portion]] = {
        each: (read(each), Portion(labelled, perturb, variants, ends)) for each in data
    }
    sources |= {each: (read(each), Portion(0, perturb, variants, ends)) for each in clean}
    if glosses and wordnet is not None:
        from magistrate.train.synthetic.glosses import glosses as told

        sources["WordNet glosses"] = (list(told(wordnet, glosses, seed)), Portion(0, glosses, variants))
    mixture = mixed(sources, lexicon, seed, writer=_writer(bases, writer, target) if writer else None)
    terminal = console(error=True)
    with terminal.status("reading") as status:

        def tell(step: int, steps: int, loss: float) -> None:
            status.update(f"step {step:,} of {steps:,}, loss {loss:.3f}")

        found = training.train(
            wish,
            mixture,
            target,
            stop_on={each: _some(read(each), seed) for each in stop_on},
            left_out={each: read(each) for each in left_out},
            device=device,
            seconds=None if minutes is None else 60 * minutes,
            tell=tell,
            replace=force,
        )
    if as_json:
        names = ("step", "steps", "auroc", "measured", "left_out")
        print_json({**{name: getattr(found, name) for name in names}, "folder": str(target)})
        return
    for each, count in found.left_out.items():
        click.echo(f"{each}: left out: {count:,} (no label, or nothing to read)")
    if found.manifest is None:
        how = "the same command without --force" if force else "the same command"
        click.echo(f"step {found.step:,} of {found.steps:,}; {how} goes on from there")
    else:
        for each, value in found.auroc.items():
            click.echo(f"{each}: AUROC {value:.3f} (n={found.measured[each]:,})")
        click.echo(f"written to {target}; use it with: magistrate run DATA --judge detector:{target}")


def _libraries() -> tuple[ModuleType, ModuleType]:
    """The modules that need what is heavy. Raises `MissingExtra` with what to install."""
    from importlib import import_module
    from importlib.util import find_spec

    from magistrate.errors import MissingExtra

    for needed in ("torch", "transformers", "safetensors", "nncf", "openvino"):
        if find_spec(needed) is None:
            raise MissingExtra(needed, "train")
    bases, training = (f"magistrate.train.detector.{name}" for name in ("bases", "training"))
    return import_module(bases), import_module(training)


def _writer(bases: ModuleType, words: str, target: Path) -> Any:
    from magistrate.train.detector.writer import Writer
    from magistrate.train.folders import WORK

    return Writer(bases.base(words), target / WORK)


def _some(samples: list[Sample], seed: int) -> list[Sample]:
    """At most `STOPPING` samples, the same ones in every sitting: files may be sorted by label."""
    return random.Random(seed).sample(samples, min(STOPPING, len(samples)))


def _samples(words: str, **how: Any) -> list[Sample]:
    """The samples of a file or a named set, `NAME:VIEW` for one of its views."""
    from magistrate.datasets import load

    return list(load(words, **how))
