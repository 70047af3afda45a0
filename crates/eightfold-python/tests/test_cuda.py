"""torch on a CUDA device. Skipped where there is none, unless EIGHTFOLD_REQUIRE_DEVICE is set."""

import ctypes
import threading
import types

import pytest
from conftest import HAS_TORCH, error, exact

if not HAS_TORCH:
    pytest.skip("torch is not installed", allow_module_level=True)

import eightfold
import torch
import torch.nn.functional as F
from eightfold import _torch

pytestmark = pytest.mark.cuda


def tensors(*shape, dtype=torch.bfloat16, kv_heads=None, keys=None, seed=0):
    torch.manual_seed(seed)
    b, s, h, d = shape
    like = [(b, s, h, d), (b, keys or s, kv_heads or h, d), (b, keys or s, kv_heads or h, d)]
    return [torch.randn(one, device="cuda").to(dtype) for one in like]


def on_host(x, layout="NHD"):
    x = x.float().cpu().numpy()
    return x.swapaxes(1, 2) if layout == "NHD" else x


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_values_are_near_float64(dim, causal, dtype):
    for shape, kv_heads, keys in [((2, 200, 4, dim), 2, 300), ((1, 1030, 2, dim), None, None), ((1, 1, 4, dim), 1, 700)]:
        q, k, v = tensors(*shape, dtype=dtype, kv_heads=kv_heads, keys=keys)
        out, lse = eightfold.attention(q, k, v, is_causal=causal, return_lse=True)
        want, want_lse = exact(on_host(q), on_host(k), on_host(v), causal)
        assert out.dtype == dtype
        assert error(on_host(out), want) < 0.08
        assert abs(lse.cpu().numpy() - want_lse).max() < 0.2


# Which formats of Q and K the device's kernels take.
FORMATS = ["e4m3", "int8"] if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9 else ["e4m3"]


@pytest.mark.parametrize("input_format", FORMATS)
def test_the_kernel_keeps_the_error_of_its_accuracy(input_format):
    q, k, v = tensors(1, 1024, 4, 128)
    for accuracy, most in [("fast", 0.035), ("balanced", 0.033), ("exact-exp", 0.031), ("precise", 0.006)]:
        found = eightfold.check(q, k, v, accuracy=accuracy, input_format=input_format)
        assert found.kernel < most and found.input_format == input_format, found
    k[..., 5] += 40
    uncentred = eightfold.check(q, k, v, centre_keys=False, input_format="e4m3")
    assert eightfold.check(q, k, v, input_format=input_format).total < 0.65 * uncentred.total


def test_what_is_chosen_is_int8_where_that_is_as_fast():
    for shape, settings, chosen in [
        ((2, 2048, 8, 128), {}, FORMATS[-1]),
        ((2, 2048, 8, 128), {"is_causal": True, "accuracy": "exact-exp"}, FORMATS[-1]),
        ((2, 2048, 8, 128), {"accuracy": "precise"}, "e4m3"),
        ((2, 2048, 8, 128), {"softcap": 30.0}, "e4m3"),
        ((2, 2048, 8, 64), {}, "e4m3"),
        ((2, 512, 8, 128), {}, "e4m3"),
        ((2, 2048, 8, 128), {"input_format": "e4m3"}, "e4m3"),
        ((2, 512, 8, 64), {"input_format": FORMATS[-1]}, FORMATS[-1]),
    ]:
        _torch._plans.clear()
        q, k, v = tensors(*shape)
        out = eightfold.attention(q, k, v, **settings)
        torch.cuda.synchronize()
        (plan,) = _torch._plans.values()
        assert plan.native.input_format == chosen and ("scores=s32" in plan.native.variant) == (chosen == "int8"), (shape, settings)
        assert eightfold.explain(q, k, v, **settings).splitlines()[-1].startswith(f"quantises q and k to {chosen}: ")
        exact_format = {**settings, "input_format": chosen}
        assert torch.equal(eightfold.attention(q, k, v, **exact_format), out)
    if "int8" in FORMATS:
        q, k, v = tensors(2, 2048, 4, 128)
        e4m3, int8 = (eightfold.check(q, k, v, input_format=format).total for format in FORMATS)
        assert int8 < 0.85 * e4m3, (int8, e4m3)
        graph = torch.cuda.CUDAGraph()
        want = eightfold.attention(q, k, v, input_format="int8")
        with torch.cuda.graph(graph):
            out = eightfold.attention(q, k, v, input_format="int8")
        graph.replay()
        assert torch.equal(out, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_values_that_are_not_finite_are_told_with_their_place(dtype, name):
    packed = torch.randn(2, 300, 3, 4, 64, device="cuda").to(dtype)
    operands = dict(zip("qkv", packed.unbind(2)))
    eightfold.attention(**operands, validate=True)
    for value, what in ((float("nan"), "NaN"), (-float("inf"), "an infinity")):
        operands[name][1, 250, 3, 7] = value
        for _ in range(2):
            with pytest.raises(ValueError, match=f"^{name}: {what} in batch 1, head 3, row 250; "):
                eightfold.attention(**operands, validate=True)
    operands[name][0, 299, 0, 63] = float("nan")
    with pytest.raises(ValueError, match=f"^{name}: NaN in batch 0, head 0, row 299; "):
        eightfold.attention(**operands, validate=True)


def test_layouts_and_views_are_the_same_bits():
    packed = torch.randn(2, 300, 3, 4, 64, device="cuda", dtype=torch.bfloat16)
    q, k, v = packed.unbind(2)
    want = eightfold.attention(q.contiguous(), k.contiguous(), v.contiguous())
    assert torch.equal(eightfold.attention(q, k, v), want)
    by_heads = eightfold.attention(*(x.transpose(1, 2) for x in (q, k, v)), tensor_layout="HND")
    assert torch.equal(by_heads.transpose(1, 2), want)
    out = torch.empty_like(want)
    assert eightfold.attention(q, k, v, out=out) is out and torch.equal(out, want)
    one = q[:, :, :1].expand(2, 300, 4, 64)
    assert torch.equal(eightfold.attention(one, k, v), eightfold.attention(one.contiguous(), k, v))


@pytest.mark.parametrize("heads, kv_heads", [(4, 4), (4, 2)])
def test_fp8_with_every_kind_of_scales(heads, kv_heads):
    q, k, v = tensors(2, 256, heads, 128, kv_heads=kv_heads)
    codes = [(x * 2).to(torch.float8_e4m3fn) for x in (q, k, v)]
    per_head = torch.rand(2, kv_heads, device="cuda") + 0.5
    per_query_head = torch.rand(2, heads, device="cuda") + 0.5
    expanded = torch.full((1,), 0.5, device="cuda").expand(2, kv_heads)
    for qs, ks, vs in [(0.5, 0.5, 0.5), (per_head, per_head, expanded), (per_query_head, 0.5, torch.tensor(0.25, device="cuda"))]:
        out, lse = eightfold.attention(*codes, q_descale=qs, k_descale=ks, v_descale=vs, return_lse=True)

        def numbers(x, scale, count):
            scale = torch.as_tensor(scale, device="cuda", dtype=torch.float32)
            if scale.numel() > 1 and scale.shape[1] != count:
                scale = scale.repeat_interleave(count // scale.shape[1], 1)
            return on_host(x) * (scale.cpu().numpy()[:, :, None, None] if scale.numel() > 1 else float(scale))

        want, want_lse = exact(numbers(codes[0], qs, heads), numbers(codes[1], ks, kv_heads), numbers(codes[2], vs, kv_heads))
        assert out.dtype == torch.bfloat16
        assert error(on_host(out), want) < 0.04
        assert abs(lse.cpu().numpy() - want_lse).max() < 0.05


def test_it_compiles_and_the_operator_passes_its_checks():
    q, k, v = tensors(1, 128, 2, 64)

    def f(q, k, v):
        out, lse = eightfold.attention(q * 2, k, v, is_causal=True, return_lse=True)
        return out + 1, lse

    for got, want in zip(torch.compile(f, fullgraph=True, backend="aot_eager")(q, k, v), f(q, k, v)):
        assert torch.equal(got, want)
    compiled = torch.compile(f, fullgraph=True)(q, k, v)
    assert error(compiled[0].float().cpu(), f(q, k, v)[0].float().cpu()) < 0.01
    arguments = (q, k, v, None, None, None, "NHD", True, None, "fast", True, None, True)
    assert set(torch.library.opcheck(torch.ops.eightfold.attention, arguments).values()) == {"SUCCESS"}


@pytest.mark.parametrize("shape, kv_heads", [((2, 512, 4, 64), 4), ((1, 1, 8, 128), 1)])
def test_a_graph_captures_it_and_sees_new_values(shape, kv_heads):
    q, k, v = tensors(*shape, kv_heads=kv_heads, keys=2048)
    want = eightfold.attention(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = eightfold.attention(q, k, v)
    graph.replay()
    assert torch.equal(out, want)
    q.mul_(-0.5)
    for _ in range(3):
        graph.replay()
    assert torch.equal(out, eightfold.attention(q, k, v))


def test_a_graph_holds_our_kernels_and_nothing_else():
    q, k, v = tensors(2, 512, 4, 64)
    eightfold.attention(q, k, v)
    plan = next(reversed(_torch._plans.values()))
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        eightfold.attention(q, k, v)
    nodes = ctypes.c_size_t()
    assert ctypes.CDLL("libcuda.so.1").cuGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(nodes)) == 0
    # Memory that must be zero is cleared in the graph.
    assert nodes.value == plan.native.kernels + bool(plan.counts)


@pytest.mark.parametrize("name", ["jax", "cupy"])
def test_arrays_of_others_on_the_device_come_in_and_go_back(name):
    other = pytest.importorskip("jax.numpy" if name == "jax" else name)
    q, k, v = tensors(1, 200, 2, 64, dtype=torch.float16)
    try:
        arrays = [other.from_dlpack(x) for x in (q, k, v)]
    except Exception as error:
        pytest.skip(f"{name} has no device here: {error}")
    out = eightfold.attention(*arrays, is_causal=True)
    assert type(out).__module__.split(".")[0].startswith(name)
    assert torch.equal(torch.from_dlpack(out), eightfold.attention(q, k, v, is_causal=True))


def test_planning_within_a_capture_is_refused():
    q, k, v = tensors(1, 77, 2, 64)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match=r"eightfold\.warmup"), torch.cuda.graph(graph):
        eightfold.attention(q, k, v)
    assert eightfold.warmup([(1, 77, 2, 64)])[0].startswith(("hopper", "ladder"))


def test_streams_and_threads_do_not_disturb_each_other():
    many = [tensors(2, 700, 4, 64, seed=seed) for seed in range(2)] + [tensors(1, 1, 8, 128, kv_heads=1, keys=4000, seed=9)]
    want = [eightfold.attention(*one) for one in many]
    torch.cuda.synchronize()
    wrong = []

    def run(index):
        stream = torch.cuda.Stream()
        for _ in range(30):
            out = eightfold.attention(*many[index], stream=stream)
            stream.synchronize()
            if not torch.equal(out, want[index]):
                wrong.append(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_work_goes_into_the_current_stream():
    q, k, v = tensors(1, 512, 4, 64)
    want = eightfold.attention(q, k, v)
    stream = torch.cuda.Stream()
    late = torch.empty_like(q)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(q)
        out = eightfold.attention(late, k, v)
        assert not stream.query(), "the call waited"
    stream.synchronize()
    assert torch.equal(out, want)


def test_mistakes_are_named_with_their_fix():
    q, k, v = tensors(1, 64, 2, 64)
    other = types.SimpleNamespace(device=torch.device("cuda", 1), cuda_stream=0)
    codes = q.to(torch.float8_e4m3fn)
    cases = [
        (ValueError, "k: is on cpu, but q is on cuda:0", lambda: eightfold.attention(q, k.cpu(), v)),
        (ValueError, "q: its last dimension has stride 2", lambda: eightfold.attention(torch.cat([q, q], -1)[..., ::2], k, v)),
        (ValueError, "v: the row stride", lambda: eightfold.attention(q, k, torch.cat([v, v[..., :4]], -1).transpose(1, 2).contiguous().transpose(1, 2)[..., :64])),
        (ValueError, "q: address", lambda: eightfold.attention(torch.zeros(64 * 2 * 64 + 1, device="cuda", dtype=q.dtype)[1:].view(1, 64, 2, 64), k, v)),
        (TypeError, "dtype torch.float64", lambda: eightfold.attention(q.double(), k, v)),
        (ValueError, "k_descale: FP8 tensors mean nothing", lambda: eightfold.attention(codes, codes, codes, q_descale=1.0)),
        (ValueError, "v_descale: is on cpu", lambda: eightfold.attention(codes, codes, codes, q_descale=1.0, k_descale=1.0, v_descale=torch.ones(1))),
        (RuntimeError, "no backward pass", lambda: eightfold.attention(q.clone().requires_grad_(), k, v)),
        (ValueError, "stream: is of cuda:1, but q is on cuda:0", lambda: eightfold.attention(q, k, v, stream=other)),
        (TypeError, "stream: object is no stream", lambda: eightfold.attention(q, k, v, stream=object())),
        (ValueError, "head_dim: ", lambda: eightfold.attention(*tensors(1, 64, 2, 72))),
        (ValueError, "out: ", lambda: eightfold.attention(q, k, v, out=torch.empty_like(q).cpu())),
    ]
    for kind, text, call in cases:
        with pytest.raises(kind) as caught:
            call()
        assert text in str(caught.value), (text, str(caught.value))
        assert "; " in str(caught.value)


def test_explain_and_plan_name_the_same_kernel():
    _torch._plans.clear()
    q, k, v = tensors(2, 1024, 8, 128)
    eightfold.attention(q, k, v)
    (plan,) = _torch._plans.values()
    first = eightfold.explain(q, k, v).splitlines()[0]
    assert first.startswith(f"runs  {plan.native.variant}:")
    assert 3 <= plan.native.kernels <= 7


def test_sdpa_is_replaced():
    q, k, v = (x.transpose(1, 2) for x in tensors(2, 256, 4, 64))
    with torch.no_grad(), eightfold.replace_sdpa() as served:
        got = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        F.scaled_dot_product_attention(q[..., :40], k[..., :40], v[..., :40])
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert served.calls == 1 and served.reasons == {"head dim 40": 1}
    assert error(got.float().cpu(), want.float().cpu()) < 0.08


@pytest.mark.parametrize("kind, heads, head_dim, kv_heads", [("Llama", 8, 64, 2), ("Llama", 4, 128, 4), ("Bert", 8, 64, None)])
def test_models_are_near_sdpa_in_every_layer(kind, heads, head_dim, kv_heads):
    pytest.importorskip("transformers", minversion="5")
    import models

    model = models.build(kind, models.config(kind, 4, heads, head_dim, kv_heads), "cuda", torch.bfloat16)
    layers, logits, served = models.differences(model, torch.randint(0, 1000, (2, 384), device="cuda"))
    assert served == 4
    assert layers[0] == 0 and 0 < max(layers) < 0.06 and logits < 0.06, (layers, logits)
