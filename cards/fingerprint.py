"""The numerics fingerprint: all that may change an output's bits besides the model and its inputs."""

import platform


def numerics() -> str:
    """One line that two processes share exactly when they compute the same bits for the same step.

    Found by measurement: rank count, process and thread count do not change bits on a CPU; the instruction set, the
    torch build and its BLAS do.
    """
    import torch

    parts = {
        "device": "cpu",
        "isa": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "mkl": torch.backends.mkl.is_available(),
        "onednn": torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
        "precision": "float32",
        "attention": "math",
    }
    return " ".join(f"{name}={str(value).replace(' ', '_')}" for name, value in parts.items())
