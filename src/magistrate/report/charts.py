"""Draw charts as SVG: how a judge's scores relate to the truth, and what changes over time.

The elements have classes (`fill-…`, `stroke-…`) and no inline styles. The page's style sheet gives them
their colours, so they work under a policy that forbids inline styles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from magistrate.metrics.classification import Estimate
from magistrate.metrics.distributions import roc_curve
from magistrate.report.formatting import decimal, interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from magistrate.metrics.reliability import Reliability
    from magistrate.report.counts import JudgeScores
    from magistrate.report.values import JudgeReport

WIDTH, HEIGHT = 302.4, 237.6
VIEW_BOX = f"0 0 {WIDTH:g} {HEIGHT:g}"
LEFT, RIGHT, TOP, BOTTOM = 40.8, 291.8, 16.6, 200.8  # the plot's edges in the image
MARGIN = 0.02  # beyond 0 and 1, so that a line at the edge is fully visible
TICKS = ((0.0, "0.00"), (0.25, "0.25"), (0.5, "0.50"), (0.75, "0.75"), (1.0, "1.00"))
STEPS = 400  # drawing resolution of a curve along each axis; finer steps would not be visible
BINS = 20

TOPS = (0.05, 0.1, 0.25, 0.5, 1.0)  # possible ends of an axis of shares
TIMES = 4  # maximum number of time labels on an axis

LINE = 'fill="none" class="stroke-accent" stroke-width="1.8"'
CHANCE = 'fill="none" class="stroke-dim" stroke-width="1" stroke-dasharray="2 3"'
BARS = (
    'class="fill-accent" fill-opacity="0.45"',
    'fill="none" class="stroke-second" stroke-width="1.6" stroke-dasharray="6.4 2.4"',
)

STACK = (
    'class="fill-accent"',
    'class="fill-second"',
    'class="fill-ink" fill-opacity="0.55"',
    'class="fill-dim" fill-opacity="0.35"',
)


@dataclass(frozen=True, slots=True)
class Area:
    """The part of an image inside its axes.

    `x` and `y` are the image coordinates of the values `first` and `last`, horizontally and vertically.
    """

    x: tuple[float, float]
    y: tuple[float, float]
    first: tuple[float, float]
    last: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the image coordinates of a point.

        >>> Area((40.0, 300.0), (200.0, 20.0), (0.0, 0.0), (1.0, 1.0)).at(0.5, 1.0)
        (170.0, 20.0)
        """
        across, up = (
            start + (value - first) / (last - first) * (end - start)
            for value, (start, end), first, last in zip(
                (x, y), (self.x, self.y), self.first, self.last, strict=True
            )
        )
        return round(across, 2), round(up, 2)


UNIT = Area((LEFT, RIGHT), (BOTTOM, TOP), (-MARGIN, -MARGIN), (1 + MARGIN, 1 + MARGIN))


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: its title, a description in words, and an `<svg>` element.

    `area` maps values to image coordinates. `points` describes its points in words, if they are few.
    """

    title: str
    words: str
    svg: str
    area: Area
    points: tuple[str, ...] = ()


def charts_of(scores: JudgeScores, judge: JudgeReport) -> tuple[Chart, ...]:
    """Return all charts that a judge's scores allow.

    Curves need both labels, reliability needs one. Without labels, or if the run does not state how scores
    are read, there is only the histogram. All but the histogram use 1 - score if a low score means
    hallucinated.
    """
    from magistrate.metrics.reliability import reliability as measured

    groups = scores.groups
    if not groups:
        return (scores_by_label({"verdicts": scores.unlabelled}),) if scores.unlabelled.size else ()
    if judge.scoring is None:
        return (scores_by_label(groups),)
    truth, values = scores.measured(judge.turned)
    found = [scores_by_label(groups), reliability(judge.calibration or measured(truth, values))]
    if len(groups) > 1 and judge.result is not None:
        found += [roc(truth, values, judge.result.metrics["auroc"]), precision_recall(truth, values)]
    return tuple(found)


def roc(truth: NDArray[np.bool_], scores: NDArray[np.float64], area: Estimate) -> Chart:
    """Draw the ROC curve: the true positive rate (hallucinated) against the false positive rate.

    `truth` bool `[n]` with both values, `scores` float `[n]` in [0, 1].
    """
    false_rate, true_rate, _ = roc_curve(truth, scores)
    words = (
        f"The curve passes from all faithful to all hallucinated. The area under it, AUROC, is "
        f"{decimal(area.value)} {interval(area)}; the dotted line is chance, .50."
    )
    parts = [
        _path(UNIT, [(0, 0), (1, 1)], CHANCE),
        _path(UNIT, _visible_points(false_rate, true_rate), LINE),
    ]
    names = ("faithful, but flagged", "hallucinated, and flagged")
    return Chart("ROC", words, _svg(UNIT, names, parts), UNIT)


def precision_recall(truth: NDArray[np.bool_], scores: NDArray[np.float64]) -> Chart:
    """Draw the precision-recall curve for hallucinated.

    The arguments are those of `roc`.
    """
    import numpy as np

    false_rate, recall, _ = roc_curve(truth, scores)
    hits, alarms = recall[1:] * truth.sum(), false_rate[1:] * (~truth).sum()
    precision = hits / (hits + alarms)
    base, mean = float(truth.mean()), float((np.diff(recall) * precision).sum())
    words = (
        f"Average precision is {decimal(mean)}; the dotted line is the share of hallucinated samples, "
        f"{decimal(base)}, which is the precision of flagging everything."
    )
    # One step per threshold: its precision applies from the previous recall to its own.
    steps = np.stack([recall[:-1], recall[1:]], axis=1).ravel(), np.repeat(precision, 2)
    parts = [
        _path(UNIT, [(0, base), (1, base)], CHANCE),
        _path(UNIT, _visible_points(*steps), LINE),
    ]
    return Chart("Precision and recall", words, _svg(UNIT, ("recall", "precision"), parts), UNIT)


def reliability(found: Reliability) -> Chart:
    """Draw the true share of hallucinated against the score, by bin, with 95 % intervals."""
    parts = [_path(UNIT, [(0, 0), (1, 1)], CHANCE)]
    for each in found.bins:
        share, x = each.observed, each.mean_score
        if share.low is not None and share.high is not None:
            look = 'class="stroke-accent" stroke-width="1" fill="none"'
            parts.append(_path(UNIT, [(x, share.low), (x, share.high)], look))
        across, up = UNIT.at(x, share.value or 0.0)
        parts.append(f'<circle cx="{across:g}" cy="{up:g}" r="2.3" class="fill-accent"/>')
    points = tuple(
        f"{each.n:,} scored {decimal(each.mean_score)} on average: {decimal(each.observed.value)} "
        f"{interval(each.observed)} hallucinated"
        for each in found.bins
    )
    words = (
        "On the dotted line, the score equals the share of hallucinated outputs. Each point has about "
        f"equally many samples, with its 95 % interval. Expected calibration error {decimal(found.ece)} "
        f"({decimal(found.ece_by_chance)} by chance), Brier score {decimal(found.brier)}."
    )
    names = ("mean score", "true share of hallucinated")
    return Chart("Reliability", words, _svg(UNIT, names, parts), UNIT, points)


def scores_by_label(groups: Mapping[str, ArrayLike]) -> Chart:
    """Draw a histogram of the scores of one or two groups of samples, by group name."""
    import numpy as np

    edges = np.linspace(0, 1, BINS + 1)
    values = {label: np.asarray(each, dtype=np.float64) for label, each in groups.items()}
    counts = [np.histogram(each, edges)[0] for each in values.values()]
    most = _round_up(max(int(count.max()) for count in counts))
    area = Area((LEFT, RIGHT), (BOTTOM, TOP), (0.0, 0.0), (1.0, most * (1 + MARGIN)))
    parts = []
    for number, (label, count) in enumerate(zip(values, counts, strict=True)):
        tops = zip(np.repeat(edges, 2).tolist(), [0, *np.repeat(count, 2).tolist(), 0], strict=True)
        parts.append(_path(area, list(tops), BARS[number]))
        x = LEFT + 2 + 120 * number
        parts.append(f'<rect x="{x:g}" y="4" width="13.6" height="6" {BARS[number]}/>')
        parts.append(_text(x + 18, 10, label))
    told = "; ".join(
        f"{label}: {each.size:,} {'sample' if each.size == 1 else 'samples'}, "
        f"median score {decimal(float(np.median(each)))}"
        for label, each in values.items()
    )
    words = f"Number of samples by score. {told[:1].upper()}{told[1:]}."
    y_ticks = [(most * part // 4, _short(most * part // 4)) for part in range(5)]
    return Chart("Scores", words, _svg(area, ("score", "samples"), parts, y_ticks), area)


# --- over time --------------------------------------------------------------------------------------


def shares_over_time(title: str, times: Sequence[str], shares: Sequence[Estimate], words: str) -> Chart:
    """Draw a share over several periods with its 95 % interval. A period without one has a gap and a dash.

    A point without a known interval is hollow. The axis ends at the smallest of `TOPS` that fits all.
    """
    most = max((each.high or each.value or 0.0 for each in shares), default=0.0)
    top = next(each for each in TOPS if most <= each or each == TOPS[-1])
    area = Area((LEFT, RIGHT), (BOTTOM, TOP), (0.0, -MARGIN * top), (len(times), top * (1 + MARGIN)))
    parts, line = list[str](), list[tuple[float, float]]()
    for at, share in enumerate(shares):
        x = at + 0.5
        if share.value is None:
            across, _ = area.at(x, 0)
            parts.append(_text(across, BOTTOM - 4, "–", "middle"))
            line = _broken(area, line, parts)
            continue
        line.append((x, share.value))
        if share.low is not None and share.high is not None:
            look = 'class="stroke-accent" stroke-width="1" fill="none"'
            parts.append(_path(area, [(x, share.low), (x, share.high)], look))
        across, up = area.at(x, share.value)
        look = 'class="stroke-accent" fill="none"' if share.low is None else 'class="fill-accent"'
        parts.append(f'<circle cx="{across:g}" cy="{up:g}" r="2.3" {look}/>')
    _broken(area, line, parts)
    points = tuple(
        f"{time}: {each.undefined}"
        if each.value is None
        else f"{time}: {decimal(each.value)} {interval(each)}"
        for time, each in zip(times, shares, strict=True)
    )
    ticks = [(top * part / 4, f"{top * part / 4:g}") for part in range(5)]
    svg = _svg(area, ("time, UTC", "share"), parts, ticks, _time_ticks(times))
    return Chart(title, words, svg, area, points)


def counts_over_time(
    title: str, times: Sequence[str], groups: Mapping[str, Sequence[int | None]], words: str
) -> Chart:
    """Draw stacked counts of at most four groups over several periods.

    None means that nothing is known about a period: it gets a dash.
    """
    sums = [sum(filter(None, counts)) for counts in zip(*groups.values(), strict=True)]
    most = _round_up(max([*sums, 1]))
    area = Area((LEFT, RIGHT), (BOTTOM, TOP), (0.0, 0.0), (len(times), most * (1 + MARGIN)))
    parts = list[str]()
    bases = [0] * len(times)
    for number, (name, counts) in enumerate(groups.items()):
        for at, count in enumerate(counts):
            if count:
                left, low = area.at(at + 0.12, bases[at])
                right, high = area.at(at + 0.88, bases[at] + count)
                box = f'x="{left:g}" y="{high:g}" width="{right - left:g}" height="{low - high:g}"'
                parts.append(f"<rect {box} {STACK[number]}/>")
                bases[at] += count
        x = LEFT + 2 + 64 * number
        parts.append(f'<rect x="{x:g}" y="4" width="8" height="6" {STACK[number]}/>')
        parts.append(_text(x + 11, 10, name))
    for at, unknown in enumerate(zip(*groups.values(), strict=True)):
        if None in unknown:
            across, _ = area.at(at + 0.5, 0)
            parts.append(_text(across, BOTTOM - 4, "–", "middle"))
    points = tuple(
        f"{time}: " + ", ".join("no data" if n is None else f"{n:,} {name}" for name, n in told)
        for time, told in (
            (time, [(name, counts[at]) for name, counts in groups.items()]) for at, time in enumerate(times)
        )
    )
    ticks = [(most * part // 4, _short(most * part // 4)) for part in range(5)]
    svg = _svg(area, ("time, UTC", "answers"), parts, ticks, _time_ticks(times))
    return Chart(title, words, svg, area, points)


def _broken(area: Area, line: list[tuple[float, float]], parts: list[str]) -> list[tuple[float, float]]:
    """Draw the line so far if it has at least two points, and return an empty one."""
    if len(line) > 1:
        parts.append(_path(area, line, LINE))
    return []


def _time_ticks(times: Sequence[str]) -> list[tuple[float, str]]:
    step = max(1, -(-len(times) // TIMES))
    return [(at + 0.5, times[at]) for at in range(0, len(times), step)]


# --- drawing --------------------------------------------------------------------------------------


def _svg(
    area: Area,
    names: tuple[str, str],
    parts: Sequence[str],
    y_ticks: Sequence[tuple[float, str]] = TICKS,
    x_ticks: Sequence[tuple[float, str]] = TICKS,
) -> str:
    """Return the image: both axes with their names and ticks, then the parts."""
    drawn = "".join([*_axes(area, names, y_ticks, x_ticks), *parts])
    return f'<svg viewBox="{VIEW_BOX}" aria-hidden="true">{drawn}</svg>'


def _axes(
    area: Area,
    names: tuple[str, str],
    y_ticks: Sequence[tuple[float, str]],
    x_ticks: Sequence[tuple[float, str]],
) -> Iterator[str]:
    look = 'fill="none" class="stroke-dim" stroke-width="0.8"'
    yield f'<path d="M {LEFT:g} {TOP:g} V {BOTTOM:g} H {RIGHT:g}" {look}/>'
    for value, label in x_ticks:
        x, _ = area.at(value, 0)
        yield f'<path d="M {x:g} {BOTTOM:g} v 3.5" {look}/>' + _text(x, BOTTOM + 13, label, "middle")
    for value, label in y_ticks:
        _, y = area.at(0, value)
        yield f'<path d="M {LEFT:g} {y:g} h -3.5" {look}/>' + _text(LEFT - 6, y + 3, label, "end")
    yield _text((LEFT + RIGHT) / 2, BOTTOM + 27, names[0], "middle")
    middle = (TOP + BOTTOM) / 2
    yield _text(0, 0, names[1], "middle", f' transform="translate(9.5 {middle:g}) rotate(-90)"')


def _text(x: float, y: float, words: str, anchor: str = "start", more: str = "") -> str:
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"{more}'
    return f'<text {place} font-size="8.5px" class="fill-ink">{escape(words)}</text>'


def _path(area: Area, points: Sequence[tuple[float, float]], look: str) -> str:
    spots = (area.at(*point) for point in points)
    return f'<path d="M {" L ".join(f"{x:g} {y:g}" for x, y in spots)}" {look}/>'


def _visible_points(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Return the points of a curve without those that round to the same place as the one before."""
    import numpy as np

    spots = np.round(np.stack([x, y]) * STEPS)
    moved = np.concatenate([[True], np.any(spots[:, 1:] != spots[:, :-1], axis=0)])
    moved[-1] = True
    return list(zip(x[moved].tolist(), y[moved].tolist(), strict=True))


def _round_up(most: int) -> int:
    """Return the smallest of 4, 8, 12, 20, 40, 60, 80, 100, 120, 200, 400 and so on not below `most`."""
    size = 1
    while True:
        for step in (1, 2, 3, 5, 10, 15, 20, 25):
            if most <= 4 * step * size:
                return 4 * step * size
        size *= 10


def _short(count: int) -> str:
    """Format a count in few characters.

    >>> _short(950), _short(40_000), _short(2_500_000)
    ('950', '40k', '2.5M')
    """
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:g}{letter}"
    return str(count)
