"""Caches in pages for torch, on the CPU: numpy's results, the operators, compilers, and FlashAttention-3's names."""

import pytest
from conftest import HAS_TORCH, error

if not HAS_TORCH:
    pytest.skip("torch is not installed", allow_module_level=True)

import eightfold
import torch
from eightfold.flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

E4M3 = torch.float8_e4m3fn


def batch(seed=0, dtype=torch.float32):
    """Two sequences of 20 and 33 keys in pages of 16, and the settings of a call."""
    torch.manual_seed(seed)
    cache = torch.zeros(2, 7, 16, 2, 64).to(E4M3)
    scales = torch.ones(2, 7, 16, 2)
    table, lengths = torch.tensor([[6, 1, -1], [0, 5, 2]], dtype=torch.int32), torch.tensor([20, 33], dtype=torch.int32)
    slots = torch.cat([table[row, torch.arange(n) // 16].long() * 16 + torch.arange(n) % 16 for row, n in enumerate(lengths.tolist())])
    k, v = torch.randn(2, 53, 2, 64).to(dtype)
    eightfold.append_kv(k, v, cache[0], cache[1], slots, k_descale=scales[0], v_descale=scales[1])
    q = torch.randn(2, 3, 4, 64).to(dtype)
    return q, (cache[0], cache[1], table, lengths), dict(k_descale=scales[0], v_descale=scales[1]), (k, v, slots)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_near_attention_on_the_values(dtype):
    q, cache, scales, (k, v, _) = batch(dtype=dtype)
    out, lse = eightfold.paged_attention(q, *cache, is_causal=True, return_lse=True, **scales)
    assert out.dtype == dtype and lse.shape == (2, 4, 3)
    for row, part in enumerate((slice(0, 20), slice(20, 53))):
        want, want_lse = eightfold.attention(q[row : row + 1], k[None, part], v[None, part], is_causal=True, return_lse=True)
        assert error(out[row].float(), want[0].float()) < 0.1 and (lse[row] - want_lse[0]).abs().max() < 0.2
    into = torch.empty_like(q)
    assert eightfold.paged_attention(q, *cache, is_causal=True, out=into, **scales) is into and torch.equal(into, out)


def test_packed_queries_are_those_of_the_sequences():
    q, cache, scales, _ = batch()
    want, want_lse = eightfold.paged_attention(q, *cache, is_causal=True, return_lse=True, **scales)
    starts = torch.tensor([0, 3, 6], dtype=torch.int32)
    got, lse = eightfold.paged_attention(q.flatten(0, 1), *cache, cu_seqlens_q=starts, max_seqlen_q=3, is_causal=True, return_lse=True, **scales)
    assert torch.equal(got.view_as(q), want) and torch.equal(lse.view(4, 2, 3).transpose(0, 1), want_lse)


def arguments(q, cache, scales, packed=False, **settings):
    asked = dict(window_left=-1, window_right=-1, softcap=0.0, return_lse=True) | settings
    starts = torch.tensor([0, 3, 6], dtype=torch.int32) if packed else None
    return (
        q.flatten(0, 1) if packed else q, *cache, starts, 3 if packed else None, None, scales["k_descale"], scales["v_descale"], "NHD", True, None,
        asked["window_left"], asked["window_right"], asked["softcap"], None, asked["return_lse"], False, False,
    )  # fmt: skip


# The other checks do arithmetic on the inputs, which torch has none of for FP8.
CHECKS = ("test_faketensor", "test_autograd_registration")


def test_the_operators_pass_their_checks():
    q, cache, scales, (k, v, slots) = batch()
    ours = torch.ops.eightfold
    cases = [
        (ours.paged_attention, arguments(q, cache, scales)),
        (ours.paged_attention, arguments(q, cache, scales, packed=True, window_left=7)),
        (ours.paged_attention, arguments(q, cache, scales, return_lse=False, softcap=3.0)),
        (ours.append_kv, (k, v, *cache[:2], slots, scales["k_descale"], scales["v_descale"], "NHD")),
    ]
    for operator, given in cases:
        assert set(torch.library.opcheck(operator, given, test_utils=CHECKS).values()) == {"SUCCESS"}
    parts = [eightfold.attention(q, q, q, return_lse=True) for _ in range(2)]
    given = ([out for out, _ in parts], [lse for _, lse in parts], "NHD")
    assert set(torch.library.opcheck(ours.merge, given).values()) == {"SUCCESS"}


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_step_of_decoding_compiles_as_one_graph(dynamic):
    def step(q, k, v, k_cache, v_cache, table, lengths, slots, k_scales, v_scales):
        scales = dict(k_descale=k_scales, v_descale=v_scales)
        eightfold.append_kv(k, v, k_cache, v_cache, slots, **scales)
        out, lse = eightfold.paged_attention(q * 2, k_cache, v_cache, table, lengths, return_lse=True, **scales)
        return eightfold.merge([out, out], [lse, lse])

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for seed in (1, 2):
        both = []
        for f in (compiled, step):
            q, cache, scales, _ = batch(seed)
            new = torch.randn(2, 2, 2, 64, generator=torch.Generator().manual_seed(seed))
            slots = torch.tensor([1 * 16 + 4, 2 * 16 + 1])
            lengths = cache[3] + 1
            out, lse = f(q[:, :1], *new, *cache[:3], lengths, slots, scales["k_descale"], scales["v_descale"])
            both.append((out, lse, cache[0].view(torch.uint8), scales["v_descale"]))
        for got, want in zip(*both):
            assert torch.equal(got, want)


def test_scales_as_numbers_compile():
    q, cache, _, _ = batch()
    f = lambda q: eightfold.paged_attention(q, *cache, k_descale=0.5, v_descale=2.0)  # noqa: E731
    assert torch.equal(torch.compile(f, fullgraph=True, backend="aot_eager")(q), f(q))


def test_there_is_no_backward_and_that_is_said():
    q, cache, scales, _ = batch()
    with pytest.raises(RuntimeError, match=r"paged_attention has no backward pass.*torch\.no_grad"):
        eightfold.paged_attention(q.requires_grad_(), *cache, **scales)
    with torch.no_grad():
        eightfold.paged_attention(q, *cache, **scales)
    q, cache, scales, (k, v, slots) = batch()
    with pytest.raises(RuntimeError, match=r"append_kv has no backward pass.*torch\.no_grad"):
        eightfold.append_kv(k, v.requires_grad_(), *cache[:2], slots, **scales)
    out, lse = eightfold.paged_attention(q, *cache, return_lse=True, **scales)
    with pytest.raises(RuntimeError, match=r"merge has no backward pass.*torch\.no_grad"):
        eightfold.merge([out, out.clone().requires_grad_()], [lse, lse])


def test_mistakes_are_named_with_their_fix():
    q, (k_cache, v_cache, table, lengths), scales, (k, v, slots) = batch()
    attend = lambda **settings: eightfold.paged_attention(**(dict(q=q, k_cache=k_cache, v_cache=v_cache, block_table=table, lengths=lengths, **scales) | settings))  # noqa: E731
    append = lambda **settings: eightfold.append_kv(**(dict(k=k, v=v, k_cache=k_cache, v_cache=v_cache, slots=slots, **scales) | settings))  # noqa: E731
    nan, apart = torch.tensor(float("nan")), torch.zeros(7, 16, 2, 128).to(E4M3)[..., ::2]
    # Of a token that a sequence has, and of one that none has.
    wrong, unused = (scales["k_descale"].clone() for _ in range(2))
    wrong[6, 3, 1], unused[1, 4, 0] = nan, nan
    overlapping = k_cache.as_strided(k_cache.shape, (16 * 128, 96, 64, 1))
    attend(k_descale=unused)
    cases = [
        (TypeError, "q: is ndarray", lambda: attend(q=q.numpy())),
        (ValueError, "v_cache: is on meta", lambda: attend(v_cache=v_cache.to("meta"))),
        (ValueError, "block_table: is on meta", lambda: attend(block_table=table.to("meta"))),
        (ValueError, "lengths: is on meta", lambda: attend(lengths=lengths.to("meta"))),
        (ValueError, "slots: is on meta", lambda: append(slots=slots.to("meta"))),
        (ValueError, "v_descale: is on meta", lambda: append(v_descale=scales["v_descale"].to("meta"))),
        (TypeError, "q: dtype torch.int32 is not served", lambda: attend(q=q.int())),
        (TypeError, "k_cache: dtype torch.bfloat16 is not served", lambda: attend(k_cache=k_cache.bfloat16(), v_cache=v_cache.bfloat16())),
        (TypeError, "v_cache: dtype torch.float8_e5m2 is not that of k_cache", lambda: attend(v_cache=v_cache.to(torch.float8_e5m2))),
        (TypeError, "q: is torch.float8_e5m2, but the cache is torch.float8_e4m3fn", lambda: attend(q=q.to(torch.float8_e5m2), q_descale=1.0)),
        (ValueError, "q_descale: FP8 tensors mean nothing", lambda: attend(q=q.to(E4M3))),
        (ValueError, "q: 4 heads of 32 channels do not fit", lambda: attend(q=q[..., :32])),
        (ValueError, "v_cache: shape (6, 16, 2, 64)", lambda: attend(v_cache=v_cache[:6])),
        (ValueError, "block_table: has 1 rows", lambda: attend(block_table=table[:1])),
        (ValueError, "k_cache: its channels are 2 elements apart", lambda: attend(k_cache=apart)),
        (ValueError, "v_cache: its channels are 2 elements apart", lambda: append(v_cache=apart)),
        (ValueError, "k_cache (strides): a token every 96 elements overlaps", lambda: attend(k_cache=overlapping)),
        (ValueError, "block_table: entry 0 of sequence 0 is page 13, but the cache has pages 0 to 6", lambda: attend(block_table=table + 7)),
        (ValueError, "lengths: sequence 1 has 49 tokens, but its 3 pages of 16 tokens hold 48", lambda: attend(lengths=lengths + torch.tensor([0, 16], dtype=torch.int32))),
        (ValueError, "lengths: sequence 0 has -1 tokens", lambda: attend(lengths=lengths - 21)),
        (ValueError, "has the scale NaN for head 1", lambda: attend(k_descale=wrong)),
        (ValueError, "v_cache (scales): scale 0 is NaN", lambda: attend(k_descale=1.0, v_descale=nan)),
        (ValueError, "k_cache (scales): scale 1 is inf", lambda: attend(k_descale=torch.tensor([1.0, float("inf")]), v_descale=1.0)),
        (ValueError, "k (scales): scale 0 is NaN", lambda: append(k_descale=nan, v_descale=1.0)),
        (ValueError, "token 52 has slot -2, but the cache has slots 0 to 111", lambda: append(slots=torch.cat([slots[:52], slots[:1] * 0 - 2]))),
        (ValueError, "v (values): NaN at token 0", lambda: append(v=v * nan)),
        (TypeError, "lengths: is list", lambda: attend(lengths=[20, 33])),
        (TypeError, "block_table: is torch.int64", lambda: attend(block_table=table.long())),
        (ValueError, "k_descale: is on meta", lambda: attend(k_descale=scales["k_descale"].to("meta"))),
        (ValueError, "k_descale: FP8 tensors mean nothing", lambda: attend(k_descale=None)),
        (TypeError, "out_dtype: torch.float64", lambda: attend(out_dtype=torch.float64)),
        (ValueError, "out: torch.float32 of (2, 3, 4, 32)", lambda: attend(out=q[..., :32])),
        (ValueError, "block_table: entry 2 of sequence 0", lambda: attend(lengths=lengths + 13)),
        (TypeError, "slots: is torch.int32", lambda: append(slots=slots.int())),
        (ValueError, "v: shape", lambda: append(v=v[:4])),
        (ValueError, "token 0 has slot 112", lambda: append(slots=slots * 0 + 112)),
        (TypeError, "outs[1]: is list", lambda: eightfold.merge([q, [1.0]], [q, q])),
    ]
    for kind, text, call in cases:
        with pytest.raises(kind) as caught:
            call()
        assert text in str(caught.value) and "; " in str(caught.value), str(caught.value)


def test_flash_attn_with_kvcache_reads_pages():
    q, (k_cache, v_cache, table, lengths), _, _ = batch()
    scales = dict(k_descale=torch.full((2, 2), 0.005), v_descale=torch.full((2, 2), 2.0))
    want, want_lse = eightfold.paged_attention(q, k_cache, v_cache, table, lengths, is_causal=True, return_lse=True, **scales)
    got, lse = flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lengths, page_table=table, causal=True, return_softmax_lse=True, **scales)
    assert torch.equal(got, want) and torch.equal(lse, want_lse)
    starts = torch.tensor([0, 3, 6], dtype=torch.int32)
    packed = flash_attn_with_kvcache(q.flatten(0, 1), k_cache, v_cache, cache_seqlens=lengths, page_table=table, cu_seqlens_q=starts, max_seqlen_q=3, causal=True, **scales)
    assert torch.equal(packed.view_as(want), want)
    codes = (q * 4).to(E4M3)
    by_heads = flash_attn_with_kvcache(codes, k_cache, v_cache, cache_seqlens=lengths, page_table=table, q_descale=torch.full((2, 2), 0.25), causal=True, **scales)
    assert error(by_heads.float(), want) < 0.05


def test_flash_attn_with_kvcache_appends_to_pages():
    q, (k_cache, v_cache, table, lengths), _, _ = batch()
    new = torch.randn(2, 3, 2, 64)
    # As servers give them: one for all, expanded.
    scales = dict(k_descale=torch.full((1,), 0.02).expand(2, 2), v_descale=torch.full((1,), 0.02).expand(2, 2))
    before = lengths - torch.tensor([5, 2], dtype=torch.int32)
    got = flash_attn_with_kvcache(q, k_cache, v_cache, new, -new, cache_seqlens=before, page_table=table, causal=True, **scales)
    assert torch.equal(got, eightfold.paged_attention(q, k_cache, v_cache, table, before + 3, is_causal=True, **scales))
    assert error(k_cache[2, 0].float() * 0.02, new[1, 1]) < 0.05 and error(v_cache[1, 1].float() * 0.02, -new[0, 2]) < 0.05
    with pytest.raises(NotImplementedError, match="k_descale: has a scale for each sequence"):
        flash_attn_with_kvcache(q, k_cache, v_cache, new, new, cache_seqlens=before, page_table=table, k_descale=torch.rand(2, 2), v_descale=1.0)
    with pytest.raises(ValueError, match="cache_seqlens: says how many"):
        flash_attn_with_kvcache(q, k_cache, v_cache, page_table=table, **scales)


def test_an_fp8_cache_without_pages_is_read_and_written_by_batch_index():
    cache = torch.randn(2, 4, 32, 2, 64).to(E4M3)
    q, index, lengths = torch.randn(2, 1, 4, 64), torch.tensor([3, 1], dtype=torch.int32), torch.tensor([7, 20], dtype=torch.int32)
    got = flash_attn_with_kvcache(q, *cache, cache_seqlens=lengths, cache_batch_idx=index, k_descale=1.0, v_descale=1.0)
    for row, (at, length) in enumerate(zip(index.tolist(), lengths.tolist())):
        k, v = (one[at : at + 1, :length].float() for one in cache)
        assert error(got[row], eightfold.attention(q[row : row + 1], k, v)[0]) < 0.1
    new = torch.ones(2, 1, 2, 64)
    flash_attn_with_kvcache(q, *cache, new, new, cache_seqlens=lengths, k_descale=1.0, v_descale=0.5)
    assert (cache[0, 0, 7].float() == 1).all() and (cache[1, 1, 20].float() == 2).all()


def test_packed_fp8_whose_lengths_are_on_the_device_is_one_launch():
    ends = torch.tensor([0, 8, 24], dtype=torch.int32)
    used = torch.tensor([5, 16], dtype=torch.int32)
    q = torch.randn(24, 4, 64)
    k, v = torch.randn(2, 24, 2, 64).to(E4M3)
    f = lambda q, k, v: flash_attn_varlen_func(q, k, v, ends, ends, 16, 16, seqused_k=used, k_descale=1.0, v_descale=1.0)  # noqa: E731
    got = f(q, k, v)
    for start, end, keys in ((0, 8, 5), (8, 24, 16)):
        want = eightfold.attention(q[None, start:end], k[None, start : start + keys].float(), v[None, start : start + keys].float())
        assert error(got[start:end], want[0]) < 0.1
    assert torch.equal(torch.compile(f, fullgraph=True, backend="aot_eager")(q, k, v), got)
