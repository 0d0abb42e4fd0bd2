"""Looks for targets in the spans of a stored trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from magistrate import _logging
from magistrate.datasets.spans.targets import Target, targets
from magistrate.store.decisions import Decide
from magistrate.store.traces import Content, Read
from magistrate.watch.events import with_events

_log = _logging.get("watch")


def find(content: Content, wanted: Iterable[str]) -> tuple[Sequence[str], Sequence[Target]]:
    """Return the kinds of targets that were looked for in a trace, of those `wanted`, and the targets.

    If the trace cannot be read, what was found in it before is kept: those kinds are left out. Of each other
    kind there is one target that has failed, so that it is counted.
    """
    kinds = sorted(wanted)
    try:
        return kinds, targets(with_events(content.spans), kinds)
    except Exception as error:  # one bad trace must not stop the others
        told = _logging.error_text(error)
        _log.warning("trace.unreadable", trace=content.trace_id, error=told)
        kinds = [kind for kind in kinds if not (content.known and kind in content.kinds)]
        return kinds, [_unreadable(content, kind, told) for kind in kinds]


def read_again(content: Content, kind: str, decide: Decide) -> Read:
    """Look for a kind of target in a trace that was read for others. It was seen when its spans came."""
    kinds, found = find(content, [kind])
    return Read(content, kinds, found, decide, content.last_at)


def _unreadable(content: Content, kind: str, told: str) -> Target:
    first = next((span for span in content.spans if span.parent_id is None), content.spans[0])
    why = f"the trace cannot be read: {told}"
    return Target(content.trace_id, first.span_id, kind, first.name, None, "failed", why)
