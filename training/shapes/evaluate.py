"""`python -m training.shapes.evaluate`: how often the shapes model shows what the prompt says."""

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from cards.shapes import model
from training.shapes.data import FRAMES_PER_LATENT, SIZE, Scene, draw_continued, draw_scene, render, scenes
from training.shapes.judge import Verdict, judge
from training.shapes.sample import Model, decode, load_model, sample

WEIGHTS = Path(model.__file__).with_name("weights.safetensors")
ATTRIBUTES = ("colour", "shape", "motion", "background", "count", "right")
SHEET = (
    Scene("red", "circle", "moving right", "black"),
    Scene("yellow", "triangle", "moving up", "navy"),
    Scene("cyan", "square", "growing", "maroon"),
    Scene("white", "cross", "moving down left", "gray"),
    Scene("green", "circle", "shrinking", "black"),
    Scene("purple", "cross", "moving left", "gray"),
    Scene("orange", "square", "moving up right", "navy"),
    Scene("blue", "triangle", "standing still", "maroon"),
)
SHEET_FRAMES = (0, 5, 9, 14, 18, 23)

Judged = tuple[Scene, Verdict]


def verdicts(
    parts: Model, wanted: Sequence[Scene], seeds: int, *, batch: int = 16, steps: int, guidance: float, shift: float
) -> Iterator[Judged]:
    """One verdict for each scene and seed. The seed of the noise is one number more for every clip."""
    jobs = [(scene, seed * len(wanted) + index) for seed in range(seeds) for index, scene in enumerate(wanted)]
    for first in range(0, len(jobs), batch):
        some = jobs[first : first + batch]
        latents = sample(
            parts,
            [scene.caption for scene, _ in some],
            [seed for _, seed in some],
            steps=steps,
            guidance=guidance,
            shift=shift,
        )
        for (scene, _), latent in zip(some, latents, strict=True):
            yield scene, judge(decode(parts.codec, latent), scene)


def continuations(parts: Model, count: int) -> Iterator[Judged]:
    """Verdicts on what the model adds to given first latent frames: a still image, or another or the same motion."""
    rng = np.random.default_rng(0)
    clips = [draw_continued(rng, draw_scene(rng)) for _ in range(count)]
    for index, clip in enumerate(clips):
        given_BTHWC = torch.from_numpy(render(clip)[None, : clip.given * FRAMES_PER_LATENT])
        with torch.no_grad():
            given_BCFHW = parts.codec.encoder(given_BTHWC)
        latent = sample(parts, [clip.scene.caption], [index], given_BCFHW=given_BCFHW)[0]
        yield clip.scene, judge(decode(parts.codec, latent[:, clip.given :]), clip.scene)


def summary(judged: Iterable[Judged]) -> dict[str, float]:
    """Percentages of clips, the standard error of the last, and the mean fidelity."""
    found = [verdict for _, verdict in judged]
    count = max(1, len(found))
    table: dict[str, float] = {
        name: round(100 * sum(getattr(verdict, name) for verdict in found) / count, 2) for name in ATTRIBUTES
    }
    share = table["right"] / 100
    return {
        "clips": len(found),
        **table,
        "standard_error": round(100 * math.sqrt(share * (1 - share) / count), 2),
        "fidelity": round(sum(verdict.fidelity for verdict in found) / count, 3),
    }


def report(judged: Sequence[Judged]) -> dict[str, dict[str, float]]:
    """`summary` of all clips, of those seen and not seen in training, and of each word."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for scene, verdict in judged:
        keys = ("all", "held out" if scene.held_out else "trained", scene.shape, scene.motion)
        for key in keys:
            groups[key].append((scene, verdict))
        groups[f"{scene.colour} object"].append((scene, verdict))
        groups[f"{scene.background} background"].append((scene, verdict))
    return {name: summary(group) for name, group in sorted(groups.items(), key=lambda item: -len(item[1]))}


def write_sheet(parts: Model, path: Path, wanted: Sequence[Scene] = SHEET, *, seed: int = 7) -> None:
    """A labelled grid: a prompt a row, time from left to right."""
    latents = sample(parts, [scene.caption for scene in wanted], [seed] * len(wanted))
    gap, label, scale = 4, 14, 2
    tile = SIZE * scale
    sheet = Image.new(
        "RGB", (len(SHEET_FRAMES) * (tile + gap) + gap, len(wanted) * (tile + gap + label) + gap), "white"
    )
    draw = ImageDraw.Draw(sheet)
    for row, (scene, latent) in enumerate(zip(wanted, latents, strict=True)):
        frames, top = decode(parts.codec, latent), gap + row * (tile + gap + label)
        draw.text((gap, top), scene.caption, fill="black")
        for column, index in enumerate(SHEET_FRAMES):
            sheet.paste(_tile(frames[index], tile), (gap + column * (tile + gap), top + label))
    sheet.save(path, optimize=True)


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    parts = load_model(options.weights)
    if options.sheet:
        write_sheet(parts, options.sheet)
        print(f"wrote {options.sheet}")
    wanted = scenes()
    if options.prompts != "all":
        picked = np.random.default_rng(0).permutation(len(wanted))[: int(options.prompts)]
        wanted = [wanted[index] for index in picked]
    sampling = {"steps": options.steps, "guidance": options.guidance, "shift": options.shift}
    judged: list[Judged] = []
    started, total = time.monotonic(), len(wanted) * options.seeds
    for item in verdicts(parts, wanted, options.seeds, **sampling):
        judged.append(item)
        if len(judged) % 16 == 0 or len(judged) == total:
            each_s = (time.monotonic() - started) / len(judged)
            right = summary(judged)["right"]
            left_min = each_s * (total - len(judged)) / 60
            print(
                f"{len(judged)}/{total}  right {right:.1f} %  {each_s:.2f} s/clip  {left_min:.1f} min left", flush=True
            )
    table = report(judged)
    if options.continued:
        table["continued"] = summary(continuations(parts, options.continued))
    for name, row in table.items():
        print(f"{name:22}" + "  ".join(f"{key} {value:g}" for key, value in row.items()))
    if options.json:
        options.json.write_text(json.dumps({"sampling": sampling, "seeds": options.seeds, "groups": table}, indent=1))


def _tile(frame_HWC: NDArray[np.uint8], size: int) -> Image.Image:
    return Image.fromarray(frame_HWC).resize((size, size), Image.Resampling.NEAREST)


def _options() -> argparse.Namespace:
    config = model.CONFIG
    parser = argparse.ArgumentParser(prog="python -m training.shapes.evaluate", description=__doc__)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--seeds", type=int, default=1, help="clips a prompt")
    parser.add_argument("--prompts", default="all", help="all of them, or how many to draw")
    parser.add_argument("--steps", type=int, default=config.steps)
    parser.add_argument("--guidance", type=float, default=config.guidance)
    parser.add_argument("--shift", type=float, default=config.shift)
    parser.add_argument("--continued", type=int, default=0, help="clips that continue given frames to judge as well")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the table here")
    parser.add_argument("--sheet", type=Path, help="write a contact sheet here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
