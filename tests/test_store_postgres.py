"""A PostgreSQL database keeps runs as a file does; its errors say what to do and never a password."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine

from magistrate.errors import SpecError, StoreError
from magistrate.store import Store
from magistrate.store import postgres as postgres_store
from magistrate.store.connection import exists, place_of
from magistrate.store.migrations import upgrade
from magistrate.store.runs import lock_run
from magistrate.types import Sample, Verdict
from postgres import Server, a_server


@pytest.fixture
def url(postgres: Server) -> str:
    return postgres.new_database()


def start(store: Store, samples: list[Sample]) -> str:
    run = store.create_run(
        dataset="quickstart", dataset_digest="d", model="tiny", engine_fingerprint="f", recipes={}
    )
    store.add_samples(run, samples)
    return run


def numbered(n: int) -> list[Sample]:
    return [Sample(f"s{i}", f"output {i}") for i in range(n)]


def verdict(sample_id: str, judge: str = "j") -> Verdict:
    return Verdict(sample_id, judge, "faithful", 0.5)


# --- places -------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_server_is_named_in_every_usual_way(url: str) -> None:
    with Store.open(url) as store:
        run = start(store, [])
    for scheme in ("postgres", "postgresql+psycopg"):
        with Store.open(url.replace("postgresql", scheme)) as store:
            assert store.find_run("last").id == run
        with Store.open(store.place) as again:
            assert again.find_run("last").id == run


def test_a_place_is_shown_without_what_might_be_secret(tmp_path: Path) -> None:
    given = "postgres://me:p%40ss@db.example:5433/runs?options=-csearch_path%3Dmine&sslpassword=hidden"
    place = place_of(given)
    assert place.shown == "postgresql://me@db.example:5433/runs?options=-csearch_path%3Dmine"
    assert place_of(place.words) == place
    assert place_of("postgresql://h/db?password=hidden").shown == "postgresql://h/db"
    assert "hidden" not in repr(place) + repr(place_of("postgresql://h/db?password=hidden"))
    assert exists(given)
    assert not exists(tmp_path / "none.db")


@pytest.mark.parametrize(
    "given",
    [
        "postgresql://me:sec@ret@host/db",
        "postgresql://me:secret@host:port/db",
        "mysql://me:sec@ret@host/db",
        "postgresql+asyncpg://me:secret@host/db",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_password(given: str) -> None:
    with pytest.raises(
        SpecError, match=r"postgresql://USER@HOST/DATABASE|in a password, write @ as %40"
    ) as error:
        Store.open(given)
    assert not error.value.__cause__
    assert "sec" not in str(error.value)
    assert "ret" not in str(error.value)


def test_without_the_driver_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from magistrate.store import Store\n"
        "from magistrate.errors import MissingExtra\n"
        "try: Store.open('postgresql://me:secret@localhost/db')\n"
        "except MissingExtra as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "package 'psycopg' is required; install it with: pip install 'magistrate[postgres]'\n"


# --- servers that cannot be used ----------------------------------------------------------------


@contextmanager
def refused(words: str) -> Iterator[None]:
    """A `StoreError` with these words and without a password, in itself or in what it came from."""
    with pytest.raises(StoreError, match=words) as caught:
        yield
    error: BaseException | None = caught.value
    while error is not None:
        assert "secret" not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__


def test_a_server_that_cannot_be_reached_is_said(tmp_path: Path) -> None:
    with refused(
        r"store postgresql://me@127\.0\.0\.1:1/db: the server cannot be reached; check that it is running"
    ):
        Store.open("postgresql://me:secret@127.0.0.1:1/db")
    with refused("the server cannot be reached"):
        Store.open("postgresql://me:secret@nowhere.invalid/db")
    with refused("the server cannot be reached"):
        Store.open(f"postgresql://me:secret@/db?host={tmp_path}")
    with refused("the URL cannot be used; check the part after the question mark"):
        Store.open("postgresql://me:secret@127.0.0.1:1/db?wrong=1")
    with refused("the URL cannot be used; check the part after the question mark"):
        Store.open("postgresql://me:secret@127.0.0.1:1/db?sslmode=wrong")


@pytest.mark.full
def test_who_may_not_in_is_told_why(postgres: Server, url: str) -> None:
    with refused("the server has no such database; create it with: createdb"):
        Store.open(postgres.url("nowhere"))
    with refused("the server rejected the user or the password"):
        Store.open(postgres.url("postgres", "nobody", "secret"))
    postgres.execute("CREATE ROLE guest LOGIN PASSWORD 'secret'")
    rules = Path(postgres.folder) / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"local all guest scram-sha-256\n{before}")
    postgres.execute("SELECT pg_reload_conf()")
    try:
        name = url.partition("?")[0].rpartition("/")[2]
        wait_for_words("password", postgres.url(name, "guest", "wrong"))
        with refused("the server rejected the user or the password; check the URL, or PGUSER"):
            Store.open(postgres.url(name, "guest", "secret-not"))
        with refused("the server rejected the user or the password"):
            Store.open(postgres.url(name, "guest"))
        with refused(r"this user may not do that there; .* GRANT USAGE, CREATE ON SCHEMA public"):
            Store.open(postgres.url(name, "guest", "secret"))
        postgres.execute("GRANT USAGE, CREATE ON SCHEMA public TO guest", url)
        with Store.open(postgres.url(name, "guest", "secret")) as store:
            start(store, numbered(1))
            assert "secret" in store.place
            assert "secret" not in store.shown + repr(store)
    finally:
        rules.write_text(before)
        postgres.execute("SELECT pg_reload_conf()")


def wait_for_words(words: str, url: str) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError as error:
            if words in str(error):
                return
        time.sleep(0.02)
    raise AssertionError(f"the server never said {words!r}")


@pytest.mark.full
def test_a_database_of_another_program_is_refused_and_a_schema_of_its_own_helps(
    postgres: Server, url: str
) -> None:
    postgres.execute("CREATE TABLE bookmarks (url TEXT)", url)
    with refused(r"another program \(tables: bookmarks\); use another database, or a schema of its own"):
        Store.open(url)
    mine = f"{url}&options=-csearch_path%3Dmagistrate"
    with refused("the schema of its search path is not there; make it with: CREATE SCHEMA"):
        Store.open(mine)
    for schema in ("magistrate", "second"):
        postgres.execute(f"CREATE SCHEMA {schema}", url)
    with Store.open(mine) as store, Store.open(mine.replace("magistrate", "second")) as second:
        run = start(store, numbered(2))
        assert second.runs() == []
        assert store.shown != second.shown
        with store.hold(run):
            assert store.held(run)
            assert not second.held(run)
    assert postgres.execute("SELECT count(*) FROM magistrate.run_samples", url) == [(2,)]
    assert postgres.execute("SELECT count(*) FROM bookmarks", url) == [(0,)]


@pytest.mark.full
def test_a_database_that_cannot_hold_every_text_is_refused(postgres: Server) -> None:
    latin = postgres.new_database("ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with refused("its encoding is LATIN1; create a database with: createdb --encoding=UTF8"):
        Store.open(latin)
    assert postgres.execute("SELECT * FROM pg_tables WHERE schemaname = 'public'", latin) == []


@pytest.mark.full
def test_text_sorts_by_code_point_whatever_the_language_of_the_server(postgres: Server, url: str) -> None:
    judges = ["a", "B", "ä", "Z", "z", "_", "é", "👩", "\uffff"]
    with Store.open(url) as store:
        run = start(store, numbered(1))
        store.add_outcomes(run, [verdict("s0", judge) for judge in judges])
        assert [outcome.judge for outcome in store.outcomes(run)] == sorted(judges)
    others = (
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public' "
        "AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C'"
    )
    assert postgres.execute(others, url) == []


# --- what happens to a server meanwhile ---------------------------------------------------------


@pytest.mark.full
def test_a_server_that_stops_is_said_and_the_run_goes_on_when_it_is_back() -> None:
    with a_server() as server, Store.open(server.new_database()) as store:
        run = start(store, numbered(1200))
        store.add_outcome(run, verdict("s0"))
        lock = store.hold(run)
        stream = store.samples(run)
        next(stream)
        idle = Store.open(store.place)
        server.stop()
        idle.close()
        with refused("the connection to the server was lost; run again when the server is back"):
            store.add_outcome(run, verdict("s1"))
        with refused("the connection to the server was lost"):
            list(stream)
        with refused("the server cannot be reached"):
            store.add_outcome(run, verdict("s1"))
        with refused("the server cannot be reached"):
            store.runs()
        server.start()
        store.add_outcome(run, verdict("s1"))
        assert store.judged(run) == {("s0", "j"), ("s1", "j")}
        lock.release()
        with store.hold(run):
            assert store.held(run)


@pytest.mark.full
def test_a_connection_that_is_cut_is_said_and_the_next_call_has_another(postgres: Server, url: str) -> None:
    with Store.open(url) as store:
        run = start(store, numbered(2))
        lock = store.hold(run)
        postgres.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
            url,
        )
        with refused("the connection to the server was lost"):
            store.add_outcome(run, verdict("s0"))
        store.add_outcome(run, verdict("s0"))
        assert store.find_run(run).n_outcomes == 1
        assert not store.held(run)
        lock.release()


@pytest.mark.full
def test_a_lock_of_another_program_is_waited_for_and_said(postgres: Server, url: str) -> None:
    with Store.open(url, busy_seconds=0.1) as store:
        run = start(store, numbered(2))
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE outcomes")
            with refused("another program has locked it; wait for that program or stop it"):
                store.add_outcome(run, verdict("s0"))
        store.add_outcome(run, verdict("s0"))
        assert store.judged(run) == {("s0", "j")}


@pytest.mark.full
def test_a_transaction_of_a_lost_host_is_ended_before_others_lose_patience(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "ABANDONED", 0.5)
    with Store.open(url) as lost:
        run = start(lost, numbered(1))

        def silent() -> None:
            with lost._writing() as connection:
                lock_run(connection, run)
                with Store.open(url, busy_seconds=20) as other:
                    other.add_seconds(run, 1.0)
                lock_run(connection, run)

        with pytest.raises(StoreError, match="silent within a transaction"):
            silent()
    with Store.open(url) as other:
        assert other.find_run(run).seconds == 1.0


@pytest.mark.full
@pytest.mark.parametrize(
    ("state", "words"),
    [
        (
            "53100",
            "the server's disk is full; free some space there and run again, committed data is safe",
        ),
        ("53200", "the server ran out of memory"),
        ("57014", "the server's statement_timeout was too short"),
        ("25006", "it is read-only"),
        ("40P01", "another program changed the same rows at the same time; run again"),
        ("P0001", r"made for a test \(P0001\)|made for a test"),
    ],
)
def test_a_server_in_trouble_is_said_and_keeps_what_was_stored(
    postgres: Server, url: str, state: str, words: str
) -> None:
    with Store.open(url) as store:
        run = start(store, numbered(2))
        store.add_outcome(run, verdict("s0"))
        postgres.execute(
            "CREATE FUNCTION trouble() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'made for a test' USING ERRCODE = '{state}'; END $$",
            url,
        )
        postgres.execute("CREATE TRIGGER trouble BEFORE INSERT ON outcomes EXECUTE FUNCTION trouble()", url)
        with refused(words):
            store.add_outcome(run, verdict("s1"))
        postgres.execute("DROP TRIGGER trouble ON outcomes", url)
        assert store.judged(run) == {("s0", "j")}
        store.add_outcome(run, verdict("s1"))


@pytest.mark.full
def test_an_id_too_long_for_an_index_is_said(url: str) -> None:
    import random

    letters = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=9000))
    with Store.open(url) as store:
        run = start(store, numbered(1))
        with refused("an id, a name, a judge or a tag is longer than the limit of an index"):
            store.add_samples(run, [Sample(letters, "text")])
        store.add_samples(run, [Sample("short", letters)])
        assert store.sample(run, "short").output == letters


# --- several programs ---------------------------------------------------------------------------


@pytest.mark.full
def test_an_older_store_is_upgraded_once_by_many_at_once(url: str) -> None:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        upgrade(connection, upto=1)
    engine.dispose()
    opened: list[int] = []

    def open_it() -> None:
        with Store.open(url) as store:
            opened.append(len(store.runs()))

    threads = [threading.Thread(target=open_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [0] * 6


@pytest.mark.full
def test_runs_over_the_same_samples_come_and_go_without_hurting_each_other(url: str) -> None:
    common = numbered(40)
    errors: list[BaseException] = []

    def come_and_go(turn: int) -> None:
        try:
            with Store.open(url) as store:
                for _ in range(12):
                    run = start(store, common[::-1] if turn % 2 else common)
                    store.add_outcomes(run, [verdict(sample.id) for sample in common])
                    assert {sample.output for sample in store.samples(run)} == {s.output for s in common}
                    store.delete(run)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=come_and_go, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM samples").fetchone() == (0,)


@pytest.mark.full
def test_samples_added_to_one_run_by_two_at_once_all_get_a_place(url: str) -> None:
    with Store.open(url) as store:
        run = start(store, [])

    def add(turn: int) -> None:
        with Store.open(url) as store:
            for number in range(25):
                store.add_samples(run, [Sample(f"{turn}-{number}", "text")])

    threads = [threading.Thread(target=add, args=(turn,)) for turn in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Store.open(url) as store:
        assert len({sample.id for sample in store.samples(run)}) == 75


@pytest.mark.full
def test_a_stream_that_outlives_its_store_leaves_no_connection_behind(postgres: Server, url: str) -> None:
    with Store.open(url) as store:
        run = start(store, numbered(1200))
        stream = store.samples(run)
        next(stream)
    assert next(stream).id == "s1"
    stream.close()  # type: ignore[attr-defined]
    others = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    deadline = time.monotonic() + 10
    while postgres.execute(others, url):
        assert time.monotonic() < deadline
        time.sleep(0.01)
