"""Pictures of how a judge's scores relate to the truth, as SVG that takes its colours from the page.

matplotlib draws them. What it writes is then made fit to stand inside a page whose policy allows no inline
styles: every declaration becomes an attribute, every colour a class that a style sheet gives its value.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from magistrate.report.figures import decimal, interval
from magistrate.stats.classification import Estimate

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from magistrate.stats.reliability import Reliability

# Colours that mean something else: they become the classes `fill-…` and `stroke-…`.
INK, DIM, ACCENT, SECOND = "#010203", "#040506", "#070809", "#0a0b0c"
CLASSES = {INK: "ink", DIM: "dim", ACCENT: "accent", SECOND: "second"}
SIZE = (4.2, 3.3)  # inches of 72 points
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


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture: its title, what it shows in words, and an `<svg>` element without any style of its own.

    `points` are the points of the picture in words, where they are few.
    """

    title: str
    words: str
    svg: str
    points: tuple[str, ...] = ()


def roc(truth: NDArray[np.bool_], scores: NDArray[np.float64], area: Estimate, name: str) -> Chart:
    """The share of hallucinated samples found against the share of faithful ones accused.

    `truth` bool `[n]` with both values, `scores` float `[n]` in [0, 1]; `name` begins the ids in the picture,
    which must be its own in a page.
    """
    from sklearn.metrics import roc_curve

    false_rate, true_rate, _ = roc_curve(truth, scores)

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=DIM, linestyle=(0, (2, 3)), linewidth=1)
        axes.plot(*_thinned(false_rate, true_rate), color=ACCENT, linewidth=1.8)
        _unit(axes, "faithful, but called hallucinated", "hallucinated, and called so")

    words = (
        f"The curve passes from all faithful to all hallucinated. The area under it, AUROC, is "
        f"{decimal(area.value)} {interval(area)}; the dotted line is chance, .50."
    )
    return Chart("ROC", words, _drawn(draw, name))


def precision_recall(truth: NDArray[np.bool_], scores: NDArray[np.float64], name: str) -> Chart:
    """How many of those called hallucinated are so, against how many of the hallucinated are found.

    The arguments are those of `roc`.
    """
    from sklearn.metrics import average_precision_score, precision_recall_curve

    precision, recall, _ = precision_recall_curve(truth, scores)
    base, mean = float(truth.mean()), float(average_precision_score(truth, scores))

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [base, base], color=DIM, linestyle=(0, (2, 3)), linewidth=1)
        axes.plot(*_thinned(recall, precision), color=ACCENT, linewidth=1.8, drawstyle="steps-post")
        _unit(axes, "recall", "precision")

    words = (
        f"Average precision is {decimal(mean)}; the dotted line is the share of hallucinated samples, "
        f"{decimal(base)}, which is the precision of calling everything so."
    )
    return Chart("Precision and recall", words, _drawn(draw, name))


def reliability(found: Reliability, name: str) -> Chart:
    """The share that is hallucinated in truth against the score, bin by bin, with 95 % intervals."""

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=DIM, linestyle=(0, (2, 3)), linewidth=1)
        for each in found.bins:
            x, seen = each.mean_score, each.observed
            if seen.low is not None and seen.high is not None:
                axes.plot([x, x], [seen.low, seen.high], color=ACCENT, linewidth=1)
            axes.plot([x], [seen.value or 0.0], color=ACCENT, marker="o", markersize=4.5)
        _unit(axes, "mean score", "share hallucinated in truth")

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
    return Chart("Reliability", words, _drawn(draw, name), points)


def scores_by_label(groups: Mapping[str, NDArray[np.float64]], name: str) -> Chart:
    """How often which score was given, for one group of samples or for two, by the names of the groups."""
    import numpy as np
    from matplotlib.ticker import MaxNLocator

    edges = np.linspace(0, 1, BINS + 1)
    looks: list[dict[str, Any]] = [
        {"color": ACCENT, "fill": True, "alpha": 0.45},
        {"color": SECOND, "linewidth": 1.6, "linestyle": (0, (4, 1.5))},
    ]
    counts = {label: np.histogram(values, edges)[0] for label, values in groups.items()}

    def draw(axes: Axes) -> None:
        for (label, count), look in zip(counts.items(), looks, strict=False):
            axes.stairs(count, edges, label=f"{label} ({count.sum():,})", **look)
        axes.set(xlabel="score", ylabel="samples", xlim=(0, 1))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        # Above the picture, where it hides no bar.
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2, handlelength=1.6)

    told = "; ".join(
        f"{label}: {len(values):,} {'sample' if len(values) == 1 else 'samples'}, "
        f"median score {decimal(float(np.median(values)))}"
        for label, values in groups.items()
    )
    return Chart(
        "Scores", f"How many samples got which score. {told[:1].upper()}{told[1:]}.", _drawn(draw, name)
    )


def _unit(axes: Axes, x: str, y: str) -> None:
    ticks = [0, 0.25, 0.5, 0.75, 1]
    axes.set(xlabel=x, ylabel=y, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xticks=ticks, yticks=ticks)


def _thinned(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[Any, Any]:
    """The points of a curve without those that fall on the same spot as the one before."""
    import numpy as np

    spots = np.round(np.stack([x, y]) * FINE)
    moved = np.concatenate([[True], np.any(spots[:, 1:] != spots[:, :-1], axis=0)])
    moved[-1] = True
    return x[moved], y[moved]


# --- from matplotlib to a page ----------------------------------------------------------------------


def _drawn(draw: Callable[[Axes], None], name: str) -> str:
    """What `draw` puts on the axes, as an `<svg>` element whose ids begin with `name`."""
    import matplotlib
    from matplotlib.figure import Figure

    page = io.StringIO()
    with matplotlib.rc_context({**SHAPE, "svg.hashsalt": name}):
        figure = Figure(figsize=SIZE, layout="constrained")
        draw(figure.add_subplot())
        figure.savefig(page, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return cleaned(page.getvalue(), name)


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
