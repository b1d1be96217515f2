"""What a plan says of a job is what the job makes and does: every tensor, every byte stored, every product counted."""

import io
import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import Struct
from PIL import Image

from cards import given, registry
from cards.family import Family
from cards.model import Model
from cards.registry import Registry
from cards.request import GenerationRequest, resolve
from cards.sizes import LoopSizes, Measurable
from engine.events import StepCompleted
from engine.job import State
from engine.plan import JobPlan, plan
from tests.parity import tiny, tiny_flux2, tiny_ltx2, tiny_wan
from tests.parity.counting import CountedFamily, Flops
from tests.sim import World

CLIP: dict[str, Any] = {"steps": 9, "guidance": 4.0, "size": "48x32", "frames": 9}
SOUND: dict[str, Any] = {"size": "128x64", "frames": 9}
CHUNKS: dict[str, Any] = {"size": "32x16"}


class Case(Struct, frozen=True, kw_only=True):
    """Models, of which the last one has a job: its options are in the checkpoint's place where it has none."""

    folder: Callable[[], Path]
    request: Mapping[str, Any]
    options: Mapping[str, str] = {}
    precision: str = "float32"
    before: Callable[[], Path] | None = None
    """Of the picture of a workflow, whose clip is `folder`."""

    def families(self) -> Registry:
        model = Model(name="tiny", folder=str(self.folder()), precision=self.precision, options=dict(self.options))  # type: ignore[arg-type]
        if self.before is None:
            return registry.load((), (model,))
        picture = Model(name="picture", folder=str(self.before()), precision=self.precision)  # type: ignore[arg-type]
        story = Model(name="story", folder="", options={"picture": "picture", "clip": "tiny"})
        return registry.load((), (model, picture, story))


CASES = {
    "wan": Case(folder=tiny.wan, request=CLIP),
    "wan, bfloat16": Case(folder=tiny.wan, request=CLIP, precision="bfloat16"),
    "wan, euler": Case(folder=lambda: tiny.wan("euler"), request=CLIP, precision="bfloat16"),
    "wan, both prompts together": Case(folder=tiny.wan, request=CLIP, options={"cfg": "batched"}),
    "wan, unguided": Case(folder=tiny.wan, request=CLIP | {"guidance": 1.0}),
    "wan, distilled": Case(
        folder=tiny.wan, request={"size": "48x32", "frames": 9}, options={"recipe": "dmd"}, precision="bfloat16"
    ),
    "wan, from an image": Case(folder=tiny_wan.from_image, request=CLIP, precision="bfloat16"),
    "wan, two experts": Case(folder=tiny_wan.experts, request=CLIP),
    "wan, two experts from an image": Case(folder=tiny_wan.experts_from_image, request=CLIP),
    "wan causal": Case(folder=tiny.wan, request=CHUNKS | {"frames": 33}, options={"loop": "causal"}),
    "wan causal, sliding": Case(
        folder=tiny.wan,
        request=CHUNKS | {"frames": 45},
        options={"loop": "causal", "window": "7", "sink": "1"},
        precision="bfloat16",
    ),
    "ltx 2.0": Case(folder=lambda: tiny_ltx2.ltx2("2.0"), request=SOUND),
    "ltx 2.3": Case(folder=lambda: tiny_ltx2.ltx2("2.3"), request=SOUND, precision="bfloat16"),
    "ltx 2.0, guided": Case(
        folder=lambda: tiny_ltx2.ltx2("2.0"), request=SOUND | {"steps": 3}, options={"recipe": "guided"}
    ),
    "ltx 2.3, guided": Case(
        folder=lambda: tiny_ltx2.ltx2("2.3"), request=SOUND | {"steps": 3}, options={"recipe": "guided"}
    ),
    "flux 2": Case(folder=tiny_flux2.flux2, request={"size": "48x32", "steps": 3}),
    "flux 2, distilled": Case(
        folder=lambda: tiny_flux2.flux2(distilled=True), request={"size": "48x32"}, precision="bfloat16"
    ),
    "workflow": Case(
        folder=tiny_wan.from_image, before=lambda: tiny_flux2.flux2(distilled=True), request=CLIP | {"steps": 2}
    ),
}


class Ran(Struct, frozen=True):
    """What a job said of its steps, and what torch counted."""

    steps: list[StepCompleted]
    flops: Flops


async def ran(families: Registry, family: Family, request: GenerationRequest) -> Ran:
    flops: Flops = Counter()
    counted = tuple(CountedFamily(one, flops) for one in families.values())
    async with World(families=counted).engine() as running:  # type: ignore[arg-type]
        wanted = {"image": given.picture("image", _picture())} if "image" in (family.card.inputs or {}) else {}
        job = await running.client.submit(request, given=wanted)
        ended = await running.ended(job.id, within_s=120.0)
        assert ended.state is State.COMPLETED, ended.failure
        told = [one.event async for batch in running.client.watch(job.id) for one in batch]
    return Ran([event for event in told if isinstance(event, StepCompleted)], flops)


def _picture() -> bytes:
    written = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 70, 3), dtype=np.uint8)).save(written, "PNG")
    return written.getvalue()


@pytest.mark.parametrize("name", CASES)
async def test_a_job_makes_and_takes_what_its_plan_says(name: str) -> None:
    case = CASES[name]
    families = case.families()
    family = families["tiny" if case.before is None else "story"]
    request = GenerationRequest(model=family.card.name, prompt="a red cat", seed=3, **case.request)

    resolved = resolve(request, family.card, random.Random(0))
    loops = {node.name: node.loop for node in family.card.program.nodes}
    assert isinstance(family, Measurable)

    planned = plan(family, resolved)
    found = await ran(families, family, request)

    _same_tensors(family.sizes(resolved), loops, found)
    _same_bytes(planned, found)
    counted = {kind: flops for kind, flops in found.flops.items() if flops}
    assert {(loops[kind.node], kind.kind): kind.flops for kind in planned.kinds if kind.flops} == counted


def _same_tensors(sizes: Mapping[str, LoopSizes], loops: Mapping[str, str], found: Ran) -> None:
    """All but a VAE's cache: it is packed with headers, and half as large after the first frame. It is not stored."""
    for step in found.steps:
        for name, ref in step.tensors.items():
            if name == "cache":
                assert name in step.derived
                continue
            sized = sizes[loops[step.node]].of(name)
            assert (ref.shape, ref.dtype, ref.nbytes) == (sized.shape, sized.dtype, sized.nbytes), (step.node, name)


def _same_bytes(planned: JobPlan, found: Ran) -> None:
    kinds = {(one.node, one.kind): one for one in planned.kinds}
    made: dict[tuple[str, str], list[StepCompleted]] = {}
    for step in found.steps:
        made.setdefault((step.node, step.kind), []).append(step)
    assert made.keys() == kinds.keys()
    for key, steps in made.items():
        stored = [sum(ref.nbytes for name, ref in step.tensors.items() if name not in step.derived) for step in steps]
        kind = kinds[key]
        assert (len(steps), sum(stored)) == (kind.steps, kind.stored_bytes), key
        assert max(stored) == kind.step_bytes + kind.snapshot_bytes, key
