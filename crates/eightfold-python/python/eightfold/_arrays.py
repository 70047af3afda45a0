"""What is neither torch's nor numpy's, through DLPack: JAX, CuPy and others."""

from __future__ import annotations

import sys

import numpy as np

from . import _numpy

_CPU = (1, 3)  # DLPack's numbers of device types: the CPU, and pinned memory of it


def attention(q, k, v, *rest, **scoring):
    if all(isinstance(array, np.ndarray) for array in (q, k, v)):
        return _numpy.attention(q, k, v, *rest, **scoring)
    for name, array in zip("qkv", (q, k, v)):
        if not hasattr(array, "__dlpack__"):
            raise TypeError(
                f"{name}: {type(array).__name__} is no tensor; pass torch tensors, numpy arrays, or what has __dlpack__"
            )
    kinds = {type(array) for array in (q, k, v)}
    if len(kinds) > 1:
        names = ", ".join(sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds))
        raise TypeError(f"q, k and v are of several kinds ({names}); convert them to one")
    if all(array.__dlpack_device__()[0] in _CPU for array in (q, k, v)):
        back = _from_host(q)
        result = _numpy.attention(*(_on_host(array) for array in (q, k, v)), *rest, **scoring)
    else:
        back = _from_device(q)
        try:
            import torch
        except ImportError:
            raise TypeError("q: lies on a device, which needs torch; install torch, or copy it to the CPU") from None
        from . import _torch

        result = _torch.attention(*(torch.from_dlpack(array) for array in (q, k, v)), *rest, **scoring)
    return tuple(back(one) for one in result) if isinstance(result, tuple) else back(result)


def _on_host(array):
    """As numpy has it. numpy's own DLPack knows neither bf16 nor FP8, which other libraries show it by ml_dtypes."""
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError):
        return np.asarray(array)


def _from_host(array):
    """The way back of a result on the CPU: to the library of the arrays, on their device."""
    namespace = _namespace(array)
    if hasattr(namespace, "asarray") and hasattr(array, "device"):
        return lambda result: namespace.asarray(result, device=array.device)
    return getattr(namespace, "from_dlpack", lambda result: result)


def _from_device(array):
    return getattr(_namespace(array), "from_dlpack", lambda result: result)


def _namespace(array):
    """The module of the array's library; what it has no way for stays as it is."""
    root = type(array).__module__.split(".")[0]
    return sys.modules.get("jax.numpy" if root in ("jax", "jaxlib") else root)
