"""Caches in pages for torch: eager calls, and the operators for compilers and tracers."""

from __future__ import annotations

import torch

from . import _eightfold, _paged, _torch
from ._rules import check_sinks, scoring_of

_Tensor = torch.Tensor
_KINDS = {**_torch._VALUES, **_torch._CODES, torch.int32: "i32", torch.int64: "i64"}
# By everything that a call is planned for, the oldest first.
_plans: dict = {}


class Torch:
    """What is asked of tensors."""

    kinds = _KINDS

    @staticmethod
    def kind(tensor):
        return _KINDS.get(tensor.dtype)

    @staticmethod
    def at(tensor):
        return tensor.data_ptr()

    @staticmethod
    def strides(tensor):
        return tensor.stride()

    @staticmethod
    def contiguous(tensor):
        return tensor.contiguous()

    @staticmethod
    def broadcast(tensor, shape):
        return tensor.expand(shape)

    @staticmethod
    def scales(descale, like):
        if not isinstance(descale, _Tensor):
            return _torch._number(descale, like.device)
        return descale if descale.dtype == torch.float32 else descale.float()


def _check_tensors(first, **tensors):
    """Whether they are tensors of one device on which something can be computed."""
    if not isinstance(first, _Tensor):
        raise _torch._no_tensor("q", first)
    if first.device.type not in ("cpu", "cuda", "meta"):
        raise ValueError(f"q: is on {first.device}, for which there are no kernels; move it to a CUDA device or the CPU")
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, _Tensor):
            raise _torch._no_tensor(name, tensor)
        if tensor.device != first.device:
            raise ValueError(f"{name}: is on {tensor.device}, but others are on {first.device}; move all to one device")


def _check_scales(device, **scales):
    for name, scale in scales.items():
        if isinstance(scale, _Tensor) and scale.device != device:
            raise ValueError(f"{name}: is on {scale.device}, but the cache is on {device}; move it there")


def _no_backward(name):
    return RuntimeError(f"{name} has no backward pass, and a tensor requires a gradient; call it under torch.no_grad()")


def _refuse_gradients(name, *tensors):
    if torch.is_grad_enabled() and any(isinstance(tensor, _Tensor) and tensor.requires_grad for tensor in tensors):
        raise _no_backward(name)


def _is_traced(*tensors):
    return _torch._is_compiling() or _torch._modes() or any(tensor is not None and type(tensor) is not _Tensor for tensor in tensors)


def attention(
    q, k_cache, v_cache, block_table, lengths, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale, tensor_layout,
    is_causal, sm_scale, window_size, softcap, sinks, out, out_dtype, return_lse, batch_invariant, validate,
):  # fmt: skip
    _refuse_gradients("paged_attention", q)
    tables = dict(k_cache=k_cache, v_cache=v_cache, block_table=block_table, lengths=lengths, cu_seqlens_q=cu_seqlens_q)
    _check_tensors(q, **tables, out=out)
    _check_scales(q.device, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    # What is missing is told by name; what is there becomes a tensor.
    q_descale, k_descale, v_descale = (
        one if one is None or isinstance(one, _Tensor) else _torch._number(one, q.device) for one in (q_descale, k_descale, v_descale)
    )
    if sinks is not None:
        # A plan keeps them, so that what is made anew for each call would pile up.
        if q.get_device() >= 0 and not (isinstance(sinks, _Tensor) and sinks.dtype == torch.float32):
            raise TypeError("sinks: are read where they are; convert them to a float32 tensor on the device of q once, and pass that")
        sinks = _torch._sinks(sinks, q, q.shape[-2])
    if _is_traced(q, *tables.values()):
        if out is not None:
            raise ValueError("out: cannot be given where the call is traced; leave it out, and copy the result")
        call = _paged.check(Torch, q, k_cache, v_cache, block_table, lengths, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale, tensor_layout)
        window = scoring_of(is_causal, sm_scale, window_size, softcap)["window"]
        out, lse = torch.ops.eightfold.paged_attention(
            q, k_cache, v_cache, block_table, lengths, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale, tensor_layout, is_causal,
            sm_scale, window[0], window[1], softcap, out_dtype, return_lse, batch_invariant, validate, sinks,
        )  # fmt: skip
        del call
    else:
        out, lse = _run(
            q, k_cache, v_cache, block_table, lengths, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale, tensor_layout, is_causal,
            sm_scale, window_size, softcap, sinks, out, out_dtype, return_lse, batch_invariant, validate,
        )  # fmt: skip
    return (out, lse) if return_lse else out


def _kind_of(tensor):
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype)


def _run(
    q, k_cache, v_cache, block_table, lengths, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale, tensor_layout, is_causal,
    sm_scale, window_size, softcap, sinks, out, out_dtype, return_lse, batch_invariant, validate,
):  # fmt: skip
    window_size = (-1, -1) if window_size is None else tuple(window_size)
    given = (q, k_cache, v_cache, block_table, lengths, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale, tensor_layout)
    scoring = (is_causal, sm_scale, window_size, softcap)
    if q.get_device() < 0:
        return _on_cpu(given, scoring, sinks, out, out_dtype, return_lse, batch_invariant)
    # Any number of packed rows is of one kind.
    rows = slice(1, None) if cu_seqlens_q is not None else slice(None)
    key = (
        q.shape[rows], q.stride(), q.dtype, *(_kind_of(one) if isinstance(one, _Tensor) else one for one in given[1:]), q.get_device(), *scoring,
        None if out is None else (out.shape == q.shape, out.stride(), out.dtype), out_dtype, return_lse, batch_invariant,
        # Launches read them where they are: the plan keeps them.
        None if sinks is None else sinks.data_ptr(),
    )  # fmt: skip
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= _torch._MOST_PLANS:
            # None that a graph launches: what it has on the device stays.
            for old in [old for old, plan in _plans.items() if not plan.captured][: _torch._MOST_PLANS // 2]:
                del _plans[old]
        plan = _plans[key] = _Plan(given, scoring, sinks, out, out_dtype, return_lse, batch_invariant)
    result = torch.empty_like(q, dtype=plan.dtype) if out is None else out
    lse = None
    if return_lse:
        lse = torch.empty((q.shape[0], q.shape[1]) if plan.packed else plan.lse_shape, dtype=torch.float32, device=q.device)
    if 0 in q.shape or not plan.sequences:
        return result, (lse.t() if return_lse and plan.packed else lse)
    stream = _torch._raw_stream(q.get_device())
    if _torch._is_capturing():
        if validate:
            raise RuntimeError("validate: looks and waits, which no stream can capture; leave it out of the graph")
        plan.captured = True
    workspace = _torch._counting_workspace(q.device, stream, plan.workspace_bytes, plan.counts)
    k_scales, v_scales = (k_descale, v_descale) if plan.as_given else plan.scales_of(k_descale, v_descale, k_cache, tensor_layout)
    q_scales = None if plan.q_scales is None else q_descale.float().expand(plan.q_scales).contiguous()
    at = dict(
        q=q.data_ptr(), q_scales=0 if q_scales is None else q_scales.data_ptr(), k=k_cache.data_ptr(), k_scales=k_scales.data_ptr(),
        v=v_cache.data_ptr(), v_scales=v_scales.data_ptr(), block_table=block_table.data_ptr(), max_pages=plan.max_pages,
        lengths=lengths.data_ptr(), query_starts=cu_seqlens_q.data_ptr() if plan.packed else 0, output=result.data_ptr(),
        lse=lse.data_ptr() if return_lse else 0,
    )  # fmt: skip
    plan.launch(plan.sequences, at, workspace.data_ptr(), workspace.numel(), stream, validate=validate)
    return result, (lse.t() if return_lse and plan.packed else lse)


class _Plan:
    """A native plan, with what the eager call needs of it at hand."""

    __slots__ = ("as_given", "captured", "counts", "dtype", "kind", "launch", "lse_shape", "max_pages", "native", "packed", "q_scales", "sequences", "sinks", "sizes", "workspace_bytes")

    def __init__(self, given, scoring, sinks, out, out_dtype, return_lse, batch_invariant):
        q, k_cache, _, block_table, lengths, cu_seqlens_q, _, _, k_descale, v_descale, tensor_layout = given
        call = _paged.check(Torch, *given)
        if sinks is not None:
            check_sinks(sinks.shape, q.shape[-2])
        self.sinks = None if sinks is None else sinks.contiguous()
        self.dtype = _torch._result_dtype(q, out, out_dtype)
        if out is not None:
            _torch._check_out(out, q.shape, q, self.dtype)
        for name, tensor in (("block_table", block_table), ("lengths", lengths), ("cu_seqlens_q", cu_seqlens_q)):
            if tensor is not None and tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
                raise ValueError(f"{name}: its entries are {tensor.stride(-1)} apart; call {name}.contiguous()")
        if _torch._is_capturing():
            raise RuntimeError(
                "a call of this kind is not planned yet, and planning compiles kernels, which no stream can capture; call it once before the capture"
            )
        self.packed, self.sequences, self.lse_shape = call.packed, call.sequences, call.lse_shape
        self.max_pages = block_table.stride(0) if block_table.shape[0] > 1 else block_table.shape[1]
        self.q_scales = None if call.q_scales is None else (call.sequences, q.shape[-2])
        self.sizes, self.kind = call.cache["sizes"], call.cache["scales"]
        # Whether the scales can be read where they are.
        self.as_given = call.k_scales is k_descale and call.v_scales is v_descale
        strides = lambda tensor: (0, tensor.stride(1), tensor.stride(0), tensor.stride(2)) if call.packed else _torch._strides(tensor, "NHD")  # noqa: E731
        result = torch.empty_like(q.to("meta"), dtype=self.dtype) if out is None else out
        from ._machine import settle

        settle()
        torch.cuda.init()
        self.native = _eightfold.plan_paged(
            q.get_device(), call.sizes, call.kind, (strides(q), strides(result)), call.cache, scoring=scoring_of(*scoring, None if sinks is None else []),
            sinks=0 if sinks is None else self.sinks.data_ptr(), packed=call.packed,
            batch_invariant=bool(batch_invariant), output=_torch._VALUES[self.dtype], lse=bool(return_lse),
        )  # fmt: skip
        self.launch, self.workspace_bytes, self.counts = self.native.launch, self.native.workspace_bytes, self.native.zeroed_bytes
        #: Whether a graph launches it.
        self.captured = False

    def scales_of(self, k_descale, v_descale, like, tensor_layout):
        """As the plan takes them: f32, and those of K and of V alike."""
        _, k, v = _paged.scales_of(Torch, k_descale, v_descale, like, self.sizes, self.sequences, tensor_layout)
        return k, v


def _on_cpu(given, scoring, sinks, out, out_dtype, return_lse, batch_invariant):
    q, k_cache, v_cache, block_table, lengths, cu_seqlens_q = given[:6]
    if q.device.type != "cpu":
        raise ValueError(f"q: is on {q.device}, where nothing can be computed; move it to a CUDA device or the CPU")
    call = _paged.check(Torch, *given)
    dtype = _torch._result_dtype(q, out, out_dtype)
    wanted = torch.empty_like(q, dtype=dtype) if out is None else out
    _torch._check_out(wanted, q.shape, q, dtype)
    result = wanted if wanted.is_contiguous() else torch.empty(q.shape, dtype=dtype)
    lse = torch.empty(call.lse_shape, dtype=torch.float32) if return_lse else None
    _paged.attend_on_host(
        Torch, call, q.detach(), k_cache, v_cache, block_table, lengths, cu_seqlens_q, result, lse, scoring_of(*scoring, None if sinks is None else sinks.tolist()), batch_invariant
    )
    if result is not wanted:
        wanted.copy_(result)
    return wanted, (lse.t() if return_lse and call.packed else lse)


def append_kv(k, v, k_cache, v_cache, slots, k_descale, v_descale, tensor_layout, validate=False):
    _refuse_gradients("append_kv", k, v)
    _check_tensors(k_cache, k=k, v=v, v_cache=v_cache, slots=slots)
    _check_scales(k_cache.device, k_descale=k_descale, v_descale=v_descale)
    k_descale, v_descale = (one if one is None or isinstance(one, _Tensor) else _torch._number(one, k_cache.device) for one in (k_descale, v_descale))
    if _is_traced(k, v, k_cache, v_cache, slots):
        if validate:
            raise RuntimeError("validate: looks and waits, which no graph can hold; leave it out of what is compiled")
        _paged.check_append(Torch, k, v, k_cache, v_cache, slots, k_descale, v_descale, tensor_layout)
        torch.ops.eightfold.append_kv(k, v, k_cache, v_cache, slots, k_descale, v_descale, tensor_layout)
    else:
        _append(k, v, k_cache, v_cache, slots, k_descale, v_descale, tensor_layout, validate)


def _append(k, v, k_cache, v_cache, slots, k_descale, v_descale, tensor_layout, validate=False):
    if k_cache.get_device() < 0:
        if k_cache.device.type != "cpu":
            raise ValueError(f"k_cache: is on {k_cache.device}, where nothing can be written; move it to a CUDA device or the CPU")
        return _paged.append_on_host(Torch, k.detach(), v.detach(), k_cache, v_cache, slots, k_descale, v_descale, tensor_layout)
    # Any number of tokens is of one kind, as long as all have as many.
    fits = k.shape == v.shape and slots.shape == k.shape[:1]
    key = (
        "append", *map(_kind_of, (k_cache, v_cache, k_descale, v_descale)), k.shape[1:], k.stride(), k.dtype, v.stride(), v.dtype,
        slots.dtype, fits, tensor_layout, k_cache.get_device(),
    )  # fmt: skip
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = _AppendPlan(k, v, k_cache, v_cache, slots, k_descale, v_descale, tensor_layout)
    k_scales, v_scales = (k_descale, v_descale) if plan.as_given else plan.scales_of(k_descale, v_descale, k_cache, tensor_layout)
    if _torch._is_capturing():
        if validate:
            raise RuntimeError("validate: looks and waits, which no stream can capture; leave it out of the graph")
        plan.captured = True
    slots = slots.contiguous()
    plan.native.launch(
        k.shape[0], (k.data_ptr(), v.data_ptr()), slots.data_ptr(), (k_cache.data_ptr(), v_cache.data_ptr()),
        (k_scales.data_ptr(), v_scales.data_ptr()), _torch._raw_stream(k_cache.get_device()), validate,
    )  # fmt: skip
    return None


class _AppendPlan:
    __slots__ = ("as_given", "captured", "native", "sizes")

    def __init__(self, k, v, k_cache, v_cache, slots, k_descale, v_descale, tensor_layout):
        cache, values, k_scales, v_scales = _paged.check_append(Torch, k, v, k_cache, v_cache, slots, k_descale, v_descale, tensor_layout)
        self.as_given = k_scales is k_descale and v_scales is v_descale
        if cache["scales"] == "token" and not self.as_given:
            raise TypeError("k_descale: scales of tokens are written; give both as float32")
        for name, new in (("k", k), ("v", v)):
            if new.stride(2) != 1:
                raise ValueError(f"{name}: its channels are {new.stride(2)} elements apart; call {name}.contiguous()")
        if _torch._is_capturing():
            raise RuntimeError("an append of this kind is not planned yet, and planning compiles kernels, which no stream can capture; call it once before")
        from ._machine import settle

        settle()
        torch.cuda.init()
        self.sizes = cache["sizes"]
        self.native = _eightfold.plan_append(k_cache.get_device(), cache, values, (k.stride()[:2], v.stride()[:2]))
        self.captured = False

    def scales_of(self, k_descale, v_descale, like, tensor_layout):
        _, k, v = _paged.scales_of(Torch, k_descale, v_descale, like, self.sizes, None, tensor_layout)
        return k, v


def merge(outs, lses, tensor_layout):
    _refuse_gradients("merge", *outs, *lses)
    _check_tensors(outs[0], **{f"outs[{i}]": one for i, one in enumerate(outs)}, **{f"lses[{i}]": one for i, one in enumerate(lses)})
    if _is_traced(*outs, *lses):
        return torch.ops.eightfold.merge(outs, lses, tensor_layout)
    return _merge(outs, lses, tensor_layout)


def _merge(outs, lses, tensor_layout):
    batch, rows, heads, channels = _paged.check_parts(Torch, outs, lses, tensor_layout)
    first = outs[0]
    out = torch.empty(first.shape, dtype=first.dtype, device=first.device)
    if first.get_device() < 0:
        if first.device.type != "cpu":
            raise ValueError(f"outs[0]: is on {first.device}, where nothing can be computed; move it to a CUDA device or the CPU")
        lse = torch.empty(lses[0].shape, dtype=torch.float32)
        _paged.merge_on_host(Torch, [one.detach() for one in outs], [one.detach() for one in lses], tensor_layout, out, lse)
        return out, lse
    key = ("merge", first.get_device(), channels, first.dtype)
    plan = _plans.get(key)
    if plan is None:
        if _torch._is_capturing():
            raise RuntimeError("merging of this kind is not planned yet, and planning compiles kernels, which no stream can capture; call it once before")
        from ._machine import settle

        settle()
        torch.cuda.init()
        plan = _plans[key] = _MergePlan(_eightfold.plan_merge(first.get_device(), channels, _torch._VALUES[first.dtype]))
    # Rows of the output are in the order of the layout, and those of the log-sum-exp follow them.
    turn = (lambda lse: lse.transpose(-1, -2)) if tensor_layout == "NHD" else (lambda lse: lse)
    held = [(one.contiguous(), turn(sums).contiguous()) for one, sums in zip(outs, lses)]
    lse = torch.empty(turn(lses[0]).shape, dtype=torch.float32, device=first.device)
    at = [(one.data_ptr(), sums.data_ptr()) for one, sums in held]
    plan.native.launch(batch * rows * heads, at, (out.data_ptr(), lse.data_ptr()), _torch._raw_stream(first.get_device()))
    return out, turn(lse).contiguous()


class _MergePlan:
    __slots__ = ("captured", "native")

    def __init__(self, native):
        # There are few kinds, so that none is ever dropped.
        self.native, self.captured = native, True


# The operators: what torch.compile, export, subclasses and modes see.

_library = torch.library.Library("eightfold", "FRAGMENT")
_library.define(
    "paged_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor lengths, Tensor? cu_seqlens_q, int? max_seqlen_q, "
    "Tensor? q_descale, Tensor k_descale, Tensor v_descale, str tensor_layout, bool is_causal, float? sm_scale, int window_left, "
    "int window_right, float softcap, ScalarType? out_dtype, bool return_lse, bool batch_invariant, bool validate, Tensor? sinks=None) -> "
    "(Tensor, Tensor)"
)
_library.define(
    "append_kv(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots, Tensor(c!) k_descale, Tensor(d!) v_descale, "
    "str tensor_layout) -> ()"
)
_library.define("merge(Tensor[] outs, Tensor[] lses, str tensor_layout) -> (Tensor, Tensor)")


def _attention_operator(
    q, k_cache, v_cache, block_table, lengths, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale, tensor_layout, is_causal,
    sm_scale, window_left, window_right, softcap, out_dtype, return_lse, batch_invariant, validate, sinks=None,
):  # fmt: skip
    result, lse = _run(
        q, k_cache, v_cache, block_table, lengths, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale, tensor_layout, is_causal,
        sm_scale, (window_left, window_right), softcap, sinks, None, out_dtype, return_lse, batch_invariant, validate,
    )  # fmt: skip
    return result, (lse.contiguous() if return_lse else torch.empty(0, dtype=torch.float32, device=q.device))


for _device in ("CPU", "CUDA"):
    _library.impl("paged_attention", _attention_operator, _device)
    _library.impl("append_kv", _append, _device)
    _library.impl("merge", _merge, _device)


@torch.library.register_fake("eightfold::paged_attention", lib=_library)
def _fake_attention(
    q, k_cache, v_cache, block_table, lengths, cu_seqlens_q, max_seqlen_q, q_descale, k_descale, v_descale, tensor_layout, is_causal,
    sm_scale, window_left, window_right, softcap, out_dtype, return_lse, batch_invariant, validate, sinks=None,
):  # fmt: skip
    shape = (0,)
    if return_lse:
        shape = (q.shape[1], q.shape[0]) if cu_seqlens_q is not None else (q.shape[0], q.shape[2], q.shape[1])
    return torch.empty_like(q, dtype=_torch._result_dtype(q, None, out_dtype)), q.new_empty(shape, dtype=torch.float32)


@torch.library.register_fake("eightfold::append_kv", lib=_library)
def _fake_append(k, v, k_cache, v_cache, slots, k_descale, v_descale, tensor_layout):
    return None


@torch.library.register_fake("eightfold::merge", lib=_library)
def _fake_merge(outs, lses, tensor_layout):
    _paged.check_parts(Torch, outs, lses, tensor_layout)
    return outs[0].new_empty(outs[0].shape), lses[0].new_empty(lses[0].shape)


def _backward(ctx, *gradients):
    raise _no_backward("attention to a cache")


torch.library.register_autograd("eightfold::paged_attention", _backward, lib=_library)
torch.library.register_autograd("eightfold::merge", _backward, lib=_library)
