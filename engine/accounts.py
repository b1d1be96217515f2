"""What each job will take, and with it how its next step looks to the scheduler.

A job's account is opened when it is claimed. What its figures say is looked up when a step is lined up, so that it is
as true as it can be; the figures themselves are found once for each kind of step and device.
"""

import itertools
from collections.abc import Mapping

from msgspec.structs import replace

from cards import cache_key
from cards.card import ModelCard
from cards.errors import InvalidRequest
from cards.family import Family
from cards.registry import Registry
from cards.request import ResolvedRequest
from cards.roles import components_of, role_of, roles_of
from cards.wire import ModelIdentity, StepResult, WorkPlan
from engine.actor import JobActor
from engine.clock import Clock
from engine.errors import StoreTrouble
from engine.fleet import Fleet, Reserved, Seat
from engine.intake import Aside
from engine.job import Job
from engine.peers import Peers
from engine.scheduling import admission
from engine.scheduling.account import Account
from engine.scheduling.cost import CostModel, Priced, StepKind
from engine.scheduling.forecast import Forecast, Forecasts, policy_of, precision_of, shape_of, weights_bytes
from engine.scheduling.policy import Policy
from engine.scheduling.ready import Demand, Group, Ready
from store.errors import StoreError

ALONE = 3
"""A job that so many workers have died of runs by itself for good: it may be company that is deadly."""


class Accounts:
    def __init__(
        self, registry: Registry, fleet: Fleet, policy: Policy, clock: Clock, aside: Aside, peers: Peers
    ) -> None:
        self.costs = CostModel()
        self.forecasts = Forecasts()
        self._weights: dict[tuple[str, ...], Mapping[str, int]] = {}
        self._registry = registry
        self._fleet = fleet
        self._policy = policy
        self._clock = clock
        self._aside = aside
        self._peers = peers
        self._together: set[tuple[ModelIdentity, str, str]] = set()
        """Loops and kinds of steps that were seen to run with those of others."""
        self._order = itertools.count()
        self._last_batch = 0

    def weights_at(self, serves: tuple[str, ...]) -> Mapping[str, int]:
        """Bytes by model, on a worker that serves these roles."""
        if serves not in self._weights:
            self._weights[serves] = {
                name: weights_bytes(family.card, components_of(family.card, serves))
                for name, family in self._registry.items()
            }
        return self._weights[serves]

    async def open(self, actor: JobActor) -> None:
        """Before the first step of a job that was claimed is lined up."""
        job = actor.job
        forecast = await self.forecast(job.request, self._registry[job.model.name])
        submitted_at = self._clock.monotonic() - (self._clock.now() - job.submitted_at)
        within_s = job.request.deadline_s
        deadline = None if within_s is None else submitted_at + within_s
        actor.account = Account(submitted_at, deadline, forecast)

    async def forecast(self, request: ResolvedRequest, family: Family) -> Forecast:
        if (known := self.forecasts.known(request, family)) is not None:
            return known
        return await self._aside(lambda: self.forecasts.make(request, family))

    async def check(self, request: ResolvedRequest, family: Family, model: ModelIdentity) -> None:
        """Raises InvalidRequest for a job that no worker here could ever hold, and StoreTrouble.

        Where other engines have workers for the model it is taken in: theirs may be larger.
        """
        forecast = await self.forecast(request, family)
        if not forecast.kinds:
            return
        parts = [(role,) for role in roles_of(family.card)] if self._fleet.is_split else [()]
        demand = forecast.demand(min((self.weights_at(serves)[model.name] for serves in parts), default=0))
        lack = admission.lack(demand, [seat.hello for seat in self._fleet.serving(model)])
        if lack is None or await self._elsewhere(model):
            return
        field = "size" if request.size is not None else "frames" if request.frames is not None else "model"
        raise InvalidRequest(field, f"{lack}; ask for less, or start a worker with more memory")

    def ready(self, actor: JobActor, account: Account, now: float) -> Ready:
        """The step that comes after all that are out."""
        job, state = actor.job, actor.state
        plan = actor.out[-1].plan if actor.out else actor.plan
        assert state is not None
        assert plan is not None
        role = role_of(self._registry[job.model.name].card, plan.loop)
        priced = self.priced(actor, plan, self._fleet.seats.get(actor.home or "") or self._somewhere(job, role))
        figure, forecast = priced.figure, account.forecast
        left = max(1, state.steps - state.step - len(actor.out))
        resident = forecast.resident_bytes or sum([ref.nbytes for ref in state.tensors.values()])
        account.resident_bytes = resident
        account.left_s = left * figure.expected_s + self._later_s(actor, account, priced.kind)
        suspect = job.deaths > 0 or job.deaths_in_all >= ALONE
        together = plan.together and not suspect
        if together:
            self._together.add((job.model, plan.loop, plan.kind))
        if not actor.lined_up:
            account.since, account.order = now, next(self._order)
        ready = Ready(
            job=job.id,
            order=account.order,
            tenant=job.request.tenant,
            priority=job.request.priority,
            submitted_at=account.submitted_at,
            since=account.since,
            deadline=account.deadline,
            demand=Demand(
                figure.careful_s,
                resident,
                max(priced.peak_bytes, plan.resources.peak_bytes),
                self.weights_at((role,) if role is not None and self._fleet.is_split else ())[job.model.name],
                self._coming_bytes(job, account, role if self._fleet.is_split else None),
            ),
            step_s=figure.expected_s,
            left_s=account.left_s,
            served_s=actor.served_s,
            group=priced.group if together else None,
            joins=None if together or suspect else self._joins(job, account, priced.group),
            model=job.model,
            pool=job.pool,
            role=role,
            home=actor.home,
            bound=bool(actor.out),
            needs=priced.needs,
            adapters=priced.group.adapters,
            share=account.share,
        )
        share = self._policy.share(ready)
        if share == account.share:
            return ready
        account.share = share
        return replace(ready, share=share)

    def took(self, reserved: Reserved, result: StepResult, worker: str) -> None:
        """A step came back."""
        if (priced := reserved.priced) is None or reserved.batch == self._last_batch:
            return
        self._last_batch = reserved.batch  # its members come back one after the other, and this one speaks for all
        if result.loading_s:
            self.costs.left(worker, priced.kind.model)
        if result.error is not None or result.reused:
            return
        if result.batch == 1:
            priced.figure.took(result.seconds, worker)
        else:
            kind = replace(priced.kind, batch=result.batch)
            self.costs.figure(kind, result.batch * priced.figure.flops).took(
                result.batch_seconds, worker, priced.group.adapters
            )

    def priced(self, actor: JobActor, plan: WorkPlan, seat: Seat | None) -> Priced:
        """What is known of such steps there, or anywhere if there is no such worker."""
        assert actor.account is not None, "its steps are not lined up before"
        pool, device = (seat.hello.pool, seat.device) if seat is not None else ("", "")
        key = (plan.loop, plan.kind, pool, device)
        priced = actor.account.priced
        if (there := priced.get(key)) is None:
            there = priced[key] = self._price(actor.job, actor.account.forecast, plan, pool, device)
        return there

    def share_s(self, priced: Priced, count: int) -> float:
        """What each of so many such steps that are executed together is expected to take."""
        together = self.costs.timed(replace(priced.kind, batch=count)) if count > 1 else None
        return priced.figure.expected_s if together is None else together.mean_s / count

    async def _elsewhere(self, model: ModelIdentity) -> bool:
        try:
            return await self._peers.run(model)
        except StoreError as error:
            raise StoreTrouble(str(error)) from error

    def _price(self, job: Job, forecast: Forecast, plan: WorkPlan, pool: str, device: str) -> Priced:
        card = self._registry[job.model.name].card
        node = card.program.nodes[job.place.index].name
        foreseen = forecast.of(node, plan.kind)
        kind = _kind_of(job, card, plan.loop, plan.kind, pool, device)
        adapters = tuple((lora.digest, lora.strength) for lora in job.request.loras)
        return Priced(
            kind,
            self.costs.figure(kind, foreseen.step_flops if foreseen else 0),
            foreseen.activation_bytes if foreseen else 0,
            Group(job.model, plan.loop, plan.kind, kind.shape, adapters),
            cache_key.needs(self._registry[plan.instance].card, plan) if plan.instance in self._registry else (),
        )

    def _later_s(self, actor: JobActor, account: Account, here: StepKind) -> float:
        """What the nodes after this one are expected to take, as it was when this one began."""
        job, device = actor.job, here.device
        if not account.forecast.kinds:
            return 0.0
        if account.later[:2] != (job.place.index, device):
            card = self._registry[job.model.name].card
            loops = {node.name: node.loop for node in card.program.nodes[job.place.index + 1 :]}
            later_s = 0.0
            for each in account.forecast.kinds:
                if each.node in loops:
                    kind = _kind_of(job, card, loops[each.node], each.kind, here.pool, device)
                    later_s += each.steps * self.costs.figure(kind, each.step_flops).expected_s
            account.later = (job.place.index, device, later_s)
        return account.later[2]

    def _coming_bytes(self, job: Job, account: Account, role: str | None) -> int:
        """Of the steps from here on; with a role, of those that a worker of that role is given."""
        if account.coming_from != (job.place.index, role):
            card = self._registry[job.model.name].card
            nodes = card.program.nodes[job.place.index :]
            here = {node.name for node in nodes if role is None or role_of(card, node.loop) in (role, None)}
            account.coming_bytes, account.coming_from = account.forecast.peak_bytes(here), (job.place.index, role)
        return account.coming_bytes

    def _joins(self, job: Job, account: Account, here: Group) -> Group | None:
        """The group of the first steps of later nodes that are known to run with others."""
        if account.joins[:2] != (job.place.index, len(self._together)):
            nodes = self._registry[job.model.name].card.program.nodes[job.place.index + 1 :]
            kinds = [(node.loop, one.kind) for node in nodes for one in account.forecast.kinds if one.node == node.name]
            found = next((kind for kind in kinds if (job.model, *kind) in self._together), None)
            group = None if found is None else replace(here, loop=found[0], kind=found[1])
            account.joins = (job.place.index, len(self._together), group)
        return account.joins[2]

    def _somewhere(self, job: Job, role: str | None) -> Seat | None:
        return next(iter(self._fleet.serving(job.model, job.pool, role)), None)


def _kind_of(job: Job, card: ModelCard, loop: str, kind: str, pool: str, device: str) -> StepKind:
    return StepKind(
        pool=pool,
        device=device,
        model=job.model,
        loop=loop,
        kind=kind,
        shape=shape_of(job.request),
        precision=precision_of(card, loop),
        policy=policy_of(job.request),
    )
