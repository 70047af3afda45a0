"""FP8 attention that proves itself.

>>> import numpy as np, eightfold
>>> q, k, v = (np.random.default_rng(i).standard_normal((1, 32, 2, 64), np.float32) for i in range(3))
>>> out = eightfold.attention(q, k, v, is_causal=True)
>>> out.shape, out.dtype
((1, 32, 2, 64), dtype('float32'))

Tensors are (batch, row, head, channel), or with ``tensor_layout="HND"`` (batch, head, row, channel): torch tensors on the CPU
or a CUDA device, numpy arrays, or anything with ``__dlpack__``. f32, f16 and bf16 are quantised on the way; FP8 comes with its
scales. Nothing is imported that was not imported before: torch is used where its tensors come in.
"""

from __future__ import annotations

from ._attention import ACCURACIES, INPUT_FORMATS, LAYOUTS, attention, sageattn
from ._check import Check, check
from ._eightfold import DeviceError, Unavailable, __version__
from ._machine import configure, doctor, explain, warmup
from ._paged import append_kv, merge, paged_attention
from ._sdpa import replace_sdpa

__all__ = [
    "ACCURACIES",
    "INPUT_FORMATS",
    "LAYOUTS",
    "Check",
    "DeviceError",
    "Unavailable",
    "__version__",
    "append_kv",
    "attention",
    "check",
    "configure",
    "doctor",
    "explain",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "merge",
    "paged_attention",
    "replace_sdpa",
    "sageattn",
    "warmup",
]

_FLASH = ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache")


def __getattr__(name: str):
    # These take torch tensors alone, so that they import torch.
    if name in _FLASH:
        from . import flash_attn

        return getattr(flash_attn, name)
    raise AttributeError(f"module 'eightfold' has no attribute {name!r}")
