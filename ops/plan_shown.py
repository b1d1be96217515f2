"""A job's plan as `engine models plan` shows it. Pure."""

from typing import Any

from cards.request import ResolvedRequest
from engine.plan import JobPlan, KindPlan, TensorPlan
from engine.scheduling.cost import CPU_FLOPS

TFLOPS = CPU_FLOPS / 1e12
"""What a device is taken to do in a second where nobody says it."""


def job(name: str, request: ResolvedRequest, plan: JobPlan, tflops: float | None) -> dict[str, Any]:
    """Bytes and seconds. What is predicted, and from what, is said in words; `tflops` None takes the prior."""
    rate = (tflops or TFLOPS) * 1e12
    return {
        "name": name,
        "size": request.size,
        "frames": request.frames,
        "steps": request.steps,
        "guidance": request.guidance,
        "weights_bytes": sum(plan.weights.values()),
        "stored_bytes": plan.stored_bytes,
        "peak_bytes": plan.peak_bytes,
        "seconds": plan.flops / rate,
        "tflops": tflops or TFLOPS,
        "basis": _basis(tflops),
        "components": [{"component": one, "resident_bytes": nbytes} for one, nbytes in plan.weights.items()],
        "loops": [_kind(kind, rate) for kind in plan.kinds],
        "tensors": [_tensor(tensor) for tensor in plan.tensors],
    }


def _basis(tflops: float | None) -> str:
    rate = "as given" if tflops else "a prior (two cores of a server CPU in float32): give your device's with --tflops"
    return (
        "stored are tensors alone, exactly: files such as video.mp4 come beside them. The peak is all weights in the "
        "model's precision and what the largest step holds, as predicted for one job. The seconds are those of "
        f"products, convolutions and attention alone, at a rate that is {rate}"
    )


def _kind(kind: KindPlan, rate: float) -> dict[str, Any]:
    return {
        "node": kind.node,
        "kind": kind.kind,
        "steps": kind.steps,
        "bytes_per_step": kind.step_bytes,
        "snapshots": kind.snapshots,
        "bytes_per_snapshot": kind.snapshot_bytes,
        "stored_bytes": kind.stored_bytes,
        "held_bytes": kind.held_bytes,
        "tflop_per_step": kind.step_flops / 1e12,
        "tflop": kind.flops / 1e12,
        "seconds": kind.flops / rate,
    }


def _tensor(tensor: TensorPlan) -> dict[str, Any]:
    return {
        "node": tensor.node,
        "tensor": tensor.tensor,
        "shape": tensor.shape,
        "dtype": tensor.dtype,
        "bytes": tensor.nbytes,
        "stored": tensor.stored,
        "stored_bytes": tensor.stored_bytes,
    }
