"""Which optional dependencies of the package are installed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from magistrate.engines.registry import KINDS

EXTRAS = {
    **{kind.extra: kind.packages for kind in KINDS},
    "analysis": ("scikit-learn", "scipy"),
    "hub": ("huggingface-hub",),
    "otlp": ("opentelemetry-proto", "opentelemetry-sdk"),
    "otlp-grpc": ("grpcio", "googleapis-common-protos"),
    "pandas": ("pandas",),
    "parquet": ("pyarrow",),
    "postgres": ("psycopg",),
    "reference": ("sacrebleu",),
    "server": ("fastapi", "uvicorn"),
    "zstd": () if sys.version_info >= (3, 14) else ("backports-zstd",),  # Python has it from there on
}


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra of the package: which distributions of it are `found`, each with its version, and `absent`."""

    name: str
    found: tuple[str, ...]
    absent: tuple[str, ...]

    @property
    def hint(self) -> str:
        """How to install it."""
        return f"pip install 'magistrate[{self.name}]'"


def extras() -> list[Extra]:
    """Every extra with what is there of it."""
    return [_looked_up(name, packages) for name, packages in EXTRAS.items()]


def _looked_up(name: str, packages: tuple[str, ...]) -> Extra:
    found, absent = [], []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            absent.append(package)
    return Extra(name, tuple(found), tuple(absent))
