"""Words around a number: units of measure with what they are worth, scales, and signs that it is rounded."""

from __future__ import annotations

from collections.abc import Mapping

_SMALL = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ABOUT = "about approximately around roughly nearly almost over under circa ca some estimated"

SMALL = {word: number for number, word in enumerate(_SMALL.split())}
TENS = {word: 10 * number for number, word in enumerate(_TENS.split(), 2)}
MULTIPLIERS = {
    "hundred": 1e2,
    "dozen": 12.0,
    "thousand": 1e3,
    "million": 1e6,
    "billion": 1e9,
    "trillion": 1e12,
}
ABBREVIATED = {"k": 1e3, "m": 1e6, "mn": 1e6, "mln": 1e6, "b": 1e9, "bn": 1e9, "tn": 1e12}
ABOUT = frozenset(_ABOUT.split())

# For each measure its units, and how much of the measure's first unit one of them is.
_MEASURES: Mapping[str, Mapping[str, float]] = {
    "length": {
        "m meter meters metre metres": 1,
        "km kilometer kilometers kilometre kilometres": 1e3,
        "cm centimeter centimeters centimetre centimetres": 1e-2,
        "mm millimeter millimeters millimetre millimetres": 1e-3,
        "mile miles mi": 1609.344,
        "ft foot feet": 0.3048,
        "inch inches": 0.0254,
        "yard yards yd": 0.9144,
    },
    "mass": {
        "kg kilogram kilograms kilo kilos": 1,
        "g gram grams": 1e-3,
        "mg milligram milligrams": 1e-6,
        "µg μg mcg microgram micrograms": 1e-9,
        "t tonne tonnes": 1e3,
        "lb lbs": 0.45359237,
        "oz ounce ounces": 0.028349523125,
    },
    "time": {
        "s sec secs second seconds": 1,
        "ms millisecond milliseconds": 1e-3,
        "min mins minute minutes": 60,
        "h hr hrs hour hours": 3600,
        "day days": 86400,
        "week weeks": 604800,
    },
    "calendar time": {
        "month months": 1,
        "quarter quarters": 3,
        "year years yr yrs": 12,
        "decade decades": 120,
        "century centuries": 1200,
    },
    "volume": {
        "l liter liters litre litres": 1,
        "ml milliliter milliliters millilitre millilitres": 1e-3,
        "gallon gallons": 3.785411784,
    },
    "data": {"byte bytes": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12},
    "frequency": {"hz hertz": 1, "khz": 1e3, "mhz": 1e6, "ghz": 1e9},
    "power": {"w watt watts": 1, "kw kilowatt kilowatts": 1e3, "mw megawatt megawatts": 1e6, "gw": 1e9},
    "share": {"% percent pct": 1},
    "celsius": {"°c celsius": 1},
    "fahrenheit": {"°f fahrenheit": 1},
    "usd": {"$ us$ usd dollar dollars": 1, "cent cents ¢": 1e-2},
    "eur": {"€ eur euro euros": 1},
    "gbp": {"£ gbp sterling": 1},
    "jpy": {"¥ jpy yen": 1},
    "inr": {"₹ inr rupee rupees": 1},
}
UNITS: Mapping[str, tuple[str, float]] = {
    name: (measure, float(worth))
    for measure, units in _MEASURES.items()
    for names, worth in units.items()
    for name in names.split()
}
