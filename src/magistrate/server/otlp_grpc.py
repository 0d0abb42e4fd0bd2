"""Receive spans and logs over OTLP by gRPC, on a separate port; needs the extra `otlp-grpc`.

A client retries after UNAVAILABLE, at the time given by a `RetryInfo`. All other errors are final,
including RESOURCE_EXHAUSTED, which means that a message is too large and gives no time.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

from magistrate import _logging
from magistrate.errors import MagistrateError, SpecError, StoreError, require_extra
from magistrate.server.limits import TokenAttempts, network_of
from magistrate.server.otlp import Ingest
from magistrate.server.roles import FindUser, Visitor, refusal_of
from magistrate.server.settings import Settings
from magistrate.watch.otlp import SERVICES, WAIT, OtlpError, Signal

MOST_BYTES = 16 * 2**20  # of one message, which is entirely in memory before it is counted
STREAMS = 16  # calls at a time over one connection
GRACE_SECONDS = 2.0

_CODES = {400: "INVALID_ARGUMENT", 413: "RESOURCE_EXHAUSTED", 415: "UNIMPLEMENTED", 503: "UNAVAILABLE"}
_log = _logging.get("server")


@asynccontextmanager
async def receiver(
    ingest: Ingest, settings: Settings, find_user: FindUser | None = None
) -> AsyncIterator[int | None]:
    """Serve gRPC requests for the duration of the block. Yields the port, None if the settings have none.

    Raises `MissingExtra`, and `SpecError` if the port cannot be opened.
    """
    if settings.grpc_port is None:
        yield None
        return
    require_extra("otlp-grpc", "grpc", "google.rpc", "opentelemetry.proto")
    import grpc

    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", min(MOST_BYTES, settings.otlp.plain_bytes)),
            ("grpc.max_concurrent_streams", STREAMS),
            ("grpc.so_reuseport", 0),
        )
    )
    attempts = TokenAttempts(settings.token, time.monotonic, find_user)
    # Calls of one message, declared as streams, so that no message is read before the token is checked.
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                service,
                {"Export": grpc.stream_unary_rpc_method_handler(_export(signal, ingest, settings, attempts))},
            )
            for service, signal in SERVICES.items()
        ]
    )
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        port = server.add_insecure_port(f"{host}:{settings.grpc_port}")
    except RuntimeError:
        raise SpecError(f"cannot listen on port {settings.grpc_port} of {settings.host} for gRPC") from None
    await server.start()
    try:
        yield port
    finally:
        await server.stop(GRACE_SECONDS)


def _export(
    signal: Signal, ingest: Ingest, settings: Settings, attempts: TokenAttempts
) -> Callable[[AsyncIterator[bytes], Any], Awaitable[bytes]]:
    """Return the method `Export` of a service."""

    async def export(messages: AsyncIterator[bytes], context: Any) -> bytes:
        if settings.token is not None:
            await _check_token(attempts, signal, context)
        try:
            return (await ingest.take(signal, "protobuf", "", messages)).body
        except OtlpError as error:
            await _refuse(context, _CODES[error.status], str(error))
        except StoreError as error:
            await _refuse(context, "UNAVAILABLE", str(error))
        except MagistrateError as error:
            await _refuse(context, "INTERNAL", str(error))
        except Exception as error:
            _log.error("server.error", method="Export", route=signal, error=type(error).__name__)
            await _refuse(context, "INTERNAL", "the server failed; see its log")
        raise AssertionError("a refusal ends the call")

    return export


async def _check_token(attempts: TokenAttempts, signal: Signal, context: Any) -> None:
    """End the call unless it has a token and role that the HTTP server would accept for this signal."""
    given = [value for name, value in context.invocation_metadata() if name == "authorization"]
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    client = _client_of(context.peer())
    if scheme.lower() != "bearer":
        await _refuse(context, "UNAUTHENTICATED", "this server needs a token: authorization: Bearer TOKEN")
    try:
        answer = await attempts.check(client, token.strip().encode())
    except StoreError as error:
        await _refuse(context, "UNAVAILABLE", str(error))
        raise
    if answer == "later":
        wait = attempts.wait(client)
        await _refuse(context, "UNAVAILABLE", "there were too many wrong tokens; try again later", wait)
    if answer == "wrong":
        await _refuse(context, "UNAUTHENTICATED", "this is not the token of this server, nor of a user")
    if isinstance(answer, Visitor) and not answer.may(route := f"POST /v1/{signal}"):
        await _refuse(context, "PERMISSION_DENIED", refusal_of(answer, route))


def _client_of(peer: str) -> str:
    """Return the client for which attempts are counted.

    >>> _client_of("ipv4:192.0.2.7:4711"), _client_of("ipv6:%5B2001:db8::1%5D:4711")
    ('192.0.2.7', '2001:db8::')
    """
    return network_of(unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]"))


async def _refuse(context: Any, code: str, message: str, wait: float = WAIT) -> None:
    """End the call with a status. After UNAVAILABLE, a client may retry in `wait` seconds."""
    import grpc
    from google.protobuf.any_pb2 import Any as Packed
    from google.protobuf.duration_pb2 import Duration
    from google.rpc.error_details_pb2 import RetryInfo
    from google.rpc.status_pb2 import Status

    status = grpc.StatusCode[code]
    trailing: tuple[tuple[str, bytes], ...] = ()
    if code == "UNAVAILABLE":
        info = Packed()
        info.Pack(RetryInfo(retry_delay=Duration(seconds=max(1, round(wait)))))
        said = Status(code=status.value[0], message=message, details=[info])
        trailing = (("grpc-status-details-bin", said.SerializeToString()),)
    await context.abort(status, message, trailing)
