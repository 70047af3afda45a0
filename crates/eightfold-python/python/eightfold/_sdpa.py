"""In place of torch's scaled_dot_product_attention."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools

from . import _eightfold
from ._rules import scoring_of


@dataclasses.dataclass
class Served:
    """What a :func:`replace_sdpa` did: calls that ran here, and how many did not, by reason."""

    calls: int = 0
    reasons: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def __str__(self) -> str:
        others = "".join(f"; {count} passed on: {reason}" for reason, count in self.reasons.most_common())
        return f"{self.calls} {'call' if self.calls == 1 else 'calls'} served{others}"


@functools.lru_cache(maxsize=4096)
def kernel_refusal(device, sizes, is_causal, softcap, has_sinks, accuracy, input_format="auto"):
    """Why no kernel takes such a call there, the CPU being no device; ``None`` where one does."""
    from ._machine import settle

    if device is not None:
        settle()
    scoring = scoring_of(is_causal, None, None, softcap, [] if has_sinks else None)
    try:
        considered = _eightfold.explain(
            device, sizes, scoring=scoring, accuracy=accuracy, output="bf16", fp8=False, input_format=input_format
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error)
    else:
        if any(chosen for _, chosen, _ in considered):
            return None
        reason = considered[0][2] if considered else "no kernel"
    # A reason is counted: what differs from call to call is left out.
    return f"head dim {sizes[5]}" if reason.startswith(("head_dim", "value_dim")) else reason.split(";")[0]


def refusal(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, enable_gqa=False, *, softcap=0.0, sinks=None, accuracy="fast",
    input_format="auto",
):  # fmt: skip
    """Why a call of scaled_dot_product_attention cannot be served; ``None`` where it can."""
    import torch

    if attn_mask is not None:
        return "a mask as a tensor"
    if dropout_p:
        return "dropout"
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return "a gradient is required"
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        return "not four dimensions"
    if query.device.type not in ("cpu", "cuda") or key.device != query.device or value.device != query.device:
        return "devices"
    if query.dtype not in (torch.float32, torch.float16, torch.bfloat16) or key.dtype != query.dtype or value.dtype != query.dtype:
        return "dtypes"
    if key.shape[:3] != value.shape[:3] or query.shape[0] != key.shape[0] or query.shape[-1] != key.shape[-1]:
        return "shapes"
    if query.shape[1] != key.shape[1] and not (enable_gqa and query.shape[1] % key.shape[1] == 0):
        return "shapes"
    if 0 in query.shape or 0 in key.shape:
        return "no elements"
    if query.shape[2] == 1:
        return "one query a sequence: quantising K and V costs more than it gains"
    if is_causal and query.shape[2] != key.shape[2]:
        return "a causal mask aligned to the first key"
    if sinks is not None and query.device.type == "cuda":
        return "sinks"
    batch, heads, rows, channels = query.shape
    sizes = (batch, heads, key.shape[1], rows, key.shape[2], channels, value.shape[3])
    device = query.device.index if query.device.type == "cuda" else None
    if torch.compiler.is_compiling():
        # A compiler cannot ask what has a kernel: these head dims have, of K as of V, everywhere and whatever the scores.
        reason = next((f"head dim {dim}" for dim in (channels, value.shape[3]) if dim % 8 or dim > 256), None)
        if input_format == "int8" and device is not None:
            reason = "int8, compiled"
    else:
        reason = kernel_refusal(device, sizes, is_causal, softcap, sinks is not None, accuracy, input_format)
    if reason is not None:
        return reason
    if query.device.type == "cuda":
        if any(x.stride(-1) != 1 or x.data_ptr() % 16 for x in (query, key, value)):
            return "strides"
        if any(s * x.element_size() % 16 for x in (query, key, value) for s, n in zip(x.stride()[:-1], x.shape) if n > 1):
            return "strides"
    return None


@contextlib.contextmanager
def replace_sdpa(*, accuracy="fast", centre_keys=True, input_format="auto"):
    """Lets ``torch.nn.functional.scaled_dot_product_attention`` run here for as long as the block lasts.

    What cannot be served (a mask as a tensor, dropout, gradients, head dims that no kernel has) goes to torch as before; the
    value of the ``with`` says how many calls were served, and why others were not. It counts for the whole process, so
    that other threads see it, too. Names that were imported from the module before are not replaced.

    >>> import importlib.util
    >>> if importlib.util.find_spec("torch"):
    ...     import torch, eightfold
    ...     q = torch.randn(1, 2, 32, 64)
    ...     with eightfold.replace_sdpa() as served, torch.no_grad():
    ...         _ = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    ...         _ = torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    ...     assert str(served) == "1 call served; 1 passed on: dropout"
    """
    import torch

    from ._attention import attention

    before = torch.nn.functional.scaled_dot_product_attention
    served = Served()

    def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        reason = refusal(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, accuracy=accuracy, input_format=input_format)
        if reason is None:
            served.calls += 1
            return attention(
                query, key, value, tensor_layout="HND", is_causal=is_causal, sm_scale=scale, accuracy=accuracy, centre_keys=centre_keys,
                input_format=input_format,
            )  # fmt: skip
        served.reasons[reason] += 1
        # Only torch 2.5 and later know it.
        grouped = {"enable_gqa": True} if enable_gqa else {}
        return before(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale, **grouped)

    torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield served
    finally:
        torch.nn.functional.scaled_dot_product_attention = before
