"""Observers on a tiny Wan in the real engine: whom they stop, and what they leave in the log."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from cards.request import GenerationRequest
from engine.events import StepCompleted
from engine.job import State
from tests.parity import reference, tiny
from tests.parity.reference import outcome
from tests.sim import World

REQUEST: dict[str, Any] = {"prompt": "a cat", "seed": 3, "steps": 2, "guidance": 1.0, "size": "48x32", "frames": 1}


def with_nan(folder: Path) -> Path:
    """A copy of the checkpoint in which one weight of the transformer is NaN."""
    broken = folder / "broken"
    shutil.copytree(tiny.wan(), broken)
    [file] = (broken / "transformer").glob("*.safetensors")
    weights = load_file(file)
    weights["blocks.1.ffn.net.2.bias"][3] = torch.nan
    save_file(weights, file, metadata={"format": "pt"})
    return broken


async def test_nan_fails_only_the_job_that_has_it(tmp_path: Path) -> None:
    good = reference.family(tiny.wan(), "float32")
    broken = reference.family(with_nan(tmp_path), "float32", name="broken")

    async with World(families=(good, broken), extensions=("nan_watch",)).engine() as running:
        failing = await running.client.submit(GenerationRequest(model="broken", **REQUEST))
        await outcome(running, good, REQUEST)
        failed = await running.ended(failing.id)
        await outcome(running, good, REQUEST)  # on the same worker
        assert len(running.workers) == 1

    assert failed.state is State.FAILED
    assert failed.failure is not None
    assert (failed.failure.kind, failed.failure.node, failed.failure.step) == ("nan", "denoise", 0)
    assert "denoise step 0: velocity holds" in failed.failure.message


async def test_what_observers_measure_is_in_the_log_beside_the_same_digests() -> None:
    family = reference.family(tiny.wan(), "float32")
    plain = await reference.run(family, REQUEST)

    extensions = ("profiler", "taps:transformer.blocks.0")
    async with World(families=(family,), extensions=extensions).engine() as running:
        made = await outcome(running, family, REQUEST)
        events = [told.event for told in await running.client.events(made.job.id)]

    assert made.steps == plain.steps
    [step, _] = [event for event in events if isinstance(event, StepCompleted) and event.node == "denoise"]
    phases = {name for name in step.observed if name.startswith("seconds/")}
    assert phases >= {"seconds/denoise", "seconds/denoise.fold", "seconds/transformer", "seconds/transformer.blocks"}
    assert "std/transformer.blocks.0#0" in step.observed
