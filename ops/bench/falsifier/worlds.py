"""The worlds in which policies are compared: the one that we believe in, and what would be if we erred."""

from collections.abc import Mapping

from ops.bench.falsifier.costs import GENEROUS, NO_GAIN, World

BELIEVED = "as published"
BURSTS = "films in bursts, twelve at once"

WORLDS: Mapping[str, World] = {
    BELIEVED: World(),
    "steps take twice as long": World(slower=2.0),
    "steps take half as long": World(slower=0.5),
    "batches gain nothing": World(gains=NO_GAIN),
    "batches gain more, video too": World(gains=GENEROUS, batch_s=4.0),
    "predictions off by two": World(
        predicted={"picture": 2.0, "thumbnail": 0.5, "draft": 0.5, "clip": 2.0, "sound": 2.0, "film": 0.5}
    ),
    "films predicted at half": World(predicted={"film": 0.5}),
    "films predicted at double": World(predicted={"film": 2.0}),
    "films of a lower priority": World(priorities={"film": -1}),
    BURSTS: World(films_at_once=12),
    "no films": World(films=False),
    "within 1.5 times and 1 s": World(within=(1.5, 1.0)),
    "within 3 times and 2 s": World(within=(3.0, 2.0)),
    "a second placement at any time": World(eager=True),
}
