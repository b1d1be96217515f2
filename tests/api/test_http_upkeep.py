"""Bundles and collecting over HTTP."""

from pathlib import Path

import httpx

from engine import bundle
from engine.contents import Contents
from tests.api.serving import app_of, without_sockets
from tests.sim import World, request

TAR = {"content-type": "application/x-tar"}


async def test_a_job_leaves_one_engine_and_goes_on_at_another(tmp_path: Path) -> None:
    here, there = World(), World()
    async with here.engine() as running, without_sockets(app_of(running)) as http:
        job = (await running.client.submit(request(steps=300))).id
        await running.until(lambda: running.engine.results.steps > 20)
        await http.post(f"/v1/jobs/{job}/pause")
        await running.until(lambda: job not in running.engine.ledger.actors)
        file = tmp_path / "job.tar"
        contents = Contents(here.journal, here.blobs)
        manifest = await bundle.export(here.journal, contents, job, file, origin="here", moved=True, resumes=True)

        late = await http.post(f"/v1/jobs/{job}/moved", json={"version": manifest.version - 1})
        moved = await http.post(f"/v1/jobs/{job}/moved", json={"version": manifest.version, "to": "there"})
        again = await http.post(f"/v1/jobs/{job}/moved", json={"version": manifest.version})
        resumed = await http.post(f"/v1/jobs/{job}/resume")

    assert (late.status_code, late.json()["error"]["code"]) == (409, "gone_on")
    assert moved.json() == {"id": job, "outcome": "done", "status": "moved"}
    assert again.json()["outcome"] == "unchanged"
    assert (resumed.status_code, resumed.json()["error"]["code"]) == (409, "not_allowed")
    async with there.engine() as running, without_sockets(app_of(running)) as http:
        taken = await http.post("/v1/bundles", content=file.read_bytes(), headers=TAR)
        twice = await http.post("/v1/bundles", content=file.read_bytes(), headers=TAR)
        ended = await running.ended(job)

    assert (taken.status_code, taken.headers["location"]) == (201, f"/v1/jobs/{job}")
    assert taken.json() == {"id": job, "object": "job.accepted", "status": "queued"}
    assert (twice.status_code, twice.json()["error"]["code"]) == (409, "job_exists")
    assert ended.state == "completed"


async def test_what_is_no_bundle_is_refused(http_idle: httpx.AsyncClient) -> None:
    wrong = await http_idle.post("/v1/bundles", content=b"{}", headers={"content-type": "application/json"})
    broken = await http_idle.post("/v1/bundles", content=b"no tar" * 1_000, headers=TAR)

    assert (wrong.status_code, wrong.json()["error"]["code"]) == (415, "wrong_media_type")
    assert "application/x-tar" in wrong.json()["error"]["message"]
    assert (broken.status_code, broken.json()["error"]["code"]) == (422, "bad_bundle")
    assert (await http_idle.get("/v1/jobs")).json()["data"] == []


async def test_collecting_is_planned_and_done(http_idle: httpx.AsyncClient) -> None:
    plan = await http_idle.post("/v1/gc", json={"dry_run": True})
    done = await http_idle.post("/v1/gc")
    bad = await http_idle.post("/v1/gc", json={"dry": True})

    nothing = {
        "purged": [],
        "inline_blobs": 0,
        "inline_bytes": 0,
        "stored_blobs": 0,
        "stored_bytes": 0,
        "live_blobs": 0,
    }
    assert plan.json() == done.json() == nothing
    assert bad.status_code == 400
