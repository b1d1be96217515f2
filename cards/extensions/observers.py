"""The observers there are, by the names that settings use: `nan_watch`, `taps:transformer.blocks.0`. No torch."""

from collections.abc import Iterable
from importlib import import_module

from cards.errors import BadExtension
from cards.extensions.observer import Observer

OBSERVERS = {
    "nan_watch": "cards.extensions.nan_watch:open",
    "profiler": "cards.extensions.profiler:open",
    "taps": "cards.extensions.taps:open",
    "record": "cards.extensions.parity:record",
    "align": "cards.extensions.parity:align",
}

NEEDS = {
    "taps": "a module: taps:transformer.blocks.0",
    "record": "a folder: record:runs",
    "align": "what was recorded of a job: align:runs/JOB",
}
"""What must follow the name."""


def check(entries: Iterable[str]) -> None:
    """Raises BadExtension for a name that is none, or that lacks what it needs."""
    for entry in entries:
        name, _, argument = entry.partition(":")
        if name not in OBSERVERS:
            raise BadExtension(name, f"is no extension; there are: {', '.join(OBSERVERS)}")
        if name in NEEDS and not argument:
            raise BadExtension(name, f"needs {NEEDS[name]}")


def open_observers(entries: Iterable[str]) -> tuple[Observer, ...]:
    """In the order of the settings. Raises BadExtension."""
    entries = tuple(entries)
    check(entries)
    return tuple(_open(*entry.partition(":")[::2]) for entry in entries)


def _open(name: str, argument: str) -> Observer:
    module, _, function = OBSERVERS[name].partition(":")
    observer: Observer = getattr(import_module(module), function)(argument)
    return observer
