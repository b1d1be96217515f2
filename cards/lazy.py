"""Components that are loaded one by one, each when it is first taken, and can be unloaded."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any


class Lazy(Mapping[str, Any]):
    """`sizes` are bytes of weights by name, 0 for what has none; `load` makes a component anew."""

    def __init__(self, sizes: Mapping[str, int], load: Callable[[str], Any]) -> None:
        self.sizes = sizes
        self._load = load
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            if name not in self.sizes:
                raise KeyError(name)
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def unload(self, name: str) -> None:
        """It is loaded again when it is taken again."""
        self._loaded.pop(name, None)
