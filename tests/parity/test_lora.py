"""LoRAs of a request against WanPipeline's `load_lora_weights` and `set_adapters`, and what they leave: nothing."""

import json
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import safetensors.torch
import torch
from diffusers import WanPipeline
from msgspec.structs import replace
from torch import Tensor

from cards import lora
from cards.errors import BadLora, InvalidRequest
from cards.given import Given
from cards.lora import Lora
from cards.request import GenerationRequest, RequestChanges
from cards.wire import WorkPlan
from engine.job import State
from tests import toy
from tests.parity import tiny
from tests.parity.reference import Outcome, ended, expected, family, run
from tests.parity.resuming import run_resumed
from tests.sim import Running, World

ATTENTION = ("blocks.0.attn1.to_q", "blocks.0.attn2.to_v", "blocks.1.attn1.to_out.0", "blocks.1.ffn.net.0.proj")
TIME = ("condition_embedder.time_embedder.linear_1", "condition_embedder.time_proj", "blocks.1.ffn.net.2")
REQUEST: dict[str, Any] = {
    "prompt": "a red cat",
    "negative_prompt": "blurry",
    "seed": 3,
    "steps": 3,
    "guidance": 4.0,
    "size": "48x32",
    "frames": 1,
}


@cache
def shapes() -> Any:
    return family(tiny.wan(), "float32").modules()


def tensors(names: Sequence[str], rank: int, seed: int, prefix: str = "transformer.") -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Tensor] = {}
    for name in names:
        rows, columns = shapes()[name]
        made[f"{prefix}{name}.lora_A.weight"] = torch.randn(rank, columns, generator=generator) / 4
        made[f"{prefix}{name}.lora_B.weight"] = torch.randn(rows, rank, generator=generator) / 4
    return made


@cache
def first() -> bytes:
    return safetensors.torch.save(tensors(ATTENTION, 4, seed=1))


@cache
def second() -> bytes:
    """With a configuration of its own, as `save_lora_weights` writes it."""
    config = {"transformer.r": 2, "transformer.lora_alpha": 6, "transformer.target_modules": [*TIME]}
    return safetensors.torch.save(tensors(TIME, 2, seed=2), {"format": "pt", lora.METADATA: json.dumps(config)})


def asked(*files: tuple[bytes, float]) -> tuple[dict[str, Any], dict[str, Given]]:
    given = {f"lora/{index}": lora.file(f"loras/{index}", data) for index, (data, _) in enumerate(files)}
    loras = (Lora(one.ref.digest, strength) for one, (_, strength) in zip(given.values(), files, strict=True))
    return REQUEST | {"loras": tuple(loras)}, given


async def submit(running: Running, model: Any, *files: tuple[bytes, float]) -> str:
    request, given = asked(*files)
    return (await running.client.submit(GenerationRequest(model=model.card.name, **request), given=given)).id


async def made_with(model: Any, *files: tuple[bytes, float]) -> Outcome:
    async with World(families=(model,)).engine() as running:
        return await ended(running, await submit(running, model, *files))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
async def test_two_stacked_are_what_the_pipeline_makes_of_them(precision: str) -> None:
    files = (first(), 0.75), (second(), -0.5)

    made = await made_with(model := family(tiny.wan(), precision), *files)

    pipelines = expected(model, made.job, asked(*files)[1])
    assert made.of(pipelines) == pipelines
    assert [one.strength for one in made.job.request.loras] == [0.75, -0.5]
    assert [one.digest for one in made.job.request.loras] == [lora.file("", data).ref.digest for data, _ in files]


async def test_a_fork_may_have_other_strengths() -> None:
    model = family(tiny.wan(), "float32")
    async with World(families=(model,)).engine() as running:
        parent = await ended(running, await submit(running, model, (first(), 0.75), (second(), -0.5)))
        with pytest.raises(InvalidRequest, match="strengths: are 1 for 2 LoRAs; give one for each, in their order"):
            await running.client.fork(parent.job.id, 1, RequestChanges(strengths=(0.5,)))
        with pytest.raises(InvalidRequest, match="strength inf is no finite number"):
            await running.client.fork(parent.job.id, 1, RequestChanges(strengths=(math.inf, 1.0)))
        at_step = sum(node == "encode" for node, _ in parent.steps)
        fork = await running.client.fork(parent.job.id, at_step, RequestChanges(strengths=(0.5, 1.0)))
        forked = await ended(running, fork.id)

    direct = await made_with(model, (first(), 0.5), (second(), 1.0))
    assert forked.last("denoise") == direct.last("denoise") != parent.last("denoise")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
async def test_jobs_with_and_without_run_side_by_side_as_each_does_alone(precision: str) -> None:
    model = family(tiny.wan(), precision)
    stacks: tuple[tuple[tuple[bytes, float], ...], ...] = ((), ((first(), 1.0),), ((second(), 2.0), (first(), 0.5)), ())
    alone = {stack: await made_with(model, *stack) for stack in stacks}
    components = model.load("cpu")
    model.load = lambda device: components
    before = parameters(components["transformer"])

    async with World(families=(model,)).engine() as running:
        ids = [await submit(running, model, *stack) for stack in stacks]
        together = [await ended(running, job_id) for job_id in ids]

    for stack, made in zip(stacks, together, strict=True):
        assert made.steps == alone[stack].steps, len(stack)
    assert len({made.last("denoise")["latent"] for made in together}) == 3
    after = parameters(components["transformer"])
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def parameters(transformer: Any) -> dict[str, Tensor]:
    """Those of the model itself, by the names that they had."""
    named = transformer.named_parameters()
    return {name.replace(".base_layer", ""): one.clone() for name, one in named if ".lora_" not in name}


async def test_what_a_file_says_of_its_training_has_no_part_in_serving() -> None:
    about = {"transformer.r": 4, "transformer.lora_alpha": 4, "transformer.target_modules": [*ATTENTION]}
    trained = about | {"transformer.lora_dropout": 0.5, "transformer.init_lora_weights": "pissa"}
    plain, noisy = (
        safetensors.torch.save(tensors(ATTENTION, 4, seed=1), {"format": "pt", lora.METADATA: json.dumps(config)})
        for config in (about, trained)
    )
    model = family(tiny.wan(), "float32")

    made = await made_with(model, (noisy, 1.0))

    assert made.last("denoise") == (await made_with(model, (plain, 1.0))).last("denoise")


async def test_a_load_that_fails_leaves_nothing_in_the_model() -> None:
    model = family(tiny.wan(), "float32")
    components = model.load("cpu")
    transformer = components["transformer"]
    names = {name for name, _ in transformer.named_parameters()}

    def half(tensors: Any, **options: Any) -> Any:
        made, rest = WanPipeline.lora_state_dict(tensors, **options)
        return {name: one[:, :1] if "lora_B" in name else one for name, one in made.items()}, rest

    with pytest.raises(RuntimeError, match="size mismatch"):
        lora._load(transformer, "broken", first(), half)

    left = {name.replace(".base_layer", "") for name, _ in transformer.named_parameters()}
    assert left == names


async def test_stopped_after_every_step_it_goes_on_with_them() -> None:
    model = family(tiny.wan(), "float32")
    request, given = asked((first(), 0.75), (second(), -0.5))

    unbroken = await made_with(model, (first(), 0.75), (second(), -0.5))
    assert (await run_resumed(model, request, given)).steps == unbroken.steps


async def test_two_rows_of_one_forward_are_two_forwards_with_them_too() -> None:
    request, given = asked((first(), 0.75), (second(), -0.5))
    enough = GenerationRequest(model="tiny", **request | {"size": "64x128", "frames": 5})
    made = []
    for cfg in ("sequential", "batched"):
        async with World(families=(family(tiny.wan(), "float32", cfg=cfg),)).engine() as running:
            made.append(await ended(running, (await running.client.submit(enough, given=given)).id))

    assert made[0].steps == made[1].steps


async def test_a_student_takes_them() -> None:
    student = family(tiny.wan(), "float32", recipe="dmd")
    request, given = asked((first(), 0.75))
    async with World(families=(student,)).engine() as running:
        words = GenerationRequest(model="tiny", **request | {"guidance": 1.0})
        made = await ended(running, (await running.client.submit(words, given=given)).id)

    plain = expected(student, made.job, given)
    assert made.of(plain) == plain
    assert made.last("denoise") != (await run(student, REQUEST | {"guidance": 1.0})).last("denoise")


def test_without_a_keeper_no_adapter_stays_with_a_model() -> None:
    transformer = tiny.wan_transformer().eval().requires_grad_(False)
    call = {"hidden_states": torch.ones(1, 16, 1, 4, 6), "timestep": torch.tensor([5])}
    call |= {"encoder_hidden_states": torch.ones(1, 8, 32)}
    with torch.inference_mode():
        base = transformer(**call).sample
        for seed in range(2):
            one = lora.file("", safetensors.torch.save(tensors(ATTENTION[:1], 2, seed=seed)))
            plan = WorkPlan(instance="", loop="", kind="", step=0, reads={"lora/0": one.ref}, scalars={"lora/0": 1.0})
            read, convert = {"lora/0": content(one)}, WanPipeline.lora_state_dict
            stack = lora.stack({"transformer": transformer}, "transformer", plan, read, convert)
            assert stack is not None
            with stack.on(transformer):
                assert not torch.equal(transformer(**call).sample, base)
            assert torch.equal(transformer(**call).sample, base)

    assert not getattr(transformer, "peft_config", {})


def content(given: Given) -> Tensor:
    from cards import codec

    return codec.decode(given.data)


# -- refusals ----------------------------------------------------------------------------------------------------


def broken() -> dict[str, tuple[bytes, str]]:
    save = safetensors.torch.save
    fits = tensors(ATTENTION[:1], 2, seed=1)
    elsewhere = {key.replace("blocks.0", f"blocks.{n}"): one.clone() for n in range(2, 5) for key, one in fits.items()}
    text = {key.replace("transformer.", "text_encoder."): one for key, one in fits.items()}
    wide = {key: torch.cat([one, one], dim=1) for key, one in fits.items() if "lora_A" in key}
    return {
        "elsewhere": (save(elsewhere), r"loras/0: fits no module of this model: transformer\.blocks\.2\..* and 3 more"),
        "text": (save(text), r"loras/0: fits no module of this model: text_encoder\.blocks"),
        "wide": (save(fits | wide), r"loras/0: is for a model of another size: transformer\.blocks\.0\.attn1\.to_q"),
        "half": (save({key: one for key, one in fits.items() if "lora_A" in key}), "loras/0: has not both halves"),
        "weights": (save({"transformer.proj_out.weight": torch.ones(2)}), "loras/0: holds no LoRA"),
    }


@pytest.mark.parametrize("name", ["elsewhere", "text", "wide", "half", "weights"])
async def test_a_file_that_does_not_fit_is_refused_by_the_names_in_it(name: str) -> None:
    data, said = broken()[name]
    async with World(families=(model := family(tiny.wan(), "float32"),)).engine(workers=0) as running:
        with pytest.raises(InvalidRequest, match=said):
            await submit(running, model, (data, 1.0))


@pytest.mark.parametrize("data", [b"", b"not at all", first_bytes := b"\x08" + bytes(7) + b"{}      ", b"\xff" * 9])
def test_what_is_no_safetensors_file_is_refused(data: bytes) -> None:
    if data == first_bytes:
        assert lora.file("loras/0", data)
        return
    with pytest.raises(InvalidRequest, match="loras/0: is no safetensors file"):
        lora.file("loras/0", data)


def test_a_file_that_was_cut_off_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="loras/1: is a safetensors file that was cut off"):
        lora.file("loras/1", first()[:-1])


async def test_what_the_request_says_of_them_is_checked() -> None:
    model = family(tiny.wan(), "float32")
    request, given = asked((first(), 1.0))
    [one] = request["loras"]
    wrong: tuple[tuple[Any, dict[str, Given], str], ...] = (
        ((replace(one, strength=math.nan),), given, "loras/0: strength nan is no finite number"),
        ((one, one), given, "loras/1: is there twice"),
        ((one,) * 9, given, "loras: are 9; up to 8"),
        ((replace(one, digest="0"),), given, "loras: do not go with the files that came: lora/0"),
        ((one,), {}, "loras: do not go with the files that came: none"),
        ((), given, "loras: do not go with the files that came: lora/0"),
        ((), {"lora": given["lora/0"]}, "lora: tiny takes no such input"),
    )
    async with World(families=(model, toy.FAMILY)).engine(workers=0) as running:
        for loras, files, said in wrong:
            with pytest.raises(InvalidRequest, match=said):
                await running.client.submit(GenerationRequest(model="tiny", **request | {"loras": loras}), given=files)
        with pytest.raises(InvalidRequest, match="loras: toy takes none; leave them out"):
            await running.client.submit(GenerationRequest(model="toy", prompt="x", loras=(one,)))


async def test_another_format_is_converted_and_checked_by_the_worker() -> None:
    model = family(tiny.wan(), "float32")
    official = {"q": "blocks.0.self_attn.q", "o": "blocks.1.self_attn.o"}
    names = {"q": "blocks.0.attn1.to_q", "o": "blocks.1.attn1.to_out.0"}
    ours = tensors([*names.values()], 2, seed=4)
    theirs = {
        key.replace(f"transformer.{names[one]}", f"diffusion_model.{official[one]}"): tensor
        for key, tensor in ours.items()
        for one in names
        if names[one] in key
    }
    save = safetensors.torch.save
    same = await made_with(model, (save(ours), 1.0))
    assert (await made_with(model, (save(theirs), 1.0))).last("denoise") == same.last("denoise")

    too_deep = {key.replace("blocks.1", "blocks.7"): tensor for key, tensor in theirs.items()}
    async with World(families=(model,)).engine() as running:
        job = await running.ended(await submit(running, model, (save(too_deep), 1.0)), within_s=120.0)
    assert job.state is State.FAILED
    assert job.failure is not None
    assert BadLora.__name__ in job.failure.message
    assert "transformer.blocks.7.attn1.to_out.0" in job.failure.message
