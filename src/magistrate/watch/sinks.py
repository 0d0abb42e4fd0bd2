"""Sends alert messages to people: by webhook, by mail, or into a file.

A message is a mapping: `id` (the same when it is sent again), `alert`, `state` (`firing`, `resolved` or
`test`), `rule`, `when`, `at`, `text` (for people) and `windows`, the metric in each window.
"""

from __future__ import annotations

import json
import os
import smtplib
import ssl
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as HttpRequest
from urllib.request import build_opener

from magistrate import _logging
from magistrate.errors import MagistrateError, SpecError
from magistrate.watch.alert_rules import MailPart, SinkPart, WebhookPart
from magistrate.watch.outputs import read_headers
from magistrate.watch.parts import read_variable
from magistrate.watch.results import NoRedirect

TIMEOUT = 10.0
TAIL = 2**16  # bytes at the end of a file in which a message is looked for
Message = Mapping[str, Any]
Tell = Callable[[Message], None]


class SinkError(MagistrateError):
    """A message that was not sent. The error text contains no key."""


def sink(part: SinkPart) -> Tell:
    """Return a function that sends one message and raises `SinkError` if that fails.

    Raises `SpecError` if an environment variable that the part names is not set.
    """
    if part.webhook is not None:
        return _webhook(part.webhook)
    if part.mail is not None:
        return _mail(part.mail)
    assert part.file is not None
    return _file(part.file)


# On Windows each line break would become two bytes, and the count of written bytes would be wrong.
APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)


def _file(path: str) -> Tell:
    torn = ""  # ends a line that was written only in part, for example on a full disk

    def tell(message: Message) -> None:
        nonlocal torn
        plain = json.dumps(dict(message), sort_keys=True)
        if _ends_with(path, plain.encode("ascii")):
            return  # the process that wrote it ended before that was stored
        line = torn + plain + "\n"
        try:
            # A single append write, so lines of several processes do not mix.
            handle = os.open(path, APPEND, 0o600)
            try:
                written = os.write(handle, line.encode("ascii"))
            finally:
                os.close(handle)
        except OSError as error:
            raise SinkError(f"cannot write {path}: {error.strerror}") from None
        if written < len(line):
            torn = "\n"
            raise SinkError(f"cannot write {path}: only a part of the line was written")
        torn = ""

    return tell


def _ends_with(path: str, line: bytes) -> bool:
    """Return whether one of the last lines of a file is this one, whole. No other message is the same."""
    if not Path(path).is_file():
        return False  # reading from a pipe or a terminal would wait
    try:
        with Path(path).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            return line in file.read().split(b"\n")[:-1]
    except OSError:
        return False  # whoever may only append must still be told


# --- webhooks -----------------------------------------------------------------------------------------


def _webhook(part: WebhookPart) -> Tell:
    url = part.url if part.url_env is None else read_variable(part.url_env, "the address of a webhook")
    assert url is not None
    if not url.startswith(("http://", "https://")):
        raise SpecError(f"{part.url_env} does not contain an http or https address")
    headers = {"Content-Type": "application/json", **read_headers(part.headers_env)}
    opener = build_opener(NoRedirect)

    def tell(message: Message) -> None:
        value = slack(message) if part.format == "slack" else dict(message)
        try:
            request = HttpRequest(url, json.dumps(value).encode("ascii"), headers, method="POST")
            with opener.open(request, timeout=TIMEOUT):
                pass
        except HTTPError as error:
            with error:
                raise SinkError(f"the webhook answered {error.code}") from None
        except (OSError, HTTPException, ValueError) as error:
            # The address may be a secret, and errors may quote it.
            reason = getattr(error, "reason", None) or type(error).__name__
            told = _logging.without_keys(str(reason), (url,))
            raise SinkError(f"the webhook does not answer: {told}") from None

    return tell


def slack(message: Message) -> dict[str, Any]:
    """Format a message for Slack's incoming webhooks."""
    icon = {"firing": ":red_circle:", "resolved": ":large_green_circle:"}.get(
        str(message["state"]), ":wrench:"
    )
    return {"text": f"{icon} {_escaped(title(message))}\n{_escaped(str(message['text']))}"}


def _escaped(text: str) -> str:
    """Escape text so that Slack finds no mention and no link in it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def title(message: Message) -> str:
    """Return `firing: NAME`, on one line."""
    return " ".join(f"{message['state']}: {message['alert']}".split())


# --- mail ---------------------------------------------------------------------------------------------


def _connected(part: MailPart) -> smtplib.SMTP:
    """Connect to the mail server, with the configured encryption. Its certificate is verified."""
    if part.security == "tls":
        context = ssl.create_default_context()
        return smtplib.SMTP_SSL(part.host, part.port, timeout=TIMEOUT, context=context)
    server = smtplib.SMTP(part.host, part.port, timeout=TIMEOUT)
    if part.security == "starttls":
        try:
            server.starttls(context=ssl.create_default_context())
        except BaseException:
            server.close()
            raise
    return server


def _mail(part: MailPart) -> Tell:
    login = None
    if part.user_env is not None and part.password_env is not None:
        login = (
            read_variable(part.user_env, "the user of the mail server"),
            read_variable(part.password_env, "the password of the mail server"),
        )

    def tell(message: Message) -> None:
        mail = EmailMessage()
        mail["Subject"] = f"Magistrate: {title(message)}"
        mail["From"], mail["To"] = part.sender, ", ".join(part.to)
        mail["Message-ID"] = f"<{message['id']}@magistrate.invalid>"
        mail.set_content(f"{message['text']}\n\n{json.dumps(dict(message), indent=2)}\n")
        try:
            with _connected(part) as server:
                if login is not None:
                    server.login(*login)
                server.send_message(mail)
        except (OSError, smtplib.SMTPException, ValueError) as error:  # ValueError: an invalid host name
            told = _logging.without_keys(f"{type(error).__name__}: {error}", login or ())
            raise SinkError(f"the mail server at {part.host}:{part.port} did not accept it: {told}") from None

    return tell
