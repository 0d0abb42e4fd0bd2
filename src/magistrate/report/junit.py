"""A run for CI servers: JUnit XML, one test case a gate and judge.

The elements and attributes are those that Jenkins, GitLab and GitHub's reporters read: `testsuites`,
`testsuite` with `properties`, and `testcase` with at most one `failure`, `error` or `skipped`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from magistrate.errors import SpecError
from magistrate.report.formatting import plain
from magistrate.report.gates import GateResult, too_many_failures, without_verdict
from magistrate.report.values import JudgeReport, Report

# Plain text may still hold what XML 1.0 has no way to write: lone surrogates and two code points.
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(
    report: Report,
    gates: Sequence[GateResult],
    *,
    max_failures: float | None = None,
    error: str | None = None,
) -> bytes:
    """The document, UTF-8.

    Besides the gates there is a case that the run was finished, with `error`, what ended it, where something
    did; and one that no greater share than `max_failures` of a judge's outcomes failed, where a limit is
    known.
    """
    run = report.run
    # A run without a name is called by its data, so that servers see the same suite again.
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
        told = too_many_failures(report, max_failures)
        _case(suite, "magistrate", f"max-failures {max_failures:g}", error=told)
    _case(suite, "magistrate", "every judge gives a verdict", error=without_verdict(report))
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
    """How a judge's scores are read."""
    if judge.scoring is None:
        return "not known"
    threshold = judge.scoring.threshold
    return judge.scoring.direction + ("" if threshold is None else f", threshold {threshold:g}")


def write_junit(target: Path, document: bytes) -> None:
    """Write the document, in place of what is there: a report is of the last run. Raises `SpecError`."""
    try:
        target.write_bytes(document)
    except OSError as error:
        raise SpecError(f"cannot write {target}: {error.strerror}") from None


def fresh(target: Path | None) -> None:
    """Take away an earlier document, so that it cannot pass for that of a run that has not ended.

    Raises `SpecError` where the new one could not be written.
    """
    if target is None:
        return
    if target.is_dir() or not target.absolute().parent.is_dir():
        raise SpecError(f"cannot write {target}: name a file in a folder that is there")
    target.unlink(missing_ok=True)


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
    """`text` with what XML cannot hold, or a terminal would obey, made visible."""
    return FORBIDDEN.sub("\ufffd", plain(text))
