"""What visitors tried lately: in memory only, at an address that nobody can guess."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from magistrate.errors import SpecError
from magistrate.server.asking import Question
from magistrate.server.judging import Judgement, Judging

MOST = 100
SECONDS = 3600.0
CHARACTERS = 20_000_000  # of all their texts together

GONE = "there is no such try; the last {most} are kept, for an hour at most, and none when the server ends"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What somebody typed or chose, as it was; there is an empty text where nothing was."""

    output: str = ""
    context: tuple[str, ...] = ()
    input: str = ""
    expected: str = ""
    judge: str = ""
    options: str = ""
    model: str = ""

    @property
    def size(self) -> int:
        """All its characters."""
        return sum(map(len, (self.output, *self.context, self.input, self.expected)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A form that was sent, and the judgement that came of it."""

    id: str
    form: Form
    judgement: Judgement
    made: float


class Tries:
    """The newest `most` tries of the last hour, fewer where their texts are long; the oldest go first."""

    def __init__(
        self, judging: Judging, *, most: int = MOST, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._judging = judging
        self._most = most
        self._clock = clock
        self._kept: OrderedDict[str, Try] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, form: Form, question: Question) -> Try:
        """Have it judged. Raises `BusyError`."""
        judgement = self._judging.begin(question)
        made = Try(id=secrets.token_urlsafe(16), form=form, judgement=judgement, made=self._clock())
        with self._lock:
            self._kept[made.id] = made
            dropped = self._dropped()
        for each in dropped:
            self._judging.cancel(each.judgement)  # nobody can look at it any more
        return made

    def find(self, id: str) -> Try:
        """The try at this address. Raises `SpecError` where there is none any more."""
        with self._lock:
            found = self._kept.get(id)
            if found is None or self._clock() - found.made > SECONDS:
                raise SpecError(GONE.format(most=self._most))
            return found

    def stop(self, id: str) -> None:
        """Give up a judgement. Raises `SpecError` where there is no such try."""
        self._judging.cancel(self.find(id).judgement)

    def _dropped(self) -> list[Try]:
        """Forget what is too much, the newest try never."""
        size = sum(each.form.size for each in self._kept.values())
        dropped = []
        for id, each in list(self._kept.items())[:-1]:
            old = self._clock() - each.made > SECONDS
            if not old and len(self._kept) <= self._most and size <= CHARACTERS:
                break
            dropped.append(self._kept.pop(id))
            size -= each.form.size
        return dropped
