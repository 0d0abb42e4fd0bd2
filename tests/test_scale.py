"""The estimate of a large job: linear in rows, by the user's own prices, and never a number for nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from magistrate.api.scale import Prices, estimate_scale
from magistrate.datasets import load
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import EngineError, SpecError
from magistrate.report.formatting import as_text
from magistrate.report.scale import ScaleEstimate, notes, render, without_verdict
from terminal import Call

MACHINES = """
as_of: 2026-11-01
machines:
  - {name: small, price_per_hour: 0.5}
  - {name: large, price_per_hour: 3, speed: 10}
tokens:
  script: {input: 2, output: 10}
"""
ROWS = [
    {"id": str(number), "output": "Bern has 9 bears. " * (number % 7 + 1), "context": "Bern has bears."}
    for number in range(40)
]


@pytest.fixture
def machines(tmp_path: Path) -> Path:
    (tmp_path / "machines.yaml").write_text(MACHINES)
    return tmp_path / "machines.yaml"


def test_hours_and_dollars_are_the_measured_rate_times_rows_and_prices(machines: Path) -> None:
    engine = ScriptedEngine(lambda prompt: {"faithful": 0.9, "hallucinated": 0.1})
    found = estimate_scale(
        load(ROWS), ["novelty", "faithfulness"], Prices.read(machines), model=engine, rows=10_000, measure=20
    )
    code, model = found.judges
    assert (found.rows, code.rows, model.verdicts) == (10_000, 20, 20)
    assert found.token_dollars(code).value == 0 and code.price is None  # type: ignore[union-attr]
    spent = (model.tokens_in.value or 0) * 2 + (model.tokens_out.value or 0) * 10
    assert spent > 0
    assert found.token_dollars(model).value == pytest.approx(spent * 10_000 / 1e6)  # type: ignore[union-attr]
    for judge in found.judges:
        small, large = (found.plan(judge, machine) for machine in found.machines)
        hours = small.hours.value or 0
        assert hours == pytest.approx(judge.seconds / 20 * 10_000 / 3600)
        assert large.hours.value == pytest.approx(hours / 10)
        assert small.dollars.value == pytest.approx(0.5 * hours)
        assert large.dollars.value == pytest.approx(0.3 * hours)
        assert small.hours.low is not None and small.hours.high is not None
        soon = ScaleEstimate(**{**fields(found), "within": small.hours.high / 2.5})
        assert soon.plan(judge, found.machines[0]).machines == 3
    told = as_text(lambda console: render(found, console))
    assert "tokens of script at $2 in, $10 out per million tokens (as of 2026-11-01)" in " ".join(
        told.split()
    )
    json.dumps(found.to_dict(), allow_nan=False)


def fields(found: ScaleEstimate) -> dict[str, object]:
    return {name: getattr(found, name) for name in ScaleEstimate.__slots__}


def test_what_is_not_known_is_said_and_is_not_zero(machines: Path) -> None:
    machines.write_text(MACHINES.replace("script:", "another:"))
    prices = Prices.read(machines)
    broken = ScriptedEngine(lambda prompt: EngineError("the card caught fire"))
    found = estimate_scale(load(ROWS[:3]), "faithfulness", prices, model=broken)
    (judge,) = found.judges
    assert found.rows == 3 and found.token_dollars(judge) is None
    assert (judge.verdicts, judge.failures) == (0, 3) and judge.seconds_per_row.low is None
    told = " ".join(notes(found))
    assert "no price in machines.yaml: unknown, not 0" in told and "failed on 3 of them" in told
    assert without_verdict(found.judges) == "no verdict of faithfulness on the measured rows"


def test_a_mistake_in_the_file_of_machines_is_named_with_its_line(machines: Path) -> None:
    for old, new, message in (
        ("price_per_hour: 0.5", "price_per_hour: -1", r"line 4.*must be at least 0"),
        ("speed: 10", "speeed: 10", r"line 5.*speeed"),
        ("as_of: 2026-11-01", "as_of: soon", "line 2"),
        ("large", "small", "two machines have the same name"),
        ("as_of: 2026-11-01", "", "as_of"),
    ):
        machines.write_text(MACHINES.replace(old, new))
        with pytest.raises(SpecError, match=message):
            Prices.read(machines)


def test_the_command_judges_some_rows_and_prints_how_it_extrapolates(
    call: Call, machines: Path, tmp_path: Path
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    words = ("estimate", str(data), "--judge", "novelty", "--machine", str(machines), "--rows", "10000000")
    done = call(*words, "--measure", "10")
    assert done.code == 0, done.err
    told = " ".join(done.out.split())
    assert "10,000,000 rows" in told and "Prices of machines.yaml are of 2026-11-01." in told
    done = call(*words, "--measure", "10", "--json")
    assert json.loads(done.out)["judges"]["novelty"]["measured"]["rows"] == 10
