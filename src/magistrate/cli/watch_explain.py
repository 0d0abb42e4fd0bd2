"""`magistrate watch explain`: what can be judged in the spans of a file, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from magistrate.cli.exit_codes import print_problems
from magistrate.cli.options import json_option
from magistrate.cli.output import console, print_json

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree as Branch

    from magistrate.datasets import Problem
    from magistrate.datasets.spans.span import Span
    from magistrate.datasets.spans.targets import Target
    from magistrate.datasets.spans.tree import Node, Tree

TRACES, SPANS, LEVELS, DOCUMENTS, KEYS = 20, 60, 12, 10, 12  # the most shown of each on a terminal
WIDTH = 160  # characters per text


class Explained(NamedTuple):
    """A trace with what can be judged in it."""

    id: str
    tree: Tree
    targets: list[Target]


@click.command(
    short_help="Show what can be judged in the spans of FILE.",
    epilog="Example: magistrate watch explain spans.jsonl --trace 4bf92f --kind call",
)
@click.argument("file")
@click.option(
    "--trace", metavar="ID", help="Only the trace with this id, or with an id that starts like this."
)
@click.option(
    "--kind",
    type=click.Choice(["answer", "call"]),
    default="answer",
    show_default=True,
    help="What to judge: the answers of the application, or each call of a model.",
)
@json_option
def explain(file: str, trace: str | None, kind: str, as_json: bool) -> None:
    """Show what can be judged in the spans of FILE: input, context and output, and where each comes from.

    For each span you see how it was used. For an unused span you see its attributes.
    """
    traces, problems = _explained(file, trace, kind)
    if as_json:
        rows = [str(each) for each in problems]
        print_json({"traces": [_as_data(each) for each in traces], "problems": rows})
        return
    terminal = console()
    for each in traces[:TRACES]:
        terminal.print(_drawn(each))
    if len(traces) > TRACES:
        click.echo(f"… and {len(traces) - TRACES:,} more traces; --trace ID shows one, --json all")
    print_problems(problems)


def _explained(file: str, trace: str | None, kind: str) -> tuple[list[Explained], list[Problem]]:
    from magistrate.datasets.files import open_file
    from magistrate.datasets.rows import Problem
    from magistrate.datasets.spans.samples import spans_of_rows
    from magistrate.datasets.spans.targets import targets_of
    from magistrate.datasets.spans.tree import tree_of
    from magistrate.errors import DatasetError, SpecError

    traces: dict[str, list[Span]] = {}
    problems = []
    for found in spans_of_rows(open_file(file).objects()):
        if isinstance(found, Problem):
            problems.append(found)
        else:
            traces.setdefault(found[0].trace_id, []).append(found[0])
    if not traces:
        raise DatasetError(f"{file} contains no spans" + (f": {problems[0]}" if problems else ""))
    chosen = [id for id in traces if trace is None or id.startswith((trace, trace.lower()))]
    if not chosen:
        raise SpecError(
            f"no trace in {file} begins with {trace!r}; it contains {len(traces):,}, the first is "
            f"{next(iter(traces))}"
        )
    trees = {id: tree_of(traces[id]) for id in chosen}
    return [Explained(id, tree, targets_of(tree, (kind,))) for id, tree in trees.items()], problems


def _used(targets: Sequence[Target]) -> dict[str, list[str]]:
    """Return the parts of a sample that each span, by id, was used for."""
    used: dict[str, dict[str, None]] = {}
    for target in targets:
        for part, taken in target.taken.items():
            used.setdefault(taken.span_id, {})[part] = None
        documents = target.sample.metadata.get("documents", ()) if target.sample is not None else ()
        for document in documents:
            used.setdefault(document["span_id"], {})["context"] = None
    return {span_id: list(parts) for span_id, parts in used.items()}


# --- as JSON -----------------------------------------------------------------------------------------


def _as_data(explained: Explained) -> dict[str, Any]:
    from magistrate.datasets.spans.targets import keys_of

    used = _used(explained.targets)
    spans = [
        {
            "span_id": node.span.span_id,
            "parent_id": node.span.parent_id,
            "name": node.span.name,
            "kind": node.step.kind if node.known else None,
            "conventions": node.step.conventions,
            "taken_for": used.get(node.span.span_id, []),
            "remarks": node.step.remarks,
            "keys": keys_of(node.span),
        }
        for node in explained.tree.nodes
    ]
    return {
        "trace_id": explained.id,
        "targets": [_target_data(target) for target in explained.targets],
        "spans": spans,
    }


def _target_data(target: Target) -> dict[str, Any]:
    return {
        "span_id": target.span_id,
        "kind": target.kind,
        "name": target.name,
        "missing": target.missing,
        "why": target.why,
        "taken": {part: asdict(taken) for part, taken in target.taken.items()},
        "metadata": {} if target.sample is None else target.sample.metadata,
    }


# --- on the terminal ---------------------------------------------------------------------------------


def _drawn(explained: Explained) -> Branch:
    from rich.tree import Tree as Branch

    nodes = explained.tree.nodes
    top = Branch(
        _line((f"trace {explained.id}", "bold"), (f"  {len(nodes):,} span{'s' * (len(nodes) != 1)}", "dim"))
    )
    for target in explained.targets:
        _draw_target(top, target)
    if not explained.targets:
        top.add(_line(("nothing to judge: no agent, chain or model call", "yellow")))
    below = top.add(_line(("spans", "dim")))
    used = _used(explained.targets)
    branches: dict[int, Branch] = {}
    for node in nodes[:SPANS]:
        above = branches.get(node.parent, below)
        branches[node.place] = above.add(_span_line(node, used.get(node.span.span_id, [])))
        if node.depth >= LEVELS:
            branches[node.place] = above
    if len(nodes) > SPANS:
        below.add(_line((f"… and {len(nodes) - SPANS:,} more; --json shows all", "dim")))
    return top


def _draw_target(top: Branch, target: Target) -> None:
    style = "green" if target.missing is None else "yellow"
    state = "" if target.missing is None else f"  {target.missing}"
    branch = top.add(
        _line((f"{target.kind} ", style), (target.name or "without a name", "bold"), (state, style))
    )
    for part in ("input", "context", "output"):
        taken = target.taken.get(part)
        if taken is None:
            branch.add(_line((f"{part:<8}", "bold"), ("not found", "yellow")))
            continue
        where = f"{taken.key} of {taken.name or 'a span without a name'} ({taken.convention})"
        line = branch.add(_line((f"{part:<8}", "bold"), (where, "dim")))
        facts = _facts(target) if part == "context" else iter(())
        for text in taken.texts[:DOCUMENTS]:
            line.add(_line((next(facts, ""), "dim"), (text, "")))
        if len(taken.texts) > DOCUMENTS:
            line.add(_line((f"… and {len(taken.texts) - DOCUMENTS:,} more", "dim")))
    branch.add(_line((target.why, "dim" if target.missing is None else "yellow"), width=4 * WIDTH))


def _facts(target: Target) -> Iterator[str]:
    """Yield rank, id and score of each document."""
    for document in target.sample.metadata.get("documents", ()) if target.sample is not None else ():
        told = [f"{name} {document[name]}" for name in ("id", "score", "distance") if name in document]
        yield f"{document['rank']}. {', '.join(told)}{': ' if told else ''}"


def _span_line(node: Node, parts: Sequence[str]) -> Text:
    from magistrate.datasets.spans.targets import keys_of

    what = (
        f"  {node.step.kind} by {', '.join(node.step.conventions)}" if node.known else "  no known convention"
    )
    pieces = [(node.span.name or "without a name", "bold" if parts else ""), (what, "dim")]
    if parts:
        pieces.append((f"  used for {', '.join(parts)}", "green"))
    else:
        keys = keys_of(node.span)
        more = f" and {len(keys) - KEYS} more" if len(keys) > KEYS else ""
        pieces.append((f"  not used; keys: {', '.join(keys[:KEYS]) or 'none'}{more}", "dim"))
    pieces += [(f"  {remark}", "yellow") for remark in node.step.remarks]
    return _line(*pieces, width=4 * WIDTH)


def _line(*pieces: tuple[str, str], width: int = WIDTH) -> Text:
    """Join untrusted, styled pieces of text into one line that fits a terminal."""
    from rich.text import Text

    from magistrate._text import plain

    line = Text()
    for text, style in pieces:
        cut = text if len(text) <= width else text[: width - 1] + "…"
        line.append(plain(cut).replace("\n", " "), style=style)
    return line
