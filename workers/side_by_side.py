"""Bodies of several steps run side by side: what they ask for at a time is evaluated at once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from cards.family import Asking, Made
from cards.forward import Forward, Outputs
from workers.sharing import Evaluated


def run(steps: Iterable[Asking], evaluate: Callable[[Sequence[Forward]], list[Evaluated]]) -> list[Made | Exception]:
    """What each has made or raised, in their order: no step minds what becomes of another."""
    runs = [_Run(step) for step in steps]
    while waiting := [one for one in runs if one.made is None]:
        made = iter(evaluate([forward for one in waiting for forward in one.asked.values()]))
        for one in waiting:
            one.answer({branch: next(made) for branch in one.asked})
    return [one.made for one in runs if one.made is not None]


class _Run:
    """A step on its way: what it asks for, and what it has made or raised in the end."""

    def __init__(self, step: Asking) -> None:
        self._step = step
        self.asked: Mapping[str, Forward] = {}
        self.made: Made | Exception | None = None
        self._go_on(partial(next, step))

    def answer(self, made: Mapping[str, Evaluated]) -> None:
        outputs: dict[str, Outputs] = {}
        for branch, one in made.items():
            if isinstance(one, Exception):
                return self._go_on(partial(self._step.throw, one))
            outputs[branch] = one
        return self._go_on(partial(self._step.send, outputs))

    def _go_on(self, resume: Callable[[], Mapping[str, Forward]]) -> None:
        try:
            self.asked = resume()
        except StopIteration as end:
            self.made = end.value
        except Exception as error:  # noqa: BLE001 - a step is others' code: what it raises is its own
            self.made = error.with_traceback(None)  # which would hold all that the step holds
