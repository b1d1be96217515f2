"""The Wan-causal family: a self-forcing student in one checkpoint directory, registered with `loop=causal`."""

from collections.abc import Mapping

from cards import canvas
from cards.checkpoint import Checkpoint
from cards.errors import InvalidCard
from cards.family import Notice, Tensors, no_guidance
from cards.model import Model
from cards.parallel import PATCHES, branches_only
from cards.request import ResolvedRequest
from cards.single import OneCheckpoint
from cards.sizes import LoopSizes
from cards.tokens import TokenLimit
from cards.wan.card import TEXT_TOKENS, most_side
from cards.wan_causal.card import MOST_FRAMES, text_to_video
from cards.wan_causal.loops import loops
from cards.wan_causal.sizes import sizes
from cards.wan_causal.window import CHUNK

WINDOWS = ("-1", *map(str, range(CHUNK, MOST_FRAMES + 1)))
SINKS = tuple(map(str, range(MOST_FRAMES)))


class WanCausal(OneCheckpoint):
    """Options: `window` is local_attn_size, of which the first `sink` frames of all (sink_size) are a part.

    With -1 a clip is at most as long as the window of all frames; any other window slides on for as long as one likes.
    """

    steps = "cards.wan_causal.steps"

    def __init__(self, model: Model, checkpoint: Checkpoint) -> None:
        super().__init__(model, checkpoint)
        options = model.choose(loop=("causal", "bidirectional"), window=WINDOWS, sink=SINKS)
        window, sink = int(options["window"]), int(options["sink"])
        bounded, window = window != -1, MOST_FRAMES if window == -1 else window
        if sink + CHUNK > window:
            raise InvalidCard(model.name, "options.sink", f"{sink} and a chunk of {CHUNK} are more than {window}")
        self.card = text_to_video(model.name, checkpoint, self._precision, window, sink, bounded=bounded)
        self.loops = loops(self.card, window, sink)
        self._window, self._sink = window, sink
        self._tokens = TokenLimit(checkpoint.parts["tokenizer"].folder, TEXT_TOKENS)
        self._most_side = most_side(checkpoint)

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        canvas.check_sides(request, self.card.output, self._most_side)
        self._tokens.check("prompt", request.prompt)
        return no_guidance(request, "this model runs without guidance and never reads it")

    def sizes(self, request: ResolvedRequest) -> Mapping[str, LoopSizes]:
        return sizes(self.card, self._checkpoint, self._precision, request)

    def unshared(self, axis: str, degree: int) -> str:
        if axis == PATCHES:
            return "what its chunks attend to is of their own step: keys and values of the step before are others"
        return branches_only(axis, "it runs without guidance, and has one branch")

    def reference(self, request: ResolvedRequest, given: Tensors) -> Tensors:
        from cards.wan_causal import reference

        return reference.outputs(self._checkpoint, self._precision, self.card, self._window, self._sink, request)
