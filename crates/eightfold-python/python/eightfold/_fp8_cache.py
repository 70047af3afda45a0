"""An FP8 cache for transformers, in pages that :func:`eightfold.paged_attention` reads."""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from ._paged import append_kv, paged_attention

_PAGE_TOKENS = 64
_LAYOUT = "HND"


class Fp8Cache(Cache):
    """Keys and values in E4M3 with a scale for each token and head: half the memory of bf16, and read by our kernel.

    ``model.generate(ids, past_key_values=eightfold.transformers.Fp8Cache())`` decodes through :func:`eightfold.paged_attention`; the
    model must have ``attn_implementation="eightfold"``. ``tokens`` is how many there is room for at first; the cache grows. What
    the kernel does not serve (padded batches, windows) is read from the cache in the model's type, the way of ``"sdpa"``.

    >>> import importlib.util
    >>> if importlib.util.find_spec("transformers"):
    ...     import eightfold.transformers
    ...     cache = eightfold.transformers.Fp8Cache(tokens=1024)
    ...     assert cache.get_seq_length() == 0
    """

    def __init__(self, tokens=256):
        if not isinstance(tokens, int) or tokens < 1:
            raise ValueError(f"tokens: {tokens!r} is not a number from 1; say how many there is room for at first")
        places = _Places()
        super().__init__(layer_class_to_replicate=lambda: _Layer(tokens, places))


class InCache(torch.Tensor):
    """What the cache hands to the model in place of keys or values: it is for our attention alone, and says so."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") == "__get__":
            # Shape, dtype and device of the new tokens.
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(kwargs or {}))
        raise RuntimeError(
            f"an Fp8Cache is read by eightfold alone, and the model called {getattr(function, '__name__', function)} on its keys; "
            'call eightfold.transformers.register() and model.set_attn_implementation("eightfold")'
        )


class _Places:
    """Where new tokens go and how many keys there are: the same for every layer of a step, so that it is found once."""

    def __init__(self):
        self.key = None

    def of(self, batch, start, count, pages, device):
        """Slots of the tokens, lengths with them, and the block table."""
        key = (batch, start, count, pages, device)
        if key != self.key:
            table = torch.arange(batch * pages, dtype=torch.int32, device=device).view(batch, pages)
            first = table[:, :1].long() * _PAGE_TOKENS
            self.slots = (first + torch.arange(start, start + count, device=device)).flatten()
            self.lengths = torch.full((batch,), start + count, dtype=torch.int32, device=device)
            self.table, self.key = table, key
        return self.slots, self.lengths, self.table


class _Layer(CacheLayerMixin):
    """One layer: the pages of a sequence follow each other, so that its tokens do."""

    is_sliding = False
    is_croppable = True

    def __init__(self, tokens, places):
        super().__init__()
        self.tokens, self.places, self.length = tokens, places, 0

    def lazy_initialization(self, key_states, value_states=None):
        batch, heads, _, channels = key_states.shape
        if value_states is not None and value_states.shape[-1] != channels:
            raise ValueError(f"values: have {value_states.shape[-1]} channels, and keys {channels}; an Fp8Cache is for models where both are alike")
        pages = -(-self.tokens // _PAGE_TOKENS)
        # K and V, sequence, page, head, token, channel. As bytes, which torch can move; zero is a number in FP8.
        self.codes = torch.zeros(2, batch, pages, heads, _PAGE_TOKENS, channels, dtype=torch.uint8, device=key_states.device)
        self.scales = torch.ones(2, batch, pages, heads, _PAGE_TOKENS, dtype=torch.float32, device=key_states.device)
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        batch, _, count, _ = key_states.shape
        if batch != self.codes.shape[1]:
            raise ValueError(f"keys: are of {batch} sequences, and the cache has {self.codes.shape[1]}; make a cache for each batch")
        self._make_room(self.length + count)
        slots, _, _ = self._places(count)
        new = (x.transpose(1, 2).reshape(-1, x.shape[1], x.shape[3]) for x in (key_states, value_states))
        append_kv(*new, *self._pages(), slots, **self._descales(), tensor_layout=_LAYOUT)
        self.length += count
        return self._tagged(key_states), self._tagged(value_states)

    def attend(self, query, scaling):
        """Attention of the queries of the last tokens, (batch, head, row, channel), to all of them; (batch, row, head, channel)."""
        count = query.shape[2]
        self.length -= count
        _, lengths, table = self._places(count)
        self.length += count
        return paged_attention(
            query.transpose(1, 2).contiguous(), *self._pages(), table, lengths, **self._descales(), tensor_layout=_LAYOUT, is_causal=True, sm_scale=scaling
        )

    def dense(self, dtype):
        """All keys and values in this type, (batch, head, row, channel)."""
        whole = self.codes.view(torch.float8_e4m3fn).to(torch.float32) * self.scales[..., None]
        whole = whole.transpose(2, 3).flatten(3, 4)[:, :, :, : self.length]
        return whole[0].to(dtype), whole[1].to(dtype)

    def _places(self, count):
        return self.places.of(self.codes.shape[1], self.length, count, self.codes.shape[2], self.codes.device)

    def _pages(self):
        return self.codes.view(torch.float8_e4m3fn).flatten(1, 2).unbind(0)

    def _descales(self):
        k, v = self.scales.flatten(1, 2).unbind(0)
        return dict(k_descale=k, v_descale=v)

    def _tagged(self, states):
        tagged = states.detach().as_subclass(InCache)
        tagged.eightfold_layer, tagged.states = self, states
        return tagged

    def _make_room(self, tokens):
        pages = self.codes.shape[2]
        if tokens > pages * _PAGE_TOKENS:
            more = max(2 * pages, -(-tokens // _PAGE_TOKENS)) - pages
            self.codes, self.scales = (torch.cat([x, x.new_ones(x.shape[:2] + (more,) + x.shape[3:])], 2) for x in (self.codes, self.scales))

    def get_mask_sizes(self, query_length):
        # Newer transformers say the number of queries, and older ones give their positions.
        return self.length + (query_length if isinstance(query_length, int) else query_length.shape[0]), 0

    def get_seq_length(self):
        return self.length

    def get_max_length(self):
        return -1

    get_max_cache_shape = get_max_length

    def reset(self):
        self.length = 0

    def crop(self, tokens):
        """Takes so many tokens away, as a negative number; older transformers say how many stay."""
        self.length = max(0, self.length + tokens) if tokens < 0 else (min(self.length, tokens) if tokens else self.length)

    def batch_select_indices(self, indices):
        if self.is_initialized:
            self.codes, self.scales = self.codes[:, indices], self.scales[:, indices]

    def reorder_cache(self, beam_idx):
        self.batch_select_indices(beam_idx.to(self.codes.device) if self.is_initialized else beam_idx)

    def batch_repeat_interleave(self, repeats):
        if self.is_initialized:
            self.codes, self.scales = self.codes.repeat_interleave(repeats, 1), self.scales.repeat_interleave(repeats, 1)

    def offload(self):
        raise NotImplementedError("offloading: an Fp8Cache stays on its device; leave offloading off")

    prefetch = offload
