"""Where verdicts are sent: the `send` section of a rules file.

send:
  - endpoint: http://localhost:4318
    as: [events, spans]
    headers_env: {Authorization: OTLP_AUTHORIZATION}
  - endpoint: http://localhost:6006
    as: [annotations]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from magistrate.watch.parts import Part, Variable, read_variable

Form = Literal["events", "spans", "annotations"]


def _address(value: str) -> str:
    """Validate an address that can be stored and shown. Keys and passwords belong in the environment."""
    try:
        parts = urlsplit(value)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise ValueError("an address must start with http:// or https:// and a host")
    if "@" in value or "?" in value or "#" in value:
        raise ValueError(
            "must not contain a password, ? or #; put a key into an environment variable: headers_env"
        )
    return value.rstrip("/")


Address = Annotated[str, Field(max_length=500), AfterValidator(_address)]
HeadersFrom = dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$", max_length=100)], Variable]


class SendPart(Part):
    """A server that receives verdicts over OTLP, or Phoenix."""

    endpoint: Address = Field(
        description="Its address; /v1/logs, /v1/traces and /v1/span_annotations are appended."
    )
    forms: list[Form] = Field(
        default=["events", "spans"],
        alias="as",
        min_length=1,
        description="As `gen_ai.evaluation.result` events on the judged span, and as OpenInference's "
        "evaluator spans with a link to it; or as annotations of the judged span in Phoenix.",
    )
    headers_env: HeadersFrom = Field(
        default={}, description="Headers by name, each with the environment variable of its value."
    )
    encoding: Literal["json", "protobuf"] = Field(
        default="json", description="Encoding of events and spans; protobuf needs the extra otlp."
    )

    @property
    def destinations(self) -> dict[str, Form]:
        """The outbox destination name of each form, mapped to the form."""
        return {f"{form} to {self.endpoint}": form for form in self.forms}

    def headers(self) -> Mapping[str, str]:
        """Read the headers from the environment. Raises `SpecError`."""
        return read_headers(self.headers_env)


def read_headers(named: Mapping[str, str]) -> dict[str, str]:
    """Read headers from the named environment variables. Raises `SpecError` for one that is not set."""
    return {name: read_variable(variable, f"the header {name}") for name, variable in named.items()}
