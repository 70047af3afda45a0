"""The one call, for whatever tensors come."""

from __future__ import annotations

import sys

from ._rules import ACCURACIES, INPUT_FORMATS, LAYOUTS

__all__ = ["ACCURACIES", "INPUT_FORMATS", "LAYOUTS", "attention", "sageattn"]

_torch_attention = None


def attention(
    q,
    k,
    v,
    *,
    tensor_layout="NHD",
    is_causal=False,
    sm_scale=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    softcap=0.0,
    sinks=None,
    accuracy="fast",
    centre_keys=True,
    input_format="auto",
    out=None,
    out_dtype=None,
    return_lse=False,
    stream=None,
    validate=False,
):
    """Scaled-dot-product attention in FP8: softmax(q kᵀ · sm_scale) v.

    f32, f16 and bf16 tensors are quantised in the call. ``input_format`` says what q and k become: ``"e4m3"``, with one scale for each
    batch and head; ``"int8"``, with one for every row of q and every 256 rows of k, which loses a third of what E4M3 does; or
    ``"auto"``, on a device the most exact of those within 10 % of the fastest, and on the CPU E4M3. V is in E4M3 beside both.
    ``centre_keys`` takes the mean over the keys from k first, which softmax does not notice and which makes outlying channels
    harmless; INT8 always does. FP8 tensors
    (``torch.float8_e4m3fn``, ``torch.float8_e5m2``) come with ``q_descale``, ``k_descale`` and ``v_descale``: a float, a
    tensor of one, or one for each (batch, key head); for q also for each (batch, query head).

    ``is_causal`` aligns to the last key, as FlashAttention does, and so does ``window_size``: how many keys before and after its own
    a query sees, -1 for all of a side. ``softcap`` bounds scores by softcap · tanh(score / softcap); ``sinks`` are a logit for each
    query head that is in every row's sum. V may have other channels than q and k. The CPU serves all of it; a device what
    :func:`eightfold.explain` names a kernel for, and the rest is an error that says so. ``accuracy`` is one of ``"fast"``, ``"balanced"``,
    ``"exact-exp"`` and ``"precise"``. The result has the type of q, for FP8 bf16, or ``out_dtype``; ``out`` takes it where it
    is given. With ``return_lse`` the natural log-sum-exp of each row's scaled scores comes as well, f32 of
    (batch, head, row).

    On a CUDA device the work goes into torch's current stream of that device, or into ``stream``, and the call waits for nothing.
    Values that are not finite give results without meaning there: ``validate=True`` looks for them first, which reads every value
    once more and waits, and raises a ``ValueError`` that names tensor, batch, head and row. On the CPU that is always so.
    There is no backward pass.

    >>> import numpy as np, eightfold
    >>> q = np.ones((1, 4, 1, 64), np.float16)
    >>> out, lse = eightfold.attention(q, q, q, return_lse=True)
    >>> bool(abs(out - 1).max() < 0.01), lse.shape
    (True, (1, 1, 4))
    """
    global _torch_attention
    if type(window_size) is not tuple:
        window_size = (-1, -1) if window_size is None else tuple(window_size)
    if _torch_attention is None:
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "Tensor"):
            from . import _torch

            _torch_attention = _torch.attention
    if stream is not None:
        from . import _streams

        with _streams.entered(stream, q):
            return attention(
                q,
                k,
                v,
                tensor_layout=tensor_layout,
                is_causal=is_causal,
                sm_scale=sm_scale,
                q_descale=q_descale,
                k_descale=k_descale,
                v_descale=v_descale,
                window_size=window_size,
                softcap=softcap,
                sinks=sinks,
                accuracy=accuracy,
                centre_keys=centre_keys,
                input_format=input_format,
                out=out,
                out_dtype=out_dtype,
                return_lse=return_lse,
                validate=validate,
            )
    if _torch_attention is not None:
        result = _torch_attention(
            q, k, v, tensor_layout, is_causal, sm_scale, q_descale, k_descale, v_descale, accuracy, centre_keys, out, out_dtype, return_lse,
            window_size, softcap, sinks, input_format, validate,
        )  # fmt: skip
        if result is not NotImplemented:
            return result
    from . import _arrays

    return _arrays.attention(
        q, k, v, tensor_layout, is_causal, sm_scale, q_descale, k_descale, v_descale, accuracy, centre_keys, out, out_dtype, return_lse,
        window_size=window_size, softcap=softcap, sinks=sinks, input_format=input_format, validate=validate,
    )  # fmt: skip


def sageattn(q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, return_lse=False, **kwargs):
    """:func:`attention` under the name and in the order of SageAttention.

    ``smooth_k`` says whether k is centred, and ``accuracy``, ``input_format`` and ``validate`` are passed on. What only tunes SageAttention's own kernels
    (``qk_quant_gran``, ``pv_accum_dtype``, …) is taken and changes nothing. ``attn_mask`` is refused.

    >>> import numpy as np, eightfold
    >>> q = np.ones((1, 1, 4, 64), np.float32)
    >>> eightfold.sageattn(q, q, q).shape
    (1, 1, 4, 64)
    """
    if kwargs.get("attn_mask") is not None:
        raise NotImplementedError("attn_mask: no kernel takes a mask as a tensor; use is_causal, or another attention")
    if kwargs.get("dropout_p"):
        raise NotImplementedError(f"dropout_p: {kwargs['dropout_p']} asks for dropout, which is for training; set it to 0")
    return attention(
        q,
        k,
        v,
        tensor_layout=tensor_layout,
        is_causal=is_causal,
        sm_scale=sm_scale,
        accuracy=kwargs.get("accuracy", "fast"),
        centre_keys=kwargs.get("smooth_k", True),
        input_format=kwargs.get("input_format", "auto"),
        validate=kwargs.get("validate", False),
        return_lse=return_lse,
    )
