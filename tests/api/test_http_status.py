"""The engine's own state over HTTP: liveness, readiness, metrics, and the description of it all."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route

from api.metrics import COUNTERS, HELP
from engine.client import EngineStatistics
from tests.api.serving import app_of, without_sockets
from tests.sim import Running, SimClock, World, request


async def test_a_process_that_answers_is_live(http_idle: httpx.AsyncClient, idle: Running) -> None:
    idle.engine.draining = True

    assert (await http_idle.get("/livez")).status_code == 200


async def test_capacity_says_what_steps_take_what_workers_have_and_what_waits(
    running: Running, http: httpx.AsyncClient
) -> None:
    await running.ended((await running.client.submit(request(steps=30, guidance=3.0))).id)
    seen = (await http.get("/v1/capacity")).json()

    (count,) = [step for step in seen["steps"] if step["loop"] == "count"]
    assert (count["model"], count["pool"], count["policy"], count["batch"]) == ("toy", "default", "guided", 1)
    assert count["samples"] == 29
    assert 0 < count["seconds"] <= count["careful_seconds"]
    assert count["cold_seconds"] > 0
    (worker,) = seen["workers"]
    assert worker | {"device": ""} == {
        "id": running.workers[0].name,
        "pool": "default",
        "device": "",
        "memory_bytes": 1 << 30,
        "reserved_bytes": 0,
        "jobs": 0,
        "outstanding_seconds": 0.0,
        "weights_bytes": None,
        "components": [],
    }
    assert seen["queue"] == {"jobs": 0, "steps": 0, "seconds": 0, "job_seconds": 0}


async def test_the_queue_has_all_open_jobs_and_one_kind_of_seconds() -> None:
    async with World().engine(max_active=4, workers=0) as running, without_sockets(app_of(running)) as http:
        for seed in range(10):
            await running.client.submit(request(steps=1, seed=seed))
        await running.until(lambda: len(running.engine.dispatcher.waiting()) == 4)
        queue = (await http.get("/v1/capacity")).json()["queue"]

    assert (queue["jobs"], queue["steps"]) == (10, 4)
    assert 0 < queue["seconds"] <= queue["job_seconds"]


async def test_readiness_follows_workers_and_draining(idle: Running, http_idle: httpx.AsyncClient) -> None:
    async def ready() -> tuple[int, list[str]]:
        answer = await http_idle.get("/readyz")
        assert answer.json()["ready"] is (answer.status_code == 200)
        return answer.status_code, answer.json()["reasons"]

    assert await ready() == (503, ["no worker has joined"])

    idle.add_worker()
    await idle.until(lambda: bool(idle.engine.fleet.seats))
    assert await ready() == (200, [])

    await idle.engine.lose(idle.workers[0].name, "test")
    assert await ready() == (503, ["no worker has joined"])

    idle.add_worker()
    await idle.until(lambda: bool(idle.engine.fleet.seats))
    idle.engine.draining = True
    assert await ready() == (503, ["stopping"])


async def test_an_engine_where_nothing_moves_is_not_ready() -> None:
    clock = SimClock()
    async with World(clock=clock).engine(silent_s=1e9) as running, without_sockets(app_of(running)) as http:
        await running.until(lambda: bool(running.engine.fleet.seats))
        running.workers[0].frozen = True
        await running.client.submit(request())
        await running.until(lambda: bool(running.engine.ledger.actors))
        before = (await http.get("/readyz")).status_code
        clock.advance(121)
        answer = await http.get("/readyz")

    assert (before, answer.status_code) == (200, 503)
    assert "nothing has moved" in answer.json()["reasons"][0]


# -- metrics --------------------------------------------------------------------------------------------------------


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_statistic_is_a_metric_with_help() -> None:
    assert set(HELP) == set(EngineStatistics.__struct_fields__)
    assert set(HELP) >= COUNTERS


async def test_metrics_tell_of_the_engine(running: Running, http: httpx.AsyncClient) -> None:
    await running.ended((await running.client.submit(request(steps=3))).id)

    told = samples((await http.get("/metrics")).text)

    assert told["keyframe_workers", frozenset()] == 1
    assert told["keyframe_steps_completed_total", frozenset()] == 5
    assert told["keyframe_draining", frozenset()] == 0


async def test_requests_are_counted_by_template(http: httpx.AsyncClient) -> None:
    for path in ("/v1/jobs/a", "/v1/jobs/b", "/nope", "/nada"):
        await http.get(path)
    await http.request("BREW", "/v1/jobs")

    told = samples((await http.get("/metrics")).text)

    def count(route: str, method: str, status: str) -> float | None:
        labels = frozenset({("route", route), ("method", method), ("status", status)})
        return told.get(("keyframe_http_request_seconds_count", labels))

    assert count("/v1/jobs/{job}", "GET", "404") == 2
    assert count("unmatched", "GET", "404") == 2
    assert count("/v1/jobs", "other", "405") == 1


async def test_a_request_that_went_wrong_is_counted(running: Running) -> None:
    async with without_sockets(app_of(running)) as http:
        registry, running.engine.registry = running.engine.registry, {"toy": None}  # type: ignore[dict-item]
        await http.get("/v1/models")
        running.engine.registry = registry
        told = samples((await http.get("/metrics")).text)

    labels = frozenset({("route", "/v1/models"), ("method", "GET"), ("status", "500")})
    assert told["keyframe_http_request_seconds_count", labels] == 1


async def test_two_apps_share_no_numbers(running: Running) -> None:
    async with without_sockets(app_of(running)) as one, without_sockets(app_of(running)) as other:
        await one.get("/livez")
        told = samples((await other.get("/metrics")).text)

    assert not any(name.startswith("keyframe_http") for name, _ in told)


async def test_openmetrics_is_spoken_to_who_asks(http: httpx.AsyncClient) -> None:
    answer = await http.get("/metrics", headers={"accept": "application/openmetrics-text"})

    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


# -- openapi --------------------------------------------------------------------------------------------------------


@pytest.fixture
async def document(http: httpx.AsyncClient) -> dict[str, Any]:
    told: dict[str, Any] = (await http.get("/openapi.json")).json()
    return told


def nested(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a document."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nested(inner)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


async def test_every_route_is_described(running: Running, document: dict[str, Any]) -> None:
    routes = {
        (route.path, method)
        for route in app_of(running).routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }

    assert {(path, method.upper()) for path, method, _ in operations(document)} == routes
    assert len(routes) >= 12


async def test_the_document_is_whole(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    assert document["info"] == {"title": "Keyframe", "version": "0.1.0"}
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(names)) == len(names)
    schemas = document["components"]["schemas"]
    for one in nested(document):
        if "$ref" in one:
            assert one["$ref"].removeprefix("#/components/schemas/") in schemas
        for target in one.get("mapping", {}).values() if "propertyName" in one else ():
            assert target.removeprefix("#/components/schemas/") in schemas


async def test_every_operation_is_whole(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        parameters = {(one["in"], one["name"]) for one in operation["parameters"]}
        assert {name for place, name in parameters if place == "path"} == set(re.findall(r"{(\w+)}", path))
        assert len(parameters) == len(operation["parameters"])
        assert all("schema" in one for one in operation["parameters"])
        assert operation["summary"], path
        assert "default" in operation["responses"]
        assert len(operation["responses"]) > 1
        assert all(answer["description"] for answer in operation["responses"].values())
        assert "requestBody" not in operation or method == "post"


async def test_what_is_answered_has_the_shape_that_is_described(
    running: Running, http: httpx.AsyncClient, document: dict[str, Any]
) -> None:
    job = (await running.client.submit(request())).id
    await running.ended(job)

    told = (await http.get(f"/v1/jobs/{job}")).json()

    assert set(document["components"]["schemas"]["Job"]["properties"]) == set(told)
    assert {one["name"] for one in document["paths"]["/v1/jobs"]["get"]["parameters"]} == {
        "status",
        "model",
        "after",
        "limit",
    }


# -- models that cannot be opened -----------------------------------------------------------------------------------


async def test_a_model_that_cannot_be_used_is_listed_with_the_reason_and_refused() -> None:
    world = World()
    world.unusable = {"wan": "/models/wan: is no directory; restore it"}
    async with world.engine(workers=0) as running, without_sockets(app_of(running)) as http:
        listed = (await http.get("/v1/models")).json()
        refused = await http.post("/v1/jobs", json={"model": "wan", "prompt": "a fox"})

    assert ([model["id"] for model in listed["data"]], listed["unusable"]) == (["toy"], world.unusable)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("model_unusable", "model")
    assert error["message"] == "model 'wan' cannot be used: /models/wan: is no directory; restore it"
