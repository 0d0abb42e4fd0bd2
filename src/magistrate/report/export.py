"""Export outcomes as rows, data frames, JSON values and files (CSV, JSON Lines, Parquet), and a run as
JUnit XML.

In Parquet every column is nullable, `context` is a list of texts and `claims` is JSON text.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from uuid import uuid4
from xml.etree import ElementTree

from magistrate.datasets.frames import FrameIndex
from magistrate.errors import MissingExtra, SpecError
from magistrate.report.formatting import plain
from magistrate.report.gates import GateResult
from magistrate.report.values import JudgeReport, Report
from magistrate.types import Abstention, Failure, Outcome, Sample, Scoring, Verdict

if TYPE_CHECKING:
    import pandas


# Column -> pandas type. All types are nullable, so a missing number does not become NaN.
COLUMNS = {
    "sample_id": "string",
    "judge": "string",
    "kind": "string",
    "label": "string",
    "score": "Float64",
    "probability": "Float64",
    "direction": "string",
    "threshold": "Float64",
    "explanation": "string",
    "gold_label": "string",
    "reason": "string",
    "message": "string",
    "seconds": "Float64",
    "tokens": "Int64",
}

WIDE = ("kind", "label", "score", "probability", "explanation", "reason")
"""The columns of each judge in a frame of one row a sample."""


def table(
    samples: Mapping[str, Sample],
    outcomes: Iterable[Outcome],
    scoring: Mapping[str, Scoring] | None = None,
) -> list[dict[str, Any]]:
    """Return one dict per outcome, in the given order, with the keys of `COLUMNS`.

    `direction` and `threshold` state how the score is read, by the `scoring` of the run; None if it is
    unknown. `kind` is `verdict`, `failure` or `abstention`. `reason` is the code of a failure or the reason
    of an abstention, and `message` its text. `tokens` is the sum of prompt and generated tokens. Values
    that do not apply are None, and so is `gold_label` if the sample is not among `samples` or has none.
    """
    known = scoring or {}
    return [_row(samples.get(each.sample_id), each, known.get(each.judge)) for each in outcomes]


def to_pandas(
    samples: Mapping[str, Sample],
    outcomes: Iterable[Outcome],
    *,
    index: FrameIndex | None = None,
    wide: bool = False,
    scoring: Mapping[str, Scoring] | None = None,
) -> pandas.DataFrame:
    """Return `table` as a data frame of nullable columns. Raises `MissingExtra` without pandas.

    With `index`, the index of the frame that the samples came from, each row gets the index value of its
    sample. A `wide` frame has one row per sample, judged or not, and the columns `WIDE` of each judge,
    named as in `faithfulness.label`.
    """
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise MissingExtra("pandas", "pandas") from error
    rows = table(samples, outcomes, scoring)
    own = [samples[row["sample_id"]] for row in rows] if index is not None else []
    types = COLUMNS
    if wide:
        own, judges = list(samples.values()), list(dict.fromkeys(row["judge"] for row in rows))
        types = {name: COLUMNS[name] for name in ("sample_id", "gold_label")}
        types |= {f"{judge}.{name}": COLUMNS[name] for judge in judges for name in WIDE}
        said = {(row["sample_id"], row["judge"]): row for row in rows}
        rows = [_wide(sample, judges, said) for sample in own]
    frame = pandas.DataFrame(rows, columns=list(types)).astype(types)
    return frame if index is None else frame.set_axis(index.again(own), axis=0)


def _wide(
    sample: Sample, judges: Iterable[str], said: Mapping[tuple[str, str], Mapping[str, Any]]
) -> dict[str, Any]:
    row: dict[str, Any] = {"sample_id": sample.id, "gold_label": sample.label}
    for judge in judges:
        own = said.get((sample.id, judge), {})
        row |= {f"{judge}.{name}": own.get(name) for name in WIDE}
    return row


def _row(sample: Sample | None, outcome: Outcome, scoring: Scoring | None) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {
        "sample_id": outcome.sample_id,
        "judge": outcome.judge,
        "gold_label": sample.label if sample is not None else None,
        "seconds": outcome.seconds,
        "tokens": outcome.usage.prompt + outcome.usage.generated,
    }
    match outcome:
        case Verdict():
            row |= {
                "kind": "verdict",
                "label": outcome.label,
                "score": outcome.score,
                "probability": outcome.probability,
                "direction": None if scoring is None else scoring.direction,
                "threshold": None if scoring is None else scoring.threshold,
                "explanation": outcome.explanation,
            }
        case Failure():
            row |= {"kind": "failure", "reason": outcome.code, "message": outcome.message}
        case Abstention():
            row |= {"kind": "abstention", "reason": outcome.reason, "message": outcome.message}
    return row


# --- parquet --------------------------------------------------------------------------------------


AT_ONCE = 5_000  # rows held in memory, and rows per row group
KINDS = {"string": "string", "Float64": "float64", "Int64": "int64"}


def write_rows(rows: Iterable[dict[str, Any]], raw: IO[bytes]) -> int:
    """Write the rows in batches and return their number. Raises `MissingExtra` without pyarrow."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetWriter
    except ModuleNotFoundError as error:
        raise MissingExtra("pyarrow", "parquet") from error
    text = pyarrow.string()
    schema = pyarrow.schema(
        [(name, getattr(pyarrow, KINDS[kind])()) for name, kind in COLUMNS.items()]
        + [("input", text), ("context", pyarrow.list_(text)), ("output", text), ("claims", text)]
    )
    written, coming = 0, iter(rows)
    with ParquetWriter(raw, schema, compression="zstd") as writer:
        while some := [_parquet_row(row) for row in itertools.islice(coming, AT_ONCE)]:
            writer.write_table(pyarrow.Table.from_pylist(some, schema))
            written += len(some)
    return written


def _parquet_row(row: dict[str, Any]) -> dict[str, Any]:
    claims = json.dumps(row["claims"], ensure_ascii=False, allow_nan=False)
    return {name: _utf8(value) for name, value in {**row, "claims": claims}.items()}


def _utf8(value: Any) -> Any:
    """Replace a lone surrogate, which UTF-8 cannot encode, by its escape."""
    if isinstance(value, list):
        return [_utf8(each) for each in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


# --- files ----------------------------------------------------------------------------------------


MORE = ("input", "context", "output", "claims")
PIECE = 65_536  # characters, about, that are sent together
FORMULA = re.compile(r"[\t\r]|[\s\ufeff\u200b\0]*[=+\-@＝＋－＠]")  # programs skip invisible characters
ENDINGS = {
    ".jsonl": "jsonl",
    ".csv": "csv",
    ".jsonl.gz": "jsonl",
    ".csv.gz": "csv",
    ".parquet": "parquet",
    ".html": "html",
}


def format_of(target: Path, *, replace: bool = False) -> str:
    """Return the format for a file's suffix: a value of `ENDINGS`.

    Raises `SpecError` for another suffix, and for a file that exists unless `replace` is set.
    """
    name = target.name.lower()
    found = next((kind for ending, kind in ENDINGS.items() if name.endswith(ending)), None)
    if found is None:
        *others, last = ENDINGS
        raise SpecError(f"unknown format of {target}; the name must end in {', '.join(others)} or {last}")
    if target.exists() and not replace:
        raise SpecError(f"{target} already exists; use --force to replace it")
    return found


def export(
    samples: Mapping[str, Sample],
    outcomes: Iterable[Outcome],
    target: Path,
    *,
    replace: bool = False,
    scoring: Mapping[str, Scoring] | None = None,
) -> int:
    """Write one row per outcome to a file of any format in `ENDINGS` but HTML, and return the number of
    rows.

    `scoring` states by judge how scores are read, as in `table`. In CSV, a text that a spreadsheet would
    read as a formula gets a leading apostrophe. Raises the errors of `format_of` and `write_whole`, and
    `MissingExtra` for Parquet without pyarrow.
    """
    kind = format_of(target, replace=replace)
    if kind == "html":
        raise SpecError(f"{target} is a report, not rows; write it with: magistrate export RUN --to {target}")
    rows = _rows(samples, outcomes, scoring)
    if kind == "parquet":
        return write_whole(target, lambda raw: write_rows(rows, raw))

    def write(raw: IO[bytes]) -> int:
        with _opened(raw, target.name.lower().endswith(".gz")) as text:
            write_row, written = _row_writer(kind, text), 0
            for row in rows:
                write_row(row)
                written += 1
            return written

    return write_whole(target, write)


def write_whole(target: Path, write: Callable[[IO[bytes]], int]) -> int:
    """Let `write` write a file atomically, so that it appears whole or not at all, and return its result.

    Raises `SpecError` if the file cannot be written.
    """
    # Opened like any other file, so that it gets the user's default permissions.
    temporary = target.parent / f".magistrate-{uuid4().hex}"
    try:
        try:
            with temporary.open("xb") as raw:
                written = write(raw)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise SpecError(f"cannot write {target}: {error.strerror or error}") from error
    return written


def _opened(raw: IO[bytes], zipped: bool) -> IO[str]:
    # A fixed time stamp, so that the same outcomes give the same bytes.
    binary: Any = gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) if zipped else raw
    return io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace", newline="")


def _rows(
    samples: Mapping[str, Sample], outcomes: Iterable[Outcome], scoring: Mapping[str, Scoring] | None
) -> Iterator[dict[str, Any]]:
    for outcome in outcomes:
        sample = samples[outcome.sample_id]
        (row,) = table(samples, [outcome], scoring)
        texts = {"input": sample.input, "context": list(sample.context), "output": sample.output}
        claims = outcome.claims if isinstance(outcome, Verdict) else ()
        yield {**row, **texts, "claims": [asdict(claim) for claim in claims]}


def streamed_rows(
    kind: str, pairs: Iterable[tuple[Sample, Outcome]], scoring: Mapping[str, Scoring]
) -> Iterator[bytes]:
    """Yield the rows of samples with their outcomes as `export` writes them, `csv` or `jsonl`, in pieces."""
    text = io.StringIO(newline="")
    write_row = _row_writer(kind, text)
    for sample, outcome in pairs:
        for row in _rows({sample.id: sample}, [outcome], scoring):
            write_row(row)
        if text.tell() >= PIECE:
            yield text.getvalue().encode("utf-8", "backslashreplace")
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode("utf-8", "backslashreplace")


def _row_writer(kind: str, text: IO[str]) -> Callable[[dict[str, Any]], object]:
    """Return what writes a row to `text`. The header of CSV is written at once."""
    if kind != "csv":
        return lambda row: text.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
    writer = csv.DictWriter(text, [*COLUMNS, *MORE])
    writer.writeheader()
    return lambda row: writer.writerow({name: _cell(value) for name, value in row.items()})


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and FORMULA.match(value):
        return "'" + value
    return value


# --- JSON -----------------------------------------------------------------------------------------


def outcome_data(outcome: Outcome, *, steps: bool) -> dict[str, Any]:
    """Return an outcome as plain values, with its `kind` first: `verdict`, `failure` or `abstention`."""
    data = {"kind": type(outcome).__name__.lower(), **asdict(outcome)}
    if not steps:
        del data["steps"]
    return data


def json_values(value: Any) -> Any:
    """Convert a value to plain JSON values. Anything else, infinite numbers too, becomes text."""
    if isinstance(value, Mapping):
        return {str(key): json_values(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    known = value is None or isinstance(value, str | int) or (isinstance(value, float) and isfinite(value))
    return value if known else str(value)


# --- JUnit XML -------------------------------------------------------------------------------------
#
# One test case per gate and judge. The elements and attributes are those that Jenkins, GitLab and GitHub's
# reporters read: `testsuites`, `testsuite` with `properties`, and `testcase` with at most one `failure`,
# `error` or `skipped`.

# Text may still contain characters that XML 1.0 cannot represent: lone surrogates and two code points.
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(
    report: Report,
    gates: Sequence[GateResult],
    *,
    max_failures: float | None = None,
    error: str | None = None,
) -> bytes:
    """Return the report as a UTF-8 JUnit XML document.

    Besides the gates it has a test case that the run finished, with `error` as the reason if it did not,
    and, if `max_failures` is given, one that no judge's share of failed outcomes exceeds it.
    """
    run = report.run
    # An unnamed run uses the name of its data, so that servers recognize the suite across runs.
    named = run.dataset if run.name == run.id else run.name
    suite = ElementTree.Element("testsuite", name=_safe(f"magistrate {named}"))
    properties = ElementTree.SubElement(suite, "properties")
    facts = [("run", run.id), ("dataset", run.dataset), ("samples", str(run.n_total))]
    facts += [("unread rows", "not counted" if run.unread is None else str(run.unread))]
    facts += [(f"recipe of {judge.judge}", judge.recipe or "not recorded") for judge in report.judges]
    facts += [(f"scores of {judge.judge}", _scoring(judge)) for judge in report.judges]
    for name, value in facts:
        ElementTree.SubElement(properties, "property", name=_safe(name), value=_safe(value))
    unfinished = None if run.status == "done" else f"the run is {run.status}: {run.reason or 'not finished'}"
    broken = unfinished if error is None else error
    _case(suite, "magistrate", "the run is finished", error=broken)
    if max_failures is not None:
        told = report.too_many_failures(max_failures)
        _case(suite, "magistrate", f"max-failures {max_failures:g}", error=told)
    _case(suite, "magistrate", "every judge gives a verdict", error=report.without_verdict)
    for gate in gates:
        _case(
            suite,
            f"magistrate.{gate.judge}",
            gate.gate,
            failure=None if gate.passed else gate.reason,
            told=gate.reason,
        )
    cases = suite.findall("testcase")
    counts = {
        kind: sum(case.find(kind[:-1]) is not None for case in cases) for kind in ("failures", "errors")
    }
    counts |= {"tests": len(cases)}
    seconds = f"{run.seconds or 0:.3f}"
    suite.attrib |= {name: str(n) for name, n in counts.items()} | {"skipped": "0", "time": seconds}
    suites = ElementTree.Element(
        "testsuites", {name: str(n) for name, n in counts.items()} | {"time": seconds}
    )
    suites.append(suite)
    ElementTree.indent(suites)
    document: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _scoring(judge: JudgeReport) -> str:
    """Return how a judge's scores are read, in words."""
    if judge.scoring is None:
        return "unknown"
    threshold = judge.scoring.threshold
    return judge.scoring.direction + ("" if threshold is None else f", threshold {threshold:g}")


def write_junit(target: Path, document: bytes) -> None:
    """Write the document, replacing an existing file. Raises `SpecError`."""
    try:
        target.write_bytes(document)
    except OSError as error:
        raise SpecError(f"cannot write {target}: {error.strerror}") from None


def fresh(target: Path | None) -> None:
    """Delete an earlier document, so that it is not mistaken for that of a run that has not ended.

    Pipes and devices hold none and stay. Behind a link, such as `/dev/stdout`, the file is emptied. Raises
    `SpecError` if the new document could not be written.
    """
    if target is None:
        return
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise SpecError(f"cannot write {target}: its folder does not exist")
    if target.exists() and not target.is_file():
        return
    try:
        if target.is_symlink() and target.exists():
            target.write_bytes(b"")
        else:
            target.unlink(missing_ok=True)
    except OSError as error:
        raise SpecError(f"cannot write {target}: {error.strerror}") from None


def _case(
    suite: ElementTree.Element,
    kind: str,
    name: str,
    *,
    failure: str | None = None,
    error: str | None = None,
    told: str | None = None,
) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=_safe(kind), name=_safe(name), time="0")
    for tag, message in (("failure", failure), ("error", error)):
        if message is not None:
            found = ElementTree.SubElement(case, tag, message=_safe(message), type=f"magistrate.{tag}")
            found.text = _safe(message)
    if told is not None and failure is None:
        ElementTree.SubElement(case, "system-out").text = _safe(told)


def _safe(text: str) -> str:
    """Return `text` with characters made visible that XML cannot represent or a terminal would interpret."""
    return FORBIDDEN.sub("\ufffd", plain(text))
