"""Coverage of the JSON Schema Test Suite and of JSONTestSuite by constraints, group by group.

Run: MAGISTRATE_DATA_DIR=DIR .venv/bin/python benchmarks/ledger.py [--write]

DIR holds json_schema_test_suite.jsonl.gz and jsontestsuite_parsing.jsonl.gz. It prints the totals
and the differences from the ledger in tests/ledger.json; --write records it again. A group of the schema
suite is one schema with its instances, and is one of

  supported  masks let through every valid instance and no invalid one
  narrowed   no invalid one, but a valid one is refused; the instances are listed
  refused    an error says what cannot be held to, and where
  wrong      an invalid instance is let through, by the masks (listed) or even by validation

Every text of the parsing suite is compared with the rules of RFC 8259.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, permutations
from pathlib import Path
from typing import Any

from magistrate.constraints import Constraint, check, compile_check, constraint
from magistrate.constraints.lark import follow
from magistrate.errors import ConstraintError, InvalidOutput

LEDGER = Path(__file__).parent.parent / "tests" / "ledger.json"
SPLIT = "draft2020-12"
Entry = dict[str, Any]


def rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of a suite."""
    folder = os.environ.get("MAGISTRATE_DATA_DIR")
    if not folder:
        sys.exit("MAGISTRATE_DATA_DIR is not set: it names the folder with the suites")
    with gzip.open(Path(folder) / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def schema_entries(suite: list[dict[str, Any]]) -> Iterator[tuple[str, Entry]]:
    """Yield one entry for each group of the newest draft, required and optional."""
    ours = [row for row in suite if row["split"] == SPLIT]
    for group, members in groupby(
        ours, key=lambda row: row["id"].rsplit("/", 1)[0].removeprefix(f"{SPLIT}/")
    ):
        tests = list(members)
        yield ("optional/" if tests[0]["optional"] else "") + group.removeprefix("optional/"), judged(tests)


def judged(tests: list[dict[str, Any]]) -> Entry:
    """Return the entry of one schema with its instances."""
    schema = tests[0]["schema"]
    try:
        shape = constraint(schema)
        compile_check(shape)
    except ConstraintError as error:
        keyword = (error.pointer or "#").rsplit("/", 1)[-1]
        return {"status": "refused", "at": keyword, "why": str(error).split(": ", 1)[-1][:80]}
    refused, masked, passed = [], [], []
    for number, test in enumerate(tests):
        text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
        accepted = follow(shape.grammar, text) == "valid"
        try:
            shape.parse(text)
            valid = True
        except InvalidOutput:
            valid = False
        if test["label"] == "valid" and not accepted:
            refused.append(number)
        if test["label"] == "invalid":
            masked += [number] * accepted
            passed += [number] * valid
    if masked or passed:
        return {"status": "wrong", "masks": masked, "validation": passed, "refuses": refused}
    if refused:
        causes = {cause(schema, tests[number]["data"], shape) for number in refused}
        return {"status": "narrowed", "refuses": refused, "cause": "; ".join(sorted(causes))}
    return {"status": "supported"}


def cause(schema: Any, value: Any, shape: Constraint) -> str:
    """Return why a valid instance cannot be written."""
    if "format" in json.dumps(schema):
        return "formats are asserted, and narrower than the standard's"
    if "\\" in json.dumps(schema.get("pattern", "")):
        return "character classes are those that all dialects share"
    spelled = json.dumps(_whole_numbers(value), ensure_ascii=False, separators=(",", ":"))
    if follow(shape.grammar, spelled) == "valid":
        return "numbers are written in one way: 1, not 1.0"
    if isinstance(value, dict) and any(
        follow(shape.grammar, json.dumps(dict(each), ensure_ascii=False, separators=(",", ":"))) == "valid"
        for each in permutations(value.items())
    ):
        return "keys are written in the order declared"
    if isinstance(value, dict):
        return "properties that are not named cannot be written"
    return "numbers beyond what is written exactly" if isinstance(value, int | float) else "another"


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole_numbers(each) for each in value]
    if isinstance(value, dict):
        return {name: _whole_numbers(each) for name, each in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def parsing_entries(suite: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the result of `check` for every text; those not in UTF-8 cannot be represented here."""
    for row in suite:
        try:
            text = base64.b64decode(row["bytes_b64"]).decode("utf-8")
        except UnicodeDecodeError:
            answer = "not UTF-8"
        else:
            answer = "valid" if check(text) == "valid" else "invalid"
        expected = {"accept": "valid", "reject": "invalid"}.get(row["label"])
        right = expected is None or answer == expected or (answer == "not UTF-8" and expected == "invalid")
        yield row["id"], answer if right else f"{answer}, not {expected}"


def made() -> dict[str, dict[str, Any]]:
    """Return the ledger of the current code."""
    return {
        "json_schema_test_suite": dict(schema_entries(rows("json_schema_test_suite"))),
        "jsontestsuite_parsing": dict(parsing_entries(rows("jsontestsuite_parsing"))),
    }


def totals(ledger: dict[str, dict[str, Any]]) -> list[str]:
    """Return lines that summarize the ledger."""
    schemas = ledger["json_schema_test_suite"]
    lines = []
    for kind in ("required", "optional"):
        own = [
            entry for name, entry in schemas.items() if name.startswith("optional/") is (kind == "optional")
        ]
        counts = Counter(entry["status"] for entry in own)
        parts = [f"{counts[each]} {each}" for each in ("supported", "narrowed", "refused", "wrong")]
        lines.append(f"{SPLIT} {kind}: {len(own)} groups: {', '.join(parts)}")
    let = sum(len(entry.get("validation", ())) for entry in schemas.values())
    lines.append(f"invalid instances accepted after validation: {let}")
    answers = Counter(ledger["jsontestsuite_parsing"].values())
    lines.append(f"parsing: {', '.join(f'{n} {answer}' for answer, n in sorted(answers.items()))}")
    return lines


def differences(recorded: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> list[str]:
    """Return every entry that differs from the recorded one."""
    found = []
    for suite in now:
        before = recorded.get(suite, {})
        for name in sorted(before.keys() | now[suite].keys()):
            old, new = before.get(name), now[suite].get(name)
            if old != new:
                found.append(f"{name}: {json.dumps(old)} -> {json.dumps(new)}")
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--write", action="store_true", help="record the ledger anew")
    chosen = words.parse_args()
    now = made()
    recorded = json.loads(LEDGER.read_text(encoding="utf-8")) if LEDGER.exists() else {}
    for line in differences(recorded, now):
        print(line)
    for line in totals(now):
        print(line)
    if chosen.write:
        lines = [
            f" {json.dumps(suite)}: {{\n"
            + ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
            + "\n }"
            for suite, entries in now.items()
        ]
        LEDGER.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
