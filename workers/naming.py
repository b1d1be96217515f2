"""What one unit makes, named by content."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from msgspec import Struct

from cards import codec
from cards.wire import TensorRef

if TYPE_CHECKING:
    import torch


class Named(Struct, frozen=True):
    ref: TensorRef
    tensor: "torch.Tensor"


class Naming:
    """A tensor that was read, or named before, has a name already, and is stored unless it is one of `unstored`."""

    def __init__(
        self,
        reads: Mapping[str, TensorRef],
        tensors: "Mapping[str, torch.Tensor]",
        unstored: AbstractSet[str],
        device: str = "cpu",
    ) -> None:
        self.blobs: dict[str, bytes] = {}
        """What must be stored."""
        self.left_out: set[str] = set()
        """What need not."""
        self._unstored = unstored
        self._device = device
        self._named = {id(tensors[name]): Named(ref, tensors[name]) for name, ref in reads.items()}

    def name(self, made: "Mapping[str, torch.Tensor]", *, store: bool = True) -> dict[str, Named]:
        return {name: self._one(tensor, store) for name, tensor in made.items()}

    def _one(self, tensor: "torch.Tensor", store: bool) -> Named:
        named = self._named.get(id(tensor))
        if named is not None and not (store and named.ref.digest in self._unstored):
            return named
        ref, parts = codec.refer(tensor)
        if store:
            self.blobs[ref.digest] = b"".join(parts)
        else:
            self.left_out.add(ref.digest)
        named = Named(ref, _laid_out(tensor, ref, parts[1], self._device))
        self._named[id(named.tensor)] = named
        return named


def _laid_out(tensor: "torch.Tensor", ref: TensorRef, data: memoryview, device: str) -> "torch.Tensor":
    """The tensor to go on with: the one that a resume would load, if that lies elsewhere or is not laid out alike."""
    there = str(tensor.device) == codec.home(tensor.dtype, device)
    alike = there and not tensor.storage_offset() and tensor.stride() == ref.strides
    return tensor if alike else codec.fresh(ref.dtype, ref.shape, ref.strides, data, device)
