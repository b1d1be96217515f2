"""Memory that ran out, by whatever name the one who wanted it says so."""

NONE_LEFT = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What torch says where it has no error of its own for it: of host memory, and of some libraries on a GPU."""


def ran_out(error: BaseException) -> bool:
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in NONE_LEFT)
