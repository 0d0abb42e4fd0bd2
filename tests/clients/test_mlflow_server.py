"""A real MLflow: the traces that its client logs are pulled and judged once, wherever it keeps their spans.

`make test-clients` makes the environment that it runs in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conversation import ANSWER
from test_clients import HTTP, RULES, Client, Intake, Model, check_samples, traces_of

from magistrate.store import Store
from servers import called, free_port, serving
from standins import running


class WithoutTotals(Model):
    """A model server that leaves out the sum of tokens. MLflow 3.17 keeps spans with its answers in files."""

    def _summed(self, usage: Any) -> Any:
        return usage


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server without traces."""
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    address = f"http://127.0.0.1:{port}"
    settings = {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    words = ["-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder)]
    with serving("mlflow_server", words, settings, folder, f"{address}/health"):
        yield address


def pulled(mlflow: str, store: Path) -> Any:
    return json.loads(called("watch", "pull", "mlflow", mlflow, "--store", str(store), "--json"))


def outcomes(store: Path) -> dict[str, list[Any]]:
    """The outcomes of each rule, in the order in which they were stored."""
    with Store.open(store) as opened:
        records = {name: opened.traces.rule(name) for name in ("answer", "call")}
        return {
            name: list(opened.outcomes(each.run_id))
            for name, each in records.items()
            if each is not None and each.run_id is not None
        }


def test_its_traces_are_judged_once(mlflow: str, tmp_path: Path) -> None:
    rules, place = tmp_path / "rules.yaml", tmp_path / "watch.db"
    rules.write_text(RULES.replace("quiet: 1s", "quiet: 0s"), encoding="utf-8")
    variables = {
        "MLFLOW_TRACKING_URI": mlflow,
        "MLFLOW_ENABLE_OTLP_EXPORTER": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    client = Client("mlflow_server", ("mlflow_client.py",), variables=variables)
    held = []
    for kind in (Model, WithoutTotals):
        with running(kind(lambda asked: ANSWER, any_name=True)) as model:
            intake = Intake(place, {HTTP: mlflow}, model.url)
            held.append(traces_of(client, intake))

    first = pulled(mlflow, place)
    assert (first["changed"], first["unread"]) == (10, [])
    watch = ("watch", "run", "--rules", str(rules), "--store", str(place), "--once")
    called(*watch)
    for traces in held:
        check_samples(intake, traces)
    before = outcomes(place)
    assert {name: len(each) for name, each in before.items()} == {"answer": 6, "call": 6}

    second = pulled(mlflow, place)
    assert (second["spans"], second["changed"], second["unread"]) == (10, 0, [])
    called(*watch)
    assert outcomes(place) == before
