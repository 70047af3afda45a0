"""For diffusers: its native backend runs here where it can.

>>> import importlib.util
>>> if importlib.util.find_spec("diffusers"):
...     import eightfold.diffusers
...     eightfold.diffusers.register()   # then model.set_attention_backend("native"), which is the default

diffusers has no registry for others: the function of its backend ``"native"`` is replaced, and called for what cannot be
served.
"""

from __future__ import annotations

from ._attention import attention
from ._sdpa import Served, refusal

__all__ = ["register", "served", "wrap"]

#: Calls that ran here, and how many did not, by reason.
served = Served()


def wrap(before, *, accuracy="fast", centre_keys=True, input_format="auto"):
    """A backend function of diffusers, (batch, row, head, channel), that passes on to another what it cannot serve."""

    def eightfold_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, return_lse=False, _parallel_config=None, **kwargs):
        by_heads = (x.transpose(1, 2) for x in (query, key, value))
        reason = "parallel" if _parallel_config is not None else refusal(
            *by_heads, attn_mask, dropout_p, is_causal, enable_gqa, accuracy=accuracy, input_format=input_format
        )
        if reason is not None:
            served.reasons[reason] += 1
            return before(
                query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa,
                return_lse=return_lse, _parallel_config=_parallel_config, **kwargs,
            )  # fmt: skip
        served.calls += 1
        return attention(
            query, key, value, tensor_layout="NHD", is_causal=is_causal, sm_scale=scale, return_lse=return_lse, accuracy=accuracy, centre_keys=centre_keys,
            input_format=input_format,
        )  # fmt: skip

    return eightfold_attention


def register(*, accuracy="fast", centre_keys=True, input_format="auto"):
    """Replaces diffusers' native backend. Returns a function that takes it back."""
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    name = AttentionBackendName.NATIVE
    before = _AttentionBackendRegistry._backends[name]
    arguments = _AttentionBackendRegistry._supported_arg_names[name]
    _AttentionBackendRegistry._backends[name] = wrap(before, accuracy=accuracy, centre_keys=centre_keys, input_format=input_format)
    # The same arguments are passed as before.
    _AttentionBackendRegistry._supported_arg_names[name] = arguments

    def take_back():
        _AttentionBackendRegistry._backends[name] = before

    return take_back
