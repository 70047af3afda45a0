"""Attention to an FP8 cache in pages, new tokens into one, and parts of the keys merged: for numpy arrays and torch tensors."""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

from . import _eightfold
from ._rules import check_layout, check_sinks, descales_missing, scoring_of

CODES = ("e4m3", "e5m2")


def paged_attention(
    q,
    k_cache,
    v_cache,
    block_table,
    lengths,
    *,
    cu_seqlens_q=None,
    max_seqlen_q=None,
    tensor_layout="NHD",
    is_causal=False,
    sm_scale=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    softcap=0.0,
    sinks=None,
    out=None,
    out_dtype=None,
    return_lse=False,
    batch_invariant=False,
    validate=False,
):
    """Attention of new queries to an FP8 cache in pages, each sequence with keys of its own number.

    ``q`` is (sequence, query, head, channel), or with ``cu_seqlens_q`` and ``max_seqlen_q`` packed as (row, head, channel); values, or
    FP8 with ``q_descale``. ``k_cache`` and ``v_cache`` are FP8, (page, token, head, channel), or with ``tensor_layout="HND"`` (page,
    head, token, channel), at any strides. ``block_table`` is (sequence, page) and ``lengths`` (sequence,), both int32, and count
    the keys of the new queries. What lies behind a sequence's last key is not read. ``k_descale`` and ``v_descale`` are a number,
    one for each head, one for each (sequence, head), or one for each token and head, shaped as the cache without its channels.

    ``is_causal``, ``window_size``, ``softcap`` and ``sinks`` are as in :func:`eightfold.attention`; sinks are for devices. The result is as q, the log-sum-exp
    (sequence, head, query), or (head, row) where q is packed. Rows of no sequence, and of one without keys, are zero on the
    CPU; on a device rows behind the last sequence are left as they are. With ``batch_invariant`` a sequence gives the same bits in
    every batch.

    The CPU checks block table, lengths and scales. A device reads them when the kernel runs, so that a graph may be replayed after they
    changed; ``validate`` looks first, which waits for the device, and raises instead of reading beyond the cache.

    >>> import numpy as np, ml_dtypes, eightfold
    >>> cache = np.zeros((2, 8, 16, 2, 64), ml_dtypes.float8_e4m3fn)  # K and V: 8 pages of 16 tokens of 2 heads
    >>> scales = np.ones((2, 8, 16, 2), np.float32)
    >>> k, v = np.random.default_rng(0).standard_normal((2, 20, 2, 64)).astype(np.float32)
    >>> slots = np.arange(48, 68)  # 20 tokens from page 3 on
    >>> eightfold.append_kv(k, v, cache[0], cache[1], slots, k_descale=scales[0], v_descale=scales[1])
    >>> q = np.ones((1, 1, 8, 64), np.float32)
    >>> table, lengths = np.array([[3, 4]], np.int32), np.array([20], np.int32)
    >>> eightfold.paged_attention(q, cache[0], cache[1], table, lengths, k_descale=scales[0], v_descale=scales[1]).shape
    (1, 1, 8, 64)
    """
    torch = _torch_of(q, k_cache, v_cache)
    if torch is not None:
        return torch.attention(
            q, k_cache, v_cache, block_table, lengths, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale, tensor_layout,
            is_causal, sm_scale, window_size, softcap, sinks, out, out_dtype, return_lse, batch_invariant, validate,
        )  # fmt: skip
    _check_numpy(q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table, lengths=lengths)
    dtype = np.dtype(out_dtype or (out.dtype if out is not None else None) or (np.float32 if kind_of(Numpy, "q", q) in CODES else q.dtype))
    result = np.empty(q.shape, dtype) if out is None else out
    if result.shape != q.shape or result.dtype != dtype or not (result.flags.c_contiguous and result.flags.writeable):
        raise ValueError(f"out: {result.dtype} of {result.shape} cannot take {dtype} of {q.shape}; make it with numpy.empty(q.shape)")
    call = check(Numpy, q, k_cache, v_cache, block_table, lengths, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale, tensor_layout)
    lse = np.empty(call.lse_shape, np.float32) if return_lse else None
    if sinks is not None:
        sinks = np.asarray(sinks, np.float32)
        check_sinks(sinks.shape, q.shape[-2])
        sinks = sinks.tolist()
    scoring = scoring_of(is_causal, sm_scale, window_size, softcap, sinks)
    attend_on_host(Numpy, call, q, k_cache, v_cache, block_table, lengths, cu_seqlens_q, result, lse, scoring, batch_invariant)
    return (result, lse.T if call.packed else lse) if return_lse else result


def append_kv(k, v, k_cache, v_cache, slots, *, k_descale, v_descale, tensor_layout="NHD", validate=False):
    """Quantises new keys and values into the pages of a cache.

    ``k`` and ``v`` are (token, head, channel) in f32, f16 or bf16; ``slots`` (token,), int64, say where each goes: page · tokens of a
    page + token of the page, and −1 leaves the token out. ``k_descale`` and ``v_descale`` are the scales: a number, or one for each head,
    by which codes will be multiplied (what is too large saturates); or those of tokens, shaped as the cache without its
    channels, which are computed and written.

    The CPU checks slots and scales. A device leaves tokens out whose slot is not in the cache; ``validate`` looks at slots and scales first,
    which waits for the device, and raises.

    >>> import numpy as np, ml_dtypes, eightfold
    >>> cache = np.zeros((2, 4, 16, 1, 64), ml_dtypes.float8_e4m3fn)
    >>> k = v = np.ones((3, 1, 64), np.float32)
    >>> eightfold.append_kv(k, v, cache[0], cache[1], np.array([16, 17, -1]), k_descale=0.5, v_descale=0.25)
    >>> float(cache[0, 1, 1, 0, 0]), float(cache[1, 1, 0, 0, 0]), float(cache[0, 1, 2, 0, 0])
    (2.0, 4.0, 0.0)
    """
    torch = _torch_of(k, v, k_cache, v_cache)
    if torch is not None:
        return torch.append_kv(k, v, k_cache, v_cache, slots, k_descale, v_descale, tensor_layout, validate)
    _check_numpy(k=k, v=v, k_cache=k_cache, v_cache=v_cache, slots=slots)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if not cache.flags.writeable:
            raise ValueError(f"{name}: is read-only; pass an array that can be written")
    append_on_host(Numpy, k, v, k_cache, v_cache, slots, k_descale, v_descale, tensor_layout)
    return None


def merge(outs, lses, *, tensor_layout="NHD"):
    """Merges attention to parts of the keys, such as a shared prefix and what follows it, or keys on several devices.

    Each of ``outs`` is the output of one part, (batch, row, head, channel), or with ``tensor_layout="HND"`` (batch, head, row, channel), and each of
    ``lses`` its natural log-sum-exp, (batch, head, row); packed ones are (row, head, channel) and (head, row). A device takes up to 16
    parts. Returns the merged output and its log-sum-exp. A row that sees no key in any part is zero.

    >>> import numpy as np, eightfold
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 64, 2, 64)).astype(np.float32)
    >>> parts = [eightfold.attention(q, k[:, half], v[:, half], return_lse=True) for half in (slice(0, 32), slice(32, 64))]
    >>> out, lse = eightfold.merge(*zip(*parts))
    >>> bool(abs(out - eightfold.attention(q, k, v)).max() < 0.1), lse.shape
    (True, (1, 2, 64))
    """
    outs, lses = list(outs), list(lses)
    if not outs or len(outs) != len(lses):
        raise ValueError(f"lses: {len(lses)} for {len(outs)} outputs; give at least one output, and the log-sum-exp of each")
    torch = _torch_of(*outs, *lses)
    if torch is not None:
        return torch.merge(outs, lses, tensor_layout)
    _check_numpy(**{f"outs[{i}]": out for i, out in enumerate(outs)}, **{f"lses[{i}]": lse for i, lse in enumerate(lses)})
    check_parts(Numpy, outs, lses, tensor_layout)
    out, lse = np.empty(outs[0].shape, outs[0].dtype), np.empty(lses[0].shape, np.float32)
    merge_on_host(Numpy, outs, lses, tensor_layout, out, lse)
    return out, lse


def _torch_of(*tensors):
    """The part for torch, if one of them is its tensor."""
    torch = sys.modules.get("torch")
    if torch is None or not any(isinstance(tensor, torch.Tensor) for tensor in tensors):
        return None
    from . import _paged_torch

    return _paged_torch


def _check_numpy(**arrays):
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name}: {type(array).__name__} is no array of numpy and no tensor of torch; pass one of them")


class Numpy:
    """What is asked of arrays."""

    kinds = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "int32": "i32", "int64": "i64"}

    @classmethod
    def kind(cls, array):
        return cls.kinds.get(array.dtype.name)

    @staticmethod
    def at(array):
        return array.ctypes.data

    @staticmethod
    def strides(array):
        return tuple(stride // array.itemsize for stride in array.strides)

    contiguous = staticmethod(np.ascontiguousarray)
    broadcast = staticmethod(np.broadcast_to)

    @staticmethod
    def scales(descale, like):
        return np.asarray(descale, np.float32)


def kind_of(kit, name, array, allowed=("f32", "f16", "bf16", "e4m3", "e5m2")):
    kind = kit.kind(array)
    if kind not in allowed:
        names = ", ".join(word for word, short in Numpy.kinds.items() if short in allowed)
        raise TypeError(f"{name}: dtype {array.dtype} is not served; convert it to one of {names}")
    return kind


class Call(NamedTuple):
    """A call of attention whose shapes fit each other."""

    sizes: tuple
    cache: dict
    kind: str
    sequences: int
    packed: bool
    lse_shape: tuple
    q_scales: object
    k_scales: object
    v_scales: object


def cache_of(kit, k_cache, v_cache, tensor_layout):
    """Pages, tokens of a page, heads, channels; the strides of K and V; and the format."""
    check_layout(tensor_layout)
    kind = kind_of(kit, "k_cache", k_cache, CODES)
    if kit.kind(v_cache) != kind:
        raise TypeError(f"v_cache: dtype {v_cache.dtype} is not that of k_cache, {k_cache.dtype}; keep both in one format")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if len(cache.shape) != 4 or tuple(cache.shape) != tuple(k_cache.shape):
            order = "(page, token, head, channel)" if tensor_layout == "NHD" else "(page, head, token, channel)"
            raise ValueError(f"{name}: shape {tuple(cache.shape)}; give k_cache and v_cache the same shape {order}")
        if kit.strides(cache)[3] != 1 and cache.shape[3] > 1:
            raise ValueError(f"{name}: its channels are {kit.strides(cache)[3]} elements apart; let those of a row follow each other")
    pages, a, b, channels = k_cache.shape
    tokens, heads = (a, b) if tensor_layout == "NHD" else (b, a)
    return (pages, tokens, heads, channels), _three(kit, k_cache, tensor_layout), _three(kit, v_cache, tensor_layout), kind


def _three(kit, array, tensor_layout):
    """The strides of a page, a token and a head."""
    page, a, b = kit.strides(array)[:3]
    return (page, a, b) if tensor_layout == "NHD" else (page, b, a)


_WIDER = {"tensor": 0, "head": 1, "sequence": 2, "token": 3}


def _scales_of(kit, name, descale, like, sizes, sequences, tensor_layout):
    """What shares a scale, and the scales as f32."""
    if descale is None:
        raise descales_missing(name)
    pages, tokens, heads, _ = sizes
    scales = kit.scales(descale, like)
    shape, of_tokens = tuple(scales.shape), (pages, tokens, heads) if tensor_layout == "NHD" else (pages, heads, tokens)
    if len(shape) == 3 and shape == of_tokens:
        return "token", scales
    if shape in ((), (1,)):
        return "tensor", scales
    if shape == (heads,):
        return "head", scales
    if sequences is not None and shape == (sequences, heads):
        return "sequence", scales
    by_sequence = f", ({sequences}, {heads}) for each sequence and head" if sequences is not None else ""
    raise ValueError(
        f"{name}_descale: shape {shape} is neither one number, ({heads},) for each head{by_sequence}, nor {of_tokens} for each token "
        "and head; pass one of them"
    )


def scales_of(kit, k_descale, v_descale, like, sizes, sequences, tensor_layout):
    """What shares a scale, the scales of K and those of V, which are made alike."""
    k_kind, k = _scales_of(kit, "k", k_descale, like, sizes, sequences, tensor_layout)
    v_kind, v = _scales_of(kit, "v", v_descale, like, sizes, sequences, tensor_layout)
    if "token" in (k_kind, v_kind):
        if k_kind != v_kind:
            raise ValueError("v_descale: keys and values do not both have scales of tokens; give both such, or neither")
        return k_kind, k, v
    kind = max(k_kind, v_kind, key=_WIDER.get)
    heads = sizes[2]
    shape = {"tensor": (1,), "head": (heads,), "sequence": (sequences, heads)}[kind]
    wide = lambda scales: kit.contiguous(kit.broadcast(scales.reshape((-1,)) if scales.shape == () else scales, shape))  # noqa: E731
    return kind, wide(k), wide(v)


def describe(kit, sizes, k, v, kind, scales, k_scales, v_scales, tensor_layout):
    """The cache as the native module takes it."""
    none = (0, 0, 0)
    of = lambda array: _three(kit, array, tensor_layout) if scales == "token" else none  # noqa: E731
    return dict(sizes=sizes, k=k, v=v, dtype=kind, scales=scales, k_scales=of(k_scales), v_scales=of(v_scales))


def check(kit, q, k_cache, v_cache, block_table, lengths, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale, tensor_layout):
    sizes, k, v, kind = cache_of(kit, k_cache, v_cache, tensor_layout)
    _, tokens, kv_heads, channels = sizes
    packed = cu_seqlens_q is not None
    order = "(row, head, channel), with cu_seqlens_q" if packed else "(sequence, query, head, channel)"
    if len(q.shape) != (3 if packed else 4):
        raise ValueError(f"q: has {len(q.shape)} dimensions {tuple(q.shape)}; reshape it to {order}")
    q_kind = kind_of(kit, "q", q)
    if q_kind in CODES and q_kind != kind:
        raise TypeError(f"q: is {q.dtype}, but the cache is {k_cache.dtype}; pass q in bfloat16, or in the cache's format")
    heads, q_channels = q.shape[-2:]
    if q_channels != channels or kv_heads == 0 or heads % kv_heads:
        raise ValueError(
            f"q: {heads} heads of {q_channels} channels do not fit a cache of {kv_heads} heads of {channels}; check tensor_layout={tensor_layout!r}"
        )
    _check_ints(kit, "lengths", lengths, "i32", 1)
    _check_ints(kit, "block_table", block_table, "i32", 2)
    sequences = lengths.shape[0]
    if block_table.shape[0] != sequences:
        raise ValueError(f"block_table: has {block_table.shape[0]} rows, and lengths {sequences}; give each sequence one of both")
    if packed:
        _check_ints(kit, "cu_seqlens_q", cu_seqlens_q, "i32", 1)
        if cu_seqlens_q.shape[0] != sequences + 1:
            raise ValueError(f"cu_seqlens_q: has {cu_seqlens_q.shape[0]} entries; give one more than the {sequences} sequences")
        if max_seqlen_q is None:
            raise ValueError("max_seqlen_q: is not given; say how many queries a sequence of a packed q has at most")
        most = int(max_seqlen_q)
    else:
        if q.shape[0] != sequences:
            raise ValueError(f"q: has {q.shape[0]} sequences, and lengths {sequences}; give both as many, or pack q")
        most = q.shape[1]
    if max_seqlen_q is not None and (int(max_seqlen_q) < 1 or not packed and int(max_seqlen_q) != most):
        raise ValueError(f"max_seqlen_q: {max_seqlen_q} is not how many queries a sequence has at most; leave it out unless q is packed")
    q_scales = None
    if q_kind in CODES:
        if q_descale is None:
            raise descales_missing("q")
        q_scales = kit.scales(q_descale, q)
        if tuple(q_scales.shape) not in ((), (1,), (sequences, heads)):
            raise ValueError(
                f"q_descale: shape {tuple(q_scales.shape)} is neither one number nor ({sequences}, {heads}) for each sequence and head; pass one of them"
            )
    elif q_descale is not None:
        raise ValueError("q_descale: q is not FP8, so that nothing scales it; leave it out")
    scales, k_scales, v_scales = scales_of(kit, k_descale, v_descale, k_cache, sizes, sequences, tensor_layout)
    most_keys = max(1, block_table.shape[1] * tokens)
    return Call(
        sizes=(max(1, sequences), heads, kv_heads, max(1, most), most_keys, channels, channels),
        cache=describe(kit, sizes, k, v, kind, scales, k_scales, v_scales, tensor_layout),
        kind=q_kind,
        sequences=sequences,
        packed=packed,
        lse_shape=(q.shape[0], heads) if packed else (sequences, heads, q.shape[1]),
        q_scales=q_scales,
        k_scales=k_scales,
        v_scales=v_scales,
    )


def _check_ints(kit, name, array, kind, dimensions):
    if kit.kind(array) != kind or len(array.shape) != dimensions:
        words = {"i32": "int32", "i64": "int64"}[kind]
        raise TypeError(f"{name}: is {array.dtype} of {len(array.shape)} dimensions; give it as {words} of {dimensions}")


def _memory(kit, array):
    """Where it is, and how many elements there are from there on."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(array.shape, kit.strides(array)))
    return kit.at(array), span if 0 not in array.shape else 0


def attend_on_host(kit, call, q, k_cache, v_cache, block_table, lengths, cu_seqlens_q, result, lse, scoring, batch_invariant):
    """Writes the result, which is without gaps."""
    if 0 in q.shape or call.sequences == 0:
        return
    starts = cu_seqlens_q.tolist() if call.packed else list(range(0, q.shape[0] * q.shape[1] + 1, q.shape[1]))
    q, table = kit.contiguous(q), kit.contiguous(block_table)
    _eightfold.paged_attend(
        _memory(kit, q), [1.0] if call.q_scales is None else call.q_scales.reshape((-1,)).tolist(), starts, call.cache,
        _memory(kit, k_cache), _memory(kit, v_cache), _memory(kit, call.k_scales), _memory(kit, call.v_scales),
        (kit.at(table), table.shape[1]), lengths.tolist(), kit.at(result), 0 if lse is None else kit.at(lse), call.sizes, call.kind,
        scoring=scoring, dense=not call.packed, batch_invariant=bool(batch_invariant), output_dtype=kit.kind(result),
    )  # fmt: skip


def check_append(kit, k, v, k_cache, v_cache, slots, k_descale, v_descale, tensor_layout):
    """The cache as the native module takes it, and the scales."""
    sizes, k_strides, v_strides, kind = cache_of(kit, k_cache, v_cache, tensor_layout)
    _, _, heads, channels = sizes
    values = kind_of(kit, "k", k, ("f32", "f16", "bf16"))
    _check_ints(kit, "slots", slots, "i64", 1)
    for name, new in (("k", k), ("v", v)):
        if tuple(new.shape) != (slots.shape[0], heads, channels):
            raise ValueError(f"{name}: shape {tuple(new.shape)} is not {(slots.shape[0], heads, channels)}; give a row for each slot and head of the cache")
        if kit.kind(new) != values:
            raise TypeError(f"{name}: is {new.dtype}, but k is {k.dtype}; convert both to one dtype")
    scales, k_scales, v_scales = scales_of(kit, k_descale, v_descale, k_cache, sizes, None, tensor_layout)
    return describe(kit, sizes, k_strides, v_strides, kind, scales, k_scales, v_scales, tensor_layout), values, k_scales, v_scales


def append_on_host(kit, k, v, k_cache, v_cache, slots, k_descale, v_descale, tensor_layout):
    cache, values, k_scales, v_scales = check_append(kit, k, v, k_cache, v_cache, slots, k_descale, v_descale, tensor_layout)
    if cache["scales"] == "token":
        for name, given, used in (("k", k_descale, k_scales), ("v", v_descale, v_scales)):
            if kit.kind(given) != "f32":
                raise TypeError(f"{name}_descale: scales of tokens are written, and these are {given.dtype}; give float32")
    places = slots.tolist()
    for is_value, new, codes, scales in ((False, k, k_cache, k_scales), (True, v, v_cache, v_scales)):
        new = kit.contiguous(new)
        _eightfold.paged_append(cache, is_value, _memory(kit, new), values, places, _memory(kit, codes), _memory(kit, scales))


def check_parts(kit, outs, lses, tensor_layout):
    """Batch, rows, heads, channels."""
    check_layout(tensor_layout)
    first = outs[0]
    if len(first.shape) not in (3, 4) or len(first.shape) == 3 and tensor_layout != "NHD":
        raise ValueError(f"outs[0]: has {len(first.shape)} dimensions {tuple(first.shape)}; give (batch, row, head, channel), or packed (row, head, channel)")
    batch = first.shape[0] if len(first.shape) == 4 else 1
    a, b, channels = first.shape[-3:]
    rows, heads = (a, b) if tensor_layout == "NHD" else (b, a)
    lse_shape = (batch, heads, rows) if len(first.shape) == 4 else (heads, rows)
    kind = kind_of(kit, "outs[0]", first, ("f32", "f16", "bf16"))
    for index, (out, lse) in enumerate(zip(outs, lses)):
        if tuple(out.shape) != tuple(first.shape) or kit.kind(out) != kind:
            raise ValueError(f"outs[{index}]: {out.dtype} of {tuple(out.shape)} is not like the first, {first.dtype} of {tuple(first.shape)}; attend with the same q")
        if tuple(lse.shape) != lse_shape or kit.kind(lse) != "f32":
            raise ValueError(f"lses[{index}]: {lse.dtype} of {tuple(lse.shape)} is not float32 of {lse_shape}; pass what return_lse gave")
    return batch, rows, heads, channels


def merge_on_host(kit, outs, lses, tensor_layout, out, lse):
    batch, rows, heads, channels = check_parts(kit, outs, lses, tensor_layout)
    if 0 in out.shape:
        return
    held = [(kit.contiguous(one), kit.contiguous(sums)) for one, sums in zip(outs, lses)]
    at = [(kit.at(one), kit.at(sums)) for one, sums in held]
    _eightfold.merge_parts(at, (batch, heads, rows, channels), kit.kind(out), tensor_layout, kit.at(out), kit.at(lse))
