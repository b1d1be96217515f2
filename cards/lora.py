"""LoRAs (Hu et al. 2021): small changes to a model's weights that come with a request, stacked, each with a strength.

A file comes as the input `lora/<n>`, a tensor of its bytes, and its content is its name. A worker keeps adapters beside
the resident model, where they do nothing but within `Stack.on`; the model's own weights are never written to. No torch
outside the functions of a step.
"""

import json
import math
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
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

    from cards.family import Components

INPUT = "lora"
INPUTS = {INPUT: InputSpec(kind="lora", required=False)}
"""What a card that takes LoRAs says."""

MOST = 8
"""LoRAs of one request."""

COMPONENT = "adapters"
"""Under this name a worker has its `Keeper` beside the modules."""

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


class Keeper(Protocol):
    """Decides which adapters stay with a module when no step uses them."""

    def uses(self, component: str, digest: str) -> bool:
        """Whether it keeps this one, which the step that runs is going to use."""
        ...

    def keep(self, component: str, digest: str, nbytes: int, forget: Callable[[], None]) -> None:
        """The step that runs has loaded it. `forget` unloads it, once no step uses it and there is no room for it."""
        ...


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
    """The LoRAs of a plan, in their order, for the forwards of its step. It is `cards.forward.Adapters`.

    Without a keeper its adapters are gone when the forward is done.
    """

    def __init__(
        self,
        component: str,
        files: "Mapping[str, Tensor]",
        strengths: Sequence[float],
        convert: Convert,
        keeper: Keeper | None = None,
    ) -> None:
        """`files` by their digests."""
        self.key = tuple(zip(files, strengths, strict=True))
        self._component = component
        self._files = files
        self._convert = convert
        self._keeper = keeper

    @contextmanager
    def on(self, module: Any) -> Iterator[None]:
        """The model with them. Raises BadLora."""
        try:
            for digest, file in self._files.items():
                self._ready(module, digest, file)
            module.enable_lora()
            module.set_adapters([*self._files], [strength for _, strength in self.key])
            yield
        finally:
            module.set_adapters([], [])
            module.disable_lora()
            if self._keeper is None:
                _forget(module, *self._files)

    def _ready(self, module: Any, digest: str, file: "Tensor") -> None:
        if digest not in _adapters(module):
            _load(module, digest, file.numpy().tobytes(), self._convert)
        if self._keeper is not None and not self._keeper.uses(self._component, digest):
            self._keeper.keep(self._component, digest, _nbytes(module, digest), partial(_forget, module, digest))


def stack(
    components: "Components", component: str, plan: WorkPlan, reads: "Mapping[str, Tensor]", convert: Convert
) -> Stack | None:
    """Those of the plan, if it has any, for this component."""
    names = [name for name in (f"{INPUT}/{index}" for index in range(MOST)) if name in plan.reads]
    if not names:
        return None
    files = {plan.reads[name].digest: reads[name] for name in names}
    strengths = [float(plan.scalars[name]) for name in names]
    return Stack(component, files, strengths, convert, components.get(COMPONENT))


def _adapters(model: Any) -> Collection[str]:
    there: Collection[str] = getattr(model, "peft_config", {})
    return there


def _nbytes(model: Any, digest: str) -> int:
    return sum(one.nbytes for name, one in model.named_parameters() if f".{digest}." in name)


def _forget(model: Any, *digests: str) -> None:
    if there := [digest for digest in digests if digest in _adapters(model)]:
        model.set_adapters([], [])
        model.delete_adapters(there)


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
