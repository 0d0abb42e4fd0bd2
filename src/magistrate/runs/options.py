"""The options of a run, each declared once: command-line flag, key of the run file and Python argument.

`spec` turns them into the keys of a run file, and the command line into its flags. Tests compare the
arguments of `evaluate`, `judge` and `generate` and the fields of `Limits` with them. They are plain values
rather than a pydantic model, because `--help` must not wait for the import of pydantic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from magistrate.datasets.rows import MAX_UNREAD
from magistrate.engines.base import CONCURRENCY
from magistrate.runs.limits import DEADLINE, GIVE_UP_AFTER

MAX_FAILURES = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: its name as a key and argument, its type, its default (None: not set) and its help.

    A number must be at least `least`, more than `above` and at most `most`. `flag` is the command-line name
    if it differs from the key. `metavar` is the placeholder of the value on the command line.
    """

    name: str
    type: type = str
    default: Any = None
    help: str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    flag: str | None = None
    metavar: str | None = None


LIMIT = Option(name="limit", type=int, least=1, help="The first N samples only.")
SAMPLE = Option(name="sample", type=int, least=1, help="N samples at random.")
BALANCE = Option(name="balance", metavar="FIELD", help="With --sample: as many of each value, such as label.")
SEED = Option(name="seed", type=int, default=0, help="For --sample.")
VIEW = Option(name="view", help="A view of a named set, such as article200.")
MAP = Option(name="map", type=dict, default={}, help="Which column is which field; repeatable.")
LABELS = Option(
    name="labels",
    type=dict,
    default={},
    help="What the values of the label column mean: faithful, hallucinated or unlabelled, such as "
    "ok=faithful,bad=hallucinated; repeatable.",
)
UNREAD = Option(
    name="max_unread",
    type=float,
    default=MAX_UNREAD,
    least=0,
    most=1,
    help="Stop with 2 if a greater share of the rows cannot be read.",
)
DATA = (LIMIT, SAMPLE, BALANCE, SEED, VIEW, MAP, LABELS, UNREAD)

MODEL = Option(
    name="model",
    help="Who is asked: a catalogue name, GGUF file or OpenVINO folder, openai:MODEL, ollama:MODEL, "
    "vllm:MODEL, anthropic:MODEL or transformers:FOLDER (default: the small built-in one).",
)
BASE_URL = Option(
    name="base_url", metavar="URL", help="Where the server of openai:MODEL or its like listens."
)
DEVICE = Option(name="device", help="Where a model runs, such as CPU (default: $MAGISTRATE_DEVICE or CPU).")
THREADS = Option(name="threads", type=int, least=1, help="Cores to use (default: all it may run on).")
TIMEOUT = Option(name="timeout", type=float, above=0, help="Seconds for one call of the model.")
PRICE = Option(
    name="price",
    metavar="IN/OUT",
    help="What tokens cost, in dollars a million (default: what is known).",
)
ENGINE = (MODEL, BASE_URL, DEVICE, THREADS, TIMEOUT)

CONCURRENT = Option(
    name="concurrency", type=int, default=CONCURRENCY, least=1, help="Samples under way at once."
)
TIME_FOR_VERDICT = Option(
    name="deadline", type=float, default=DEADLINE, above=0, help="Seconds for one verdict."
)
GIVE_UP = Option(
    name="give_up_after",
    type=int,
    default=GIVE_UP_AFTER,
    least=1,
    help="Stop with 3 once the engine failed so often in a row.",
)
CALLS = Option(name="max_calls", type=int, least=1, help="Begin nothing more once so many calls are made.")
TOKENS = Option(name="max_tokens", type=int, least=1, help="Begin nothing more once so many are spent.")
SECONDS = Option(
    name="max_seconds",
    type=float,
    above=0,
    help="Stop after so many seconds, counted anew when the run is resumed.",
)
COST = Option(name="max_cost", type=float, above=0, help="Begin nothing more once so many dollars are spent.")
LIMITS = (CONCURRENT, TIME_FOR_VERDICT, GIVE_UP, CALLS, TOKENS, SECONDS, COST)
FAILURES = Option(
    name="max_failures",
    type=float,
    default=MAX_FAILURES,
    least=0,
    most=1,
    help="Exit with 3 if a greater share of a judge's outcomes failed.",
)

JUDGES = Option(name="judges", type=list, flag="judge", help="Who judges.")
GATES = Option(
    name="gates",
    type=list,
    default=[],
    flag="gate",
    metavar="METRIC>=X",
    help="Exit with 1 if a figure is worse: f1>=0.7, failures<=0.02, lower(f1)>=0.6; repeatable.",
)
NAME = Option(name="name", help="A name for the run.")
TAGS = Option(name="tags", type=list, default=[], flag="tag", help="A tag for the run; repeatable.")
CACHE = Option(
    name="cache",
    type=bool,
    default=True,
    help="Use answers of earlier, equal calls (default), or not.",
)
RUN = (JUDGES, GATES, NAME, TAGS, CACHE)
