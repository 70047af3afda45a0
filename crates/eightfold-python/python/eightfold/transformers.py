"""For Hugging Face transformers: ``attn_implementation="eightfold"``.

>>> import importlib.util
>>> if importlib.util.find_spec("transformers"):
...     import eightfold.transformers
...     eightfold.transformers.register()
...     # model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="eightfold")

Encoders and prefill run here, and with ``past_key_values=eightfold.transformers.Fp8Cache()`` decoding, too. What cannot be served (padded
batches, which have masks; decoding without that cache, one query a sequence; training; windows; soft caps and sinks where no kernel has them) goes
the way of ``"sdpa"``; :data:`served` says how often, and why.
"""

from __future__ import annotations

from ._attention import attention
from ._sdpa import Served, refusal

__all__ = ["Fp8Cache", "register", "served"]

#: Calls that ran here, and how many did not, by reason.
served = Served()

_settings = {"accuracy": "fast", "centre_keys": True, "input_format": "auto"}


def register(name="eightfold", *, accuracy="fast", centre_keys=True, input_format="auto"):
    """Registers attention and masks under a name for ``attn_implementation``. May be called again, to change settings."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    _settings.update(accuracy=accuracy, centre_keys=centre_keys, input_format=input_format)
    AttentionInterface.register(name, eightfold_attention)
    # Masks as sdpa has them: none where nothing is padded.
    AttentionMaskInterface.register(name, sdpa_mask)


def eightfold_attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, **kwargs):
    """As transformers calls it: (batch, head, row, channel) in, (batch, row, head, channel) out."""
    layer = getattr(key, "eightfold_layer", None)
    if layer is not None:
        key, value = key.states, value.states
        if layer.length > key.shape[2]:
            # There are older tokens, which the cache alone has.
            reason = _refusal_of_cache(attention_mask, dropout, is_causal, kwargs, layer)
            if reason is None:
                served.calls += 1
                return layer.attend(query, scaling), None
            key, value = layer.dense(query.dtype)
    reason = _refusal(module, query, key, value, attention_mask, dropout, is_causal, kwargs)
    if reason is not None:
        served.reasons[reason] += 1
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs)
    served.calls += 1
    causal = bool(is_causal if is_causal is not None else getattr(module, "is_causal", True))
    # Rows before heads, as the output is wanted: the result is a view of nothing.
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    softcap, sinks = kwargs.get("softcap") or 0.0, kwargs.get("s_aux")
    result = attention(q, k, v, tensor_layout="NHD", is_causal=causal, sm_scale=scaling, softcap=softcap, sinks=sinks, **_settings)
    return result.contiguous(), None


def _refusal_of_cache(attention_mask, dropout, is_causal, kwargs, layer):
    if attention_mask is not None:
        return "a mask as a tensor"
    window = kwargs.get("sliding_window")
    if dropout or is_causal is False or (window is not None and layer.length > window):
        return "more than a causal mask"
    return next((name for name in ("softcap", "s_aux", "position_bias", "cache") if kwargs.get(name) is not None), None)


def __getattr__(name: str):
    # It is a class of transformers, which is not imported before.
    if name == "Fp8Cache":
        from ._fp8_cache import Fp8Cache

        return Fp8Cache
    raise AttributeError(f"module 'eightfold.transformers' has no attribute {name!r}")


def _refusal(module, query, key, value, attention_mask, dropout, is_causal, kwargs):
    for name in ("position_bias", "cache"):
        if kwargs.get(name) is not None:
            return name
    window = kwargs.get("sliding_window")
    if window is not None and key.shape[2] > window:
        return "sliding_window"
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    return refusal(
        query, key, value, attention_mask, dropout, bool(causal), enable_gqa=True, softcap=kwargs.get("softcap") or 0.0, sinks=kwargs.get("s_aux"),
        accuracy=_settings["accuracy"], input_format=_settings["input_format"],
    )  # fmt: skip
