"""transformers: models with random weights, beside sdpa."""

import pytest
from conftest import HAS_TORCH

if not HAS_TORCH:
    pytest.skip("torch is not installed", allow_module_level=True)

import torch

transformers = pytest.importorskip("transformers", minversion="5")

import eightfold.transformers as ours  # noqa: E402

import models  # noqa: E402

SMALL = {"Llama": models.config("Llama", 2, 2, 64, 1), "Bert": models.config("Bert", 2, 2, 64)}


@pytest.mark.parametrize("kind", SMALL)
def test_layers_are_near_those_of_sdpa(kind):
    model = models.build(kind, SMALL[kind])
    layers, logits, served = models.differences(model, torch.randint(0, 1000, (2, 48)))
    assert served == 2
    assert layers[0] == 0 and 0 < max(layers) < 0.05 and 0 < logits < 0.05, (layers, logits)


def small(kind):
    ours.register()
    model = models.build(kind, SMALL[kind])
    model.set_attn_implementation("eightfold")
    return model


def test_padding_and_decoding_go_the_way_of_sdpa():
    model = small("Llama")
    ids = torch.randint(0, 1000, (2, 48))
    mask = torch.ones(2, 48, dtype=torch.long)
    mask[1, :10] = 0
    before, reasons = ours.served.calls, ours.served.reasons.copy()
    with torch.no_grad():
        padded = model(input_ids=ids, attention_mask=mask).logits
        assert ours.served.calls == before
        assert (ours.served.reasons - reasons)["a mask as a tensor"] == 2
        first = model(input_ids=ids[:, :-1], use_cache=True)
        model(input_ids=ids[:, -1:], past_key_values=first.past_key_values)
        assert ours.served.calls == before + 2
        model.set_attn_implementation("sdpa")
        assert torch.allclose(padded, model(input_ids=ids, attention_mask=mask).logits)


def test_training_goes_the_way_of_sdpa():
    model = small("Bert")
    before, reasons = ours.served.calls, ours.served.reasons.copy()
    model(input_ids=torch.randint(0, 1000, (1, 16))).logits.sum().backward()
    assert ours.served.calls == before
    assert (ours.served.reasons - reasons)["a gradient is required"] == 2


def test_soft_caps_and_sinks_run_here_where_a_kernel_has_them():
    import eightfold

    q, sinks = torch.randn(1, 2, 24, 64), torch.tensor([0.5, 2.0])
    before = ours.served.calls
    with torch.no_grad():
        got, _ = ours.eightfold_attention(torch.nn.Identity(), q, q, q, None, scaling=0.2, softcap=3.0, s_aux=sinks)
        want = eightfold.attention(q, q, q, tensor_layout="HND", is_causal=True, sm_scale=0.2, softcap=3.0, sinks=sinks)
    assert ours.served.calls == before + 1 and torch.equal(got, want.transpose(1, 2))


def test_generation_prefills_here_and_decodes_the_model_s_own_way():
    model = small("Llama")
    ids = torch.randint(0, 1000, (1, 40))
    before, reasons = ours.served.calls, ours.served.reasons.copy()
    out = model.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
    assert out.shape == (1, 44)
    # Two layers: the prompt, then three tokens that follow the first.
    assert ours.served.calls == before + 2
    assert sum(n for reason, n in (ours.served.reasons - reasons).items() if reason.startswith("one query")) == 6


def test_masks_and_attention_are_registered_under_one_name():
    from transformers import AttentionInterface, AttentionMaskInterface

    ours.register("another", accuracy="precise")
    assert "another" in AttentionInterface().valid_keys() and "another" in AttentionMaskInterface().valid_keys()
    ours.register()


GROUPED = models.config("Llama", 2, 6, 64, 1)


def grouped():
    ours.register()
    model = models.build("Llama", GROUPED)
    model.set_attn_implementation("eightfold")
    return model


def test_generation_decodes_through_the_cache():
    model = grouped()
    ids = torch.randint(0, 1000, (2, 60))
    cache = ours.Fp8Cache(tokens=64)
    before, reasons = ours.served.calls, ours.served.reasons.copy()
    out = model.generate(ids, max_new_tokens=12, min_new_tokens=12, do_sample=False, pad_token_id=0, past_key_values=cache)
    assert out.shape == (2, 72) and cache.get_seq_length() == 71
    # Two layers: the prompt, and eleven tokens that follow the first.
    assert ours.served.calls == before + 2 * 12 and ours.served.reasons == reasons


def test_logits_of_every_token_are_near_those_of_sdpa():
    model = grouped()
    found = models.decode(model, torch.randint(0, 1000, (2, 50)), 20)
    assert 0 < max(found["differences"]) < 0.05, found
    assert found["served"] == 2 * 21 and found["cache_bytes"] < 0.6 * found["sdpa_cache_bytes"]


def test_padded_batches_are_read_from_the_cache_the_way_of_sdpa():
    model = grouped()
    ids, mask = torch.randint(0, 1000, (2, 40)), torch.ones(2, 40, dtype=torch.long)
    mask[1, :7] = 0
    results = []
    for name, cache in (("sdpa", None), ("eightfold", ours.Fp8Cache())):
        model.set_attn_implementation(name)
        with torch.no_grad():
            first = model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
            longer = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], 1)
            results.append(model(input_ids=ids[:, :1], attention_mask=longer, past_key_values=first.past_key_values).logits)
    assert models.relative(results[1], results[0]) < 0.05


def test_beams_and_several_tokens_move_through_the_cache():
    model = grouped()
    ids = torch.randint(0, 1000, (1, 30))
    out = model.generate(ids, num_beams=3, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0, past_key_values=ours.Fp8Cache())
    assert out.shape == (1, 36)
    cache = ours.Fp8Cache(tokens=1)
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache)
        kept = [x.clone() for x in cache.layers[0].dense(torch.float32)]
        model(input_ids=ids[:, :5], past_key_values=cache)
        assert cache.get_seq_length() == 35 and all(torch.equal(a[:, :, :30], b) for a, b in zip(cache.layers[0].dense(torch.float32), kept))
        cache.crop(-5)
        assert cache.get_seq_length() == 30 and all(torch.equal(a, b) for a, b in zip(cache.layers[0].dense(torch.float32), kept))
        cache.batch_repeat_interleave(2)
        assert model(input_ids=ids[:, :1].expand(2, 1), past_key_values=cache).logits.shape[0] == 2


def test_the_cache_is_for_our_attention_alone_and_says_so():
    model = grouped()
    model.set_attn_implementation("sdpa")
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"Fp8Cache is read by eightfold alone.*register\(\)"):
        model(input_ids=torch.randint(0, 1000, (1, 8)), past_key_values=ours.Fp8Cache())
    with pytest.raises(ValueError, match="tokens: 0 is not a number from 1"):
        ours.Fp8Cache(0)
    cache = ours.Fp8Cache()
    model.set_attn_implementation("eightfold")
    with torch.no_grad():
        model(input_ids=torch.randint(0, 1000, (1, 8)), past_key_values=cache)
        with pytest.raises(ValueError, match="keys: are of 2 sequences, and the cache has 1; "):
            model(input_ids=torch.randint(0, 1000, (2, 1)), past_key_values=cache)
