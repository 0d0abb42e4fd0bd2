"""Labelling by programs: the JSON API and the Python functions give out, take and refuse as the page does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

import magistrate
from browsing import pages_of
from furnished import run_of
from magistrate.errors import InputError, SpecError
from magistrate.labels.files import rows_to_write
from magistrate.store import Store
from magistrate.types import FAITHFUL, Sample, Span, Verdict


def ask(method: str, address: str, **more: Any) -> httpx.Response:
    """The answer; machines that run tests may be busy."""
    return httpx.request(method, address, timeout=60, **more)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "runs.db"
    with Store.open(place) as store:
        samples = [Sample(f"s{at}", f"😀 output {at}", (f"context {at}",)) for at in range(4)]
        said = [Verdict(each.id, "novelty", FAITHFUL, 0.1) for each in samples]
        run = run_of(store, samples, said, name="judged")
    magistrate.label_queue("q", of=run, policy="uniform", double=0.5, store=place, instructions="Read all.")
    return place


def test_a_queue_is_labelled_by_functions(place: Path, tmp_path: Path) -> None:
    assert [each.name for each in magistrate.label_queues(place)] == ["q"]
    queue = magistrate.label_queue("q", store=place)
    with pytest.raises(SpecError, match="queue 'q' already exists"):
        magistrate.label_queue("q", of="judged", store=place)
    for wrong in (
        lambda: magistrate.label_queue("r", store=place),
        lambda: magistrate.label_queue("q", store=place, size=3),
        lambda: queue.submit(9, "ana", "faithful"),
        lambda: queue.next(" "),
    ):
        with pytest.raises(SpecError):
            wrong()
    numbers = []
    while (task := queue.next("ana")) is not None:
        assert task.instructions == "Read all." and task.revision == 0
        queue.submit(task.number, "ana", "hallucinated", spans=[Span(0, 1, task.kinds[0])])
        numbers.append(task.number)
    assert numbers == [1, 2, 3, 4] and queue.progress().n_decided == 4
    with pytest.raises(InputError, match="outside the output"):
        queue.submit(1, "ben", "hallucinated", spans=[Span(0, 99)])
    with pytest.raises(SpecError, match="to change the label: revision=1"):
        queue.submit(1, "ana", "faithful")
    assert queue.submit(1, "ana", "faithful", revision=1).revision == 2
    assert queue.export(tmp_path / "q.json", form="label-studio") == 4
    other = magistrate.label_queue("other", of="judged", policy="uniform", store=place)
    assert other.import_labels(tmp_path / "q.json").n_new == 4
    assert len(other.labels()) == 4 and other.record.policy == "uniform"


def test_the_api_gives_out_takes_and_refuses(place: Path) -> None:
    with pages_of(place) as site:
        api = f"{site}/api/labels"
        assert [each["name"] for each in ask("GET", api).json()["queues"]] == ["q"]
        first = ask("POST", f"{api}/q/next", json={"annotator": "ana"}).json()["item"]
        assert (first["number"], first["revision"], first["context"]) == (
            1,
            0,
            [f"context {first['id'][1:]}"],
        )
        second = ask("POST", f"{api}/q/next", json={"annotator": "ana", "but": [1]}).json()["item"]
        assert second["number"] == 2 and "verdict" not in str(second) and "score" not in str(second)
        item = f"{api}/q/items/1"
        said = {"label": "hallucinated", "annotator": "ana", "spans": [{"start": 0, "end": 1}]}
        for _ in range(2):  # sent twice it is stored once
            stored = ask("POST", item, json=said)
            assert stored.json() == {"label": "hallucinated", "revision": 1, "annotator": "ana"}
        for address, body, status in (
            (item, {**said, "label": "faithful", "spans": []}, 409),
            (item, {**said, "label": "perhaps"}, 422),
            (item, {**said, "annotator": " "}, 422),
            (item, {**said, "annotator": "ben", "spans": [{"start": 0, "end": 99}]}, 422),
            (f"{api}/q/items/9", said, 404),
            (f"{api}/none/next", {}, 404),
        ):
            assert ask("POST", address, json=body).status_code == status, (address, body)
        told = ask("GET", f"{api}/q").json()
        assert (told["n_labels"], told["n_decided"], told["share"]["value"]) == (1, 1, 1.0)
        with Store.open(place) as store:
            queue = store.labels.find("q")
            for query, form in (
                ("", None),
                ("?for=argilla", "argilla"),
                ("?for=label-studio", "label-studio"),
            ):
                rows = ask("GET", f"{api}/q/export{query}").json()["rows"]
                assert rows == rows_to_write(store, queue, form=form)  # type: ignore[arg-type]
        assert ask("GET", f"{api}/q/export?for=excel").status_code == 422


def test_with_a_token_it_takes_the_token_and_a_name(place: Path) -> None:
    with pages_of(place, token="long-enough-to-be-one") as site:
        for method, path in (("GET", ""), ("GET", "/q"), ("POST", "/q/next"), ("POST", "/q/items/1")):
            answer = ask(method, f"{site}/api/labels{path}")
            assert answer.status_code == 401, path
        headers = {"authorization": "Bearer long-enough-to-be-one"}
        nameless = ask("POST", f"{site}/api/labels/q/next", json={}, headers=headers)
        assert nameless.status_code == 422 and "the name of the annotator" in nameless.json()["detail"]
        named = ask("POST", f"{site}/api/labels/q/next", json={"annotator": "ana"}, headers=headers)
        assert named.status_code == 200
    with pages_of(place) as site:
        hostile = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
        assert ask("POST", f"{site}/api/labels/q/next", json={}, headers=hostile).status_code == 403
