"""Step skipping in the manner of TeaCache (Liu et al. 2024)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cards.card import Point
from cards.extensions.interceptor import Ran, relative_change
from cards.forward import InParts

if TYPE_CHECKING:
    from torch import Tensor


class StepSkip:
    """A branch gives its last output again while the relative changes of what modulates it add up to little.

    The sum begins anew with each forward; the first and the last step always have one. As in TeaCache for Wan 2.1, with
    neither its polynomial, which is fitted to one set of weights, nor its residual: the model's output is reused.
    """

    name = "step_skip"
    point: Point = "forward"
    keeps: tuple[str, ...] = ("modulated", "change", "output")
    most = 1.0

    def run(self, forward: InParts, kept: "Mapping[str, Tensor]", *, threshold: float, last: bool) -> Ran:
        modulated = forward.modulated().float()
        if kept and not last:
            change = kept["change"] + relative_change(modulated, kept["modulated"])
            if change.item() < threshold:
                again = {"modulated": modulated, "change": change, "output": kept["output"]}
                return Ran(kept["output"], again, reused=True)
        output = forward.whole()
        return Ran(output, {"modulated": modulated, "change": modulated.new_zeros(1), "output": output}, reused=False)
