"""The address of a server, as it was typed: one that can be asked, and that holds no secret."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from magistrate.errors import SpecError


def checked(url: str, key_variable: str, how: str) -> SplitResult:
    """The parts of `url`. Raises `SpecError` for what is no address, and for one that holds a secret.

    An address is stored and shown, so that keys belong into `key_variable`; `how` says how one is written.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise SpecError(f"this is no address of a server ({error}); {how}") from None
    if parts.username is not None or parts.password is not None:
        raise SpecError(f"an address must not hold a user or a password; set {key_variable} instead")
    if parts.query or parts.fragment:
        raise SpecError(f"an address must have no '?' or '#'; a key belongs into {key_variable}; {how}")
    if parts.scheme not in ("http", "https") or not host:
        raise SpecError(f"{url[:200]!r} is no address of a server; {how}")
    return parts


def is_local(url: str) -> bool:
    """Whether `url` names this machine or one of its own network: one computer, not a service."""
    host = urlsplit(url).hostname or ""
    try:
        address = ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".localhost", ".lan", ".internal"))
    return address.is_private or address.is_loopback or address.is_link_local
