"""The folded toy with something for each role to do, for real workers. It is stored at every third step only."""

from msgspec.structs import replace

from cards.card import ComponentSpec, ModelCard
from tests.folded import Folded

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
