"""The command line: `magistrate COMMAND`."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from magistrate import _logging
from magistrate._version import __version__
from magistrate.cli.exit_codes import (
    BAD_INPUT,
    DONE,
    SIGNALLED,
    UNREAD,
    exit_code,
    interrupted_code,
    note_signal,
)
from magistrate.cli.options import add_verbose
from magistrate.cli.output import hush
from magistrate.errors import MagistrateError

COMMANDS = (
    "demo",
    "init",
    "judge",
    "run",
    "resume",
    "retry",
    "merge",
    "estimate",
    "runs",
    "show",
    "export",
    "import",
    "serve",
    "users",
    "label",
    "labels",
    "watch",
    "agree",
    "compare",
    "jury",
    "rank",
    "arena",
    "power",
    "audit",
    "calibrate",
    "improve",
    "train",
    "prevalence",
    "generate",
    "check",
    "judges",
    "datasets",
    "schemas",
    "cache",
    "models",
    "doctor",
    "docs",
)

# Commands whose name differs from their module or function: the module, and the function in it.
ELSEWHERE = {
    "check": ("generate", "check_text"),
    "import": ("imports", "command"),
    "power": ("compare", "power_command"),
    "retry": ("resume", "retry"),
}


class Commands(click.Group):
    """Imports a command's module only when the command is used, so that `--help` stays fast."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute = ELSEWHERE.get(name, (name, "command"))
        command: click.Command = getattr(import_module(f"magistrate.cli.{module}"), attribute)
        add_verbose(command)
        if context.resilient_parsing:  # as while a shell completes
            from magistrate.cli.completion import add_completion

            add_completion(command)
        return command

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError:
            hush()  # the reader closed the pipe early; the remaining work may not be complete
            return UNREAD

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from magistrate.judges.registry import unknown

        if args[0] not in COMMANDS and not args[0].startswith("-") and not context.resilient_parsing:
            raise click.UsageError(unknown("command", args[0], COMMANDS, see="--help"), context)
        return super().resolve_command(context, args)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: magistrate judge --context 'Bern has 134,000 people.' --output 'Bern has two million.'",
)
@click.version_option(__version__, prog_name="magistrate")
def command() -> None:
    """A local judge: is what a language model wrote faithful to what it was given?"""


def main(program: click.Command = command, name: str = "magistrate") -> None:
    """Run a program, by default this command line, and exit with its code.

    0 done, 1 a gate failed, 2 bad usage or input, 3 incomplete result (a limit cut the run off, a judge
    gave no verdict, too many judgements failed, the engine is gone), 4 judged, but other shares of the run
    are missing, 130 interrupted (143 and 129 after SIGTERM and SIGHUP), 141 if the reader of standard output
    closed it early.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Print text and table frames even in a locale that cannot encode all their characters.
        sys.stdout.reconfigure(errors="replace")
    _logging.configure(verbose=False)
    with _as_a_program():
        code = _run(program, name)
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            hush()
            code = code or UNREAD
        except OSError as error:
            hush()
            click.echo(f"error: cannot write the answer: {error.strerror}", err=True)
            code = code or BAD_INPUT
    if code > SIGNALLED:
        # After Ctrl-C, do not wait for a model that is still loading.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


@contextmanager
def _as_a_program() -> Iterator[None]:
    """Print warnings as plain lines, and let SIGTERM and SIGHUP interrupt the program like Ctrl-C.

    Everything is restored afterwards, in case `main` was called inside a larger program.
    """
    signals = [each for name in ("SIGTERM", "SIGHUP") if (each := getattr(signal, name, None)) is not None]
    mine = [each for each in signals if signal.getsignal(each) is signal.SIG_DFL]  # keeps what nohup ignores
    shown, warnings.showwarning = warnings.showwarning, _warned
    for each in mine:
        signal.signal(each, _interrupt)
    try:
        yield
    finally:
        warnings.showwarning = shown
        for each in mine:
            signal.signal(each, signal.SIG_DFL)


def _run(program: click.Command, name: str) -> int:
    try:
        code = program.main(prog_name=name, standalone_mode=False)
        return code if isinstance(code, int) else DONE
    except click.ClickException as error:
        error.show()
        return BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return interrupted_code()
    except MagistrateError as error:
        from magistrate.report.formatting import plain

        click.echo(f"error: {plain(str(error))}", err=True)
        return exit_code(error)
    except OSError as error:  # such as a full disk, also where standard output is a file on it
        from magistrate.report.formatting import plain

        hush()
        place = "" if error.filename is None else f" {plain(str(error.filename))}"
        click.echo(f"error: cannot read or write{place}: {error.strerror or error}", err=True)
        return BAD_INPUT


def _warned(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line, without its place in the code."""
    from magistrate.report.formatting import plain

    click.echo(f"warning: {plain(str(message))}", err=True)


def _interrupt(number: int, frame: object) -> None:
    """Interrupt the program as after Ctrl-C: work in progress is dropped, finished work is kept."""
    note_signal(number)
    raise KeyboardInterrupt
