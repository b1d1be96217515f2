"""A model card: components, loops, recipe, parity and program as one frozen, versioned piece of data.

A card has no callables and survives a JSON round trip; its digest is its identity in jobs, records and evidence.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

import blake3
import msgspec
from msgspec import UNSET, Struct, UnsetType

from cards.errors import InvalidCard

REQUEST = "request"
"""What a program's nodes read as `request.<name>` came with the request."""

Precision = Literal["float32", "bfloat16", "float16"]

Point = Literal["forward", "blocks"]
"""Where a step can be intercepted: around the model's forward of one branch, or between its first block and the others.
"""

BASE_METHODS = ("base", "flow_matching")
"""Ways of training that leave the choice of steps to the sampler. Distilled weights know only the steps they were
made for."""


class ComponentSpec(Struct, frozen=True, kw_only=True):
    """One module of a model. `kind` is the field's word for it (text_encoder, transformer, vae, ...)."""

    kind: str
    parameters: int
    precision: Precision = "float32"


class InterceptorSpec(Struct, frozen=True, kw_only=True):
    """An interceptor that requests may ask for, with thresholds from 0, where it changes nothing, to `most`."""

    point: Point
    most: float


class LoopSpec(Struct, frozen=True, kw_only=True):
    """One iteration that a card can run.

    `semantics` names the maths and its version: two loops with one semantics id give the same bits for the same state.
    `components` are what its steps need resident. With `snapshot_every` the tensors that its steps derive are stored at
    every so many of them and at the last; without, at each. `points` are where its steps can be intercepted,
    `interceptors` what may be there in this deployment.
    """

    semantics: str
    components: tuple[str, ...] = ()
    snapshot_every: int | UnsetType = UNSET  # not in the JSON unless it is set: cards that lack it keep their digests
    points: tuple[Point, ...] | UnsetType = UNSET
    interceptors: dict[str, InterceptorSpec] | UnsetType = UNSET


class Range(Struct, frozen=True):
    """The closed interval that a request may choose from, and what it gets if it does not choose."""

    least: float
    most: float
    default: float


class Experts(Struct, frozen=True, kw_only=True):
    """Two transformers for one schedule: `transformer` while the time is at least `boundary` (1 is noise), then
    `transformer_2`, which is guided by `guidance` and not as the request says.
    """

    boundary: float
    guidance: float


class ModalityGuidance(Struct, frozen=True, kw_only=True):
    """How far the estimate of one modality is moved away from weaker ones. None has a default: what is left out would
    be the library's to decide, and that changes with its version.
    """

    scale: float
    """Away from the estimate without the prompt; 1 is not at all."""
    stg: float
    """Away from that without the self-attention of a block (spatio-temporal guidance); 0 is not at all."""
    modality: float
    """Away from that of a modality which does not see the other; 1 is not at all."""
    rescale: float
    """How much of the unguided estimate's standard deviation is given back; 0 is nothing."""


class RecipeSpec(Struct, frozen=True, kw_only=True):
    """How the weights came to be, and what that binds them to.

    Weights distilled for one sampler are wrong under another: `assumes_loop` maps a loop's name to the semantics id
    that these weights were made for, and a card whose loop says otherwise does not load.
    """

    method: str
    data: str
    assumes_loop: dict[str, str]
    assumes_precision: Precision
    steps: Range
    guidance: Range
    shift: float
    parents: tuple[str, ...] = ()
    experts: Experts | UnsetType = UNSET
    timesteps: tuple[int, ...] | UnsetType = UNSET
    """The only ones that the weights were made for, where that is so."""
    guidances: dict[str, ModalityGuidance] | UnsetType = UNSET
    """By modality."""
    sigmas: dict[str, tuple[float, ...]] | UnsetType = UNSET
    """By loop: the noise levels before each step, where the weights were made for these and no others."""


class ParitySpec(Struct, frozen=True, kw_only=True):
    """Against what, and how closely, outputs are held. `rung` is on the ladder C0..C4; tolerance 0 means bits."""

    reference: str
    rung: Literal["C0", "C1", "C2", "C3", "C4"]
    tolerance: float = 0.0


class Preset(Struct, frozen=True):
    """A size that the model was made for, in pixels, and the flow shift that goes with it."""

    width: int
    height: int
    shift: float


class Canvas(Struct, frozen=True, kw_only=True):
    """What sizes a request may ask for: `multiple` of pixels in both directions, and one frame more than a multiple."""

    multiple: int
    most_pixels: int
    """Width times height."""
    presets: tuple[Preset, ...]
    frames_multiple: int
    most_frames: int
    frames_first: int | UnsetType = UNSET
    """The fewest frames, which any number of multiples may be added to; 1 unless it is set."""

    def shift(self, width: int, height: int) -> float:
        """That of the preset which is nearest in area."""
        return min(self.presets, key=lambda preset: abs(preset.width * preset.height - width * height)).shift


class OutputSpec(Struct, frozen=True, kw_only=True):
    """The size of what comes out: pixels, frames, frames per second. Without a canvas, always this one."""

    width: int
    height: int
    frames: int
    fps: int
    canvas: Canvas | UnsetType = UNSET
    sample_rate: int | UnsetType = UNSET
    """Of the sound, in Hz."""


class Node(Struct, frozen=True, kw_only=True):
    """One loop of a program. `inputs` maps the loop's input names to outputs of earlier nodes, as `node.output`."""

    name: str
    loop: str
    inputs: dict[str, str] = {}
    outputs: tuple[str, ...] = ()


class Program(Struct, frozen=True):
    """The order in which loops run for one task. `artifacts` are the names a finished job is sure to have."""

    nodes: tuple[Node, ...]
    artifacts: tuple[str, ...]


class InputSpec(Struct, frozen=True, kw_only=True):
    """Something that comes with a request: an `image`, the `output` of a finished job that it goes on from, or files of
    a `lora`, of which there may be several: `<name>/0`, `<name>/1`, ..."""

    kind: Literal["image", "output", "lora"]
    required: bool = True
    output: str = ""
    """Of which node's output of the other job, as `node.output`."""


class StageSpec(Struct, frozen=True, kw_only=True):
    """A card whose program is a part of this one's: its name and its digest."""

    model: str
    card: str


class ModelCard(Struct, frozen=True, kw_only=True):
    name: str
    family: str
    version: str
    task: str
    components: dict[str, ComponentSpec]
    loops: dict[str, LoopSpec]
    recipe: RecipeSpec
    parity: ParitySpec
    output: OutputSpec
    program: Program
    prompt_limit: int
    """Characters."""
    inputs: dict[str, InputSpec] | UnsetType = UNSET
    """What may come with a request, by name."""
    stages: dict[str, StageSpec] | UnsetType = UNSET
    """Of a workflow: by the prefix of their names, the cards whose loops it runs, each in its own resident model."""

    @property
    def digest(self) -> str:
        return blake3.blake3(to_json(self)).hexdigest()

    def validate(self) -> None:
        """Check the card against itself. Raises InvalidCard with the path of the first field that is wrong."""
        for field, problem in problems(self):
            raise InvalidCard(self.name, field, problem)


def to_json(card: ModelCard) -> bytes:
    """Canonical: equal cards give equal bytes, also one with 1 where the other has 1.0."""
    return msgspec.json.encode(msgspec.convert(msgspec.to_builtins(card), ModelCard), order="deterministic")


def from_json(data: bytes) -> ModelCard:
    return msgspec.json.decode(data, type=ModelCard)


def problems(card: ModelCard) -> Iterator[tuple[str, str]]:
    yield from _loop_problems(card)
    yield from _interceptor_problems(card)
    yield from _recipe_problems(card)
    yield from _program_problems(card)


def _loop_problems(card: ModelCard) -> Iterator[tuple[str, str]]:
    for name, loop in card.loops.items():
        if loop.snapshot_every is not UNSET and loop.snapshot_every < 1:
            yield f"loops.{name}.snapshot_every", f"{loop.snapshot_every} is less than 1, a snapshot at every step"
        for component in loop.components:
            if component not in card.components:
                yield (
                    f"loops.{name}.components",
                    f"{component!r} is not a component; there are {_names(card.components)}",
                )


def _interceptor_problems(card: ModelCard) -> Iterator[tuple[str, str]]:
    method, steps = card.recipe.method, card.recipe.steps
    distilled = method not in BASE_METHODS or steps.least == steps.most
    for loop_name, loop in card.loops.items():
        for name, interceptor in (loop.interceptors or {}).items():
            field = f"loops.{loop_name}.interceptors.{name}"
            if interceptor.point not in (loop.points or ()):
                yield (
                    field,
                    f"the loop cannot be intercepted at {interceptor.point!r}; it can at {_names(loop.points or ())}",
                )
            if distilled:
                yield (
                    field,
                    f"distilled weights ({method}, {steps.least:g} to {steps.most:g} steps) need every step that they "
                    "were made for; take the option away",
                )


def _recipe_problems(card: ModelCard) -> Iterator[tuple[str, str]]:
    recipe = card.recipe
    for name, semantics in recipe.assumes_loop.items():
        if name not in card.loops:
            yield "recipe.assumes_loop", f"{name!r} is not a loop; there are {_names(card.loops)}"
        elif card.loops[name].semantics != semantics:
            yield (
                "recipe.assumes_loop",
                f"the weights were made for {name} = {semantics}, the card runs {card.loops[name].semantics}",
            )
    for name, component in card.components.items():
        if component.precision != recipe.assumes_precision and not card.stages:  # each stage's card answers for its own
            yield (
                f"components.{name}.precision",
                f"{component.precision} is not the recipe's {recipe.assumes_precision}",
            )
    if recipe.experts and not 0 < recipe.experts.boundary < 1:
        yield "recipe.experts.boundary", f"{recipe.experts.boundary:g} is not between 0 and 1"
    for name, choice in (("steps", recipe.steps), ("guidance", recipe.guidance)):
        if not choice.least <= choice.default <= choice.most:
            yield f"recipe.{name}", f"the default {choice.default:g} is outside {choice.least:g} to {choice.most:g}"


def _program_problems(card: ModelCard) -> Iterator[tuple[str, str]]:
    names: set[str] = set()
    made = {f"{REQUEST}.{name}" for name in card.inputs or ()}
    if not card.program.nodes:
        yield "program.nodes", "is empty"
    for node in card.program.nodes:
        field = f"program.nodes.{node.name}"
        if node.name in names:
            yield f"{field}.name", "is taken twice; a node's outputs are found by its name"
        if node.name == REQUEST:
            yield f"{field}.name", "stands for what comes with the request"
        names.add(node.name)
        if node.loop not in card.loops:
            yield f"{field}.loop", f"{node.loop!r} is not a loop; there are {_names(card.loops)}"
        for source in node.inputs.values():
            if source not in made:
                yield f"{field}.inputs", f"{source!r} is not made by an earlier node; there are {_names(made)}"
        made.update(f"{node.name}.{output}" for output in node.outputs)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
