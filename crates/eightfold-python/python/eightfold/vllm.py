"""A plugin for vLLM: ``vllm serve MODEL --attention-backend CUSTOM --kv-cache-dtype fp8``.

vLLM finds :func:`register` by the entry point ``vllm.general_plugins`` of this package. Decoding, prefill and both in one batch read vLLM's
paged FP8 cache where it lies, in any of its layouts, and new tokens are quantised into it, with the layer's scales. What is
not served (ALiBi, MLA, head dims other than 64, 96, 128, 192 and 256) vLLM is told when it chooses.

>>> import importlib.util
>>> if importlib.util.find_spec("vllm"):
...     import eightfold.vllm
...     eightfold.vllm.register()
"""

from __future__ import annotations

import warnings

__all__ = ["register"]

_BACKEND = "eightfold._vllm.EightfoldBackend"


def register():
    """Makes this vLLM's backend ``CUSTOM``, of which there is one: that of another plugin stays. May be called again."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    custom = AttentionBackendEnum.CUSTOM
    if custom.is_overridden() and custom.get_path() != _BACKEND:
        warnings.warn(f"eightfold: vLLM's backend CUSTOM is {custom.get_path()} already, and stays it; set VLLM_PLUGINS to load one of both", stacklevel=2)
        return
    register_backend(custom, _BACKEND)
