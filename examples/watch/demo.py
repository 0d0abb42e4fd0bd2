"""Watch an application for half a minute: `make demo-watch`.

The help desk of `app.py` answers questions with a model that errs where its script says so. `magistrate
serve --watch` receives its spans, judges the answers by `rules.yaml` and raises an alert. The results are
compared with the script. All files are kept in a new folder below `build/`, and no process keeps running.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.watch import model
from magistrate.store import Store
from magistrate.store.decisions import SUPERSEDED
from magistrate.types import HALLUCINATED, Verdict

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RULES, RULE, ALERT = HERE / "rules.yaml", "answers", "too much is made up"
PROBES = ("When does the museum open?", "What does a ticket cost for adults?")
"""What the monitoring asks again and again, which is not to be judged."""
PAUSE = 0.2  # seconds between two questions
LONGEST = 90.0  # most seconds to wait for anything
OPEN = ("waiting", "queued", "retrying")
SHOWN = 2  # examples of each kind of error


class DemoError(Exception):
    """The demonstration could not finish."""


@dataclass(frozen=True, slots=True)
class Result:
    """The results of the traffic: the number of traces, the decisions by state, and the verdicts.

    `said` holds the answers that got a verdict, by (known to be hallucinated, flagged). `known` is the
    number of hallucinated answers that the model gave to visitors. `alerts` are the messages that were
    sent.
    """

    traces: int
    states: Mapping[str, int]
    judge: str
    said: Mapping[tuple[bool, bool], Sequence[str]]
    known: int
    alerts: Sequence[Mapping[str, Any]]

    @property
    def answers(self) -> int:
        """The number of answers received; each has one decision."""
        return sum(self.states.values())


def asked(script: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the questions in order, with the monitoring's own questions between them."""
    found: list[dict[str, Any]] = [{"question": each} for each in script]
    for place, each in enumerate(PROBES):
        found.insert(20 * (place + 1), {"question": each, "probe": True})
    return found


def result(place: Path, script: Mapping[str, Mapping[str, Any]], alerts: Path) -> Result:
    """Return the results in a store, compared with the script."""
    said: dict[tuple[bool, bool], list[str]] = {(a, b): [] for a in (True, False) for b in (True, False)}
    judge = ""
    with Store.open(place) as store:
        with store.snapshot() as moment:
            traces = moment.trace_counts().n
        states = {state: n for state, n in store.traces.counts(RULE).items() if state != SUPERSEDED}
        record = store.traces.rule(RULE)
        if record is not None and record.run_id is not None:
            outcomes = list(store.outcomes(record.run_id))
            samples = {each.id: each for each in store.samples(record.run_id)}
            for outcome in outcomes:
                if isinstance(outcome, Verdict):
                    judge, sample = outcome.judge, samples[outcome.sample_id]
                    is_known = script[str(sample.input)]["hallucinated"]
                    said[is_known, outcome.label == HALLUCINATED].append(str(sample.output))
    lines = alerts.read_text(encoding="utf-8").splitlines() if alerts.exists() else []
    known = sum(each.get("hallucinated", False) for each in script.values())
    return Result(traces, states, judge, said, known, [json.loads(line) for line in lines])


def screen(found: Result, seconds: float, commands: Mapping[str, str]) -> str:
    """Return the text that is printed at the end."""
    said = {key: len(each) for key, each in found.said.items()}
    states = sorted(found.states.items(), key=lambda item: -item[1])
    silent = found.known - said[True, True] - said[True, False]
    lines = [
        f"── watched for {seconds:.0f} s: {found.answers} answers came in, of {found.traces} traces",
        "",
        "decided",
        *(f"  {n:>4} {state}" for state, n in states),
        f"  {sum(found.states.values()):>4} in all",
        "",
        f"judge {found.judge:<22}  flagged  not flagged",
        _row("known hallucinations", said[True, True], said[True, False]),
        _row("right answers", said[False, True], said[False, False]),
        *([f"  {silent} known hallucinations have no verdict"] if silent else []),
        *(f"  missed: {text}" for text in found.said[True, False][:SHOWN]),
        *(f"  wrongly flagged: {text}" for text in found.said[False, True][:SHOWN]),
        "",
        *(f"alert {each['alert']!r} {each['state']}: {each['text']}" for each in found.alerts),
        "",
        *(f"{what}: {line}" for what, line in commands.items()),
    ]
    return "\n".join(lines)


def _row(name: str, flagged: int, not_flagged: int) -> str:
    return f"  {flagged + not_flagged:>2} {name:<25}{flagged:>7}  {not_flagged:>11}"


# --- running it -------------------------------------------------------------------------------------


@contextmanager
def watching(folder: Path) -> Iterator[str]:
    """Yield the address of `magistrate serve --watch` on a free port."""
    words = [sys.executable, "-m", "magistrate", "serve", "--port", "0"]
    words += ["--store", str(folder / "watch.db"), "--watch", str(folder / "rules.yaml")]
    log = folder / "serve.log"
    with (
        log.open("w") as told,
        _process(words, stdout=subprocess.PIPE, stderr=told, env=_environment()) as server,
    ):
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        if not address.startswith("http"):
            raise DemoError(f"magistrate serve did not start; see {log}")
        yield address
        server.send_signal(signal.SIGINT)
        server.wait(LONGEST)


def traffic(questions: Sequence[Mapping[str, Any]], collector: str, base_url: str, log: Path) -> None:
    """Let the application answer the questions, one after another, and send its spans."""
    environment = _environment() | {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": "none",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.rstrip("/"),
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    words = [sys.executable, str(HERE / "app.py")]
    with log.open("w") as told, _process(words, stdin=subprocess.PIPE, stderr=told, env=environment) as app:
        assert app.stdin is not None
        try:
            for number, each in enumerate(questions):
                app.stdin.write(json.dumps(dict(each)) + "\n")
                app.stdin.flush()
                if (number + 1) % 14 == 0:
                    print(f"  {number + 1} of {len(questions)} questions asked", flush=True)
                time.sleep(PAUSE)
            app.stdin.close()
        except BrokenPipeError:
            raise DemoError(f"the application ended too early; see {log}") from None
        if app.wait(LONGEST):
            raise DemoError(f"the application failed; see {log}")


def _environment() -> dict[str, str]:
    """Return the environment, without variables that send spans elsewhere or set a token."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    kept.pop("MAGISTRATE_TOKEN", None)
    return kept | {"NO_PROXY": "*", "no_proxy": "*"}


@contextmanager
def _process(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process, and kill it at the latest when the block ends."""
    with subprocess.Popen(words, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    """Wait until `is_so` returns true. Raises `DemoError` after `LONGEST` seconds."""
    print(f"  waiting until {what}", flush=True)
    until = time.monotonic() + LONGEST
    while not is_so():
        if time.monotonic() > until:
            raise DemoError(f"it took more than {LONGEST:g} seconds until {what}")
        time.sleep(0.2)


def run() -> None:
    """Run the whole demonstration."""
    above = ROOT / "build" / "demo-watch"
    above.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=above))
    shutil.copyfile(RULES, folder / "rules.yaml")
    place, alerts = folder / "watch.db", folder / "alerts.jsonl"
    script, began = model.script(), time.monotonic()
    questions = asked(script)
    with model.serving(script) as base_url, watching(folder) as address:
        print(f"magistrate serve --watch takes spans at {address}v1/traces", flush=True)
        traffic(questions, address, base_url, folder / "app.log")

        wait_for("every answer is decided", lambda: is_decided(place, len(questions)))
        wait_for("the alert fires", lambda: fires(place))
    found = result(place, script, alerts)
    store = place.relative_to(ROOT)
    commands = {
        "see it at /watch": f".venv-watch/bin/magistrate serve --store {store} --open",
        "in figures": f".venv-watch/bin/magistrate watch status --store {store}",
    }
    print("\n" + screen(found, time.monotonic() - began, commands))


def is_decided(place: Path, n: int) -> bool:
    """Return whether there are `n` answers and none is pending."""
    with Store.open(place) as store:
        states = store.traces.counts(RULE)
    return sum(states.values()) - states.get(SUPERSEDED, 0) == n and not any(each in OPEN for each in states)


def fires(place: Path) -> bool:
    """Return whether the alert fires and was sent."""
    with Store.open(place) as store:
        unsent = any(each.waiting for each in store.outbox.queues())
        return not unsent and any(each.firing for each in store.watched.alerts() if each.name == ALERT)


def main() -> int:
    """Run the demonstration. Returns exit code 1 if it fails."""
    try:
        run()
    except DemoError as error:
        print(f"\nthe demonstration failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
