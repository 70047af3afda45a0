"""torch tensors: the eager call, which goes straight to the native plan, and the operator for compilers and tracers."""

from __future__ import annotations

import torch

from . import _eightfold
from ._rules import check_input_format, check_sinks, check_validate, check_words, descales_missing, descales_unused, scoring_of, sizes_of

_Tensor = torch.Tensor
_VALUES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_CODES = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}

# By everything that a call is planned for, the oldest first.
_plans: dict = {}
_MOST_PLANS = 4096
# By device and stream, for plans that count in memory which must be zero in between.
_counting: dict = {}
# Scales that were given as numbers, by value and device. Never dropped: a graph may read them.
_numbers: dict = {}
_MOST_NUMBERS = 1024

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (lambda device: torch.cuda.current_stream(device).cuda_stream)
_is_capturing = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None) or torch.cuda.is_current_stream_capturing
_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_is_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_empty, _empty_like = torch.empty, torch.empty_like


def attention(
    q, k, v, tensor_layout, is_causal, sm_scale, q_descale, k_descale, v_descale, accuracy, centre_keys, out, out_dtype, return_lse,
    window_size=(-1, -1), softcap=0.0, sinks=None, input_format="auto", validate=False,
):  # fmt: skip
    """As :func:`eightfold.attention`; ``NotImplemented`` where no torch tensor is among q, k and v."""
    is_plain = type(q) is _Tensor and type(k) is _Tensor and type(v) is _Tensor
    if _is_compiling() or not is_plain or _modes():
        return _traced(
            q, k, v, tensor_layout, is_causal, sm_scale, q_descale, k_descale, v_descale, accuracy, centre_keys, out, out_dtype, return_lse,
            window_size, softcap, sinks, input_format, validate,
        )  # fmt: skip
    if _is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise _no_backward()
    result, lse = _run(
        q, k, v, q_descale, k_descale, v_descale, tensor_layout, is_causal, sm_scale, accuracy, centre_keys, out, out_dtype, return_lse,
        window_size, softcap, sinks, input_format, validate,
    )  # fmt: skip
    return (result, lse) if return_lse else result


def _no_backward():
    return RuntimeError(
        "attention has no backward pass, and q, k or v requires a gradient; call it under torch.no_grad(), or train with "
        "torch.nn.functional.scaled_dot_product_attention"
    )


def _run(
    q, k, v, q_descale, k_descale, v_descale, tensor_layout, is_causal, sm_scale, accuracy, centre_keys, out, out_dtype, return_lse,
    window_size, softcap, sinks, input_format, validate,
):  # fmt: skip
    device = q.get_device()
    if device < 0:
        return _on_cpu(
            q, k, v, q_descale, k_descale, v_descale, tensor_layout, is_causal, sm_scale, accuracy, centre_keys, out, out_dtype, return_lse,
            window_size, softcap, sinks, input_format, validate,
        )  # fmt: skip
    if validate:
        check_validate(validate, q.dtype in _CODES)
        if _is_capturing():
            raise RuntimeError("validate: looks and waits, which no stream can capture; leave it out of the graph")
    scales = None
    granularity = None
    if q_descale is not None or k_descale is not None or v_descale is not None or q.dtype in _CODES:
        granularity, scales, _held = _descales(q, k, v, q_descale, k_descale, v_descale, tensor_layout)
    key = (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        device, k.get_device(), v.get_device(), tensor_layout, is_causal, sm_scale, accuracy, centre_keys, return_lse, granularity,
        out_dtype, None if out is None else _kind_of(out), window_size, softcap, sinks is None, input_format,
    )  # fmt: skip
    plan = _plans.get(key)
    if plan is None:
        _make_room()
        plan = _plans[key] = _Plan(
            q, k, v, tensor_layout, is_causal, sm_scale, accuracy, centre_keys, out, out_dtype, return_lse, granularity,
            window_size, softcap, sinks, input_format,
        )  # fmt: skip
    if out is not None:
        result = out
    else:
        result = _empty_like(q, dtype=plan.dtype) if plan.shape is None else q.new_empty(plan.shape, dtype=plan.dtype)
    lse = _empty(plan.lse_shape, dtype=torch.float32, device=q.device) if return_lse else None
    stream = _raw_stream(device)
    size = plan.workspace_bytes
    if not plan.captured and _is_capturing():
        plan.captured = True
    if plan.counts:
        workspace = _counting_workspace(q.device, stream, size, plan.counts)
    elif size:
        workspace = _empty(size, dtype=torch.uint8, device=q.device)
    else:
        workspace = None
    if validate:
        plan.native.validate(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), result.data_ptr(), lse.data_ptr() if return_lse else 0,
            workspace.data_ptr() if size else 0, size, stream,
        )  # fmt: skip
    plan.launch(
        q.data_ptr(), k.data_ptr(), v.data_ptr(), result.data_ptr(), lse.data_ptr() if return_lse else 0,
        workspace.data_ptr() if size else 0, size, stream, scales,
    )  # fmt: skip
    return result, lse


def _make_room():
    """Drops the older half of plans, if there are many, but none that a graph launches: what it has on the device stays."""
    if len(_plans) >= _MOST_PLANS:
        for key in list(_plans)[: _MOST_PLANS // 2]:
            plan = _plans.get(key)
            if plan is not None and not plan.captured:
                _plans.pop(key, None)


def _kind_of(out):
    if not isinstance(out, _Tensor):
        raise _no_tensor("out", out)
    return out.shape, out.stride(), out.dtype, out.get_device()


def _no_tensor(name, value):
    return TypeError(f"{name}: is {type(value).__name__}, but others are torch tensors; make it one, too")


def _counting_workspace(device, stream, size, zeroed):
    """Memory whose front is zero, and is left so: the stream's own, and in a graph the graph's own."""
    if _is_capturing():
        memory = _empty(size, dtype=torch.uint8, device=device)
        memory[:zeroed].zero_()
        return memory
    known = _counting.get((device, stream))
    if known is None or known.numel() < size:
        # What it outgrew goes back to torch's allocator, which keeps it for this stream.
        size = max(size, 2 * known.numel() if known is not None else 0)
        known = _counting[device, stream] = torch.zeros(size, dtype=torch.uint8, device=device)
    return known


class _Plan:
    """A native plan, with what the eager call needs of it at hand."""

    __slots__ = ("captured", "counts", "dtype", "launch", "lse_shape", "native", "shape", "workspace_bytes")

    def __init__(
        self, q, k, v, tensor_layout, is_causal, sm_scale, accuracy, centre_keys, out, out_dtype, return_lse, granularity,
        window_size, softcap, sinks, input_format,
    ):  # fmt: skip
        sizes = _check(q, k, v, tensor_layout, accuracy)
        check_input_format(input_format, q.dtype in _CODES)
        scoring = scoring_of(is_causal, sm_scale, window_size, softcap, None if sinks is None else [])
        self.dtype = _result_dtype(q, out, out_dtype)
        #: Of the result, where that is not the one of q.
        self.shape = None if v.shape[3] == q.shape[3] else (*q.shape[:3], v.shape[3])
        if out is not None:
            _check_out(out, self.shape or q.shape, q, self.dtype)
        if _is_capturing():
            raise RuntimeError(
                "a call of this kind is not planned yet, and planning compiles kernels, which no stream can capture; call it "
                "once before the capture, or eightfold.warmup(…)"
            )
        result = _result_like(q.to("meta"), v, self.dtype) if out is None else out
        strides = tuple(_strides(tensor, tensor_layout) for tensor in (q, k, v, result))
        common = dict(scoring=scoring, accuracy=accuracy, output=_VALUES[self.dtype], lse=bool(return_lse))
        from ._machine import settle

        settle()
        device = q.get_device()
        torch.cuda.init()
        if granularity is None:
            self.native = _eightfold.plan_values(
                device, sizes, _VALUES[q.dtype], strides, centre_keys=bool(centre_keys), input_format=input_format, **common
            )
        else:
            self.native = _eightfold.plan_codes(device, sizes, _CODES[q.dtype], strides, granularity, **common)
        batch, heads, _, rows, *_ = sizes
        self.lse_shape = (batch, heads, rows)
        self.launch = self.native.launch
        self.workspace_bytes = self.native.workspace_bytes
        #: Bytes at the front of the workspace that must be zero.
        self.counts = self.native.zeroed_bytes
        #: Whether a graph launches it.
        self.captured = False


def _strides(tensor, tensor_layout):
    """Batch, head, row, channel."""
    a, b, c, d = tensor.stride()
    return (a, c, b, d) if tensor_layout == "NHD" else (a, b, c, d)


def _check(q, k, v, tensor_layout, accuracy):
    check_words(tensor_layout, accuracy)
    for name, tensor in zip("qkv", (q, k, v)):
        if not isinstance(tensor, _Tensor):
            raise _no_tensor(name, tensor)
        if tensor.device.type not in ("cpu", "cuda", "meta"):
            raise ValueError(f"{name}: is on {tensor.device}, for which there are no kernels; move it to a CUDA device or the CPU")
        if tensor.device != q.device:
            raise ValueError(f"{name}: is on {tensor.device}, but q is on {q.device}; move q, k and v to one device")
        if tensor.dtype not in _VALUES and tensor.dtype not in _CODES:
            raise TypeError(
                f"{name}: dtype {tensor.dtype} is not served; convert it to bfloat16, float16 or float32, or to float8_e4m3fn with a descale"
            )
        if tensor.dtype != q.dtype:
            raise TypeError(f"{name}: is {tensor.dtype}, but q is {q.dtype}; convert q, k and v to one dtype")
    sizes = sizes_of(q.shape, k.shape, v.shape, tensor_layout)
    for name, tensor in zip("qkv", (q, k, v)):
        if q.device.type == "cuda" and tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise ValueError(f"{name}: its last dimension has stride {tensor.stride(-1)}, not 1; call {name}.contiguous()")
    return sizes


def _result_dtype(q, out, out_dtype):
    if out is not None and not isinstance(out, _Tensor):
        raise _no_tensor("out", out)
    dtype = out_dtype or (out.dtype if out is not None else None) or (torch.bfloat16 if q.dtype in _CODES else q.dtype)
    if dtype not in _VALUES:
        raise TypeError(f"out_dtype: {dtype} is not written; say torch.bfloat16, torch.float16 or torch.float32")
    return dtype


def _check_out(out, shape, q, dtype):
    if tuple(out.shape) != tuple(shape) or out.dtype != dtype or out.device != q.device:
        raise ValueError(
            f"out: {out.dtype} of {tuple(out.shape)} on {out.device} cannot take {dtype} of {tuple(shape)} on {q.device}; "
            "make it with torch.empty_like(q), or with the channels of v"
        )


def _result_like(q, v, dtype):
    """As q lies in memory, unless the result has other channels."""
    return _empty_like(q, dtype=dtype) if v.shape[3] == q.shape[3] else q.new_empty((*q.shape[:3], v.shape[3]), dtype=dtype)


def _refuse_descales(*descales):
    """Those of tensors that are not FP8."""
    for name, descale in zip("qkv", descales):
        if descale is not None:
            raise descales_unused(name)


def _sinks(sinks, q, heads):
    """A logit for each head of q, as f32 on its device."""
    sinks = sinks if isinstance(sinks, _Tensor) else torch.as_tensor(sinks, device=q.device)
    check_sinks(sinks.shape, heads)
    if sinks.device != q.device:
        raise ValueError(f"sinks: is on {sinks.device}, but q is on {q.device}; move it there")
    return sinks.float()


_NONE_PER_HEAD = (False, False, False)


def _is_single(descale, q):
    """Whether it is the usual scale, which needs nothing: one f32 on the device of q."""
    return type(descale) is _Tensor and descale.dtype is torch.float32 and descale.numel() == 1 and descale.get_device() == q.get_device()


def _descales(q, k, v, q_descale, k_descale, v_descale, tensor_layout):
    """Whether each tensor has a scale per head, the addresses of the scales, and the tensors that hold them."""
    if q.dtype not in _CODES:
        _refuse_descales(q_descale, k_descale, v_descale)
    if _is_single(q_descale, q) and _is_single(k_descale, q) and _is_single(v_descale, q):
        return _NONE_PER_HEAD, (q_descale.data_ptr(), k_descale.data_ptr(), v_descale.data_ptr()), None
    batch, heads, kv_heads, *_ = sizes_of(q.shape, k.shape, v.shape, tensor_layout)
    held = (
        _descale("q", q_descale, q.device, batch, heads, kv_heads),
        _descale("k", k_descale, q.device, batch, kv_heads, kv_heads),
        _descale("v", v_descale, q.device, batch, kv_heads, kv_heads),
    )
    return tuple(scale.numel() > 1 for scale in held), tuple(scale.data_ptr() for scale in held), held


def _number(value, device):
    """A tensor of one f32 on the device."""
    if _is_compiling():
        return torch.full((1,), float(value), dtype=torch.float32, device=device)
    key = (float(value), device)
    known = _numbers.get(key)
    if known is None:
        if len(_numbers) >= _MOST_NUMBERS or (device.type == "cuda" and _is_capturing()):
            return torch.full((1,), key[0], dtype=torch.float32, device=device)
        known = _numbers[key] = torch.full((1,), key[0], dtype=torch.float32, device=device)
        if device.type == "cuda":
            # It serves every stream from now on.
            torch.cuda.current_stream(device).synchronize()
    return known


def _descale(name, descale, device, batch, heads, kv_heads):
    """One number, or one for each batch and head, as f32 without gaps on the device."""
    if descale is None:
        raise descales_missing(name)
    if not isinstance(descale, _Tensor):
        return _number(descale, device)
    if descale.device != device:
        raise ValueError(f"{name}_descale: is on {descale.device}, but q is on {device}; move it there")
    scales = descale if descale.dtype == torch.float32 else descale.float()
    if scales.numel() == 1:
        return scales
    if tuple(scales.shape) == (batch, kv_heads) and heads != kv_heads:
        scales = scales.repeat_interleave(heads // kv_heads, dim=1)
    if tuple(scales.shape) != (batch, heads):
        raise ValueError(
            f"{name}_descale: shape {tuple(scales.shape)} is neither one number nor (batch, heads) = {(batch, heads)}; pass one of them"
        )
    return scales.contiguous()


def _on_cpu(
    q, k, v, q_descale, k_descale, v_descale, tensor_layout, is_causal, sm_scale, accuracy, centre_keys, out, out_dtype, return_lse,
    window_size, softcap, sinks, input_format, validate,
):  # fmt: skip
    sizes = _check(q, k, v, tensor_layout, accuracy)
    check_input_format(input_format, q.dtype in _CODES)
    check_validate(validate, q.dtype in _CODES)
    if q.device.type != "cpu":
        raise ValueError(f"q: is on {q.device}, where nothing can be computed; move it to a CUDA device or the CPU")
    dtype = _result_dtype(q, out, out_dtype)
    batch, heads, kv_heads, rows, *_ = sizes
    # Strides are those that a result has on a device.
    wanted = _result_like(q, v, dtype) if out is None else out
    _check_out(wanted, (*q.shape[:3], v.shape[3]), q, dtype)
    result = wanted if wanted.is_contiguous() else torch.empty(wanted.shape, dtype=dtype)
    if sinks is not None:
        sinks = _sinks(sinks, q, heads).tolist()
    lse = torch.empty((batch, heads, rows), dtype=torch.float32) if return_lse else None
    held = [tensor.detach().contiguous() for tensor in (q, k, v)]
    at = [tensor.data_ptr() for tensor in held] + [result.data_ptr(), lse.data_ptr() if return_lse else 0]
    scoring = scoring_of(is_causal, sm_scale, window_size, softcap, sinks)
    common = dict(scoring=scoring, accuracy=accuracy, output_dtype=_VALUES[dtype])
    if q.dtype in _CODES:
        scales = (
            _descale("q", q_descale, q.device, batch, heads, kv_heads).reshape(-1).tolist(),
            _descale("k", k_descale, q.device, batch, kv_heads, kv_heads).reshape(-1).tolist(),
            _descale("v", v_descale, q.device, batch, kv_heads, kv_heads).reshape(-1).tolist(),
        )
        _eightfold.attend_codes(*at, sizes, _CODES[q.dtype], tensor_layout, scales, **common)
    else:
        _refuse_descales(q_descale, k_descale, v_descale)
        _eightfold.attend_values(*at, sizes, _VALUES[q.dtype], tensor_layout, centre_keys=bool(centre_keys), input_format=input_format, **common)
    if result is not wanted:
        wanted.copy_(result)
    return wanted, lse


# The operator: what torch.compile, export, subclasses and modes see.

_library = torch.library.Library("eightfold", "DEF")
_library.define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? q_descale, Tensor? k_descale, Tensor? v_descale, str tensor_layout, "
    "bool is_causal, float? sm_scale, str accuracy, bool centre_keys, ScalarType? out_dtype, bool return_lse, int window_left=-1, "
    "int window_right=-1, float softcap=0., Tensor? sinks=None, str input_format='auto', bool validate=False) -> (Tensor, Tensor)"
)


def _operator(
    q, k, v, q_descale, k_descale, v_descale, tensor_layout, is_causal, sm_scale, accuracy, centre_keys, out_dtype, return_lse,
    window_left=-1, window_right=-1, softcap=0.0, sinks=None, input_format="auto", validate=False,
):  # fmt: skip
    result, lse = _run(
        q, k, v, q_descale, k_descale, v_descale, tensor_layout, is_causal, sm_scale, accuracy, centre_keys, None, out_dtype, return_lse,
        (window_left, window_right), softcap, sinks, input_format, validate,
    )  # fmt: skip
    return result, (lse if return_lse else _empty(0, dtype=torch.float32, device=q.device))


_library.impl("attention", _operator, "CPU")
_library.impl("attention", _operator, "CUDA")


@torch.library.register_fake("eightfold::attention", lib=_library)
def _fake(
    q, k, v, q_descale, k_descale, v_descale, tensor_layout, is_causal, sm_scale, accuracy, centre_keys, out_dtype, return_lse,
    window_left=-1, window_right=-1, softcap=0.0, sinks=None, input_format="auto", validate=False,
):  # fmt: skip
    batch, heads, _, rows, *_ = _check(q, k, v, tensor_layout, accuracy)
    check_input_format(input_format, q.dtype in _CODES)
    check_validate(validate, q.dtype in _CODES)
    lse_shape = (batch, heads, rows) if return_lse else (0,)
    return _result_like(q, v, _result_dtype(q, None, out_dtype)), q.new_empty(lse_shape, dtype=torch.float32)


def _backward(ctx, *gradients):
    raise _no_backward()


torch.library.register_autograd("eightfold::attention", _backward, lib=_library)


def _traced(
    q, k, v, tensor_layout, is_causal, sm_scale, q_descale, k_descale, v_descale, accuracy, centre_keys, out, out_dtype, return_lse,
    window_size, softcap, sinks, input_format, validate,
):  # fmt: skip
    if not any(isinstance(tensor, _Tensor) for tensor in (q, k, v)):
        return NotImplemented
    sizes = _check(q, k, v, tensor_layout, accuracy)
    check_input_format(input_format, q.dtype in _CODES)
    check_validate(validate, q.dtype in _CODES)
    window = scoring_of(is_causal, sm_scale, window_size, softcap)["window"]
    if sinks is not None:
        sinks = _sinks(sinks, q, sizes[1])
    if out is not None:
        raise ValueError("out: cannot be given where the call is traced; leave it out, and copy the result")
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise _no_backward()
    if q.dtype in _CODES:
        batch, heads, kv_heads, *_ = sizes
        q_descale = _descale("q", q_descale, q.device, batch, heads, kv_heads)
        k_descale = _descale("k", k_descale, q.device, batch, kv_heads, kv_heads)
        v_descale = _descale("v", v_descale, q.device, batch, kv_heads, kv_heads)
    else:
        _refuse_descales(q_descale, k_descale, v_descale)
    result, lse = torch.ops.eightfold.attention(
        q, k, v, q_descale, k_descale, v_descale, tensor_layout, is_causal, sm_scale, accuracy, centre_keys, out_dtype, return_lse,
        window[0], window[1], softcap, sinks, input_format, validate,
    )  # fmt: skip
    return (result, lse) if return_lse else result
