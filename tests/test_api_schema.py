"""Every operation of the API does what its own OpenAPI document says, whatever is asked of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from browsing import pages_of
from furnished import Furnished, furnished
from magistrate.store import Store
from magistrate.store.labels import Answer
from watched import NOON, answer

ASKED, MISTAKEN = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
OPERATIONS = [
    ("get", "/api/runs"),
    ("get", "/api/runs/{run_id}"),
    ("get", "/api/runs/{run_id}/judges/{judge}/figures"),
    ("get", "/api/runs/{run_id}/judges/{judge}/outcomes"),
    ("get", "/api/runs/{run_id}/sample"),
    ("get", "/api/runs/{run_id}/samples/{sample_id}"),
    ("get", "/api/compare"),
    ("get", "/api/judges"),
    ("get", "/api/judges/{name}"),
    ("get", "/api/models"),
    ("post", "/api/judge"),
    ("post", "/api/guard"),
    ("get", "/api/watch"),
    ("get", "/api/watch/traces"),
    ("get", "/api/watch/trace"),
    ("delete", "/api/runs/{run_id}"),
    ("get", "/api/labels"),
    ("get", "/api/labels/{name}"),
    ("post", "/api/labels/{name}/next"),
    ("post", "/api/labels/{name}/items/{number}"),
    ("get", "/api/labels/{name}/items/{number}/comments"),
    ("post", "/api/labels/{name}/items/{number}/comments"),
    ("get", "/api/labels/{name}/export"),
    ("get", "/api/audit"),
]
ALL_RIGHT = [  # whatever is asked there, no form of it is wrong
    ("get", "/api/runs/{run_id}"),
    ("delete", "/api/runs/{run_id}"),
    ("get", "/api/judges"),
    ("get", "/api/judges/{name}"),
    ("get", "/api/models"),
    ("get", "/api/labels"),
    ("get", "/api/labels/{name}"),
]
# Little of what is asked there at random is of things that are there.
RARE = {
    "/api/compare": 60,
    "/api/labels/{name}/items/{number}": 24,
    "/api/labels/{name}/items/{number}/comments": 60,
}
LIGHT = ["novelty", "exact", "rouge", "bleu", "contains"]  # they ask no model


FEW = {"at": ["", "1.2"], "wait": [0, 20], "pair": [0, 1], "start": [0], "metric": ["accuracy", "f1"]}
ODD = ["nothing", "..", "%2e", "a/b", "\u00fc", "\u202e", "x" * 300, " ", "last"]


@dataclass(frozen=True)
class Api:
    """A server, what it says of itself, and the same with the names of what is there."""

    site: str
    told: dict[str, Any]
    hinted: dict[str, Any]
    house: Furnished


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The API over a store of this module's own, for runs of it are deleted."""
    house = furnished(tmp_path_factory.mktemp("api"))
    with Store.open(house.place) as store:
        store.traces.put(answer(1), NOON)
        for position in range(12):  # who has labelled an item may read and write comments
            store.labels.add("Bridges", position, "yan", Answer(label="unsure"), revision=0, now=NOON)
    with pages_of(house.place, guard="novelty") as site:
        told = httpx.get(f"{site}/api/openapi.json", timeout=60).json()
        shape = told["components"]["schemas"]["ToJudge"]
        shape["required"] = ["judge"]  # the default one may ask a model
        shape["properties"]["judge"]["maxLength"] = 20
        yield Api(site, told, hinted(told, house), house)


def hinted(told: dict[str, Any], house: Furnished) -> dict[str, Any]:
    """A document that asks for what is there, now and then; what answers must be stays as it is."""
    document = copy.deepcopy(told)
    runs = [house.bridges, house.again, house.unlabelled, house.failed, house.empty]
    known = {
        "run_id": runs,
        "judge": ["rubric", "second"],
        "sample_id": ["bridge-002", "bridge-007", "bridge-008"],
        "id": ["bridge-002", "bridge-039", f"{1:032x}"],
        "name": [*LIGHT, "faithfulness"],
        "by": ["built of", "n"],
        "annotator": ["yan", "zoe"],
        "said": ["hallucinated", "-failed"],
        "truth": ["faithful", "-"],
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for parameter in operation.get("parameters", ()):
                name = parameter["name"]
                if (method, name) == ("delete", "run_id"):
                    parameter["schema"] = {"enum": [house.empty, house.failed, *ODD]}
                elif name == "name" and path.startswith("/api/labels"):
                    parameter["schema"] = {"enum": ["Bridges", *ODD[:2]]}
                elif name == "number":
                    parameter["schema"] = {"type": "integer", "minimum": 1, "maximum": 12}
                elif name in known:
                    parameter["schema"] = {"enum": [*known[name], *ODD[: len(known[name])]]}
                elif name == "run":
                    sides = {"enum": [f"{run}:rubric" for run in runs[:2]] + runs[:2]}
                    different = {"uniqueItems": True, "minItems": 1, "maxItems": 2}
                    parameter["schema"] = {"type": "array", "items": sides, **different}
                elif path == "/api/compare" and name in FEW:
                    several = parameter["schema"].get("type") == "array"
                    few = {"enum": FEW[name]}
                    parameter["schema"] = {"type": "array", "items": few, "maxItems": 2} if several else few
    shape = document["components"]["schemas"]["ToJudge"]["properties"]
    shape["judge"] = {"enum": [*LIGHT, "novelty:base_rate=0.2", "nothing"]}
    shape["model"] = {"type": "null"}
    said = document["components"]["schemas"]["ToLabel"]["properties"]
    said["annotator"] = {"enum": ["ana", "zoe"]}
    document["components"]["schemas"]["ToComment"]["properties"]["annotator"] = {"enum": ["yan", "zoe"]}
    said["revision"] = {"const": 0}
    said["spans"]["maxItems"] = 1
    shape["output"] = {"enum": ["It closes at six.", "Six.", ""]}
    return document


def test_no_operation_is_left_out(api: Api) -> None:
    told = {(method, path) for path, each in api.told["paths"].items() for method in each}
    assert told == set(OPERATIONS)


@pytest.mark.parametrize("examples", [8, pytest.param(60, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("method", "path"),
    [pytest.param(*each, marks=pytest.mark.full if each[1] in RARE else ()) for each in OPERATIONS],
)
def test_an_operation_answers_as_it_says(api: Api, method: str, path: str, examples: int) -> None:
    found = set[int]()
    examples = max(examples, RARE.get(path, 0))
    ways = [(api.told, ASKED), (api.told, MISTAKEN), (api.hinted, ASKED)]
    if (method, path) in ALL_RIGHT:
        del ways[1]
    for document, mode in ways:
        operation = schemathesis.openapi.from_dict(document)[path][method]

        @settings(
            max_examples=examples,
            derandomize=True,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def asked(case: schemathesis.Case) -> None:
            answer = case.call(base_url=api.site, timeout=60)
            found.add(answer.status_code)
            case.validate_response(answer, checks=CHECKS)

        asked()
    if path == "/api/runs/{run_id}/sample":  # chance need not find a run and a sample of it at once
        there = operation.Case(path_parameters={"run_id": api.house.bridges}, query={"id": "bridge-002"})
        found.add(there.call_and_validate(base_url=api.site, checks=CHECKS).status_code)
    assert found & {200, 204}, f"nothing that was asked is there: {found}"
