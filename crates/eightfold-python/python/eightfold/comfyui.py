"""For ComfyUI: in a custom node, ``eightfold.comfyui.register()``, or per model

``model_options["transformer_options"]["optimized_attention_override"] = eightfold.comfyui.override``.
"""

from __future__ import annotations

from ._attention import attention
from ._sdpa import Served, refusal

__all__ = ["attention_eightfold", "override", "register", "served"]

#: Calls that ran here, and how many did not, by reason.
served = Served()


def attention_eightfold(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False, fallback=None, **kwargs):
    """ComfyUI's attention function: (batch, row, heads · channels), or with ``skip_reshape`` (batch, head, row, channel).

    >>> import importlib.util
    >>> if importlib.util.find_spec("torch"):
    ...     import torch
    ...     from eightfold.comfyui import attention_eightfold
    ...     q = torch.randn(1, 32, 128)
    ...     assert attention_eightfold(q, q, q, heads=2).shape == (1, 32, 128)
    """
    if skip_reshape:
        query, key, value = q, k, v
    else:
        batch, _, width = q.shape
        query, key, value = (x.view(batch, -1, heads, width // heads).transpose(1, 2) for x in (q, k, v))
    reason = refusal(query, key, value, mask)
    if reason is not None:
        served.reasons[reason] += 1
        before = fallback or _sdpa
        return before(q, k, v, heads, mask=mask, attn_precision=attn_precision, skip_reshape=skip_reshape, skip_output_reshape=skip_output_reshape, **kwargs)
    served.calls += 1
    out = attention(query, key, value, tensor_layout="HND", sm_scale=kwargs.get("scale"))
    return out if skip_output_reshape else out.transpose(1, 2).reshape(out.shape[0], -1, out.shape[1] * out.shape[3])


def override(before, *args, **kwargs):
    """For ``transformer_options["optimized_attention_override"]``; ``before`` serves what this cannot."""
    kwargs.pop("transformer_options", None)
    return attention_eightfold(*args, fallback=before, **kwargs)


def register(name="eightfold"):
    """Makes it one of ComfyUI's attention functions."""
    from comfy.ldm.modules.attention import register_attention_function

    register_attention_function(name, attention_eightfold)


def _sdpa(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False, scale=None, **_):
    import torch

    if not skip_reshape:
        batch, _, width = q.shape
        q, k, v = (x.view(batch, -1, heads, width // heads).transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    return out if skip_output_reshape else out.transpose(1, 2).reshape(out.shape[0], -1, out.shape[1] * out.shape[3])
