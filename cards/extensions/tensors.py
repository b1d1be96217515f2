"""Tensors of steps in a folder, for people and for the aligner: one file each, found by job, body, step and name."""

from pathlib import Path
from urllib.parse import quote

from torch import Tensor

from cards import codec
from cards.extensions.observer import Seen


def file_of(job: Path, step: Seen, name: str) -> Path:
    return job / f"{step.plan.step:06d}.{step.plan.kind}.{quote(name, safe='')}.safetensors"


def job_folder(folder: Path, job: str) -> Path:
    return folder / quote(job, safe="")


def save(file: Path, tensor: Tensor) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(codec.encode(tensor)[1])


def load(file: Path) -> Tensor | None:
    return codec.decode(file.read_bytes()) if file.is_file() else None
