"""The Wan-causal family: a self-forcing student in one checkpoint directory, registered with `loop=causal`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cards.checkpoint import Checkpoint, digest
from cards.errors import InvalidCard
from cards.family import Components, Notice, StepBody
from cards.loop import Loop
from cards.model import Model
from cards.modules import Modules
from cards.request import ResolvedRequest
from cards.tokens import TokenLimit
from cards.wan.card import TEXT_TOKENS
from cards.wan_causal.card import MOST_FRAMES, text_to_video
from cards.wan_causal.loops import loops
from cards.wan_causal.window import CHUNK

if TYPE_CHECKING:
    import torch

WINDOWS = ("-1", *map(str, range(CHUNK, MOST_FRAMES + 1)))
SINKS = tuple(map(str, range(MOST_FRAMES)))


class WanCausal:
    """Options: `window` is local_attn_size, of which the first `sink` frames of all (sink_size) are a part.

    With -1 a clip is at most as long as the window of all frames; any other window slides on for as long as one likes.
    """

    def __init__(self, model: Model, checkpoint: Checkpoint) -> None:
        options = model.choose(loop=("causal", "bidirectional"), window=WINDOWS, sink=SINKS)
        window, sink = int(options["window"]), int(options["sink"])
        bounded, window = window != -1, MOST_FRAMES if window == -1 else window
        if sink + CHUNK > window:
            raise InvalidCard(model.name, "options.sink", f"{sink} and a chunk of {CHUNK} are more than {window}")
        precision = model.precision or checkpoint.precision
        self.card = text_to_video(model.name, checkpoint, precision, window, sink, bounded=bounded)
        self.loops: Mapping[str, Loop] = loops(self.card, window, sink)
        self._window, self._sink = window, sink
        self._model = model
        self._checkpoint = checkpoint
        self._precision = precision
        self._tokens = TokenLimit(checkpoint.parts["tokenizer"].folder, TEXT_TOKENS)

    def weights_digest(self) -> str:
        return digest(self._checkpoint.stamps(self._model.files))

    def notices(self, request: ResolvedRequest) -> tuple[Notice, ...]:
        self._tokens.check("prompt", request.prompt)
        if not request.negative_prompt:
            return ()
        return (Notice("ignored", "negative_prompt", "this model runs without guidance and never reads it"),)

    def load(self, device: str) -> Components:
        return Modules(self._checkpoint, self._precision, device)

    def bodies(self) -> Mapping[str, StepBody]:
        from cards.wan_causal import steps

        return steps.BODIES

    def reference(self, request: ResolvedRequest, given: "Mapping[str, torch.Tensor]") -> "Mapping[str, torch.Tensor]":
        from cards.wan_causal import reference

        return reference.outputs(self._checkpoint, self._precision, self.card, self._window, self._sink, request)
