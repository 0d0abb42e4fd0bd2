"""What of the public suites can be written and checked is recorded: nothing of it is lost unnoticed."""

from __future__ import annotations

import json
import os
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

LEDGER = Path(__file__).with_name("ledger.json")
SCRIPT = Path(__file__).parent.parent / "benchmarks" / "ledger.py"


def recorded() -> dict[str, dict[str, Any]]:
    ledger: dict[str, dict[str, Any]] = json.loads(LEDGER.read_text(encoding="utf-8"))
    return ledger


def test_nothing_invalid_is_let_through_and_every_refusal_has_its_reason() -> None:
    for name, entry in recorded()["json_schema_test_suite"].items():
        assert entry["status"] in ("supported", "narrowed", "refused"), name
        if entry["status"] == "refused":
            assert entry["why"], name
        if entry["status"] == "narrowed":
            assert entry["refuses"] and entry["cause"] not in ("", "another"), name


def test_every_text_of_the_parsing_suite_is_answered_rightly() -> None:
    answers = Counter(recorded()["jsontestsuite_parsing"].values())
    assert set(answers) == {"valid", "invalid", "not UTF-8"} and sum(answers.values()) == 318


@pytest.mark.full
def test_the_ledger_is_what_this_code_does() -> None:
    """A regression fails here; so does an improvement, until benchmarks/ledger.py --write records it."""
    if not os.environ.get("MAGISTRATE_DATA_DIR"):
        print("MAGISTRATE_DATA_DIR is not set: the suites are not read")
        return
    script = runpy.run_path(str(SCRIPT))
    assert script["differences"](recorded(), script["made"]()) == []
