"""What stays on the device between steps: each job's tensors, by content."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from cards import codec
from cards.wire import TensorRef

if TYPE_CHECKING:
    import torch


class BlobStore(Protocol):
    """Where blobs too large for a message live. A worker reads what it lacks and writes what it made."""

    def put(self, data: bytes) -> str:
        """Raises BlobsUnavailable."""
        ...

    def get(self, digest: str) -> bytes:
        """Raises BlobLost, BlobsUnavailable."""
        ...


class Held(Struct, frozen=True):
    tensors: int
    nbytes: int


class Resident:
    """The tensors of all jobs on this device. Not thread-safe: it belongs to the executor."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._jobs: dict[str, dict[str, torch.Tensor]] = {}

    def admit(self, job: str, keep: Iterable[str], arrived: Mapping[str, bytes]) -> None:
        """Forget what the job no longer refers to and take in what came with the unit."""
        held = self._jobs.get(job, {})
        kept = {digest: held[digest] for digest in keep if digest in held}
        self._jobs[job] = kept | {digest: codec.decode(data) for digest, data in arrived.items()}

    def get(self, job: str, ref: TensorRef) -> "torch.Tensor":
        """Raises BlobLost if the tensor is neither here nor there, BlobsUnavailable."""
        held = self._jobs.setdefault(job, {})
        if ref.digest not in held:
            held[ref.digest] = codec.decode(self._blobs.get(ref.digest))
        return held[ref.digest]

    def put(self, job: str, digest: str, tensor: "torch.Tensor") -> None:
        self._jobs.setdefault(job, {})[digest] = tensor

    def release(self, job: str) -> None:
        self._jobs.pop(job, None)

    def clear(self) -> None:
        self._jobs.clear()

    def held(self) -> Held:
        tensors = [tensor for job in list(self._jobs.values()) for tensor in list(job.values())]
        return Held(len(tensors), sum(tensor.nbytes for tensor in tensors))
