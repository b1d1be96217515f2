"""The networks of the shapes model: a text encoder, a flow matching transformer, and a codec of eight-pixel patches.

Rule 1: forward is a pure function of its arguments. No randomness, no state between calls.
Rule 2: a linear layer sees a multiple of `ROWS` rows for every member of a batch, or of all of them together. A rest of
        a few rows goes to another kernel of MKL, and a batch no longer equals its members run alone.
Rule 3: the decoder takes one latent frame a call, because oneDNN picks its convolutions by batch shape.

Dimensions: B batch, C latent channels, F latent frames, H W latent height and width, L words, D width, N tokens,
T frames a latent frame, K attention heads, E head width. Flow matching: x_t = (1 - t) x_0 + t noise, and the velocity
is noise - x_0 (Lipman et al. 2023, arXiv:2210.02747; Liu et al. 2023, arXiv:2209.03003).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional

from cards.shapes.vocabulary import LENGTH, WORDS


@dataclass(frozen=True)
class Config:
    """Shapes, and the defaults that sampling was measured with."""

    channels: int = 32
    latent_frames: int = 6
    latent_size: int = 8
    frames_per_latent: int = 4
    pixels_per_latent: int = 8
    fps: int = 12

    width: int = 192
    depth: int = 6
    heads: int = 6
    text_depth: int = 2

    steps: int = 30
    guidance: float = 3.0
    shift: float = 3.0

    @property
    def latent_shape(self) -> tuple[int, int, int, int]:
        """C, F, H, W of one clip."""
        return self.channels, self.latent_frames, self.latent_size, self.latent_size


CONFIG = Config()

ROWS = 16

_MASKED = -1e4  # finite, so that an empty prompt has no NaN


class Attention(nn.Module):
    """Multi-head attention with normalised queries and keys (Dehghani et al. 2023, arXiv:2302.05442)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.query_norm = nn.LayerNorm(width // heads)
        self.key_norm = nn.LayerNorm(width // heads)

    def forward(
        self, x_BND: Tensor, context_BMD: Tensor, bias_B1NM: Tensor | None = None, rotation: Tensor | None = None
    ) -> Tensor:
        query_BKNE = self.query_norm(self._split(self.query(x_BND)))
        key_BMD, value_BMD = self.key_value(context_BMD).chunk(2, dim=-1)
        key_BKME, value_BKME = self.key_norm(self._split(key_BMD)), self._split(value_BMD)
        if rotation is not None:
            query_BKNE, key_BKME = _rotate(query_BKNE, rotation), _rotate(key_BKME, rotation)
        # Written out: the backward of scaled_dot_product_attention on a CPU takes half of a training step.
        score_BKNM = (query_BKNE * query_BKNE.shape[-1] ** -0.5) @ key_BKME.transpose(-1, -2)
        if bias_B1NM is not None:
            score_BKNM = score_BKNM + bias_B1NM
        mixed_BKNE = score_BKNM.softmax(dim=-1).to(value_BKME.dtype) @ value_BKME
        out: Tensor = self.out(mixed_BKNE.transpose(1, 2).flatten(2))
        return out

    def _split(self, x_BND: Tensor) -> Tensor:
        split: Tensor = x_BND.unflatten(-1, (self.heads, -1))
        return split.transpose(1, 2)


class Feedforward(nn.Module):
    """Two layers around a squared ReLU (So et al. 2021, arXiv:2109.08668)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(functional.relu(self.up(x)).square())
        return out


class TextBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.feedforward_norm = nn.LayerNorm(width)
        self.feedforward = Feedforward(width)

    def forward(self, x_BLD: Tensor, bias_B11L: Tensor) -> Tensor:
        normed_BLD = self.attention_norm(x_BLD)
        x_BLD = x_BLD + self.attention(normed_BLD, normed_BLD, bias_B11L)
        out: Tensor = x_BLD + self.feedforward(self.feedforward_norm(x_BLD))
        return out


class TextEncoder(nn.Module):
    """Word ids to one vector a word. The row of a pad is all zeros, so the mask travels inside the tensor."""

    def __init__(self, config: Config = CONFIG) -> None:
        super().__init__()
        self.words = nn.Embedding(len(WORDS), config.width)
        self.positions = nn.Parameter(torch.randn(LENGTH, config.width) * 0.5)
        self.blocks = nn.ModuleList(TextBlock(config.width, config.heads) for _ in range(config.text_depth))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, tokens_BL: Tensor) -> Tensor:
        present_BL = tokens_BL != 0
        bias_B11L = _bias(present_BL)
        x_BLD = self.words(tokens_BL) + self.positions
        for block in self.blocks:
            x_BLD = block(x_BLD, bias_B11L)
        normed_BLD: Tensor = self.norm(x_BLD)
        return (normed_BLD * present_BL[..., None]).float()


class Block(nn.Module):
    """Self-attention, cross-attention to the text, feedforward; modulated as in PixArt's adaLN-single."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(6, width))
        self.attention = Attention(width, heads)
        self.cross = Attention(width, heads)
        self.feedforward = Feedforward(width)

    def forward(
        self, x_BND: Tensor, modulation_B6ND: Tensor, text_BLD: Tensor, bias_B11L: Tensor, rotation: Tensor
    ) -> Tensor:
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = (modulation_B6ND + self.table[:, None]).unbind(1)
        normed_BND = _norm(x_BND) * (1 + scale_1) + shift_1
        x_BND = x_BND + gate_1 * self.attention(normed_BND, normed_BND, rotation=rotation)
        x_BND = x_BND + self.cross(_norm(x_BND), text_BLD, bias_B11L)
        out: Tensor = x_BND + gate_2 * self.feedforward(_norm(x_BND) * (1 + scale_2) + shift_2)
        return out


class Transformer(nn.Module):
    """The velocity of a noisy latent, with a time of its own for every latent frame (t = 0 is a given, clean frame).

    A diffusion transformer (Peebles & Xie 2023, arXiv:2212.09748) over patches of two by two latent pixels, with
    rotary positions in time, height and width, and PixArt-alpha's shared modulation (arXiv:2310.00426).
    """

    def __init__(self, config: Config = CONFIG) -> None:
        super().__init__()
        width, self.patches = config.width, config.latent_size // 2
        self.head_width = width // config.heads
        self.embed = nn.Linear(4 * config.channels, width)
        self.positions = nn.Parameter(torch.randn(self.patches**2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.pooled = nn.Linear(width, width)
        self.modulation = nn.Linear(width, 6 * width)
        self.no_text = nn.Parameter(torch.randn(width))
        self.blocks = nn.ModuleList(Block(width, config.heads) for _ in range(config.depth))
        self.last_modulation = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, 4 * config.channels)
        for block in self.blocks:
            assert isinstance(block, Block)
            for layer in (block.attention.out, block.cross.out, block.feedforward.down):
                nn.init.zeros_(layer.weight)
        for layer in (self.modulation, self.last_modulation, self.out):
            nn.init.zeros_(layer.weight)
        with torch.no_grad():
            self.modulation.bias.unflatten(0, (6, -1))[2::3] = 1.0  # gates start open, the projections at zero

    def forward(self, latent_BCFHW: Tensor, t_BF: Tensor, text_BLD: Tensor) -> Tensor:
        frames = latent_BCFHW.shape[2]
        condition_BFD = functional.silu(self._condition(t_BF, text_BLD))
        modulation_BFD = _rows(self.modulation, condition_BFD)
        modulation_B6ND = modulation_BFD.unflatten(-1, (6, -1)).transpose(1, 2).repeat_interleave(self.patches**2, 2)
        text_BLD, bias_B11L = self._context(text_BLD)
        rotation = _rotation(frames, self.patches, self.head_width).to(latent_BCFHW.device)

        x_BND = self.embed(self._patchify(latent_BCFHW)) + self.positions.repeat(frames, 1)
        for block in self.blocks:
            x_BND = block(x_BND, modulation_B6ND, text_BLD, bias_B11L, rotation)
        last_BND = _rows(self.last_modulation, condition_BFD).repeat_interleave(self.patches**2, 1)
        shift_BND, scale_BND = last_BND.chunk(2, dim=-1)
        out_BND = self.out(_norm(x_BND) * (1 + scale_BND) + shift_BND)
        return _velocity(latent_BCFHW, t_BF, self._unpatchify(out_BND, frames).float())

    def _condition(self, t_BF: Tensor, text_BLD: Tensor) -> Tensor:
        present_BL1 = text_BLD.any(dim=-1, keepdim=True)
        pooled_BD = text_BLD.sum(dim=1) / present_BL1.sum(dim=1).clamp(min=1)
        waves_BFD = _waves(t_BF, text_BLD.shape[-1])
        return _rows(self.time, waves_BFD) + _rows(self.pooled, pooled_BD[:, None].expand_as(waves_BFD))

    def _context(self, text_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """The text after one learned row, so that an empty prompt leaves something to attend to; filled up (rule 2)."""
        first_B1D = self.no_text.expand(text_BLD.shape[0], 1, -1)
        rest = -(1 + text_BLD.shape[1]) % ROWS
        context_BLD = functional.pad(torch.cat([first_B1D, text_BLD], dim=1), (0, 0, 0, rest))
        present_BL = functional.pad(text_BLD.any(dim=-1), (1, 0), value=True)
        return context_BLD, _bias(functional.pad(present_BL, (0, rest), value=False))

    def _patchify(self, latent_BCFHW: Tensor) -> Tensor:
        split: Tensor = latent_BCFHW.unflatten(4, (self.patches, 2)).unflatten(3, (self.patches, 2))  # B C F h 2 w 2
        return split.permute(0, 2, 3, 5, 1, 4, 6).flatten(4).flatten(1, 3)

    def _unpatchify(self, x_BND: Tensor, frames: int) -> Tensor:
        split: Tensor = x_BND.unflatten(1, (frames, self.patches, self.patches)).unflatten(-1, (-1, 2, 2))
        return split.permute(0, 4, 1, 2, 5, 3, 6).flatten(5).flatten(3, 4)  # from B F h w C 2 2


class Encoder(nn.Module):
    """Frames to latent frames: a linear projection of patches, 8 by 8 pixels and 4 frames each."""

    def __init__(self, config: Config = CONFIG) -> None:
        super().__init__()
        self.frames, self.pixels = config.frames_per_latent, config.pixels_per_latent
        self.project = nn.Linear(self.frames * self.pixels**2 * 3, config.channels)

    def forward(self, frames_BTHWC: Tensor) -> Tensor:
        """Frames in [0, 1], a multiple of `frames_per_latent` of them, to (B, C, F, H, W)."""
        latent_BFHWC: Tensor = self.project(self.patches(frames_BTHWC))
        return latent_BFHWC.permute(0, 4, 1, 2, 3)

    def patches(self, frames_BTHWC: Tensor) -> Tensor:
        """(B, F, H, W, values of a patch)."""
        split: Tensor = frames_BTHWC.unflatten(3, (-1, self.pixels)).unflatten(2, (-1, self.pixels))
        split = split.unflatten(1, (-1, self.frames))
        return split.permute(0, 1, 3, 5, 2, 4, 6, 7).flatten(4)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(functional.relu(self.first(functional.relu(x))))
        return out


class Decoder(nn.Module):
    """One latent frame to its frames: the projection turned round, and convolutions that draw clean outlines over it.

    It has seen noisy latents in training, so it also draws clean outlines from a latent that is a bit off.
    """

    def __init__(self, config: Config = CONFIG) -> None:
        super().__init__()
        self.frames, self.pixels = config.frames_per_latent, config.pixels_per_latent
        colours = 3 * self.frames
        self.project = nn.Linear(config.channels, self.pixels**2 * colours)
        self.coarse = nn.Sequential(
            nn.Conv2d(config.channels, 96, 3, padding=1),
            *(Residual(96) for _ in range(2)),
            nn.Conv2d(96, 4 * 64, 1),
            nn.PixelShuffle(2),
            *(Residual(64) for _ in range(2)),
            nn.Conv2d(64, 4 * 32, 1),
            nn.PixelShuffle(2),
        )
        self.fine = nn.Sequential(
            nn.Conv2d(32 + 4 * colours, 48, 3, padding=1),
            Residual(48),
            nn.ReLU(),
            nn.Conv2d(48, 4 * colours, 3, padding=1),
        )
        last = self.fine[-1]
        assert isinstance(last, nn.Conv2d)
        nn.init.zeros_(last.weight)

    def forward(self, latent_BC1HW: Tensor) -> Tensor:
        """(B, C, 1, H, W) to frames (B, T, height, width, 3) in [0, 1]."""
        return self.draw(latent_BC1HW).clamp(0, 1)

    def draw(self, latent_BC1HW: Tensor) -> Tensor:
        """The same before the clamp, which would stop a gradient."""
        latent_BCHW = latent_BC1HW.squeeze(2)
        patch_BHWP = self.project(latent_BCHW.permute(0, 2, 3, 1))
        split = patch_BHWP.unflatten(-1, (self.frames, self.pixels, self.pixels, 3))  # B H W T p p 3
        rough = split.permute(0, 3, 6, 1, 4, 2, 5).flatten(5, 6).flatten(3, 4).flatten(1, 2)  # B T*3 height width
        halves = functional.pixel_unshuffle(rough, 2)
        drawn = self.fine(torch.cat([self.coarse(latent_BCHW), halves], dim=1))
        pixels: Tensor = functional.pixel_shuffle(halves + drawn, 2).float().unflatten(1, (self.frames, 3))
        return pixels.permute(0, 1, 3, 4, 2)


class Codec(nn.Module):
    """Both directions between frames and latents."""

    def __init__(self, config: Config = CONFIG) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)


COMPONENTS: dict[str, Callable[[], nn.Module]] = {"text_encoder": TextEncoder, "transformer": Transformer, "vae": Codec}


def load(path: Path, component: str) -> nn.Module:
    """One of `COMPONENTS` from a safetensors file, in float32 and ready for inference."""
    module, prefix = COMPONENTS[component](), f"{component}."
    with safe_open(path, framework="pt") as file:
        state = {
            key.removeprefix(prefix): file.get_tensor(key).float()
            for key in file.keys()  # noqa: SIM118, it is no dict
            if key.startswith(prefix)
        }
    module.load_state_dict(state)
    return module.eval().requires_grad_(False)


def _norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:])


def _bias(present_BL: Tensor) -> Tensor:
    return torch.where(present_BL, 0.0, _MASKED)[:, None, None, :]


def _rows(layer: Callable[[Tensor], Tensor], x_BFD: Tensor) -> Tensor:
    """`layer` on the rows of x, filled up with rows of zeros (rule 2)."""
    rows = x_BFD.flatten(0, 1)
    padded = functional.pad(rows, (0, 0, 0, -rows.shape[0] % ROWS))
    out: Tensor = layer(padded)[: rows.shape[0]].unflatten(0, x_BFD.shape[:2])
    return out


def _waves(t_BF: Tensor, width: int) -> Tensor:
    """Sines and cosines of t at frequencies from 1 to 1000 (Vaswani et al. 2017)."""
    frequency = torch.exp(torch.linspace(0.0, math.log(1000.0), width // 2)).to(t_BF.device)
    angle = t_BF[..., None].float() * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def _rotation(frames: int, patches: int, head_width: int) -> Tensor:
    """Cosines and sines (2, N, head_width / 2): a quarter of the pairs turns with time, the rest with place."""
    pairs = head_width // 2
    by_time = pairs // 4
    by_space = (pairs - by_time) // 2
    grid = torch.meshgrid(torch.arange(frames), torch.arange(patches), torch.arange(patches), indexing="ij")
    angles = [
        axis.flatten()[:, None].float() * torch.exp(torch.linspace(0.0, -math.log(20.0), count))
        for axis, count in zip(grid, (by_time, by_space, by_space), strict=True)
    ]
    angle = torch.cat(angles, dim=1)
    return torch.stack([angle.cos(), angle.sin()])


def _rotate(x_BKNE: Tensor, rotation: Tensor) -> Tensor:
    cos, sin = rotation.to(x_BKNE.dtype)
    first, second = x_BKNE.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def _velocity(latent_BCFHW: Tensor, t_BF: Tensor, out_BCFHW: Tensor) -> Tensor:
    """The network's output has unit variance; the part of the velocity that is linear in the latent is known.

    It is the preconditioning of Karras et al. 2022 (arXiv:2206.00364), for data of unit variance on this path.
    """
    t = t_BF[:, None, :, None, None]
    power = (1 - t) ** 2 + t**2
    return (2 * t - 1) / power * latent_BCFHW - out_BCFHW / power.sqrt()
