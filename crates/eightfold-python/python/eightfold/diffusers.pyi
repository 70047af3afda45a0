from collections.abc import Callable
from typing import Any

from ._sdpa import Served

served: Served

def wrap(before: Callable[..., Any], *, accuracy: str = ..., centre_keys: bool = ..., input_format: str = ...) -> Callable[..., Any]: ...
def register(*, accuracy: str = ..., centre_keys: bool = ..., input_format: str = ...) -> Callable[[], None]: ...
