"""The folded toy with something for each role to do, for real workers. It is stored at every third step only."""

from msgspec.structs import replace

from cards.card import ComponentSpec, ModelCard
from cards.loop import Done, LoopState
from cards.wire import WorkPlan
from tests.folded import Folded, Multistep

NEEDS = {"prepare": "reader", "finish": "writer"}


def by_role(card: ModelCard) -> ModelCard:
    parts = {
        "reader": ComponentSpec(kind="text_encoder", parameters=0),
        "writer": ComponentSpec(kind="vae", parameters=0),
    }
    loops = {
        name: replace(spec, components=(NEEDS[name],) if name in NEEDS else spec.components)
        for name, spec in card.loops.items()
    }
    return replace(card, components=card.components | parts, loops=loops)


FAMILY = Folded(3)
FAMILY.card = by_role(FAMILY.card)


class Short(Multistep):
    """Ends a step before it said it would: what it leaves need not have been stored."""

    def next(self, state: LoopState) -> WorkPlan | Done:
        plan = super().next(state)
        if isinstance(plan, Done) or 0 < state.step == state.steps - 1:
            return Done()
        return replace(plan, writes=None)


SHORT = Folded(1 << 30)
SHORT.card = by_role(SHORT.card)
SHORT.loops = {**SHORT.loops, "toy.multistep/1": Short("toy.multistep/1", ("x",))}
