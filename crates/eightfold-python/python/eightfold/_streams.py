"""A stream that the caller names."""

from __future__ import annotations

import sys


def entered(stream, q):
    """A context in which torch's current stream is this one, which must be of q's device."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(q, torch.Tensor) or q.device.type != "cuda":
        where = getattr(q, "device", "the CPU")
        raise ValueError(f"stream: is for tensors on a CUDA device, and q is on {where}; leave it out")
    device = getattr(stream, "device", None)
    if device is None or not hasattr(stream, "cuda_stream"):
        raise TypeError(f"stream: {type(stream).__name__} is no stream of torch; pass a torch.cuda.Stream or torch.cuda.ExternalStream")
    if torch.device(device).index != q.device.index:
        raise ValueError(f"stream: is of {device}, but q is on {q.device}; take a stream of the same device")
    return torch.cuda.stream(stream)
