"""The alert section of a rules file: a bound on a rule's metric over one or two windows, and the sinks.

alerts:
  - name: refunds are made up
    rule: refunds
    when: lower(flag_rate) > 0.1
    n: 50
    windows: [1h, 6h]
    clear: 0.08
    to: [team]
sinks:
  team: {webhook: {url_env: SLACK_WEBHOOK, format: slack}}
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.utils import parseaddr
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from magistrate.errors import SpecError
from magistrate.watch.outputs import Address, HeadersFrom
from magistrate.watch.parts import DURATION, Part, Seconds, Variable, duration

FIGURES = (
    *("flag_rate", "verdicts", "coverage", "failures", "queue_age"),
    *("spend.calls", "spend.tokens", "spend.dollars"),
)
OPERATORS = (">=", "<=", ">", "<")
_WHEN = re.compile(
    r"\s*(?:(lower|upper)\s*\(\s*([a-z_.]+)\s*\)|([a-z_.]+))\s*(>=|<=|>|<)\s*([0-9]*\.?[0-9]+|\d+[smhdw])\s*"
)


@dataclass(frozen=True, slots=True)
class Bound:
    """A comparison of a metric (`figure`), or an end of its confidence interval, with a number."""

    figure: str
    end: str | None
    operator: str
    value: float

    def holds(self, found: float, value: float | None = None) -> bool:
        """Return whether `found` passes the bound, or passes `value` if that is given."""
        limit = self.value if value is None else value
        return {
            ">": found > limit,
            ">=": found >= limit,
            "<": found < limit,
            "<=": found <= limit,
        }[self.operator]


def bound(words: str) -> Bound:
    """Parse a bound such as `lower(flag_rate) > 0.1` or `queue_age > 10m`. Raises `SpecError`.

    >>> bound("lower(flag_rate) > 0.1")
    Bound(figure='flag_rate', end='lower', operator='>', value=0.1)
    """
    found = _WHEN.fullmatch(words)
    if found is None:
        raise SpecError(
            f"must be a figure, one of {' '.join(OPERATORS)} and a number, such as lower(flag_rate) > 0.1; "
            f"got {words!r:.60}"
        )
    end, figure = found[1], found[2] or found[3]
    if figure not in FIGURES:
        raise SpecError(f"unknown figure {figure!r}; known: {', '.join(FIGURES)}")
    if end is not None and figure != "flag_rate":
        raise SpecError(f"{end}() works only for flag_rate; {figure} has no interval")
    if DURATION.fullmatch(found[5]):
        if figure != "queue_age":
            raise SpecError(f"a time works only for queue_age; {figure} needs a number")
        return Bound(figure, end, found[4], duration(found[5]).total_seconds())
    return Bound(figure, end, found[4], float(found[5]))


def _when(words: str) -> str:
    try:
        bound(words)
    except SpecError as error:
        raise ValueError(str(error)) from None
    return words


class AlertPart(Part):
    """A bound on a metric, and the sinks that are notified when the alert fires and when it resolves."""

    name: str = Field(min_length=1, max_length=100, description="Its name in messages.")
    rule: str | None = Field(default=None, description="The rule it is about; optional if there is only one.")
    judge: str | None = Field(
        default=None, description="The judge of flag_rate, verdicts and coverage; by default the last one."
    )
    when: Annotated[str, Field(max_length=100), AfterValidator(_when)] = Field(
        description=f"The bound, such as lower(flag_rate) > 0.1. Known: {', '.join(FIGURES)}."
    )
    n: int = Field(default=1, ge=1, description="flag_rate: the minimum number of verdicts in a window.")
    windows: list[Seconds] = Field(
        default=[3600.0],
        min_length=1,
        max_length=2,
        description="The time windows, shortest first; the alert fires if the bound is passed in all.",
    )
    clear: float | None = Field(
        default=None,
        description="The alert ends when the short window is back within this value; by default, within the "
        "bound.",
    )
    to: list[str] | None = Field(default=None, description="The sinks that get the alert; by default all.")

    @model_validator(mode="after")
    def _fits(self) -> AlertPart:
        if any(each <= 0 for each in self.windows) or sorted(self.windows) != self.windows:
            raise ValueError("windows must be times above 0, shortest first")
        parsed = self.bound
        if self.clear is not None and parsed.holds(self.clear):
            raise ValueError(f"clear: {self.clear:g} is itself beyond {self.when!r}")
        return self

    @property
    def bound(self) -> Bound:
        """The parsed `when`."""
        return bound(self.when)


# --- sinks --------------------------------------------------------------------------------------------


class WebhookPart(Part):
    """A webhook: a URL that receives a POST of JSON."""

    url: Address | None = Field(default=None, description="The address, if it is not secret.")
    url_env: Variable | None = Field(default=None, description="The environment variable with the address.")
    format: Literal["json", "slack"] = Field(default="json", description="Plain JSON, or Slack's format.")
    headers_env: HeadersFrom = Field(
        default={}, description="Headers by name, each with the environment variable of its value."
    )

    @model_validator(mode="after")
    def _has_one(self) -> WebhookPart:
        if (self.url is None) == (self.url_env is None):
            raise ValueError("needs either url or url_env")
        return self


def _mail(value: str) -> str:
    if "@" not in parseaddr(value)[1] or any(ord(letter) < 32 for letter in value):
        raise ValueError("must be an address such as team@example.org")
    return value


Mail = Annotated[str, Field(max_length=300), AfterValidator(_mail)]


class MailPart(Part):
    """Mail sent through an SMTP server."""

    host: str = Field(min_length=1, max_length=253, description="The server.")
    port: int = Field(default=587, ge=1, le=65535, description="Its port.")
    security: Literal["starttls", "tls", "none"] = Field(
        default="starttls", description="How the connection is encrypted."
    )
    user_env: Variable | None = Field(default=None, description="The environment variable with the user.")
    password_env: Variable | None = Field(
        default=None, description="The environment variable with the password."
    )
    sender: Mail = Field(alias="from", description="The sender.")
    to: list[Mail] = Field(min_length=1, description="The recipients.")

    @model_validator(mode="after")
    def _has_both(self) -> MailPart:
        if (self.user_env is None) != (self.password_env is None):
            raise ValueError("needs both user_env and password_env, or neither")
        return self


class SinkPart(Part):
    """A destination of alert messages: exactly one of webhook, mail and file."""

    webhook: WebhookPart | None = Field(default=None, description="A POST of JSON.")
    mail: MailPart | None = Field(default=None, description="Mail by SMTP.")
    file: str | None = Field(
        default=None,
        min_length=1,
        max_length=500,
        description="A file, relative to the rules' folder, that gets one line of JSON per alert.",
    )

    @model_validator(mode="after")
    def _is_one(self) -> SinkPart:
        if sum(each is not None for each in (self.webhook, self.mail, self.file)) != 1:
            raise ValueError("must be exactly one of webhook, mail, file")
        return self
