"""Metrics for Prometheus: the engine's statistics as they are when asked, and how requests went."""

from collections.abc import Iterator, Mapping

from msgspec import structs
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cards.wire import CacheUse
from engine.client import Client
from engine.clock import Clock

METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
COUNTERS = frozenset({"steps_completed"})
HELP = {
    "workers": "Workers that have joined.",
    "active_jobs": "Jobs that the engine holds and drives.",
    "ready_steps": "Steps that wait for a worker.",
    "outstanding_units": "Units of work that are with workers.",
    "queued_units": "Units of work that wait at workers.",
    "free_credits": "Units that workers would take at once.",
    "reserved_bytes": "Memory that outstanding units have reserved.",
    "resident_tensors": "Tensors that workers hold.",
    "resident_bytes": "Bytes of the tensors that workers hold.",
    "steps_completed": "Steps completed since this engine started.",
    "draining": "1 while the engine is stopping.",
}

OF_CACHES = {
    "nbytes": "Bytes that the workers there are keep, by class.",
    "entries": "Entries that they keep.",
    "hits": "How often they had what was asked for.",
    "misses": "How often they had not.",
    "evicted": "Entries that they dropped to stay within their budgets.",
}


class EngineCollector(Collector):
    def __init__(self, client: Client) -> None:
        self._client = client

    def collect(self) -> Iterator[Metric]:
        for name, value in structs.asdict(self._client.statistics()).items():
            family = CounterMetricFamily if name in COUNTERS else GaugeMetricFamily
            yield family(f"keyframe_{name}", HELP[name], value=float(value))
        yield from _of_caches(self._client.caches())


def _of_caches(caches: Mapping[str, CacheUse]) -> Iterator[Metric]:
    """Gauges: a worker that leaves takes its counts along."""
    for name, text in OF_CACHES.items():
        family = GaugeMetricFamily(f"keyframe_cache_{name}", text, labels=("cache",))
        for cache, use in sorted(caches.items()):
            family.add_metric((cache,), float(getattr(use, name)))
        yield family


class Metrics:
    """One registry an app, so that two apps in one process do not share their numbers."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(client))
        self._clock = clock
        self._requests = Histogram(
            "keyframe_http_request_seconds",
            "Time from a request to the head of its response.",
            ("route", "method", "status"),
            registry=self.registry,
        )

    async def show(self, request: Request) -> Response:
        """Metrics in the Prometheus text formats."""
        encoder, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encoder(self.registry), headers={"content-type": media_type})

    def started(self) -> float:
        return self._clock.monotonic()

    def answered(self, scope: Scope, status: int, started: float) -> None:
        route = scope.get("route")
        template = route.path if isinstance(route, Route) else "unmatched"
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._requests.labels(template, method, str(status)).observe(self._clock.monotonic() - started)


class Measured:
    """Times every request by its route's template, so that ids in paths make no series of their own."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = self._metrics.started()
        answered = False

        async def send_measured(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                self._metrics.answered(scope, message["status"], started)
            await send(message)

        try:
            await self._app(scope, receive, send_measured)
        except Exception:
            if not answered:  # it will be, further out
                self._metrics.answered(scope, 500, started)
            raise
