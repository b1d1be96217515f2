"""NaN is found wherever it is and whatever floats are made of; nothing else is one."""

import pytest
import torch

from cards.finite import has_nan

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2])
@pytest.mark.parametrize("shape", [(1,), (1000,), (3, 5, 7)])
def test_a_nan_is_found_wherever_it_is(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    for place in (0, -1):
        tensor = torch.full(shape, -INF)
        tensor.view(-1)[place] = NAN

        assert has_nan(tensor.to(dtype))
        assert has_nan(tensor.nan_to_num(nan=NAN, neginf=1.0).to(dtype))
        assert has_nan(tensor.to(dtype).mT if len(shape) > 1 else tensor.to(dtype))


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(0), torch.tensor([INF, -INF]), torch.full((8,), -INF), torch.arange(3), torch.tensor([True])],
    ids=str,
)
def test_what_is_no_nan_is_none(tensor: torch.Tensor) -> None:
    assert not has_nan(tensor)
