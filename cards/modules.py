"""The modules of a checkpoint, each loaded when it is first asked for: a job that never decodes loads no VAE."""

import logging
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from cards.card import Precision
from cards.checkpoint import Checkpoint, Part, looks
from cards.errors import WeightsChanged
from cards.lazy import Lazy

log = logging.getLogger("keyframe.cards")

LIBRARIES = ("diffusers", "transformers")

PINNED = {"CLIPImageProcessor": "CLIPImageProcessorPil"}
"""Of a class with several backends the one that every machine has: by default it is whichever is installed, and they
resize to other bits."""

BYTES: Mapping[Precision, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

NOTHING: Mapping[str, Callable[[Any], None]] = {}


class Modules(Lazy):
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
        sizes = {name: part.parameters * BYTES[precision] for name, part in checkpoint.parts.items()}
        super().__init__(sizes, self._load_part)
        self._parts = checkpoint.parts
        self._precision = precision
        self._device = device
        self._finish = finish
        self._looked = {name: _looks(part) for name, part in checkpoint.parts.items()}

    def _load_part(self, name: str) -> Any:
        """Raises WeightsChanged: what was said of them when they were first read is true no more."""
        import torch

        part = self._parts[name]
        if _looks(part) != self._looked[name]:
            raise WeightsChanged(part.folder)
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


def _looks(part: Part) -> tuple[tuple[int, int] | None, ...]:
    return tuple(looks(file) for file in part.files)


def _as_it_is(module: Any) -> None:
    pass


def class_of(part: Part) -> Any:
    """The class that the model index names, or its pinned backend: of a library, or of one of diffusers' pipelines."""
    module = part.library if part.library in LIBRARIES else f"diffusers.pipelines.{part.library}"
    return getattr(import_module(module), PINNED.get(part.class_name, part.class_name))
