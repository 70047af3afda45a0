import dataclasses
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar, overload

from ._eightfold import DeviceError as DeviceError
from ._eightfold import Unavailable as Unavailable
from ._sdpa import Served
from .flash_attn import flash_attn_func as flash_attn_func
from .flash_attn import flash_attn_varlen_func as flash_attn_varlen_func
from .flash_attn import flash_attn_with_kvcache as flash_attn_with_kvcache

__version__: str

_Accuracy = Literal["fast", "balanced", "exact-exp", "precise"]
_InputFormat = Literal["auto", "e4m3", "int8"]
_Layout = Literal["NHD", "HND"]

ACCURACIES: tuple[_Accuracy, ...]
INPUT_FORMATS: tuple[_InputFormat, ...]
LAYOUTS: tuple[_Layout, ...]

# A torch tensor, a numpy array, or another with __dlpack__; the result is of the same kind.
_T = TypeVar("_T")

@overload
def attention(
    q: _T,
    k: _T,
    v: _T,
    *,
    tensor_layout: _Layout = ...,
    is_causal: bool = ...,
    sm_scale: float | None = ...,
    q_descale: Any = ...,
    k_descale: Any = ...,
    v_descale: Any = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    sinks: Any = ...,
    accuracy: _Accuracy = ...,
    centre_keys: bool = ...,
    input_format: _InputFormat = ...,
    out: _T | None = ...,
    out_dtype: Any = ...,
    return_lse: Literal[False] = ...,
    stream: Any = ...,
    validate: bool = ...,
) -> _T: ...
@overload
def attention(
    q: _T,
    k: _T,
    v: _T,
    *,
    tensor_layout: _Layout = ...,
    is_causal: bool = ...,
    sm_scale: float | None = ...,
    q_descale: Any = ...,
    k_descale: Any = ...,
    v_descale: Any = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    sinks: Any = ...,
    accuracy: _Accuracy = ...,
    centre_keys: bool = ...,
    input_format: _InputFormat = ...,
    out: _T | None = ...,
    out_dtype: Any = ...,
    return_lse: Literal[True],
    stream: Any = ...,
    validate: bool = ...,
) -> tuple[_T, _T]: ...
@overload
def paged_attention(
    q: _T,
    k_cache: _T,
    v_cache: _T,
    block_table: _T,
    lengths: _T,
    *,
    cu_seqlens_q: _T | None = ...,
    max_seqlen_q: int | None = ...,
    tensor_layout: _Layout = ...,
    is_causal: bool = ...,
    sm_scale: float | None = ...,
    q_descale: Any = ...,
    k_descale: Any = ...,
    v_descale: Any = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    sinks: Any = ...,
    out: _T | None = ...,
    out_dtype: Any = ...,
    return_lse: Literal[False] = ...,
    batch_invariant: bool = ...,
    validate: bool = ...,
) -> _T: ...
@overload
def paged_attention(
    q: _T,
    k_cache: _T,
    v_cache: _T,
    block_table: _T,
    lengths: _T,
    *,
    cu_seqlens_q: _T | None = ...,
    max_seqlen_q: int | None = ...,
    tensor_layout: _Layout = ...,
    is_causal: bool = ...,
    sm_scale: float | None = ...,
    q_descale: Any = ...,
    k_descale: Any = ...,
    v_descale: Any = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    sinks: Any = ...,
    out: _T | None = ...,
    out_dtype: Any = ...,
    return_lse: Literal[True],
    batch_invariant: bool = ...,
    validate: bool = ...,
) -> tuple[_T, _T]: ...
def append_kv(
    k: _T, v: _T, k_cache: _T, v_cache: _T, slots: _T, *, k_descale: Any, v_descale: Any, tensor_layout: _Layout = ..., validate: bool = ...
) -> None: ...
def merge(outs: Sequence[_T], lses: Sequence[_T], *, tensor_layout: _Layout = ...) -> tuple[_T, _T]: ...
def sageattn(
    q: _T,
    k: _T,
    v: _T,
    tensor_layout: _Layout = ...,
    is_causal: bool = ...,
    sm_scale: float | None = ...,
    return_lse: bool = ...,
    **kwargs: Any,
) -> Any: ...

@dataclasses.dataclass(frozen=True)
class Check:
    total: float
    quantiser: float
    kernel: float
    quantiser_otherwise: float
    centre_keys: bool
    accuracy: str
    input_format: str
    heads: tuple[int, int]
    recommendation: str

def check(
    q: _T,
    k: _T,
    v: _T,
    *,
    tensor_layout: _Layout = ...,
    is_causal: bool = ...,
    sm_scale: float | None = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    accuracy: _Accuracy = ...,
    centre_keys: bool = ...,
    input_format: _InputFormat = ...,
) -> Check: ...
def configure(*, nvrtc: str | os.PathLike[str] | None = ..., cache: str | os.PathLike[str] | None = ...) -> None: ...
def doctor() -> str: ...
def explain(
    q: Any,
    k: Any = ...,
    v: Any = ...,
    *,
    tensor_layout: _Layout = ...,
    is_causal: bool = ...,
    window_size: tuple[int, int] = ...,
    softcap: float = ...,
    sinks: Any = ...,
    accuracy: _Accuracy = ...,
    input_format: _InputFormat = ...,
    fp8: bool | None = ...,
    device: int | str | None = ...,
) -> str: ...
def warmup(
    shapes: Sequence[Sequence[Any]], *, dtype: Any = ..., tensor_layout: _Layout = ..., device: Any = ..., **settings: Any
) -> list[str]: ...

def replace_sdpa(*, accuracy: _Accuracy = ..., centre_keys: bool = ..., input_format: _InputFormat = ...) -> AbstractContextManager[Served]: ...
