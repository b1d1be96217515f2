"""Sampling maths against what is known of it."""

import itertools
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cards import sampling

STEPS = st.integers(1, 200)
SHIFTS = st.floats(0.05, 20)


@given(STEPS, SHIFTS)
def test_flow_time_falls_from_one_to_zero(steps: int, shift: float) -> None:
    times = [sampling.flow_time(step, steps, shift) for step in range(steps + 1)]

    assert times[0] == pytest.approx(1, abs=1e-12)
    assert times[-1] == 0
    assert all(before > after for before, after in itertools.pairwise(times))


@given(STEPS)
def test_without_a_shift_time_falls_evenly(steps: int) -> None:
    for step in range(steps + 1):
        assert sampling.flow_time(step, steps, 1.0) == 1 - step / steps


@given(STEPS, st.floats(1.01, 20))
def test_a_shift_stays_longer_where_the_noise_is(steps: int, shift: float) -> None:
    for step in range(1, steps):
        assert sampling.flow_time(step, steps, shift) > 1 - step / steps


@pytest.mark.parametrize("shift", [1.0, 3.0, 5.0])
def test_flow_time_is_the_schedule_of_diffusers(shift: float) -> None:
    """FlowMatchEulerDiscreteScheduler: sigmas = shift * s / (1 + (shift - 1) * s), for s from 1 to 1 / steps, and 0."""
    steps = 20
    s = torch.linspace(1, 1 / steps, steps, dtype=torch.float64)
    theirs = torch.cat([shift * s / (1 + (shift - 1) * s), torch.zeros(1, dtype=torch.float64)])

    ours = torch.tensor([sampling.flow_time(step, steps, shift) for step in range(steps + 1)], dtype=torch.float64)

    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_one_euler_step_is_the_step_of_diffusers() -> None:
    """FlowMatchEulerDiscreteScheduler.step: prev_sample = sample + (sigma_next - sigma) * model_output."""
    sample, velocity = torch.randn(2, 8, generator=torch.Generator().manual_seed(1)).unbind()

    assert torch.equal(sampling.euler(sample, velocity, 0.75, 0.5), sample + (0.5 - 0.75) * velocity)


@settings(deadline=None)
@given(st.integers(1, 30), SHIFTS, st.integers(0, 1000))
def test_euler_is_exact_on_a_straight_flow(steps: int, shift: float, seed: int) -> None:
    data, noise = torch.randn(2, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).unbind()
    velocity, latent = noise - data, noise
    times = [sampling.flow_time(step, steps, shift) for step in range(steps + 1)]

    for t, next_t in itertools.pairwise(times):
        torch.testing.assert_close(sampling.data_estimate(latent, velocity, t), data)
        latent = sampling.euler(latent, velocity, t, next_t)

    torch.testing.assert_close(latent, data)


def test_guidance_one_is_the_conditional_and_zero_the_unconditional() -> None:
    conditional, unconditional = torch.randn(2, 8, generator=torch.Generator().manual_seed(1)).unbind()

    torch.testing.assert_close(sampling.guide(conditional, unconditional, 1.0), conditional)
    assert torch.equal(sampling.guide(conditional, unconditional, 0.0), unconditional)
    assert torch.equal(
        sampling.guide(conditional, unconditional, 3.0), unconditional + 3.0 * (conditional - unconditional)
    )


def test_every_draw_has_noise_of_its_own() -> None:
    keys = [
        sampling.noise_seed(seed, loop=loop, step=step, purpose=purpose)
        for seed, loop, step, purpose in itertools.product((0, 1, 11), ("a", "b"), (0, 1, 11), ("latent", "noise"))
    ]

    assert len(set(keys)) == len(keys)


@given(st.integers(0, 2**63 - 1), st.integers(0, 10_000))
def test_a_noise_seed_is_one_that_a_generator_takes(seed: int, step: int) -> None:
    key = sampling.noise_seed(seed, loop="denoise", step=step, purpose="noise")

    assert 0 <= key < 2**63


def test_noise_is_standard_normal_float32_and_only_the_seeds() -> None:
    torch.manual_seed(1)
    drawn = sampling.noise((64, 64), 5)
    torch.manual_seed(2)

    assert torch.equal(drawn, sampling.noise((64, 64), 5))
    assert not torch.equal(drawn, sampling.noise((64, 64), 6))
    assert drawn.dtype is torch.float32
    assert abs(drawn.mean()) < 0.1
    assert abs(drawn.std() - 1) < 0.1


def test_another_process_draws_the_same() -> None:
    code = (
        "from cards import sampling; key = sampling.noise_seed(7, loop='denoise', step=0, purpose='latent');"
        "print(key, sampling.noise((3,), key).tolist())"
    )
    key = sampling.noise_seed(7, loop="denoise", step=0, purpose="latent")

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert done.stdout.decode().strip() == f"{key} {sampling.noise((3,), key).tolist()}"
