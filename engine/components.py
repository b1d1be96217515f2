"""Which of a worker's components people mean."""

from collections.abc import Mapping, Sequence

from cards.family import Family
from cards.roles import components_of
from cards.wire import Hello
from engine.errors import NoSuchComponent


def meant(hello: Hello, registry: Mapping[str, Family], components: Sequence[str], models: Sequence[str]) -> list[str]:
    """All of a name if no models are named, all of a model if no components are, as `<model>/<component>`.

    Raises NoSuchComponent.
    """
    of_models = {model.name for model in hello.models} & registry.keys()
    there = {name: registry[name].card for name in sorted(of_models)}
    for model in models:
        if model not in there:
            raise NoSuchComponent("models", model, there)
    cards = [card for name, card in there.items() if name in (models or there) and not card.stages]
    parts = {card.name: components_of(card, hello.serves) for card in cards}
    names = {component for those in parts.values() for component in those}
    for component in components:
        if component not in names:
            raise NoSuchComponent("components", component, sorted(names))
    wanted = components or names
    return [f"{model}/{component}" for model, those in parts.items() for component in those if component in wanted]
