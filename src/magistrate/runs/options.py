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


LIMIT = Option(name="limit", type=int, least=1, help="Only the first N samples.")
SAMPLE = Option(name="sample", type=int, least=1, help="N random samples.")
BALANCE = Option(
    name="balance",
    metavar="FIELD",
    help="With --sample: equally many samples for each value of this field, such as label.",
)
SEED = Option(name="seed", type=int, default=0, help="Seed of --sample.")
VIEW = Option(name="view", help="A view of a named set, such as article200.")
MAP = Option(name="map", type=dict, default={}, help="The column of a field; repeatable.")
LABELS = Option(
    name="labels",
    type=dict,
    default={},
    help="Meaning of values in the label column (faithful, hallucinated or unlabelled), such as "
    "ok=faithful,bad=hallucinated; repeatable.",
)
UNREAD = Option(
    name="max_unread",
    type=float,
    default=MAX_UNREAD,
    least=0,
    most=1,
    help="Exit with 2 if a larger share of rows cannot be read.",
)
DATA = (LIMIT, SAMPLE, BALANCE, SEED, VIEW, MAP, LABELS, UNREAD)

MODEL = Option(
    name="model",
    help="The model to ask: a catalogue name, a GGUF file, an OpenVINO folder, openai:MODEL, ollama:MODEL, "
    "vllm:MODEL, anthropic:MODEL or transformers:FOLDER (default: the small built-in one).",
)
BASE_URL = Option(
    name="base_url", metavar="URL", help="The address of the server for openai:MODEL and similar."
)
DEVICE = Option(
    name="device", help="The device that runs the model, such as CPU (default: $MAGISTRATE_DEVICE or CPU)."
)
THREADS = Option(
    name="threads", type=int, least=1, help="Number of cores to use (default: all that are available)."
)
TIMEOUT = Option(
    name="timeout", type=float, above=0, help="Time limit for one call of the model, in seconds."
)
PRICE = Option(
    name="price",
    metavar="IN/OUT",
    help="Price of tokens, in US dollars per million (default: the known price).",
)
ENGINE = (MODEL, BASE_URL, DEVICE, THREADS, TIMEOUT)

CONCURRENT = Option(
    name="concurrency",
    type=int,
    default=CONCURRENCY,
    least=1,
    help="How many samples are judged at the same time.",
)
TIME_FOR_VERDICT = Option(
    name="deadline", type=float, default=DEADLINE, above=0, help="Time limit for one verdict, in seconds."
)
GIVE_UP = Option(
    name="give_up_after",
    type=int,
    default=GIVE_UP_AFTER,
    least=1,
    help="Exit with 3 after this many failures of the engine in a row.",
)
TOKENS = Option(
    name="max_tokens", type=int, least=1, help="Start no new sample after this many tokens have been used."
)
CALLS = Option(
    name="max_calls", type=int, least=1, help="Start no new sample after this many calls have been made."
)
SECONDS = Option(
    name="max_seconds",
    type=float,
    above=0,
    help="Stop after this many seconds; a resumed run counts from 0 again.",
)
COST = Option(
    name="max_cost",
    type=float,
    above=0,
    help="Start no new sample after this many US dollars have been spent.",
)
LIMITS = (CONCURRENT, TIME_FOR_VERDICT, GIVE_UP, CALLS, TOKENS, SECONDS, COST)
FAILURES = Option(
    name="max_failures",
    type=float,
    default=MAX_FAILURES,
    least=0,
    most=1,
    help="Exit with 3 if a larger share of a judge's outcomes failed.",
)

JUDGES = Option(name="judges", type=list, flag="judge", help="The judge to use.")
GATES = Option(
    name="gates",
    type=list,
    default=[],
    flag="gate",
    metavar="METRIC>=X",
    help="Exit with 1 unless a figure meets this condition: f1>=0.7, failures<=0.02, lower(f1)>=0.6; "
    "repeatable.",
)
NAME = Option(name="name", help="A name for the run.")
TAGS = Option(name="tags", type=list, default=[], flag="tag", help="A tag for the run; repeatable.")
CACHE = Option(
    name="cache",
    type=bool,
    default=True,
    help="Reuse answers of earlier identical calls (default), or ask again.",
)
WORKERS = Option(
    name="workers",
    type=int,
    least=1,
    help="How many processes judge (default: 1; for judges that ask no model, one per core if there are more "
    "than 2,000 samples).",
)
SHARD = Option(
    name="shard",
    metavar="I/N",
    help="Judge only the I-th of N shares of the samples, and leave the others to other processes.",
)
RUN = (JUDGES, GATES, NAME, TAGS, CACHE, WORKERS, SHARD)
