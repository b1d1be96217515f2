"""At full size a step takes what its plan says: products to the last one, and nearly the same bytes at once.

The libraries' modules run on tensors without data. What a text encoder holds is not looked at: its masks need data.
"""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cards import checkpoint, registry
from cards.ltx2 import decoding_sizes
from cards.model import Model
from cards.request import GenerationRequest, resolve
from cards.sizes import LoopSizes, Measurable, Work
from cards.wan import vae_sizes
from cards.wan_causal.forward import forward
from cards.wire import WorkPlan
from tests import published
from tests.parity import meta

NEAR = 0.1
"""How far the bytes may be from those that were counted."""

CLIP = {"size": "832x480", "frames": 81, "guidance": 1.0}


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("published")
    return {
        "wan": published.write(root / "wan", published.wan(), published.WAN),
        "ltx2": published.write(root / "ltx2", published.ltx2(), published.LTX2),
        "flux2": published.write(root / "flux2", published.flux2(), published.FLUX2, is_distilled=True),
    }


def sizes(folder: Path, asked: Mapping[str, Any], **options: str) -> Mapping[str, LoopSizes]:
    family = registry.open_model(Model(name="m", folder=str(folder), options=options))
    assert isinstance(family, Measurable)
    request = GenerationRequest(model="m", prompt="any", seed=0, **asked)
    return family.sizes(resolve(request, family.card, random.Random(0)))


def step(sized: LoopSizes, kind: str = "", step: int = 0, **scalars: int) -> Work:
    return sized.work(WorkPlan(instance="m", loop="", kind=kind, step=step, scalars=dict(scalars)))


def same(planned: Work, counted: Work) -> None:
    assert planned.flops == counted.flops
    assert planned.activations == pytest.approx(counted.activations, rel=NEAR)


def wan_forward(latent: Tensor) -> Callable[[], object]:
    return lambda: published.wan()["transformer"](
        hidden_states=latent,
        timestep=empty(1, dtype=torch.int64),
        encoder_hidden_states=empty(1, 512, 4096),
        return_dict=False,
    )


def test_a_forward_of_wan(folders: Mapping[str, Path]) -> None:
    sized = sizes(folders["wan"], CLIP)

    same(step(sized["denoise"]), meta.work(wan_forward(empty(1, 16, 21, 60, 104))))


def test_a_forward_of_flux_2(folders: Mapping[str, Path]) -> None:
    sized = sizes(folders["flux2"], {"size": "1024x1024"})

    def run() -> object:
        return published.flux2()["transformer"](
            hidden_states=empty(1, 4096, 128),
            timestep=empty(1),
            guidance=None,
            encoder_hidden_states=empty(1, 512, 7680),
            txt_ids=empty(1, 512, 4),
            img_ids=empty(1, 4096, 4),
            return_dict=False,
        )

    same(step(sized["denoise"]), meta.work(run))


def test_a_picture_of_flux_2(folders: Mapping[str, Path]) -> None:
    sized = sizes(folders["flux2"], {"size": "1024x1024"})

    same(step(sized["decode_vae"]), meta.work(lambda: published.flux2()["vae"].decode(empty(1, 32, 128, 128))))


@pytest.mark.parametrize("chunk", [0, 6])
@pytest.mark.parametrize("kind", ["denoise", "context"])
def test_a_chunk_of_wan_causal(folders: Mapping[str, Path], kind: str, chunk: int) -> None:
    sized = sizes(folders["wan"], {"size": "832x480", "frames": 81}, loop="causal")
    kv = sized["rollout"].tensors["kv"]
    past = [empty(*kv.shape) for _ in range(chunk)]

    def run() -> object:
        text, timestep = empty(1, 512, 4096), empty(1, dtype=torch.int64)
        _, made = forward(published.wan()["transformer"], empty(1, 16, 3, 60, 104), timestep, text, past, 3 * chunk)
        return torch.stack([torch.stack(one) for one in made]) if kind == "context" else made

    planned = step(sized["rollout"], kind, chunk=chunk, window=21, sink=0)
    named = kv.nbytes if kind == "context" else 0
    same(Work(planned.flops, planned.activations + named), meta.work(run))


def test_the_frames_of_wan(folders: Mapping[str, Path]) -> None:
    """The first one, and then the second, which is four. The cache that the second begins with was made before."""
    part = checkpoint.read(folders["wan"]).parts["vae"]
    vae = published.wan()["vae"]
    vae.clear_cache()
    cache: list[Any] = [None] * vae._conv_num

    def run(first: bool) -> object:
        return vae.decoder(empty(1, 16, 1, 60, 104), feat_cache=cache, feat_idx=[0], first_chunk=first)

    first = meta.work(lambda: run(True))
    run(False)
    following = meta.work(lambda: run(False))

    assert vae_sizes.decoding(part, 60, 104, "bfloat16", first=True).flops == first.flops
    same(vae_sizes.decoding(part, 60, 104, "bfloat16", first=False), following)
    left = sum(one.nbytes for one in cache if isinstance(one, Tensor))
    assert vae_sizes.cache_bytes(part, 60, 104, "bfloat16") == left


def test_the_picture_that_a_clip_of_wan_begins_with(folders: Mapping[str, Path]) -> None:
    part = checkpoint.read(folders["wan"]).parts["vae"]

    counted = meta.work(lambda: published.wan()["vae"].encode(empty(1, 3, 81, 480, 832)))

    same(vae_sizes.encoding(part, (1, 16, 21, 60, 104), "bfloat16"), counted)


LTX2 = {"size": "1280x704", "frames": 121}
GRID = {"num_frames": 16, "height": 22, "width": 40, "audio_num_frames": 126}


def test_a_forward_of_ltx_2(folders: Mapping[str, Path]) -> None:
    sized = sizes(folders["ltx2"], LTX2)

    def run() -> object:
        return published.ltx2()["transformer"](
            hidden_states=empty(1, 16 * 22 * 40, 128),
            audio_hidden_states=empty(1, 126, 128),
            encoder_hidden_states=empty(1, 1024, 3840),
            audio_encoder_hidden_states=empty(1, 1024, 3840),
            timestep=empty(1),
            sigma=empty(1),
            encoder_attention_mask=empty(1, 1024),
            audio_encoder_attention_mask=empty(1, 1024),
            fps=24.0,
            return_dict=False,
            **GRID,
        )

    same(step(sized["refine"]), meta.work(run))


def test_the_upsampler_and_the_frames_of_ltx_2(folders: Mapping[str, Path]) -> None:
    sized = sizes(folders["ltx2"], LTX2)
    modules = published.ltx2()

    same(step(sized["upsample"]), meta.work(lambda: modules["latent_upsampler"](empty(1, 128, 16, 11, 20))))
    same(step(sized["decode_video"]), meta.work(lambda: modules["vae"].decode(empty(1, 128, 16, 22, 40))))


def test_the_sound_of_ltx_2(folders: Mapping[str, Path]) -> None:
    parts, modules = checkpoint.read(folders["ltx2"]).parts, published.ltx2()

    voiced, samples, _ = decoding_sizes.vocoder(parts["vocoder"], "bfloat16", 501)

    same(voiced, meta.work(lambda: modules["vocoder"](empty(1, 2, 501, 64))))
    assert modules["vocoder"](empty(1, 2, 501, 64)).shape == (1, 2, samples)
    spectrum = decoding_sizes.spectrum(parts["audio_vae"], "bfloat16", (1, 8, 126, 16))
    same(spectrum, meta.work(lambda: modules["audio_vae"].decode(empty(1, 8, 126, 16))))


def test_the_sound_of_ltx_2_3(tmp_path: Path) -> None:
    """Its vocoder has a second one in it, for what lies above the first one's pitch."""
    modules = published.vocoder_of_ltx2_3()
    part = checkpoint.read(published.write(tmp_path / "m", modules, published.LTX2)).parts["vocoder"]

    voiced, samples, channels = decoding_sizes.vocoder(part, "bfloat16", 501)

    same(voiced, meta.work(lambda: modules["vocoder"](empty(1, 2, 501, 64))))
    assert modules["vocoder"](empty(1, 2, 501, 64)).shape == (1, channels, samples)


def test_the_connectors_of_ltx_2(folders: Mapping[str, Path]) -> None:
    """They need more than the text encoder: they read all layers of it."""
    sized = sizes(folders["ltx2"], LTX2)

    counted = meta.work(
        lambda: published.ltx2()["connectors"](empty(1, 1024, 3840 * 49), empty(1, 1024, dtype=torch.int64))
    )

    assert step(sized["encode_text"]).activations == pytest.approx(counted.activations, rel=NEAR)
