"""What stays on the device between steps: each job's tensors, by content, each at its home (`cards.codec.home`)."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from cards import codec
from cards.cache_key import CacheKey
from cards.wire import TensorRef, is_promised
from workers.caches import SLAB_KV, WEIGHTS, Caches
from workers.errors import BrokenPromise, OutOfDate

if TYPE_CHECKING:
    import torch


class BlobStore(Protocol):
    """Where blobs too large for a message live. A worker reads what it lacks and writes what it made."""

    @property
    def name(self) -> str:
        """Two stores of one name are one store."""
        ...

    def put_named(self, blobs: Mapping[str, bytes]) -> None:
        """Keep them, durably, under the digests that were taken of them. Raises BlobsUnavailable."""
        ...

    def get(self, digest: str) -> bytes:
        """Raises BlobLost, BlobsUnavailable."""
        ...


class Held(Struct, frozen=True):
    tensors: int
    nbytes: int


class JobTensors(Struct):
    """One job's tensors by digest, and what became of the promises that its units made."""

    tensors: "dict[str, torch.Tensor]" = field(default_factory=dict)
    kept: dict[str, TensorRef] = field(default_factory=dict)
    epoch: int = 0
    unstored: set[str] = field(default_factory=set)
    """Those that were derived here, and are nowhere else."""
    slabs: dict[str, CacheKey] = field(default_factory=dict)
    """Those that are in the cache of slabs instead, as long as the job needs them."""


class Resident:
    """The tensors of all jobs on this device. It belongs to the executor; others may ask `held` and `find`.

    What a job holds in the caches it lets go of with its tensors.
    """

    def __init__(self, blobs: BlobStore, device: str = "cpu", caches: Caches | None = None) -> None:
        self.device = device
        self.caches = caches or Caches()
        self._blobs = blobs
        self._jobs: dict[str, JobTensors] = {}

    def follow(self, job: str, epoch: int) -> None:
        """A unit under this epoch is to be run: one that comes late, from an engine that has lost the job, is not.

        It would forget what the units of the new owner read. Raises OutOfDate.
        """
        held = self._jobs.setdefault(job, JobTensors())
        if epoch < held.epoch:
            raise OutOfDate(job, epoch)
        held.epoch = epoch

    def admit(self, job: str, keep: Iterable[str], arrived: Mapping[str, bytes]) -> None:
        """Forget what the job no longer refers to and take in what came with the unit."""
        held = self._jobs.get(job, JobTensors())
        kept = {promise: held.kept[promise] for promise in keep if promise in held.kept}
        wanted = {*keep, *(ref.digest for ref in kept.values())}
        tensors = {digest: tensor for digest, tensor in held.tensors.items() if digest in wanted}
        tensors |= {digest: codec.decode(data, self.device) for digest, data in arrived.items()}
        slabs = {digest: key for digest, key in held.slabs.items() if digest in wanted}
        for digest in held.slabs.keys() - slabs:
            self.caches.let_go(SLAB_KV, held.slabs[digest], job)
        unstored = held.unstored & {*tensors, *slabs}
        self._jobs[job] = JobTensors(tensors, kept, held.epoch, unstored, slabs)

    def resolve(self, job: str, ref: TensorRef) -> TensorRef:
        """The tensor that a promise has become; any other reference stands for itself. Raises BrokenPromise."""
        if not is_promised(ref):
            return ref
        kept = self._jobs[job].kept if job in self._jobs else {}
        if ref.digest not in kept:
            raise BrokenPromise(ref.digest)
        return kept[ref.digest]

    def get(self, job: str, ref: TensorRef) -> "torch.Tensor":
        """Raises BlobLost if the tensor is neither here nor there, BlobsUnavailable."""
        held = self._jobs.setdefault(job, JobTensors())
        tensors = held.tensors
        if ref.digest in held.slabs:
            slab: torch.Tensor | None = self.caches.get(SLAB_KV, held.slabs[ref.digest], job)
            if slab is not None:
                return slab
        if ref.digest in tensors:
            tensors[ref.digest] = _moved(tensors[ref.digest], self.device)
        else:
            tensors[ref.digest] = codec.decode(self._blobs.get(ref.digest), self.device)
        return tensors[ref.digest]

    def read(self, job: str, refs: Mapping[str, TensorRef]) -> "dict[str, torch.Tensor]":
        """All of them, by name. Raises what `get` does."""
        return {name: self.get(job, ref) for name, ref in refs.items()}

    def put(self, job: str, ref: TensorRef, tensor: "torch.Tensor", promise: TensorRef | None = None) -> None:
        """Hold a tensor that a unit has made, as itself and as what the unit promised."""
        held = self._jobs.setdefault(job, JobTensors())
        if ref.digest in held.slabs:
            self.caches.put(SLAB_KV, held.slabs[ref.digest], tensor, tensor.nbytes, job)
        else:
            held.tensors[ref.digest] = tensor
        if promise is not None:
            held.kept[promise.digest] = ref

    def find(self, job: str, digest: str) -> "torch.Tensor | None":
        """A tensor of a job, if it is here and not in a cache."""
        held = self._jobs.get(job)
        return held.tensors.get(digest) if held is not None else None

    def digests(self, job: str) -> AbstractSet[str]:
        """What is here of a job."""
        held = self._jobs.setdefault(job, JobTensors())
        return held.tensors.keys() | held.slabs.keys()

    def slabs(self, job: str, keys: Mapping[str, CacheKey]) -> None:
        """The tensors with these digests, which are about to be put, go into the cache of slabs."""
        self._jobs.setdefault(job, JobTensors()).slabs.update(keys)

    def make_room(self, job: str) -> None:
        """All jobs but this one hold their tensors in host memory, each until it is read, and none in a cache."""
        for other, held in self._jobs.items():
            if other != job:
                self._take_out(other, held)
                held.tensors = {digest: _moved(tensor, "cpu") for digest, tensor in held.tensors.items()}

    def unstored(self, job: str) -> set[str]:
        """The tensors that this device made and left out of what is stored."""
        return self._jobs.setdefault(job, JobTensors()).unstored

    def _take_out(self, job: str, held: JobTensors) -> None:
        """Hold as tensors what the job has in the cache of slabs."""
        for digest, key in held.slabs.items():
            if (slab := self.caches.get(SLAB_KV, key, job)) is not None:
                held.tensors[digest] = slab
                self.caches.let_go(SLAB_KV, key, job)
        held.slabs.clear()

    def release(self, job: str, epoch: int | None = None) -> None:
        """Forget a job, but not what units under a later epoch hold: an engine that has lost it may say so late."""
        held = self._jobs.get(job)
        if epoch is not None and held is not None and held.epoch > epoch:
            return
        self._jobs.pop(job, None)
        self.caches.release(job)

    def clear(self) -> None:
        """All but the modules: they are what this worker has said that it is."""
        self._jobs.clear()
        self.caches.clear(but={WEIGHTS})

    def held(self) -> Held:
        """What two jobs share, such as the embedding of one prompt, counts once."""
        jobs, slabs = list(self._jobs.values()), self.caches.uses()[SLAB_KV]
        tensors = {id(tensor): tensor for job in jobs for tensor in list(job.tensors.values())}.values()
        return Held(len(tensors) + slabs.entries, sum(tensor.nbytes for tensor in tensors) + slabs.nbytes)


def _moved(tensor: "torch.Tensor", device: str) -> "torch.Tensor":
    """It at its home for this device, laid out as it is."""
    import torch

    home = codec.home(tensor.dtype, device)
    if str(tensor.device) == home:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=home).copy_(tensor)
