"""A trace as a tree of spans, each with its parsed step.

Nodes are stored in depth-first order, children by start time, so everything below a node is one contiguous
stretch of the list. No function here scans the trace once per span.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from magistrate.datasets.spans.conventions import read
from magistrate.datasets.spans.span import Span
from magistrate.datasets.spans.steps import Step

OUTER = ("agent", "chain")
JUDGING = ("evaluator", "guardrail")
NOTHING = Step("other")
MOST_LEVELS = 64  # limits the cost of very deep traces


@dataclass(slots=True)
class Node:
    """A span in its tree. Places are indices into the tree's list, -1 for none.

    `end` is the index after the last node below. `outer` is the nearest agent or chain above; `outermost`
    is the topmost one, possibly the node itself. Of nested agents and chains, only the first `MOST_LEVELS`
    count. `shallow` is the nearest node above that is less than `MOST_LEVELS` deep. `judging` is true if
    the node or one above it is an evaluator or a guardrail.
    """

    span: Span
    step: Step
    known: bool
    place: int
    root: int
    parent: int = -1
    depth: int = 0
    shallow: int = -1
    levels: int = 0
    outer: int = -1
    outermost: int = -1
    judging: bool = False
    end: int = -1

    @property
    def is_outer(self) -> bool:
        """Whether the node is an agent or a chain, inside which other spans work for one answer."""
        return self.step.kind in OUTER and self.levels <= MOST_LEVELS


@dataclass(slots=True)
class Tree:
    """The nodes of one trace. `siblings` maps a root to the stretch of nodes with the same parent id."""

    nodes: list[Node] = field(default_factory=list)
    siblings: dict[int, range] = field(default_factory=dict)

    def above(self, node: Node) -> Iterator[Node]:
        """Yield the nodes above one that are less than `MOST_LEVELS` deep, from the nearest up."""
        place = node.shallow
        while place >= 0:
            yield self.nodes[place]
            place = self.nodes[place].parent


def tree_of(spans: Sequence[Span]) -> Tree:
    """Build the tree of one trace.

    If a span occurs twice, the last one counts. A span whose parent is missing is a root. So is the first
    span of a cycle of parents.
    """
    by_id = {span.span_id or f"#{at}": span for at, span in enumerate(spans)}
    ordered = sorted(by_id, key=lambda key: by_id[key].start_ns)
    children: dict[str | None, list[str]] = {}
    tops: dict[str | None, list[str]] = {}
    for key in ordered:
        parent = by_id[key].parent_id
        (children if parent in by_id else tops).setdefault(parent, []).append(key)
    tree = Tree()
    seen: set[str] = set()
    for roots in tops.values():
        start = len(tree.nodes)
        for root in roots:
            _walk(tree, root, by_id, children, seen)
        group = range(start, len(tree.nodes))
        tree.siblings |= {node.place: group for node in tree.nodes[start:] if node.parent < 0}
    for key in ordered:  # the remaining spans form cycles
        if key not in seen:
            start = len(tree.nodes)
            _walk(tree, key, by_id, children, seen)
            tree.siblings[start] = range(start, len(tree.nodes))
    return tree


def _walk(
    tree: Tree, root: str, by_id: dict[str, Span], children: dict[str | None, list[str]], seen: set[str]
) -> None:
    nodes = tree.nodes
    waiting = [(root, -1)]
    above: list[Node] = []
    while waiting:
        key, parent = waiting.pop()
        if key in seen:
            continue
        seen.add(key)
        while above and above[-1].place != parent:
            above.pop().end = len(nodes)
        node = _node(by_id[key], len(nodes), above[-1] if above else None)
        nodes.append(node)
        above.append(node)
        waiting += [(child, node.place) for child in reversed(children.get(key, ()))]
    for node in above:
        node.end = len(nodes)


def _node(span: Span, place: int, above: Node | None) -> Node:
    found = read(span)
    step = found or NOTHING
    node = Node(span, step, found is not None, place, root=place)
    if above is not None:
        node.parent, node.root, node.depth = above.place, above.root, above.depth + 1
        node.shallow = above.place if above.depth < MOST_LEVELS else above.shallow
        node.outer = above.place if above.is_outer else above.outer
        node.outermost, node.levels, node.judging = above.outermost, above.levels, above.judging
    node.levels += step.kind in OUTER
    if node.outermost < 0 and node.is_outer:
        node.outermost = place
    node.judging = node.judging or step.kind in JUDGING
    return node
