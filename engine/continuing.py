"""A job that goes on from another: what it takes of that one's outputs, and what both must have in common. Pure."""

from msgspec import UNSET, Struct
from msgspec.structs import replace

from cards import canvas
from cards.card import ModelCard
from cards.errors import InvalidRequest
from cards.request import GenerationRequest, ResolvedRequest
from cards.wire import ModelIdentity, TensorRef
from engine.job import Job, State

FIELD = "continues"


class Earlier(Struct, frozen=True):
    """What a finished job gives to one that goes on from it, by the names of the card's inputs."""

    job: Job
    inputs: dict[str, TensorRef]

    def fill(self, request: GenerationRequest) -> GenerationRequest:
        """The request, in what it leaves out and what must not change, as the earlier one was."""
        before = self.job.request
        return replace(
            request,
            seed=before.seed if request.seed is None else request.seed,
            size=before.size if request.size is None else request.size,
        )

    def check(self, request: ResolvedRequest, card: ModelCard) -> None:
        """Raises InvalidRequest."""
        width, height, frames = canvas.pixels(self.job.request, card.output)
        asked = canvas.pixels(request, card.output)
        if asked[:2] != (width, height):
            raise InvalidRequest("size", f"{request.size}: job {self.job.id} is {width}x{height}; leave it out")
        if asked[2] <= frames:
            raise InvalidRequest(
                "frames", f"{asked[2]} counts from the beginning, and job {self.job.id} has {frames}; ask for more"
            )


def earlier(job: Job, card: ModelCard, model: ModelIdentity) -> Earlier:
    """Raises InvalidRequest, which says what about the job or the card is in the way."""
    wanted = names(card)
    if not wanted:
        raise InvalidRequest(FIELD, f"{card.name} goes on from no job; leave it out")
    if job.state is not State.COMPLETED:
        raise InvalidRequest(FIELD, f"job {job.id} is {job.state}; it must be {State.COMPLETED}")
    if job.model != model:
        raise InvalidRequest(FIELD, f"job {job.id} was made by another card or other weights than {card.name} has now")
    inputs: dict[str, TensorRef] = {}
    for name, output in wanted.items():
        found = {name + made.removeprefix(output): ref for made, ref in job.outputs.items() if _is_of(made, output)}
        if not found:
            raise InvalidRequest(FIELD, f"job {job.id} has left no {output}")
        inputs |= found
    return Earlier(job, inputs)


def check_fork(before: ResolvedRequest, request: ResolvedRequest, card: ModelCard) -> None:
    """A fork of a job that goes on from another does so, too, from the same outputs. Raises InvalidRequest."""
    if before.continues is None:
        return
    width, height, frames = canvas.pixels(before, card.output)
    asked = canvas.pixels(request, card.output)
    if asked[:2] != (width, height):
        raise InvalidRequest("size", f"{request.size}: the job continues one of {width}x{height}; leave it out")
    if asked[2] < frames:
        raise InvalidRequest(
            "frames", f"{asked[2]}: the job has {frames}; ask for more, or submit one that continues {before.continues}"
        )


def names(card: ModelCard) -> dict[str, str]:
    """The card's inputs that are outputs of an earlier job, each as `node.output`."""
    inputs = {} if card.inputs is UNSET else card.inputs
    return {name: spec.output for name, spec in inputs.items() if spec.kind == "output"}


def _is_of(made: str, output: str) -> bool:
    """An output by its name, or one of a series: `rollout.latent/0`, `rollout.latent/1`, ..."""
    return made == output or made.startswith(f"{output}/")
