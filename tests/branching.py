"""The toy family, with two branches a counting step: `near`, and `far`, which is rank 1's where ranks share them.

What a prompt wishes of `near_` or `far_` befalls that branch alone: "a count far_fail=2 near_sleep=0.1". With
guidance 1 there is no `far`. In the folder that the variable COUNTED names, each process writes a line a forward.
"""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from torch import Tensor

from cards import branches, sampling
from cards.family import Components, Made, StepBody
from cards.forward import OUTPUT, Outputs, single
from cards.parallel import branches_only
from cards.wire import WorkPlan
from tests import toy


def _count(components: Components, plan: WorkPlan, reads: Mapping[str, Tensor]) -> Made:
    names = ("near", "far") if plan.scalars["guidance"] != 1.0 else ("near",)
    forwards = {name: partial(_forward, name, plan, reads) for name in names}
    x = sum(single(branches.evaluate(components, forwards)).values())
    return Made({"x": x}, {"sum": float(x.sum())})


def _forward(branch: str, plan: WorkPlan, reads: Mapping[str, Tensor]) -> Outputs:
    if "COUNTED" in os.environ:
        with Path(os.environ["COUNTED"], str(os.getpid())).open("a") as file:
            print(branch, plan.step, file=file)
    wishes = toy.directives(str(plan.scalars["prompt"]))
    toy.misbehave({name.removeprefix(f"{branch}_"): value for name, value in wishes.items()}, plan.step)
    seed = sampling.noise_seed(int(plan.scalars["seed"]), loop=branch, step=plan.step, purpose="noise")
    return {OUTPUT: ((reads["x"] if "x" in reads else reads["start"]) * 0.5 + sampling.noise((4, 4), seed)).t()}


class BranchingFamily(toy.ToyFamily):
    def unshared(self, axis: str, degree: int) -> str:
        return branches_only(axis)

    def bodies(self) -> Mapping[str, StepBody]:
        return {**super().bodies(), "count": _count}


FAMILY = BranchingFamily()
