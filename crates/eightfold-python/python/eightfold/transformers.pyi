from typing import Any

from ._fp8_cache import Fp8Cache as Fp8Cache
from ._sdpa import Served

served: Served

def register(name: str = ..., *, accuracy: str = ..., centre_keys: bool = ..., input_format: str = ...) -> None: ...
def eightfold_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = ...,
    scaling: float | None = ...,
    is_causal: bool | None = ...,
    **kwargs: Any,
) -> tuple[Any, None]: ...
