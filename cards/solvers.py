"""Solvers of the diffusion ODE as pure functions: what one must remember is tensors of the loop's state.

diffusers' schedulers keep that on themselves. Here each step has one of its own, which is set to where the loop is,
asked for one step, and thrown away; so two jobs cannot meet in one, and a step can be made again at any time.
"""

import copy
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cards.checkpoint import Checkpoint
from cards.errors import BadCheckpoint

if TYPE_CHECKING:
    import torch

TRAIN_STEPS = 1000

ORDER = 2
"""Of the multistep solvers: what Wan's schedulers are configured with."""


class Solver:
    """`remembers` are the tensors beside the latent that a step leaves to the next, those before `step` at hand.

    One that remembers any says how a new scheduler is given them, and what it is left with after its step.
    """

    def schedule(self, steps: int) -> dict[str, Any]:
        """What `set_timesteps` is given beside the number of steps."""
        return {}

    def remembers(self, step: int, steps: int) -> tuple[str, ...]:
        return ()

    def advance(
        self,
        scheduler: Any,
        step: int,
        latent: "torch.Tensor",
        output: "torch.Tensor",
        remembered: "Mapping[str, torch.Tensor]",
    ) -> "dict[str, torch.Tensor]":
        """The next latent, under `latent`, and what is to be remembered. `scheduler` is new and has its timesteps."""
        scheduler._step_index = step
        self._remind(scheduler, step, remembered)
        moved = scheduler.step(output, scheduler.timesteps[step], latent, return_dict=False)[0]
        return {"latent": moved, **self._left(scheduler)}

    def _remind(self, scheduler: Any, step: int, remembered: "Mapping[str, torch.Tensor]") -> None:
        pass

    def _left(self, scheduler: Any) -> "dict[str, torch.Tensor]":
        return {}


class Euler(Solver):
    """First order; nothing is remembered (diffusers' FlowMatchEulerDiscreteScheduler)."""


class UniPC(Solver):
    """Zhao et al. 2023, as diffusers' UniPCMultistepScheduler does it: multistep of `order`, with its corrector.

    It remembers the data estimates of the last `order` steps (`estimate/0` is the oldest) and the sample that the last
    step began with after correction. How far the order has warmed up follows from the step.
    """

    def __init__(self, order: int = ORDER) -> None:
        self._order = order

    def remembers(self, step: int, steps: int) -> tuple[str, ...]:
        known = min(step, self._order)
        names = tuple(f"estimate/{self._order - 1 - age}" for age in range(known))
        return (*names, "sample") if known else ()

    def _remind(self, scheduler: Any, step: int, remembered: "Mapping[str, torch.Tensor]") -> None:
        steps = len(scheduler.timesteps)
        scheduler.model_outputs = [remembered.get(f"estimate/{index}") for index in range(self._order)]
        scheduler.last_sample = remembered.get("sample")
        scheduler.lower_order_nums = min(step, self._order)
        scheduler.this_order = min(self._order, steps - (step - 1), min(step - 1, self._order) + 1) if step else 0

    def _left(self, scheduler: Any) -> "dict[str, torch.Tensor]":
        estimates = enumerate(scheduler.model_outputs)
        made = {f"estimate/{index}": estimate for index, estimate in estimates if estimate is not None}
        return {"sample": scheduler.last_sample, **made}


class FlowUniPC(UniPC):
    """The same on the noise levels of Wan's own FlowUniPCMultistepScheduler (wan/utils/fm_solvers_unipc.py).

    They run from 1 - 1/N to 0 before the shift, where diffusers' run from 1 to 1/N: 0.003 apart at 50 steps.
    """

    def schedule(self, steps: int) -> dict[str, Any]:
        import numpy as np

        most = float(np.float32(1 - 1 / TRAIN_STEPS))
        return {"sigmas": np.linspace(most, 0.0, steps + 1)[:-1]}


def shifted(template: Any, shift: float) -> Any:
    """A new scheduler of the template's class and config, with another flow shift."""
    known = {name: shift for name in ("flow_shift", "shift") if name in template.config}
    return type(template).from_config(template.config, **known)


def begun(template: Any, *steps: int, **schedule: Any) -> Any:
    """A new scheduler of the template's class and config, before the first step of what `set_timesteps` is given."""
    scheduler = type(template).from_config(template.config)
    scheduler.set_timesteps(*steps, **schedule)
    scheduler.set_begin_index(0)
    return scheduler


def fresh(template: Any, solver: Solver, steps: int, shift: float) -> Any:
    """The same for a solver's schedule, with another flow shift."""
    untouched = _untouched(template, solver, steps, shift)
    scheduler = copy.copy(untouched)
    vars(scheduler).update({name: list(value) for name, value in vars(untouched).items() if isinstance(value, list)})
    return scheduler


@lru_cache(maxsize=64)
def _untouched(template: Any, solver: Solver, steps: int, shift: float) -> Any:
    """One that no step is asked of: to make it takes milliseconds, to copy it none. A step sets a copy's attributes and
    the items of its lists; it changes no tensor.
    """
    return begun(shifted(template, shift), steps, **solver.schedule(steps))


SOLVERS: Mapping[str, Solver] = {"euler": Euler(), "unipc": UniPC(), "flow_unipc": FlowUniPC()}

OF_SCHEDULER: Mapping[str, tuple[str, ...]] = {
    "FlowMatchEulerDiscreteScheduler": ("euler",),
    "UniPCMultistepScheduler": ("unipc", "flow_unipc"),
}
"""The solvers that a checkpoint's scheduler can be; the first is the one that it is."""


def of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Those that the checkpoint's scheduler can be, first the one that it was published with. Raises BadCheckpoint."""
    checkpoint.require("scheduler")
    scheduler = checkpoint.parts["scheduler"]
    if scheduler.class_name not in OF_SCHEDULER:
        problem = f"{scheduler.class_name} is no solver here; there are {', '.join(OF_SCHEDULER)}"
        raise BadCheckpoint(scheduler.folder, problem)
    if (order := scheduler.config().get("solver_order", ORDER)) != ORDER:
        raise BadCheckpoint(scheduler.folder, f"solver_order is {order}; the solvers here are of order {ORDER}")
    return OF_SCHEDULER[scheduler.class_name]
