"""Jobs over HTTP: every route's ordinary answer, idempotency, paging."""

import anyio
import httpx
import pytest

from tests import toy
from tests.api.serving import HeldJournal, app_of, without_sockets
from tests.measured import MeasuredToy
from tests.sim import Running, World, request

TOY = {"model": "toy", "prompt": "a count", "steps": 3}


async def test_a_job_is_accepted_with_its_place_and_all_that_was_left_open(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/jobs", json=TOY | {"metadata": {"who": "me"}})

    job = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert (job["object"], job["model"], job["steps"], job["guidance"]) == ("job", "toy", 3, 1.0)
    assert isinstance(job["seed"], int)
    assert job["metadata"] == {"who": "me"}
    assert job["card"] == toy.CARD.digest
    assert job["weights"] == "toy-weights"
    assert (await http.get(answer.headers["location"])).json()["seed"] == job["seed"]


async def test_a_job_says_for_whom_it_is_and_by_when(http: httpx.AsyncClient) -> None:
    asked = {"tenant": "studio", "deadline_s": 30}
    job = (await http.post("/v1/jobs", json=TOY | asked)).json()
    plain = (await http.post("/v1/jobs", json=TOY)).json()
    forked = (await http.post(f"/v1/jobs/{job['id']}/fork", json={"at_step": 0, "set": {"deadline_s": None}})).json()

    assert {name: job[name] for name in asked} == asked
    assert (plain["tenant"], plain["deadline_s"]) == ("", None)
    assert (forked["tenant"], forked["deadline_s"]) == ("studio", None)


async def test_a_job_that_no_worker_could_hold_is_refused_with_the_field() -> None:
    async with World(families=[MeasuredToy()]).engine() as running, without_sockets(app_of(running)) as http:
        await running.until(lambda: bool(running.engine.fleet.seats))
        answer = await http.post("/v1/jobs", json=TOY | {"guidance": 4})

        assert answer.status_code == 422
        assert answer.json()["error"]["param"] == "model"  # this one makes one size only
        assert "needs 3.0 GiB beside the weights, the largest worker has 1.0 GiB" in answer.json()["error"]["message"]


async def test_a_finished_job_shows_what_it_made(running: Running, http: httpx.AsyncClient) -> None:
    job = (await http.post("/v1/jobs", json=TOY | {"prompt": "an unknown thing"})).json()
    await running.ended(job["id"])

    job = (await http.get(f"/v1/jobs/{job['id']}")).json()

    assert job["status"] == "completed"
    assert job["progress"] == {"node": None, "step": 0, "steps": 0, "fraction": 1.0}
    assert [warning["field"] for warning in job["warnings"]] == ["prompt"]
    assert job["error"] is None
    assert job["exact"] is True
    (artifact,) = job["artifacts"]
    fetched = await http.get(artifact["url"])
    assert (fetched.status_code, len(fetched.content)) == (200, artifact["bytes"])


async def test_a_failed_job_says_why_and_where(running: Running, http: httpx.AsyncClient) -> None:
    job = (await http.post("/v1/jobs", json=TOY | {"prompt": "a count fail=1"})).json()
    await running.ended(job["id"])

    job = (await http.get(f"/v1/jobs/{job['id']}")).json()

    assert job["status"] == "failed"
    assert job["error"] == {
        "class": "error",
        "message": "ValueError: asked to fail",
        "node": "count",
        "step": 1,
        "attempt": 1,
    }
    assert 0 < job["progress"]["fraction"] < 1
    assert job["progress"] | {"fraction": 0} == {"node": "count", "step": 1, "steps": 3, "fraction": 0}


async def test_cancel_tells_what_came_of_it(http_idle: httpx.AsyncClient) -> None:
    job = (await http_idle.post("/v1/jobs", json=TOY)).json()["id"]

    first = await http_idle.post(f"/v1/jobs/{job}/cancel")
    second = await http_idle.post(f"/v1/jobs/{job}/cancel")

    assert (first.status_code, first.json()) == (200, {"id": job, "outcome": "cancelled"})
    assert (second.status_code, second.json()) == (200, {"id": job, "outcome": "already_terminal"})
    assert (await http_idle.get(f"/v1/jobs/{job}")).json()["status"] == "cancelled"


async def test_checkpoints_name_every_steps_tensors(running: Running, http: httpx.AsyncClient) -> None:
    job = (await http.post("/v1/jobs", json=TOY)).json()["id"]
    await running.ended(job)

    checkpoints = (await http.get(f"/v1/jobs/{job}/checkpoints")).json()

    assert [(one["loop"], one["step"]) for one in checkpoints] == [
        ("prepare", 0),
        ("count", 0),
        ("count", 1),
        ("count", 2),
        ("finish", 0),
    ]
    assert all(len(digest) == 64 for one in checkpoints for digest in one["tensors"].values())


async def test_pages_of_the_list_cover_it_once(http_idle: httpx.AsyncClient) -> None:
    made = [(await http_idle.post("/v1/jobs", json=TOY)).json()["id"] for _ in range(7)]

    seen: list[str] = []
    more = True
    while more:
        after = {"after": seen[-1]} if seen else {}
        page = (await http_idle.get("/v1/jobs", params={"limit": 3, **after})).json()
        seen += [job["id"] for job in page["data"]]
        more = page["has_more"]
        assert page["last_id"] == seen[-1]

    assert seen == made[::-1]


async def test_the_list_is_filtered_by_status_and_model(http_idle: httpx.AsyncClient) -> None:
    kept, gone = [(await http_idle.post("/v1/jobs", json=TOY)).json()["id"] for _ in range(2)]
    await http_idle.post(f"/v1/jobs/{gone}/cancel")

    async def ids(**params: str) -> list[str]:
        return [job["id"] for job in (await http_idle.get("/v1/jobs", params=params)).json()["data"]]

    assert await ids(status="cancelled") == [gone]
    assert kept in await ids(model="toy")
    assert await ids(model="other") == []


async def test_an_empty_list_has_no_last_id(http_idle: httpx.AsyncClient) -> None:
    page = (await http_idle.get("/v1/jobs")).json()

    assert page == {"object": "list", "data": [], "has_more": False, "last_id": None}


async def test_models_show_their_limits_and_whether_a_worker_has_them(http: httpx.AsyncClient) -> None:
    await http.get("/livez")

    (model,) = (await http.get("/v1/models")).json()["data"]

    assert model["id"] == "toy"
    assert model["card"] == toy.CARD.digest
    assert model["steps"] == {"least": 1, "most": 20_000, "default": 4}
    assert model["guidance"] == {"least": 0, "most": 10, "default": 1}
    assert model["output"] == {"width": 1, "height": 1, "frames": 1, "fps": 1}


async def test_a_model_is_servable_once_a_worker_has_it(idle: Running, http_idle: httpx.AsyncClient) -> None:
    async def servable() -> bool:
        (model,) = (await http_idle.get("/v1/models")).json()["data"]
        return bool(model["servable"])

    assert not await servable()
    idle.add_worker()
    await idle.until(lambda: bool(idle.engine.fleet.seats))
    assert await servable()


# -- idempotency ----------------------------------------------------------------------------------------------------


async def test_the_same_key_and_body_give_the_same_job(idle: Running, http_idle: httpx.AsyncClient) -> None:
    first, second = [await http_idle.post("/v1/jobs", json=TOY, headers={"Idempotency-Key": "k"}) for _ in range(2)]

    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["id"] == second.json()["id"]
    assert first.json()["seed"] == second.json()["seed"]
    assert len(await idle.client.jobs()) == 1


async def test_the_same_key_with_another_body_is_a_conflict_that_no_retry_mends(http_idle: httpx.AsyncClient) -> None:
    await http_idle.post("/v1/jobs", json=TOY, headers={"Idempotency-Key": "k"})

    answer = await http_idle.post("/v1/jobs", json=TOY | {"steps": 4}, headers={"Idempotency-Key": "k"})

    assert answer.status_code == 409
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"]["param"] == "Idempotency-Key"


async def test_one_key_posted_sixteen_times_at_once_makes_one_job(idle: Running, http_idle: httpx.AsyncClient) -> None:
    ids: set[str] = set()

    async def post() -> None:
        answer = await http_idle.post("/v1/jobs", json=TOY, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 202
        ids.add(answer.json()["id"])

    async with anyio.create_task_group() as tasks:
        for _ in range(16):
            tasks.start_soon(post)

    assert len(ids) == 1
    assert len(await idle.client.jobs()) == 1


# -- ids of requests ------------------------------------------------------------------------------------------------


async def test_every_answer_names_its_request(http: httpx.AsyncClient) -> None:
    ours = [(await http.get(path)).headers["x-request-id"] for path in ("/livez", "/nowhere", "/v1/jobs/none")]

    assert ours == ["request-1", "request-2", "request-3"]


@pytest.mark.parametrize(("theirs", "kept"), [("abc-1", True), ("a b", False), ("x" * 129, False), ("", False)])
async def test_a_sane_id_of_the_caller_is_kept(http: httpx.AsyncClient, theirs: str, kept: bool) -> None:
    answer = await http.get("/livez", headers={"x-request-id": theirs})

    assert (answer.headers["x-request-id"] == theirs) is kept


async def test_a_stopping_engine_takes_no_job_and_says_when_to_ask_again(running: Running) -> None:
    async with without_sockets(app_of(running)) as http:
        running.engine.draining = True
        answer = await http.post("/v1/jobs", json=TOY)

    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert await running.client.jobs() == []


async def test_a_full_disk_accepts_nothing_and_the_same_key_works_later() -> None:
    journal = HeldJournal()
    async with World(journal=journal).engine(workers=0) as running, without_sockets(app_of(running)) as http:
        journal.full = True
        refused = await http.post("/v1/jobs", json=TOY, headers={"Idempotency-Key": "k"})
        there = await running.client.jobs()
        journal.full = False
        taken = await http.post("/v1/jobs", json=TOY, headers={"Idempotency-Key": "k"})

    assert (refused.status_code, taken.status_code) == (503, 202)
    assert "the disk is full" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) > 0
    assert there == []


async def test_a_job_is_forgotten_once_it_has_ended(running: Running, http: httpx.AsyncClient) -> None:
    ended = await running.ended((await running.client.submit(request())).id)
    running.workers[0].gate = anyio.Event()
    going_on = await running.client.submit(request(seed=8))

    assert (await http.delete(f"/v1/jobs/{ended.id}")).status_code == 204
    refused = await http.delete(f"/v1/jobs/{going_on.id}")

    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_allowed")
    assert refused.headers["x-should-retry"] == "false"
    assert [row["id"] for row in (await http.get("/v1/jobs")).json()["data"]] == [going_on.id]
    for answer in (await http.get(f"/v1/jobs/{ended.id}/events"), await http.delete(f"/v1/jobs/{ended.id}")):
        assert answer.status_code == 404
    running.workers[0].gate.set()


async def test_the_key_of_a_forgotten_job_makes_a_new_one(running: Running, http: httpx.AsyncClient) -> None:
    asked = {"model": "toy", "prompt": "a count", "seed": 7}
    first, second = [await http.post("/v1/jobs", json=asked, headers={"Idempotency-Key": "key"}) for _ in range(2)]
    assert first.json()["id"] == second.json()["id"]
    await running.ended(first.json()["id"])

    await http.delete(f"/v1/jobs/{first.json()['id']}")

    again = await http.post("/v1/jobs", json=asked, headers={"Idempotency-Key": "key"})
    assert again.json()["id"] != first.json()["id"]
