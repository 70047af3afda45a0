"""Models of transformers with random weights: run with torch's attention and with ours, and compared layer by layer."""

import time

import torch
import transformers

import eightfold.transformers as ours

KINDS = {"Llama": "LlamaForCausalLM", "Bert": "BertForMaskedLM"}


def config(kind, layers, heads, head_dim, kv_heads=None):
    width = heads * head_dim
    own = dict(num_key_value_heads=kv_heads or heads, head_dim=head_dim) if kind == "Llama" else {}
    return dict(hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers, num_attention_heads=heads, vocab_size=1000, **own)


def build(kind, settings, device="cpu", dtype=torch.float32):
    torch.manual_seed(0)
    made = getattr(transformers, f"{kind}Config")(**settings)
    with torch.device(device):
        model = getattr(transformers, KINDS[kind])._from_config(made, attn_implementation="sdpa")
    return model.eval().to(device, dtype)


def differences(model, ids):
    """Of the embeddings and every layer's output, and of the logits, relative to sdpa's; and how many calls were ours."""
    ours.register()
    results, before = {}, ours.served.calls
    with torch.no_grad():
        for name in ("sdpa", "eightfold"):
            model.set_attn_implementation(name)
            results[name] = model(input_ids=ids, output_hidden_states=True)
    model.set_attn_implementation("sdpa")
    states = zip(results["eightfold"].hidden_states, results["sdpa"].hidden_states)
    layers = [relative(a, b) for a, b in states]
    return layers, relative(results["eightfold"].logits, results["sdpa"].logits), ours.served.calls - before


def decode(model, ids, tokens, wait=lambda: None):
    """Greedy decoding with sdpa on a cache in the model's type, and the same tokens through ours: how far the logits of each are
    from sdpa's, seconds of both, and bytes of both caches."""
    ours.register()
    found, before, logits, fed = {}, ours.served.calls, {}, None
    for name in ("sdpa", "eightfold"):
        model.set_attn_implementation(name)
        cache = transformers.DynamicCache() if name == "sdpa" else ours.Fp8Cache(tokens=ids.shape[1] + tokens)
        logits[name], chosen = [], []
        with torch.no_grad():
            step = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            wait()
            start = time.perf_counter()
            for index in range(tokens):
                logits[name].append(step)
                chosen.append(step.argmax(-1) if fed is None else fed[index])
                step = model(input_ids=chosen[-1], past_key_values=cache, use_cache=True).logits
            wait()
            found[f"{name}_seconds"] = time.perf_counter() - start
        fed = chosen
        held = [x for layer in cache.layers for x in ((layer.keys, layer.values) if name == "sdpa" else (layer.codes, layer.scales))]
        found["sdpa_cache_bytes" if name == "sdpa" else "cache_bytes"] = sum(x.numel() * x.element_size() for x in held)
    model.set_attn_implementation("sdpa")
    found["differences"] = [relative(a, b) for a, b in zip(logits["eightfold"], logits["sdpa"])]
    found["served"] = ours.served.calls - before
    return found


def relative(got, want):
    return float((got - want).float().norm() / want.float().norm())
