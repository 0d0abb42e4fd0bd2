"""What the first visitor would have to wait for, done before the server answers.

Not meanwhile: libraries that two threads import at once are sometimes seen half imported.
"""

from __future__ import annotations

from functools import cache

from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Scoring, Verdict


@cache
def warm() -> None:
    """Count and draw a small run, as the first page would, so that all they need is imported; once a process.

    What draws and counts takes seconds to import, the judges' modules one.
    """
    import magistrate.runs.resume  # noqa: F401
    from magistrate.report.counts import Scores
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
    report = summarize(facts, samples, scores.noting(verdicts), {}, {"judge": Scoring("minimize")})
    figures_of(report.judges[0], scores.of("judge"))
    compile_all()
    judges_view()
