"""One forward of WanTransformer3DModel, whole or in the parts of its own `forward`."""

from typing import Any

import torch
from torch import Tensor

from cards.forward import OUTPUT, Forward


def weight_of(transformer: Any) -> Tensor:
    """One that has the module's type and place: that finds them by a walk through itself, in milliseconds."""
    weight: Tensor = transformer.patch_embedding.weight
    return weight


class WanForward:
    """Its adapters are on. One timestep a sample."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._transformer = forward.module
        self._inputs = forward.rows

    def whole(self) -> Tensor:
        return self._forward.call(self._inputs)[OUTPUT]

    def modulated(self) -> Tensor:
        """What shifts, scales and gates every block: (B, 6 D)."""
        modulation: Tensor = self._conditions()[1]
        return modulation

    def enter(self) -> Tensor:
        model = self._transformer
        self._temb_BD, modulation, text, image = self._conditions()
        self._modulation_B6D = modulation.unflatten(1, (6, -1))
        self._text_BLD = text if image is None else torch.cat([image, text], dim=1)
        self._rotary = model.rope(self._inputs["hidden_states"])
        hidden: Tensor = model.patch_embedding(self._inputs["hidden_states"]).flatten(2).transpose(1, 2).contiguous()
        return hidden

    def head(self, hidden_BLD: Tensor) -> Tensor:
        return self._run(self._transformer.blocks[:1], hidden_BLD)

    def tail(self, hidden_BLD: Tensor) -> Tensor:
        return self._run(self._transformer.blocks[1:], hidden_BLD)

    def leave(self, hidden_BLD: Tensor) -> Tensor:
        model = self._transformer
        shift, scale = (model.scale_shift_table + self._temb_BD.unsqueeze(1)).chunk(2, dim=1)
        hidden_BLD = (model.norm_out(hidden_BLD.float()) * (1 + scale) + shift).type_as(hidden_BLD)
        latent = self._inputs["hidden_states"]
        patch = model.config.patch_size
        grid = [size // side for size, side in zip(latent.shape[2:], patch, strict=True)]
        patches: Tensor = model.proj_out(hidden_BLD).reshape(len(latent), *grid, *patch, -1)
        return patches.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(2, 3)

    def _conditions(self) -> Any:
        inputs = self._inputs
        return self._transformer.condition_embedder(
            inputs["timestep"], inputs["encoder_hidden_states"], inputs.get("encoder_hidden_states_image")
        )

    def _run(self, blocks: Any, hidden_BLD: Tensor) -> Tensor:
        for block in blocks:
            hidden_BLD = block(hidden_BLD, self._text_BLD, self._modulation_B6D, self._rotary)
        return hidden_BLD
