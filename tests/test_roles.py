"""Users of the server: what each role may do, under whose name, and what the audit log says of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from furnished import run_of
from magistrate.errors import SpecError, StoreError
from magistrate.labels.queues import QueueOptions, queue_of_run
from magistrate.server.app import create_app
from magistrate.server.limits import FREE, IN_LINE, TokenAttempts
from magistrate.server.responses import static_files
from magistrate.server.roles import LEAST_ROLE, WITH_TOKEN, Visitor
from magistrate.server.serve import wrap_app
from magistrate.server.settings import Settings
from magistrate.store import Store
from magistrate.store.labels import Answer
from magistrate.store.users import ROLES
from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Verdict
from served import TOKEN, Clock
from terminal import Call

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SECRET = "judged words that no log repeats"
SAMPLES = [Sample(f"s{at}", f"{SECRET} {at}", ("It closes at five.",)) for at in range(6)]


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    with Store.open(place) as opened:
        run = run_of(
            opened, SAMPLES, [Verdict(each.id, "j", HALLUCINATED, 0.9) for each in SAMPLES], name="r"
        )
        options = QueueOptions(policy="uniform", double=1.0)
        queue_of_run(opened, opened.find_run(run), "q", options, NOW)
        yield opened


@pytest.fixture
def tokens(store: Store) -> dict[str, str]:
    """The token of a user of each role, who is called like it."""
    return {role: store.users.add(role, role, by="test", now=NOW) for role in ROLES}


def site(store: Store, **settings: Any) -> TestClient:
    made = Settings(**{"store": store.place, "token": TOKEN, "guard": "novelty", "watch": True, **settings})
    wrapped = wrap_app(create_app(made), made)
    return TestClient(wrapped, base_url="http://localhost", follow_redirects=False)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def rows(store: Store) -> dict[str, list[str]]:
    """Everything that the store holds."""
    engine = (
        create_engine(store.place.replace("postgresql:", "postgresql+psycopg:"))
        if "://" in store.place
        else create_engine(f"sqlite:///{store.place}")
    )
    tables = (
        "runs",
        "run_tags",
        "labels",
        "label_leases",
        "label_gold",
        "label_comments",
        "dataset_versions",
        "spans",
        "users",
    )
    with engine.connect() as connection:
        found = {
            name: sorted(str(tuple(row)) for row in connection.execute(text(f"SELECT * FROM {name}")))
            for name in (*tables, "audit_log")
        }
    engine.dispose()
    return found


# --- every route ----------------------------------------------------------------------------------


def routes(store: Store) -> list[str]:
    app = create_app(Settings(store=store.place, watch=True))
    return [
        f"{method} {each.path_format}"
        for each in iter_route_contexts(app.routes)
        for method in (each.methods or ())
    ]


def asked(client: TestClient, route: str, run: str, token: str | None) -> int:
    """The status of a request that is valid wherever something could be changed by it."""
    method, template = route.split(" ", 1)
    name = "q" if "/label" in route else "novelty" if "/judges/" in route else next(iter(static_files()))
    filled = {"run_id": run, "name": name, "number": "1", "sample_id": "s0", "judge": "j", "id": "none"}
    path = template.format(**filled)
    texts = {"output": "It closes at six.", "context": ["It closes at five."]}
    if method == "GET":
        given: dict[str, Any] = {"params": {"id": "s0", "sample": "s0"}}
    elif path.startswith("/api/label"):
        body = {"text": "so"} if path.endswith("comments") else {"label": FAITHFUL} if "items" in path else {}
        given = {"json": body}
    elif path.startswith("/api/"):
        given = {"json": texts if path.endswith("guard") else {**texts, "judge": "novelty"}}
    else:
        form = {
            "name": "renamed",
            "add": "tagged",
            "label": FAITHFUL,
            "reason": "so",
            "text": "so",
            "judge": "novelty",
        }
        given = {"data": {**form, **texts, "id": "none", "target": "none"}}
    if method == "DELETE":
        given = {}
    headers = {} if token is None else bearer(token)
    return client.request(method, path, headers=headers, **given).status_code


RANKS = {"view": 0, "label": 1, "admin": 2}


def suffices(role: str, least: str | None) -> bool:
    """Written out again, so that a change of one of both is seen."""
    if least is None or role == "admin":
        return True
    return role == least if "ingest" in (role, least) else RANKS.get(role, -1) >= RANKS[least]


def test_every_route_takes_its_role_and_what_is_refused_changes_nothing(
    store: Store, tokens: dict[str, str]
) -> None:
    every = routes(store)
    assert sorted(every) == sorted(LEAST_ROLE), "each route says in server/roles.py which role it takes"
    assert not Visitor("ana", "label").may("GET /not-in-the-table")
    (record,) = store.runs()
    with site(store) as client:
        before, refused = rows(store), 0
        for route, least in LEAST_ROLE.items():
            for name, token in {"nobody": None, **tokens}.items():
                if not suffices(name, least):
                    status = asked(client, route, record.id, token)
                    assert status == (401 if token is None else 403), (route, name)
                    refused += 1
        assert rows(store) == before and refused > 140
        sent = client.post("/v1/traces", headers=bearer(tokens["ingest"]), json={"resourceSpans": []})
        assert sent.status_code == 200
        form, here = {"token": tokens["ingest"]}, {"sec-fetch-site": "same-origin"}
        signed = client.post("/login", data=form, headers=here)
        assert signed.status_code == 403 and not signed.cookies and "sends spans" in signed.text


@pytest.mark.full
def test_the_least_role_and_the_token_of_the_server_suffice(store: Store, tokens: dict[str, str]) -> None:
    (record,) = store.runs()
    with site(store) as client:
        before = rows(store)
        for route, least in LEAST_ROLE.items():
            for token in (None,) if least is None else (tokens[least], *[TOKEN] * (least == "admin")):
                if "/live/" not in route and "delete" not in route.lower():  # streams do not end
                    assert asked(client, route, record.id, token) not in (401, 403), (route, least)
        assert asked(client, "DELETE /api/runs/{run_id}", record.id, tokens["admin"]) == 204
        changed = {name for name, found in rows(store).items() if found != before[name]}
        assert changed == {"runs", "labels", "label_leases", "label_gold", "label_comments", "audit_log"}


# --- tokens ---------------------------------------------------------------------------------------


def test_a_token_is_kept_as_a_hash_and_ends_at_once(store: Store, tokens: dict[str, str]) -> None:
    held = str(rows(store))
    assert not any(token in held for token in tokens.values())
    with site(store) as client:
        sent = client.post(
            "/login", data={"token": tokens["admin"]}, headers={"sec-fetch-site": "same-origin"}
        )
        page = client.get("/")
        assert (sent.status_code, page.status_code) == (303, 200) and "admin" in page.text
        assert 'href="/audit"' in page.text
        new = store.users.rotate("admin", by="test", now=NOW)
        assert client.get("/").status_code == 401, "who is signed in with the old token is not any more"
        client.cookies.clear()
        assert client.get("/audit", headers=bearer(tokens["admin"])).status_code == 401
        assert client.get("/audit", headers=bearer(new)).status_code == 200
        store.users.remove("admin", by="test", now=NOW)
        assert client.get("/audit", headers=bearer(new)).status_code == 401
        assert client.get("/audit", headers=bearer(TOKEN)).status_code == 200
        viewed = client.get("/", headers=bearer(tokens["view"])).text
        assert 'href="/audit"' not in viewed and 'href="/try"' not in viewed
    for name in ("VIEW", "(server token)", " ", "a\nb"):
        with pytest.raises(SpecError):
            store.users.add(name, "view", by="test", now=NOW)
    with pytest.raises(SpecError, match="unknown user"):
        store.users.rotate("admin", by="test", now=NOW)


def test_without_a_token_of_the_server_everybody_here_may_do_everything(
    store: Store, tokens: dict[str, str]
) -> None:
    with site(store, token=None) as client:
        assert client.get("/audit").status_code == 200
        assert client.get("/audit", headers=bearer(tokens["view"])).status_code == 403


def test_guesses_at_once_are_counted_before_the_next_is_looked_at() -> None:
    looked, n = [], 40

    async def guess() -> None:
        attempts = TokenAttempts(TOKEN, Clock(), lambda token: looked.append(token))
        pending = {asyncio.create_task(attempts.check("here", f"guess {at}".encode())) for at in range(n)}
        answers: list[Any] = []
        while len(pending) > IN_LINE:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            answers += [task.result() for task in done]
        assert sorted(answers) == [*["later"] * (n - FREE - IN_LINE), *["wrong"] * FREE]
        for task in pending:
            task.cancel()

    asyncio.run(guess())
    assert len(looked) == FREE


def test_guesses_count_also_while_users_cannot_be_looked_up() -> None:
    def broken(token: bytes) -> None:
        raise StoreError("the store is gone")

    async def guess() -> None:
        attempts = TokenAttempts(TOKEN, Clock(), broken)
        for at in range(FREE):
            assert await attempts.check("here", TOKEN.encode()) == WITH_TOKEN
            with pytest.raises(StoreError):
                await attempts.check("here", f"guess {at}".encode())
        assert attempts.wait("here") > 0

    asyncio.run(guess())


# --- names of labels ------------------------------------------------------------------------------


def test_users_label_under_their_own_name_and_nobody_else_does(store: Store, tokens: dict[str, str]) -> None:
    with site(store) as client:
        user, owner = bearer(tokens["label"]), {**bearer(TOKEN)}
        assert "You label as label." in client.get("/label/q", headers=user).text
        said = {"label": FAITHFUL, "revision": 0, "note": SECRET}
        assert client.post("/label/q/1", data=said, headers=user).status_code == 303
        assert client.post("/api/labels/q/items/2", json=said, headers=user).json()["annotator"] == "label"
        before = rows(store)
        stolen = {**said, "annotator": "ben"}
        assert client.post("/api/labels/q/items/3", json=stolen, headers=user).status_code == 403
        assert client.post("/label/q/annotator", data={"annotator": "ben"}, headers=user).status_code == 403
        stolen["annotator"] = (
            "Label"  # a user's name, whatever its case, is not for those with the server's token
        )
        assert client.post("/api/labels/q/items/3", json=stolen, headers=owner).status_code == 403
        assert client.post("/label/q/annotator", data=stolen, headers=owner).status_code == 403
        assert rows(store) == before
        assert client.post("/label/q/annotator", data={"annotator": "ben"}, headers=owner).status_code == 303
        assert (
            client.post("/label/q/1", data={**said, "label": HALLUCINATED}, headers=owner).status_code == 303
        )
        decided = {"label": FAITHFUL, "reason": SECRET, "revision": 0}
        assert client.post("/label/q/conflicts/1", data=decided, headers=user).status_code == 303
        assert client.post("/label/q/undo", headers=user).status_code == 303
        conflict = client.post("/label/q/1", data={**said, "label": HALLUCINATED}, headers=user)
        assert conflict.status_code == 409
        assert (
            client.delete(f"/api/runs/{store.runs()[0].id}", headers=bearer(tokens["admin"])).status_code
            == 204
        )
        told = client.get("/api/audit", headers=owner).json()["entries"]
        assert [(each["who"], each["action"], each["object"], each["details"]) for each in told[:-5]] == [
            ("admin", "delete run", told[0]["object"], "6 outcomes over bridges"),
            ("label", "take back label", "q, item 2", "revision 2"),
            ("label", "decide", "q, item 1", "faithful, revision 1"),
            ("(server token)", "label", "q, item 1", "hallucinated, revision 1, as ben"),
            ("label", "label", "q, item 2", "faithful, revision 1"),
        ]
        page = client.get("/audit", params={"user": "label"}, headers=owner).text
        assert "take back label" in page and "delete run" not in page
        assert client.get("/audit", params={"since": "2999-01-01"}, headers=owner).text.count("<td>") == 0
        assert client.get("/audit", params={"since": "never"}, headers=owner).status_code == 422
    log = str(rows(store)["audit_log"])
    assert SECRET not in log and not any(token in log for token in tokens.values())


# --- the log --------------------------------------------------------------------------------------


def test_the_log_is_only_appended_to_and_is_there_with_the_change_or_neither_is(store: Store) -> None:
    (record,) = store.runs()
    store.rename(record.id, "second", by="ana")
    with suppress(SpecError):
        store.rename("nothing", "third", by="ana")
    assert store.labels.add("q", 0, "ana", Answer(label=FAITHFUL), revision=7, now=NOW, by="ana") is not None
    assert store.labels.add("q", 0, "ana", Answer(label=HALLUCINATED), revision=0, now=NOW, by="ana") is None
    assert [each.action for each in store.audit.entries(limit=9)] == ["label", "rename run"]
    url = store.place.replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(url if "://" in url else f"sqlite:///{url}")
    for change in ("UPDATE audit_log SET who = 'ben'", "DELETE FROM audit_log"):
        with pytest.raises(DBAPIError, match="only appended to"), engine.begin() as connection:
            connection.execute(text(change))
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE audit_log RENAME TO gone"))
    engine.dispose()
    with pytest.raises(StoreError):
        store.rename(record.id, "fourth", by="ana")
    assert store.find_run(record.id).name == "second"


def test_users_and_the_log_on_the_command_line(call: Call) -> None:
    assert "no users yet" in call("users").out
    token = call("users", "add", "ana", "--role", "label").out.strip()
    assert len(token) > 40
    assert call("users", "add", "ANA", "--role", "view").code == 2
    assert json.loads(call("users", "list", "--json").out)[0]["role"] == "label"
    assert call("users", "rotate", "ana").out.strip() != token
    assert call("users", "remove", "ana").code == 0 and call("users", "remove", "ana").code == 2
    entries = json.loads(call("users", "log", "--since", "2026-01-01", "--json").out)
    assert [each["action"] for each in entries] == ["remove user", "rotate token", "add user"]
    assert entries[0]["who"].startswith("(terminal)") and token not in str(entries)
    assert "nothing fits" in call("users", "log", "--user", "ben").out
    assert call("users", "log", "--since", "yesterday").code == 2
