"""Pictures of how a judge's scores relate to the truth, as SVG that takes its colours from the page.

matplotlib draws them. What it writes is then made fit to stand inside a page whose policy allows no inline
styles: every declaration becomes an attribute, every colour a class that a style sheet gives its value.

Axes with their numbers take most of the time and are the same in most pictures, so they are drawn once and
kept; a picture is such a frame and, over it, what is drawn of the figures at hand.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from magistrate.errors import require_extra
from magistrate.metrics.classification import Estimate
from magistrate.metrics.distributions import precision_recall_curve, roc_curve
from magistrate.report.figures import decimal, interval

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from magistrate.metrics.reliability import Reliability

# Colours that mean something else: they become the classes `fill-…` and `stroke-…`.
INK, DIM, ACCENT, SECOND = "#010203", "#040506", "#070809", "#0a0b0c"
CLASSES = {INK: "ink", DIM: "dim", ACCENT: "accent", SECOND: "second"}
SIZE = (4.2, 3.3)  # inches
POINTS = 72  # an inch, and so many units of a picture
SHAPE: Any = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": DIM,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": DIM,
    "ytick.color": DIM,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
}
FINE = 400  # steps a side that a curve is drawn in: finer ones would not be seen
BINS = 20
LOOKS: tuple[dict[str, Any], ...] = (
    {"color": ACCENT, "fill": True, "alpha": 0.45},
    {"color": SECOND, "linewidth": 1.6, "linestyle": (0, (4, 1.5))},
)


# Where the axes are, in shares of the picture from its lower left: room for numbers, names and a legend.
LEFT, BELOW, RIGHT, ABOVE = 0.135, 0.155, 0.965, 0.93
ROC_AXES = ("faithful, but called hallucinated", "hallucinated, and called so")
PRECISION_RECALL_AXES = ("recall", "precision")
RELIABILITY_AXES = ("mean score", "share hallucinated in truth")
MARGIN = 0.02  # beyond 0 and 1, so that a line at the edge is seen whole


@dataclass(frozen=True, slots=True)
class Area:
    """The part of a picture inside its axes, and the values at its ends.

    `x` and `y` are the units of the picture that the values `first` and `last` lie at, across and up.
    """

    x: tuple[float, float]
    y: tuple[float, float]
    first: tuple[float, float]
    last: tuple[float, float]

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where in the picture a point lies.

        >>> Area((40.0, 300.0), (200.0, 20.0), (0.0, 0.0), (1.0, 1.0)).at(0.5, 1.0)
        (170.0, 20.0)
        """
        spot = [
            start + (value - first) / (last - first) * (end - start)
            for value, (start, end), first, last in zip(
                (x, y), (self.x, self.y), self.first, self.last, strict=True
            )
        ]
        return round(spot[0], 2), round(spot[1], 2)


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture: its title, what it shows in words, and an `<svg>` element without any style of its own.

    `area` says where in the picture a point lies; `points` are its points in words, where they are few.
    """

    title: str
    words: str
    svg: str
    area: Area
    points: tuple[str, ...] = ()


def roc(truth: NDArray[np.bool_], scores: NDArray[np.float64], area: Estimate, name: str) -> Chart:
    """The share of hallucinated samples found against the share of faithful ones accused.

    `truth` bool `[n]` with both values, `scores` float `[n]` in [0, 1]; `name` begins the ids in the picture,
    which must be its own in a page.
    """

    false_rate, true_rate, _ = roc_curve(truth, scores, corners=True)

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=DIM, linestyle=(0, (2, 3)), linewidth=1)
        axes.plot(*_thinned(false_rate, true_rate), color=ACCENT, linewidth=1.8)

    words = (
        f"The curve passes from all faithful to all hallucinated. The area under it, AUROC, is "
        f"{decimal(area.value)} {interval(area)}; the dotted line is chance, .50."
    )
    frame = Frame(*ROC_AXES)
    return Chart("ROC", words, _drawn(frame, draw, name), frame.area)


def precision_recall(truth: NDArray[np.bool_], scores: NDArray[np.float64], name: str) -> Chart:
    """How many of those called hallucinated are so, against how many of the hallucinated are found.

    The arguments are those of `roc`.
    """

    precision, recall, mean = precision_recall_curve(truth, scores)
    base = float(truth.mean())

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [base, base], color=DIM, linestyle=(0, (2, 3)), linewidth=1)
        axes.plot(*_thinned(recall, precision), color=ACCENT, linewidth=1.8, drawstyle="steps-post")

    words = (
        f"Average precision is {decimal(mean)}; the dotted line is the share of hallucinated samples, "
        f"{decimal(base)}, which is the precision of calling everything so."
    )
    frame = Frame(*PRECISION_RECALL_AXES)
    return Chart("Precision and recall", words, _drawn(frame, draw, name), frame.area)


def reliability(found: Reliability, name: str) -> Chart:
    """The share that is hallucinated in truth against the score, bin by bin, with 95 % intervals."""

    middles = [each.mean_score for each in found.bins]
    ends = [(x, each.observed) for x, each in zip(middles, found.bins, strict=True)]
    lines = [(x, e.low, e.high) for x, e in ends if e.low is not None and e.high is not None]

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=DIM, linestyle=(0, (2, 3)), linewidth=1)
        if lines:
            axes.vlines(*zip(*lines, strict=True), color=ACCENT, linewidth=1)
        shares = [estimate.value or 0.0 for _, estimate in ends]
        axes.plot(middles, shares, color=ACCENT, linestyle="none", marker="o", markersize=4.5)

    points = tuple(
        f"{each.n:,} scored {decimal(each.mean_score)} on average: {decimal(each.observed.value)} "
        f"{interval(each.observed)} hallucinated"
        for each in found.bins
    )
    words = (
        "On the dotted line a score is the share that is hallucinated. Each point is of about as many "
        f"samples, with its 95 % interval. Expected calibration error {decimal(found.ece)} "
        f"({decimal(found.ece_by_chance)} by chance), Brier score "
        f"{decimal(found.brier)}."
    )
    frame = Frame(*RELIABILITY_AXES)
    return Chart("Reliability", words, _drawn(frame, draw, name), frame.area, points)


def scores_by_label(groups: Mapping[str, NDArray[np.float64]], name: str) -> Chart:
    """How often which score was given, for one group of samples or for two, by the names of the groups."""
    import numpy as np

    edges = np.linspace(0, 1, BINS + 1)
    counts = [np.histogram(values, edges)[0] for values in groups.values()]

    def draw(axes: Axes) -> None:
        for count, look in zip(counts, LOOKS, strict=False):
            axes.stairs(count, edges, **look)

    told = "; ".join(
        f"{label}: {len(values):,} {'sample' if len(values) == 1 else 'samples'}, "
        f"median score {decimal(float(np.median(values)))}"
        for label, values in groups.items()
    )
    words = f"How many samples got which score. {told[:1].upper()}{told[1:]}."
    most = _round_up(max(int(count.max()) for count in counts))
    frame = Frame("score", "samples", tuple(groups), most)
    return Chart("Scores", words, _drawn(frame, draw, name), frame.area)


def _thinned(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[Any, Any]:
    """The points of a curve without those that fall on the same spot as the one before."""
    import numpy as np

    spots = np.round(np.stack([x, y]) * FINE)
    moved = np.concatenate([[True], np.any(spots[:, 1:] != spots[:, :-1], axis=0)])
    moved[-1] = True
    return x[moved], y[moved]


def _round_up(most: int) -> int:
    """The least of 4, 8, 12, 20, 40, 60, 80, 100, 120, 200, 400 and so on that is no less."""
    size = 1
    while True:
        for step in (1, 2, 3, 5, 10, 15, 20, 25):
            if most <= 4 * step * size:
                return 4 * step * size
        size *= 10


# --- frames ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """What is around and behind a picture: the names of its axes, and of the groups in its legend.

    Both axes go from 0 to 1, or where `most` is given, the one upwards from 0 to that.
    """

    x: str
    y: str
    legend: tuple[str, ...] = ()
    most: int | None = None

    @property
    def limits(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The values at both ends of each axis."""
        if self.most is None:
            return (-MARGIN, 1 + MARGIN), (-MARGIN, 1 + MARGIN)
        return (0.0, 1.0), (0.0, self.most * (1 + MARGIN))

    @property
    def area(self) -> Area:
        """Where a point lies."""
        width, height = (size * POINTS for size in SIZE)
        (left, right), (low, high) = self.limits
        return Area(
            (LEFT * width, RIGHT * width),
            ((1 - BELOW) * height, (1 - ABOVE) * height),
            (left, low),
            (right, high),
        )


def _empty() -> Axes:
    """Axes on a picture of their own."""
    from matplotlib.figure import Figure

    axes: Axes = Figure(figsize=SIZE).add_axes((LEFT, BELOW, RIGHT - LEFT, ABOVE - BELOW))
    return axes


def _fill(frame: Frame, axes: Axes) -> None:
    ticks = [0, 0.25, 0.5, 0.75, 1]
    (x, y) = frame.limits
    axes.set(xlabel=frame.x, ylabel=frame.y, xlim=x, ylim=y, xticks=ticks)
    if frame.most is None:
        axes.set_yticks(ticks)
        return
    places = [frame.most * part // 4 for part in range(5)]
    axes.set_yticks(places, [_short(place) for place in places])
    for label, look in zip(frame.legend, LOOKS, strict=False):
        axes.stairs([0], [0, 0], label=label, **look)
    # Above the picture, where it hides no bar.
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2, handlelength=1.6)


def _short(count: int) -> str:
    """A count that needs little room.

    >>> _short(950), _short(40_000), _short(2_500_000)
    ('950', '40k', '2.5M')
    """
    for size, letter in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:g}{letter}"
    return str(count)


def warm_up() -> None:
    """Draw what most pictures have in common, so that the first one does not wait for it."""
    for x, y in (ROC_AXES, PRECISION_RECALL_AXES, RELIABILITY_AXES):
        _drawn(Frame(x, y), lambda axes: None, "w")


# --- from matplotlib to a page ----------------------------------------------------------------------

_ONE_AT_A_TIME = Lock()  # matplotlib's settings are of the whole process
_TOKEN = "NAMEOFFRAME"


def _drawn(frame: Frame, draw: Callable[[Axes], None], name: str) -> str:
    """What `draw` puts on the axes, in the frame, as an `<svg>` element whose ids begin with `name`.

    Raises `MissingExtra` where matplotlib is not installed.
    """
    require_extra("analysis", "matplotlib")
    import matplotlib

    with _ONE_AT_A_TIME, matplotlib.rc_context({**SHAPE, "svg.hashsalt": name}):
        behind = _framed(frame).replace(_TOKEN, f"{name}f")
        axes = _bare()
        x, y = frame.limits
        axes.set(xlim=x, ylim=y)
        draw(axes)
        drawn = cleaned(_written(axes), name)
        for artist in (*axes.lines, *axes.patches, *axes.collections):
            artist.remove()
    return f"{behind.removesuffix('</svg>')}{drawn[drawn.index('>') + 1 :]}"


@lru_cache(maxsize=256)
def _framed(frame: Frame) -> str:
    """A frame alone, whose ids begin with a word to be replaced; in `_drawn`, which holds the lock."""
    axes = _empty()
    _fill(frame, axes)
    return cleaned(_written(axes), _TOKEN)


@cache
def _bare() -> Axes:
    """Axes that are not seen, for what is drawn on them."""
    axes = _empty()
    axes.set_axis_off()
    return axes


def _written(axes: Axes) -> str:
    """matplotlib's SVG of the picture."""
    page, figure = io.StringIO(), axes.get_figure(root=True)
    assert figure is not None, "the axes were made on one"
    figure.savefig(page, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return page.getvalue()


def cleaned(svg: str, name: str) -> str:
    """matplotlib's SVG without prolog, metadata and styles; its ids begin with `name`."""
    root = ElementTree.fromstring(svg)
    for parent in root.iter():
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        styles = attributes.pop("style", "")
        classes: list[str] = []
        for declaration in filter(None, (part.strip() for part in styles.split(";"))):
            _declare(declaration, attributes, classes)
        if classes:
            attributes["class"] = " ".join(classes)
        element.attrib.clear()
        element.attrib.update({key: _own(key, value, name) for key, value in attributes.items()})
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    root.set("aria-hidden", "true")  # the words beside it say it
    return ElementTree.tostring(root, encoding="unicode")


def _declare(declaration: str, attributes: dict[str, str], classes: list[str]) -> None:
    """One declaration of a style as an attribute, or as a class where it is a colour of ours."""
    key, _, value = (part.strip() for part in declaration.partition(":"))
    if key in ("fill", "stroke") and value in CLASSES:
        classes.append(f"{key}-{CLASSES[value]}")
    elif key in ("font", "font-size"):
        if size := re.search(r"[\d.]+px", value):
            attributes["font-size"] = size[0]
    elif not key.startswith("font"):
        attributes[key] = value


def _own(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "href":
        return value.replace("#", f"#{name}-", 1)
    return value.replace("url(#", f"url(#{name}-")
