"""`python -m training.shapes`: train the shapes model from nothing, or go on where a stopped run was."""

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from training.shapes.evaluate import write_sheet
from training.shapes.sample import load_model
from training.shapes.train import Cycle, Recipe, Run

SHOW_EVERY, SAVE_EVERY, EXPORT_EVERY = 10, 100, 500


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    recipe = Recipe()
    if options.steps is not None:
        recipe = replace(recipe, cycles=(Cycle(options.steps),), codec_steps=min(options.steps, recipe.codec_steps))
    run, checkpoint = Run(recipe), options.out / "checkpoint.pt"
    if options.resume and checkpoint.exists():
        run.resume(checkpoint)
        print(f"resumed at codec step {run.codec_step}, step {run.step}")

    for phase, steps, total in (("codec", run.fit_codec(), recipe.codec_steps), ("flow", run.fit(), recipe.steps)):
        for step in _shown(phase, steps, total):
            if step % SAVE_EVERY == 0 or step == total:
                run.save(checkpoint)
            if phase == "flow" and (step % EXPORT_EVERY == 0 or step == total):
                run.export(options.out / "weights.safetensors")
    run.export(options.out / "weights.safetensors")
    write_sheet(load_model(options.out / "weights.safetensors"), options.out / "sheet.png")
    print(f"wrote {options.out / 'weights.safetensors'} and {options.out / 'sheet.png'}")


def _shown(phase: str, steps: Iterator[tuple[int, float]], total: int) -> Iterator[int]:
    """The steps, with a line of progress every few of them."""
    started, first, losses = time.monotonic(), 0, []
    for step, loss in steps:
        first = first or step
        losses.append(loss)
        yield step
        if step % SHOW_EVERY == 0 or step == total:
            each_s = (time.monotonic() - started) / (step - first + 1)
            mean = sum(losses[-50:]) / len(losses[-50:])
            left_min = each_s * (total - step) / 60
            print(f"{phase} {step}/{total}  loss {mean:.4f}  {each_s:.2f} s/step  {left_min:.1f} min left", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m training.shapes", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/shapes"), help="folder for checkpoint, weights and sheet")
    parser.add_argument("--steps", type=int, help="steps of the transformer, and at most as many of the codec")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    return parser.parse_args()


if __name__ == "__main__":
    main()
