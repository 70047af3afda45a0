"""A step of vLLM: a layer's paged cache, a batch and its metadata, as vLLM 0.33 hands them to a backend."""

import types

import torch


class Step:
    """New tokens of sequences, of which the earlier ones are in the cache."""

    def __init__(self, queries, keys, heads, kv_heads, head_dim, block_tokens, order, scales, padding=0, device="cpu", dtype=torch.float32, window=None, softcap=None):
        torch.manual_seed(0)
        self.queries, self.keys, self.heads, self.kv_heads, self.head_dim = queries, keys, heads, kv_heads, head_dim
        self.tokens, self.device, self.dtype, self.window, self.softcap = sum(queries), device, dtype, window, softcap
        counts = [-(-n // block_tokens) for n in keys]
        blocks = sum(counts) + 2
        # (block, head, token, K and V), in memory by heads or by tokens.
        shape = (blocks, kv_heads, block_tokens, 2 * head_dim) if order == "by head" else (blocks, block_tokens, kv_heads, 2 * head_dim)
        cache = torch.zeros(shape, dtype=torch.uint8, device=device)
        self.cache = cache if order == "by head" else cache.transpose(1, 2)
        table = torch.zeros(len(keys), max(counts) + 1, dtype=torch.int32)
        pages = torch.randperm(blocks).int()
        for row, count in enumerate(counts):
            table[row, :count], pages = pages[:count], pages[count:]
        size = 1 if scales == "tensor" else kv_heads
        self.layer = types.SimpleNamespace(_k_scale=torch.full((size,), 0.02, device=device), _v_scale=torch.full((size,), 0.02, device=device))
        self.values = [torch.randn(2, n, kv_heads, head_dim).to(dtype) for n in keys]
        self.query = torch.randn(self.tokens + padding, heads, head_dim).to(dtype).to(device)
        slot = lambda row, at: table[row, at // block_tokens].long() * block_tokens + at % block_tokens  # noqa: E731
        self.before = torch.cat([slot(row, torch.arange(n - q)) for row, (n, q) in enumerate(zip(keys, queries))]).to(device)
        new = torch.cat([slot(row, torch.arange(n - q, n)) for row, (n, q) in enumerate(zip(keys, queries))])
        # vLLM pads slots with -1, and keys with anything.
        self.slots = torch.cat([new, torch.full((padding,), -1)]).to(device)
        part = lambda which, new: torch.cat([pair[which, n - q :] if new else pair[which, : n - q] for pair, n, q in zip(self.values, keys, queries)]).to(device)  # noqa: E731
        self.old = part(0, False), part(1, False)
        rest = torch.randn(padding, kv_heads, head_dim).to(dtype).to(device)
        self.new = torch.cat([part(0, True), rest]), torch.cat([part(1, True), rest])
        starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
        self.common = types.SimpleNamespace(
            query_start_loc=starts.to(device), query_start_loc_cpu=starts, seq_lens=torch.tensor(keys, dtype=torch.int32, device=device),
            num_reqs=len(keys), num_actual_tokens=self.tokens, max_query_len=max(queries), max_seq_len=max(keys),
            block_table_tensor=table.to(device), slot_mapping=self.slots, causal=True,
        )  # fmt: skip

    def exact(self):
        """Attention of the new tokens in float64."""
        from conftest import exact

        outs, first = [], 0
        for (k, v), count in zip(self.values, self.queries):
            q = self.query[first : first + count].cpu()
            seen = (-1, -1) if self.window is None else (self.window - 1, 0)
            out, _ = exact(*(x.double().transpose(0, 1)[None].numpy() for x in (q, k, v)), causal=True, window=seen, softcap=self.softcap or 0.0)
            outs.append(torch.from_numpy(out[0]).transpose(0, 1))
            first += count
        return torch.cat(outs)


def run(step):
    """What a layer of vLLM calls: earlier tokens into the cache, then this step's, then attention."""
    from eightfold._vllm import EightfoldBackend

    impl = EightfoldBackend.get_impl_cls()(step.heads, step.head_dim, step.head_dim**-0.5, step.kv_heads, None, step.window, "fp8", step.softcap, "decoder", None)
    builder = EightfoldBackend.get_builder_cls()(None, ["layer"], None, torch.device(step.device))
    metadata = builder.build(0, step.common)
    output = torch.full_like(step.query, 7)
    with torch.no_grad():
        impl.do_kv_cache_update(step.layer, *step.old, step.cache, step.before)
        impl.do_kv_cache_update(step.layer, *step.new, step.cache, step.slots)
        impl.forward(step.layer, step.query, *step.new, step.cache, metadata, output)
    return output.cpu()
