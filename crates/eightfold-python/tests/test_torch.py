"""torch on the CPU: the operator, compilers, and the names that others call."""

import contextlib
import inspect
import subprocess
import sys
import types

import numpy as np
import pytest
from conftest import HAS_TORCH, error, exact, values

if not HAS_TORCH:
    pytest.skip("torch is not installed", allow_module_level=True)

import eightfold
import torch
import torch.nn.functional as F
from eightfold.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache


def tensors(seed, *shape, dtype=torch.float32):
    return [torch.from_numpy(values(seed + index, *shape)).to(dtype) for index in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_results_are_those_of_numpy(dtype):
    q, k, v = tensors(1, 2, 40, 4, 64, dtype=dtype)
    out, lse = eightfold.attention(q, k, v, is_causal=True, return_lse=True, out_dtype=torch.float32)
    want, want_lse = exact(*(x.float().numpy().swapaxes(1, 2) for x in (q, k, v)), causal=True)
    assert error(out.numpy().swapaxes(1, 2), want) < 0.05
    assert np.abs(lse.numpy() - want_lse).max() < 0.2
    assert eightfold.attention(q, k, v).dtype == dtype


def test_fp8_has_its_scales():
    floats = tensors(2, 1, 32, 2, 64)
    codes = [(x * 4).to(torch.float8_e4m3fn) for x in floats]
    out = eightfold.attention(*codes, q_descale=0.25, k_descale=torch.full((1, 2), 0.25), v_descale=torch.tensor([0.25]).expand(1, 2))
    want, _ = exact(*(x.float().numpy().swapaxes(1, 2) * 0.25 for x in codes))
    assert out.dtype == torch.bfloat16
    assert error(out.float().numpy().swapaxes(1, 2), want) < 0.01
    with pytest.raises(ValueError, match="q_descale: FP8 tensors mean nothing"):
        eightfold.attention(*codes)


def test_out_and_views_are_served():
    packed = torch.randn(2, 32, 3, 4, 64)
    q, k, v = packed.unbind(2)
    want = eightfold.attention(q.contiguous(), k.contiguous(), v.contiguous())
    out = torch.empty(2, 32, 4, 64)
    assert eightfold.attention(q, k, v, out=out) is out
    assert torch.equal(out, want)
    by_heads = eightfold.attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), tensor_layout="HND")
    assert torch.equal(by_heads.transpose(1, 2), want)


def test_the_operator_passes_its_checks():
    q, k, v = tensors(3, 1, 16, 2, 64)
    codes = [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
    one = torch.ones(1)
    operator = torch.ops.eightfold.attention
    for arguments in [
        (q, k, v, None, None, None, "NHD", True, None, "fast", True, None, True),
        (q, k, v, None, None, None, "HND", False, 0.1, "precise", False, torch.bfloat16, False),
        (q, k, v[..., :32].contiguous(), None, None, None, "NHD", True, None, "fast", True, None, True, 5, 0, 2.0, torch.ones(2)),
        (q, k, v, None, None, None, "NHD", False, None, "fast", True, None, True, -1, -1, 0.0, None, "int8", True),
    ]:
        assert set(torch.library.opcheck(operator, arguments).values()) == {"SUCCESS"}
    # The other checks do arithmetic on the inputs, which torch has none of for FP8.
    arguments = (*codes, one, one, one, "NHD", False, None, "fast", True, None, False)
    done = torch.library.opcheck(operator, arguments, test_utils=("test_faketensor", "test_autograd_registration"))
    assert set(done.values()) == {"SUCCESS"}


def test_int8_is_closer_than_e4m3_and_has_its_shapes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v = tensors(13, 2, 300, 4, 64, dtype=torch.bfloat16)
    found = {format: eightfold.check(q, k, v, accuracy="precise", input_format=format) for format in ("auto", "e4m3", "int8")}
    assert found["auto"].total == found["e4m3"].total and found["auto"].input_format == "e4m3"
    assert found["int8"].total < 0.75 * found["e4m3"].total and found["int8"].kernel < 0.005, found
    compiled = torch.compile(lambda q, k, v: eightfold.attention(q, k, v, input_format="int8"), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v), eightfold.attention(q, k, v, input_format="int8"))
    with torch.no_grad(), eightfold.replace_sdpa(input_format="int8") as served:
        got = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))
    assert served.calls == 1 and torch.equal(got.transpose(1, 2), eightfold.sageattn(q, k, v, "NHD", input_format="int8"))
    with FakeTensorMode():
        q = torch.empty(2, 4, 32, 64, dtype=torch.bfloat16)
        assert eightfold.attention(q, q, q, input_format="int8").shape == q.shape
        with pytest.raises(ValueError, match="input_format: 'int4' is not a format; say one of auto, e4m3, int8"):
            eightfold.attention(q, q, q, input_format="int4")


@pytest.mark.parametrize("dynamic", [False, True])
def test_it_compiles_as_one_graph(dynamic):
    def f(q, k, v):
        out, lse = eightfold.attention(q * 2, k, v, is_causal=True, window_size=(9, -1), softcap=4.0, return_lse=True)
        return out + 1, lse

    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (16, 24):
        q, k, v = tensors(4, 1, rows, 2, 64)
        for got, want in zip(compiled(q, k, v), f(q, k, v)):
            assert torch.equal(got, want)


def test_fp8_compiles_with_numbers_as_scales():
    codes = [x.to(torch.float8_e4m3fn) for x in tensors(4, 1, 16, 2, 64)]
    f = lambda q, k, v: eightfold.attention(q, k, v, q_descale=0.5, k_descale=1.0, v_descale=2.0)  # noqa: E731
    assert torch.equal(torch.compile(f, fullgraph=True, backend="aot_eager")(*codes), f(*codes))
    with pytest.raises(ValueError, match="input_format: says what values are quantised to, and q is FP8 already; leave it out"):
        eightfold.attention(*codes, q_descale=0.5, k_descale=1.0, v_descale=2.0, input_format="int8")


def test_replaced_sdpa_compiles_as_one_graph():
    q, k, v = tensors(4, 1, 2, 16, 64)
    compiled = torch.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), fullgraph=True, backend="aot_eager")
    with torch.no_grad(), eightfold.replace_sdpa() as served:
        got = compiled(q, k, v)
    assert torch.equal(got, eightfold.attention(q, k, v, tensor_layout="HND", is_causal=True)) and served.calls == 1


@pytest.mark.parametrize("dim, value_dim", [(8, 8), (24, 24), (72, 72), (96, 96), (192, 128), (200, 256), (256, 256)])
def test_replaced_sdpa_compiles_with_every_head_dim(dim, value_dim):
    q, k, v = tensors(4, 1, 2, 16, dim)
    v = v.repeat(1, 1, 1, 32)[..., :value_dim].contiguous()
    compiled = torch.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), fullgraph=True, backend="aot_eager")
    with torch.no_grad(), eightfold.replace_sdpa() as served:
        got = compiled(q, k, v)
        eager = F.scaled_dot_product_attention(q, k, v)
    assert torch.equal(got, eager) and served.calls == 2 and not served.reasons


@pytest.mark.parametrize("dim, value_dim, reason", [(60, 60, "head dim 60"), (264, 264, "head dim 264"), (64, 68, "head dim 68")])
def test_what_no_kernel_has_is_passed_on_by_the_compiler_too(dim, value_dim, reason):
    (q, k, _), v = tensors(4, 1, 2, 16, dim), torch.randn(1, 2, 16, value_dim)
    compiled = torch.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        want = F.scaled_dot_product_attention(q, k, v)
        with eightfold.replace_sdpa() as served:
            got = compiled(q, k, v)
    assert torch.allclose(got, want) and served.calls == 0 and served.reasons == {reason: 1}


def test_there_is_no_backward_and_that_is_said():
    q, k, v = tensors(5, 1, 16, 2, 64)
    q.requires_grad_()
    with pytest.raises(RuntimeError, match=r"no backward pass.*torch\.no_grad"):
        eightfold.attention(q, k, v)
    with torch.no_grad():
        assert not eightfold.attention(q, k, v).requires_grad
    out, _ = torch.ops.eightfold.attention(q, k, v, None, None, None, "NHD", False, None, "fast", True, None, False)
    with pytest.raises(RuntimeError, match="no backward pass"):
        out.sum().backward()


Q = torch.ones(1, 8, 2, 64)


@pytest.mark.parametrize(
    "kind, text, k, settings",
    [
        (ValueError, "k: is on meta, but q is on cpu", Q.to("meta"), {}),
        (TypeError, "k: is torch.float16, but q is torch.float32", Q.half(), {}),
        (TypeError, "k: dtype torch.int32 is not served", Q.int(), {}),
        (TypeError, "k: is ndarray, but others are torch tensors", Q.numpy(), {}),
        (ValueError, "k: batch 2", Q.repeat(2, 1, 1, 1), {}),
        (ValueError, "out: torch.float32 of (1, 8, 2, 32)", Q, {"out": Q[..., :32]}),
        (TypeError, "out_dtype: torch.float64", Q, {"out_dtype": torch.float64}),
        (TypeError, "out: is ndarray, but others are torch tensors", Q, {"out": Q.numpy()}),
        (ValueError, "k_descale: k is not FP8", Q, {"k_descale": 1.0}),
        (ValueError, "input_format: 'e5m2' is not a format", Q, {"input_format": "e5m2"}),
        (ValueError, "sm_scale: -1.0 is not a finite positive number", Q, {"sm_scale": -1.0}),
        (ValueError, "stream: is for tensors on a CUDA device", Q, {"stream": object()}),
    ],
)
def test_mistakes_are_named_with_their_fix(kind, text, k, settings):
    with pytest.raises(kind) as caught:
        eightfold.attention(Q, k, k, **settings)
    assert text in str(caught.value) and "; " in str(caught.value)


def test_values_that_are_not_finite_are_told_with_their_place():
    q, k, v = tensors(17, 2, 9, 4, 64, dtype=torch.bfloat16)
    k[1, 5, 2, 9] = float("inf")
    for settings in ({}, {"validate": True}, {"validate": True, "input_format": "int8"}):
        with pytest.raises(ValueError, match=r"^k \(values\): inf at batch 1, head 2, row 5, channel 9; "):
            eightfold.attention(q, k, v, **settings)


def test_meta_tensors_have_nothing_to_compute():
    with pytest.raises(ValueError, match="q: is on meta"):
        eightfold.attention(*[Q.to("meta")] * 3)


built_for_cuda = pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")


@built_for_cuda
def test_mistakes_on_a_device_are_told_while_it_is_traced():
    from torch._subclasses.fake_tensor import FakeTensorMode

    cases = [
        (ValueError, "k: is on cpu, but q is on cuda:0", lambda q: eightfold.attention(q, q.cpu(), q)),
        (ValueError, "v: its last dimension has stride 16", lambda q: eightfold.attention(q, q, q.new_empty(1, 64, 2, 8).transpose(1, 3))),
        (ValueError, "out: cannot be given", lambda q: eightfold.attention(q, q, q, out=q)),
    ]
    with FakeTensorMode():
        q = torch.empty(1, 8, 2, 64, device="cuda:0")
        assert eightfold.attention(q, q, q).device == q.device
        for kind, text, call in cases:
            with pytest.raises(kind) as caught:
                call(q)
            assert text in str(caught.value) and "; " in str(caught.value), str(caught.value)


@built_for_cuda
def test_a_stream_is_one_of_torch_s_and_of_the_same_device():
    from torch._subclasses.fake_tensor import FakeTensorMode

    other = types.SimpleNamespace(device=torch.device("cuda", 1), cuda_stream=0)
    with FakeTensorMode():
        q = torch.empty(1, 8, 2, 64, device="cuda:0")
        with pytest.raises(ValueError, match="stream: is of cuda:1, but q is on cuda:0; "):
            eightfold.attention(q, q, q, stream=other)
        with pytest.raises(TypeError, match="stream: int is no stream of torch; "):
            eightfold.attention(q, q, q, stream=7)


def test_fake_tensors_have_shapes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q = torch.empty(2, 4, 32, 64, dtype=torch.bfloat16)
        out, lse = eightfold.attention(q, q, q, tensor_layout="HND", return_lse=True)
        assert out.shape == q.shape and out.dtype == torch.bfloat16 and lse.shape == (2, 4, 32)


def test_sageattn_has_sage_s_order():
    q, k, v = tensors(6, 1, 2, 32, 64)
    want = eightfold.attention(q, k, v, tensor_layout="HND", is_causal=True, sm_scale=0.1)
    assert torch.equal(eightfold.sageattn(q, k, v, "HND", True, 0.1), want)
    out, lse = eightfold.sageattn(q, k, v, return_lse=True, smooth_k=False, pv_accum_dtype="fp32+fp32")
    assert lse.shape == (1, 2, 32)
    with pytest.raises(NotImplementedError, match="attn_mask"):
        eightfold.sageattn(q, k, v, attn_mask=torch.ones(32, 32))


# The parameters of flash-attn-3 (hopper/flash_attn_interface.py), in their order.
FLASH_ATTENTION_3 = {
    flash_attn_func: "q k v softmax_scale causal qv q_descale k_descale v_descale window_size attention_chunk softcap num_splits pack_gqa "
    "deterministic sm_margin return_attn_probs",
    flash_attn_varlen_func: "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k seqused_q seqused_k softmax_scale causal qv q_descale "
    "k_descale v_descale window_size attention_chunk softcap num_splits pack_gqa deterministic sm_margin return_attn_probs",
    flash_attn_with_kvcache: "q k_cache v_cache k v qv rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad page_table cu_seqlens_q "
    "cu_seqlens_k_new max_seqlen_q rotary_seqlens q_descale k_descale v_descale softmax_scale causal window_size attention_chunk softcap "
    "rotary_interleaved scheduler_metadata num_splits pack_gqa sm_margin return_softmax_lse",
}


@pytest.mark.parametrize("function", FLASH_ATTENTION_3, ids=lambda f: f.__name__)
def test_positions_are_those_of_flash_attention(function):
    parameters = inspect.signature(function).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == FLASH_ATTENTION_3[function].split()
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == {"s_aux", "accuracy"}


def test_flash_attn_takes_descales():
    codes = [(x * 4).to(torch.float8_e4m3fn) for x in tensors(2, 2, 24, 4, 64)]
    q, k, v = codes[0], codes[1][:, :, :2], codes[2][:, :, :2]
    q_descale, k_descale, v_descale = (torch.rand(2, 2) + 0.5 for _ in range(3))
    want = eightfold.attention(q, k, v, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    assert torch.equal(flash_attn_func(q, k, v, None, False, None, q_descale, k_descale, v_descale), want)
    ends = torch.tensor([0, 24, 48], dtype=torch.int32)
    packed = [x.reshape(48, -1, 64) for x in (q, k, v)]
    scales = dict(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    assert torch.equal(flash_attn_varlen_func(*packed, ends, ends, 24, 24, **scales), want.view(48, 4, 64))
    lengths = torch.tensor([10, 24], dtype=torch.int32)
    got = flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, **scales)
    own = {name: scale[:1] for name, scale in scales.items()}
    assert error(got[:1].float(), eightfold.attention(q[:1], k[:1, :10], v[:1, :10], **own).float()) < 0.01
    assert error(got[1].float(), want[1].float()) < 0.01


def test_flash_attn_has_flash_attention_s_order():
    q, k, v = tensors(7, 2, 24, 4, 64)
    k, v = k[:, :, :2], v[:, :, :2]
    want, lse = eightfold.attention(q, k, v, is_causal=True, sm_scale=0.2, return_lse=True)
    got, got_lse = flash_attn_func(q, k, v, 0.2, True, return_attn_probs=True)
    assert torch.equal(got, want) and torch.equal(got_lse, lse)
    for name, value in {"qv": q, "attention_chunk": 4}.items():
        with pytest.raises(NotImplementedError, match=name):
            flash_attn_func(q, k, v, **{name: value})
    scored = flash_attn_func(q, k, v, softcap=2.0, window_size=(4, 0), s_aux=torch.arange(4.0))
    assert torch.equal(scored, eightfold.attention(q, k, v, softcap=2.0, window_size=(4, 0), sinks=torch.arange(4.0)))
    want, _ = exact(*(x.numpy().swapaxes(1, 2) for x in (q, k, v)), softcap=2.0, window=(4, 0), sinks=np.arange(4.0))
    assert error(scored.numpy().swapaxes(1, 2), want) < 0.08


@pytest.mark.parametrize("lengths", [(8, 16, 3), (9, 9, 9), (5, 0, 4)])
def test_packed_sequences_are_each_on_their_own(lengths):
    ends = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    q, k, v = tensors(8, int(ends[-1]), 2, 64)
    got, lse = flash_attn_varlen_func(q, k, v, ends, ends, max(lengths), max(lengths), causal=True, return_attn_probs=True)
    assert lse.shape == (2, q.shape[0])
    for start, end in zip(ends, ends[1:]):
        if start == end:
            continue
        want, want_lse = eightfold.attention(q[None, start:end], k[None, start:end], v[None, start:end], is_causal=True, return_lse=True)
        assert torch.equal(got[start:end], want[0]) and torch.equal(lse[:, start:end], want_lse[0])
    with pytest.raises(ValueError, match="cu_seqlens_q: ends at"):
        flash_attn_varlen_func(q[:-1], k, v, ends, ends, 16, 16)
    with pytest.raises(NotImplementedError, match="seqused_k.*FP8 alone"):
        flash_attn_varlen_func(q, k, v, ends, ends, 16, 16, seqused_k=ends)
    with pytest.raises(NotImplementedError, match="seqused_q"):
        flash_attn_varlen_func(q, k, v, ends, ends, 16, 16, seqused_q=ends)


def test_a_cache_is_read_as_far_as_it_goes():
    q, cache_k, cache_v = torch.randn(2, 1, 4, 64), torch.randn(2, 32, 2, 64), torch.randn(2, 32, 2, 64)
    for lengths in (20, torch.tensor([20, 20], dtype=torch.int32), torch.tensor([7, 20], dtype=torch.int32)):
        got = flash_attn_with_kvcache(q, cache_k, cache_v, cache_seqlens=lengths, causal=True)
        for index, length in enumerate(torch.as_tensor(lengths).expand(2).tolist()):
            part = slice(index, index + 1)
            want = eightfold.attention(q[part], cache_k[part, :length], cache_v[part, :length], is_causal=True)
            assert torch.equal(got[part], want)
    new = torch.randn(2, 1, 2, 64)
    flash_attn_with_kvcache(q, cache_k, cache_v, new, new, cache_seqlens=torch.tensor([3, 5]))
    assert torch.equal(cache_k[0, 3], new[0, 0]) and torch.equal(cache_v[1, 5], new[1, 0])
    with pytest.raises(NotImplementedError, match="page_table: is for caches in FP8"):
        flash_attn_with_kvcache(q, cache_k, cache_v, page_table=torch.zeros(2, 1))
    with pytest.raises(ValueError, match="cache_seqlens"):
        flash_attn_with_kvcache(q, cache_k, cache_v, cache_seqlens=33)


def test_sdpa_is_replaced_and_put_back():
    q, k, v = tensors(9, 1, 2, 32, 64)
    before = F.scaled_dot_product_attention
    with torch.no_grad(), eightfold.replace_sdpa() as served:
        got = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.2)
        passed_on = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(32, 32, dtype=torch.bool))
        F.scaled_dot_product_attention(q[:, :, :1], k, v)
        F.scaled_dot_product_attention(q[:, :, :8], k, v, is_causal=True)
        F.scaled_dot_product_attention(q[..., :60], k[..., :60], v[..., :60])
    assert F.scaled_dot_product_attention is before
    assert torch.equal(got, eightfold.attention(q, k, v, tensor_layout="HND", is_causal=True, sm_scale=0.2))
    assert torch.allclose(passed_on, before(q, k, v))
    assert served.calls == 1 and sum(served.reasons.values()) == 4 and served.reasons["head dim 60"] == 1
    assert "a mask as a tensor" in str(served)
    with contextlib.suppress(ZeroDivisionError), eightfold.replace_sdpa():
        raise ZeroDivisionError
    assert F.scaled_dot_product_attention is before
    with eightfold.replace_sdpa() as served:
        F.scaled_dot_product_attention(q.requires_grad_(), k, v).sum().backward()
    assert served.reasons == {"a gradient is required": 1} and q.grad is not None


def test_diffusers_native_backend_is_wrapped():
    from eightfold import diffusers

    q, k, v = tensors(10, 1, 32, 2, 64)
    passed_on = []

    def native(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, return_lse=False, _parallel_config=None):
        passed_on.append(attn_mask)
        return query

    backend = diffusers.wrap(native)
    with torch.no_grad():
        assert torch.equal(backend(query=q, key=k, value=v, scale=0.1), eightfold.attention(q, k, v, sm_scale=0.1))
        assert passed_on == []
        backend(q, k, v, attn_mask=torch.ones(32, 32))
    assert len(passed_on) == 1


def test_comfyui_s_signature_is_served():
    from eightfold import comfyui

    q, k, v = tensors(11, 1, 32, 128)
    heads = lambda x: x.view(1, 32, 2, 64)  # noqa: E731
    with torch.no_grad():
        got = comfyui.attention_eightfold(q, k, v, 2)
        assert torch.equal(got, eightfold.attention(heads(q), heads(k), heads(v)).reshape(1, 32, 128))
        whole = [heads(x).transpose(1, 2) for x in (q, k, v)]
        assert torch.equal(comfyui.attention_eightfold(*whole, 2, skip_reshape=True), got)
        called = []
        comfyui.override(lambda *a, **kw: called.append(kw), q, k, v, 2, mask=torch.ones(32, 32), transformer_options={})
        assert len(called) == 1
        masked = comfyui.attention_eightfold(q, k, v, 2, mask=torch.zeros(32, 32))
        assert error(got, masked) < 0.05


def test_a_forked_process_does_not_hang():
    program = """
import os, torch, eightfold
q = torch.randn(2, 300, 4, 64)
want = eightfold.attention(q, q, q)
# From here on torch has threads, which a fork loses.
torch.ones(1 << 20).sum()
child = os.fork()
if child == 0:
    os._exit(0 if (eightfold.attention(q, q, q).numpy() == want.numpy()).all() else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_check_explain_and_doctor_take_tensors():
    q, k, v = tensors(12, 1, 64, 2, 64, dtype=torch.bfloat16)
    found = eightfold.check(q.requires_grad_(), k, v, is_causal=True)
    assert 0 < found.kernel < 0.01 and 0 < found.quantiser < 0.1
    with pytest.raises(TypeError, match="q: is FP8 already"):
        eightfold.check(*[q.detach().to(torch.float8_e4m3fn)] * 3)
    assert eightfold.explain(q, k, v).startswith("runs  cpu:")
    assert f"torch    {torch.__version__}" in eightfold.doctor()
