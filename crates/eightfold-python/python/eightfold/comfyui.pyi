from collections.abc import Callable
from typing import Any

from torch import Tensor

from ._sdpa import Served

served: Served

def attention_eightfold(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    mask: Tensor | None = ...,
    attn_precision: Any = ...,
    skip_reshape: bool = ...,
    skip_output_reshape: bool = ...,
    fallback: Callable[..., Any] | None = ...,
    **kwargs: Any,
) -> Any: ...
def override(before: Callable[..., Any], *args: Any, **kwargs: Any) -> Any: ...
def register(name: str = ...) -> None: ...
