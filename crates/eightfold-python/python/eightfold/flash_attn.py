"""The names of FlashAttention-3, in its order of arguments, as far as the kernels go.

Tensors are (batch, row, head, channel). What only tunes FlashAttention's own kernels (``num_splits``, ``pack_gqa``,
``sm_margin``, ``deterministic``, ``scheduler_metadata``) is taken and changes nothing. What would change the result and is not
served is refused by name.
"""

from __future__ import annotations

import torch

from ._attention import attention
from ._paged import append_kv, paged_attention
from ._rules import descales_missing

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]


def flash_attn_func(
    q,
    k,
    v,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
    *,
    s_aux=None,
    accuracy="fast",
):
    """Attention in the order of FlashAttention-3; with ``return_attn_probs`` also the log-sum-exp (batch, head, row).

    >>> import torch
    >>> from eightfold.flash_attn import flash_attn_func
    >>> q = torch.randn(1, 16, 2, 64)
    >>> flash_attn_func(q, q, q, causal=True).shape
    torch.Size([1, 16, 2, 64])
    """
    _refuse(qv, attention_chunk)
    return attention(
        q, k, v, is_causal=causal, sm_scale=softmax_scale, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale,
        accuracy=accuracy, return_lse=return_attn_probs, window_size=window_size, softcap=softcap, sinks=s_aux,
    )  # fmt: skip


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    seqused_q=None,
    seqused_k=None,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
    *,
    s_aux=None,
    accuracy="fast",
):
    """Attention of packed sequences (all rows, head, channel).

    FP8 whose lengths only the device knows (``seqused_k`` is given, or a compiler or a graph captures the call) is read as a cache
    with pages of one token, in one launch. Otherwise lengths are brought to the host, which waits for the device, and each
    sequence is a launch; sequences of one length, back to back, are one.

    >>> import torch
    >>> from eightfold.flash_attn import flash_attn_varlen_func
    >>> q, ends = torch.randn(24, 2, 64), torch.tensor([0, 8, 24], dtype=torch.int32)
    >>> flash_attn_varlen_func(q, q, q, ends, ends, 16, 16).shape
    torch.Size([24, 2, 64])
    """
    _refuse(qv, attention_chunk)
    if seqused_q is not None:
        raise NotImplementedError("seqused_q: no kernel reads how many queries are used; say it with cu_seqlens_q")
    is_unknown = seqused_k is not None or torch.compiler.is_compiling() or (q.is_cuda and torch.cuda.is_current_stream_capturing())
    if is_unknown and k.dtype in _FP8:
        starts = cu_seqlens_k[:-1]
        table = starts[:, None] + torch.arange(max_seqlen_k, dtype=torch.int32, device=k.device)
        lengths = seqused_k if seqused_k is not None else cu_seqlens_k[1:] - starts
        return _paged(
            q, k[:, None], v[:, None], table, lengths, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale, softmax_scale, causal,
            window_size, softcap, s_aux, return_attn_probs,
        )  # fmt: skip
    if is_unknown:
        raise NotImplementedError(
            "seqused_k, cu_seqlens_q: lengths on the device are read for FP8 alone, and k is not; convert q, k and v, or pad the sequences and "
            "call flash_attn_func outside of compilers and graphs"
        )
    starts_q, starts_k = (_starts(name, ends) for name, ends in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)))
    if len(starts_q) != len(starts_k):
        raise ValueError(f"cu_seqlens_k: has {len(starts_k)} entries, and cu_seqlens_q {len(starts_q)}; give both one more than sequences")
    if starts_q[-1] != q.shape[0] or starts_k[-1] != k.shape[0]:
        raise ValueError(f"cu_seqlens_q: ends at {starts_q[-1]} and {starts_k[-1]}, but q and k have {q.shape[0]} and {k.shape[0]} rows; end them there")
    sequences = len(starts_q) - 1
    descales = (q_descale, k_descale, v_descale)
    lengths = {(b - a, d - c) for a, b, c, d in zip(starts_q, starts_q[1:], starts_k, starts_k[1:])}

    def one(q, k, v, descales, out=None):
        return attention(
            q, k, v, is_causal=causal, sm_scale=softmax_scale, q_descale=descales[0], k_descale=descales[1], v_descale=descales[2],
            accuracy=accuracy, return_lse=return_attn_probs, out=out, window_size=window_size, softcap=softcap, sinks=s_aux,
        )  # fmt: skip

    if len(lengths) == 1 and 0 not in next(iter(lengths)):
        rows, keys = next(iter(lengths))
        batched = [x.view(sequences, n, *x.shape[1:]) for x, n in ((q, rows), (k, keys), (v, keys))]
        result = one(*batched, descales)
        if not return_attn_probs:
            return result.view(q.shape)
        return result[0].view(q.shape), result[1].transpose(0, 1).reshape(q.shape[1], q.shape[0])
    out_dtype = torch.bfloat16 if q.dtype in (torch.float8_e4m3fn, torch.float8_e5m2) else q.dtype
    result = torch.zeros(q.shape, dtype=out_dtype, device=q.device)
    lse = torch.full((q.shape[1], q.shape[0]), -torch.inf, dtype=torch.float32, device=q.device) if return_attn_probs else None
    for index, (a, b, c, d) in enumerate(zip(starts_q, starts_q[1:], starts_k, starts_k[1:])):
        if a == b or c == d:
            continue
        own = [x[index : index + 1] if isinstance(x, torch.Tensor) and x.numel() > 1 else x for x in descales]
        done = one(q[None, a:b], k[None, c:d], v[None, c:d], own, out=result[None, a:b])
        if lse is not None:
            lse[:, a:b] = done[1][0]
    return (result, lse) if return_attn_probs else result


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    qv=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    page_table=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    max_seqlen_q=None,
    rotary_seqlens=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
    return_softmax_lse=False,
    *,
    s_aux=None,
    accuracy="fast",
):
    """Attention to a cache: (batch, most keys, head, channel), or with ``page_table`` (page, token, head, channel).

    An FP8 cache is read where it lies, in pages or not, up to ``cache_seqlens``, which stay on the device: a graph may capture the
    call. Its descales are one number, one for each head, or one for each (sequence, head). New ``k`` and ``v`` are quantised into it
    behind its keys first, with the same descales, of which each head has one then.

    Another cache has no pages, and is quantised anew in each call: keep it in FP8, or use another attention for decoding. There
    ``cache_seqlens`` as a tensor is brought to the host, which waits for the device, and is one launch where all are equal,
    and else one for each sequence.

    >>> import torch
    >>> from eightfold.flash_attn import flash_attn_with_kvcache
    >>> q, cache = torch.randn(2, 1, 4, 64), torch.randn(2, 10, 16, 2, 64).to(torch.float8_e4m3fn)  # K and V: 10 pages of 16 tokens
    >>> pages, lengths = torch.tensor([[7, 2], [3, 0]], dtype=torch.int32), torch.tensor([20, 7], dtype=torch.int32)
    >>> flash_attn_with_kvcache(q, *cache, cache_seqlens=lengths, page_table=pages, k_descale=1.0, v_descale=1.0).shape
    torch.Size([2, 1, 4, 64])
    """
    _refuse(qv, attention_chunk)
    for name, value in (
        ("cache_leftpad", cache_leftpad),
        ("rotary_cos", rotary_cos),
        ("rotary_sin", rotary_sin),
        ("rotary_seqlens", rotary_seqlens),
        ("cu_seqlens_k_new", cu_seqlens_k_new),
    ):
        if value is not None:
            raise NotImplementedError(f"{name}: no kernel reads it; pass keys from the first on, with positions applied")
    of_pages = [name for name, value in (("page_table", page_table), ("cache_batch_idx", cache_batch_idx), ("cu_seqlens_q", cu_seqlens_q)) if value is not None]
    if k_cache.dtype in _FP8 and (of_pages or isinstance(cache_seqlens, torch.Tensor) or k is not None):
        return _with_fp8_cache(
            q, k_cache, v_cache, k, v, cache_seqlens, cache_batch_idx, page_table, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale,
            softmax_scale, causal, window_size, softcap, s_aux, return_softmax_lse,
        )  # fmt: skip
    if of_pages:
        raise NotImplementedError(f"{of_pages[0]}: is for caches in FP8, and k_cache is {k_cache.dtype}; keep the cache in torch.float8_e4m3fn")
    if (k is None) != (v is None):
        raise ValueError("v: new keys and values come together; pass both k and v, or neither")
    batch, most = q.shape[0], k_cache.shape[1]
    lengths = _lengths(cache_seqlens, batch, most, q)
    if k is not None:
        new = k.shape[1]
        if cache_seqlens is None:
            raise ValueError("cache_seqlens: says behind which keys new ones go; pass it with k and v")
        if max(lengths) + new > most:
            raise ValueError(f"k: {new} new keys behind {max(lengths)} do not fit a cache of {most}; make the cache longer")
        for index, length in enumerate(lengths):
            k_cache[index, length : length + new] = k[index]
            v_cache[index, length : length + new] = v[index]
        lengths = [length + new for length in lengths]
    descales = (q_descale, k_descale, v_descale)

    def one(part, length, descales):
        return attention(
            q[part], k_cache[part, :length], v_cache[part, :length], is_causal=causal, sm_scale=softmax_scale, q_descale=descales[0],
            k_descale=descales[1], v_descale=descales[2], accuracy=accuracy, return_lse=return_softmax_lse, window_size=window_size, softcap=softcap, sinks=s_aux,
        )  # fmt: skip

    if len(set(lengths)) == 1:
        return one(slice(None), lengths[0], descales)
    done = []
    for index, length in enumerate(lengths):
        own = [x[index : index + 1] if isinstance(x, torch.Tensor) and x.numel() > 1 else x for x in descales]
        done.append(one(slice(index, index + 1), length, own))
    if return_softmax_lse:
        return torch.cat([out for out, _ in done]), torch.cat([lse for _, lse in done])
    return torch.cat(done)


_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def _with_fp8_cache(
    q, k_cache, v_cache, k, v, cache_seqlens, cache_batch_idx, page_table, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale,
    softmax_scale, causal, window_size, softcap, s_aux, return_softmax_lse,
):  # fmt: skip
    batch = cu_seqlens_q.shape[0] - 1 if cu_seqlens_q is not None else q.shape[0]
    ints = dict(dtype=torch.int32, device=q.device)
    if page_table is not None and cache_batch_idx is not None:
        raise ValueError("cache_batch_idx: is for a cache without pages; leave it out, since page_table says where each sequence is")
    if page_table is None:
        # A sequence is a page.
        page_table = (torch.arange(batch, **ints) if cache_batch_idx is None else cache_batch_idx.to(torch.int32))[:, None]
    most = page_table.shape[1] * k_cache.shape[1]
    if cache_seqlens is None and (k is not None or most != k_cache.shape[1]):
        raise ValueError("cache_seqlens: says how many keys each sequence has; pass it with k and v, and with page_table")
    lengths = most if cache_seqlens is None else cache_seqlens
    lengths = lengths.to(torch.int32) if isinstance(lengths, torch.Tensor) else torch.full((batch,), lengths, **ints)
    if (k is None) != (v is None):
        raise ValueError("v: new keys and values come together; pass both k and v, or neither")
    if k is not None:
        if cu_seqlens_q is not None:
            raise NotImplementedError("k: is appended where every sequence has as many new tokens; call eightfold.append_kv, and leave k and v out")
        new, size = k.shape[1], k_cache.shape[1]
        at = lengths.long()[:, None] + torch.arange(new, device=q.device)
        slots = page_table.long().gather(1, at // size) * size + at % size
        scales = {f"{name}_descale": _of_heads(name, scale) for name, scale in (("k", k_descale), ("v", v_descale))}
        append_kv(k.flatten(0, 1), v.flatten(0, 1), k_cache, v_cache, slots.flatten(), **scales)
        lengths = lengths + new
    return _paged(
        q, k_cache, v_cache, page_table, lengths, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale, softmax_scale, causal, window_size,
        softcap, s_aux, return_softmax_lse,
    )  # fmt: skip


def _of_heads(name, scale):
    """The scale of each head, if all sequences have the same."""
    if isinstance(scale, torch.Tensor) and scale.dim() == 2 and scale.numel() > 1:
        if scale.shape[0] > 1 and scale.stride(0) != 0:
            raise NotImplementedError(
                f"{name}_descale: has a scale for each sequence, with which nothing is appended; expand one of (heads,), or call eightfold.append_kv"
            )
        return scale[0]
    return scale.reshape(1) if isinstance(scale, torch.Tensor) and scale.dim() == 2 else scale


def _paged(
    q, k_cache, v_cache, table, lengths, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale, softmax_scale, causal, window_size, softcap,
    s_aux, return_lse,
):  # fmt: skip
    if q.dtype in _FP8:
        if q_descale is None:
            raise descales_missing("q")
        heads, kv_heads = q.shape[-2], k_cache.shape[2]
        if isinstance(q_descale, torch.Tensor) and q_descale.dim() == 2 and q_descale.shape[1] == kv_heads != heads:
            # FlashAttention's are those of the key heads.
            q_descale = q_descale.repeat_interleave(heads // kv_heads, dim=1)
    return paged_attention(
        q, k_cache, v_cache, table, lengths, cu_seqlens_q=cu_seqlens_q, max_seqlen_q=max_seqlen_q, is_causal=causal, sm_scale=softmax_scale,
        q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, window_size=window_size, softcap=softcap, sinks=s_aux,
        return_lse=return_lse,
    )  # fmt: skip


def _refuse(qv, attention_chunk):
    if qv is not None:
        raise NotImplementedError("qv: no kernel has queries of V; leave it out, or use another attention for this model")
    if attention_chunk:
        raise NotImplementedError(f"attention_chunk: {attention_chunk} asks for chunks, which no kernel has; use another attention for this model")


def _starts(name, ends):
    starts = ends.tolist() if isinstance(ends, torch.Tensor) else list(ends)
    if len(starts) < 2 or starts[0] != 0 or any(b < a for a, b in zip(starts, starts[1:])):
        raise ValueError(f"{name}: {starts} is not a list of ends that starts at 0 and never falls; pass the running sum of lengths")
    return starts


def _lengths(cache_seqlens, batch, most, q):
    if cache_seqlens is None:
        return [most] * batch
    if isinstance(cache_seqlens, int):
        lengths = [cache_seqlens] * batch
    else:
        if torch.compiler.is_compiling() or (q.is_cuda and torch.cuda.is_current_stream_capturing()):
            raise NotImplementedError("cache_seqlens: a tensor is read by the host, which a compiler or a graph cannot capture; pass a number")
        lengths = cache_seqlens.tolist()
        lengths = [lengths] * batch if isinstance(lengths, int) else lengths
    if len(lengths) != batch or min(lengths) < 0 or max(lengths) > most:
        raise ValueError(f"cache_seqlens: {lengths} are not {batch} lengths of 0 to {most}; pass one for each sequence")
    return lengths
