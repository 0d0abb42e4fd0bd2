"""What the first visitor would have to wait for, done while the server starts."""

from __future__ import annotations

from threading import Thread

from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Verdict


def warm() -> None:
    """Begin to import what pages use and do not name when they are imported themselves; returns at once.

    What draws and counts takes seconds to import, the judges' modules one.
    """
    Thread(target=_use, name="magistrate-warming", daemon=True).start()


def _use() -> None:
    """Count and draw a small run, as the first page would."""
    import magistrate.resuming  # noqa: F401
    from magistrate.report.scores import Scores
    from magistrate.report.summary import summarize
    from magistrate.report.values import RunFacts
    from magistrate.server.preparing import prepare
    from magistrate.server.rendering import compile_all
    from magistrate.server.views.judges import judges_view
    from magistrate.server.views.run_figures import figures_of

    prepare()
    labels = (FAITHFUL, HALLUCINATED)
    samples = {str(i): Sample(str(i), "a b", (f"c {i}",), label=labels[i % 2]) for i in range(8)}
    verdicts = [Verdict(str(i), "judge", labels[i // 4], float(i // 4)) for i in range(8)]
    scores = Scores(samples)
    facts = RunFacts("warm", "warm", "none", "done", len(samples))
    report = summarize(facts, samples, scores.noting(verdicts), {})
    figures_of(report.judges[0], scores.of("judge"), "warm")
    compile_all()
    judges_view()
