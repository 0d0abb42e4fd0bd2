"""Logs are quiet by default, structured when asked for, and hold no keys and no documents."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magistrate import _logging

MAGISTRATE = logging.getLogger("magistrate")
KEY = "sk-proj-abcDEF0123456789abcDEF"


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    before = list(MAGISTRATE.handlers), MAGISTRATE.level
    yield
    MAGISTRATE.handlers[:], level = before
    MAGISTRATE.setLevel(level)


@pytest.fixture
def page() -> io.StringIO:
    """Everything that is told, as JSON lines."""
    stream = io.StringIO()
    _logging.configure(verbose=True, json=True, stream=stream)
    return stream


def lines(page: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in page.getvalue().splitlines()]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# --- quiet, and structured -----------------------------------------------------------------------


def python(code: str, *options: str) -> tuple[str, str]:
    command = [sys.executable, "-W", "error", *options, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def test_the_library_says_nothing_and_leaves_the_root_logger_alone() -> None:
    said, errors = python(
        "import logging; from magistrate import _logging\n"
        "_logging.error('odd', a=1); _logging.get('cache').warning('odd', a=1)\n"
        "ours = logging.getLogger('magistrate').handlers\n"
        "print(logging.root.handlers, [type(each).__name__ for each in ours])"
    )
    assert said == "[] ['NullHandler']\n" and errors == ""


def test_an_application_sees_events_through_its_own_handlers() -> None:
    _, errors = python(
        "import logging; from magistrate import _logging\n"
        "logging.basicConfig(level=logging.INFO, format='%(name)s|%(message)s')\n"
        "_logging.get('cache').info('cache.pruned', entries=3, path='a b', model=None)"
    )
    assert errors == 'magistrate.cache|cache.pruned entries=3 path="a b" model=null\n'


def test_events_have_names_and_fields(page: io.StringIO) -> None:
    _logging.info("run.started", run="r-1", samples=72, share=0.5, done=False, nothing=None)
    _logging.get("cache").debug("cache.opened", path="/x/cache.db")
    first, second = lines(page)
    moment = first.pop("time")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", moment)
    assert first == {
        "level": "info",
        "log": "magistrate",
        "event": "run.started",
        "run": "r-1",
        "samples": 72,
        "share": 0.5,
        "done": False,
        "nothing": None,
    }
    assert (second["level"], second["log"]) == ("debug", "magistrate.cache")


def test_a_field_cannot_pose_as_what_every_line_has(page: io.StringIO) -> None:
    _logging.info("run.started", level="error", time="never", event="x", self="y")
    (line,) = lines(page)
    assert (line["level"], line["event"]) == ("info", "run.started")
    assert (line["field_level"], line["field_time"], line["field_event"]) == ("error", "never", "x")


def test_people_see_lines_and_machines_json() -> None:
    for stream, environment, as_json in [
        (Terminal(), {}, False),
        (io.StringIO(), {}, True),
        (Terminal(), {"MAGISTRATE_LOG": "json"}, True),
        (io.StringIO(), {"MAGISTRATE_LOG": " TEXT "}, False),
    ]:
        _logging.configure(verbose=True, stream=stream, environment=environment)
        _logging.info("run.started", run="r-1", data="two words", n=3)
        text = stream.getvalue()
        if as_json:
            assert json.loads(text)["data"] == "two words"
        else:
            assert re.fullmatch(r'\d\d:\d\d:\d\d info    run\.started run=r-1 data="two words" n=3\n', text)


def test_without_verbose_only_warnings_are_shown_and_configuring_again_replaces() -> None:
    first, second = io.StringIO(), io.StringIO()
    _logging.configure(verbose=True, json=True, stream=first)
    _logging.configure(verbose=False, json=True, stream=second)
    _logging.info("a")
    _logging.warning("b")
    assert first.getvalue() == "" and [line["event"] for line in lines(second)] == ["b"]


def test_it_goes_to_standard_error_as_it_is_then(capsys: pytest.CaptureFixture[str]) -> None:
    _logging.configure(verbose=True, json=True)
    _logging.info("a")
    out, errors = capsys.readouterr()
    assert out == "" and json.loads(errors)["event"] == "a"


# --- never a key ---------------------------------------------------------------------------------

SECRETS = [
    "my key is " + KEY,
    f"Authorization: Bearer {KEY}",
    "{'Authorization': 'Basic dXNlcjpodW50ZXIy'}",
    'headers={"x-api-key": "SECRETVALUE1"}',
    "Bearer SECRETVALUE1",
    "Basic U0VDUkVUVkFMVUUx",
    "https://me:SECRETVALUE1@example.com/v1",
    "postgresql+psycopg://me:SECRET/VALUE1@db:5432/runs?sslmode=require",
    "https://SECRETVALUE1@example.com",
    "redis://:SECRETVALUE1@host",
    "GET /v1?api_key=SECRETVALUE1&x=1",
    "https://example.com/?key=SECRETVALUE1",
    "password=SECRETVALUE1 user=me",
    "OPENAI_API_KEY=SECRETVALUE1",
    "client_secret: 'SECRETVALUE1'",
    "hf_SECRETVALUE1abcdefgh",
    "ghp_SECRETVALUE1abcdefgh",
    "github_pat_SECRETVALUE1_abcdefgh",
    "AKIASECRETVALUE1AB",
    "eyJhbGciOiJIUzI1NiJ9.SECRETVALUE1.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----\nSECRETVALUE1\n-----END",
]
LEAKS = re.compile(r"SECRET\W?VALUE1|U0VDUkVU|dXNlcjpodW50ZXIy|abcDEF0123")


@pytest.mark.parametrize("as_json", [True, False])
def test_what_looks_like_a_key_is_hidden(as_json: bool, caplog: pytest.LogCaptureFixture) -> None:
    for text in SECRETS:
        caplog.clear()
        stream = io.StringIO()
        _logging.configure(verbose=True, json=as_json, stream=stream)
        _logging.info("a", said=text, error=ValueError(text), nested={"x": [text]}, raw=text.encode())
        _logging.info(text)
        MAGISTRATE.getChild("other").warning("plain %s", text)
        try:
            raise RuntimeError(text)
        except RuntimeError:
            MAGISTRATE.getChild("other").exception("it failed")
        assert stream.getvalue().count(_logging.HIDDEN) >= 7, text
        assert not LEAKS.search(stream.getvalue()), text
        # Also not in the records of `logs`, which other handlers see.
        own = [record for record in caplog.records if record.name == "magistrate"]
        assert len(own) == 2 and not LEAKS.search(str([vars(record) for record in own])), text


@pytest.mark.parametrize(
    "name",
    [
        *("OPENAI_API_KEY", "HF_TOKEN", "PGPASSWORD", "DB_PWD", "MY_SECRET", "SECRETS", "CREDENTIALS"),
        *("AWS_SECRET_ACCESS_KEY", "HTTP_AUTH", "DBPASS", "GITHUBTOKEN", "SENTRY_DSN", "apiKey"),
    ],
)
def test_the_values_of_variables_that_are_keys_are_hidden(
    name: str, page: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "hunter2 & more/ü")
    _logging.info("a", said="it is hunter2 & more/ü, is it", url="https://x/?q=hunter2%20%26%20more%2F%C3%BC")
    _logging.info("b", listed=["hunter2 & more/ü"])
    MAGISTRATE.warning("with hunter2 & more/ü")
    assert "hunter2" not in page.getvalue()
    assert lines(page)[0]["said"] == f"it is {_logging.HIDDEN}, is it"


def test_a_key_of_several_lines_is_hidden_line_by_line(
    page: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGNING_KEY", "first part\nsecond part\n")
    _logging.info("a", one="first part", other="has second part in it", both="first part\nsecond part")
    assert "part" not in page.getvalue().replace("has", "")


def test_common_words_and_other_variables_stay(page: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in [
        ("TOKENIZERS_PARALLELISM", "words"),
        ("SSL_KEY", "true"),
        ("MAX_TOKENS", "2048"),
        ("PWD", "/srv/me"),
        ("AUTHOR", "Anna"),
        ("A_KEY", "x"),
    ]:
        monkeypatch.setenv(name, value)
    said = "true words of Anna at /srv/me in 2048 tokens: basic understanding"
    _logging.info("a", said=said, prompt_tokens=12, tokens=3)
    (line,) = lines(page)
    assert (line["said"], line["prompt_tokens"], line["tokens"]) == (said, 12, 3)


def test_a_field_that_is_named_like_a_key_is_hidden_as_a_whole(page: io.StringIO) -> None:
    _logging.info("a", api_key="anything", token="x", Authorization=["y"], password=b"z", key=object())
    (line,) = lines(page)
    assert {line[name] for name in ("api_key", "token", "Authorization", "password", "key")} == {
        _logging.HIDDEN
    }


def test_a_key_at_the_cut_is_hidden_whole(page: io.StringIO) -> None:
    for before in range(_logging.LONGEST - 40, _logging.LONGEST + 2):
        _logging.info("a", said="x" * (before - 1) + " " + KEY)
    assert "sk-" not in page.getvalue()


# --- never a document ----------------------------------------------------------------------------

DOCUMENT = "The museum closes at five. " * 1000


def test_no_field_is_a_document(page: io.StringIO) -> None:
    _logging.info(
        "a", said=DOCUMENT, listed=[DOCUMENT] * 3, sentences=["A sentence."] * 500, error=KeyError(DOCUMENT)
    )
    _logging.info(DOCUMENT)
    MAGISTRATE.warning("judging %s", DOCUMENT)
    for line in lines(page):
        assert all(len(value) <= _logging.LONGEST for value in line.values() if isinstance(value, str))
    assert lines(page)[0]["said"].endswith("…")


def test_a_traceback_is_not_shown_for_it_says_what_was_judged(page: io.StringIO) -> None:
    try:
        raise ValueError(DOCUMENT)
    except ValueError:
        MAGISTRATE.exception("it failed")
    (line,) = lines(page)
    assert line["event"].startswith("it failed: ValueError: The museum") and len(line["event"]) <= 200


@given(
    st.dictionaries(
        st.text(st.characters(categories=["Ll"]), min_size=1).filter(lambda name: name != "self"),
        st.text(st.characters(exclude_categories=())) | st.integers() | st.floats() | st.binary() | st.none(),
        max_size=4,
    )
)
def test_every_event_is_one_line_that_does_nothing_to_a_terminal(fields: dict[str, Any]) -> None:
    for as_json in (True, False):
        stream = io.StringIO()
        _logging.configure(verbose=True, json=as_json, stream=stream)
        _logging.info("a", **{f"f_{name}": value for name, value in fields.items()})
        _logging.info(str(fields))
        text = stream.getvalue()
        assert text.count("\n") == 2 and text.endswith("\n")
        assert text.replace("\n", "").isprintable()
        text.encode()
        if as_json:
            for line in text.splitlines():
                json.loads(line, parse_constant=pytest.fail)


def test_what_cannot_be_shown_is_said_and_raises_nothing(page: io.StringIO) -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no")

    _logging.info("a", odd=Odd(), big=10**400, nan=float("nan"))
    (line,) = lines(page)
    assert line["odd"] == "<Odd that cannot be shown: RuntimeError>"
    assert line["big"].startswith("1000") and line["nan"] == "nan"


@pytest.mark.alone
@pytest.mark.parametrize(
    "text",
    ["://a:" * 200_000, "://a:@" * 200_000, "token" * 200_000, "a" * 10**6, "sk-" * 300_000, "=" * 10**6],
    ids=lambda text: text[:6],
)
def test_hostile_text_costs_no_time(text: str, page: io.StringIO) -> None:
    start = time.perf_counter()
    _logging.info("a", said=text)
    assert time.perf_counter() - start < 1
    assert len(lines(page)[0]["said"]) <= _logging.LONGEST


def test_a_reader_who_is_gone_is_no_error() -> None:
    stream = io.StringIO()
    _logging.configure(verbose=True, stream=stream)
    stream.close()
    _logging.info("a")
