"""What FP8 costs on the user's own tensors."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np

from . import _eightfold
from ._attention import attention
from ._machine import device_of
from ._rules import check_input_format, check_words, scoring_of, sizes_of

# Pairs of a query and a key, over all heads, that are looked at: some seconds in float64.
_MOST_PAIRS = 1 << 26


@dataclasses.dataclass(frozen=True)
class Check:
    """Relative errors (L2 norm of the difference over that of the exact result) against attention in float64."""

    #: Of the result as a whole.
    total: float
    #: What quantising Q, K and V costs, with everything after it exact.
    quantiser: float
    #: What the kernel costs on the quantised tensors.
    kernel: float
    #: What quantising would cost if K were not centred, or were, where it is not; in INT8 it always is.
    quantiser_otherwise: float
    centre_keys: bool
    accuracy: str
    #: What q and k were quantised to.
    input_format: str
    #: Heads that were looked at, of all.
    heads: tuple
    recommendation: str

    def __str__(self) -> str:
        other = "with" if not self.centre_keys else "without"
        otherwise = "" if self.input_format == "int8" else f"({self.quantiser_otherwise:.2%} {other} centring) "
        return (
            f"error {self.total:.2%} against float64 ({self.heads[0]} of {self.heads[1]} heads): quantising to {self.input_format} "
            f"{self.quantiser:.2%} {otherwise}and kernel {self.kernel:.2%} in accuracy {self.accuracy!r}\n{self.recommendation}"
        )


def check(
    q, k, v, *, tensor_layout="NHD", is_causal=False, sm_scale=None, window_size=(-1, -1), softcap=0.0, accuracy="fast", centre_keys=True,
    input_format="auto",
):  # fmt: skip
    """Runs attention on these very tensors, and in float64 beside it: how large the error is, and what it is made of.

    For long sequences some heads are taken. The result is a :class:`Check`, which prints as two lines.

    >>> import numpy as np, eightfold
    >>> q, k, v = (np.random.default_rng(i).standard_normal((1, 128, 2, 64), np.float32) for i in range(3))
    >>> found = eightfold.check(q, k, v)
    >>> 0.001 < found.total < 0.1, found.quantiser < found.total * 1.5, found.heads
    (True, True, (2, 2))
    """
    check_words(tensor_layout, accuracy)
    if "float8" in str(q.dtype):
        raise TypeError("q: is FP8 already, so that what quantising cost is gone; pass the values that it was made of")
    sizes = sizes_of(q.shape, k.shape, v.shape, tensor_layout)
    check_input_format(input_format, False)
    batch, heads, kv_heads, rows, keys, dim, value_dim = sizes
    scoring = scoring_of(is_causal, sm_scale, window_size, softcap)
    input_format, _ = _eightfold.choose_format(device_of(q), sizes, scoring=scoring, accuracy=accuracy, input_format=input_format)
    centre_keys = bool(centre_keys) or input_format == "int8"
    with _no_grad():
        out = attention(
            q, k, v, tensor_layout=tensor_layout, is_causal=is_causal, sm_scale=sm_scale, window_size=window_size, softcap=softcap,
            accuracy=accuracy, centre_keys=centre_keys, input_format=input_format,
        )  # fmt: skip
    order = (0, 2, 1, 3) if tensor_layout == "NHD" else (0, 1, 2, 3)
    host = lambda x: _as_f32(x).transpose(order)  # noqa: E731
    group = heads // kv_heads
    # Some key heads of the first sequences, each with all its query heads.
    taken = max(1, min(batch * kv_heads, _MOST_PAIRS // max(1, rows * keys * group)))
    sequences = max(1, min(batch, taken // kv_heads))
    some_kv = kv_heads if taken >= kv_heads else taken
    part = lambda x, count: np.ascontiguousarray(x[:sequences, :count])  # noqa: E731
    qs, ks, vs = part(host(q), some_kv * group), part(host(k), some_kv), part(host(v), some_kv)
    result = part(host(out), some_kv * group).astype(np.float64)
    if not all(np.isfinite(x).all() for x in (qs, ks, vs)):
        raise ValueError("q, k or v: holds NaN or an infinity, which FP8 attention turns into results without meaning; look for where it comes from")
    part_sizes = (sequences, some_kv * group, some_kv, rows, keys, dim, value_dim)
    exact = _reference(qs.astype(np.float64), ks.astype(np.float64), vs.astype(np.float64), part_sizes, scoring)

    def on_codes(centred):
        return _reference(
            *(_round_trip(values, operand, input_format, centred) for operand, values in enumerate((qs, ks, vs))), part_sizes, scoring
        )

    quantised = on_codes(centre_keys)
    otherwise = quantised if input_format == "int8" else on_codes(not centre_keys)
    total, quantiser, kernel = _error(result, exact), _error(quantised, exact), _error(result, quantised)
    other = _error(otherwise, exact)
    return Check(
        total,
        quantiser,
        kernel,
        other,
        centre_keys,
        accuracy,
        input_format,
        (sequences * some_kv * group, batch * heads),
        _recommend(quantiser, kernel, other, centre_keys, accuracy),
    )


def _recommend(quantiser, kernel, otherwise, centre_keys, accuracy):
    if otherwise < 0.8 * quantiser:
        return f"Set centre_keys={not centre_keys}: quantising then costs {otherwise:.2%}."
    if kernel > quantiser and accuracy != "precise":
        return "The kernel costs more than quantising: accuracy='precise' would take most of that away."
    if quantiser > 0.1:
        return "Quantising costs more than a tenth: FP8 does not suit these tensors; keep this layer in bf16."
    return "Quantising costs most of it, and no setting changes that: if the model is as good as before, keep it."


def _error(values, exact):
    size = float(np.linalg.norm(exact))
    return float(np.linalg.norm(values - exact)) / size if size else 0.0


def _round_trip(values, operand, input_format, centre_keys):
    result = np.empty(values.shape, np.float64)
    _eightfold.round_trip(
        values.ctypes.data, values.shape, "f32", "HND", result.ctypes.data,
        operand=operand, input_format=input_format, centre_keys=bool(centre_keys),
    )  # fmt: skip
    return result


def _reference(q, k, v, sizes, scoring):
    result = np.empty((*q.shape[:3], v.shape[3]), np.float64)
    _eightfold.reference(q.ctypes.data, k.ctypes.data, v.ctypes.data, result.ctypes.data, sizes, scoring=scoring)
    return result


def _as_f32(x):
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return x.detach().to("cpu", torch.float32).numpy()
    return np.asarray(x).astype(np.float32)


def _no_grad():
    torch = sys.modules.get("torch")
    if torch is not None:
        return torch.no_grad()
    import contextlib

    return contextlib.nullcontext()
