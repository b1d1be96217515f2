"""The modules of a checkpoint, each loaded when it is first asked for: a job that never decodes loads no VAE."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from cards.card import Precision
from cards.checkpoint import Checkpoint, Part

log = logging.getLogger("keyframe.cards")

LIBRARIES = ("diffusers", "transformers")

PINNED = {"CLIPImageProcessor": "CLIPImageProcessorPil"}
"""Of a class with several backends the one that every machine has: by default it is whichever is installed, and they
resize to other bits."""

NOTHING: Mapping[str, Callable[[Any], None]] = {}


class Modules(Mapping[str, Any]):
    """Components by name. What has no weights (a tokenizer, a scheduler) is loaded the same way.

    `finish` is done to a module, by its name, once it is loaded.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        precision: Precision,
        device: str,
        finish: Mapping[str, Callable[[Any], None]] = NOTHING,
    ) -> None:
        self._checkpoint = checkpoint
        self._precision = precision
        self._device = device
        self._finish = finish
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = self._load(self._checkpoint.parts[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkpoint.parts)

    def __len__(self) -> int:
        return len(self._checkpoint.parts)

    def _load(self, part: Part) -> Any:
        import torch

        kind = class_of(part)
        if not part.nbytes:
            return kind.from_pretrained(part.folder, local_files_only=True)
        log.info("loading %s: %s, %.2f GB", part.name, part.class_name, part.nbytes / 1e9)
        began = time.perf_counter()
        dtype: torch.dtype = getattr(torch, self._precision)
        module = kind.from_pretrained(part.folder, dtype=dtype, local_files_only=True).to(self._device)
        module.eval().requires_grad_(False)
        self._finish.get(part.name, _as_it_is)(module)
        log.info("loaded %s in %.1f s", part.name, time.perf_counter() - began)
        return module


def _as_it_is(module: Any) -> None:
    pass


def class_of(part: Part) -> Any:
    """The class that the model index names, or its pinned backend: of a library, or of one of diffusers' pipelines."""
    module = part.library if part.library in LIBRARIES else f"diffusers.pipelines.{part.library}"
    return getattr(import_module(module), PINNED.get(part.class_name, part.class_name))
