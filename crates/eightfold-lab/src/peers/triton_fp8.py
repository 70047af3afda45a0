"""FP8 attention in Triton, as one writes it: a peer. One program for each tile of queries, K and V streamed past it."""

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# (rows of queries, keys of a tile, warps, stages), of which the fastest is taken.
CONFIGS = {
    64: [(128, 128, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3), (64, 128, 4, 3)],
    128: [(128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3)],
}


@triton.jit
def visit(sums, total, largest, q, keys, values, key_row, value_row, start, rows, columns, scale, LEN: tl.constexpr,
          TILE_KEYS: tl.constexpr, CAUSAL: tl.constexpr, TAIL: tl.constexpr):
    scores = tl.dot(q, keys.load([key_row + start, 0]).T)
    if CAUSAL:
        scores = tl.where(rows[:, None] >= (start + columns)[None, :], scores, float("-inf"))
    if TAIL:
        scores = tl.where((start + columns)[None, :] < LEN, scores, float("-inf"))
    above = tl.maximum(largest, tl.max(scores, 1) * scale)
    # Weights go up to 256, where E4M3 keeps more of the small ones; their sum carries the same factor.
    weights = tl.math.exp2(scores * scale - (above - 8.0)[:, None])
    factor = tl.math.exp2(largest - above)
    total = total * factor + tl.sum(weights, 1)
    sums = tl.dot(weights.to(tl.float8e4nv), values.load([value_row, start]).T, sums * factor[:, None])
    return sums, total, above


@triton.jit
def attend(queries, keys, values, output, scales, softmax_scale, LEN: tl.constexpr, HEAD_DIM: tl.constexpr,
           TILE_QUERIES: tl.constexpr, TILE_KEYS: tl.constexpr, CAUSAL: tl.constexpr, EVEN: tl.constexpr):
    # Under the causal mask the longest rows go first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0) if CAUSAL else tl.program_id(0)
    head = tl.program_id(1)
    first = tile * TILE_QUERIES
    rows = first + tl.arange(0, TILE_QUERIES)
    columns = tl.arange(0, TILE_KEYS)
    scale = tl.load(scales) * tl.load(scales + 1) * softmax_scale * 1.4426950408889634

    largest = tl.full([TILE_QUERIES], -float("inf"), dtype=tl.float32)
    total = tl.zeros([TILE_QUERIES], dtype=tl.float32)
    sums = tl.zeros([TILE_QUERIES, HEAD_DIM], dtype=tl.float32)
    q = queries.load([head * LEN + first, 0])
    end = tl.minimum(first + TILE_QUERIES, LEN) if CAUSAL else LEN
    whole = first // TILE_KEYS * TILE_KEYS if CAUSAL else LEN // TILE_KEYS * TILE_KEYS
    for start in tl.range(0, whole, TILE_KEYS):
        sums, total, largest = visit(sums, total, largest, q, keys, values, head * LEN, head * HEAD_DIM, start, rows,
                                     columns, scale, LEN, TILE_KEYS, False, False)
    if CAUSAL or not EVEN:
        for start in tl.range(whole, end, TILE_KEYS):
            sums, total, largest = visit(sums, total, largest, q, keys, values, head * LEN, head * HEAD_DIM, start,
                                         rows, columns, scale, LEN, TILE_KEYS, CAUSAL, not EVEN)

    result = sums * (tl.load(scales + 2) / total)[:, None]
    place = output + (head * LEN + rows).to(tl.int64)[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    tl.store(place, result.to(output.dtype.element_ty), mask=(rows < LEN)[:, None])


def launcher(config, q, k, v_transposed, output, scales, softmax_scale, causal):
    """What launches the kernel with one of CONFIGS: [B,H,S,D] without gaps, V as [B,H,D,S]."""
    batch, heads, length, head_dim = q.shape
    tile_queries, tile_keys, warps, stages = config
    queries = TensorDescriptor(q, [batch * heads * length, head_dim], [head_dim, 1], [tile_queries, head_dim])
    keys = TensorDescriptor(k, [batch * heads * length, head_dim], [head_dim, 1], [tile_keys, head_dim])
    values = TensorDescriptor(v_transposed, [batch * heads * head_dim, length], [length, 1], [head_dim, tile_keys])
    grid = (triton.cdiv(length, tile_queries), batch * heads)
    even = length % tile_queries == 0 and length % tile_keys == 0

    def launch():
        attend[grid](queries, keys, values, output, scales, softmax_scale, LEN=length, HEAD_DIM=head_dim,
                     TILE_QUERIES=tile_queries, TILE_KEYS=tile_keys, CAUSAL=causal, EVEN=even, num_warps=warps,
                     num_stages=stages)
        return output

    return launch
