"""A workflow: from words to a picture with one model, from the picture to a clip with another, as one job.

    Model(name="story", folder="", options={"picture": "flux", "clip": "wan-i2v"})

Its program is that of the first card and then that of the second, whose input `image` is the picture instead of a file
that comes with the request. Nodes, loops and components keep their names behind that of their stage:
`picture-denoise`, `clip-decode`. Their semantics ids are those of the two cards, and their steps run in the two
resident models: a worker that has both runs a workflow, and has each of them once.

A request is one to the second card: its steps, guidance, size and frames are the clip's, as are the previews. The
picture has the same prompts and the same seed, the clip's size if its card can make that, and its own defaults
otherwise.
"""

from collections.abc import Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING

from blake3 import blake3
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from cards import canvas
from cards.card import REQUEST, InputSpec, LoopSpec, ModelCard, Node, OutputSpec, ParitySpec, Program, StageSpec
from cards.errors import InvalidCard, InvalidRequest, NoReference
from cards.family import Components, Family, Notice, Referenced, StepBody, Tensors
from cards.loop import Done, Loop, LoopContext, LoopState, StepOutput
from cards.model import Model
from cards.request import GenerationRequest, ResolvedRequest, resolve
from cards.sizes import LoopSizes, sizes_of
from cards.wire import TensorRef, WorkPlan

if TYPE_CHECKING:
    import torch

PICTURE, CLIP = "picture", "clip"
"""The stages. The names are parts of those of nodes, loops and components."""

IMAGE = "image"
"""What the first stage's program puts out, uint8 (H, W, 3), and what the second one's takes in."""


class Stage(Struct, frozen=True):
    """One of the two cards in a workflow. `output` is the workflow's: the size that is asked for is one of its."""

    name: str
    family: Family
    output: OutputSpec

    def inside(self, loop: str) -> str:
        return f"{self.name}-{loop}"

    def outside(self, loop: str) -> str:
        return loop.removeprefix(f"{self.name}-")

    def request(self, request: ResolvedRequest) -> ResolvedRequest:
        """What the workflow's request asks of this stage."""
        card = self.family.card
        if self.name == CLIP:
            return replace(request, model=card.name)
        asked = GenerationRequest(
            model=card.name,
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            seed=request.seed,
            size=_size(request, self.output, card),
        )
        return resolve(asked, card, Random())  # a seed is there: nothing is drawn


class Staged:
    """A loop of a stage under its name in the workflow. `stages` are those with a loop of these semantics, by name."""

    def __init__(self, semantics: str, stages: Mapping[str, Stage]) -> None:
        self.semantics = semantics
        self._stages = stages

    def init(self, context: LoopContext, inputs: dict[str, TensorRef]) -> LoopState:
        stage, loop = self._of(context.loop)
        own = LoopContext(stage.family.card, stage.request(context.request), stage.outside(context.loop))
        return _named(loop.init(own, inputs), context.loop)

    def next(self, state: LoopState) -> WorkPlan | Done:
        stage, loop = self._of(state.loop)
        plan = loop.next(_named(state, stage.outside(state.loop)))
        return replace(plan, loop=state.loop) if isinstance(plan, WorkPlan) else plan

    def advance(self, state: LoopState, output: StepOutput) -> LoopState:
        stage, loop = self._of(state.loop)
        return _named(loop.advance(_named(state, stage.outside(state.loop)), output), state.loop)

    def finalize(self, state: LoopState) -> dict[str, TensorRef]:
        stage, loop = self._of(state.loop)
        return loop.finalize(_named(state, stage.outside(state.loop)))

    def _of(self, name: str) -> tuple[Stage, Loop]:
        stage = self._stages[name.partition("-")[0]]
        return stage, stage.family.loops[self.semantics]


class Workflow:
    """The family of a workflow. It has no modules and no step bodies: its plans name the models that have them."""

    def __init__(self, name: str, picture: Family, clip: Family) -> None:
        self.card = card_of(name, picture.card, clip.card)
        self._stages = tuple(Stage(stage, of, clip.card.output) for stage, of in ((PICTURE, picture), (CLIP, clip)))
        self.loops: Mapping[str, Loop] = _loops(self._stages)

    def weights_digest(self) -> str:
        return blake3(" ".join(stage.family.weights_digest() for stage in self._stages).encode()).hexdigest()

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        told = [notice for stage in self._stages for notice in stage.family.notices(stage.request(request))]
        return tuple(dict.fromkeys(told))

    def sizes(self, request: ResolvedRequest) -> Mapping[str, LoopSizes]:
        """Raises Unmeasured."""
        return {
            stage.inside(loop): sizes
            for stage in self._stages
            for loop, sizes in sizes_of(stage.family, stage.request(request)).items()
        }

    def load(self, device: str) -> Components:
        return {}

    def bodies(self) -> Mapping[str, StepBody]:
        return {}

    def reference(self, request: ResolvedRequest, given: Tensors) -> Tensors:
        """Those of the stages, one after the other: the first one's picture is what the second begins with."""
        made: dict[str, torch.Tensor] = {}
        for stage in self._stages:
            if not isinstance(stage.family, Referenced):
                raise NoReference(self.card.name, f"its {stage.name}, {stage.family.card.name}, has none")
            own = stage.family.reference(stage.request(request), given)
            made |= {f"{stage.name}-{name}": tensor for name, tensor in own.items()}
            if stage.name == PICTURE:
                given = {**given, IMAGE: made[_picture(stage.family.card)]}
        return made


def open(model: Model, families: Mapping[str, Family]) -> Workflow:
    """The workflow that the model's options describe, of families that are there. Raises InvalidCard."""
    cards = [family.card for family in families.values()]
    able = {
        PICTURE: [card.name for card in cards if _makes_pictures(card)],
        CLIP: [card.name for card in cards if _takes_a_picture(card)],
    }
    for field in model.options.keys() - able:
        raise InvalidCard(model.name, f"options.{field}", f"there is none; there are: {', '.join(able)}")
    for field, names in able.items():
        if (chosen := model.options.get(field)) not in names:
            problem = f"{chosen!r} is no model that can be it; there are: {', '.join(names) or 'none'}"
            raise InvalidCard(model.name, f"options.{field}", problem)
    return Workflow(model.name, families[model.options[PICTURE]], families[model.options[CLIP]])


def card_of(name: str, picture: ModelCard, clip: ModelCard) -> ModelCard:
    """Raises InvalidCard."""
    stages = {PICTURE: picture, CLIP: clip}
    artifacts = (*clip.program.artifacts, *picture.program.artifacts)
    if len({*artifacts}) < len(artifacts):
        raise InvalidCard(name, "program.artifacts", f"both stages make one of a name: {', '.join(artifacts)}")
    return ModelCard(
        name=name,
        family="workflow",
        version=f"{picture.version}, {clip.version}",
        task=f"text_to_{clip.task.rpartition('_to_')[2]}",
        components={
            f"{stage}-{part}": spec for stage, card in stages.items() for part, spec in card.components.items()
        },
        loops={
            f"{stage}-{loop}": _spec(stage, spec) for stage, card in stages.items() for loop, spec in card.loops.items()
        },
        recipe=replace(
            clip.recipe,
            assumes_loop={
                f"{stage}-{loop}": semantics
                for stage, card in stages.items()
                for loop, semantics in card.recipe.assumes_loop.items()
            },
        ),
        parity=ParitySpec(
            reference=f"{picture.parity.reference}, {clip.parity.reference}",
            rung=max(picture.parity.rung, clip.parity.rung),
            tolerance=max(picture.parity.tolerance, clip.parity.tolerance),
        ),
        output=clip.output,
        program=Program(
            nodes=(
                *(_node(PICTURE, node, {}) for node in picture.program.nodes),
                *(_node(CLIP, node, {f"{REQUEST}.{IMAGE}": _picture(picture)}) for node in clip.program.nodes),
            ),
            artifacts=artifacts,
        ),
        prompt_limit=min(picture.prompt_limit, clip.prompt_limit),
        inputs=_inputs(clip),
        stages={stage: StageSpec(model=card.name, card=card.digest) for stage, card in stages.items()},
    )


def _loops(stages: tuple[Stage, ...]) -> dict[str, Loop]:
    known = dict.fromkeys(semantics for stage in stages for semantics in stage.family.loops)
    return {one: Staged(one, {stage.name: stage for stage in stages if one in stage.family.loops}) for one in known}


def _spec(stage: str, spec: LoopSpec) -> LoopSpec:
    return replace(spec, components=tuple(f"{stage}-{part}" for part in spec.components))


def _node(stage: str, node: Node, wired: Mapping[str, str]) -> Node:
    inputs = {name: wired.get(source) or _source(stage, source) for name, source in node.inputs.items()}
    return Node(name=f"{stage}-{node.name}", loop=f"{stage}-{node.loop}", inputs=inputs, outputs=node.outputs)


def _source(stage: str, source: str) -> str:
    return source if source.startswith(f"{REQUEST}.") else f"{stage}-{source}"


def _inputs(clip: ModelCard) -> dict[str, InputSpec] | UnsetType:
    rest = {name: spec for name, spec in (clip.inputs or {}).items() if name != IMAGE}
    return {name: replace(spec, output=spec.output and f"{CLIP}-{spec.output}") for name, spec in rest.items()} or UNSET


def _makes_pictures(card: ModelCard) -> bool:
    return card.task == "text_to_image" and not card.inputs and any(_pictures(card))


def _takes_a_picture(card: ModelCard) -> bool:
    inputs = card.inputs or {}
    return IMAGE in inputs and inputs[IMAGE].kind == "image"


def _pictures(card: ModelCard) -> Iterator[str]:
    return (f"{PICTURE}-{node.name}.{IMAGE}" for node in card.program.nodes if IMAGE in node.outputs)


def _picture(card: ModelCard) -> str:
    return [*_pictures(card)][-1]


def _size(request: ResolvedRequest, output: OutputSpec, card: ModelCard) -> str | None:
    """The size of the clip if the card can make that, or else the card's own."""
    width, height, _ = canvas.pixels(request, output)
    try:
        return canvas.choose(f"{width}x{height}", None, card)[0]
    except InvalidRequest:
        return None


def _named(state: LoopState, loop: str) -> LoopState:
    return replace(state, loop=loop)
