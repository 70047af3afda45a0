"""vLLM's attention backend. Imports vLLM, whose interface is that of 0.33."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import vllm.envs
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)

from ._paged import append_kv, paged_attention

_FORMATS = {"fp8": torch.float8_e4m3fn, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
_HEAD_DIMS = [64, 96, 128, 192, 256]
_CAPABILITIES = ((8, 9), (9, 0))


class EightfoldBackend(AttentionBackend):
    supported_dtypes = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes = list(_FORMATS)
    # New tokens come by do_kv_cache_update.
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name():
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        return EightfoldImpl

    @staticmethod
    def get_builder_cls():
        return EightfoldBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        return [MultipleOf(16)]

    @classmethod
    def get_supported_head_sizes(cls):
        return _HEAD_DIMS

    @classmethod
    def supports_compute_capability(cls, capability):
        return (capability.major, capability.minor) in _CAPABILITIES

    @classmethod
    def supports_per_head_quant_scales(cls):
        return True

    @classmethod
    def supports_sink(cls):
        return True

    @classmethod
    def supports_sliding_window(cls):
        return True

    @classmethod
    def supports_non_causal(cls):
        return True

    @classmethod
    def supports_batch_invariance(cls):
        return True


@dataclass
class EightfoldMetadata(AttentionMetadata):
    """What a launch reads: all of it stays on the device."""

    tokens: int
    most_queries: int
    starts: torch.Tensor
    lengths: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool


class EightfoldBuilder(AttentionMetadataBuilder):
    # Batches whose sequences have as many queries, as decoding has, with drafts or without.
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH
    supports_update_block_table = True

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        common = common_attn_metadata
        if isinstance(common.causal, torch.Tensor):
            raise NotImplementedError("causal: differs from sequence to sequence, which no kernel has; use another attention backend for this model")
        return EightfoldMetadata(
            tokens=common.num_actual_tokens,
            # A bound, of which there are few, so that there are few kinds of calls.
            most_queries=1 << (common.max_query_len - 1).bit_length(),
            starts=common.query_start_loc,
            lengths=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            causal=common.causal,
        )

    def update_block_table(self, metadata, blk_table, slot_mapping):
        return EightfoldMetadata(**{**vars(metadata), "block_table": blk_table, "slot_mapping": slot_mapping})


class EightfoldImpl(AttentionImpl):
    can_return_lse_for_decode = False
    supports_quant_query_input = False

    def __init__(
        self,
        num_heads,
        head_size,
        scale,
        num_kv_heads=None,
        alibi_slopes=None,
        sliding_window=None,
        kv_cache_dtype="auto",
        logits_soft_cap=None,
        attn_type=AttentionType.DECODER,
        kv_sharing_target_layer_name=None,
        sinks=None,
    ):
        if alibi_slopes is not None:
            raise NotImplementedError("alibi_slopes: no kernel has them; use another attention backend for this model")
        if attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"attn_type: {attn_type} has no cache in pages; use another attention backend for this model")
        if kv_cache_dtype not in _FORMATS:
            raise ValueError(f"kv_cache_dtype: {kv_cache_dtype!r} is not FP8; start vLLM with --kv-cache-dtype fp8")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        # vLLM counts a query's own key.
        self.window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)
        self.softcap, self.sinks = logits_soft_cap or 0.0, None if sinks is None else sinks.float()
        self.batch_invariant = bool(vllm.envs.VLLM_BATCH_INVARIANT)

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None):
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("output_scale: the output is not quantised here; switch the fusion of attention and quantisation off")
        if attn_metadata is None:
            # A run that only measures memory.
            return output.fill_(0)
        k_cache, v_cache, layout = self.pages(kv_cache)
        tokens = attn_metadata.tokens
        shape = (-1, self.num_heads, self.head_size)
        paged_attention(
            query.view(shape)[:tokens], k_cache, v_cache, attn_metadata.block_table, attn_metadata.lengths, cu_seqlens_q=attn_metadata.starts,
            max_seqlen_q=attn_metadata.most_queries, tensor_layout=layout, is_causal=attn_metadata.causal, sm_scale=self.scale,
            k_descale=layer._k_scale, v_descale=layer._v_scale, window_size=self.window,
            softcap=self.softcap, sinks=self.sinks, out=output.view(shape)[:tokens], batch_invariant=self.batch_invariant,
        )  # fmt: skip
        return output

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        k_cache, v_cache, layout = self.pages(kv_cache)
        tokens = slot_mapping.shape[0]
        shape = (-1, self.num_kv_heads, self.head_size)
        new = (x.view(shape)[:tokens] for x in (key, value))
        append_kv(*new, k_cache, v_cache, slot_mapping, k_descale=layer._k_scale, v_descale=layer._v_scale, tensor_layout=layout)

    def pages(self, kv_cache):
        """K and V, and the order of tokens and heads in their pages."""
        codes = kv_cache.view(_FORMATS[self.kv_cache_dtype])
        if codes.dim() == 4 and codes.shape[3] == 2 * self.head_size:
            # (block, head, token, K and V side by side), at any strides.
            return codes[..., : self.head_size], codes[..., self.head_size :], "HND"
        raise ValueError(
            f"kv_cache: shape {tuple(codes.shape)} is not (blocks, {self.num_kv_heads}, tokens, {2 * self.head_size}); use a vLLM whose caches are, as 0.33 has them"
        )
