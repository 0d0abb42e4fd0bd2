"""Alerts fire once and end once, whoever looks, and every sink is told; what has no data changes nothing."""

from __future__ import annotations

import json
import os
import random
import stat
from collections.abc import Iterator, Mapping, Sequence
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest

from magistrate import _async
from magistrate._yaml import parse_document
from magistrate.errors import EngineBusy, SpecError
from magistrate.store import Store
from magistrate.store.traces import Traces
from magistrate.types import Sample
from magistrate.watch.alert_rules import AlertPart, SinkPart
from magistrate.watch.alerts import Alerts, Seen, decide, look
from magistrate.watch.rules import RuleFile, read_rule_file, rule_file_of
from magistrate.watch.sinks import SinkError, sink
from receivers import Collector, Mailbox, listening, mail_server
from terminal import Call
from watched import Clock, Obedient, answer, watcher

OK = (200, {}, b"ok")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(place: str, clock: Clock) -> Iterator[Store]:
    with Store.open(place, clock=clock, randomness=random.Random(1)) as opened:
        yield opened


def a_file(text: str) -> RuleFile:
    head = "rules:\n  - name: all\n    judges: [novelty]\n    budget: {hour: {calls: 1000}}\n"
    return rule_file_of(parse_document(head + text, "rules.yaml"))


def says(sample: Sample) -> object:
    if "busy" in str(sample.output):
        return EngineBusy("full")
    return 0.9 if "wrong" in str(sample.output) else 0.1


class Traffic:
    """Answers that come and are judged, numbered on."""

    def __init__(self, store: Store, file: RuleFile, clock: Clock) -> None:
        self.store, self.clock, self.number = store, clock, 0
        self.worker = watcher(store, file.rules, clock, Obedient(says))

    def come(self, n: int, words: str) -> None:
        for _ in range(n):
            self.number += 1
            self.store.traces.put(answer(self.number, f"{words} {self.number}"), self.clock())
        self.clock.pass_(seconds=10)
        _async.run(self.worker.drain())


def alerts(store: Store, file: RuleFile, clock: Clock, seed: int = 1) -> Alerts:
    return Alerts(store, file, clock=clock, randomness=random.Random(seed))


def told(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def state(store: Store) -> Any:
    (found,) = store.watched.alerts()
    return found.seen["state"]


def test_an_alert_fires_once_and_ends_once_whoever_looks(store: Store, clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "told.jsonl"
    file = a_file(
        "alerts:\n  - {name: wrong, when: lower(flag_rate) > 0.1, n: 10, windows: [1h, 6h], clear: 0.05}\n"
        f"sinks:\n  log: {{file: {path}}}\n"
    )
    traffic = Traffic(store, file, clock)
    one, other = alerts(store, file, clock), alerts(store, file, clock, seed=2)

    def look() -> list[str]:
        for each in (one, other, alerts(store, file, clock, seed=3)):  # the third has just begun
            each.check()
            each.send()
        return [each["state"] for each in told(path)]

    assert look() == [] and state(store) == "no data"
    traffic.come(9, "wrong")
    assert look() == [] and state(store) == "no data", "fewer verdicts than it takes"
    traffic.come(11, "right")
    assert look() == ["firing"] and state(store) == "firing"
    assert look() == ["firing"]
    clock.pass_(minutes=61)
    assert look() == ["firing"] and state(store) == "firing", "no data ends nothing"
    traffic.come(100, "right")
    assert look() == ["firing", "resolved"] and state(store) == "ok"
    traffic.come(5, "wrong")
    assert look() == ["firing", "resolved"]
    first, last = told(path)
    assert first["alert"] == "wrong" and first["rule"] == "all" and first["id"] != last["id"]
    assert [each["seconds"] for each in first["windows"]] == [3600, 21_600]
    assert "lower(flag_rate) > 0.1: .2" in first["text"] and " in 1h, .2" in first["text"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_both_windows_have_to_pass_the_bound_and_the_short_one_clears_it() -> None:
    alert = AlertPart.model_validate(
        {"name": "a", "when": "coverage < 0.9", "windows": ["1h", "6h"], "clear": 0.95}
    )

    def seen(*values: float | None) -> list[Seen]:
        return [Seen(seconds=1, value=value) for value in values]

    assert decide(alert, seen(0.5, 0.8), was_firing=False)
    for values in ((0.95, 0.8), (0.5, 0.9), (None, 0.5), (0.5, None)):
        assert not decide(alert, seen(*values), was_firing=False), values
    for values, goes_on in (((0.93, 1.0), True), ((0.95, 0.5), False), ((None, None), True)):
        assert decide(alert, seen(*values), was_firing=True) is goes_on, values


def test_an_alert_without_a_judge_is_about_the_last_one(store: Store, clock: Clock) -> None:
    """Where the first judge was sure of all, the last one has no rate, and not the first one's."""
    file = rule_file_of(
        parse_document(
            "rules:\n  - {name: all, judges: [novelty, detector]}\n"
            "alerts:\n  - {name: a, when: flag_rate > 0.5, windows: [1h, 6h]}\n",
            "rules.yaml",
        )
    )
    (rule,), (alert,) = file.rules, file.alerts
    first = {"judge": "novelty", "kind": "verdict", "label": "hallucinated", "score": 0.9, "inclusion": 1.0}
    last = {**first, "judge": "detector", "label": "faithful", "score": 0.1}
    store.traces.register(rule.name, rule.plain(), rule.digest, clock())

    def seen(*asked: Sequence[Mapping[str, Any]]) -> list[float | None]:
        rows = [(clock(), "t", "t.s", "judged", 1.0, each) for each in asked]
        (record,) = store.watched.rules()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Traces, "answers", lambda *_: rows)
            return [each.value for each in look(store, record, alert, clock())]

    assert seen([first]) == [None, None]
    assert seen([first], [first, last], [first]) == [0, 0]


def test_what_waits_failed_and_was_spent_can_be_bounded(store: Store, clock: Clock, tmp_path: Path) -> None:
    bounds = {
        "coverage": "coverage < 0.9",
        "age": "queue_age > 10m",
        "failures": "failures >= 2",
        "calls": "spend.calls > 5",
        "dollars": "spend.dollars > 0.05",
        "silence": "verdicts < 1",
    }
    lines = "".join(f"  - {{name: {name}, when: {when}}}\n" for name, when in bounds.items())
    file = a_file(f"alerts:\n{lines}")
    traffic, looking = Traffic(store, file, clock), alerts(store, file, clock)

    def firing() -> set[str]:
        looking.check()
        return {each.name for each in store.watched.alerts() if each.firing}

    assert firing() == {"silence"}
    states = {each.name: each.seen["state"] for each in store.watched.alerts()}
    assert states["coverage"] == "no data" and states["age"] == "ok"
    traffic.come(6, "right")
    assert firing() == {"calls", "dollars"}
    traffic.come(2, "busy")
    assert firing() == {"calls", "dollars", "failures", "coverage"}
    clock.pass_(minutes=11)
    assert "age" in firing()
    clock.pass_(hours=2)
    assert firing() == {"age", "coverage", "silence"}, "of coverage there is no data, so it goes on"


def test_a_long_window_counts_all_that_was_spent_in_it(store: Store, clock: Clock) -> None:
    file = a_file("alerts:\n  - {name: month, when: spend.calls > 5, windows: [30d]}\n")
    traffic, looking = Traffic(store, file, clock), alerts(store, file, clock)
    traffic.come(6, "right")
    clock.pass_(days=10)
    looking.check()
    assert state(store) == "firing"
    clock.pass_(days=21)
    looking.check()
    assert state(store) == "ok"


# --- who is told ----------------------------------------------------------------------------------


def test_every_sink_is_told_and_one_that_fails_is_tried_again(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, chat, box = Collector((500, {}, b""), OK), Collector(OK), Mailbox()
    with listening(plain) as url, listening(chat) as secret, mail_server(box) as port:
        monkeypatch.setenv("TEST_HOOK", f"{secret}/services/T0/secret-path-1")
        monkeypatch.setenv("TEST_KEY", "key-0123456789")
        monkeypatch.setenv("TEST_MAIL_USER", "someone")
        monkeypatch.setenv("TEST_MAIL_PASSWORD", "password-0123456789")
        file = a_file(f"""
alerts:
  - {{name: "<!channel> quiet", when: verdicts < 1}}
sinks:
  plain: {{webhook: {{url: "{url}/hook", headers_env: {{X-Key: TEST_KEY}}}}}}
  chat: {{webhook: {{url_env: TEST_HOOK, format: slack}}}}
  mail:
    mail:
      host: 127.0.0.1
      port: {port}
      security: none
      user_env: TEST_MAIL_USER
      password_env: TEST_MAIL_PASSWORD
      from: Watch <watch@example.org>
      to: [team@example.org, lead@example.org]
""")
        Traffic(store, file, clock)
        looking = alerts(store, file, clock)
        assert looking.step() == 2
        queues = {each.destination: each for each in store.outbox.queues()}
        assert queues["alerts to plain"].waiting == 1 and "500" in queues["alerts to plain"].remark
        clock.pass_(seconds=5)
        assert looking.step() == 1
    (first, again) = plain.asked
    assert first[2] == again[2] and first[1]["x-key"] == "key-0123456789"
    assert json.loads(first[2])["state"] == "firing"
    path, _, body = chat.asked[0]
    assert path == "/services/T0/secret-path-1"
    assert "&lt;!channel&gt; quiet" in json.loads(body)["text"], "a name pings nobody"
    sender, to, text = box.mails[0]
    mail = message_from_string(text)
    assert (sender, to) == ("<watch@example.org>", ["<team@example.org>", "<lead@example.org>"])
    assert mail["subject"] == "Magistrate: firing: <!channel> quiet"
    assert box.logins == ["\0someone\0password-0123456789"]
    stored = "".join(
        path.read_bytes().decode("latin-1") for path in Path(store.place).parent.glob("watched.db*")
    )
    for hidden in ("secret-path-1", "key-0123456789", "password-0123456789"):
        assert hidden not in stored


def test_a_sink_that_cannot_be_reached_by_its_name_keeps_no_other_waiting(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "told.jsonl"
    file = a_file(f"""
alerts:
  - {{name: quiet, when: verdicts < 1}}
sinks:
  mail: {{mail: {{host: mail..example.org, security: none, from: a@example.org, to: [b@example.org]}}}}
  log: {{file: {path}}}
""")
    Traffic(store, file, clock)
    assert alerts(store, file, clock).step() == 1 and len(told(path)) == 1
    queues = {each.destination: each for each in store.outbox.queues()}
    assert queues["alerts to mail"].waiting == 1 and "mail..example.org" in queues["alerts to mail"].remark


def test_a_line_that_went_in_by_half_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell, whole = sink(SinkPart(file=str(tmp_path / "told.jsonl"))), os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda handle, line: whole(handle, line[:5]))
        with pytest.raises(SinkError, match="only a part"):
            tell({"id": "one"})
    tell({"id": "one"})
    assert (tmp_path / "told.jsonl").read_text().splitlines()[-1] == '{"id": "one"}'


def test_what_a_killed_worker_had_told_is_not_told_again(
    store: Store, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "told.jsonl"
    file = a_file(
        "alerts:\n  - {name: wrong, when: flag_rate > 0.1, n: 1, windows: [1h], clear: 0}\n"
        f"sinks:\n  log: {{file: {path}}}\n"
    )
    Traffic(store, file, clock).come(3, "wrong")
    one, other = alerts(store, file, clock), alerts(store, file, clock, seed=2)
    one.check()

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as between, pytest.raises(KeyboardInterrupt):
        between.setattr(type(store.outbox), "end", kill)
        one.send()
    assert [each["state"] for each in told(path)] == ["firing"] and other.send() == 0
    clock.pass_(minutes=6)
    assert other.send() == 1, "the lease is over"
    assert [each["state"] for each in told(path)] == ["firing"]
    assert [each.states for each in store.outbox.queues()] == [{"sent": 1}]
    sink(file.sinks["log"])({"id": "another"})
    assert len(told(path)) == 2


def test_a_test_message_goes_to_each_sink(call: Call, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, box = home.parent / "rules.yaml", Mailbox(refuses="554 no")
    head = "rules:\n  - name: all\n    judges: [novelty]\n"
    test = ("watch", "test-alert", "--rules", file)
    file.write_text(head)
    assert "has no sinks" in call(*test).err
    with mail_server(box) as port:
        monkeypatch.setenv("TEST_HOOK", "http://127.0.0.1:9/secret-path-1")
        file.write_text(f"""{head}sinks:
  log: {{file: told.jsonl}}
  chat: {{webhook: {{url_env: TEST_HOOK, format: slack}}}}
  mail: {{mail: {{host: 127.0.0.1, port: {port}, security: none, from: a@b.c, to: [d@e.f]}}}}
  safe: {{mail: {{host: 127.0.0.1, port: {port}, from: a@b.c, to: [d@e.f]}}}}
""")
        done = call(*test)
    assert done.code == 3 and "log: sent" in done.out
    assert "chat: the webhook does not answer" in done.err and "secret-path" not in done.err
    assert "mail: the mail server at 127.0.0.1" in done.err and "554" in done.err
    assert "safe: the mail server at" in done.err and "STARTTLS" in done.err, "it is not sent unencrypted"
    assert read_rule_file(file).sinks["log"].file == str(home.parent / "told.jsonl"), "from its folder on"
    (message,) = told(home.parent / "told.jsonl")
    assert (message["state"], message["alert"]) == ("test", "test")
    monkeypatch.delenv("TEST_HOOK")
    done = call(*test)
    assert done.code == 2 and "TEST_HOOK, which is not set" in done.err


@pytest.mark.parametrize(
    "wrong, said",
    [
        ("alerts:\n  - {name: a, when: flag_rate}", "rules.yaml, line 5, alerts.0.when: must be a figure"),
        ("alerts:\n  - {name: a, when: blame > 1}", "unknown figure 'blame'; known: flag_rate"),
        ("alerts:\n  - {name: a, when: lower(coverage) < 1}", "lower() works only for flag_rate"),
        ("alerts:\n  - {name: a, when: coverage < 5m}", "a time works only for queue_age"),
        ("alerts:\n  - {name: a, when: coverage < 1, windows: [6h, 1h]}", "shortest first"),
        ("alerts:\n  - {name: a, when: coverage < 0.9, clear: 0.8}", "is itself beyond"),
        ("alerts:\n  - {name: a, when: coverage < 1, rule: b}", "no rule 'b'; known: all"),
        ("alerts:\n  - {name: a, when: coverage < 1, judge: novel}", "no judge 'novel'; known: novelty"),
        ("alerts:\n  - {name: a, when: coverage < 1, windows: [999999w]}", "at most 36500d"),
        ("keep_days: 1e9", "line 4, keep_days: must be at most 36500"),
        ("alerts:\n  - {name: a, when: coverage < 1, to: [b]}", "no sink 'b'; known: there are none"),
        ("sinks:\n  a: {}", "must be exactly one of webhook, mail, file"),
        ("sinks:\n  a: {webhook: {url: 'http://h', url_env: H}}", "needs either url or url_env"),
        ("sinks:\n  a: {webhook: {url_env: 'https://hooks/secret-1'}}", "name of an environment variable"),
        ("sinks:\n  a: {mail: {host: h, from: nobody, to: [a@b.c]}}", "must be an address such as"),
    ],
)
def test_what_cannot_be_watched_is_told_with_its_line(tmp_path: Path, wrong: str, said: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(f"rules:\n  - name: all\n    judges: [novelty]\n{wrong}\n")
    with pytest.raises(SpecError) as raised:
        read_rule_file(path)
    assert said in str(raised.value) and "secret-1" not in str(raised.value)


def test_who_has_read_too_early_turns_nothing(store: Store, clock: Clock) -> None:
    assert store.watched.note_alert("a", False, True, {}, clock(), [])
    assert not store.watched.note_alert("a", False, False, {}, clock(), []), "it did not see that it fires"
    assert not store.watched.note_alert("a", False, True, {}, clock(), [])
    (found,) = store.watched.alerts()
    assert found.firing
    assert store.watched.note_alert("a", True, False, {}, clock(), [])
