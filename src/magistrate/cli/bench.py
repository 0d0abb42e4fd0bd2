"""`magistrate bench`: how fast this is beside others and beside the machine, and how well judges judge."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path

import click

from magistrate.cli.bench_quality import quality
from magistrate.cli.options import json_option
from magistrate.cli.output import console, print_json

EXAMPLE = (
    "Example: magistrate bench speed --quick; magistrate bench quality --judge faithfulness --samples 100"
)
SPEED = (
    "Example: magistrate bench speed --quick --contender magistrate; magistrate bench speed --rounds 3 --json"
)
LIMIT_SECONDS = 600.0  # for one answer of a contender
SECONDS_A_LINE = 10.0


@click.group(epilog=EXAMPLE)
def command() -> None:
    """Measure speed and memory beside other engines, and how well judges judge."""


command.add_command(quality)


@command.command(epilog=SPEED)
@click.option("--quick", is_flag=True, help="Few and short measurements: about a minute, rough figures.")
@click.option("--rounds", type=click.IntRange(1), help="How often everything is measured (default: 5).")
@click.option(
    "--contender",
    "contenders",
    multiple=True,
    metavar="NAME",
    help="Measure this one, also module:Class of your own; repeatable (default: all known).",
)
@click.option(
    "--peers",
    metavar="PYTHON",
    help="The Python that has the other engines (default: .venv-peers/bin/python where it exists).",
)
@click.option(
    "--soak", type=click.IntRange(0), default=0, help="Then send so many requests and watch the memory."
)
@click.option(
    "--append",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSONL file that every row is added to (default: bench/speed.jsonl in $MAGISTRATE_HOME).",
)
@click.option(
    "--model", help="Catalogue name, GGUF file or OpenVINO folder (default: the small built-in one)."
)
@click.option("--threads", type=click.IntRange(1), help="Cores to use (default: all it may run on).")
@json_option
def speed(
    quick: bool,
    rounds: int | None,
    contenders: tuple[str, ...],
    peers: str | None,
    soak: int,
    append: Path | None,
    model: str | None,
    threads: int | None,
    as_json: bool,
) -> int:
    """Measure verdicts, reading, writing, masks, start and memory, side by side in interleaved rounds.

    Each contender runs in a process of its own, one at a time, on the same weights, prompts and schema. What
    is not installed is listed with the reason.
    """
    from magistrate._paths import home
    from magistrate.bench.contender import CONTENDERS
    from magistrate.bench.lineup import lineup, registered
    from magistrate.bench.result import require_writable
    from magistrate.bench.session import measured
    from magistrate.bench.soak import SOAKED
    from magistrate.bench.speed import QUICK, Plan
    from magistrate.bench.table import render
    from magistrate.bench.weights import WeightsShelf
    from magistrate.cli.exit_codes import DONE, ENGINE_GONE
    from magistrate.cli.models import Stages
    from magistrate.engines.catalog import default
    from magistrate.engines.local.cores import available_cores

    names = list(dict.fromkeys(contenders)) or list(CONTENDERS)
    for name in names:
        registered(name)
    if soak and SOAKED not in names:
        raise click.UsageError(f"--soak is for the contender {SOAKED}, which is not among those named")
    python = _peers(peers)
    journal = append or home() / "bench" / "speed.jsonl"
    require_writable(journal)
    threads = threads or available_cores()
    plan = QUICK if quick else Plan()
    plan = plan if rounds is None else replace(plan, rounds=rounds)
    with Stages(console(error=True)) as stages:
        shelf = WeightsShelf(model or default().name, stages.report)
        entrants = lineup(names, shelf, python, threads, LIMIT_SECONDS)
    with _Telling() as telling:
        again = shlex.join(["magistrate", *sys.argv[1:]])
        result = measured(entrants, shelf.folder, plan, threads, soak, command=again, tell=telling.tell)
    result.append(journal)
    if as_json:
        print_json(result.to_dict())
    else:
        render(result, console())
    return DONE if any(row.value is not None for row in result.rows) else ENGINE_GONE


class _Telling:
    """What is being measured, on standard error: in place on a terminal, elsewhere a line now and then."""

    def __init__(self) -> None:
        terminal = console(error=True)
        self._status = terminal.status("") if terminal.is_terminal else None
        self._told = time.monotonic()

    def __enter__(self) -> _Telling:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, text: str) -> None:
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(text))
        elif time.monotonic() - self._told > SECONDS_A_LINE:
            self._told = time.monotonic()
            click.echo(text, err=True)


def _peers(named: str | None) -> Path | None:
    """The peers' Python; None where none was named and the usual one is not there."""
    from magistrate.bench.lineup import PEERS
    from magistrate.errors import SpecError

    python = Path(named).expanduser() if named else PEERS
    if python.is_file():
        return python.absolute()
    if named:
        raise SpecError(
            f"there is no Python at {named}; make one with: make bench-peers, or leave --peers out"
        )
    return None
