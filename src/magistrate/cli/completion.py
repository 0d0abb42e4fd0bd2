"""Completion in bash, zsh and fish: names of judges, runs, sets, models and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import click
from click.shell_completion import CompletionItem

RUNS = 50  # the newest; more would not be read in a list

Words = Callable[[click.Context], Iterable[tuple[str, str]]]  # words with what they are, "" if that is plain


class Completed(click.types.StringParamType):
    """A text of which a shell can complete the values. With `files`, file names are proposed too."""

    def __init__(self, words: Words, *, files: bool = False) -> None:
        self._words, self._files = words, files

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the words that begin like this. File names are left to the shell, where no word fits."""
        found = [
            CompletionItem(word, help=what or None)
            for word, what in self._words(ctx)
            if word.startswith(incomplete)
        ]
        return found or ([CompletionItem(incomplete, type="file")] if self._files else [])


def _judges(context: click.Context) -> Iterator[tuple[str, str]]:
    from magistrate.judges.registry import judge_entries

    yield from ((name, "") for name in sorted(judge_entries()))


def _runs(context: click.Context) -> Iterator[tuple[str, str]]:
    from magistrate.cli.options import open_store
    from magistrate.errors import MagistrateError
    from magistrate.report.formatting import plain

    yield "last", "the newest run"
    try:
        with open_store(context.params.get("store")) as store:
            for record in store.runs(limit=RUNS):
                yield record.id, plain(record.name or record.dataset)
    except MagistrateError:
        return  # a shell that completes has no place for a message


def _sets(context: click.Context) -> Iterator[tuple[str, str]]:
    from magistrate.datasets.named import catalogue

    yield from ((name, known.task) for name, known in catalogue().items())


def _models(context: click.Context) -> Iterator[tuple[str, str]]:
    from magistrate.engines.models.catalogue import names

    yield from ((name, "") for name in names())


def _pullable(context: click.Context) -> Iterator[tuple[str, str]]:
    from magistrate.detectors.large import LARGE

    yield from _models(context)
    yield LARGE, "for --judge combined:size=large"


def _nothing(context: click.Context) -> Iterator[tuple[str, str]]:
    yield from ()


JUDGES = Completed(_judges, files=True)
STORED = Completed(_runs)
DATA = Completed(_sets, files=True)
FILES = Completed(_nothing, files=True)
MODELS = Completed(_models, files=True)
PULLABLE = Completed(_pullable)

# By the name of an argument or option, or else by its metavar.
KINDS = {
    "judge": JUDGES,
    "judges": JUDGES,
    "with_judge": JUDGES,
    "JUDGE": JUDGES,
    "JUDGE|signal:NAME": JUDGES,
    "run": STORED,
    "runs": STORED,
    "RUN": STORED,
    "[RUN]": STORED,
    "data": DATA,
    "dataset": DATA,
    "DATA": DATA,
    "FILE|NAME": DATA,
    "DATA|RUN|QUEUE": DATA,
    "model": MODELS,
    "MODEL": MODELS,
    "file": FILES,
    "FILE": FILES,
    "FILE|URL": FILES,
    "FILE|RUN": FILES,
}


def add_completion(command: click.Command) -> None:
    """Let shells complete the texts that a command and all its subcommands take."""
    for parameter in command.params:
        if parameter.type is click.STRING:
            kind = KINDS.get(parameter.name or "") or KINDS.get(parameter.metavar or "")
            parameter.type = parameter.type if kind is None else kind
    if isinstance(command, click.Group):
        for each in command.commands.values():
            add_completion(each)
