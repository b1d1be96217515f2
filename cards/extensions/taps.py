"""Activations of a module: `taps:transformer.blocks.0`, and with `@FOLDER` behind it they are kept there as well.

Of each call in a step: `mean/<module>#<call>`, `std/...` and `most/...`, the largest absolute value, as float32.
"""

from pathlib import Path
from typing import Any

import torch

from cards.extensions import tensors
from cards.extensions.modules import Hooks
from cards.extensions.observer import Observed, Observer, Seen
from cards.family import Made


class Taps(Observer):
    looks_inside = True

    def __init__(self, module: str, folder: Path | None) -> None:
        self._component, _, self._path = module.partition(".")
        self._module = module
        self._folder = folder
        self._hooks = Hooks()
        self._outputs: list[torch.Tensor] = []

    def component(self, step: Seen, name: str, component: Any) -> None:
        if name == self._component and isinstance(component, torch.nn.Module):
            self._hooks.after(component.get_submodule(self._path), self._tap)

    def after_step(self, step: Seen, made: Made | None) -> Observed:
        self._hooks.remove()
        outputs, self._outputs = self._outputs, []
        observed: dict[str, float] = {}
        for call, output in enumerate(outputs):
            name = f"{self._module}#{call}"
            observed |= {f"{what}/{name}": value for what, value in _summary(output.float()).items()}
            if self._folder is not None:
                file = tensors.file_of(tensors.job_folder(self._folder, step.job), step, name)
                tensors.save(file, output)
        return observed

    def _tap(self, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, torch.Tensor):
            self._outputs.append(first.detach().clone())  # a block may go on in place


def _summary(output: torch.Tensor) -> dict[str, float]:
    most = output.abs().max().item() if output.numel() else 0.0
    return {"mean": output.mean().item(), "std": output.std(correction=0).item(), "most": most}


def open(argument: str) -> Observer:
    module, _, folder = argument.partition("@")
    return Taps(module, Path(folder) if folder else None)
