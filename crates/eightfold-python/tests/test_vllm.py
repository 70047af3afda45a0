"""The plugin for vLLM: its interface beside that of vLLM 0.33, and its kernels by vLLM's own metadata, on the CPU.

Where vLLM is not installed, its names and the order of their arguments are those recorded here from the Python sources of its wheel 0.33.0.
"""

import importlib
import importlib.util
import inspect
import sys
import types
from abc import ABC, abstractmethod
from enum import Enum

import pytest
from conftest import HAS_TORCH, error

if not HAS_TORCH:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch
from vllm_harness import Step, run

# Names, and arguments by position after the first, of what is implemented (vllm/v1/attention/backend.py and layers/attention/attention.py).
RECORDED = {
    ("AttentionBackend", "get_supported_kernel_block_sizes"): "kv_cache_spec",
    ("AttentionBackend", "get_name"): "",
    ("AttentionBackend", "get_impl_cls"): "",
    ("AttentionBackend", "get_builder_cls"): "",
    ("AttentionBackend", "get_supported_head_sizes"): "",
    ("AttentionBackend", "supports_compute_capability"): "capability",
    ("AttentionBackend", "supports_per_head_quant_scales"): "",
    ("AttentionBackend", "supports_sink"): "",
    ("AttentionBackend", "supports_sliding_window"): "",
    ("AttentionBackend", "supports_non_causal"): "",
    ("AttentionBackend", "supports_batch_invariance"): "",
    ("AttentionMetadataBuilder", "__init__"): "kv_cache_spec layer_names vllm_config device",
    ("AttentionMetadataBuilder", "build"): "common_prefix_len common_attn_metadata fast_build",
    ("AttentionMetadataBuilder", "update_block_table"): "metadata blk_table slot_mapping",
    ("AttentionImpl", "__init__"): "num_heads head_size scale num_kv_heads alibi_slopes sliding_window kv_cache_dtype logits_soft_cap attn_type "
    "kv_sharing_target_layer_name",
    ("AttentionImpl", "forward"): "layer query key value kv_cache attn_metadata output output_scale output_block_scale",
}
OURS = {"AttentionBackend": "EightfoldBackend", "AttentionMetadataBuilder": "EightfoldBuilder", "AttentionImpl": "EightfoldImpl"}


def recorded_vllm():
    """Modules with what the plugin imports, as recorded."""

    class Backend(ABC):
        @staticmethod
        @abstractmethod
        def get_name(): ...

        @staticmethod
        @abstractmethod
        def get_impl_cls(): ...

        @staticmethod
        @abstractmethod
        def get_builder_cls(): ...

    class Builder(ABC):
        @abstractmethod
        def __init__(self, kv_cache_spec, layer_names, vllm_config, device): ...

        @abstractmethod
        def build(self, common_prefix_len, common_attn_metadata, fast_build=False): ...

    class Impl(ABC):
        @abstractmethod
        def __init__(self): ...

        @abstractmethod
        def forward(self): ...

    class MultipleOf:
        def __init__(self, base):
            self.base = base

    class Custom(Enum):
        CUSTOM = None

        def is_overridden(self):
            return self in overrides

        def get_path(self):
            return overrides[self]

    overrides = {}
    support = Enum("AttentionCGSupport", {"ALWAYS": 3, "UNIFORM_BATCH": 2, "UNIFORM_SINGLE_TOKEN_DECODE": 1, "NEVER": 0})
    kinds = types.SimpleNamespace(DECODER="decoder", ENCODER="encoder")
    backend = dict(
        AttentionBackend=Backend, AttentionCGSupport=support, AttentionImpl=Impl, AttentionMetadata=type("AttentionMetadata", (), {}),
        AttentionMetadataBuilder=Builder, AttentionType=kinds, MultipleOf=MultipleOf,
    )  # fmt: skip
    registry = dict(AttentionBackendEnum=Custom, register_backend=lambda backend, path: overrides.__setitem__(backend, path))
    contents = {"vllm.envs": dict(VLLM_BATCH_INVARIANT=False), "vllm.v1.attention.backend": backend, "vllm.v1.attention.backends.registry": registry}
    modules = {}
    for name, attributes in contents.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            module = modules.setdefault(path, types.ModuleType(path))
            if end > 1:
                setattr(modules[".".join(parts[: end - 1])], parts[end - 1], module)
        vars(modules[name]).update(attributes)
    return modules


IS_INSTALLED = importlib.util.find_spec("vllm") is not None


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    if not IS_INSTALLED:
        for name, module in recorded_vllm().items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.delitem(sys.modules, "eightfold._vllm", raising=False)
    yield
    if not IS_INSTALLED:
        sys.modules.pop("eightfold._vllm", None)


def arguments(function):
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


@pytest.mark.parametrize("of, name", RECORDED)
def test_what_is_implemented_takes_what_vllm_gives(of, name):
    ours = importlib.import_module("eightfold._vllm")
    given = RECORDED[of, name].split()
    got = arguments(inspect.getattr_static(getattr(ours, OURS[of]), name).__func__ if name.startswith(("get_", "supports_")) else getattr(getattr(ours, OURS[of]), name))
    # Newer arguments, such as sinks, come behind, by name.
    assert got[: len(given)] == given


@pytest.mark.skipif(not IS_INSTALLED, reason="vLLM is not installed: its interface is the recorded one")
@pytest.mark.parametrize("of, name", RECORDED)
def test_the_recorded_interface_is_vllm_s(of, name):
    theirs = getattr(importlib.import_module("vllm.v1.attention.backend"), of)
    assert arguments(getattr(theirs, name)) == RECORDED[of, name].split()


def test_registration_is_found_and_leaves_other_plugins_alone():
    import eightfold.vllm
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    eightfold.vllm.register()
    eightfold.vllm.register()
    assert AttentionBackendEnum.CUSTOM.get_path() == "eightfold._vllm.EightfoldBackend"
    register_backend(AttentionBackendEnum.CUSTOM, "another.Backend")
    with pytest.warns(UserWarning, match="CUSTOM is another.Backend already"):
        eightfold.vllm.register()
    assert AttentionBackendEnum.CUSTOM.get_path() == "another.Backend"


def test_the_backend_says_what_it_serves():
    from eightfold._vllm import EightfoldBackend, EightfoldImpl

    capability = lambda major, minor: types.SimpleNamespace(major=major, minor=minor)  # noqa: E731
    assert EightfoldBackend.supports_compute_capability(capability(9, 0)) and not EightfoldBackend.supports_compute_capability(capability(8, 0))
    assert EightfoldBackend.get_supported_kernel_block_sizes()[0].base == 16 and 128 in EightfoldBackend.get_supported_head_sizes()
    assert "fp8" in EightfoldBackend.supported_kv_cache_dtypes and "auto" not in EightfoldBackend.supported_kv_cache_dtypes
    plain = dict(num_heads=4, head_size=64, scale=0.125, num_kv_heads=2, kv_cache_dtype="fp8")
    with pytest.raises(NotImplementedError, match="alibi_slopes: no kernel has them"):
        EightfoldImpl(**{**plain, "alibi_slopes": [1.0]})
    with pytest.raises(ValueError, match="kv_cache_dtype: 'auto' is not FP8; start vLLM with"):
        EightfoldImpl(**{**plain, "kv_cache_dtype": "auto"})
    layer = types.SimpleNamespace(_k_scale=torch.ones(1), _v_scale=torch.ones(1))
    q, cache = torch.zeros(1, 4, 64), torch.zeros(2, 3, 16, 2, 64, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"kv_cache: shape \(2, 3, 16, 2, 64\)"):
        EightfoldImpl(**plain).do_kv_cache_update(layer, q[:, :2], q[:, :2], cache, torch.zeros(1, dtype=torch.int64))
    out = torch.ones(1, 4, 64)
    assert (EightfoldImpl(**plain).forward(layer, q, q, q, cache, None, out) == 0).all()


@pytest.mark.parametrize("scales", ["tensor", "head"])
@pytest.mark.parametrize("order", ["by head", "by token"])
@pytest.mark.parametrize("queries, keys", [([1, 1, 1], [40, 1, 17]), ([5, 1, 20], [5, 33, 64]), ([2, 2], [2, 50])])
def test_batches_are_near_attention_on_the_values(queries, keys, order, scales):
    capped = dict(window=9, softcap=4.0) if scales == "head" else {}
    step = Step(queries, keys, heads=6, kv_heads=2, head_dim=64, block_tokens=16, order=order, scales=scales, padding=3, **capped)
    out = run(step)
    assert (out[step.tokens :] == 7).all(), "padding was written to"
    assert error(out[: step.tokens], step.exact()) < 0.08


@pytest.mark.cuda
@pytest.mark.parametrize("scales", ["tensor", "head"])
@pytest.mark.parametrize("order", ["by head", "by token"])
@pytest.mark.parametrize("queries, keys", [([1] * 8, [4000, 1, 17, 900, 2048, 64, 65, 3000]), ([5, 1, 300], [5, 3300, 300]), ([4] * 3, [4, 500, 9000])])
def test_batches_on_a_device_are_near_attention_on_the_values(queries, keys, order, scales):
    step = Step(queries, keys, heads=32, kv_heads=4, head_dim=128, block_tokens=16, order=order, scales=scales, padding=5, device="cuda", dtype=torch.bfloat16, window=100 if scales == "head" else None)
    out = run(step).float()
    assert (out[step.tokens :] == 7).all(), "padding was written to"
    assert error(out[: step.tokens], step.exact()) < 0.08
