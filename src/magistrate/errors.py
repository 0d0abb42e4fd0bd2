"""The exceptions that Magistrate raises, and whether a retry may help.

::

    MagistrateError
    ├── InputError             an argument or a file cannot be used          (exit 2)
    │   ├── SpecError          a name, option or file is not known
    │   ├── DatasetError       a row or file of samples cannot be read
    │   ├── ConstraintError    a schema or grammar cannot be enforced
    │   └── OverLength         the prompt does not fit the model's context window
    ├── NoVerdict              a judgement failed or abstained, and a verdict is needed
    ├── ModelError             weights are missing, damaged or cannot be fetched
    ├── MissingPackage         a package is not installed
    │   └── MissingExtra       an optional dependency is not installed
    ├── StoreError             the store cannot be read or written
    └── EngineError            the engine failed                             (retry may help)
        ├── EngineGone         the engine cannot answer any more             (exit 3)
        ├── EngineBusy         too many requests at once
        ├── EngineRefused      the server rejects this request
        ├── EngineTimeout      the answer took too long
        ├── InvalidOutput      the model's text did not pass validation
        └── CapabilityError    the engine lacks a capability
"""

from __future__ import annotations

from typing import Any


class MagistrateError(Exception):
    """Base class of all errors that Magistrate raises on purpose."""

    retryable = False


class InputError(MagistrateError):
    """An argument or a file cannot be used."""


class SpecError(InputError):
    """A name, an option or a file is not known or not valid; `key` is the faulty key of a file, if any."""

    def __init__(self, message: str, *, key: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.key = key


class DatasetError(InputError):
    """Samples cannot be read; the message contains the file and the line."""


class ConstraintError(InputError):
    """A schema or grammar cannot be enforced; `pointer` is the JSON pointer of the cause."""

    def __init__(self, message: str, pointer: str | None = None) -> None:
        super().__init__(f"{pointer}: {message}" if pointer is not None else message)
        self.pointer = pointer


class OverLength(InputError):
    """The prompt and the reserved output do not fit the model's context window."""


class NoVerdict(MagistrateError, AttributeError):
    """A verdict was needed, but `outcome` is a failure or an abstention.

    Reading a label, score or probability from such an outcome raises it too. It is an AttributeError, so
    that `hasattr(outcome, "label")` is False and `getattr(outcome, "label", None)` is None, as tools that
    inspect objects expect.
    """

    def __init__(self, message: str, outcome: Any = None) -> None:
        super().__init__(message)
        self.outcome = outcome


class ModelError(MagistrateError):
    """Model weights are missing, damaged or cannot be fetched."""


class MissingPackage(MagistrateError):
    """A package is not installed; the message says how to install it, as `wanted` or by its name."""

    def __init__(self, package: str, wanted: str | None = None) -> None:
        wanted = wanted or package
        super().__init__(f"package '{package}' is required; install it with: pip install '{wanted}'")


class MissingExtra(MissingPackage):
    """An optional dependency is not installed; the message contains the extra."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(module, f"magistrate[{extra}]")


def require_extra(extra: str, *modules: str) -> None:
    """Raise `MissingExtra` for the first of `modules`, which the extra installs, that is not installed."""
    from importlib.util import find_spec

    for module in modules:
        if find_spec(module) is None:
            raise MissingExtra(module, extra)


class StoreError(MagistrateError):
    """The store of runs cannot be read or written."""


class EngineError(MagistrateError):
    """The engine failed to answer; `status` is the HTTP status of a server's answer.

    It is None without a server, or if no answer was complete.
    """

    retryable = True

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EngineGone(EngineError):
    """The engine cannot answer any more; every further call would fail too."""

    retryable = False


class EngineBusy(EngineError):
    """Too many requests at once; retry after `retry_after` seconds, if the server sent that."""

    def __init__(self, message: str, *, retry_after: float | None = None, status: int | None = None) -> None:
        super().__init__(message, status=status)
        self.retry_after = retry_after


class EngineRefused(EngineError):
    """The server rejects this request: because of a filter, or because it is not acceptable."""

    retryable = False


class EngineTimeout(EngineError):
    """The answer took longer than the timeout."""


class InvalidOutput(EngineError):
    """The model's text did not pass validation; `text` is that text."""

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.text = text


class CapabilityError(EngineError):
    """The engine lacks a capability that was requested."""

    retryable = False
