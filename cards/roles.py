"""What a worker is for, where it is not for everything: the loops of a role, with the components that they need.

A loop with a transformer is a denoiser's, another one with an encoder of words or images an encoder's, and any other
that needs components a decoder's: VAEs, vocoders, upsamplers. A loop that needs none is anybody's.
"""

from collections.abc import Collection
from typing import Literal, TypeAlias, get_args

from cards.card import ModelCard

Role: TypeAlias = Literal["encoder", "denoiser", "decoder"]
ROLES: tuple[Role, ...] = get_args(Role)


def role_of(card: ModelCard, loop: str) -> Role | None:
    """Whose a loop of the card is; None for anybody's."""
    kinds = [card.components[name].kind for name in card.loops[loop].components]
    if any(kind.startswith("transformer") for kind in kinds):
        return "denoiser"
    if any(kind.endswith("_encoder") for kind in kinds):
        return "encoder"
    return "decoder" if kinds else None


def roles_of(card: ModelCard) -> tuple[Role, ...]:
    """Those that it takes to run the card's program."""
    found = {role_of(card, node.loop) for node in card.program.nodes}
    return tuple(role for role in ROLES if role in found)


def components_of(card: ModelCard, serves: Collection[str]) -> tuple[str, ...]:
    """What a worker with these roles loads, in the order of the card; all there is if it has none."""
    loops = [spec for name, spec in card.loops.items() if role_of(card, name) in serves]
    needed = {name for spec in loops for name in spec.components}
    return tuple(name for name in card.components if name in needed or not serves)
