"""Settings of an engine: a server's address, a device, a timeout, the number of calls at once."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf

from magistrate.errors import SpecError

CONCURRENCY = 16  # calls under way at a time, unless a number is given

OPTIONS = {
    "base_url": "--base-url",
    "device": "--device",
    "threads": "--threads",
    "timeout": "--timeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Settings of an engine beside its name; None where nothing is given.

    `base_url` is where a server listens, such as `http://127.0.0.1:8080/v1`; `device` and `threads` are for
    models in this process; `hidden_states` asks for an engine that shows them. A call may take `timeout`
    seconds. A user of the engine has at most `concurrency` calls under way at once; all users without a
    number of their own share 16. Settings that differ only in that are equal: they name the same engine.
    Raises `SpecError` for impossible values.
    """

    base_url: str | None = None
    device: str | None = None
    threads: int | None = None
    hidden_states: bool = False
    timeout: float | None = None
    concurrency: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise SpecError(f"threads must be at least 1, got {self.threads}")
        if self.timeout is not None and not 0 < self.timeout < inf:
            raise SpecError(f"timeout must be a finite number of seconds above 0, got {self.timeout}")
        if self.concurrency is not None and self.concurrency < 1:
            raise SpecError(f"concurrency must be at least 1, got {self.concurrency}")

    def refuse(self, who: str, *names: str) -> None:
        """Raise `SpecError` if one of these is given: no setting is silently ignored."""
        for each in fields(self):
            if each.name in names and getattr(self, each.name) != each.default:
                told = OPTIONS.get(each.name, each.name)
                raise SpecError(f"{who} has no use for {told}; leave it out")
