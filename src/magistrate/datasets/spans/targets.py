"""Find what can be judged in a trace: each answer or each model call, with its input, context and output.

The rules, in order:

- An *answer* is the output of an outermost agent or chain, or else of the last model call below it. In a
  trace without agents and chains it is the output of the last model call. A *call* is any model call. Spans
  below an evaluator or a guardrail are neither.
- The context is the first of these that exists: the output of rerankers, the documents of retrievers, the
  results of tools, tool results in the prompt, the prompt itself. Only spans that ended before the answering
  call began count. The search starts below the call's nearest agent or chain and widens to the next one
  above. Outside the outermost one, only spans that belong to no other agent or chain count.
- The input is that of the agent or chain, else the last user message of the prompt, else the query.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from magistrate.datasets.fields import plain
from magistrate.datasets.spans.conventions import ORDER
from magistrate.datasets.spans.span import Span
from magistrate.datasets.spans.steps import Document, Found, Message
from magistrate.datasets.spans.tree import Node, Tree, tree_of
from magistrate.types import Sample, Turn

ANSWER, CALL = "answer", "call"
NO_OUTPUT, NO_CONTEXT, FAILED = "no_output", "no_context", "failed"
RERANKER, RETRIEVER, TOOLS, PROMPT = "reranker", "retriever", "tools", "prompt"  # kinds of context
MOST_DOCUMENTS = {ANSWER: 1000, CALL: 100}  # per sample, the latest ones; a trace may have many calls
KEYS_NAMED, CALLS_NAMED = 20, 50
NUMBERED = re.compile(r"\.[0-9]+(\..*)?$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Taken:
    """Where a part of a sample was taken from: the span and its name, the convention, the key and the
    texts.

    If several spans gave documents, it is the first of them.
    """

    span_id: str
    name: str
    convention: str
    key: str
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """Something that can be judged, or the reason why it cannot.

    `sample` is None if something is `missing`: `no_output`, `no_context`, or `failed` if the trace cannot
    be read or a span that is used was cut. `taken` has `input`, `context` and `output` as far as they were
    found. `why` is a sentence for people. `attributes` are those of the span, plus those of the trace's root
    under `root.` and of the resource under `resource.`.
    """

    trace_id: str
    span_id: str
    kind: str
    name: str
    sample: Sample | None
    missing: str | None
    why: str
    taken: Mapping[str, Taken] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)


def targets(spans: Sequence[Span], kinds: Collection[str] = (ANSWER,)) -> list[Target]:
    """Return what can be judged in the spans, in the order in which traces and spans began."""
    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, []).append(span)
    return [target for trace in traces.values() for target in targets_of(tree_of(trace), kinds)]


def targets_of(tree: Tree, kinds: Collection[str] = (ANSWER,)) -> list[Target]:
    """Return what can be judged in one trace."""
    reader = _Reader(tree)
    found = reader.answers() if ANSWER in kinds else []
    return [*found, *(reader.calls() if CALL in kinds else ())]


@dataclass(frozen=True, slots=True)
class _Context:
    """The context of an output: documents with the spans they came from, or else messages."""

    source: str
    taken: Taken
    documents: tuple[tuple[Document, Node], ...] = ()
    messages: tuple[Turn, ...] = ()
    cut: bool = False


class _Reader:
    """Finds the targets of one trace. Results that several targets need are computed once."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._nodes = tree.nodes
        self._calls = [node for node in self._nodes if self._is_call(node)]
        self._call_places = [call.place for call in self._calls]
        self._no_ends = all(node.span.end_ns is None for node in self._nodes)
        self._sources = self._by_source()
        self._ended: dict[tuple[str, range, bool], tuple[list[Node], list[int]]] = {}
        self._prefixed: dict[tuple[str, int], dict[str, Any]] = {}

    def _is_call(self, node: Node) -> bool:
        """Return whether a node is a model call, and not a duplicate recorded by a library below one."""
        if node.step.kind != "call" or node.judging:
            return False
        above = self._nodes[node.parent].step if node.parent >= 0 else None
        return above is None or above.kind != "call" or above.answer is None

    # --- which spans are targets -------------------------------------------------------------------

    def answers(self) -> list[Target]:
        """Return the answers of the trace; empty if it contains no agent, chain or model call."""
        busy: list[Node] = []
        idle: list[Node] = []
        for node in self._nodes:
            if node.outermost == node.place and not node.judging:
                works = node.step.kind == "agent" or self._calls_below(node)
                (busy if works else idle).append(node)
        # A chain without a model call is an answer only if the trace has no other.
        groups = (self._of_outer(busy), self._of_loose(), _heard(self._of_outer(idle)))
        with_output = next((group for group in groups if _heard(group)), [])
        return with_output or groups[0] or groups[1] or self._of_outer(idle)

    def calls(self) -> list[Target]:
        """Return every model call of the trace."""
        return [self._target(CALL, call, call) for call in self._calls]

    def _of_outer(self, units: Sequence[Node]) -> list[Target]:
        return [self._target(ANSWER, unit, self._answering(unit)) for unit in units]

    def _of_loose(self) -> list[Target]:
        """Return the last model call that belongs to no agent or chain."""
        loose = [call for call in self._calls if call.outermost < 0]
        last = max(loose, key=lambda call: (call.step.answer is not None, _order(call)), default=None)
        return [] if last is None else [self._target(ANSWER, last, last)]

    def _calls_below(self, node: Node) -> list[Node]:
        start, stop = (bisect_left(self._call_places, edge) for edge in (node.place, node.end))
        return self._calls[start:stop]

    def _answering(self, unit: Node) -> Node | None:
        """Return the model call that gave an agent's or chain's answer: the last with that text, else the
        last.
        """
        below = [call for call in self._calls_below(unit) if call.step.answer is not None]
        answer = unit.step.answer
        said = [] if answer is None else [call for call in below if _says(call, answer.value)]
        return max(said or below, key=_order, default=None)

    # --- one target --------------------------------------------------------------------------------

    def _target(self, kind: str, node: Node, call: Node | None) -> Target:
        answered = node if node.step.answer is not None or call is None else call
        output = answered.step.answer
        context = None if output is None else self._context(node, call, MOST_DOCUMENTS[kind])
        asked = next((each for each in (node, call) if each is not None and each.step.question), None)
        taken: dict[str, Taken] = {}
        if asked is not None and asked.step.question is not None:
            taken["input"] = _taken(asked, asked.step.question)
        elif context is not None and (queried := _queried(context)) is not None:
            taken["input"] = queried
        if context is not None:
            taken["context"] = context.taken
        if output is not None:
            taken["output"] = _taken(answered, output)
        missing = NO_OUTPUT if output is None else NO_CONTEXT if context is None else None
        why = self._why(missing, node, call, answered, context)
        used = [each for each in (answered, asked) if each is not None]
        used += [node for _, node in context.documents] if context is not None else ()
        if missing is None and (cut := next((each for each in used if each.span.is_cut), None)) is not None:
            missing = FAILED
            why = f"{_named(cut.span.name)} exceeded the limits and was cut when it was received"
        span = node.span
        return Target(
            span.trace_id,
            span.span_id,
            kind,
            span.name,
            None if context is None or missing is not None else _sample(node, call, taken, context),
            missing,
            why,
            taken,
            self._attributes(node),
        )

    def _attributes(self, node: Node) -> Mapping[str, Any]:
        root = self._nodes[node.root].span
        above = self._with_prefix("root.", root.attributes)
        resource = self._with_prefix("resource.", node.span.resource)
        return ChainMap(cast(dict[str, Any], node.span.attributes), above, resource)

    def _with_prefix(self, prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values with prefixed names. The result is shared by all targets that need it."""
        key = (prefix, id(values))
        if key not in self._prefixed:
            self._prefixed[key] = {f"{prefix}{name}": value for name, value in values.items()}
        return self._prefixed[key]

    # --- the context -------------------------------------------------------------------------------

    def _context(self, node: Node, call: Node | None, most: int) -> _Context | None:
        scopes = list(self._scopes(node if call is None else call))
        began = self._end(node) if call is None else call.span.start_ns
        retrieved = [name for name in self._sources if name != TOOLS]
        found = self._documents(scopes, began, retrieved, most)
        found = found or self._documents(scopes, began, [TOOLS], most)
        if found is not None:
            return found
        steps = [each for each in (call, node) if each is not None and each.step.prompt]
        for each in steps:
            prompt = cast(Found[tuple[Message, ...]], each.step.prompt)
            results = [result for message in prompt.value for result in message.results if result.strip()]
            if results:
                documents = _unique((Document(text), each) for text in results)
                return _of_documents(TOOLS, documents, prompt)
        for each in steps:
            prompt = cast(Found[tuple[Message, ...]], each.step.prompt)
            turns = tuple(
                Turn(message.role, message.text) for message in prompt.value if message.text.strip()
            )
            # An agent's only message is its input; a model call's only message may also contain documents.
            if (each.step.kind == "call" and turns) or len(turns) > 1:
                texts = tuple(turn.text for turn in turns)
                return _Context(PROMPT, _taken(each, prompt, texts), messages=turns)
        return None

    def _scopes(self, node: Node) -> Iterator[tuple[range, bool]]:
        """Yield the stretches of nodes in which to look for a context, nearest first, and whether only
        spans that belong to no other agent or chain count there.
        """
        for outer in self._outers(node):
            yield range(outer.place, outer.end), False
        for above in self._tree.above(self._nodes[node.outermost] if node.outermost >= 0 else node):
            yield range(above.place, above.end), True
        yield self._tree.siblings[node.root], True

    def _outers(self, node: Node) -> Iterator[Node]:
        place = node.place if node.is_outer else node.outer
        while place >= 0:
            yield self._nodes[place]
            place = self._nodes[place].outer

    def _by_source(self) -> dict[str, list[Node]]:
        """Return the nodes that may give a context, by kind, the preferred kinds first."""
        found: dict[str, list[Node]] = {name: [] for name in (RERANKER, *ORDER, TOOLS)}
        for node in self._nodes:
            if node.judging:
                continue
            if node.step.documents is not None:
                kind = node.step.kind
                found[RERANKER if kind == RERANKER else node.step.documents.convention].append(node)
            elif node.step.kind == "tool" and node.step.result is not None:
                found[TOOLS].append(node)
        return {name: nodes for name, nodes in found.items() if nodes}

    def _documents(
        self, scopes: Sequence[tuple[range, bool]], began: int | None, names: Sequence[str], most: int
    ) -> _Context | None:
        """Return the documents of the nearest scope that has any, of the preferred kind there."""
        for stretch, loose in scopes:
            for name in (name for name in names if name in self._sources):
                nodes, ends = self._in_scope(name, stretch, loose)
                before = len(nodes) if began is None else bisect_right(ends, began)
                if before:
                    return _latest(name, nodes, before, most)
        return None

    def _in_scope(self, name: str, stretch: range, loose: bool) -> tuple[list[Node], list[int]]:
        """Return the nodes of a kind in a stretch of the tree sorted by end time, and these end times."""
        key = (name, stretch, loose)
        if key not in self._ended:
            nodes = self._sources[name]
            start, stop = (
                bisect_left(nodes, edge, key=lambda node: node.place)
                for edge in (stretch.start, stretch.stop)
            )
            ended = [
                (end, node.place, node)
                for node in nodes[start:stop]
                if (end := self._end(node)) is not None and not (loose and node.outermost >= 0)
            ]
            ended.sort(key=lambda each: each[:2])
            self._ended[key] = ([node for *_, node in ended], [end for end, *_ in ended])
        return self._ended[key]

    def _end(self, node: Node) -> int | None:
        """Return when a span ended; if no span of the trace has an end, as in some files, when it began."""
        return node.span.start_ns if self._no_ends else node.span.end_ns

    @cached_property
    def _remarks(self) -> dict[str, None]:
        return dict.fromkeys(remark for each in self._nodes for remark in each.step.remarks)

    # --- why ---------------------------------------------------------------------------------------

    def _why(
        self, missing: str | None, node: Node, call: Node | None, answered: Node, context: _Context | None
    ) -> str:
        """Return a sentence on what was found, or on what is missing and what was there instead."""
        if missing is None and context is not None:
            where = _named(context.taken.name)
            what = {
                PROMPT: f"the {len(context.messages)} prompt messages of {where}",
                TOOLS: f"{_counted(len(context.documents), 'result')} of tools, first {where}",
            }.get(context.source, f"{_counted(len(context.documents), 'document')}, first of {where}")
            cut = ", only those found last" if context.cut else ""
            return f"The output is from {_named(answered.span.name)}; the context is {what}{cut}."
        looked = [each for each in (node, call) if each is not None]
        if missing == NO_OUTPUT and node is not call:
            looked = [node, *(each for each in self._calls_below(node) if each is not node)][:CALLS_NAMED]
        remarks = dict.fromkeys(remark for each in looked for remark in each.step.remarks)
        keys = dict.fromkeys(name for each in looked for name in keys_of(each.span))
        if missing == NO_CONTEXT:
            told = "No documents, tool results or prompt were found that ended before the answer began"
            late = sum(len(nodes) for nodes in self._sources.values())
            remarks |= self._remarks
            if late:
                told += (
                    f" ({_counted(late, 'span')} of the trace with some ended later or belong to another "
                    "answer)"
                )
        elif any(choice.calls for each in looked for choice in _choices(each)):
            told = f"{_named(node.span.name)} only calls tools"
        else:
            told = f"No answer text was recorded for {_named(node.span.name)}"
            if not remarks and "genai" in node.step.conventions:
                told += "; OpenTelemetry instrumentations only record content if configured to"
        noted = "".join(f"; {plain(remark, 200)}" for remark in list(remarks)[:5])
        return f"{told}{noted}; keys seen: {_listed(list(keys))}."


def _heard(targets: Sequence[Target]) -> list[Target]:
    return [target for target in targets if target.missing != NO_OUTPUT]


def keys_of(span: Span) -> list[str]:
    """Return the names of a span's attributes, with numbered ones merged, and of its events.

    >>> keys_of(Span("t", "s", attributes={"a.0.b": 1, "a.1.b": 2, "c": 3}))
    ['a.…', 'c']
    """
    names = (NUMBERED.sub(".…", str(name)) for name in span.attributes)
    return list(dict.fromkeys([*names, *(f"event {each.name}" for each in span.events)]))


def _order(node: Node) -> tuple[int, int]:
    return node.span.start_ns, node.place


def _says(call: Node, text: str) -> bool:
    answer = call.step.answer
    return answer is not None and answer.value.strip() == text.strip()


def _choices(node: Node) -> tuple[Message, ...]:
    return () if node.step.choices is None else node.step.choices.value


def _taken(node: Node, found: Found[Any], texts: tuple[str, ...] | None = None) -> Taken:
    held = (found.value,) if texts is None else texts
    return Taken(node.span.span_id, node.span.name, found.convention, found.key, held)


def _latest(name: str, nodes: Sequence[Node], before: int, most: int) -> _Context:
    """Return the documents of the first `before` nodes, or of the last of them that give `most` documents."""
    chosen: list[Node] = []
    count = 0
    for node in reversed(nodes[max(0, before - most) : before]):
        if count >= most:
            break
        chosen.append(node)
        count += len(_held(node))
    found = _unique((document, node) for node in reversed(chosen) for document in _held(node))
    step = chosen[-1].step
    key = step.documents or cast(Found[Any], step.result)
    source = name if name in (RERANKER, TOOLS) else RETRIEVER
    return _of_documents(source, found, key, cut=len(chosen) < before)


def _held(node: Node) -> tuple[Document, ...]:
    step = node.step
    if step.documents is not None:
        return step.documents.value
    return () if step.result is None else (Document(step.result.value),)


def _unique(found: Iterator[tuple[Document, Node]]) -> tuple[tuple[Document, Node], ...]:
    """Return each text once, at its first occurrence."""
    kept: dict[str, tuple[Document, Node]] = {}
    for document, node in found:
        kept.setdefault(document.text, (document, node))
    return tuple(kept.values())


def _of_documents(
    source: str, documents: tuple[tuple[Document, Node], ...], found: Found[Any], *, cut: bool = False
) -> _Context:
    texts = tuple(document.text for document, _ in documents)
    return _Context(source, _taken(documents[0][1], found, texts), documents, cut=cut)


def _queried(context: _Context) -> Taken | None:
    """Return the query, if the context was retrieved."""
    for _, node in context.documents:
        if node.step.query is not None:
            return _taken(node, node.step.query)
    return None


def _sample(node: Node, call: Node | None, taken: Mapping[str, Taken], context: _Context) -> Sample:
    span = node.span
    asked = taken.get("input")
    return Sample(
        id=f"{span.trace_id}:{span.span_id}",
        input=None if asked is None else asked.texts[0],
        output=taken["output"].texts[0],
        context=tuple(document.text for document, _ in context.documents),
        messages=context.messages,
        metadata=metadata_of(node, call) | _context_facts(context),
    )


def metadata_of(node: Node, call: Node | None) -> dict[str, Any]:
    """Return the origin of a sample: ids, the span's name, the session, and the model that answered."""
    steps = [each.step for each in (call, node) if each is not None]
    told = {
        "trace_id": node.span.trace_id,
        "span_id": node.span.span_id,
        "span_name": node.span.name,
        "session_id": next((step.session for step in reversed(steps) if step.session), ""),
        "model": next((step.model for step in steps if step.model), ""),
        "response_id": next((step.response_id for step in steps if step.response_id), ""),
    }
    facts: dict[str, Any] = {name: value for name, value in told.items() if value}
    choices = 0 if call is None else len(_choices(call))
    return facts | ({"n_choices": choices} if choices > 1 else {})


def _context_facts(context: _Context) -> dict[str, Any]:
    facts: dict[str, Any] = {"context_source": context.source}
    if context.documents:
        facts["n_documents"] = len(context.documents)
        facts["documents"] = [
            {
                name: value
                for name, value in (
                    ("rank", rank),
                    ("id", document.id),
                    ("score", document.score),
                    ("distance", document.distance),
                    ("span_id", node.span.span_id),
                )
                if value is not None
            }
            for rank, (document, node) in enumerate(context.documents, 1)
        ]
    return facts


def _named(name: str) -> str:
    return plain(repr(name)) if name else "a span without a name"


def _counted(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def _listed(keys: Sequence[str]) -> str:
    shown = ", ".join(plain(key) for key in keys[:KEYS_NAMED]) or "none"
    return f"{shown} and {len(keys) - KEYS_NAMED} more" if len(keys) > KEYS_NAMED else shown
