"""Solvers as pure functions: against the schedulers that keep their state on themselves, and Wan's own noise levels."""

from typing import Any

import pytest
import torch
from torch import Tensor

from cards.solvers import SOLVERS, FlowUniPC, UniPC, begun, fresh, shifted
from cards.wan.reference import wans_levels
from tests.parity import tiny

STEPS = 7
SHIFT = 3.0


@pytest.mark.parametrize(("steps", "shift"), [(50, 3.0), (50, 5.0), (20, 8.0), (3, 3.0), (1, 5.0)])
def test_flow_unipc_has_the_noise_levels_of_wans_own_scheduler(steps: int, shift: float) -> None:
    made = fresh(tiny.unipc(shift=1.0), FlowUniPC(), steps, shift)

    timesteps, sigmas = wans_levels(steps, shift)
    assert torch.equal(made.timesteps, timesteps)
    assert torch.equal(made.sigmas, sigmas)


def test_they_are_not_those_of_diffusers() -> None:
    ours = fresh(tiny.unipc(shift=3.0), FlowUniPC(), 50, 3.0)
    theirs = fresh(tiny.unipc(shift=3.0), UniPC(), 50, 3.0)

    assert ours.timesteps[:3].tolist() == [999, 992, 985]
    assert theirs.timesteps[:3].tolist() == [999, 993, 986]
    assert 0.002 < (ours.sigmas - theirs.sigmas).abs().max() < 0.003


@pytest.mark.parametrize("name", SOLVERS)
def test_a_step_of_a_new_scheduler_is_that_of_one_that_remembers(name: str) -> None:
    solver, template = SOLVERS[name], (tiny.euler if name == "euler" else tiny.unipc)()
    stateful = begun(shifted(template, SHIFT), STEPS, **solver.schedule(STEPS))
    latent, outputs = noise(0), [noise(step + 1) for step in range(STEPS)]
    state: dict[str, Tensor] = {"latent": latent}

    for step, output in enumerate(outputs):
        assert {*state} == {"latent", *solver.remembers(step, STEPS)}
        moved = solver.advance(fresh(template, solver, STEPS, SHIFT), step, state["latent"], output, state)
        latent = stateful.step(output, stateful.timesteps[step], latent, return_dict=False)[0]
        assert {*moved} == {"latent", *solver.remembers(step + 1, STEPS)}
        assert torch.equal(moved["latent"], latent), step
        state = moved


@pytest.mark.parametrize("name", SOLVERS)
def test_a_scheduler_has_nothing_of_one_that_has_made_its_steps(name: str) -> None:
    solver, template = SOLVERS[name], (tiny.euler if name == "euler" else tiny.unipc)()
    used, latent = fresh(template, solver, STEPS, SHIFT), noise(0)
    for step in range(STEPS):
        latent = used.step(noise(step + 1), used.timesteps[step], latent, return_dict=False)[0]

    made = vars(begun(shifted(template, SHIFT), STEPS, **solver.schedule(STEPS)))
    assert str(vars(used)) != str(made)
    assert str(vars(fresh(template, solver, STEPS, SHIFT))) == str(made)


def noise(seed: int) -> Any:
    return torch.randn(1, 4, 2, 4, 4, generator=torch.Generator().manual_seed(seed))
