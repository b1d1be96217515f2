"""LoRAs (Hu et al. 2021): small changes to a model's weights that come with a request, stacked, each with a strength.

A file comes as the input `lora/<n>`, a tensor of its bytes, and its content is its name. A worker keeps the adapters of
the last few files beside the resident model, where they do nothing but within `Stack.on`; the model's own weights are
never written to. No torch outside the functions of a step.
"""

import json
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec import UNSET, Struct

from cards import codec
from cards.card import InputSpec, ModelCard
from cards.errors import BadLora, InvalidRequest
from cards.given import Given
from cards.wire import WorkPlan

if TYPE_CHECKING:
    from torch import Tensor

INPUT = "lora"
INPUTS = {INPUT: InputSpec(kind="lora", required=False)}
"""What a card that takes LoRAs says."""

MOST = 8
"""LoRAs of one request, and adapters that stay with a model when no step uses them."""

PREFIX = "transformer."
METADATA = "lora_adapter_metadata"
"""Where diffusers keeps the adapter's configuration in a file."""
TRAINED = ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "target_modules", "use_rslora", "use_dora", "lora_bias")
"""What of it says how the adapter acts; the rest is of its training."""

Convert: TypeAlias = "Callable[..., tuple[dict[str, Tensor], Any]]"
"""A pipeline's `lora_state_dict`: the formats that it knows, as that of diffusers."""


class Lora(Struct, frozen=True):
    """`digest` is that of the input's blob."""

    digest: str
    strength: float = 1.0


@runtime_checkable
class Adaptable(Protocol):
    """A family that can say which modules a LoRA may change, by name, with the shapes of their weights."""

    def modules(self) -> Mapping[str, tuple[int, ...]]: ...


# -- at submission -----------------------------------------------------------------------------------------------


def file(field: str, data: bytes) -> Given:
    """A safetensors file as uint8 (N,). Raises InvalidRequest."""
    import numpy as np

    _header(field, memoryview(data))
    return Given(*codec.encode_array(np.frombuffer(data, np.uint8)))


def check_strengths(loras: Sequence[Lora], card: ModelCard) -> None:
    """Raises InvalidRequest."""
    if loras and (card.inputs is UNSET or INPUT not in card.inputs):
        raise InvalidRequest("loras", f"{card.name} takes none; leave them out")
    if len(loras) > MOST:
        raise InvalidRequest("loras", f"are {len(loras)}; up to {MOST} are taken")
    for index, lora in enumerate(loras):
        if not math.isfinite(lora.strength):
            raise InvalidRequest(f"loras/{index}", f"strength {lora.strength} is no finite number")
        if lora.digest in {other.digest for other in loras[:index]}:
            raise InvalidRequest(f"loras/{index}", "is there twice; give it once, with the sum of the strengths")


def check_files(loras: Sequence[Lora], given: Mapping[str, Given], family: object) -> None:
    """The files that came are those that are asked for, and fit the model. Raises InvalidRequest."""
    came = {name: one.ref.digest for name, one in given.items() if name.startswith(f"{INPUT}/")}
    if came != {f"{INPUT}/{index}": lora.digest for index, lora in enumerate(loras)}:
        raise InvalidRequest("loras", f"do not go with the files that came: {', '.join(sorted(came)) or 'none'}")
    for index in range(len(loras)):
        data = memoryview(given[f"{INPUT}/{index}"].data)
        if data and isinstance(family, Adaptable):
            _check_fit(f"loras/{index}", _header(f"loras/{index}", _content(data)), family.modules())


def _check_fit(field: str, header: Mapping[str, tuple[int, ...]], modules: Mapping[str, tuple[int, ...]]) -> None:
    """Other formats than that of diffusers are the worker's to convert, and to check."""
    if not any(".lora" in key for key in header):
        raise InvalidRequest(field, f"holds no LoRA: its tensors are {_some(sorted(header))}")
    if not any(key.startswith(PREFIX) for key in header) and any(_foreign(key) for key in header):
        return
    if unknown := unfit(header, modules):
        raise InvalidRequest(field, f"fits no module of this model: {_some(unknown)}")
    if wrong := [key for key, shape in header.items() if not _same_size(key, shape, modules[_module(key)])]:
        raise InvalidRequest(field, f"is for a model of another size: {_some(wrong)}")
    if lone := _unpaired(header):
        raise InvalidRequest(field, f"has not both halves of one rank for {_some(lone)}")


def _foreign(key: str) -> bool:
    return key.startswith(("diffusion_model.", "lora_unet_"))


def _same_size(key: str, shape: tuple[int, ...], weight: tuple[int, ...]) -> bool:
    if len(shape) != 2 or len(weight) != 2:
        return True
    return shape[1] == weight[1] if ".lora_A" in key or ".down" in key else shape[0] == weight[0]


def _unpaired(header: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The modules that the halves do not go together for: A is (rank, inputs), B is (outputs, rank)."""
    ranks: dict[str, dict[str, int]] = {}
    for key, shape in header.items():
        if len(shape) > 1:
            half = "A" if ".lora_A" in key or ".down" in key else "B"
            ranks.setdefault(_module(key), {})[half] = shape[0] if half == "A" else shape[1]
    return sorted(module for module, of in ranks.items() if len(of) < 2 or of["A"] != of["B"])


def unfit(keys: Collection[str], modules: Collection[str]) -> list[str]:
    return sorted(key for key in keys if not key.startswith(PREFIX) or _module(key) not in modules)


def _module(key: str) -> str:
    return key.removeprefix(PREFIX).partition(".lora")[0]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


class _Tensor(Struct):
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _header(field: str, data: memoryview) -> dict[str, tuple[int, ...]]:
    """Shapes by name: a safetensors file is eight bytes of length, a JSON object, and the bytes that it speaks of."""
    length = int.from_bytes(data[:8], "little")
    try:
        entries = msgspec.json.decode(data[8 : 8 + length], type=dict[str, msgspec.Raw])
        tensors = {key: msgspec.json.decode(raw, type=_Tensor) for key, raw in entries.items() if key != "__metadata__"}
    except msgspec.MsgspecError as error:
        raise InvalidRequest(field, "is no safetensors file") from error
    if len(data) != 8 + length + max((tensor.data_offsets[1] for tensor in tensors.values()), default=0):
        raise InvalidRequest(field, "is a safetensors file that was cut off, or has more than it says")
    return {key: tensor.shape for key, tensor in tensors.items()}


def _content(blob: memoryview) -> memoryview:
    """The file in the blob of its tensor, which is a safetensors file around it."""
    return blob[8 + int.from_bytes(blob[:8], "little") :]


# -- in a loop and its steps -------------------------------------------------------------------------------------


def strengths(loras: Sequence[Lora]) -> dict[str, float]:
    """Scalars of a loop whose steps apply them, under the names of the inputs."""
    return {f"{INPUT}/{index}": lora.strength for index, lora in enumerate(loras)}


class Stack:
    """The LoRAs of a plan, in their order, for the forwards of its step. It is `cards.forward.Adapters`."""

    def __init__(self, files: "Mapping[str, Tensor]", strengths: Sequence[float], convert: Convert) -> None:
        """`files` by their digests."""
        self.key = tuple(zip(files, strengths, strict=True))
        self._files = files
        self._convert = convert

    @contextmanager
    def on(self, module: Any) -> Iterator[None]:
        """The model with them. Raises BadLora."""
        try:
            for digest, file in self._files.items():
                _ready(module, digest, file, self._convert)
            _forget_others(module, self._files)
            module.enable_lora()
            module.set_adapters([*self._files], [strength for _, strength in self.key])
            yield
        finally:
            module.set_adapters([], [])
            module.disable_lora()


def stack(plan: WorkPlan, reads: "Mapping[str, Tensor]", convert: Convert) -> Stack | None:
    """Those of the plan, if it has any."""
    names = [name for name in (f"{INPUT}/{index}" for index in range(MOST)) if name in plan.reads]
    files = {plan.reads[name].digest: reads[name] for name in names}
    return Stack(files, [float(plan.scalars[name]) for name in names], convert) if names else None


def _ready(model: Any, digest: str, file: "Tensor", convert: Convert) -> None:
    """Load its adapter, unless it is there. The last one used is the last of those that are forgotten."""
    known = getattr(model, "peft_config", {})
    if digest not in known:
        _load(model, digest, file.numpy().tobytes(), convert)
    else:
        known[digest] = known.pop(digest)


def _load(model: Any, digest: str, data: bytes, convert: Convert) -> None:
    import safetensors.torch
    import torch

    from cards import invariant

    with torch.inference_mode(mode=False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Already found a `peft_config`")  # several are what is wanted
        tensors, _ = convert(safetensors.torch.load(data), return_lora_metadata=True)
        if unknown := unfit(tensors, {name for name, _ in model.named_modules()}):
            raise BadLora(digest, f"fits no module of this model: {_some(unknown)}")
        model.load_lora_adapter(tensors, adapter_name=digest, metadata=_metadata(data), low_cpu_mem_usage=True)
    model.eval()  # an adapter comes with a dropout that is on
    invariant.adapted(model)


def _metadata(data: bytes) -> dict[str, Any] | None:
    header = msgspec.json.decode(data[8 : 8 + int.from_bytes(data[:8], "little")])
    raw = header.get("__metadata__", {}).get(METADATA)
    if not raw:
        return None
    return {key: value for key, value in json.loads(raw).items() if key.rpartition(".")[2] in TRAINED}


def _forget_others(model: Any, stack: Collection[str]) -> None:
    idle = [name for name in model.peft_config if name not in stack]
    if too_many := idle[:-MOST]:
        model.set_adapters([], [])
        model.delete_adapters(too_many)
