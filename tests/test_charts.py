"""Pictures that say in words and in points what scikit-learn says in numbers."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_curve

from magistrate.metrics.classification import Estimate, classification
from magistrate.metrics.reliability import reliability
from magistrate.report import charts


def drawn(n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    source = np.random.default_rng(3)
    truth = source.random(n) < 0.4
    return truth, np.clip(truth * 0.3 + source.random(n) * 0.7, 0, 1)


def all_of_them(n: int = 200) -> list[charts.Chart]:
    truth, scores = drawn(n)
    area = classification(truth, scores > 0.5, scores).metrics["auroc"]
    groups = {"hallucinated": scores[truth].tolist(), "faithful": scores[~truth].tolist()}
    return [
        charts.roc(truth, scores, area),
        charts.precision_recall(truth, scores),
        charts.reliability(reliability(truth, scores)),
        charts.scores_by_label(groups),
        charts.shares_over_time("Flagged", TIMES, SHARES, "A share."),
        charts.counts_over_time(
            "Answers", TIMES, {"judged": [3, 0, None, 9], "queue": [0, 1, None, 0]}, "Few."
        ),
    ]


TIMES = ["12:00", "13:00", "14:00", "15:00"]
SHARES = [
    Estimate(0.02, 0.0, 0.04),
    Estimate.none("no data"),
    Estimate(0.0, 0.0, 0.03),
    Estimate(0.01, None, None, "no interval from one trace"),
]


def test_a_picture_has_no_style_no_colour_of_its_own_and_no_address() -> None:
    ids: list[str] = []
    for chart in all_of_them():
        root = ElementTree.fromstring(chart.svg)
        assert root.tag == "svg" and root.get("aria-hidden") == "true"
        assert not {"width", "height"} & set(root.attrib), "the page says how wide"
        for element in root.iter():
            assert "style" not in element.attrib and element.tag not in ("style", "metadata", "script")
            assert element.get("fill", "none") == "none" and element.get("stroke", "none") == "none"
            ids += [element.get("id", "")] if element.get("id") else []
            for reference in re.findall(r"#([\w.-]+)", " ".join(element.attrib.values())):
                assert f'id="{reference}"' in chart.svg
        assert {"fill-ink", "stroke-dim"} <= set(re.findall(r"(?:fill|stroke)-\w+", chart.svg))
    assert len(set(ids)) == len(ids), "pictures stand in one page"
    assert "://" not in "".join(chart.svg for chart in all_of_them())


def test_the_same_numbers_draw_the_same_bytes() -> None:
    assert all_of_them() == all_of_them()


def test_pictures_that_are_drawn_at_once_do_not_mix() -> None:
    alone = all_of_them()
    with ThreadPoolExecutor(8) as threads:
        assert all(found == alone for found in threads.map(lambda _: all_of_them(), range(16)))


def test_an_area_says_where_a_point_of_the_curve_is() -> None:
    truth, scores = drawn(50)
    chart = charts.roc(truth, scores, Estimate(0.8, 0.7, 0.9))
    (path,) = re.findall(r'<path d="([^"]*)"[^>]*class="stroke-accent"', chart.svg)
    found = [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path)]
    false_rate, true_rate, _ = roc_curve(truth, scores, drop_intermediate=False)
    expected = [chart.area.at(x, y) for x, y in zip(false_rate, true_rate, strict=True)]
    assert np.array(found) == pytest.approx(np.array(expected), abs=0.02)


@pytest.mark.parametrize("n", [1, 3, 7, 101, 4_001, 987_654])
def test_every_bar_is_below_the_top_of_its_axis(n: int) -> None:
    chart = charts.scores_by_label({"verdicts": np.full(n, 0.5)})
    assert n <= chart.area.last[1] <= max(5, 2.6 * n)


def test_the_curve_goes_through_the_points_of_scikit_learn() -> None:
    truth, scores = drawn(50)
    chart = charts.roc(truth, scores, Estimate(0.8, 0.7, 0.9))
    assert ".80 [.70, .90]" in chart.words
    (path,) = [
        element.get("d", "")
        for element in ElementTree.fromstring(chart.svg).iter("path")
        if element.get("class") == "stroke-accent"
    ]
    found = np.array([[float(n) for n in pair] for pair in re.findall(r"[ML] (\S+) (\S+)", path)])
    scaled = (found - found[0]) / (found[-1] - found[0])
    false_rate, true_rate, _ = roc_curve(truth, scores, drop_intermediate=False)
    assert scaled == pytest.approx(np.stack([false_rate, true_rate], axis=1), abs=1e-4)


def test_words_hold_the_figures() -> None:
    truth, scores = drawn()
    roc, curve, bins, histogram, *_ = all_of_them()
    mean = average_precision_score(truth, scores)
    assert f"Average precision is {mean:.2f}".replace("0.", ".") in curve.words
    assert f"{truth.mean():.2f}".removeprefix("0") in curve.words
    measured = reliability(truth, scores)
    assert f"calibration error {measured.ece:.2f}".replace("0.", ".") in bins.words
    assert len(bins.points) == len(measured.bins) == 10
    assert f"Hallucinated: {truth.sum()} samples" in histogram.words and roc.title == "ROC"


def test_very_many_points_stay_a_small_picture() -> None:
    assert max(len(chart.svg) for chart in all_of_them(100_000)) < 60_000


def test_one_group_is_a_picture_too() -> None:
    chart = charts.scores_by_label({"verdicts": [0.5]})
    assert "Verdicts: 1 sample, median score .50" in chart.words


def test_a_time_without_data_has_a_dash_and_no_point_and_breaks_the_line() -> None:
    shares = charts.shares_over_time("Flagged", TIMES, SHARES, "A share.")
    root = ElementTree.fromstring(shares.svg)
    texts = [each.text for each in root.iter() if each.tag == "text"]
    circles = [each for each in root.iter() if each.tag == "circle"]
    lines = [each.get("d", "") for each in root.iter() if each.get("stroke-width") == "1.8"]
    assert texts.count("–") == 1 and len(circles) == 3
    assert [each.count("L") for each in lines] == [1], "from the third to the fourth time, none to the second"
    assert [each.get("class") for each in circles] == ["fill-accent", "fill-accent", "stroke-accent"]
    assert shares.points[1] == "13:00: no data" and shares.points[2].startswith("14:00: .00 [.00")
    assert "0.05" in texts and "0.1" not in texts, "the axis ends where all fits below"
    counts = charts.counts_over_time("Answers", TIMES, {"judged": [3, 0, None, 9]}, "Few.")
    assert counts.points == ("12:00: 3 judged", "13:00: 0 judged", "14:00: no data", "15:00: 9 judged")
    assert counts.svg.count(">–</text>") == 1
