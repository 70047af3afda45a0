"""Caches in pages on the CPU, with numpy arrays, beside attention in float64."""

import numpy as np
import pytest
from conftest import error, exact, values

import eightfold

ml_dtypes = pytest.importorskip("ml_dtypes")
E4M3 = ml_dtypes.float8_e4m3fn


def dense(q, k, v, **settings):
    """The same of (query, head, channel) to (key, head, channel): the output alike, and the log-sum-exp (head, query)."""
    out, lse = exact(*(np.asarray(x)[None].swapaxes(1, 2) for x in (q, k, v)), **settings)
    return out[0].swapaxes(0, 1), lse[0]


class Cache:
    """Pages of a batch of sequences, filled by append_kv, with a scale for each token and head."""

    def __init__(self, lengths, heads=2, channels=64, size=16, layout="NHD", seed=0):
        self.layout, self.size = layout, size
        counts = [-(-length // size) for length in lengths]
        pages = sum(counts) + 2
        order = np.random.default_rng(seed).permutation(pages)
        self.table = np.full((len(lengths), max(*counts, 1)), -1, np.int32)
        for row, count in enumerate(counts):
            self.table[row, :count], order = order[:count], order[count:]
        self.lengths = np.array(lengths, np.int32)
        shape = (pages, size, heads) if layout == "NHD" else (pages, heads, size)
        # K and V side by side, as servers have them.
        self.k, self.v = np.moveaxis(np.zeros((pages, 2, *shape[1:], channels), E4M3), 1, 0)
        self.k_scales, self.v_scales = np.ones((2, *shape), np.float32)
        self.values = [(values(seed + 1 + i, length, heads, channels), values(seed + 50 + i, length, heads, channels)) for i, length in enumerate(lengths)]
        k, v = (np.concatenate([pair[i] for pair in self.values]) for i in (0, 1))
        eightfold.append_kv(k, v, self.k, self.v, self.slots(), **self.scales, tensor_layout=layout)

    @property
    def scales(self):
        return dict(k_descale=self.k_scales, v_descale=self.v_scales)

    def slots(self):
        rows = [self.table[row, np.arange(n) // self.size].astype(np.int64) * self.size + np.arange(n) % self.size for row, n in enumerate(self.lengths)]
        return np.concatenate(rows)

    def attend(self, q, **settings):
        return eightfold.paged_attention(q, self.k, self.v, self.table, self.lengths, tensor_layout=self.layout, **self.scales, **settings)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("size", [1, 16, 24])
def test_sequences_of_any_length_are_near_float64(layout, size):
    cache = Cache([1, 47, 16, 33], layout=layout, size=size)
    q = values(9, 4, 1, 6, 64)
    out, lse = cache.attend(q, sm_scale=0.2, return_lse=True)
    assert lse.shape == (4, 6, 1)
    for row, (k, v) in enumerate(cache.values):
        want, want_lse = dense(q[row], k, v, scale=0.2)
        assert error(out[row], want) < 0.08 and np.abs(lse[row] - want_lse).max() < 0.2


@pytest.mark.parametrize("settings", [{}, {"window": (11, -1)}, {"softcap": 3.0}])
def test_packed_queries_and_masks_are_near_float64(settings):
    cache = Cache([20, 0, 64, 9])
    counts = [5, 2, 1, 9]
    starts = np.array([0, *np.cumsum(counts)], np.int32)
    q = values(3, 17, 4, 64)
    named = {"window_size": settings["window"]} if "window" in settings else settings
    out, lse = cache.attend(q, cu_seqlens_q=starts, max_seqlen_q=9, is_causal=True, return_lse=True, **named)
    assert lse.shape == (4, 17)
    for row, (start, end) in enumerate(zip(starts, starts[1:])):
        if row == 1:
            assert (out[start:end] == 0).all() and (lse[:, start:end] == -np.inf).all()
            continue
        want, want_lse = dense(q[start:end], *cache.values[row], causal=True, **settings)
        assert error(out[start:end], want) < 0.08 and np.abs(lse[:, start:end] - want_lse).max() < 0.2


def test_scales_of_every_granularity_mean_the_same():
    rng = np.random.default_rng(5)
    k, v = rng.integers(0, 0x58, (2, 6, 16, 2, 64)).astype(np.uint8).view(E4M3)
    table, lengths = np.array([[4, 0], [2, 5]], np.int32), np.array([30, 17], np.int32)
    q = values(6, 2, 3, 4, 64)
    attend = lambda k_descale, v_descale: eightfold.paged_attention(q, k, v, table, lengths, k_descale=k_descale, v_descale=v_descale)  # noqa: E731
    want = attend(0.01, 0.5)
    assert (attend(np.full(2, 0.01), np.float32(0.5)) == want).all()
    assert (attend(np.full((2, 2), 0.01), np.full(2, 0.5)) == want).all()
    assert (attend(np.full((6, 16, 2), 0.01, np.float32), np.full((6, 16, 2), 0.5, np.float32)) == want).all()
    by_head = attend(0.01, np.array([0.5, 2.0]))
    assert (by_head[:, :, :2] == want[:, :, :2]).all() and np.allclose(by_head[:, :, 2:], 4 * want[:, :, 2:], rtol=1e-5)
    keys = [k[table[row]].reshape(32, 2, 64)[:n].astype(np.float64) * 0.01 for row, n in enumerate(lengths)]
    vals = [v[table[row]].reshape(32, 2, 64)[:n].astype(np.float64) * 0.5 for row, n in enumerate(lengths)]
    for row in range(2):
        assert error(want[row], dense(q[row], keys[row], vals[row])[0]) < 0.05


def test_codes_as_queries_have_their_scales():
    cache = Cache([40, 9])
    codes = (values(7, 2, 2, 4, 64) * 4).astype(E4M3)
    scales = np.array([[0.25, 0.5, 1, 2], [1, 0.125, 0.25, 0.5]], np.float32)
    out = cache.attend(codes, q_descale=scales)
    assert out.dtype == np.float32
    for row, (k, v) in enumerate(cache.values):
        assert error(out[row], dense(codes[row].astype(np.float64) * scales[row][None, :, None], k, v)[0]) < 0.1


def test_given_scales_saturate_and_negative_slots_are_left_out():
    cache = np.zeros((2, 2, 16, 1, 64), E4M3)
    k = np.full((3, 1, 64), 1e6, np.float32)
    eightfold.append_kv(k, -k, cache[0], cache[1], np.array([0, -1, 31]), k_descale=1.0, v_descale=np.array([2.0]))
    assert float(cache[0, 0, 0, 0, 0]) == 448 and float(cache[1, 1, 15, 0, 0]) == -448
    assert (cache[:, 0, 1:].astype(np.float32) == 0).all()


def test_a_sequence_gives_the_same_bits_alone():
    cache = Cache([70, 3, 40])
    q = values(8, 3, 2, 4, 64)
    together = cache.attend(q, is_causal=True, batch_invariant=True)
    alone = eightfold.paged_attention(
        q[2:], cache.k, cache.v, cache.table[2:], cache.lengths[2:], is_causal=True, batch_invariant=True, **cache.scales
    )
    assert (together[2:] == alone).all()


@pytest.mark.parametrize("parts", [2, 5, 16])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_parts_merge_to_the_whole(parts, layout):
    q, k, v = values(1, 2, 9, 4, 64), values(2, 2, 64, 2, 64), values(3, 2, 64, 2, 64)
    turn = (lambda x: x) if layout == "NHD" else (lambda x: np.ascontiguousarray(x.swapaxes(1, 2)))
    pieces = [
        eightfold.attention(turn(q), turn(k[:, part]), turn(v[:, part]), tensor_layout=layout, return_lse=True)
        for part in np.array_split(np.arange(64), parts)
    ]
    out, lse = eightfold.merge(*zip(*pieces), tensor_layout=layout)
    for row in range(2):
        want, want_lse = dense(q[row], k[row], v[row])
        assert error(turn(out)[row] if layout == "HND" else out[row], want) < 0.08
        assert np.abs(lse[row] - want_lse).max() < 0.1


def test_packed_parts_merge():
    cache = Cache([32, 48])
    q, starts = values(4, 5, 4, 64), np.array([0, 2, 5], np.int32)
    settings = dict(cu_seqlens_q=starts, max_seqlen_q=3, return_lse=True)
    whole, whole_lse = cache.attend(q, **settings)
    first = eightfold.paged_attention(q, cache.k, cache.v, cache.table, np.array([16, 16], np.int32), **cache.scales, **settings)
    rest = eightfold.paged_attention(
        q, cache.k, cache.v, np.ascontiguousarray(cache.table[:, 1:]), np.array([16, 32], np.int32), **cache.scales, **settings
    )
    out, lse = eightfold.merge([first[0], rest[0]], [first[1], rest[1]])
    assert error(out, whole) < 0.01 and np.abs(lse - whole_lse).max() < 1e-3


Q = np.ones((2, 1, 4, 64), np.float32)
CODES = np.ones((3, 16, 2, 64), E4M3)
TABLE, LENGTHS = np.array([[0, 1], [2, 0]], np.int32), np.array([20, 5], np.int32)


@pytest.mark.parametrize(
    "kind, text, settings",
    [
        (TypeError, "k_cache: dtype float32 is not served", {"k_cache": CODES.astype(np.float32)}),
        (TypeError, "v_cache: dtype float8_e5m2 is not that of k_cache", {"v_cache": CODES.astype(ml_dtypes.float8_e5m2)}),
        (ValueError, "v_cache: shape (2, 16, 2, 64)", {"v_cache": CODES[:2]}),
        (ValueError, "k_cache: its channels are 2 elements apart", {"k_cache": np.ones((3, 16, 2, 128), E4M3)[..., ::2]}),
        (ValueError, "q: 4 heads of 32 channels do not fit", {"q": Q[..., :32]}),
        (ValueError, "q: 3 heads of 64 channels do not fit", {"q": Q[:, :, :3]}),
        (ValueError, "q: has 3 dimensions", {"q": Q[0]}),
        (ValueError, "q: has 1 sequences, and lengths 2", {"q": Q[:1]}),
        (TypeError, "block_table: is int64 of 2 dimensions", {"block_table": TABLE.astype(np.int64)}),
        (TypeError, "lengths: list is no array", {"lengths": [20, 5]}),
        (TypeError, "lengths: is int32 of 2 dimensions", {"lengths": TABLE}),
        (ValueError, "block_table: has 1 rows", {"block_table": TABLE[:1]}),
        (ValueError, "block_table: entry 0 of sequence 1 is page 3", {"block_table": np.array([[0, 1], [3, 0]], np.int32)}),
        (ValueError, "block_table: entry 1 of sequence 0 is page -1", {"block_table": np.array([[0, -1], [2, -1]], np.int32)}),
        (ValueError, "sequence 0 has 33", {"lengths": np.array([33, 5], np.int32)}),
        (ValueError, "lengths: sequence 1 has -2", {"lengths": np.array([3, -2], np.int32)}),
        (ValueError, "k_descale: FP8 tensors mean nothing", {"k_descale": None}),
        (ValueError, "v_descale: shape (3,) is neither", {"v_descale": np.ones(3)}),
        (ValueError, "v_descale: keys and values do not both", {"v_descale": np.ones((3, 16, 2))}),
        (ValueError, "k_cache (scales): scale 0 is NaN", {"k_descale": float("nan")}),
        (ValueError, "scale 0 is -1", {"v_descale": -1.0}),
        (ValueError, "q_descale: q is not FP8", {"q_descale": 1.0}),
        (ValueError, "q_descale: FP8 tensors mean nothing", {"q": Q.astype(E4M3)}),
        (ValueError, "max_seqlen_q: is not given", {"q": Q[:, 0], "cu_seqlens_q": np.array([0, 1, 2], np.int32)}),
        (ValueError, "cu_seqlens_q: has 2 entries", {"q": Q[:, 0], "cu_seqlens_q": np.array([0, 1], np.int32), "max_seqlen_q": 1}),
        (ValueError, "q: has 2 rows, but its cu_seqlens end at 5", {"q": Q[:, 0], "cu_seqlens_q": np.array([0, 1, 5], np.int32), "max_seqlen_q": 4}),
        (ValueError, "queries: sequence 0 has 2, but", {"q": Q[:, 0], "cu_seqlens_q": np.array([0, 2, 2], np.int32), "max_seqlen_q": 1}),
        (ValueError, "softcap: -1.0", {"softcap": -1.0}),
        (ValueError, "window_size: (1,)", {"window_size": (1,)}),
        (ValueError, "tensor_layout: 'DHN'", {"tensor_layout": "DHN"}),
        (ValueError, "sinks: shape (3,) is not one logit", {"sinks": np.ones(3)}),
        (ValueError, "out: float32 of (1, 1, 4, 64)", {"out": Q[:1].copy()}),
    ],
)
def test_mistakes_are_named_with_their_fix(kind, text, settings):
    call = dict(q=Q, k_cache=CODES, v_cache=CODES, block_table=TABLE, lengths=LENGTHS, k_descale=1.0, v_descale=1.0) | settings
    with pytest.raises(kind) as caught:
        eightfold.paged_attention(**call)
    assert text in str(caught.value) and "; " in str(caught.value), str(caught.value)


NEW = np.ones((2, 2, 64), np.float32)


@pytest.mark.parametrize(
    "kind, text, settings",
    [
        (ValueError, "token 1 has slot 48, but the cache has slots 0 to 47", {"slots": np.array([0, 48])}),
        (ValueError, "token 0 has slot -2", {"slots": np.array([-2, 0])}),
        (TypeError, "slots: is int32", {"slots": np.array([0, 1], np.int32)}),
        (ValueError, "k: shape (1, 2, 64) is not (2, 2, 64)", {"k": NEW[:1]}),
        (TypeError, "v: is float16, but k is float32", {"v": NEW.astype(np.float16)}),
        (TypeError, "k: dtype float64", {"k": NEW.astype(np.float64), "v": NEW.astype(np.float64)}),
        (ValueError, "k (values): NaN at token 1", {"k": np.stack([NEW[0], NEW[0] * np.nan])}),
        (ValueError, "v_descale: shape (2, 2)", {"v_descale": np.ones((2, 2))}),
        (TypeError, "k_descale: scales of tokens are written, and these are float64", {"k_descale": np.ones((3, 16, 2)), "v_descale": np.ones((3, 16, 2))}),
        (ValueError, "k (scales): scale 0 is 0", {"k_descale": 0.0}),
        (ValueError, "k_cache: is read-only", {"k_cache": np.broadcast_to(CODES[0], (3, 16, 2, 64))}),
    ],
)
def test_mistakes_of_an_append_are_named(kind, text, settings):
    cache = CODES.copy()
    call = dict(k=NEW, v=NEW, k_cache=cache, v_cache=cache.copy(), slots=np.array([0, 1]), k_descale=1.0, v_descale=1.0) | settings
    with pytest.raises(kind) as caught:
        eightfold.append_kv(**call)
    assert text in str(caught.value) and "; " in str(caught.value), str(caught.value)


def test_mistakes_of_a_merge_are_named():
    out, lse = eightfold.attention(*[np.ones((1, 8, 2, 64), np.float32)] * 3, return_lse=True)
    for outs, lses, text in [
        ([], [], "lses: 0 for 0 outputs"),
        ([out], [], "lses: 0 for 1 outputs"),
        ([out, out[:, :4]], [lse, lse], "outs[1]: "),
        ([out], [lse[..., :4]], "lses[0]: "),
        ([out], [np.full_like(lse, np.nan)], "log-sum-exp of row 0 of part 0 is NaN"),
    ]:
        with pytest.raises(ValueError) as caught:
            eightfold.merge(outs, lses)
        assert text in str(caught.value) and "; " in str(caught.value), str(caught.value)
