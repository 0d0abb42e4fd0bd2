"""Agreement between raters on the labels of the same samples, corrected for chance.

=====================  ===========================================================================
observed               share of samples with the same label
kappa                  Cohen (1960): by chance, each side labels at random with its own base rates
linear, quadratic      weighted kappa (Cohen 1968): labels that are near each other disagree less
alpha                  Krippendorff (2011), nominal: by chance, both sides draw from one pool of labels
ac1                    Gwet (2008): chance agreement arises only on hard samples, which are guessed
=====================  ===========================================================================

All are 1 for full agreement and, except `observed`, 0 for agreement at chance level. They are functions of
confusion tables `[b, k, k]`, so each draw of a bootstrap is a table too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from magistrate.errors import InputError
from magistrate.metrics.classification import Estimate
from magistrate.metrics.distributions import ratio
from magistrate.metrics.resampling import DRAWS, SEED, estimates_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Tables = NDArray[np.float64]

FIGURES = ("observed", "kappa", "linear", "quadratic", "alpha", "ac1")
NOTHING = "there are no samples"
ONE_LABEL = "both gave the same label to every sample"


# --- figures of confusion tables -----------------------------------------------------------------


def observed_agreement(tables: Tables) -> NDArray[np.float64]:
    """Return the share on the diagonal of tables `[b, k, k]`; NaN for an empty table."""
    import numpy as np

    return ratio(np.trace(tables, axis1=1, axis2=2), tables.sum((1, 2)))


def cohen_kappa(
    tables: Tables,
    weights: Literal["linear", "quadratic"] | None = None,
    places: Sequence[float] | None = None,
) -> NDArray[np.float64]:
    """Return Cohen's kappa of tables `[b, k, k]`, optionally weighted by the distance of two labels.

    `places` `[k]` are the positions of the labels on a scale; the default is 0, 1, 2 and so on. NaN if
    chance alone gives full agreement.
    """
    import numpy as np

    stands = np.arange(tables.shape[1]) if weights is None or places is None else np.asarray(places)
    apart = np.abs(np.subtract.outer(stands, stands)).astype(np.float64)
    cost = (apart > 0).astype(np.float64) if weights is None else apart if weights == "linear" else apart**2
    expected = tables.sum(2)[:, :, None] * tables.sum(1)[:, None, :]
    found = (cost * tables).sum((1, 2)) * tables.sum((1, 2))
    return 1 - ratio(found, (cost * expected).sum((1, 2)))


def krippendorff_alpha(coincidences: Tables) -> NDArray[np.float64]:
    """Return Krippendorff's nominal alpha of coincidence matrices `[b, k, k]`; NaN if all labels are equal.

    For two raters the matrix is the sum of their confusion table and its transpose.
    """
    import numpy as np

    each = coincidences.sum(2)
    n: NDArray[np.float64] = each.sum(1)
    apart = n - np.trace(coincidences, axis1=1, axis2=2)
    return 1 - (n - 1) * ratio(apart, n**2 - (each**2).sum(1))


def gwet_ac1(observed: NDArray[np.float64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Gwet's AC1 from the observed agreement `[b]` and the mean shares of all k labels `[b, k]`.

    k counts all possible labels, also those that nobody gave. NaN if k is 1.
    """
    import numpy as np

    if shares.shape[1] < 2:
        return np.full(observed.shape, np.nan)
    chance = (shares * (1 - shares)).sum(1) / (shares.shape[1] - 1)
    return ratio(observed - chance, 1 - chance)


# --- with intervals ------------------------------------------------------------------------------


def two_raters(
    first: ArrayLike,
    second: ArrayLike,
    k: int,
    groups: ArrayLike,
    *,
    places: Sequence[float] | None = None,
    draws: int = DRAWS,
    seed: int = SEED,
) -> dict[str, Estimate]:
    """Return the `FIGURES` of two raters' labels, int `[n]` in [0, k), with bootstrap intervals by `groups`.

    Weighted kappas are included only if `places` gives the positions of the labels and there are more than
    two labels; for two labels they equal kappa.
    """
    import numpy as np

    one, two = _numbers(first, k), _numbers(second, k)
    if one.shape != two.shape:
        raise InputError(f"both sides must label the same samples: got {one.size} and {two.size}")
    names = [
        name for name in FIGURES if name not in ("linear", "quadratic") or (places is not None and k > 2)
    ]
    if not one.size:
        return {name: Estimate.none(NOTHING) for name in names}
    cells = one * k + two

    def figures(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        counts = [np.bincount(cells, row, k * k) for row in weights]
        tables = np.array(counts, dtype=np.float64).reshape(-1, k, k)
        return np.stack([_figure(name, tables, places) for name in names], axis=1)

    return estimates_of(names, figures, groups, dict.fromkeys(names, ONE_LABEL), draws=draws, seed=seed)


def _figure(name: str, tables: Tables, places: Sequence[float] | None) -> NDArray[np.float64]:
    import numpy as np

    match name:
        case "observed":
            return observed_agreement(tables)
        case "kappa":
            return cohen_kappa(tables)
        case "linear" | "quadratic":
            return cohen_kappa(tables, "linear" if name == "linear" else "quadratic", places)
        case "alpha":
            return krippendorff_alpha(tables + tables.transpose(0, 2, 1))
    given = tables.sum(1) + tables.sum(2)
    shares = given / np.maximum(given.sum(1, keepdims=True), 1)
    return gwet_ac1(observed_agreement(tables), shares)


def many_raters(
    counts: ArrayLike, groups: ArrayLike, *, draws: int = DRAWS, seed: int = SEED
) -> dict[str, Estimate]:
    """Return alpha and AC1 of any number of raters, who need not have labelled every sample.

    `counts` `[n, k]` is the number of raters that gave each of the k labels to each sample. Alpha and the
    agreement in AC1 use only samples with at least two labels (Krippendorff 2011; Gwet 2014, for missing
    ratings).
    """
    import numpy as np

    given = np.asarray(counts, dtype=np.float64)
    n, k = given.shape
    size = given.sum(1)
    several = size >= 2
    if not several.any():
        return {name: Estimate.none("no sample has two labels") for name in ("alpha", "ac1")}
    pairs = np.where(several, size * (size - 1), 1)
    agreeing = np.where(several, (given * (given - 1)).sum(1) / pairs, 0)
    shares = given / np.maximum(size, 1)[:, None]
    both = given[:, :, None] * given[:, None, :] - given[:, :, None] * np.eye(k)
    met = np.where(several[:, None, None], both / np.maximum(size - 1, 1)[:, None, None], 0).reshape(n, -1)
    pieces = np.concatenate([met, agreeing[:, None], several[:, None], shares, (size > 0)[:, None]], axis=1)

    def figures(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = weights @ pieces
        alpha = krippendorff_alpha(sums[:, : k * k].reshape(-1, k, k))
        observed = ratio(sums[:, k * k], sums[:, k * k + 1])
        mean = sums[:, k * k + 2 : -1] / np.maximum(sums[:, -1:], 1)
        return np.stack([alpha, gwet_ac1(observed, mean)], axis=1)

    names = ("alpha", "ac1")
    return estimates_of(names, figures, groups, dict.fromkeys(names, ONE_LABEL), draws=draws, seed=seed)


def concordance(
    first: ArrayLike, second: ArrayLike, groups: ArrayLike, *, draws: int = DRAWS, seed: int = SEED
) -> Estimate:
    """Return Lin's (1989) concordance of two scores `[n]`.

    It equals kappa of the scores, weighted by their squared distance.
    """
    import numpy as np

    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if not x.size:
        return Estimate.none(NOTHING)
    pieces = np.stack([np.ones(x.size), x, y, (x - y) ** 2, x * x + y * y], axis=1)

    def figures(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        n, sum_x, sum_y, apart, squares = (weights @ pieces).T
        return (1 - ratio(n * apart, n * squares - 2 * sum_x * sum_y))[:, None]

    return estimates_of(["scores"], figures, groups, {"scores": ONE_LABEL}, draws=draws, seed=seed)["scores"]


def _numbers(labels: ArrayLike, k: int) -> NDArray[np.int64]:
    import numpy as np

    array = np.asarray(labels)
    array = array.astype(np.int64) if not array.size else array
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer) or ((array < 0) | (array >= k)).any():
        raise InputError(f"labels must be a flat list of numbers from 0 to {k - 1}, got {array.dtype}")
    return array.astype(np.int64)
