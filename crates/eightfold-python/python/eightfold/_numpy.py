"""numpy arrays, on the CPU."""

from __future__ import annotations

import numpy as np

from . import _eightfold
from ._rules import check_input_format, check_sinks, check_validate, check_words, descales_missing, descales_unused, scoring_of, sizes_of

_VALUES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_CODES = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def _kind(name, array):
    dtype = array.dtype.name
    kind = _VALUES.get(dtype) or _CODES.get(dtype)
    if kind is None:
        raise TypeError(f"{name}: dtype {dtype} is not served; convert it to float32, float16 or bfloat16, or to float8_e4m3fn with a descale")
    return kind


def _scales(name, descale, batch, heads, kv_heads):
    """One scale, or one for each batch and head."""
    if descale is None:
        raise descales_missing(name)
    scales = np.asarray(descale, np.float32)
    if scales.size == 1:
        return [float(scales.reshape(-1)[0])]
    if scales.shape == (batch, kv_heads):
        scales = np.repeat(scales, heads // kv_heads, axis=1)
    if scales.shape != (batch, heads):
        raise ValueError(
            f"{name}_descale: shape {scales.shape} is neither one number nor (batch, heads) = {(batch, heads)}; pass one of them"
        )
    return scales.reshape(-1).tolist()


def attention(
    q, k, v, tensor_layout, is_causal, sm_scale, q_descale, k_descale, v_descale, accuracy, centre_keys, out, out_dtype, return_lse,
    window_size=(-1, -1), softcap=0.0, sinks=None, input_format="auto", validate=False,
):  # fmt: skip
    check_words(tensor_layout, accuracy)
    kinds = [_kind(name, array) for name, array in zip("qkv", (q, k, v))]
    for name, kind in zip("kv", kinds[1:]):
        if kind != kinds[0]:
            raise TypeError(f"{name}: is {kind}, but q is {kinds[0]}; convert q, k and v to one dtype")
    sizes = sizes_of(q.shape, k.shape, v.shape, tensor_layout)
    batch, heads, kv_heads, rows, _, _, channels = sizes
    if sinks is not None:
        sinks = np.asarray(sinks, np.float32)
        check_sinks(sinks.shape, heads)
        sinks = sinks.tolist()
    shape = (*q.shape[:3], channels)
    is_fp8 = kinds[0] in _CODES.values()
    check_input_format(input_format, is_fp8)
    # Quantising looks at every value in any case.
    check_validate(validate, is_fp8)
    if out is not None and not isinstance(out, np.ndarray):
        raise TypeError(f"out: {type(out).__name__} is no numpy array; make it with numpy.empty_like(q)")
    wanted = out_dtype if out_dtype is not None else (out.dtype if out is not None else None)
    result_dtype = np.dtype(wanted) if wanted is not None else (np.dtype(np.float32) if is_fp8 else q.dtype)
    result_kind = _VALUES.get(result_dtype.name)
    if result_kind is None:
        raise TypeError(f"out_dtype: {result_dtype.name} is not written; say float32, float16 or bfloat16")
    q, k, v = (np.ascontiguousarray(array) for array in (q, k, v))
    result = out
    if out is None or not (out.flags.c_contiguous and out.flags.writeable):
        result = np.empty(shape, result_dtype)
    if out is not None and (out.shape != shape or out.dtype != result_dtype):
        raise ValueError(f"out: {out.dtype} of {out.shape} cannot take {result_dtype} of {shape}; make it with numpy.empty({shape})")
    if out is not None and not out.flags.writeable:
        raise ValueError("out: is read-only; pass an array that can be written")
    lse = np.empty((batch, heads, rows), np.float32) if return_lse else None
    lse_at = lse.ctypes.data if return_lse else 0
    scoring = scoring_of(is_causal, sm_scale, window_size, softcap, sinks)
    common = dict(scoring=scoring, accuracy=accuracy, output_dtype=result_kind)
    at = [array.ctypes.data for array in (q, k, v, result)]
    if is_fp8:
        scales = (
            _scales("q", q_descale, batch, heads, kv_heads),
            _scales("k", k_descale, batch, kv_heads, kv_heads),
            _scales("v", v_descale, batch, kv_heads, kv_heads),
        )
        _eightfold.attend_codes(*at, lse_at, sizes, kinds[0], tensor_layout, scales, **common)
    else:
        for name, descale in zip("qkv", (q_descale, k_descale, v_descale)):
            if descale is not None:
                raise descales_unused(name)
        _eightfold.attend_values(*at, lse_at, sizes, kinds[0], tensor_layout, centre_keys=bool(centre_keys), input_format=input_format, **common)
    if out is not None and result is not out:
        out[...] = result
        result = out
    return (result, lse) if return_lse else result
