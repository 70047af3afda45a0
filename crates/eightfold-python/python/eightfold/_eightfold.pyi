"""The native module: addresses and strides as integers. Private; use the package."""

from typing import Any, final

__version__: str

class Unavailable(RuntimeError): ...
class DeviceError(RuntimeError): ...

_Sizes = tuple[int, int, int, int, int, int, int]
_Scoring = dict[str, Any]
_Cache = dict[str, Any]
_Memory = tuple[int, int]
_Strides = tuple[int, int, int, int]
_Four = tuple[_Strides, _Strides, _Strides, _Strides]

@final
class Plan:
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def zeroed_bytes(self) -> int: ...
    @property
    def variant(self) -> str: ...
    @property
    def input_format(self) -> str: ...
    @property
    def kernels(self) -> int: ...
    def validate(
        self, q: int, k: int, v: int, output: int, lse: int, workspace: int, workspace_bytes: int, stream: int
    ) -> None: ...
    def launch(
        self,
        q: int,
        k: int,
        v: int,
        output: int,
        lse: int,
        workspace: int,
        workspace_bytes: int,
        stream: int,
        scales: tuple[int, int, int] | None = None,
    ) -> None: ...

def plan_values(
    device: int,
    sizes: _Sizes,
    dtype: str,
    strides: _Four,
    *,
    scoring: _Scoring,
    accuracy: str,
    output: str,
    lse: bool,
    centre_keys: bool,
    input_format: str,
) -> Plan: ...
def plan_codes(
    device: int,
    sizes: _Sizes,
    dtype: str,
    strides: _Four,
    per_head: tuple[bool, bool, bool],
    *,
    scoring: _Scoring,
    accuracy: str,
    output: str,
    lse: bool,
) -> Plan: ...
def attend_values(
    q: int,
    k: int,
    v: int,
    output: int,
    lse: int,
    sizes: _Sizes,
    dtype: str,
    tensor_layout: str,
    *,
    scoring: _Scoring,
    accuracy: str,
    output_dtype: str,
    centre_keys: bool,
    input_format: str,
) -> None: ...
def attend_codes(
    q: int,
    k: int,
    v: int,
    output: int,
    lse: int,
    sizes: _Sizes,
    dtype: str,
    tensor_layout: str,
    scales: tuple[list[float], list[float], list[float]],
    *,
    scoring: _Scoring,
    accuracy: str,
    output_dtype: str,
) -> None: ...
def round_trip(
    values: int,
    dims: tuple[int, ...],
    dtype: str,
    tensor_layout: str,
    output: int,
    *,
    operand: int,
    input_format: str,
    centre_keys: bool,
) -> None: ...
def reference(q: int, k: int, v: int, output: int, sizes: _Sizes, *, scoring: _Scoring) -> None: ...
def explain(
    device: int | None, sizes: _Sizes, *, scoring: _Scoring, accuracy: str, output: str, fp8: bool, input_format: str
) -> list[tuple[str, bool, str]]: ...
def choose_format(
    device: int | None, sizes: _Sizes, *, scoring: _Scoring, accuracy: str, input_format: str
) -> tuple[str, str]: ...
def devices() -> list[tuple[int, str, tuple[int, int], int]]: ...
def compiler() -> str: ...
def configure(*, nvrtc: str | None, folders: list[str], cache: str | None) -> None: ...
def cpu() -> tuple[bool, bool, bool, bool]: ...

@final
class PagedPlan:
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def zeroed_bytes(self) -> int: ...
    def launch(
        self, sequences: int, at: dict[str, int], workspace: int, workspace_bytes: int, stream: int, *, validate: bool
    ) -> None: ...

@final
class AppendPlan:
    def launch(
        self, tokens: int, new: tuple[int, int], slots: int, cache: tuple[int, int], scales: tuple[int, int], stream: int, validate: bool = ...
    ) -> None: ...

@final
class MergePlan:
    def launch(self, rows: int, parts: list[tuple[int, int]], merged: tuple[int, int], stream: int) -> None: ...

def plan_paged(
    device: int,
    sizes: _Sizes,
    dtype: str,
    strides: tuple[_Strides, _Strides],
    cache: _Cache,
    *,
    scoring: _Scoring,
    sinks: int,
    packed: bool,
    batch_invariant: bool,
    output: str,
    lse: bool,
) -> PagedPlan: ...
def plan_append(
    device: int, cache: _Cache, dtype: str, strides: tuple[tuple[int, int], tuple[int, int]]
) -> AppendPlan: ...
def plan_merge(device: int, head_dim: int, dtype: str) -> MergePlan: ...
def paged_attend(
    q: _Memory,
    q_scales: list[float],
    starts: list[int],
    cache: _Cache,
    k: _Memory,
    v: _Memory,
    k_scales: _Memory,
    v_scales: _Memory,
    table: tuple[int, int],
    lengths: list[int],
    output: int,
    lse: int,
    sizes: _Sizes,
    dtype: str,
    *,
    scoring: _Scoring,
    dense: bool,
    batch_invariant: bool,
    output_dtype: str,
) -> None: ...
def paged_append(
    cache: _Cache, is_value: bool, values: _Memory, dtype: str, slots: list[int], codes: _Memory, scales: _Memory
) -> None: ...
def merge_parts(
    parts: list[tuple[int, int]],
    dims: tuple[int, int, int, int],
    dtype: str,
    tensor_layout: str,
    output: int,
    lse: int,
) -> None: ...
