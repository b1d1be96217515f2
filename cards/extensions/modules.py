"""Hooks on modules for as long as one step runs."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle


class Hooks:
    """What is put on modules in a step is gone after it."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []

    def before(self, module: torch.nn.Module, call: Callable[[], None]) -> None:
        self._handles.append(module.register_forward_pre_hook(lambda module, inputs: call()))

    def after(self, module: torch.nn.Module, call: Callable[[Any], None]) -> None:
        self._handles.append(module.register_forward_hook(lambda module, inputs, output: call(output)))

    def remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()


def parts(name: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """A component and its parts: `transformer`, `transformer.rope`, and `transformer.blocks` for each of the blocks."""
    yield name, module
    for child_name, child in module.named_children():
        members = list(child) if isinstance(child, torch.nn.ModuleList) else [child]
        yield from ((f"{name}.{child_name}", member) for member in members)
