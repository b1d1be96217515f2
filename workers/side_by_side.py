"""Bodies of several steps run side by side: what they ask for at a time is evaluated at once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from cards.family import Asking, Made
from cards.forward import Forward, Outputs
from workers.sharing import Evaluated, alone


def run(steps: Iterable[Asking], evaluate: Callable[[Sequence[Forward]], list[Evaluated]]) -> list[Made | Exception]:
    """What each has made or raised, in their order: no step minds what becomes of another."""
    runs = [_Run(step) for step in steps]
    while waiting := [one for one in runs if one.made is None]:
        for one, answer in zip(waiting, _answers([one.asked for one in waiting], evaluate), strict=True):
            one.answer(answer)
    return [one.made for one in runs if one.made is not None]


def _answers(
    asked: Sequence[Mapping[str, Forward]], evaluate: Callable[[Sequence[Forward]], list[Evaluated]]
) -> list[Mapping[str, Evaluated] | Exception]:
    """To all of it at once. A step is others' code and asks for anything: what cannot share is then evaluated alone."""
    try:
        made = iter(evaluate([forward for one in asked for forward in one.values()]))
        return [{branch: next(made) for branch in one} for one in asked]
    except Exception:  # noqa: BLE001 - whose it is shows when each is alone
        return [_alone(one) for one in asked]


def _alone(asked: Mapping[str, Forward]) -> Mapping[str, Evaluated] | Exception:
    try:
        return {branch: alone(forward) for branch, forward in asked.items()}
    except Exception as error:  # noqa: BLE001 - it is the answer
        return error.with_traceback(None)


class _Run:
    """A step on its way: what it asks for, and what it has made or raised in the end."""

    def __init__(self, step: Asking) -> None:
        self._step = step
        self.asked: Mapping[str, Forward] = {}
        self.made: Made | Exception | None = None
        self._go_on(partial(next, step))

    def answer(self, made: Mapping[str, Evaluated] | Exception) -> None:
        if isinstance(made, Exception):
            return self._go_on(partial(self._step.throw, made))
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
