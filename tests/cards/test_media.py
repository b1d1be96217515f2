"""Clips and stills that other programs open."""

import io
import os
import subprocess
import sys
import wave

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from cards import media

COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 0, 0), (255, 255, 255), (128, 128, 128))


def frames(count: int = 7, height: int = 16, width: int = 32) -> NDArray[np.uint8]:
    """Each of one colour."""
    made = np.empty((count, height, width, 3), np.uint8)
    made[:] = np.array(COLOURS[:count], np.uint8)[:, None, None]
    return made


@pytest.mark.parametrize(("fps", "scale"), [(12, 1), (24, 3)])
def test_a_clip_has_the_frames_the_pace_and_the_size_asked_for(fps: int, scale: int) -> None:
    data = media.mp4(frames(), fps=fps, scale=scale)

    with av.open(io.BytesIO(data)) as clip:
        [stream] = clip.streams
        seen = [(frame.width, frame.height, frame.time) for frame in clip.decode(stream)]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert stream.average_rate == fps

    assert [size[:2] for size in seen] == [(32 * scale, 16 * scale)] * 7
    assert [time for *_, time in seen] == pytest.approx([index / fps for index in range(7)], abs=1e-3)


def test_a_clip_shows_its_frames_in_order() -> None:
    with av.open(io.BytesIO(media.mp4(frames(), fps=12))) as clip:
        shown = [frame.to_ndarray(format="rgb24").mean((0, 1)) for frame in clip.decode(video=0)]

    np.testing.assert_allclose(shown, COLOURS, atol=12)


def test_the_same_frames_are_the_same_bytes() -> None:
    noisy = np.random.default_rng(1).integers(0, 256, (24, 32, 32, 3), np.uint8)

    assert media.mp4(noisy, fps=12, scale=2) == media.mp4(noisy.copy(), fps=12, scale=2)
    assert media.mp4(noisy, fps=12) != media.mp4(noisy[::-1], fps=12)
    assert media.contact_sheet(noisy, columns=6) == media.contact_sheet(noisy, columns=6)


def test_a_contact_sheet_shows_all_frames_in_reading_order() -> None:
    sheet = Image.open(io.BytesIO(media.contact_sheet(frames(), columns=3, scale=2, gap=4)))

    assert sheet.size == (3 * (64 + 4) + 4, 3 * (32 + 4) + 4)
    for index, colour in enumerate(COLOURS):
        row, column = divmod(index, 3)
        left, top = 4 + column * 68, 4 + row * 36
        assert sheet.getpixel((left, top)) == sheet.getpixel((left + 63, top + 31)) == colour
        assert sheet.getpixel((left - 1, top)) == sheet.getpixel((left, top - 1)) == (255, 255, 255)
    assert sheet.getpixel((4 + 68, 4 + 2 * 36)) == (255, 255, 255), "nothing comes after the last frame"


def test_a_still_is_one_frame() -> None:
    image = Image.open(io.BytesIO(media.still(frames()[0], scale=4)))

    assert (image.format, image.size) == ("PNG", (128, 64))
    assert image.getpixel((64, 32)) == COLOURS[0]


def test_small_frames_give_the_same_bytes_whatever_was_in_memory() -> None:
    noise = np.random.default_rng(5)
    waves = np.arange(33)[:, None, None, None] / 5 + np.arange(32)[:, None, None] / 7 + np.arange(48)[:, None] / 9
    frames = (128 + 20 * np.sin(waves) + noise.integers(0, 40, (33, 32, 48, 3))).astype(np.uint8)

    made = set()
    for _ in range(8):
        freed = [noise.bytes(int(size)) for size in noise.integers(100, 60_000, 20)]
        del freed
        made.add(media.mp4(frames, fps=16))

    assert len(made) == 1


def tone(seconds: float, rate: int = 16_000) -> media.Sound:
    """440 Hz in the left ear, silence in the right."""
    left = 0.5 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate), dtype=np.float32) / rate)
    return media.Sound(media.pcm(np.stack([left, np.zeros_like(left)]).astype(np.float32)), rate)


def test_a_sound_is_written_sample_for_sample() -> None:
    sound = tone(0.1)

    with wave.open(io.BytesIO(media.wav(sound))) as read:
        assert (read.getframerate(), read.getnchannels(), read.getsampwidth()) == (16_000, 2, 2)
        samples = np.frombuffer(read.readframes(read.getnframes()), "<i2").reshape(-1, 2)

    np.testing.assert_array_equal(samples, sound.samples)
    assert 16_300 < samples[:, 0].max() < 16_400
    assert not samples[:, 1].any()


def test_what_is_louder_than_a_sample_can_say_is_cut() -> None:
    assert media.pcm(np.array([[2.0, -2.0, 0.5]], np.float32)).tolist() == [[32767], [-32767], [16383]]


def test_a_clip_carries_its_sound() -> None:
    with av.open(io.BytesIO(media.mp4(frames(), fps=12, sound=tone(7 / 12)))) as clip:
        [video], [audio] = clip.streams.video, clip.streams.audio
        assert (video.frames, audio.codec_context.name, audio.rate) == (7, "aac", 16_000)
        heard = np.concatenate([frame.to_ndarray() for frame in clip.decode(audio)], axis=1)

    assert heard.shape[1] == pytest.approx(7 / 12 * 16_000, abs=2048)
    assert np.abs(heard[0]).max() > 0.4
    assert np.abs(heard[1]).max() < 0.01


def test_a_clips_bytes_do_not_hang_on_what_lay_in_memory_before() -> None:
    code = """
import hashlib, numpy
from cards import media
frames = numpy.random.default_rng(0).integers(0, 256, (17, 64, 64, 3), numpy.uint8)
print(hashlib.blake2b(media.mp4(frames, fps=24)).hexdigest())
"""
    filled = [
        subprocess.check_output([sys.executable, "-c", code], env={**os.environ, "MALLOC_PERTURB_": byte})
        for byte in ("1", "170")
    ]

    assert filled[0] == filled[1]
