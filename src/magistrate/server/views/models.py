"""Which models there are, which of them are here, and what of the package is installed."""

from __future__ import annotations

from dataclasses import dataclass

from magistrate.engines.models import Weights, entries, pulled
from magistrate.report.extras import Extra, extras


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLine:
    """A model of the catalogue.

    `weights` are those with which it is here, none where it was not pulled; `bytes` is the size of what is
    downloaded, `parameters` a count, `context_length` in tokens. `selftest` says whether it is known what it
    must answer; `command` brings it here.
    """

    name: str
    default: bool
    weights: tuple[Weights, ...]
    source: str
    sha256: str
    bytes: int
    quantization: str
    parameters: int
    context_length: int
    languages: tuple[str, ...]
    licence: str
    licence_source: str
    notes: str
    selftest: bool
    command: str

    @property
    def pulled(self) -> bool:
        """Whether it can be asked."""
        return bool(self.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsView:
    """The catalogue in its order, and the optional parts of the package."""

    models: tuple[ModelLine, ...]
    extras: tuple[Extra, ...]


def models_view() -> ModelsView:
    """All of them, as they are on disk right now."""
    return ModelsView(
        models=tuple(
            ModelLine(
                name=each.name,
                default=each.default,
                weights=tuple(pulled(each)),
                source=str(each.source),
                sha256=each.sha256,
                bytes=each.size,
                quantization=each.quantization,
                parameters=each.parameters,
                context_length=each.context_length,
                languages=each.languages,
                licence=each.licence,
                licence_source=each.licence_source,
                notes=each.notes,
                selftest=each.selftest is not None,
                command=f"magistrate models pull {each.name}",
            )
            for each in entries()
        ),
        extras=tuple(extras()),
    )
