"""`magistrate judges`: who can judge, how well each was measured to; look at one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from magistrate._text import decimal
from magistrate.cli.judges_own import new, try_judge
from magistrate.cli.judges_shown import figures_of, grid, shown
from magistrate.cli.options import console, json_option, print_json
from magistrate.cli.tables import is_pipe, print_table
from magistrate.report.judges import facts, inputs_of, listed, milliseconds, option_words

if TYPE_CHECKING:
    from collections.abc import Mapping

EXAMPLE = "Example: magistrate judges; magistrate judges auto; magistrate run quickstart --judge novelty"
FIGURES = ("set", "model", "n", "AUROC [95 %]", "bal. acc. [95 %]", "ms")
READING = (
    "AUROC: the mean over labelled sets that the judge was not trained on, of n samples in all; .50 is a "
    "coin. One that was trained here is measured by judges trained like it without the set's family. Models "
    "are asked on {model}. ms: the median time of a sample. –: not measured. Options, and the figures of "
    "each set: magistrate judges NAME."
)
UNMEASURED = "Not measured as it is: no figure of how well it judges comes with the package."
FOLDS = "For {n} the figures are of judges trained like this one without any set of that family."


class OneOrCommand(click.Group):
    """A name that is no command is that of a judge, which is shown."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-"):
            return "show", self.commands["show"], args
        return super().resolve_command(context, args)


@click.group(cls=OneOrCommand, invoke_without_command=True, epilog=EXAMPLE)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the judges that are installed, with how well each was measured to judge; NAME shows one.

    Options are set as NAME:option=value,option=value. A judge of your own is a YAML file: `new` writes one,
    `try` runs it on one sample. Wherever a judge is named, its file can be.
    """
    if context.invoked_subcommand is None:
        _list(as_json)
    elif as_json:  # said before the name it means the same as behind it
        context.default_map = {context.invoked_subcommand: {"as_json": True}}


command.add_command(new)
command.add_command(try_judge)


# --- all of them --------------------------------------------------------------------------------


@command.command("list", epilog="Example: magistrate judges list --json")
@json_option
def list_judges(as_json: bool) -> None:
    """List the judges that are installed. Options are shown as they are unless set."""
    _list(as_json)


def _list(as_json: bool) -> None:
    from rich.text import Text

    from magistrate.engines.catalog import default
    from magistrate.judges.registry import DEFAULT_JUDGE, judge, judge_entries

    names = sorted(judge_entries(), key=lambda name: (name != DEFAULT_JUDGE, name))
    described = [listed(name, judge) for name in names]
    if as_json:
        print_json(described)
        return
    model = default().name
    print_table(
        ["judge", "AUROC", "n", "ms", "what it does", "inputs", "needs", "options"],
        [_row(each, model) for each in described],
        wrapped={"what it does": 30, "inputs": 12, "needs": 12, "options": 20},
        spare=("options", "needs", "inputs"),
    )
    if not is_pipe(terminal := console()):
        terminal.print(Text(READING.format(model=model), style="dim"))


def _row(each: Mapping[str, Any], model: str) -> list[str]:
    from magistrate.engines.none import NO_MODEL
    from magistrate.judges.quality import Measured, summaries

    if "error" in each:
        return [each["name"], "", "", "", f"cannot be used: {each['error']}", "", "", ""]
    found = summaries([Measured(**one) for one in each["measured"]])
    of = next((one for one in found if one.model in (model, NO_MODEL)), None)
    auroc, n, ms = ("–", "–", "–") if of is None else (decimal(of.auroc), str(of.n), milliseconds(of.ms))
    options = " ".join(option_words(name, value) for name, value in each["options"].items())
    name = f"{each['name']}@{each['version']}"
    return [name, auroc, n, ms, each["summary"], inputs_of(each), ", ".join(each["needs"]), options]


# --- one of them --------------------------------------------------------------------------------


@command.command(
    epilog="Example: magistrate judges show faithfulness; magistrate judges show tone.yaml --json"
)
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show what the judge NAME says, reads and needs, how it is set, and how well it was measured to judge.

    NAME is one of `magistrate judges`, perhaps with options, or a YAML file. `show` can be left out.
    """
    from rich.text import Text

    from magistrate.judges import registry
    from magistrate.judges.quality import measured
    from magistrate.report.formatting import plain

    judge = registry.judge(name)
    described = facts(judge)
    if as_json:
        print_json(described)
        return
    terminal = console()
    head = f"{plain(described['name'])}@{described['version']}"
    terminal.print(Text.assemble((head, "bold cyan"), f"  {plain(described['summary'])}"))
    terminal.print()
    terminal.print(grid(shown(judge, described)))
    terminal.print()
    found = measured(judge)
    if not found:
        terminal.print(Text(UNMEASURED, style="dim"))
        return
    print_table(FIGURES, figures_of(found), spare=("bal. acc. [95 %]",))
    if stood := [each.set for each in found if each.folds]:
        terminal.print(Text(FOLDS.format(n=", ".join(dict.fromkeys(stood))), style="dim"))
