"""What people do to jobs and workers over HTTP: every route's ordinary answer, what it refuses, and by which name."""

from typing import Any

import httpx
import pytest

from cards.shapes.family import FAMILY
from tests import toy
from tests.api.serving import app_of, without_sockets
from tests.sim import Running, World

TOY = {"model": "toy", "prompt": "a count", "steps": 3}
ALL = 5
REASONED = ["pause", "retry", "terminate", "quarantine"]
BARE = ["resume", "release"]


async def submitted(http: httpx.AsyncClient, **fields: Any) -> str:
    job: str = (await http.post("/v1/jobs", json=TOY | fields)).json()["id"]
    return job


async def act(http: httpx.AsyncClient, job: str, verb: str, body: Any = None) -> httpx.Response:
    return await http.post(f"/v1/jobs/{job}/{verb}", json=body) if body else await http.post(f"/v1/jobs/{job}/{verb}")


async def test_a_job_is_paused_and_resumed_and_says_why(http_idle: httpx.AsyncClient) -> None:
    job = await submitted(http_idle)

    first = await act(http_idle, job, "pause", {"reason": "the disk is being moved"})
    shown = (await http_idle.get(f"/v1/jobs/{job}")).json()
    again = await act(http_idle, job, "pause")
    listed = (await http_idle.get("/v1/jobs", params={"status": "paused"})).json()["data"]
    resumed = await act(http_idle, job, "resume")

    assert (first.status_code, first.json()) == (200, {"id": job, "outcome": "done", "status": "paused"})
    assert (shown["status"], shown["reason"]) == ("paused", "the disk is being moved")
    assert again.json()["outcome"] == "unchanged"
    assert [one["id"] for one in listed] == [job]
    assert resumed.json() == {"id": job, "outcome": "done", "status": "queued"}
    assert (await http_idle.get(f"/v1/jobs/{job}")).json()["reason"] is None


async def test_a_job_is_quarantined_released_terminated_and_retried(http_idle: httpx.AsyncClient) -> None:
    job = await submitted(http_idle)

    answers = [(await act(http_idle, job, verb)).json() for verb in ("quarantine", "release", "terminate", "retry")]

    assert [answer["status"] for answer in answers] == ["quarantined", "queued", "cancelled", "queued"]
    assert {answer["outcome"] for answer in answers} == {"done"}


@pytest.mark.parametrize("verb", ["pause", "resume", "retry", "quarantine", "release", "rewind", "migrate"])
async def test_what_a_state_does_not_allow_is_a_conflict_that_says_what_is(
    running: Running, http: httpx.AsyncClient, verb: str
) -> None:
    job = await submitted(http)
    await running.ended(job)
    body = {"rewind": {"to_step": 0}, "migrate": {"to": "pool:default"}}.get(verb)

    answer = await act(http, job, verb, body)

    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (409, "not_allowed", "invalid_request_error")
    assert f"is completed: {verb} is not possible; possible: fork" in error["message"]
    assert answer.headers["x-should-retry"] == "false"


async def test_a_job_is_rewound_to_a_step(running: Running, http: httpx.AsyncClient) -> None:
    job = await submitted(http, prompt="a count fail=2")
    await running.ended(job)
    before = (await http.get(f"/v1/jobs/{job}/checkpoints")).json()

    answer = await act(http, job, "rewind", {"to_step": 2, "reason": "look again"})
    await running.ended(job)

    assert (answer.status_code, answer.json()["status"]) == (200, "queued")
    assert (await http.get(f"/v1/jobs/{job}/checkpoints")).json() == before
    events = (await http.get(f"/v1/jobs/{job}/events")).json()["data"]
    [rewound] = [event["data"] for event in events if event["type"] == "job_rewound"]
    assert (rewound["to_step"], rewound["standing"]["place"]["step"], rewound["reason"]) == (2, 1, "look again")


async def test_a_step_is_pinned_and_unpinned_and_the_job_shows_it(running: Running, http: httpx.AsyncClient) -> None:
    job = await submitted(http)
    await running.ended(job)

    pinned = await act(http, job, "pin", {"step": 2, "reason": "to fork from"})
    again = await act(http, job, "pin", {"step": 2})
    shown = (await http.get(f"/v1/jobs/{job}")).json()["pins"]
    unpinned = await act(http, job, "unpin", {"step": 2})
    beyond = await act(http, job, "pin", {"step": ALL + 1})

    assert (pinned.status_code, pinned.json()) == (200, {"id": job, "outcome": "done", "status": "completed"})
    assert (again.json()["outcome"], unpinned.json()["outcome"], shown) == ("unchanged", "done", [2])
    assert (await http.get(f"/v1/jobs/{job}")).json()["pins"] == []
    assert (beyond.status_code, beyond.json()["error"]["code"]) == (422, "no_such_step")
    assert beyond.json()["error"]["param"] == "step"


async def test_a_fork_is_accepted_like_a_job_and_names_its_parent(running: Running, http: httpx.AsyncClient) -> None:
    parent = await submitted(http)
    await running.ended(parent)
    key = {"idempotency-key": "k"}

    asked = {"at_step": 2, "set": {"guidance": 3, "metadata": {"a": "b"}}}
    first, second = [await http.post(f"/v1/jobs/{parent}/fork", json=asked, headers=key) for _ in range(2)]
    other = await http.post(f"/v1/jobs/{parent}/fork", json=asked | {"at_step": 3}, headers=key)

    fork = first.json()
    assert (first.status_code, first.headers["location"]) == (202, f"/v1/jobs/{fork['id']}")
    assert fork["id"] == second.json()["id"] != parent
    assert (fork["parent"], fork["guidance"]) == ({"id": parent, "at_step": 2}, 3.0)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "key_reused")
    await running.ended(fork["id"])
    ours, theirs = [(await http.get(f"/v1/jobs/{one}/checkpoints")).json() for one in (fork["id"], parent)]
    assert ours[:2] == theirs[:2]
    assert ours[2] != theirs[2]
    assert (await http.get(f"/v1/jobs/{parent}")).json()["parent"] is None


async def test_a_job_is_moved_to_a_pool_and_a_dry_run_only_says_so() -> None:
    async with World().engine() as running, without_sockets(app_of(running)) as http:
        running.add_worker(pool="fast")
        await running.until(lambda: len(running.engine.fleet.seats) == 2)
        running.workers[0].hold_at = 3
        job = await submitted(http)
        await running.until(lambda: running.workers[0].gate is not None and running.engine.results.steps == 2)
        dry = await act(http, job, "migrate", {"to": "fast", "dry_run": True})
        unmoved = (await http.get(f"/v1/jobs/{job}")).json()["pool"]
        moved = await act(http, job, "migrate", {"to": "pool:fast"})
        again = await act(http, job, "migrate", {"to": "fast"})
        running.workers[0].open()
        await running.ended(job)

        plan = {"id": job, "from": "pool:default", "to": "pool:fast", "node": "count", "step": 1, "bytes": 128}
        assert (dry.status_code, dry.json()) == (200, plan | {"outcome": "planned"})
        assert unmoved is None
        assert moved.json() == plan | {"outcome": "done"}
        assert again.json()["outcome"] == "unchanged"
        assert (await http.get(f"/v1/jobs/{job}")).json()["pool"] == "fast"
        assert len(running.workers[1].ran) == ALL - len(running.workers[0].ran) > 0


@pytest.mark.parametrize("to", ["nowhere", "pool:nowhere", "pool:", ""])
@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_place_that_is_none_is_refused_with_those_there_are(
    running: Running, http: httpx.AsyncClient, to: str, dry_run: bool
) -> None:
    job = await submitted(http, steps=50)
    await running.until(lambda: bool(running.engine.fleet.seats))

    answer = await act(http, job, "migrate", {"to": to, "dry_run": dry_run})

    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (422, "no_such_place", "to")
    assert "default" in error["message"]


async def test_a_job_whose_pool_is_gone_says_so(running: Running, http: httpx.AsyncClient) -> None:
    await running.until(lambda: bool(running.engine.fleet.seats))
    job = await submitted(http, steps=500)
    await act(http, job, "migrate", {"to": "default"})
    await running.engine.lose(running.workers[0].name, "gone")

    assert "no worker of pool 'default'" in (await http.get(f"/v1/jobs/{job}")).json()["held_up"]


# -- workers --------------------------------------------------------------------------------------------------------


async def test_workers_are_listed_with_what_is_with_them(running: Running, http: httpx.AsyncClient) -> None:
    await running.until(lambda: bool(running.engine.fleet.seats))

    [worker] = (await http.get("/v1/workers")).json()["data"]

    assert worker.pop("heard_s") >= 0
    assert worker == {
        "id": "worker-1",
        "object": "worker",
        "pool": "default",
        "host": "sim",
        "pid": 0,
        "models": ["toy"],
        "ranks": 1,
        "outstanding": 0,
        "draining": False,
        "serves": [],
        "fetched": {"tensors": 0, "nbytes": 0, "seconds": 0.0, "failed": 0},
        "resident": [],
        "weights": {},
        "caches": {},
    }


async def test_a_worker_says_what_is_loaded_and_sleeps_and_wakes_by_component() -> None:
    async with World(families=(toy.FAMILY, FAMILY)).engine() as running, without_sockets(app_of(running)) as http:
        await running.until(lambda: bool(running.engine.fleet.seats))
        [name] = [worker.name for worker in running.workers]
        path = f"/v1/workers/{name}"

        async def resident() -> list[str]:
            [worker] = (await http.get("/v1/workers")).json()["data"]
            return sorted(worker["resident"])

        woken = await http.post(f"{path}/wake", json={"components": ["vae", "text_encoder"], "models": ["shapes"]})
        assert (woken.status_code, woken.json()) == (
            202,
            {"id": name, "outcome": "waking", "components": ["shapes/text_encoder", "shapes/vae"]},
        )
        await running.until(
            lambda: (
                running.engine.fleet.seats[name].beat is not None
                and running.engine.fleet.seats[name].beat.resident != ()
            )
        )
        assert await resident() == ["shapes/text_encoder", "shapes/vae"]
        assert 'keyframe_cache_entries{cache="weights"} 2.0' in (await http.get("/metrics")).text

        asleep = await http.post(f"{path}/sleep", json={"components": ["vae"]})
        assert asleep.json() == {"id": name, "outcome": "falling_asleep", "components": ["shapes/vae"]}
        await running.until(lambda: len(running.engine.fleet.seats[name].beat.resident) == 1)
        assert await resident() == ["shapes/text_encoder"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"components": ["lungs"]}, "this worker has no 'lungs'; there are: counter"),
        ({"models": ["wan"]}, "this worker has no 'wan'; there are: toy"),
    ],
)
async def test_what_a_worker_does_not_have_cannot_sleep(asked: dict[str, list[str]], said: str) -> None:
    async with World().engine() as running, without_sockets(app_of(running)) as http:
        await running.until(lambda: bool(running.engine.fleet.seats))

        answer = await http.post(f"/v1/workers/{running.workers[0].name}/sleep", json=asked)

        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (422, "no_such_component", next(iter(asked)))
        assert error["message"] == said


async def test_a_drained_worker_hands_its_jobs_over_and_leaves() -> None:
    async with World().engine() as running, without_sockets(app_of(running)) as http:
        first = running.workers[0]
        first.hold_at = 3
        job = await submitted(http)
        await running.until(lambda: first.gate is not None)
        answer = await http.post(f"/v1/workers/{first.name}/drain")
        assert (answer.status_code, answer.json()) == (202, {"id": first.name, "outcome": "draining"})
        assert [one["draining"] for one in (await http.get("/v1/workers")).json()["data"]] == [True]
        running.add_worker()
        first.open()
        await running.ended(job)
        await running.until(lambda: list(running.engine.fleet.seats) == [running.workers[1].name])

        assert first.dead
        assert "worker_lost" not in [told.type for told in await running.client.events(job)]
        assert len(first.ran) + len(running.workers[1].ran) == ALL
        assert (await http.get(f"/v1/jobs/{job}")).json()["attempt"] == 1


async def test_a_fenced_worker_is_given_up_and_its_jobs_go_on() -> None:
    async with World().engine() as running, without_sockets(app_of(running)) as http:
        first = running.workers[0]
        first.hold_at = 3
        job = await submitted(http)
        await running.until(lambda: first.gate is not None)
        answer = await http.post(f"/v1/workers/{first.name}/fence", json={"reason": "it smells of smoke"})
        first.frozen = True
        first.open()
        running.add_worker()
        await running.ended(job)
        lost = [told.event for told in await running.client.events(job) if told.type == "worker_lost"]

        assert (answer.status_code, answer.json()) == (200, {"id": first.name, "outcome": "fenced"})
        assert [(event.reason, event.blamed) for event in lost] == [("it smells of smoke", False)]  # type: ignore[union-attr]


@pytest.mark.parametrize("verb", ["drain", "fence"])
async def test_an_unknown_worker_is_not_found(http_idle: httpx.AsyncClient, verb: str) -> None:
    answer = await http_idle.post(f"/v1/workers/nope/{verb}")

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "worker_not_found")
    assert answer.json()["error"]["param"] == "worker"


# -- what a caller may get wrong ------------------------------------------------------------------------------------

BODIES: list[tuple[str, Any, int, str | None]] = [
    ("rewind", {}, 400, "to_step"),
    ("rewind", {"to_step": "2"}, 400, "to_step"),
    ("rewind", {"to_step": 1.5}, 400, "to_step"),
    ("rewind", {"to_step": -1}, 422, "to_step"),
    ("rewind", {"to_step": 2**63}, 400, "to_step"),
    ("rewind", {"to_step": 99}, 422, "to_step"),
    ("rewind", {"to_step": 0, "step": 1}, 400, "step"),
    ("rewind", [], 400, None),
    ("pin", {}, 400, "step"),
    ("pin", {"step": -1}, 422, "step"),
    ("pin", {"step": 99}, 422, "step"),
    ("unpin", {"step": 1, "reason": ""}, 400, "reason"),
    ("fork", {}, 400, "at_step"),
    ("fork", {"at_step": 99}, 422, "at_step"),
    ("fork", {"at_step": None}, 400, "at_step"),
    ("fork", {"at_step": 0, "set": {"model": "other"}}, 400, "set.model"),
    ("fork", {"at_step": 0, "set": {"guidance": 99}}, 422, "guidance"),
    ("fork", {"at_step": 0, "set": {"guidance": "high"}}, 400, "set.guidance"),
    ("fork", {"at_step": 0, "set": {"seed": None}}, 400, "set.seed"),
    ("fork", {"at_step": 0, "set": {"prompt": " "}}, 422, "prompt"),
    ("fork", {"at_step": 0, "set": {"metadata": {"a": 1}}}, 400, "set.metadata"),
    ("fork", {"at_step": 0, "set": []}, 400, "set"),
    ("migrate", {}, 400, "to"),
    ("migrate", {"to": 7}, 400, "to"),
    ("migrate", {"to": "pool:default", "dry_run": "yes"}, 400, "dry_run"),
    ("migrate", {"to": "a\0"}, 400, "to"),
    *((verb, {"reason": 7}, 400, "reason") for verb in REASONED),
    *((verb, {"reason": "x" * 1001}, 400, "reason") for verb in REASONED),
    *((verb, {"reason": "a\0"}, 400, "reason") for verb in REASONED),
    *((verb, {"why": "x"}, 400, "why") for verb in REASONED),
]


@pytest.mark.parametrize(("verb", "body", "status", "param"), BODIES, ids=lambda value: str(value)[:40])
async def test_a_bad_body_is_refused_by_name_and_changes_nothing(
    http_idle: httpx.AsyncClient, verb: str, body: Any, status: int, param: str | None
) -> None:
    job = await submitted(http_idle)
    before = (await http_idle.get(f"/v1/jobs/{job}/events")).json()["data"]

    answer = await http_idle.post(f"/v1/jobs/{job}/{verb}", json=body)

    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    kinds = [event["type"] for event in (await http_idle.get(f"/v1/jobs/{job}/events")).json()["data"]]
    assert set(kinds) - {event["type"] for event in before} <= {"job_admitted", "node_started"}
    assert len((await http_idle.get("/v1/jobs")).json()["data"]) == 1


async def test_a_field_that_cannot_be_set_is_told_those_that_can(http_idle: httpx.AsyncClient) -> None:
    job = await submitted(http_idle)

    answer = await http_idle.post(f"/v1/jobs/{job}/fork", json={"at_step": 0, "set": {"model": "other"}})

    assert "prompt, negative_prompt, seed, steps, guidance" in answer.json()["error"]["message"]


@pytest.mark.parametrize("verb", [*REASONED, *BARE, "rewind", "fork", "migrate", "pin", "unpin"])
async def test_a_verb_on_an_unknown_job_is_not_found(http_idle: httpx.AsyncClient, verb: str) -> None:
    bodies = {"rewind": {"to_step": 0}, "fork": {"at_step": 0}, "migrate": {"to": "engine:other"}}
    body = (bodies | {"pin": {"step": 1}, "unpin": {"step": 1}}).get(verb)

    for unknown in ("nope", "x" * 500, "%00"):
        answer = await act(http_idle, unknown, verb, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "job_not_found"), unknown


@pytest.mark.parametrize("verb", [*REASONED, "rewind", "fork", "migrate", "pin"])
async def test_a_body_that_is_no_json_is_told_what_to_be(http_idle: httpx.AsyncClient, verb: str) -> None:
    job = await submitted(http_idle)

    typeless = await http_idle.post(f"/v1/jobs/{job}/{verb}", content=b"{}")
    broken = await http_idle.post(f"/v1/jobs/{job}/{verb}", content=b"{", headers={"content-type": "application/json"})

    assert (typeless.status_code, broken.status_code) == (415, 400)


async def test_the_document_says_which_bodies_may_be_left_out(http_idle: httpx.AsyncClient) -> None:
    paths = (await http_idle.get("/openapi.json")).json()["paths"]
    required = {
        path.rpartition("/")[2]: told["post"]["requestBody"]["required"]
        for path, told in paths.items()
        if "requestBody" in told.get("post", {})
    }

    assert {name for name, needed in required.items() if needed} == {
        "jobs",
        "fork",
        "rewind",
        "migrate",
        "moved",
        "pin",
        "unpin",
    }
    assert {name for name, needed in required.items() if not needed} == {*REASONED, "fence", "gc", "sleep", "wake"}
