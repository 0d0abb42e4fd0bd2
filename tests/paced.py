"""A run in a process of its own, whose judge comes as far as the parent process says.

`python paced.py STORE N` judges N samples; each line of standard input is how many more may be judged. It
prints a line once it has begun.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

NAME = "from elsewhere"


def main(store: str, n: int) -> None:
    """Judge; an engine that is not let on waits."""
    import magistrate
    from magistrate import Prompt, ScriptedEngine

    allowed, begun = 0, False

    def listen() -> None:
        nonlocal allowed
        for line in sys.stdin:
            allowed += int(line)

    async def script(prompt: Prompt) -> Mapping[str, float]:
        nonlocal begun
        if not begun:
            begun = True
            print("begun", flush=True)
        (output,) = (part.text for part in prompt.data() if part.name == "output")
        number = int(output.split()[-1])
        while number >= allowed:  # noqa: ASYNC110 (another thread counts)
            await asyncio.sleep(0.01)
        return (
            {"faithful": 0.9, "hallucinated": 0.1} if number % 3 else {"faithful": 0.2, "hallucinated": 0.8}
        )

    threading.Thread(target=listen, daemon=True).start()
    labels = ("hallucinated", "faithful")
    rows = [
        {"id": f"s{at}", "output": f"claim {at}", "context": [f"it is {at}"], "label": labels[at % 2]}
        for at in range(n)
    ]
    engine = ScriptedEngine(script, name="paced")
    magistrate.evaluate(rows, "faithfulness", model=engine, name=NAME, store=store, progress=False)


class Paced:
    """The run from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def judge(self, n: int) -> None:
        """Let it judge so many samples more."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{n}\n")
        self._process.stdin.flush()

    def ends(self) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait(60)


@contextmanager
def paced(store: Path, n: int) -> Iterator[Paced]:
    """Begin a run of `n` samples, none of which it may judge yet; it is ended where it has not."""
    words = [sys.executable, __file__, str(store), str(n)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n", "the run did not begin"
            yield Paced(process)
        finally:
            if process.poll() is None:
                process.kill()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
