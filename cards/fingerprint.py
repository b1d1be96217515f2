"""The numerics fingerprint: all that may change an output's bits besides the model and its inputs."""

import platform
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class Gpu(Protocol):
    """What torch says of one."""

    name: str
    major: int
    minor: int


def numerics(device: str = "cpu", compiled_for: int | None = None) -> str:
    """One line that two processes share exactly when they compute the same bits for the same step.

    Found by measurement: rank count, process and thread count do not change bits on a CPU; the instruction set, the
    torch build and its BLAS do. A GPU draws no noise: there the host's CPU counts as well. With compiled blocks the
    number of threads that they are `compiled_for` does too: it is in their loops.
    """
    import torch

    parts: dict[str, object] = {
        "device": "cpu",
        "isa": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "mkl": torch.backends.mkl.is_available(),
        "onednn": torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
        "precision": "float32",
        "attention": "math",
    }
    if device != "cpu":
        parts |= of_gpu(torch.cuda.get_device_properties(device))
    if compiled_for is not None:
        parts["compiled"] = f"inductor/{compiled_for}"
    return " ".join(f"{name}={str(value).replace(' ', '_')}" for name, value in parts.items())


def of_gpu(gpu: Gpu) -> "Mapping[str, object]":
    """What of the line a GPU decides."""
    import torch

    cuda = torch.backends.cuda
    kernels = {
        "flash": cuda.flash_sdp_enabled(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
    }
    return {
        "device": gpu.name,
        "compute": f"{gpu.major}.{gpu.minor}",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "precision": "tf32" if cuda.matmul.allow_tf32 else "float32",
        "convolution": "tf32" if torch.backends.cudnn.allow_tf32 else "float32",
        "attention": "+".join(name for name, enabled in kernels.items() if enabled),
    }


def ran_on_cpu(fingerprint: str) -> bool:
    return "device=cpu" in fingerprint.split()
