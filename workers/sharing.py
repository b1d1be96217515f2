"""Forwards of several steps as rows of one call, to the bits that each has alone.

That is measured and not assumed: the first time that forwards of a kind share a call with so many rows, each is also
evaluated alone. What mattered is found and goes part by part from then on; where that is not enough, they do not share.
"""

import gc
import logging
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from cards import codec, invariant, memory
from cards.forward import Forward, Outputs

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger("keyframe.workers")

MOST_ROWS = 16
"""Of one call."""

MOST_KINDS = 4096
"""Of forwards of one module that something is known of: requests name sizes and adapters as they like."""

Evaluated: TypeAlias = "Outputs | Exception"


class Known:
    """Of one module and kinds of forward: what goes part by part with so many in a call, and how many memory is for."""

    def __init__(self) -> None:
        self.names: dict[tuple[Hashable, int], tuple[str, ...] | None] = {}
        self.most: dict[Hashable, int] = {}


class Sharing:
    """What is known of the modules of a worker, each for as long as it is loaded."""

    def __init__(self, most_rows: int = MOST_ROWS) -> None:
        self._most_rows = most_rows
        self._known: WeakKeyDictionary[Any, Known] = WeakKeyDictionary()

    def evaluate(self, forwards: Sequence[Forward]) -> list[Evaluated]:
        """What each makes, or what it raises alone: one that fails takes no other with it."""
        made: dict[int, Evaluated] = {}
        for group in _groups(forwards):
            for some in _portions(group, self._most(forwards[group[0]])):
                made |= zip(some, self._together([forwards[index] for index in some]), strict=True)
        return [made[index] for index in range(len(forwards))]

    def _most(self, forward: Forward) -> int:
        """How many such forwards go in one call."""
        most = max(1, self._most_rows // forward.count)
        return min(most, self._of(forward).most.get(_kind(forward), most))

    def _of(self, forward: Forward) -> Known:
        known = self._known.setdefault(forward.module, Known())
        if len(known.names) + len(known.most) >= MOST_KINDS:
            known = self._known[forward.module] = Known()
        return known

    def _together(self, forwards: Sequence[Forward]) -> list[Evaluated]:
        if len(forwards) == 1:
            return [alone(forwards[0])]
        most, kind = self._of(forwards[0]).most, _kind(forwards[0])
        try:
            made = [*self._shared(forwards)]
            if kind in most:
                most[kind] = max(most[kind], len(forwards))
            return made
        except Exception as error:  # noqa: BLE001 - whose it is shows when each is alone
            out_of_memory = memory.ran_out(error)
        if not out_of_memory:
            return [alone(forward) for forward in forwards]
        free()
        if most.get(kind, len(forwards)) >= len(forwards):
            most[kind] = 1  # until more of them fit
        half = len(forwards) // 2
        return [*self._together(forwards[:half]), *self._together(forwards[half:])]

    def _shared(self, forwards: Sequence[Forward]) -> Sequence[Evaluated]:
        known, kind = self._of(forwards[0]), (_kind(forwards[0]), len(forwards))
        if kind not in known.names:
            made = [forward() for forward in forwards]
            known.names[kind] = self.measure(forwards, made)
            return made
        names = known.names[kind]
        return [alone(forward) for forward in forwards] if names is None else self.call(forwards, names)

    def call(self, forwards: Sequence[Forward], names: Iterable[str]) -> Sequence[Evaluated]:
        """Those of a kind that is known."""
        return call(forwards, names)

    def measure(self, forwards: Sequence[Forward], made: Sequence[Outputs]) -> tuple[str, ...] | None:
        """The modules that must go part by part for one call to make what was made, or None if it would not."""
        first, rows = forwards[0], sum(forward.count for forward in forwards)
        names: tuple[str, ...] = ()
        while True:
            with first.adapted():
                arguments = {**_stacked(forwards), **first.common}
                more = invariant.offenders(first.module, arguments, rows, _part(first), names)
            names += more
            if all(_same(*pair) for pair in zip(call(forwards, names), made, strict=True)):
                return names
            if not more:
                log.warning(
                    "%s: %d forwards in one call make other bits than each alone, and are evaluated one by one",
                    type(first.module).__name__, len(forwards),
                )  # fmt: skip
                return None


def call(forwards: Sequence[Forward], names: Iterable[str]) -> list[Outputs]:
    """Forwards that are alike, as rows of one: `names` go part by part."""
    first = forwards[0]
    with first.adapted(), invariant.in_parts(first.module, names, _part(first)):
        made = first.call(_stacked(forwards))
    counts = [forward.count for forward in forwards]
    rows = {name: [row.clone() for row in tensor.split(counts)] for name, tensor in made.items()}
    return [{name: of[index] for name, of in rows.items()} for index in range(len(forwards))]


def in_pieces(forward: Forward) -> Outputs:
    """The same bits in less memory, where the forward has parts."""
    pieces = [piece() for piece in forward.parts()]
    return pieces[0] if len(pieces) == 1 else _in_a_row(pieces)


def _in_a_row(pieces: Sequence[Outputs]) -> Outputs:
    import torch

    return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}


def free() -> None:
    """What nobody holds any more, and what torch keeps of it."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def alone(forward: Forward) -> Evaluated:
    try:
        return forward()
    except Exception as error:  # noqa: BLE001 - it is the answer
        return error.with_traceback(None)  # which would hold all that was made until then


def _groups(forwards: Sequence[Forward]) -> list[list[int]]:
    """Those that can be rows of one call, by their indices."""
    kinds: dict[Hashable, list[list[int]]] = {}
    for index, forward in enumerate(forwards):
        groups = kinds.setdefault((id(forward.module), _kind(forward)), [])
        group = next((group for group in groups if _in_common(forwards[group[0]], forward)), None)
        if group is None:
            groups.append([index])
        else:
            group.append(index)
    return [group for groups in kinds.values() for group in groups]


def _portions(group: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    """As few as will do, and as equal as can be."""
    count = -(-len(group) // most)
    bounds = [len(group) * index // count for index in range(count + 1)]
    return (group[begin:end] for begin, end in pairwise(bounds))


def _in_common(one: Forward, other: Forward) -> bool:
    """Whether two of one kind have the same in common, of which the kind knows all but the values of tensors."""
    import torch

    pairs = ((value, other.common[name]) for name, value in one.common.items())
    return all(torch.equal(*pair) for pair in pairs if isinstance(pair[0], torch.Tensor))


def _kind(forward: Forward) -> Hashable:
    """What picks the kernels."""
    adapters = None if forward.adapters is None else forward.adapters.key
    rows = tuple((name, _layout(tensor)) for name, tensor in forward.rows.items())
    common = tuple((name, _about(value)) for name, value in forward.common.items())
    return (forward.makes, _part(forward), forward.count, adapters, rows, common)


def _part(forward: Forward) -> int:
    return forward.part or forward.count


def _layout(rows: "Tensor") -> tuple[Hashable, ...]:
    """Of one row."""
    return rows.dtype, str(rows.device), rows.shape[1:], rows.stride()[1:]


def _about(value: Any) -> Hashable:
    import torch

    if isinstance(value, torch.Tensor):
        return value.dtype, str(value.device), value.shape, value.stride()
    return repr(value) if _is_plain(value) else object()  # which is like no other


def _is_plain(value: Any) -> bool:
    """Whether its repr is all of it. That of a tensor among others leaves most of it out."""
    import torch

    match value:
        case tuple() | list() | set() | frozenset():
            return all(map(_is_plain, value))
        case dict():
            return all(map(_is_plain, value.items()))
    return value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | torch.device)


def _stacked(forwards: Sequence[Forward]) -> "dict[str, Tensor]":
    return {name: _stack([forward.rows[name] for forward in forwards]) for name in forwards[0].rows}


def _stack(rows: "Sequence[Tensor]") -> "Tensor":
    """One after the other, each laid out as it was: another layout picks other kernels."""
    import torch

    first, counts = rows[0], [len(one) for one in rows]
    shape, strides = first.shape[1:], first.stride()[1:]
    if first.is_contiguous() or not codec.each_its_own(shape, strides):
        return torch.cat([*rows])
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    stacked = torch.empty_strided((sum(counts), *shape), (extent, *strides), dtype=first.dtype, device=first.device)
    for place, one in zip(stacked.split(counts), rows, strict=True):
        place.copy_(one)
    return stacked


def _same(one: Outputs, other: Outputs) -> bool:
    """To the bit and to the layout."""
    return all(
        invariant.same(tensor, other[name]) and tensor.stride() == other[name].stride() for name, tensor in one.items()
    )
