"""What a card of Wan may be opened with: how guidance evaluates its branches, and the solvers."""

from typing import Any

import pytest
import torch

from cards.errors import InvalidCard
from cards.invariant import offenders, row_by_row
from cards.wan.card import BY_ROW
from tests.parity import tiny
from tests.parity.reference import expected, family, run
from tests.parity.resuming import run_resumed

PRECISIONS = ("float32", "bfloat16")
REQUEST: dict[str, Any] = {
    "prompt": "a red cat",
    "negative_prompt": "blurry",
    "seed": 3,
    "steps": 4,
    "guidance": 4.0,
    "size": "64x128",
    "frames": 5,
}
"""Of 64 tokens: with fewer, the branches are evaluated one by one in any case."""

SOME = {"denoise.latent@3", "denoise.latent", "decode.frames/1"}
"""Of what is compared."""


@pytest.mark.parametrize("precision", PRECISIONS)
async def test_two_rows_of_one_forward_are_two_forwards(precision: str) -> None:
    sequential = await run(family(tiny.wan(), precision), REQUEST)
    batched = await run(model := family(tiny.wan(), precision, cfg="batched"), REQUEST)

    assert batched.steps == sequential.steps
    pipelines = expected(model, batched.job)
    assert batched.of(pipelines) == pipelines
    assert pipelines.keys() > SOME


async def test_without_the_invariant_modules_they_are_not() -> None:
    model = family(tiny.wan(), "float32", cfg="batched")
    components = model.load("cpu")
    model.load = lambda device: components
    for name in BY_ROW:
        del components["transformer"].get_submodule(name).forward

    made = await run(model, REQUEST)
    assert made.last("denoise")["latent"] != expected(model, made.job)["denoise.latent"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_probe_finds_the_modules_that_are_called_row_by_row(precision: str) -> None:
    transformer = family(tiny.wan(), precision).load("cpu")["transformer"]
    call = batch(transformer)

    found = offenders(transformer, call, rows=2)
    assert {*found} <= {*BY_ROW}
    if precision == "float32":
        assert {"patch_embedding", "condition_embedder.time_proj"} <= {*found}
    alone = [forward(transformer, {name: value[row : row + 1] for name, value in call.items()}) for row in range(2)]
    row_by_row(transformer, found)
    assert not offenders(transformer, call, rows=2)
    assert torch.equal(forward(transformer, call), torch.cat(alone))


def batch(transformer: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {
        "hidden_states": torch.randn(2, 16, 3, 4, 6, generator=generator).to(transformer.dtype),
        "timestep": torch.tensor([757, 300]),
        "encoder_hidden_states": torch.randn(2, 512, 32, generator=generator).to(transformer.dtype),
    }


@torch.inference_mode()
def forward(transformer: Any, call: dict[str, Any]) -> torch.Tensor:
    made: torch.Tensor = transformer(**call).sample
    return made


@pytest.mark.parametrize("precision", PRECISIONS)
async def test_flow_unipc_is_the_pipeline_at_wans_own_noise_levels_and_another_solver(precision: str) -> None:
    model, plain = family(tiny.wan(), precision, solver="flow_unipc"), family(tiny.wan(), precision)

    made = await run(model, REQUEST)
    pipelines = expected(model, made.job)
    assert made.of(pipelines) == pipelines
    assert pipelines.keys() > SOME
    assert (await run_resumed(model, REQUEST)).steps == made.steps
    assert made.last("denoise")["latent"] != expected(plain, made.job)["denoise.latent"]
    assert "fm_solvers_unipc" in model.card.parity.reference
    assert model.card.digest != plain.card.digest


async def test_a_few_tokens_do_not_share_a_forward() -> None:
    """Their matrix products have too few rows to be batch invariant."""
    few = REQUEST | {"size": "48x32", "frames": 1}
    sequential = await run(family(tiny.wan(), "float32"), few)

    assert (await run(family(tiny.wan(), "float32", cfg="batched"), few)).steps == sequential.steps


def test_an_option_that_is_not_there_is_told_of_those_that_are() -> None:
    with pytest.raises(InvalidCard, match=r"options\.cfg: 'parallel' is none of batched, sequential"):
        family(tiny.wan(), "float32", cfg="parallel")
    with pytest.raises(
        InvalidCard, match=r"options\.guess: there is none; there are: loop, solver, recipe, cfg, interceptor"
    ):
        family(tiny.wan(), "float32", guess="x")
