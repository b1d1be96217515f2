"""The shapes model's clips, words and judge, each held against the others."""

from itertools import islice

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cards.shapes.model import Encoder
from cards.shapes.vocabulary import LENGTH, PAD, caption, tokenize
from training.shapes.codec import encode_clips
from training.shapes.data import (
    FRAMES,
    FRAMES_PER_LATENT,
    SIZE,
    Clip,
    Scene,
    coverage,
    draw_clip,
    draw_continued,
    draw_scene,
    render,
    scenes,
    stream,
)
from training.shapes.judge import judge, read


def drawn(count: int, *, seed: int = 0) -> list[Clip]:
    rng = np.random.default_rng(seed)
    return [draw_clip(rng, draw_scene(rng)) for _ in range(count)]


def frames_of(clip: Clip) -> NDArray[np.uint8]:
    return (render(clip) * 255).round().astype(np.uint8)


def right(clips: list[Clip], wanted: list[Scene], *, noise: float = 0.0) -> float:
    """The share of clips that the judge finds right, with noise of that deviation on every pixel."""
    rng = np.random.default_rng(1)
    verdicts = []
    for clip, scene in zip(clips, wanted, strict=True):
        frames = frames_of(clip)
        noisy = (frames + rng.normal(0, 255 * noise, frames.shape)).clip(0, 255).astype(np.uint8) if noise else frames
        verdicts.append(judge(noisy, scene).right)
    return sum(verdicts) / len(verdicts)


def test_the_judge_finds_true_clips_right() -> None:
    clips = drawn(120)

    assert right(clips, [clip.scene for clip in clips]) >= 0.99


def test_the_judge_finds_clips_of_other_prompts_wrong() -> None:
    clips = drawn(60)
    others = [clip.scene for clip in clips[1:] + clips[:1]]

    assert right(clips, others) == 0.0


@pytest.mark.parametrize("attribute", ["colour", "shape", "motion", "background"])
def test_one_wrong_attribute_is_named(attribute: str) -> None:
    clip = drawn(1)[0]
    other = next(
        scene
        for scene in scenes()
        if [name for name in vars(scene) if getattr(scene, name) != getattr(clip.scene, name)] == [attribute]
    )

    verdict = judge(frames_of(clip), other)

    wrong = [name for name in ("colour", "shape", "motion", "background", "count") if not getattr(verdict, name)]
    assert wrong == [attribute]
    assert not verdict.right


def test_noise_lowers_the_score() -> None:
    clips = drawn(24)
    wanted = [clip.scene for clip in clips]

    scores = [right(clips, wanted, noise=noise) for noise in (0.02, 0.06, 0.3)]

    assert scores[0] >= 0.9
    assert scores[0] > scores[1] > scores[2] == 0.0


def test_pure_noise_shows_nothing() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (FRAMES, SIZE, SIZE, 3)).astype(np.uint8)

    reading = read(noise)

    assert (reading.shape, reading.motion, reading.clean) == ("unclear", "unclear", False)


def test_a_bounce_does_not_change_the_motion_that_is_read() -> None:
    scene = Scene("red", "circle", "moving right", "black")
    x = 40 + np.arange(FRAMES)
    path = np.stack([np.where(x > 54, 108 - x, x), np.full(FRAMES, 30), np.full(FRAMES, 9)], axis=1)

    assert read(frames_of(Clip(scene, path.astype(np.float32)))).motion == "moving right"


def test_objects_stay_in_the_frame() -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        clip = draw_continued(rng, draw_scene(rng))
        seen = coverage(clip.scene.shape, clip.path).sum(axis=(1, 2))
        assert np.allclose(seen, np.pi * clip.path[:, 2] ** 2, rtol=0.03)


def test_clips_are_a_function_of_the_seed() -> None:
    first, again, other = (list(islice(stream(seed, continued=0.3), 5)) for seed in (4, 4, 5))

    assert [clip.scene for clip in first] == [clip.scene for clip in again]
    assert all(np.array_equal(one.path, two.path) for one, two in zip(first, again, strict=True))
    assert not any(np.array_equal(one.path, two.path) for one, two in zip(first, other, strict=True))


def test_training_never_sees_what_is_held_out() -> None:
    assert not any(clip.scene.held_out for clip in islice(stream(0, continued=0.3), 500))
    assert 0.05 < sum(scene.held_out for scene in scenes()) / len(scenes()) < 0.15


def test_the_short_way_to_latents_equals_the_encoder() -> None:
    torch.manual_seed(0)
    encoder, clips = Encoder(), [*islice(stream(1, continued=0.5), 4)]

    short = encode_clips(encoder, clips)

    assert short.shape[2] * FRAMES_PER_LATENT == FRAMES
    torch.testing.assert_close(short, encoder(torch.from_numpy(np.stack([render(clip) for clip in clips]))))


def test_every_caption_is_all_known_words() -> None:
    ids = set()
    for scene in scenes():
        tokens, unknown = tokenize(scene.caption)
        assert unknown == ()
        assert len(tokens) == LENGTH
        ids.add(tokens)
    assert len(ids) == len(scenes())


def test_case_punctuation_and_synonyms_do_not_matter() -> None:
    plain = tokenize(caption("red", "circle", "moving up left", "gray"))

    assert tokenize("  A RED ball, moves up-left; on a grey background!") == plain


def test_unknown_words_are_named_and_skipped() -> None:
    assert tokenize("a tiny red café circle") == (tokenize("a red circle")[0], ("tiny", "café"))
    assert tokenize("") == ((PAD,) * LENGTH, ())
    assert tokenize("red " * 20) == ((tokenize("red")[0][0],) * LENGTH, ("red",) * 4)
