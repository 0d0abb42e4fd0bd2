"""`python -m benchmarks.watch`: it prints its figures, and every answer that it sent was judged."""

from __future__ import annotations

import re

import pytest

from benchmarks import watch


@pytest.mark.full
def test_all_figures_are_printed_and_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    watch.main(
        ["--minutes", "0.0333", "--rate", "5", "--spans", "600", "--answers", "5", "--judge", "novelty"]
    )
    told = capsys.readouterr().out
    assert float(re.findall(r"ingested +([\d,]+) spans", told)[0].replace(",", "")) > 0
    assert float(re.findall(r"judged by novelty +([\d.,]+) answers", told)[0].replace(",", "")) > 0
    assert "10 of 10 judged by novelty, lag " in told
    assert (
        len(re.findall(r"\d\.\d\d", told.partition("by quarters of the time: ")[2].partition(" s\n")[0])) == 4
    )
    assert re.search(r"memory of the server: \S+ (MB|told) after the first verdict, .*meanwhile", told)


def test_phoenix_is_compared_within_each_round() -> None:
    found = watch.Ingested((100, 300, 200), (9000, 9000, 9000), (50, 100, 50))
    told = "\n".join(watch.ingested_lines(found))
    assert re.search(r"ingested by Phoenix +50 spans a second, accepted before at 9,000 a second", told)
    assert "stores 3.0 times as many spans a second as Phoenix (2.0 to 4.0 in 3 rounds)" in told
