"""An optional tier: the blocks of transformers compiled, each for itself. Eager is what is right: it is what computes
everything else, and all of it once compiling has failed.

What is compiled lives with its module, and so is of its component, weights and precision; dynamo keeps it by shape,
and inductor, on disk, by the host's instructions too. Its bits are not those of eager kernels: the numerics fingerprint
has it.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from cards import memory
from workers.clock import perf_counter
from workers.errors import NotCompiled

if TYPE_CHECKING:
    from torch import nn

log = logging.getLogger("keyframe.workers")

COMPONENTS = "transformer"
"""How the names of those begin whose blocks are compiled."""

SHAPES = 64
"""Of one block, with adapters or without, before compiling counts as failed: it would take longer than it saves."""

Backend = str | Callable[..., Any]


class Tier:
    """`eager` is the fingerprint without it, which is true from the moment when it has `failed`.

    `spent` hears of the seconds that compiling takes.
    """

    def __init__(self, eager: str, spent: Callable[[float], None], backend: Backend = "inductor") -> None:
        from torch._dynamo import callback, config

        config.recompile_limit = SHAPES
        config.accumulated_recompile_limit = SHAPES * SHAPES
        config.fail_on_recompile_limit_hit = True  # else those of a later shape would be eager, and nobody the wiser
        callback.on_compile_start(self._begin)
        callback.on_compile_end(self._end)
        self.eager = eager
        self.failed = ""
        self._spent = spent
        self._backend = backend
        self._began = 0.0

    def compile(self, name: str, module: Any) -> None:
        """The blocks of a component, at their first call. One that goes row by row, for batches, stays as it is."""
        if not name.rpartition("/")[2].startswith(COMPONENTS) or self.failed or _by_row(module):
            return
        for block in blocks(module):
            block.forward = self._compiled(block.forward)

    def _compiled(self, eager: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        compiled = torch.compile(eager, backend=self._backend, dynamic=False)

        def forward(*arguments: Any, **named: Any) -> Any:
            if self.failed:
                return eager(*arguments, **named)
            try:
                return compiled(*arguments, **named)
            except Exception as error:
                if memory.ran_out(error):
                    raise
                eager(*arguments, **named)  # what is raised here too is the step's own error
                self._fail(error)

        return forward

    def _fail(self, error: Exception) -> NoReturn:
        """The step is run again without this tier."""
        self.failed = f"{type(error).__name__}: {error}"
        log.warning("compiling failed, all goes on without: %s", self.failed.split("\n")[0])
        raise NotCompiled(self.failed) from error

    def _begin(self, *about: object) -> None:
        self._began = perf_counter()

    def _end(self, *about: object) -> None:
        self._spent(perf_counter() - self._began)


def blocks(module: "nn.Module") -> list["nn.Module"]:
    """Those that a transformer is a row of."""
    from torch import nn

    return [block for child in module.children() if isinstance(child, nn.ModuleList) for block in child]


def _by_row(module: "nn.Module") -> bool:
    return any(hasattr(one.forward, "of_a_row") for one in module.modules())
