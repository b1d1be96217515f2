"""The shapes model's loops and step bodies: resumed anywhere, they end where the unbroken run does, bit for bit."""

import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from msgspec import Struct

from cards import codec
from cards.branches import alone
from cards.card import Node
from cards.family import Components, Made
from cards.loop import Done, LoopContext, LoopState, StepOutput
from cards.request import GenerationRequest, ResolvedRequest, resolve
from cards.sampling import flow_time
from cards.shapes.card import SCALE
from cards.shapes.family import FAMILY, WEIGHTS
from cards.shapes.model import COMPONENTS, CONFIG
from cards.wire import TensorRef, WorkPlan
from training.shapes.sample import load_model, sample

PROMPT = "a red circle moving right on a black background"
NODES = FAMILY.card.program.nodes
STEPS = 3
PLACES = [("encode", 0), *(("denoise", n) for n in range(STEPS)), *(("decode", n) for n in range(6)), ("render", 0)]

Blobs = dict[str, bytes]


class Saved(Struct):
    """All that is kept of a job between two steps, as bytes on a disk are."""

    node: str
    state: bytes
    outputs: dict[str, TensorRef]
    blobs: Blobs


class Ran(Struct):
    """How a job went: where it was before each step, and all that the steps made."""

    checkpoints: list[bytes] = []
    tensors: dict[str, str] = {}
    artifacts: dict[str, str] = {}


def asked(**fields: Any) -> ResolvedRequest:
    request = GenerationRequest(**{"model": "shapes", "prompt": PROMPT, "steps": STEPS, "seed": 7} | fields)
    return resolve(request, FAMILY.card, random.Random(0))


def begin(node: Node, request: ResolvedRequest, outputs: dict[str, TensorRef]) -> LoopState:
    inputs = {
        into + name.removeprefix(source): ref
        for into, source in node.inputs.items()
        for name, ref in outputs.items()
        if name == source or name.startswith(f"{source}/")
    }
    semantics = FAMILY.card.loops[node.loop].semantics
    return FAMILY.loops[semantics].init(LoopContext(FAMILY.card, request, node.loop), inputs)


def run(components: Components, request: ResolvedRequest, saved: bytes | None = None, last: str = "render") -> Ran:
    """From the beginning or a checkpoint through the `last` node. Between two steps there is nothing but bytes."""
    ran = Ran()
    at = Saved(NODES[0].name, encode_state(begin(NODES[0], request, {})), {}, {})
    at = at if saved is None else msgspec.msgpack.decode(saved, type=Saved)
    index = [node.name for node in NODES].index(at.node)
    for node in NODES[index:]:
        loop = FAMILY.loops[FAMILY.card.loops[node.loop].semantics]
        state = decode_state(at.state) if at.node == node.name else begin(node, request, at.outputs)
        while isinstance(plan := loop.next(state), WorkPlan):
            ran.checkpoints.append(msgspec.msgpack.encode(Saved(node.name, encode_state(state), at.outputs, at.blobs)))
            made = execute(components, plan, at.blobs)
            refs = keep(made, at.blobs)
            ran.tensors |= {f"{node.name}.{plan.step}.{name}": ref.digest for name, ref in refs.items()}
            ran.artifacts |= {f"{plan.step}.{one.name}": codec.digest(one.data) for one in made.artifacts}
            state = loop.advance(decode_state(encode_state(state)), StepOutput(refs, made.scalars))
        at.outputs = at.outputs | {f"{node.name}.{name}": ref for name, ref in loop.finalize(state).items()}
        if node.name == last:
            break
    return ran


def execute(components: Components, plan: WorkPlan, blobs: Blobs) -> Made:
    reads = {name: codec.decode(blobs[ref.digest]) for name, ref in plan.reads.items()}
    with torch.inference_mode():
        return alone(components, FAMILY.bodies()[plan.kind](components, plan, reads))


def keep(made: Made, blobs: Blobs) -> dict[str, TensorRef]:
    refs = {}
    for name, tensor in made.tensors.items():
        refs[name], data = codec.encode(tensor)
        blobs[refs[name].digest] = data
    return refs


encode_state = msgspec.msgpack.encode


def decode_state(data: bytes) -> LoopState:
    return msgspec.msgpack.decode(data, type=LoopState)


@pytest.fixture(scope="module")
def components() -> Components:
    return FAMILY.load("cpu")


@pytest.fixture(scope="module")
def unbroken(components: Components) -> Ran:
    return run(components, asked(preview_every=2))


def places(ran: Ran) -> Iterator[tuple[str, int]]:
    for checkpoint in ran.checkpoints:
        saved = msgspec.msgpack.decode(checkpoint, type=Saved)
        yield saved.node, decode_state(saved.state).step


def tail(made: Mapping[str, str], since: Mapping[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in made.items() if name in since}


def test_a_job_has_a_checkpoint_before_each_of_its_steps(unbroken: Ran) -> None:
    assert list(places(unbroken)) == PLACES
    assert set(unbroken.artifacts) == {"1.preview.png", "0.video.mp4", "0.contact_sheet.png"}


@pytest.mark.parametrize("index", range(len(PLACES)), ids=[f"{node}-{step}" for node, step in PLACES])
def test_resumed_from_any_checkpoint_a_job_ends_where_the_unbroken_one_does(
    components: Components, unbroken: Ran, index: int
) -> None:
    last = "render" if index >= len(PLACES) - 2 else "decode"  # a clip is its frames: to render it each time takes long
    resumed = run(components, asked(preview_every=2), unbroken.checkpoints[index], last)

    assert list(places(resumed)) == PLACES[index : None if last == "render" else -1]
    assert resumed.tensors == tail(unbroken.tensors, resumed.tensors)
    assert resumed.artifacts == tail(unbroken.artifacts, resumed.artifacts)
    assert "decode.5.frames/5" in resumed.tensors or "0.video.mp4" in resumed.artifacts


def test_a_new_process_ends_where_the_unbroken_one_does(unbroken: Ran, tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    place.write_bytes(unbroken.checkpoints[2])
    code = (
        "import msgspec, pathlib, sys; from tests.cards import test_shapes_loops as t\n"
        "saved = pathlib.Path(sys.argv[1]).read_bytes()\n"
        "ran = t.run(t.FAMILY.load('cpu'), t.asked(preview_every=2), saved)\n"
        "sys.stdout.buffer.write(msgspec.json.encode([ran.tensors, ran.artifacts]))"
    )

    done = subprocess.run([sys.executable, "-c", code, str(place)], capture_output=True, check=True)

    tensors, artifacts = msgspec.json.decode(done.stdout)
    assert len(tensors) == 2 + 6
    assert (tensors, artifacts) == (tail(unbroken.tensors, tensors), tail(unbroken.artifacts, artifacts))


@pytest.mark.parametrize(
    ("field", "other"),
    [("prompt", "a blue square"), ("negative_prompt", "a red circle"), ("seed", 8), ("guidance", 2.0), ("steps", 2)],
)
def test_all_that_a_request_says_shows(components: Components, unbroken: Ran, field: str, other: Any) -> None:
    changed = run(components, asked(**{field: other}), last="denoise")

    last = max(name for name in changed.tensors if name.startswith("denoise"))
    assert changed.tensors[last] not in unbroken.tensors.values()


def test_previews_change_nothing_but_that_they_are_there(components: Components, unbroken: Ran) -> None:
    without = run(components, asked(), last="decode")

    assert without.tensors == unbroken.tensors
    assert without.artifacts == {}


# -- one step at a time -----------------------------------------------------------------------------------------


class Counting:
    """A transformer that says how often it was asked, and what for."""

    def __init__(self) -> None:
        self.texts: list[float] = []
        self.times: list[torch.Tensor] = []

    def __call__(self, latent_BCFHW: torch.Tensor, t_BF: torch.Tensor, text_BLD: torch.Tensor) -> torch.Tensor:
        self.texts.append(float(text_BLD))
        self.times.append(t_BF)
        return torch.full_like(latent_BCFHW, float(text_BLD))


def denoise(transformer: Counting, step: int = 0, **fields: Any) -> Made:
    loop = FAMILY.loops["shapes.flow_euler.cfg/1"]
    ref = TensorRef("d", "float32", (), (), 4)
    state = loop.init(LoopContext(FAMILY.card, asked(**fields), "denoise"), {"text": ref, "negative": ref})
    for _ in range(step):
        state = loop.advance(state, StepOutput({"latent": ref}))
    plan = loop.next(state)
    assert isinstance(plan, WorkPlan)
    reads = {"text": torch.tensor(1.0), "negative": torch.tensor(-1.0), "latent": torch.zeros(1, 32, 6, 8, 8)}
    components = {"transformer": transformer}
    return alone(components, FAMILY.bodies()["denoise"](components, plan, {name: reads[name] for name in plan.reads}))


def test_guidance_one_asks_the_transformer_once() -> None:
    transformer = Counting()

    denoise(transformer, guidance=1.0)

    assert transformer.texts == [1.0]


def test_guidance_asks_for_both_branches_one_by_one() -> None:
    transformer = Counting()

    made = denoise(transformer, step=STEPS - 1, guidance=3.0)

    assert transformer.texts == [1.0, -1.0]
    velocity, last_t = -1 + 3 * (1 - -1), float(transformer.times[0][0, 0])
    torch.testing.assert_close(made.tensors["latent"], torch.full((1, 32, 6, 8, 8), -last_t * velocity))


def test_every_latent_frame_has_the_time_of_its_step() -> None:
    transformer = Counting()

    for step in range(STEPS):
        denoise(transformer, step, guidance=1.0)

    assert [t.shape for t in transformer.times] == [(1, 6)] * STEPS
    shifted = torch.tensor([flow_time(step, STEPS, FAMILY.card.recipe.shift) for step in range(STEPS)])
    assert torch.equal(torch.stack(transformer.times), shifted[:, None, None].expand(-1, 1, 6))


@pytest.mark.parametrize(("every", "due"), [(0, []), (1, [0, 1, 2, 3, 4, 5]), (2, [1, 3, 5]), (4, [3]), (7, [])])
def test_a_preview_is_asked_for_when_it_is_due(every: int, due: list[int]) -> None:
    loop = FAMILY.loops["shapes.flow_euler.cfg/1"]
    state = loop.init(LoopContext(FAMILY.card, asked(steps=6, preview_every=every), "denoise"), {})

    plans = []
    while isinstance(plan := loop.next(state), WorkPlan):
        plans.append(plan)
        state = loop.advance(state, StepOutput())

    assert [plan.step for plan in plans] == list(range(6))
    assert [plan.step for plan in plans if plan.emits == ("preview",)] == due


@pytest.mark.parametrize("node", NODES, ids=lambda node: node.name)
def test_a_loop_that_is_done_stays_done(node: Node) -> None:
    state = begin(node, asked(), {})
    loop = FAMILY.loops[state.semantics]
    for _ in range(state.steps):
        assert loop.next(state) == loop.next(decode_state(encode_state(state)))
        state = loop.advance(state, StepOutput())

    assert loop.next(state) == Done()
    assert loop.next(decode_state(encode_state(state))) == Done()


# -- words ------------------------------------------------------------------------------------------------------


def test_words_outside_the_vocabulary_are_told_and_named() -> None:
    notices = FAMILY.notices(asked(prompt="a red dragon moving right", negative_prompt="blurry circle"))

    assert [(notice.code, notice.field) for notice in notices] == [
        ("unknown_words", "prompt"),
        ("unknown_words", "negative_prompt"),
    ]
    assert "dragon" in notices[0].message
    assert "red" not in notices[0].message.split(": ")[1]
    assert "blurry" in notices[1].message


def test_known_words_are_nothing_to_tell() -> None:
    assert FAMILY.notices(asked(negative_prompt="a white cross")) == ()


def test_a_job_makes_the_bits_of_the_plain_sampler(components: Components, unbroken: Ran) -> None:
    request = asked()
    latent = sample(load_model(WEIGHTS), [request.prompt], [request.seed], steps=STEPS, guidance=request.guidance)

    made = [digest for name, digest in unbroken.tensors.items() if name.endswith("latent")]
    assert codec.encode(latent)[0].digest == made[-1]


def test_the_card_says_of_the_model_what_the_model_is() -> None:
    card, recipe = FAMILY.card, FAMILY.card.recipe
    defaults = (recipe.steps.default, recipe.guidance.default, recipe.shift)

    assert defaults == (CONFIG.steps, CONFIG.guidance, CONFIG.shift)
    assert (card.output.frames, card.output.fps) == (CONFIG.latent_frames * CONFIG.frames_per_latent, CONFIG.fps)
    assert card.output.width == SCALE * CONFIG.latent_size * CONFIG.pixels_per_latent
    for name, make in COMPONENTS.items():
        assert card.components[name].parameters == sum(parameter.numel() for parameter in make().parameters())
