"""The shipped shapes weights: what they show, and that a batch or another thread count changes no bit."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from cards.shapes.model import COMPONENTS, CONFIG, Transformer, load
from cards.shapes.vocabulary import LENGTH
from training.shapes.data import Scene
from training.shapes.evaluate import WEIGHTS, continuations, summary, verdicts
from training.shapes.sample import Model, load_model, sample

PROMPTS = (
    "a red circle moving right on a black background",
    "a blue square growing on a gray background",
    "a yellow triangle moving up left on a navy background",
    "",
    "a white cross standing still",
    "a green circle shrinking on a maroon background",
)
SCENES = (
    Scene("red", "circle", "moving right", "black"),
    Scene("green", "square", "moving left", "black"),
    Scene("blue", "triangle", "moving up", "gray"),
    Scene("yellow", "cross", "moving down", "gray"),
    Scene("orange", "circle", "moving up right", "navy"),
    Scene("purple", "square", "moving down left", "navy"),
    Scene("cyan", "triangle", "moving down right", "maroon"),
    Scene("white", "cross", "moving up left", "maroon"),
    Scene("red", "square", "growing", "black"),
    Scene("green", "triangle", "shrinking", "gray"),
    Scene("blue", "cross", "standing still", "navy"),
    Scene("yellow", "circle", "growing", "maroon"),
)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(WEIGHTS)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads on a busy machine wait for each other most of the time."""
    with threads(1):
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_batch_equals_its_members_bit_for_bit(model: Model, size: int) -> None:
    seeds = list(range(len(PROMPTS)))

    whole = sample(model, PROMPTS, seeds, steps=3)
    parts = [
        sample(model, PROMPTS[first : first + size], seeds[first : first + size], steps=3)
        for first in range(0, len(PROMPTS), size)
    ]

    assert torch.equal(whole, torch.cat(parts))


@pytest.mark.parametrize("count", [1, 2])
def test_one_evaluation_of_one_latent_frame_equals_the_batch(model: Model, count: int) -> None:
    latent = torch.randn(6, CONFIG.channels, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    t, text = torch.linspace(0, 1, 6)[:, None], model.text_encoder(torch.arange(6)[:, None].expand(6, LENGTH))

    with threads(count):
        whole = model.transformer(latent, t, text)
        parts = [model.transformer(latent[index, None], t[index, None], text[index, None]) for index in range(6)]

    assert torch.equal(whole, torch.cat(parts))


def test_threads_change_no_bit(model: Model) -> None:
    with threads(1):
        one = sample(model, PROMPTS[:2], [1, 2], steps=3)
        frames_of_one = model.codec.decoder(one[:1, :, :1])
    with threads(2):
        two = sample(model, PROMPTS[:2], [1, 2], steps=3)
        frames_of_two = model.codec.decoder(one[:1, :, :1])

    assert torch.equal(one, two)
    assert torch.equal(frames_of_one, frames_of_two)


def test_the_decoder_takes_one_latent_frame(model: Model) -> None:
    frames = model.codec.decoder(torch.randn(1, *CONFIG.latent_shape)[:, :, :1])

    assert frames.shape == (1, CONFIG.frames_per_latent, 64, 64, 3)
    assert 0 <= frames.min() <= frames.max() <= 1


def test_a_forward_changes_nothing(model: Model) -> None:
    before = {name: value.clone() for name, value in model.transformer.state_dict().items()}

    first, second = (sample(model, PROMPTS[:1], [5], steps=2) for _ in range(2))

    assert torch.equal(first, second)
    assert all(torch.equal(value, before[name]) for name, value in model.transformer.state_dict().items())


def test_given_latent_frames_are_kept(model: Model) -> None:
    first = sample(model, PROMPTS[:1], [3], steps=2)

    second = sample(model, PROMPTS[:1], [4], steps=2, given_BCFHW=first[:, :, -2:])

    assert torch.equal(second[:, :, :2], first[:, :, -2:])


def test_given_frames_are_continued_as_the_prompt_says(model: Model) -> None:
    judged = continuations(model, 6)

    assert summary(judged)["right"] >= 50


def test_the_weights_are_small_and_load_by_component() -> None:
    assert WEIGHTS.stat().st_size <= 12e6
    for name in COMPONENTS:
        component = load(WEIGHTS, name)
        assert not component.training
        assert all(value.dtype == torch.float32 and not value.requires_grad for value in component.parameters())


def test_every_width_suits_the_kernels() -> None:
    assert CONFIG.width % 16 == 0
    assert CONFIG.channels % 16 == 0
    assert CONFIG.width % CONFIG.heads == 0
    with pytest.raises(RuntimeError):
        Transformer(replace(CONFIG, width=64, heads=2)).load_state_dict(load(WEIGHTS, "transformer").state_dict())


def test_the_weights_show_what_the_prompt_says(model: Model) -> None:
    judged = verdicts(model, SCENES, 1, batch=4, steps=CONFIG.steps, guidance=CONFIG.guidance, shift=CONFIG.shift)

    assert summary(judged)["right"] >= 75
