"""Everything Magistrate raises, and whether trying again would help.

::

    MagistrateError
    ├── InputError             what was passed in cannot be used             (exit 2)
    │   ├── SpecError          a name, option or file is not known
    │   ├── DatasetError       a row or file of samples cannot be read
    │   ├── ConstraintError    a schema or grammar cannot be enforced
    │   └── OverLength         the prompt does not fit the model's context window
    ├── NoVerdict              a judgement that could not be made, where a verdict is needed
    ├── ModelError             weights are missing, damaged or cannot be fetched
    ├── MissingPackage         a package is not installed
    │   └── MissingExtra       an optional dependency of this one is not installed
    ├── StoreError             the store cannot be read or written
    └── EngineError            the engine failed                             (retry may help)
        ├── EngineGone         the engine cannot answer any more            (exit 3)
        ├── EngineBusy         too much was asked at once
        ├── EngineRefused      the server will not answer this request
        ├── EngineTimeout      the answer took longer than was allowed
        ├── InvalidOutput      the model's text did not pass validation
        └── CapabilityError    the engine cannot do what was asked
"""

from __future__ import annotations

from typing import Any


class MagistrateError(Exception):
    """Base of every error that Magistrate raises on purpose."""

    retryable = False


class InputError(MagistrateError):
    """What was passed in cannot be used."""


class SpecError(InputError):
    """A name, an option or a file is not known; `key` is the key of a file that is to blame, if one is."""

    def __init__(self, message: str, *, key: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.key = key


class DatasetError(InputError):
    """Samples cannot be read; the message names the file and the line."""


class ConstraintError(InputError):
    """A schema or grammar cannot be enforced; `pointer` is the JSON pointer of the cause."""

    def __init__(self, message: str, pointer: str | None = None) -> None:
        super().__init__(f"{pointer}: {message}" if pointer is not None else message)
        self.pointer = pointer


class OverLength(InputError):
    """The prompt and the reserved output do not fit the model's context window."""


class NoVerdict(MagistrateError, AttributeError):
    """A verdict was needed, and `outcome` is the failure or the abstention that came instead.

    A label, score or probability that is read from such an outcome raises it too. It is an AttributeError, so
    that `hasattr(outcome, "label")` and `getattr(outcome, "label", None)` say that there is none, as tools
    that look at objects expect.
    """

    def __init__(self, message: str, outcome: Any = None) -> None:
        super().__init__(message)
        self.outcome = outcome


class ModelError(MagistrateError):
    """Model weights are missing, damaged or cannot be fetched."""


class MissingPackage(MagistrateError):
    """A package is not installed; the message says what installs it, `wanted` or the package itself."""

    def __init__(self, package: str, wanted: str | None = None) -> None:
        wanted = wanted or package
        super().__init__(f"this needs the package '{package}'; install it with: pip install '{wanted}'")


class MissingExtra(MissingPackage):
    """An optional dependency is not installed; the message names the extra."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(module, f"magistrate[{extra}]")


def require_extra(extra: str, *modules: str) -> None:
    """Raise `MissingExtra` for the first of `modules`, which the extra installs, that is not there."""
    from importlib.util import find_spec

    for module in modules:
        if find_spec(module) is None:
            raise MissingExtra(module, extra)


class StoreError(MagistrateError):
    """The store of runs cannot be read or written."""


class EngineError(MagistrateError):
    """The engine failed while answering; `status` is the HTTP status that a server answered with.

    It is None where there is no server, or where no answer of it came to its end.
    """

    retryable = True

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EngineGone(EngineError):
    """The engine cannot answer any more; every further call would fail too."""

    retryable = False


class EngineBusy(EngineError):
    """Too much was asked at once; later there will be room, after `retry_after` seconds if that was said."""

    def __init__(self, message: str, *, retry_after: float | None = None, status: int | None = None) -> None:
        super().__init__(message, status=status)
        self.retry_after = retry_after


class EngineRefused(EngineError):
    """The server will not answer this request: a filter, or something that it does not accept."""

    retryable = False


class EngineTimeout(EngineError):
    """The answer took longer than was allowed."""


class InvalidOutput(EngineError):
    """The model's text did not pass validation; `text` is what it wrote."""

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.text = text


class CapabilityError(EngineError):
    """The engine cannot do what was asked."""

    retryable = False
