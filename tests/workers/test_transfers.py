"""Transfers on real wires, between threads and between processes that are killed."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
import torch
import zmq
from msgspec.structs import replace

from cards import codec
from cards.wire import Batch, Fetch, Release, Shutdown, UnitId, WorkUnit
from tests.workers.units import unit
from workers import transfer
from workers.inbox import Command, Inbox
from workers.transfer import Ask, Part, Shared
from workers.transfer_fetcher import Brought
from workers.transfers import Transfers, Unnamed, read, this_place, transferring

HERE = this_place()
PATIENCE_S = 60.0
LARGE = 5 << 20

Tensors = Mapping[str, torch.Tensor]


def tensors(*nbytes: int) -> dict[str, torch.Tensor]:
    made = [torch.full((size,), index, dtype=torch.uint8) for index, size in enumerate(nbytes)]
    return {codec.encode(tensor)[0].digest: tensor for tensor in made}


def blobs(there: Tensors) -> dict[str, bytes]:
    return {digest: codec.encode(tensor)[1] for digest, tensor in there.items()}


@contextmanager
def holding(there: Tensors, **options: Any) -> Iterator[Transfers]:
    with transferring(lambda job, digest: there.get(digest), **options) as worker:
        yield worker


class Fetching:
    """Waits for what is brought."""

    def __init__(self, worker: Transfers) -> None:
        self._transfers = worker
        self.brought: list[Brought] = []
        self._news = threading.Semaphore(0)

    def ask(self, address: str, digests: Any, job: str = "j") -> None:
        wanted = replace(unit(job=job), fetch=Fetch(address, tuple(digests)))
        self._transfers.fetch(wanted, self._arrived)

    def next(self) -> Brought:
        assert self._news.acquire(timeout=PATIENCE_S)
        return self.brought[-1]

    def _arrived(self, brought: Brought) -> None:
        self.brought.append(brought)
        self._news.release()


def shared_memory() -> list[str]:
    """What this process has open of it, and what is there under names that could be ours: there are none."""
    links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    names = [name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "tensor", "transfers"))]
    return [link for link in links if "memfd" in link or "/dev/shm" in link] + names


def other_end(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.workers.other_end", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("address", ["", "tcp://127.0.0.1:*"])
@pytest.mark.parametrize("place", [HERE, "elsewhere"], ids=["here", "elsewhere"])
def test_tensors_come_to_the_bits_from_the_same_machine_and_from_another(address: str, place: str) -> None:
    there = tensors(LARGE, 100, 0)
    before = shared_memory()
    with holding(there, address=address, place=place) as holder, holding({}) as asker:
        fetching = Fetching(asker)
        fetching.ask(holder.address, there)

        assert fetching.next().blobs == blobs(there)
        fetched = asker.fetched
        assert (fetched.tensors, fetched.nbytes, fetched.failed) == (3, sum(map(len, blobs(there).values())), 0)
        assert fetched.seconds > 0
    assert shared_memory() == before


@pytest.mark.parametrize(("place", "said"), [(HERE, Shared), ("elsewhere", Part)], ids=["here", "elsewhere"])
def test_a_holder_says_where_the_bytes_are_on_one_machine_and_sends_them_to_another(place: str, said: type) -> None:
    there = tensors(100)
    [(digest, blob)] = blobs(there).items()
    with holding(there) as holder, zmq.Context() as context, context.socket(zmq.DEALER) as asker:
        asker.setsockopt(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        asker.connect(holder.address)
        asker.send(transfer.encode(Ask(1, "j", digest, until=LARGE, place=place)))
        head, *frames = asker.recv_multipart()
        message = transfer.decode_holder_message(head)

        assert isinstance(message, said)
        if isinstance(message, Shared):
            assert (frames, read(message)) == ([], blob)


def test_an_asker_reads_what_a_holder_on_its_machine_has_and_is_sent_nothing() -> None:
    [tensor] = tensors(LARGE).values()
    [(digest, blob)] = blobs(tensors(LARGE)).items()
    with holding({}) as asker, zmq.Context() as context, context.socket(zmq.ROUTER) as holder:
        holder.setsockopt(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        holder.bind("tcp://127.0.0.1:*")
        fetching = Fetching(asker)
        fetching.ask(holder.getsockopt_string(zmq.LAST_ENDPOINT), [digest])
        name, head = holder.recv_multipart()
        asked = transfer.decode_asker_message(head)
        assert isinstance(asked, Ask)
        assert asked.place == HERE
        with closing(Unnamed(codec.parts(tensor))) as memory:
            there = Shared(asked.number, memory.pid, memory.fd, len(blob))
            holder.send_multipart([name, transfer.encode(there)])

            assert fetching.next().blobs == {digest: blob}


def test_two_workers_give_each_other_what_they_hold_at_once() -> None:
    ours, theirs = tensors(LARGE, 1), tensors(0, 0, LARGE)
    with holding(ours) as us, holding(theirs) as them:
        here, over_there = Fetching(us), Fetching(them)
        here.ask(them.address, theirs)
        over_there.ask(us.address, ours)

        assert (here.next().blobs, over_there.next().blobs) == (blobs(theirs), blobs(ours))


@pytest.mark.parametrize("address", ["ipc:///nowhere/at/all", "tcp://127.0.0.1:9", "no address"])
def test_a_holder_that_is_not_there_brings_nothing_and_holds_up_no_other(address: str) -> None:
    there = tensors(100)
    with holding(there) as holder, holding({}, patience_s=0.5) as asker:
        fetching = Fetching(asker)
        fetching.ask(address, there, job="lost")
        fetching.ask(holder.address, there, job="well")

        assert fetching.next().unit.job == "well"
        assert fetching.next() == Brought(UnitId("lost", 1, 1, 1), {})


@pytest.mark.parametrize("place", [pytest.param(HERE, marks=pytest.mark.slow, id="here"), "elsewhere"])
def test_a_holder_that_is_killed_in_the_middle_brings_nothing_and_leaves_nothing(place: str) -> None:
    before = shared_memory()
    with holding({}, patience_s=0.5) as asker, other_end("holder", place) as holder:
        assert holder.stdout is not None
        fetching = Fetching(asker)
        fetching.ask(holder.stdout.readline().strip(), ["first", "second"])

        assert fetching.next().blobs == {}
        assert holder.wait(PATIENCE_S) == -signal.SIGKILL
        assert asker.fetched.failed == 2
    assert shared_memory() == before


@pytest.mark.parametrize("place", [HERE, "elsewhere"], ids=["here", "elsewhere"])
def test_an_asker_that_is_killed_in_the_middle_leaves_nothing(place: str) -> None:
    before = shared_memory()
    there = {name: torch.zeros(LARGE, dtype=torch.uint8) for name in ("first", "second")}
    with holding(there, place=HERE, patience_s=0.5) as holder, holding({}) as other:
        with other_end("asker", place, holder.address) as asker:
            assert asker.wait(PATIENCE_S) == -signal.SIGKILL
        fetching = Fetching(other)
        fetching.ask(holder.address, there)
        assert fetching.next().blobs == {}, "they are not what they are called"

        for _ in range(100):
            if shared_memory() == before:
                return
            threading.Event().wait(0.1)
        raise AssertionError(shared_memory())


def test_a_tensor_that_a_holder_cannot_copy_is_not_brought_and_others_are() -> None:
    there = tensors(100)

    def find(job: str, digest: str) -> torch.Tensor | None:
        if job == "lost":
            raise torch.OutOfMemoryError("no memory to copy it to")
        return there.get(digest)

    with transferring(find) as holder, holding({}) as asker:
        fetching = Fetching(asker)
        for job, brought in (("lost", {}), ("well", blobs(there))):
            fetching.ask(holder.address, there, job=job)
            assert fetching.next().blobs == brought
        assert asker.fetched.failed == 1


def test_transfers_that_have_ended_bring_nothing_at_once() -> None:
    with holding({}) as asker:
        pass
    fetching = Fetching(asker)
    fetching.ask("ipc://nowhere", ["d"])

    assert fetching.next().blobs == {}


def test_two_threads_that_find_transfers_ended_bring_each_unit_once() -> None:
    both = threading.Barrier(2)

    class Slow(dict[UnitId, Any]):
        """Each thread has seen that there is one before either takes it."""

        def popitem(self) -> Any:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.3)
            return super().popitem()

    with holding({}) as asker:
        pass
    found: list[str] = []
    asker._arrived = Slow({UnitId("lost", 1, 1, 1): lambda brought: found.append(brought.unit.job)})
    threads = [threading.Thread(target=lambda: found.append(_raised(asker._bring_nothing))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert sorted(found) == ["", "", "lost"]


def _raised(run: Callable[[], None]) -> str:
    try:
        run()
    except KeyError as error:
        return str(error)
    return ""


# -- between the link and the executor --------------------------------------------------------------------------------


def numbered(job: str, serial: int) -> WorkUnit:
    return replace(unit(job=job, inline=("a",)), id=UnitId(job, 1, 1, 1, serial))


def taken(inbox: Inbox) -> list[UnitId | None]:
    commands = iter(inbox.get_nowait, None)
    return [one.message.id if isinstance(one.message, WorkUnit) else None for one in commands]


def test_a_unit_whose_tensors_are_coming_holds_up_those_of_its_job_and_no_other() -> None:
    inbox, first, second, other = Inbox(), numbered("j", 1), numbered("j", 2), numbered("k", 3)
    inbox.put(Command(first, (b"a",)), coming=[first.id])
    inbox.put(Command(second, (b"a",)))
    inbox.put(Command(other, (b"a",)))
    assert taken(inbox) == [other.id]

    inbox.arrived(first.id, {"b": b"b", "c": b"c"})
    command = inbox.get()
    assert isinstance(command.message, WorkUnit)
    assert (command.message.id, command.message.inline) == (first.id, ("a", "b", "c"))
    assert list(command.frames) == [b"a", b"b", b"c"]
    assert taken(inbox) == [second.id]


def test_a_release_takes_a_unit_out_whose_tensors_are_coming() -> None:
    inbox, first, second = Inbox(), numbered("j", 1), numbered("j", 2)
    inbox.put(Command(first), coming=[first.id])
    inbox.put(Command(second))
    inbox.release(Release("j", 1))
    assert inbox.get().dropped == (first.id, second.id)

    inbox.arrived(first.id, {"b": b"b"})
    assert taken(inbox) == []


def test_a_shutdown_waits_for_no_tensors() -> None:
    inbox, unit = Inbox(), numbered("j", 1)
    inbox.put(Command(unit), coming=[unit.id])
    inbox.clear(Command(Shutdown()))

    assert taken(inbox) == [None]


def test_a_batch_waits_for_the_tensors_of_its_units_and_each_gets_its_own() -> None:
    inbox, first, second, behind = Inbox(), numbered("j", 1), numbered("k", 2), numbered("k", 3)
    inbox.put(Command(Batch((first, second)), (b"1", b"2")), coming=[first.id, second.id])
    inbox.put(Command(behind, (b"3",)))
    inbox.arrived(second.id, {"c": b"c"})
    assert inbox.get_nowait() is None

    inbox.arrived(first.id, {"b": b"b"})
    command = inbox.get()
    assert isinstance(command.message, Batch)
    assert [unit.inline for unit in command.message.units] == [("a", "b"), ("a", "c")]
    assert list(command.frames) == [b"1", b"b", b"2", b"c"]
    assert taken(inbox) == [behind.id]
