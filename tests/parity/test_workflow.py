"""A picture by one model, then a clip of it by another, as one job: the bits of the two alone, one after the other."""

import io
import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from cards import given, registry
from cards.errors import InvalidCard, InvalidRequest, NoReference
from cards.family import Family
from cards.loop import LoopContext
from cards.model import Model
from cards.request import GenerationRequest, RequestChanges, resolve
from cards.wire import WorkPlan
from cards.workflow import Stage, Staged, Workflow
from engine.events import NodeStarted
from engine.job import State
from tests.parity import fade, tiny_flux2, tiny_wan
from tests.parity.reference import Digests, ended, expected, outcome, run
from tests.parity.resuming import run_resumed
from tests.sim import World

REQUEST: dict[str, Any] = {"prompt": "a red cat", "seed": 3, "steps": 3, "size": "48x32", "frames": 5}
PICTURE_STEPS = 6
"""Encode, four of denoising, decode."""


@cache
def families() -> registry.Registry:
    story = Model(name="story", folder="", options={"picture": "flux", "clip": "fade"})
    flux = Model(name="flux", folder=str(tiny_flux2.flux2(distilled=True)))
    return registry.load(["tests.parity.fade"], [story, flux])


def world() -> World:
    return World(families=tuple(families().values()))


def stage(steps: Digests, name: str) -> Digests:
    """The steps of one stage, under the names that its nodes have in its own card."""
    prefix = f"{name}-"
    return {(node.removeprefix(prefix), n): made for (node, n), made in steps.items() if node.startswith(prefix)}


async def test_each_stage_makes_what_its_model_makes_alone() -> None:
    story = await run(families()["story"], REQUEST, world())
    async with world().engine() as running:
        own = {name: REQUEST[name] for name in ("prompt", "seed", "size")}
        picture = await outcome(running, families()["flux"], own)
        _, png = await running.client.artifact(picture.job.id, "image.png")
        asked = GenerationRequest(model="fade", **REQUEST)
        submitted = await running.client.submit(asked, given={"image": given.picture("image", png)})
        clip = await ended(running, submitted.id)

    assert stage(story.steps, "picture") == picture.steps
    assert stage(story.steps, "clip") == clip.steps
    assert story.job.artifacts == picture.job.artifacts | clip.job.artifacts


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
async def test_its_reference_is_that_of_the_clip_after_that_of_the_picture(precision: Any) -> None:
    story = Model(name="story", folder="", options={"picture": "flux", "clip": "i2v"})
    flux = Model(name="flux", folder=str(tiny_flux2.flux2(distilled=True)), precision=precision)
    i2v = Model(name="i2v", folder=str(tiny_wan.from_image()), precision=precision)
    registered = registry.load([], [story, flux, i2v])
    made = await run(registered["story"], REQUEST, World(families=tuple(registered.values())))

    pipelines = expected(registered["story"], made.job)
    assert made.of(pipelines) == pipelines
    assert {"picture-denoise.latent@3", "picture-decode.image"} < pipelines.keys()
    assert {"clip-denoise.latent@2", "clip-denoise.latent", "clip-decode.frames/1"} < pipelines.keys()


async def test_a_stage_without_a_reference_is_named() -> None:
    made = await run(families()["story"], REQUEST, world())

    with pytest.raises(NoReference, match="story has no reference that runs here: its clip, fade, has none"):
        expected(families()["story"], made.job)


async def test_the_picture_is_there_while_the_clip_is_being_made() -> None:
    async with world().engine(workers=0) as running:
        running.add_worker()
        running.workers[0].hold_at = PICTURE_STEPS + 1
        job = await running.client.submit(GenerationRequest(model="story", **REQUEST))
        await running.until(lambda: len(running.workers[0].ran) > PICTURE_STEPS)
        async for told in running.client.watch(job.id):
            if any(isinstance(one.event, NodeStarted) and one.event.node == "clip-denoise" for one in told):
                break
        _, png = await running.client.artifact(job.id, "image.png")
        now = await running.client.job(job.id)
        pictures = (await running.client.checkpoints(job.id))[-1].tensors

    assert now.state is State.RUNNING
    pixels = np.asarray(Image.open(io.BytesIO(png)))
    assert pixels.shape == (32, 48, 3)
    assert pictures["image"].digest == given.picture("image", png).ref.digest


async def test_a_workflow_taken_over_after_every_step_makes_the_same_bits() -> None:
    story = families()["story"]

    assert (await run_resumed(story, REQUEST, world=world())).steps == (await run(story, REQUEST, world())).steps


async def test_a_fork_in_the_clip_shares_the_picture() -> None:
    async with world().engine() as running:
        parent = await outcome(running, families()["story"], REQUEST)
        changes = RequestChanges(guidance=2.0)
        fork = await running.client.fork(parent.job.id, PICTURE_STEPS + 1, changes)
        forked = await ended(running, fork.id)
        ran = {(unit.id.job, unit.plan.instance) for unit in running.workers[0].ran}

    assert stage(forked.steps, "picture") == stage(parent.steps, "picture")
    assert forked.steps["clip-denoise", 0] == parent.steps["clip-denoise", 0]
    assert forked.last("clip-denoise") != parent.last("clip-denoise")
    assert ran == {(parent.job.id, "flux"), (parent.job.id, "fade"), (fork.id, "fade")}, "each in its own model"


def test_the_card_and_the_weights_are_those_of_both() -> None:
    flux, story = families()["flux"], families()["story"]
    card = story.card

    assert (card.task, card.output, card.prompt_limit) == ("text_to_video", fade.CARD.output, 500)
    assert [node.name for node in card.program.nodes] == [
        *("picture-encode", "picture-denoise", "picture-decode", "clip-denoise", "clip-render")
    ]
    assert card.loops["clip-denoise"].components == ("clip-vae",)
    assert card.loops["picture-denoise"].semantics == flux.card.loops["denoise"].semantics
    assert not card.inputs, "the picture comes from the first stage"
    other = Workflow("story", flux, fade.Fade("other weights"))
    assert other.card.digest == card.digest
    assert other.weights_digest() != story.weights_digest()
    renamed = fade.Fade()
    renamed.card = replace(fade.CARD, version="2")
    assert Workflow("story", flux, renamed).card.digest != card.digest


def test_the_stages_may_have_precisions_of_their_own() -> None:
    half = Model(name="half", folder=str(tiny_flux2.flux2(distilled=True)), precision="bfloat16")
    story = Model(name="story", folder="", options={"picture": "half", "clip": "fade"})

    card = registry.load(["tests.parity.fade"], [story, half])["story"].card

    precisions = {name: spec.precision for name, spec in card.components.items()}
    assert (precisions["picture-vae"], precisions["clip-vae"]) == ("bfloat16", "float32")


def test_a_workflows_jobs_need_its_stages() -> None:
    assert set(registry.needed(families(), "story")) == {"story", "flux", "fade"}
    assert set(registry.needed(families(), "fade")) == {"fade"}


def resolved(**changes: Any) -> Any:
    story = families()["story"]
    return resolve(GenerationRequest(model="story", **REQUEST | changes), story.card, random.Random(1))


@pytest.mark.parametrize(("size", "picture"), [("48x32", (48, 32)), ("50x34", (1024, 1024))])
def test_the_picture_has_the_clips_size_if_its_model_can_make_that(size: str, picture: tuple[int, int]) -> None:
    story = families()["story"]
    context = LoopContext(story.card, resolved(size=size), "picture-denoise")

    state = story.loops["flux2.euler.cfg/1"].init(context, {})

    assert (state.scalars["width"], state.scalars["height"]) == picture
    assert (state.loop, state.steps, state.scalars["guidance"]) == ("picture-denoise", 4, 1.0)


def test_two_stages_may_have_loops_of_the_same_semantics() -> None:
    flux = families()["flux"]
    second: Family = registry.open_model(Model(name="other", folder=str(tiny_flux2.flux2(distilled=True))))
    stages = {name: Stage(name, of, fade.CARD.output) for name, of in (("picture", flux), ("clip", second))}
    loop = Staged("flux2.encode_text/1", stages)

    def instance(name: str) -> str:
        context = LoopContext(families()["story"].card, resolved(), name)
        plan = loop.next(loop.init(context, {}))
        assert isinstance(plan, WorkPlan)
        assert (plan.loop, plan.kind) == (name, "encode_text")
        return plan.instance

    assert instance("picture-encode_text") == "flux"
    assert instance("clip-encode_text") == "other"


async def test_what_the_clip_cannot_be_is_refused_with_what_it_can() -> None:
    async with world().engine(workers=0) as running:
        for asked, says in (({"steps": 11}, "1 to 10"), ({"size": "49x32"}, "multiples of 2"), ({"frames": 6}, "to 9")):
            with pytest.raises(InvalidRequest, match=says):
                await running.client.submit(GenerationRequest(model="story", **REQUEST | asked))
        image = given.Given(given.codec.encode_array(np.zeros((2, 2, 3), np.uint8))[0])
        with pytest.raises(InvalidRequest, match="takes no such input"):
            await running.client.submit(GenerationRequest(model="story", **REQUEST), given={"image": image})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"picture": "flux"}, "options.clip: None is no model that can be it; there are: fade"),
        ({"picture": "fade", "clip": "fade"}, "options.picture: 'fade' is no model that can be it; there are: flux"),
        ({"picture": "flux", "clip": "fade", "sound": "x"}, "options.sound: there is none; there are: picture, clip"),
    ],
)
def test_a_workflow_of_models_that_do_not_fit_is_refused(options: dict[str, str], says: str) -> None:
    flux = Model(name="flux", folder=str(tiny_flux2.flux2(distilled=True)))

    with pytest.raises(InvalidCard) as refused:
        registry.open_model(Model(name="w", folder="", options=options), registry.load(["tests.parity.fade"], [flux]))

    assert says in str(refused.value)
