"""A job's life on the real engine."""

from engine.job import State
from tests.sim import World, digests, request


async def test_a_job_runs_from_submit_to_its_artifact() -> None:
    async with World().engine() as running:
        job = await running.client.submit(request(steps=3))
        job = await running.ended(job.id)
        kinds = [told.type for told in await running.client.events(job.id)]
        _, result = await running.client.artifact(job.id, "result.txt")

    assert job.state is State.COMPLETED
    assert kinds == [
        "job_submitted",
        "job_admitted",
        "node_started",
        "numerics_changed",
        "step_completed",
        "node_completed",
        "node_started",
        "step_completed",
        "step_completed",
        "step_completed",
        "node_completed",
        "node_started",
        "step_completed",
        "node_completed",
        "job_completed",
    ]
    assert result.startswith(b"[[")
    assert digests
