"""How the shapes model is trained: the codec first, then the text encoder and the transformer together.

Every batch is a pure function of the seed and the step, so a run that is stopped and resumed sees the same data.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from cards.shapes.model import CONFIG, Codec, TextEncoder, Transformer
from cards.shapes.vocabulary import tokenize
from training.shapes.codec import encode_clips, fit_decoder_step, fit_projection
from training.shapes.data import Scene, stream

WARMUP = 60


@dataclass(frozen=True)
class Cycle:
    """Warm-up to a share of the learning rate, constant, then linear to zero over the share `decay` of the steps."""

    steps: int
    peak: float = 1.0
    decay: float = 0.5

    def share(self, step: int) -> float:
        return self.peak * min(1.0, (step + 1) / WARMUP, (self.steps - step) / math.ceil(self.steps * self.decay))


@dataclass(frozen=True)
class Recipe:
    seed: int = 1
    batch: int = 64
    codec_batch: int = 32
    codec_steps: int = 1500
    codec_rate: float = 1.5e-3
    cycles: tuple[Cycle, ...] = (
        Cycle(2400),
        Cycle(480, peak=0.6, decay=1.0),
        Cycle(300, peak=0.5, decay=1.0),
        Cycle(400, peak=0.5, decay=1.0),
    )
    muon_rate: float = 3e-3
    adam_rate: float = 2e-3
    average: float = 0.996
    continued: float = 0.2  # share of clips whose first latent frames are given
    text_dropout: float = 0.1

    @property
    def steps(self) -> int:
        return sum(cycle.steps for cycle in self.cycles)

    def share(self, step: int) -> float:
        """Of the learning rate, at a step of the transformer."""
        for cycle in self.cycles:
            if step < cycle.steps:
                return cycle.share(step)
            step -= cycle.steps
        return 0.0


class Run:
    """All that training changes. `save` and `resume` are exact, up to the order of sums in the processor."""

    def __init__(self, recipe: Recipe) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.codec_step = self.step = 0
        self.codec = Codec()
        self.model = nn.ModuleDict({"text_encoder": TextEncoder(), "transformer": Transformer()})
        self.average = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.codec.decoder.project.requires_grad_(
            False
        )  # at the rate of the convolutions, noise would be all it learns
        drawing = [value for value in self.codec.decoder.parameters() if value.requires_grad]
        self.codec_optimizer = torch.optim.AdamW(drawing, betas=(0.9, 0.98), weight_decay=0.0)
        matrices = [value for name, value in self.model.named_parameters() if _is_block_matrix(name, value)]
        others = [value for name, value in self.model.named_parameters() if not _is_block_matrix(name, value)]
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "muon": torch.optim.Muon(matrices, momentum=0.95, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
            "adam": torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0),
        }

    def fit_codec(self) -> Iterator[tuple[int, float]]:
        """Step and loss, until the codec is done."""
        recipe = self.recipe
        if self.codec_step == 0:
            fit_projection(self.codec, seed=recipe.seed)
        while self.codec_step < recipe.codec_steps:
            _set_rate(self.codec_optimizer, recipe.codec_rate * Cycle(recipe.codec_steps).share(self.codec_step))
            rng = np.random.default_rng((recipe.seed, 1, self.codec_step))
            loss = fit_decoder_step(self.codec, self.codec_optimizer, rng, batch=recipe.codec_batch)
            self.codec_step += 1
            yield self.codec_step, loss

    def fit(self) -> Iterator[tuple[int, float]]:
        """Step and loss, until the transformer is done."""
        recipe = self.recipe
        while self.step < recipe.steps:
            share = recipe.share(self.step)
            _set_rate(self.optimizers["muon"], recipe.muon_rate * share)
            _set_rate(self.optimizers["adam"], recipe.adam_rate * share)
            loss = self._loss(np.random.default_rng((recipe.seed, 2, self.step)))
            for optimizer in self.optimizers.values():
                optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            for optimizer in self.optimizers.values():
                optimizer.step()
            self._follow()
            self.step += 1
            yield self.step, loss.item()

    def save(self, path: Path) -> None:
        temporary = path.with_suffix(".tmp")
        torch.save({name: part.state_dict() for name, part in self._parts().items()} | self._values(), temporary)
        os.replace(temporary, path)

    def resume(self, path: Path) -> None:
        saved = torch.load(path, weights_only=True)
        for name, part in self._parts().items():
            part.load_state_dict(saved[name])
        self.average, self.step, self.codec_step = saved["average"], saved["step"], saved["codec_step"]

    def export(self, path: Path) -> None:
        """The averaged weights in float16, a third of a percent of a weight at most from what was trained."""
        weights = self.average | {f"vae.{name}": value for name, value in self.codec.state_dict().items()}
        temporary = path.with_suffix(".tmp")
        save_file({name: value.half().contiguous() for name, value in weights.items()}, temporary)
        os.replace(temporary, path)

    def _loss(self, rng: np.random.Generator) -> Tensor:
        """Mean squared error of the velocity, over the latent frames that are not given."""
        recipe = self.recipe
        clips = list(islice(stream(int(rng.integers(2**62)), continued=recipe.continued), recipe.batch))
        phrases = ["" if rng.uniform() < recipe.text_dropout else phrase(rng, clip.scene) for clip in clips]
        tokens_BL = torch.tensor([tokenize(words)[0] for words in phrases])
        with torch.no_grad():
            clean_BCFHW = encode_clips(self.codec.encoder, clips)
        noise_BCFHW = torch.from_numpy(rng.standard_normal(clean_BCFHW.shape, np.float32))
        given_BF = torch.arange(CONFIG.latent_frames) < torch.tensor([[clip.given] for clip in clips])
        t_BF = torch.from_numpy(_times(rng, recipe.batch))[:, None].masked_fill(given_BF, 0.0)
        t_B1F11 = t_BF[:, None, :, None, None]
        noisy_BCFHW = (1 - t_B1F11) * clean_BCFHW + t_B1F11 * noise_BCFHW
        with torch.autocast("cpu", torch.bfloat16):
            velocity_BCFHW = self.model["transformer"](noisy_BCFHW, t_BF, self.model["text_encoder"](tokens_BL))
        error_BF: Tensor = (velocity_BCFHW - (noise_BCFHW - clean_BCFHW)).square().mean(dim=(1, 3, 4))
        return error_BF[~given_BF].mean()

    @torch.no_grad()
    def _follow(self) -> None:
        """The exponential moving average, with less memory in the beginning."""
        keep = min(self.recipe.average, (1 + self.step) / (10 + self.step))
        for name, value in self.model.state_dict().items():
            self.average[name].lerp_(value, 1 - keep)

    def _parts(self) -> dict[str, Any]:
        return {"codec": self.codec, "model": self.model, "codec_optimizer": self.codec_optimizer, **self.optimizers}

    def _values(self) -> dict[str, Any]:
        return {"average": self.average, "step": self.step, "codec_step": self.codec_step}


def phrase(rng: np.random.Generator, scene: Scene) -> str:
    """The caption, or now and then one with less in it."""
    motion = "" if rng.uniform() < 0.04 else scene.motion
    background = "" if rng.uniform() < 0.04 else f"on a {scene.background} background"
    words = f"a {scene.colour} {scene.shape} {motion} {background}".split()
    if rng.uniform() < 0.2:
        words = [word for word in words if word not in ("a", "on", "background") or rng.uniform() < 0.5]
    return " ".join(words)


def _times(rng: np.random.Generator, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Mostly logit-normal towards noise (Esser et al. 2024, arXiv:2403.03206), some uniform."""
    normal = 1 / (1 + np.exp(-rng.normal(0.6, 1.2, count)))
    return np.where(rng.uniform(size=count) < 0.15, rng.uniform(size=count), normal).astype(np.float32)


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _is_block_matrix(name: str, value: Tensor) -> bool:
    return ".blocks." in name and name.endswith(".weight") and value.ndim == 2
