"""A step that may run, as the scheduler sees it: whose it is, what it will take, and where it can go."""

from typing import TypeAlias

from msgspec import Struct

from cards.wire import ModelIdentity

Adapters: TypeAlias = tuple[tuple[str, float], ...]
"""LoRAs by digest and strength, in their order."""

Modules: TypeAlias = tuple[ModelIdentity, Adapters]
"""What a step is evaluated with."""


class Demand(Struct, frozen=True):
    """What a step must have reserved to run. All of it is there or nothing is taken."""

    seconds: float = 0.0
    """Of the device, predicted on the careful side."""
    resident_bytes: int = 0
    """The job's tensors on the device, as long as it is at home there."""
    peak_bytes: int = 0
    """Beside them and the weights, while the step runs."""
    weights_bytes: int = 0
    """Of the model: once a worker, however many of its jobs are there."""
    coming_bytes: int = 0
    """The largest peak of all that the job has before it, as far as it is known."""

    @property
    def nbytes(self) -> int:
        """What a worker must have that holds nothing yet, for the job to come to its end there."""
        return self.resident_bytes + max(self.peak_bytes, self.coming_bytes) + self.weights_bytes


class Group(Struct, frozen=True):
    """Steps of one group may be evaluated together: the same modules take tensors of the same shapes from each."""

    model: ModelIdentity
    loop: str
    kind: str
    shape: str
    """The request's size and frames."""
    adapters: Adapters = ()


class Ready(Struct, frozen=True, kw_only=True):
    """Times are in seconds on one clock. `order` tells apart what is equal otherwise: first come, first served."""

    job: str
    order: int
    tenant: str = ""
    priority: int = 0
    submitted_at: float
    since: float
    """When this step became ready."""
    deadline: float | None = None
    """When the job should be done."""
    demand: Demand
    left_s: float
    """Predicted device time of all that the job has before it, this step among it."""
    step_s: float = 0.0
    """That of this step: what it takes on average, and not on the careful side."""
    served_s: float = 0.0
    """Device time that the job has had."""
    group: Group | None = None
    """None for a step that runs alone."""
    joins: Group | None = None
    """Of a step that runs alone, the group of later steps of its job."""
    model: ModelIdentity
    pool: str | None = None
    """The only pool that may run it, if its job is bound to one."""
    role: str | None = None
    """Whose step it is, where workers serve as this or that; None for anybody's."""
    home: str | None = None
    """The worker that holds the job's tensors."""
    bound: bool = False
    """Only `home` can run it: it reads what that worker is still making."""
    needs: tuple[str, ...] = ()
    """What it is to have loaded, `<model>/<component>`."""
    adapters: Adapters = ()
    share: str = ""
    """Whose share of the devices the job takes, as the policy says."""

    @property
    def modules(self) -> Modules:
        return self.model, self.adapters
