"""What a model family's code offers beside its card: loops for the engine, weights and step bodies for a worker."""

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from cards.card import ModelCard
from cards.forward import Forward, Outputs
from cards.loop import Loop
from cards.request import ResolvedRequest
from cards.wire import ArtifactRef, Scalar, WorkPlan

if TYPE_CHECKING:
    import torch


class Notice(Struct, frozen=True):
    """Something about a request that its caller should know, and that does not stop it."""

    code: str
    field: str
    message: str


def no_guidance(request: ResolvedRequest, message: str) -> tuple[Notice, ...]:
    """To whoever gives a negative prompt to a model that has no use for one."""
    return (Notice("ignored", "negative_prompt", message),) if request.negative_prompt else ()


class Artifact(Struct, frozen=True):
    name: str
    media_type: str
    data: bytes

    def ref(self, digest: str) -> ArtifactRef:
        return ArtifactRef(self.name, digest, self.media_type, len(self.data))


class Made(Struct, frozen=True):
    """What a step body returns. A tensor that is the same object as one it read costs nothing to keep."""

    tensors: "dict[str, torch.Tensor]" = {}
    scalars: dict[str, Scalar] = {}
    artifacts: tuple[Artifact, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values()) + sum(len(one.data) for one in self.artifacts)


Components: TypeAlias = Mapping[str, Any]
"""Resident modules by component name."""

Tensors: TypeAlias = "Mapping[str, torch.Tensor]"
"""By name."""

Reads: TypeAlias = Tensors
"""The tensors that a plan reads, by name."""

Asking: TypeAlias = Generator[Mapping[str, Forward], dict[str, Outputs], Made]
"""A step that asks for forwards: it yields those of its branches, by name, and is sent what they make, in order."""

StepBody: TypeAlias = Callable[[Components, WorkPlan, Reads], Made | Asking]
"""A pure function of resident components, a plan and the tensors the plan reads.

It calls modules itself, or asks for forwards: then they may be evaluated elsewhere, or beside those of other jobs.
"""


class Family(Protocol):
    """`loops` are keyed by semantics id. `load` and `bodies` may import torch; nothing else here does."""

    card: ModelCard
    loops: Mapping[str, Loop]

    def weights_digest(self) -> str:
        """The content digest of the weights on this machine."""
        ...

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        """Raises InvalidRequest for what only the family can tell, as a prompt of more tokens than are taken."""
        ...

    def load(self, device: str) -> Components:
        """All components. A mapping that is `cards.lazy.Lazy` loads each when it is first taken."""
        ...

    def bodies(self) -> Mapping[str, StepBody]: ...


@runtime_checkable
class Referenced(Protocol):
    """A family that can have its reference run a request: what its card's parity names."""

    def reference(self, request: ResolvedRequest, given: Tensors) -> Tensors:
        """What a job should make: outputs by their names in the program, as `denoise.latent`, and what single steps
        leave, as `denoise.latent@3`. `given` is what comes with the request.

        Raises NoReference for a request that the reference cannot run.
        """
        ...
