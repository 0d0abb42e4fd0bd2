"""The settings of a server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

from magistrate.errors import SpecError
from magistrate.judges.registry import DEFAULT_JUDGE
from magistrate.store.connection import place_of
from magistrate.watch.otlp import LIMITS, PATHS, Limits
from magistrate.watch.rules import Rule, RuleFile

PORT = 8421
TOKEN_VARIABLE = "MAGISTRATE_TOKEN"
SHORTEST_TOKEN, LONGEST_TOKEN = 16, 512

_TOKEN = re.compile(rf"[!-~]{{{SHORTEST_TOKEN},{LONGEST_TOKEN}}}")
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(\.(?!-)[a-z0-9_-]{1,63})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a server: its address, its store and its access rules.

    `store` is a path or a URL, which may contain a password. `host` is an address or a name; `port` 0 means
    any free one. With a `token` every visitor has to present it. Without one, anybody on this machine has
    access, so any other `host` requires a token. `allowed_hosts` are further names for this server in
    `Host` headers. The body of a request has at most `body_bytes` and must arrive within `body_seconds`,
    its head within `head_seconds`. A client that reads nothing for `write_seconds` is disconnected. One
    address may have `connections_each` connections at a time. A session lasts `session_seconds`. With
    `watch`, the server receives spans over OTLP, within the limits `otlp`, and over gRPC at `grpc_port`, if
    set. They are judged by its `rules`; `rule_file` defines further actions. `guard` is the judge of `POST
    /api/guard`, `guard_model` its model. Runs that are started from the page may call the installed models,
    and `run_models`. Raises `SpecError`.
    """

    store: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = PORT
    token: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    body_bytes: int = 2_000_000
    body_seconds: float = 30.0
    head_seconds: float = 10.0
    write_seconds: float = 60.0
    connections_each: int = 256
    session_seconds: float = 12 * 3600.0
    watch: bool = False
    rules: tuple[Rule, ...] = ()
    rule_file: RuleFile | None = None
    otlp: Limits = LIMITS
    grpc_port: int | None = None
    guard: str = DEFAULT_JUDGE
    guard_model: str | None = None
    run_models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        place_of(self.store)
        if not 0 <= self.port < 1 << 16:
            raise SpecError(f"a port must be a number from 0 to 65535, got {self.port}")
        object.__setattr__(self, "host", host_name(self.host))
        object.__setattr__(self, "allowed_hosts", tuple(map(host_name, self.allowed_hosts)))
        if self.token is not None:
            check_token(self.token)
        elif not is_loopback(self.host):
            raise SpecError(f"a server on {self.host} can be reached from other machines and needs a token")

    def most_bytes(self, path: str) -> int:
        """Return the maximum length of the body of a request to a path."""
        return self.otlp.packed_bytes if self.watch and path in PATHS else self.body_bytes


def check_token(token: str) -> None:
    """Raise `SpecError`, without quoting the token, if it is too short or not allowed in a header."""
    if not _TOKEN.fullmatch(token):
        raise SpecError(
            f"a token must have {SHORTEST_TOKEN} to {LONGEST_TOKEN} printable ASCII characters without "
            f"spaces; the given one has {len(token)} characters; without --token and ${TOKEN_VARIABLE}, one "
            "is created if needed"
        )


def host_name(name: str) -> str:
    """Normalize a host: lower case, no brackets, no final dot; an address in its short form.

    Raises `SpecError` for anything that is not a name or address, such as a URL or a name with a port.

    >>> host_name("[::1]"), host_name("Judge.example.")
    ('::1', 'judge.example')
    """
    plain = name.strip().lower()
    if plain.startswith("[") and plain.endswith("]"):
        plain = plain[1:-1]
    try:
        return str(ip_address(plain))
    except ValueError:
        plain = plain.removesuffix(".")
    if not _NAME.fullmatch(plain) or len(plain) > 253:
        raise SpecError(f"a host must be a name or an address without scheme or port, got {name[:100]!r}")
    return plain


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host; among names, only `localhost`.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "box")]
    [True, True, True, False, False]
    """
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def is_address(host: str) -> bool:
    """Return whether the host is an address rather than a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
