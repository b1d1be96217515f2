"""Two runs side by side: `record:FOLDER` keeps what each step makes, `align:FOLDER/JOB` compares with what was kept.

What a log alone can say, whether bytes are equal, `engine-admin jobs diff` says. This says where a port, another
device or another precision begins to differ, and by how much.
"""

import logging
from pathlib import Path

import torch

from cards.errors import BadExtension
from cards.extensions import tensors
from cards.extensions.observer import NOTHING, Observed, Observer, Seen
from cards.family import Made

log = logging.getLogger("keyframe.extensions")


class Recorder(Observer):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def after_step(self, step: Seen, made: Made | None) -> Observed:
        for name, tensor in (made.tensors if made else {}).items():
            tensors.save(tensors.file_of(tensors.job_folder(self._folder, step.job), step, name), tensor)
        return NOTHING


class Aligner(Observer):
    """`differs/<tensor>` is the largest absolute difference. A job's first is logged; what was not kept is passed."""

    def __init__(self, recorded: Path) -> None:
        self._recorded = recorded
        self._said: set[str] = set()

    def after_step(self, step: Seen, made: Made | None) -> Observed:
        found = {name: self._difference(step, name, tensor) for name, tensor in (made.tensors if made else {}).items()}
        differs = {name: difference for name, difference in found.items() if difference}
        if differs and step.job not in self._said:
            self._said.add(step.job)
            name, difference = next(iter(differs.items()))
            log.warning(
                "job %s: %s of %s step %d is the first that differs from %s: by %g",
                step.job, name, step.plan.kind, step.plan.step, self._recorded, difference,
            )  # fmt: skip
        return {f"differs/{name}": difference for name, difference in differs.items()}

    def _difference(self, step: Seen, name: str, tensor: torch.Tensor) -> float:
        """Infinite where the shapes are not alike."""
        there = tensors.load(tensors.file_of(self._recorded, step, name))
        if there is None or (there.dtype == tensor.dtype and torch.equal(there, tensor.cpu())):
            return 0.0
        if there.shape != tensor.shape:
            return float("inf")
        return float((there.double() - tensor.cpu().double()).abs().max())


def record(argument: str) -> Observer:
    return Recorder(Path(argument))


def align(argument: str) -> Observer:
    """Raises BadExtension."""
    if not Path(argument).is_dir():
        raise BadExtension("align", f"{argument!r} is no folder that `record` has made of a job: runs/JOB")
    return Aligner(Path(argument))
