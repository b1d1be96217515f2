"""A job's plan as `engine models plan` shows it. Pure."""

from typing import Any

from cards.request import ResolvedRequest
from ops.plan import TFLOPS, JobPlan, NodePlan, TensorPlan


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
        "seconds": sum(node.steps * node.flops for node in plan.nodes) / rate,
        "tflops": tflops or TFLOPS,
        "basis": _basis(tflops),
        "components": [{"component": one, "resident_bytes": nbytes} for one, nbytes in plan.weights.items()],
        "loops": [_node(node, rate) for node in plan.nodes],
        "tensors": [_tensor(tensor) for tensor in plan.tensors],
    }


def _basis(tflops: float | None) -> str:
    rate = "as given" if tflops else "a prior (two cores of a server CPU in float32): give your device's with --tflops"
    return f"peak and seconds are predictions, of products and convolutions alone, at a rate that is {rate}"


def _node(node: NodePlan, rate: float) -> dict[str, Any]:
    return {
        "node": node.node,
        "steps": node.steps,
        "bytes_per_step": node.step_bytes,
        "snapshots": node.snapshots,
        "bytes_per_snapshot": node.snapshot_bytes,
        "stored_bytes": node.stored_bytes,
        "peak_bytes": node.tensor_bytes + node.activations,
        "tflop_per_step": node.flops / 1e12,
        "seconds_per_step": node.flops / rate,
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
