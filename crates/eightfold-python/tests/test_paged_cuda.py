"""Caches in pages on a device, beside the CPU's results on the same codes, for which it quantises queries, too."""

import pytest
from conftest import HAS_TORCH, error

if not HAS_TORCH:
    pytest.skip("torch is not installed", allow_module_level=True)

import eightfold
import torch
from eightfold.flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

pytestmark = pytest.mark.cuda

E4M3 = torch.float8_e4m3fn
LENGTHS = [1, 0, 33, 1000, 64]


def on_cpu(one):
    return one.cpu() if isinstance(one, torch.Tensor) else one


class Cache:
    """Pages of a batch of sequences on the device, filled by append_kv."""

    def __init__(self, lengths, heads=2, channels=128, size=16, layout="NHD", scales="token", dtype=torch.bfloat16, format=E4M3):
        torch.manual_seed(0)
        self.layout, self.size = layout, size
        counts = [-(-length // size) for length in lengths]
        pages = sum(counts) + 3
        order = torch.randperm(pages).int()
        table = torch.zeros(len(lengths), max(*counts, 1), dtype=torch.int32)
        for row, count in enumerate(counts):
            table[row, :count], order = order[:count], order[count:]
        both = torch.zeros(pages, 2, *((size, heads) if layout == "NHD" else (heads, size)), channels, dtype=torch.uint8, device="cuda").view(format)
        self.k, self.v = both.unbind(1)
        self.table, self.lengths = table.cuda(), torch.tensor(lengths, dtype=torch.int32, device="cuda")
        self.scales = dict(k_descale=0.02, v_descale=torch.full((heads,), 0.02, device="cuda"))
        if scales == "token":
            self.scales = {name: torch.ones(self.k.shape[:3], device="cuda") for name in self.scales}
        slots = torch.cat([table[row, torch.arange(n) // size].long() * size + torch.arange(n) % size for row, n in enumerate(lengths)]).cuda()
        # V of mean 1, which half of a row's error would show in.
        k, v = torch.randn(2, len(slots), heads, channels, device="cuda").to(dtype)
        eightfold.append_kv(k, v + 1, self.k, self.v, slots, tensor_layout=layout, **self.scales)

    def attend(self, q, place=lambda one: one, **settings):
        given = [place(one) for one in (q, self.k, self.v, self.table, self.lengths)]
        settings = {name: place(one) for name, one in (settings | self.scales).items()}
        return eightfold.paged_attention(*given, tensor_layout=self.layout, **settings)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("size, scales", [(16, "token"), (64, "head"), (1, "token"), (24, "head")])
@pytest.mark.parametrize("heads, queries", [(2, 1), (10, 1), (8, 4), (24, 3)])
def test_results_are_those_of_the_cpu(layout, size, scales, heads, queries):
    cache = Cache(LENGTHS, layout=layout, size=size, scales=scales)
    q = torch.randn(len(LENGTHS), queries, heads, 128, device="cuda", dtype=torch.bfloat16)
    settings = dict(is_causal=True, return_lse=True, out_dtype=torch.float32)
    got, lse = cache.attend(q, **settings)
    want, want_lse = cache.attend(q, on_cpu, **settings)
    assert error(got.cpu(), want) < 0.06
    seen = torch.isfinite(want_lse)
    assert torch.equal(torch.isfinite(lse).cpu(), seen) and (lse.cpu() - want_lse)[seen].abs().max() < 0.1


@pytest.mark.parametrize("channels", [64, 96, 192, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, E4M3])
def test_every_width_and_format_of_queries(channels, dtype):
    cache = Cache([40, 200], channels=channels)
    q = torch.randn(2, 2, 4, channels, device="cuda").to(dtype)
    q_descale = dict(q_descale=torch.rand(2, 4, device="cuda") + 0.5) if dtype == E4M3 else {}
    got = cache.attend(q, is_causal=True, **q_descale)
    assert error(got.float().cpu(), cache.attend(q, on_cpu, is_causal=True, **q_descale).float()) < 0.06


def test_packed_queries_are_those_of_the_cpu():
    cache = Cache([20, 0, 300, 77])
    starts = torch.tensor([0, 20, 22, 23, 63], dtype=torch.int32, device="cuda")
    q = torch.randn(63, 8, 128, device="cuda", dtype=torch.bfloat16)
    settings = dict(cu_seqlens_q=starts, max_seqlen_q=40, is_causal=True, return_lse=True)
    (got, lse), (want, want_lse) = cache.attend(q, **settings), cache.attend(q, on_cpu, **settings)
    assert error(got.float().cpu(), want.float()) < 0.06 and lse.shape == want_lse.shape == (8, 63)
    assert torch.equal(torch.isfinite(lse).cpu(), torch.isfinite(want_lse))


@pytest.mark.parametrize("settings", [dict(window_size=(100, 0)), dict(softcap=3.0), dict(window_size=(7, -1), softcap=5.0, is_causal=True)])
def test_windows_and_softcaps_are_those_of_the_cpu(settings):
    cache = Cache(LENGTHS)
    q = torch.randn(len(LENGTHS), 2, 8, 128, device="cuda", dtype=torch.bfloat16)
    assert error(cache.attend(q, **settings).float().cpu(), cache.attend(q, on_cpu, **settings).float()) < 0.06


def test_a_sink_takes_its_share():
    cache = Cache([50, 700])
    q, sinks = torch.randn(2, 1, 8, 128, device="cuda", dtype=torch.bfloat16), torch.linspace(-2, 5, 8, device="cuda")
    plain, plain_lse = cache.attend(q, return_lse=True)
    got, lse = cache.attend(q, return_lse=True, sinks=sinks)
    want_lse = torch.logaddexp(plain_lse, sinks[:, None])
    want = plain.float() * (plain_lse - want_lse).exp().transpose(1, 2)[..., None]
    assert error(got.float().cpu(), want.cpu()) < 0.02 and (lse - want_lse).abs().max() < 1e-2


def test_codes_are_those_of_the_cpu():
    device = Cache(LENGTHS)
    k, v = torch.randn(2, 9, 2, 128, device="cuda", dtype=torch.float16) * 1e3
    slots = torch.tensor([5, -1, 7, 100, 101, 102, 103, 30, 31], device="cuda")
    for scales in (device.scales, dict(k_descale=0.5, v_descale=torch.tensor([2.0, 0.25], device="cuda"))):
        caches = [device.k.clone(), device.v.clone()]
        copies = [on_cpu(one) for one in caches]
        held = {name: on_cpu(one).clone() if isinstance(one, torch.Tensor) else one for name, one in scales.items()}
        eightfold.append_kv(k, v, *caches, slots, **scales)
        eightfold.append_kv(k.cpu(), v.cpu(), *copies, slots.cpu(), **held)
        for got, want in zip(caches, copies):
            assert torch.equal(got.view(torch.uint8).cpu(), want.view(torch.uint8))
        assert all(torch.equal(scales[name].cpu(), one) for name, one in held.items() if isinstance(one, torch.Tensor))


@pytest.mark.parametrize("slot", [-2, 1 << 40])
def test_slots_outside_the_cache_are_left_out_or_told(slot):
    cache = Cache(LENGTHS)
    new = torch.ones(2, 2, 128, device="cuda", dtype=torch.bfloat16)
    slots = torch.tensor([-1, slot], device="cuda")
    before = cache.k.view(torch.uint8).clone()
    eightfold.append_kv(new, new, cache.k, cache.v, slots, **cache.scales)
    assert torch.equal(cache.k.view(torch.uint8), before)
    with pytest.raises(ValueError, match="^slots: that of token 1 is neither"):
        eightfold.append_kv(new, new, cache.k, cache.v, slots, validate=True, **cache.scales)


def test_a_graph_is_replayed_after_lengths_and_tables_changed():
    cache = Cache([1000, 500, 64])
    q = torch.randn(3, 1, 8, 128, device="cuda", dtype=torch.bfloat16)
    new = torch.randn(3, 2, 128, device="cuda", dtype=torch.bfloat16)
    slots = torch.full((3,), -1, device="cuda")

    def step():
        eightfold.append_kv(new, new, cache.k, cache.v, slots, **cache.scales)
        return cache.attend(q)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for lengths, rows in (([1000, 500, 64], [0, 1, 2]), ([3, 0, 64], [0, 1, 2]), ([64, 400, 999], [2, 1, 0])):
        cache.lengths.copy_(torch.tensor(lengths))
        cache.table.copy_(cache.table[torch.tensor(rows)])
        slots.copy_(torch.tensor([7, -1, 40]))
        graph.replay()
        assert error(out.float().cpu(), cache.attend(q, on_cpu).float()) < 0.06


def test_it_compiles_and_the_operators_pass_their_checks():
    cache = Cache([100, 37])
    q = torch.randn(2, 1, 8, 128, device="cuda", dtype=torch.bfloat16)
    f = lambda q: cache.attend(q * 2) + 1  # noqa: E731
    assert error(torch.compile(f, fullgraph=True)(q).float().cpu(), f(q).float().cpu()) < 0.01
    given = (q, cache.k, cache.v, cache.table, cache.lengths, None, None, None, *cache.scales.values(), "NHD", True, None, -1, -1, 0.0, None, True, False, False)
    checks = ("test_faketensor", "test_autograd_registration")
    assert set(torch.library.opcheck(torch.ops.eightfold.paged_attention, given, test_utils=checks).values()) == {"SUCCESS"}


def test_a_sequence_gives_the_same_bits_alone():
    cache = Cache([5000, 30, 777])
    q = torch.randn(3, 1, 8, 128, device="cuda", dtype=torch.bfloat16)
    together = cache.attend(q, batch_invariant=True)
    cache.table, cache.lengths = cache.table[2:].contiguous(), cache.lengths[2:].contiguous()
    assert torch.equal(cache.attend(q[2:], batch_invariant=True), together[2:])


@pytest.mark.parametrize("parts", [2, 7, 16])
def test_parts_merge_to_the_whole(parts):
    cache = Cache([1024, 1024], size=16)
    q = torch.randn(2, 2, 8, 128, device="cuda", dtype=torch.bfloat16)
    whole, whole_lse = cache.attend(q, return_lse=True)
    table, pieces = cache.table, []
    for pages in torch.arange(64).tensor_split(parts):
        cache.table, cache.lengths = table[:, pages].contiguous(), torch.full((2,), 16 * len(pages), dtype=torch.int32, device="cuda")
        pieces.append(cache.attend(q, return_lse=True))
    out, lse = eightfold.merge(*zip(*pieces))
    assert error(out.float().cpu(), whole.float().cpu()) < 0.01 and (lse - whole_lse).abs().max() < 1e-2


def test_what_would_be_read_beyond_the_cache_is_reported():
    cache = Cache([40, 9])
    q = torch.randn(2, 1, 8, 128, device="cuda", dtype=torch.bfloat16)
    cache.attend(q, validate=True)
    lengths, table = cache.lengths.clone(), cache.table.clone()
    for text, change in [
        ("lengths: that of sequence 1", lambda: cache.lengths.copy_(torch.tensor([40, 10**6]))),
        ("lengths: that of sequence 0", lambda: cache.lengths.copy_(torch.tensor([-1, 9]))),
        ("block_table: entry 2 of sequence 0 is no page", lambda: cache.table[0, 2:].fill_(99)),
        ("block_table: entry 0 of sequence 1 is no page", lambda: cache.table[1].fill_(-1)),
    ]:
        cache.lengths.copy_(lengths)
        cache.table.copy_(table)
        change()
        with pytest.raises(ValueError, match=text):
            cache.attend(q, validate=True)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 0.0, -1.0])
def test_scales_that_are_no_scales_are_reported(wrong):
    cache = Cache([40, 9])
    q = torch.randn(2, 1, 8, 128, device="cuda", dtype=torch.bfloat16)
    new, slots = torch.ones(2, 2, 128, device="cuda", dtype=torch.bfloat16), torch.tensor([0, -1], device="cuda")
    cache.scales["v_descale"][cache.table[1, 0], 8, 1] = wrong
    with pytest.raises(ValueError, match="^scales: one of the queries, keys or values of sequence 1 is not"):
        cache.attend(q, validate=True)
    by_head = torch.tensor([1.0, wrong], device="cuda")
    with pytest.raises(ValueError, match="^scales: that of the keys or values of head 1 is not"):
        eightfold.append_kv(new, new, cache.k, cache.v, slots, k_descale=by_head, v_descale=1.0, validate=True)
    cache.scales = dict(k_descale=1.0, v_descale=1.0)
    with pytest.raises(ValueError, match="^scales: one of the queries, keys or values of sequence 0 is not"):
        cache.attend(q.to(E4M3), q_descale=torch.tensor([[1.0] * 7 + [wrong], [1.0] * 8], device="cuda"), validate=True)


def test_mistakes_are_named_with_their_fix():
    cache = Cache([40, 9])
    q = torch.randn(2, 1, 8, 128, device="cuda", dtype=torch.bfloat16)
    new = torch.ones(2, 2, 136, device="cuda", dtype=torch.bfloat16)[..., :128]
    # Rows that a kernel cannot read 16 bytes at a time.
    padded = torch.zeros(*cache.k.shape[:3], 136, dtype=torch.uint8, device="cuda").view(E4M3)[..., :128]
    odd = torch.ones(2, 2, 132, device="cuda", dtype=torch.bfloat16)[..., :128]
    shifted = torch.zeros(cache.k.numel() + 8, dtype=torch.uint8, device="cuda").view(E4M3)[8:].view(cache.k.shape)
    slots = torch.tensor([0, 1], device="cuda")
    eightfold.append_kv(new, new, cache.k, cache.v, slots, **cache.scales)
    for kind, text, call in [
        (ValueError, "v: has a head every 136 codes", lambda: eightfold.paged_attention(q, cache.k, padded, cache.table, cache.lengths, **cache.scales)),
        (ValueError, "k: has a head every 136 codes", lambda: eightfold.append_kv(new, new, padded, cache.v, slots, **cache.scales)),
        (ValueError, "k: its head stride of 132 elements", lambda: eightfold.append_kv(odd, new, cache.k, cache.v, slots, **cache.scales)),
        (ValueError, "k: address", lambda: eightfold.paged_attention(q, shifted, shifted, cache.table, cache.lengths, **cache.scales)),
        (ValueError, "lengths: is on cpu", lambda: eightfold.paged_attention(q, cache.k, cache.v, cache.table, cache.lengths.cpu(), **cache.scales)),
        (ValueError, "k_descale: is on cpu", lambda: eightfold.paged_attention(q, cache.k, cache.v, cache.table, cache.lengths, k_descale=torch.ones(1), v_descale=1.0)),
    ]:
        with pytest.raises(kind) as caught:
            call()
        assert text in str(caught.value) and "; " in str(caught.value), str(caught.value)


def test_two_streams_do_not_disturb_each_other():
    caches = [Cache([3000, 20]), Cache([100, 4000, 7])]
    queries = [torch.randn(len(cache.lengths), 1, 8, 128, device="cuda", dtype=torch.bfloat16) for cache in caches]
    want = [cache.attend(q) for cache, q in zip(caches, queries)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in caches]
    for _ in range(20):
        got = []
        for stream, cache, q in zip(streams, caches, queries):
            with torch.cuda.stream(stream):
                got.append(cache.attend(q))
        torch.cuda.synchronize()
        assert all(error(a.float().cpu(), b.float().cpu()) < 0.01 for a, b in zip(got, want))


def test_flash_attention_s_names_are_captured_with_lengths_on_the_device():
    cache = Cache([100, 37], scales="head")
    q = torch.randn(2, 1, 8, 128, device="cuda", dtype=torch.bfloat16)
    scales = {name: torch.full((2, 2), 0.02, device="cuda") for name in cache.scales}
    f = lambda: flash_attn_with_kvcache(q, cache.k, cache.v, cache_seqlens=cache.lengths, page_table=cache.table, causal=True, **scales)  # noqa: E731
    want = f()
    assert error(want.float().cpu(), cache.attend(q, on_cpu, is_causal=True).float()) < 0.06
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = f()
    graph.replay()
    assert torch.equal(got, want)
    ends = torch.tensor([0, 30, 64], dtype=torch.int32, device="cuda")
    packed = torch.randn(64, 8, 128, device="cuda", dtype=torch.bfloat16)
    k, v = torch.randn(2, 64, 2, 128, device="cuda").to(E4M3)
    used = ends[1:] - ends[:-1]
    settings = dict(seqused_k=used, causal=True, k_descale=1.0, v_descale=1.0)
    out = flash_attn_varlen_func(packed, k, v, ends, ends, 34, 34, **settings)
    host = {name: on_cpu(one) for name, one in settings.items()}
    want = flash_attn_varlen_func(packed.cpu(), k.cpu(), v.cpu(), ends.cpu(), ends.cpu(), 34, 34, **host)
    assert error(out.float().cpu(), want.float()) < 0.06
