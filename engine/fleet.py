"""The workers as the engine sees them: who is there, what each is doing, and what each has room for. Pure.

What a worker has reserved is derived from the units that are with it, so nothing can leak: a unit that is gone, for
whatever reason, has given everything back.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from math import inf

from msgspec import Struct, field
from msgspec.structs import replace

from cards.wire import Heartbeat, Hello, ModelIdentity, UnitId
from engine.scheduling import switching
from engine.scheduling.account import Account
from engine.scheduling.admission import Room
from engine.scheduling.cost import Priced
from engine.scheduling.ready import Demand, Modules
from engine.scheduling.switching import Device, Wish

SHARED_CACHES = ("feature", "adapter")
"""What is in these caches of a worker belongs to no job."""


class Reserved(Struct, frozen=True, kw_only=True):
    """What a unit that is with a worker takes of it. Units of one `batch` are executed together."""

    batch: int
    model: str
    share: str = ""
    demand: Demand = Demand()
    charged_s: float = 0.0
    charged_at: float = 0.0
    """What its share was charged when it was placed."""
    expected_s: float = 0.0
    priced: Priced | None = None
    """What is known of its steps, where that is worth learning."""
    needs: tuple[str, ...] = ()
    """What it is to have loaded."""
    alone: bool = True
    """No other is executed with it."""
    fetches: bool = False
    """Its tensors come from another worker."""


class AtHome(Struct):
    """The jobs whose tensors a worker holds: their accounts, how many there are of each share, their models, their
    bytes, and the largest peak that one of their steps will have.
    """

    accounts: list[Account] = field(default_factory=list)
    shares: dict[str, int] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)
    nbytes: int = 0
    coming_bytes: int = 0

    def add(self, account: Account, model: str) -> None:
        self.accounts.append(account)
        self.shares[account.share] = self.shares.get(account.share, 0) + 1
        self.models.add(model)
        self.nbytes += account.resident_bytes
        self.coming_bytes = max(self.coming_bytes, account.coming_bytes)


class Seat(Struct, kw_only=True):
    """One worker. `outstanding` is in the order of sending, which is the order of execution.

    `sent` and `received` count the messages since it joined, other than heartbeats; `mark` is what `sent` was at some
    time and the worker has not yet said to have received.
    """

    hello: Hello
    heard_at: float
    beat: Heartbeat | None = None
    sent: int = 0
    received: int = 0
    mark: tuple[int, float] = (0, 0.0)
    outstanding: dict[UnitId, Reserved] = field(default_factory=dict)
    reachable: bool = True
    """Whether the last unit for it could leave. If not it gets no more: it is about to be lost, one way or another."""
    draining: bool = False
    """It gets no more work, and is told to leave once it has none."""
    dismissed: bool = False
    """It has been told."""

    began_at: float = 0.0
    """When it began with what it is at, as far as is known."""
    device: str = ""
    """What kind it is: steps take as long on another one of this kind."""
    loaded: Device | None = None
    """What it said to have loaded, if that is not all that it could."""
    cached_bytes: int = 0
    """What it said to keep for whoever may need it again, weights aside."""
    turn_at: float = 0.0
    """When that changed."""
    last: str = ""
    """The job whose unit was sent to it last, and what that is evaluated with."""
    modules: Modules | None = None

    def __post_init__(self) -> None:
        self.device = f"{self.hello.fingerprint} ranks={self.hello.ranks}"

    @property
    def worker(self) -> str:
        return self.hello.worker

    @property
    def placements(self) -> int:
        """What is with it, a batch counting as one."""
        return len({reserved.batch for reserved in self.outstanding.values()})

    @property
    def free_credits(self) -> int:
        return self.hello.credits - self.placements

    @property
    def reserved_bytes(self) -> int:
        return sum(reserved.demand.peak_bytes for reserved in self.outstanding.values())

    @property
    def running(self) -> tuple[UnitId, ...]:
        """What it executes: what it has said so of and not yet answered, or else what was sent to it first.

        It says so when it begins what it fetched. Until then others overtake that, but for later steps of its jobs.
        """
        said = self.beat.running if self.beat is not None else ()
        if heard := tuple(unit for unit in said if unit in self.outstanding):
            return heard
        batches = [tuple(units) for _, units in groupby(self.outstanding, lambda unit: self.outstanding[unit].batch)]
        wait: set[str] = set()
        for units in batches:
            if not any(self.outstanding[unit].fetches or unit.job in wait for unit in units):
                return units
            wait.update(unit.job for unit in units)
        return batches[0] if batches else ()

    @property
    def weights_bytes(self) -> float:
        """How much of its weights is loaded at once."""
        return inf if self.beat is None or self.beat.weights_bytes is None else self.beat.weights_bytes

    def serves(self, model: ModelIdentity, role: str | None = None) -> bool:
        return model in self.hello.models and (role is None or not self.hello.serves or role in self.hello.serves)

    def hears(self, beat: Heartbeat, now: float) -> None:
        if self.beat is None or {*self.beat.resident} != {*beat.resident}:
            self.turn_at = now
        self.beat, self.loaded = beat, None
        self.cached_bytes = sum(beat.caches[name].nbytes for name in SHARED_CACHES if name in beat.caches)
        if len(beat.resident) < len(beat.weights):
            self.loaded = Device(
                resident=beat.resident, weights=beat.weights, began=self.turn_at, room_bytes=self.weights_bytes
            )

    def soon_loaded(self, now: float) -> Device | None:
        """What will be, once what is with it has been done; None for all."""
        if self.loaded is None:
            return None
        device = replace(self.loaded, last=self.last)
        for unit, reserved in self.outstanding.items():
            device = switching.after(device, Wish(reserved.model, reserved.needs, now, job=unit.job), now)
        return device

    def loading_s(self, job: str, needs: tuple[str, ...], now: float) -> float:
        """What loading would take for one more unit."""
        if (device := self.soon_loaded(now)) is None:
            return 0.0
        return switching.loading_s(device, switching.absent(device, Wish("", needs, now, job=job)))

    def room(self, home: AtHome, weights: Mapping[str, int], jumbo_s: float, now: float) -> Room:
        """What it has left to give. Weights are there for as long as a job or a unit of their model is.

        Of the jobs whose tensors are on their way the first counts as not running here: others may meanwhile.
        """
        models = home.models.copy()
        placements, waiting, batch, peaks, left_s, begun_s, jumbo = 0, 0, 0, 0, 0.0, 0.0, False
        coming, waits = "", False
        for unit, reserved in self.outstanding.items():  # once for all: this is asked for at every step
            demand = reserved.demand
            if reserved.batch != batch:  # units of one are beside each other
                placements, batch = placements + 1, reserved.batch
                coming = coming or (unit.job if reserved.fetches else "")
                waits = unit.job == coming
                waiting += waits
            if not waits:
                left_s += reserved.expected_s
                if placements - waiting == 1:
                    begun_s += reserved.expected_s
            if reserved.model not in models:
                models.add(reserved.model)
            if demand.seconds > jumbo_s:
                jumbo = True
            peaks += demand.peak_bytes
        in_use = sum([weights[model] for model in models])
        held = home.nbytes + self.cached_bytes + min(in_use, self.weights_bytes)
        return Room(
            worker=self.worker,
            pool=self.hello.pool,
            models=self.hello.models,
            roles=self.hello.serves,
            draining=self.draining or not self.reachable,
            credits=self.hello.credits - placements,
            outstanding=placements - waiting,
            coming=waiting > 0,
            queued_s=left_s - min(begun_s, now - self.began_at),
            memory_bytes=self.hello.memory_bytes,
            free_bytes=self.hello.memory_bytes - held - max(peaks, home.coming_bytes),
            peak_bytes=peaks,
            coming_bytes=home.coming_bytes,
            at_home=home.accounts,
            jobs=home.shares.copy(),
            in_use=models,
            weights_left=max(0, self.weights_bytes - in_use),
            device=self.soon_loaded(now),
            modules=self.modules,
            jumbo=jumbo,
        )


class Fleet:
    """`silent_s` without a word, and a worker's hold on its work has run out."""

    def __init__(self, silent_s: float) -> None:
        self.silent_s = silent_s
        self.seats: dict[str, Seat] = {}

    def join(self, hello: Hello, now: float) -> Seat | None:
        """Take a worker in. Returns the seat it had before, if it had one: what was with it then is lost."""
        before = self.seats.pop(hello.worker, None)
        self.seats[hello.worker] = Seat(hello=hello, heard_at=now, mark=(0, now))
        return before

    def heard(self, worker: str, now: float, beat: Heartbeat | None = None) -> bool:
        """Whether this worker is known; a stranger must introduce itself."""
        seat = self.seats.get(worker)
        if seat is None:
            return False
        seat.heard_at = now
        seat.received += beat is None
        if beat is not None:
            seat.hears(beat, now)
        return True

    def sending(self, worker: str) -> None:
        """A message leaves for a worker."""
        if seat := self.seats.get(worker):
            seat.sent += 1

    def missed(self, worker: str, beat: Heartbeat, now: float) -> bool:
        """Whether a message from this worker never came, or one to it has not come in all of `silent_s`.

        Nor does it have all that it should where it has more than it was sent: what an engine sent that is gone came
        late, and stands in the count for what was lost.
        """
        seat = self.seats[worker]
        if beat.sent is None or beat.received is None:
            return False
        if beat.received >= seat.mark[0]:
            seat.mark = (seat.sent, now)
        if beat.sent > seat.received or beat.received > seat.sent:
            return True
        return now - seat.mark[1] > self.silent_s

    def leave(self, worker: str) -> Seat | None:
        return self.seats.pop(worker, None)

    def silent(self, now: float) -> list[Seat]:
        return [seat for seat in self.seats.values() if now - seat.heard_at > self.silent_s]

    def answered(self, worker: str, unit: UnitId, now: float) -> Reserved | None:
        """Take a unit off a worker. None if it was not, or no longer, with it."""
        if (seat := self.seats.get(worker)) is None:
            return None
        seat.began_at = now
        return seat.outstanding.pop(unit, None)

    def at_it(self, worker: str, batch: int) -> bool:
        """Whether a worker still has units of this batch."""
        seat = self.seats.get(worker)
        return seat is not None and any(reserved.batch == batch for reserved in seat.outstanding.values())

    def dropped(self, worker: str, units: Iterable[UnitId]) -> list[Reserved]:
        """A worker did not run these and will not; one that it was running answers for itself. What they took."""
        there = self.seats[worker].outstanding if worker in self.seats else {}
        return [there.pop(unit) for unit in units if unit in there]

    def serving(self, model: ModelIdentity, pool: str | None = None, role: str | None = None) -> list[Seat]:
        """The seats that take work for a model, in this pool and of loops of this role if they are named."""
        here = [seat for seat in self.seats.values() if pool in (None, seat.hello.pool)]
        return [seat for seat in here if seat.serves(model, role) and seat.reachable and not seat.draining]

    @property
    def is_split(self) -> bool:
        """Whether there are workers that do not serve everything."""
        return any(seat.hello.serves for seat in self.seats.values())

    @property
    def least_bytes(self) -> float:
        """What each worker has at least."""
        return min((seat.hello.memory_bytes for seat in self.seats.values()), default=inf)

    def drained(self) -> list[Seat]:
        """Those that were to leave and have nothing left to do."""
        return [seat for seat in self.seats.values() if seat.draining and not (seat.outstanding or seat.dismissed)]
