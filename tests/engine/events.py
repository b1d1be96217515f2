"""One of each event, and what they are made of."""

import msgspec

from cards.loop import LoopState
from cards.request import RequestChanges, ResolvedRequest
from cards.wire import ArtifactRef, ModelIdentity, TensorRef
from engine.events import (
    CancelRequested,
    JobAdmitted,
    JobCancelled,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobForked,
    JobImported,
    JobMigrated,
    JobMovedAway,
    JobPaused,
    JobQuarantined,
    JobRecovered,
    JobReleased,
    JobResumed,
    JobRetried,
    JobRewound,
    JobSubmitted,
    JobTerminated,
    NodeCompleted,
    NodeStarted,
    NoticeGiven,
    NumericsChanged,
    QuarantineLifted,
    RequestChanged,
    Stage,
    Standing,
    StepCompleted,
    StepPinned,
    StepUnpinned,
    WorkerLost,
)
from engine.job import Place

REF = TensorRef("d", "float32", (1,), (1,), 4)

REQUEST = ResolvedRequest(
    model="toy",
    prompt="p",
    negative_prompt="",
    seed=1,
    steps=3,
    guidance=1.0,
    preview_every=0,
    priority=0,
    metadata={},
)
STATE = LoopState(loop="count", semantics="toy.count/1", step=1, steps=3, tensors={"x": REF}, scalars={"seed": 1})

SAMPLES: dict[type[JobEvent], JobEvent] = {
    type(event): event
    for event in (
        NoticeGiven(code="c", field="prompt", message="m"),
        JobAdmitted(engine="e"),
        JobRecovered(engine="e", node="count", step=1),
        JobReleased(engine="e"),
        NodeStarted(node="count", loop="count", semantics="s/1", steps=3),
        StepCompleted(
            node="count", step=0, kind="count", tensors={"x": REF}, artifacts=(ArtifactRef("a", "d", "text/plain", 1),)
        ),
        NodeCompleted(node="count", outputs={"x": REF}),
        NumericsChanged(fingerprint="f"),
        WorkerLost(worker="w", reason="r", blamed=True),
        CancelRequested(reason="r"),
        JobCancelled(),
        JobCompleted(),
        JobFailed(kind="error", message="m", node="count", step=1, attempt=1),
        JobPaused(reason="r"),
        JobResumed(),
        JobQuarantined(reason="r"),
        QuarantineLifted(),
        JobRetried(reason="r"),
        JobTerminated(reason="r"),
        JobForked(parent="p", at_step=2, changes=RequestChanges(guidance=2.0)),
        RequestChanged(
            request=REQUEST,
            route=(Stage(Place(index=0)), Stage(Place(index=1, step=1, steps=3, started=True), STATE)),
        ),
        JobRewound(
            to_step=2,
            standing=Standing(
                place=Place(index=1, step=1, steps=3, started=True),
                route=(),
                state=STATE,
                request=REQUEST,
                notices=(),
                outputs={"prepare.start": REF},
                artifacts={},
                fingerprint="f",
                exact=True,
            ),
        ),
        StepPinned(step=1),
        StepUnpinned(step=1),
        JobMigrated(pool="p"),
        JobImported(origin="o"),
        JobMovedAway(to="t"),
    )
}


def submitted(steps: int = 3) -> JobSubmitted:
    request = msgspec.structs.replace(REQUEST, steps=steps)
    return JobSubmitted(job="j", request=request, model=ModelIdentity("toy", "c", "w"), submitted_at=1.0)
