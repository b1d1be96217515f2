"""Memory that ran out, by whatever name the one who wanted it says so."""

import errno

NONE_LEFT = ("can't allocate memory", "Cannot allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What torch says where it has no error of its own for it: of host memory, of files it maps, of libraries on a GPU."""


def ran_out(error: BaseException) -> bool:
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error) for words in NONE_LEFT)
