"""A constraint with less room, for a model whose answer did not end in time."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from magistrate.constraints.constraint import Constraint
from magistrate.constraints.grammar import json_grammar
from magistrate.constraints.keywords import LARK, QUOTE
from magistrate.constraints.pointers import walk
from magistrate.errors import ConstraintError

ROOM = (("maxLength", "minLength"), ("maxItems", "minItems"))
FORMED = frozenset({"enum", "const", "pattern", "format", LARK, QUOTE})  # there may be none that is shorter


def shorter(constraint: Constraint) -> Constraint:
    """`constraint` with every text and every list at most half as long, where that may be.

    What fulfils it fulfils `constraint` too, but for branches of `oneOf` that it tells apart no longer: parse
    with `constraint` what was written under this. The same object where nothing can be shorter, and for what
    is no JSON.
    """
    if constraint.kind != "json" or constraint.schema is None:
        return constraint
    schema, core = _halved(constraint.schema), _halved(constraint.core)
    if schema == constraint.schema and core == constraint.core:
        return constraint
    try:
        grammar = json_grammar(core, constraint.texts)
    except ConstraintError:  # nothing so short can be written
        return constraint
    return replace(constraint, schema=schema, core=core, grammar=grammar)


def _halved(schema: Any) -> Any:
    made = deepcopy(schema)
    for node, _ in walk(made):
        if not isinstance(node, dict) or node.keys() & FORMED:
            continue
        for most, least in ROOM:
            if most in node:
                node[most] = max((node[most] + 1) // 2, node.get(least, 0))
    return made
