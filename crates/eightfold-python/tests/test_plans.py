"""What reaches the native plan, without a device: tensors of the CPU stand for those of device 0."""

import pytest
from conftest import HAS_TORCH

if not HAS_TORCH:
    pytest.skip("torch is not installed", allow_module_level=True)

import eightfold
import torch
from eightfold import _machine, _paged_torch, _torch


SCORING = dict(causal=True, sm_scale=None, window=(-1, -1), softcap=0.0, sinks=None)


class Native:
    """In place of the native plan: remembers what it is given."""

    variant, kernels = "none", 4

    def __init__(self, planned, workspace_bytes=512, zeroed_bytes=0):
        self.planned, self.workspace_bytes, self.zeroed_bytes, self.launched = planned, workspace_bytes, zeroed_bytes, []
        self.looked_at = []

    def validate(self, *arguments):
        self.looked_at.append(arguments)

    def launch(self, *arguments, **settings):
        self.launched.append((*arguments, *settings.values()))


@pytest.fixture
def native(monkeypatch):
    """Plans that were made; what they need can be set before."""
    made = []
    made_with = {}

    def plan(*arguments, **settings):
        made.append(Native((arguments, settings), **made_with))
        return made[-1]

    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 0)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(_torch, "_raw_stream", lambda device: 77)
    monkeypatch.setattr(_torch, "_is_capturing", lambda: False)
    monkeypatch.setattr(_torch, "_plans", {})
    monkeypatch.setattr(_torch, "_counting", {})
    monkeypatch.setattr(_machine, "settle", lambda: None)
    monkeypatch.setattr(_paged_torch, "_plans", {})
    names = ("plan_values", "plan_codes", "plan_paged", "plan_append", "plan_merge")
    for module in (_torch, _paged_torch):
        monkeypatch.setattr(module, "_eightfold", type("fake", (), {name: staticmethod(plan) for name in names}))
    made_with_setter = lambda **settings: made_with.update(settings)  # noqa: E731
    return made, made_with_setter


def test_a_kind_of_call_is_planned_once_and_launched_with_addresses(native):
    made, _ = native
    packed = torch.zeros(2, 32, 3, 4, 64, dtype=torch.bfloat16)
    q, k, v = packed.unbind(2)
    out, lse = eightfold.attention(q, k, v, is_causal=True, return_lse=True)
    again = eightfold.attention(q.clone().contiguous(), k, v, is_causal=True)
    assert eightfold.attention(q, k, v, is_causal=True, return_lse=True)[0].shape == q.shape
    assert len(made) == 2 and len(made[0].launched) == 2
    (device, sizes, dtype, strides), settings = made[0].planned
    assert (device, sizes, dtype) == (0, (2, 4, 4, 32, 32, 64, 64), "bf16")
    packed_strides = (32 * 3 * 4 * 64, 64, 3 * 4 * 64, 1)
    assert strides == (packed_strides,) * 3 + ((32 * 4 * 64, 64, 4 * 64, 1),)
    assert settings == dict(scoring=SCORING, accuracy="fast", output="bf16", lse=True, centre_keys=True, input_format="auto")
    at = made[0].launched[0]
    assert at[:5] == (q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), lse.data_ptr())
    assert at[5] != 0 and at[6:] == (512, 77, None)
    assert lse.shape == (2, 4, 32) and again.is_contiguous()


def test_windows_softcaps_and_sinks_reach_the_plan(native):
    made, _ = native
    q, v = torch.zeros(1, 8, 2, 64), torch.zeros(1, 8, 2, 32)
    settings = dict(window_size=[5, 0], softcap=2.0, sinks=torch.ones(2))
    assert eightfold.attention(q, q, v, **settings).shape == v.shape
    eightfold.attention(q, q, v, **settings)
    (plan,) = made
    (_, sizes, _, strides), named = plan.planned
    assert sizes == (1, 2, 2, 8, 8, 64, 32) and strides[3] == (512, 32, 64, 1)
    # That there are sinks decides what is planned, and not what they are.
    assert named["scoring"] == dict(causal=False, sm_scale=None, window=(5, 0), softcap=2.0, sinks=[])


def test_the_format_of_q_and_k_reaches_the_plan_from_every_door(native):
    made, _ = native
    q = torch.zeros(1, 8, 2, 64, dtype=torch.bfloat16)
    by_heads = q.transpose(1, 2)
    doors = [
        lambda **format: eightfold.attention(q, q, q, **format),
        lambda **format: eightfold.sageattn(q, q, q, "NHD", **format),
        lambda **format: torch.ops.eightfold.attention(q, q, q, None, None, None, "NHD", False, None, "fast", True, None, False, **format),
        lambda **format: eightfold.warmup([(1, 8, 2, 64)], device="cpu", **format),
    ]
    for door in doors:
        _torch._plans.clear()
        made.clear()
        for settings in ({}, {"input_format": "auto"}, {"input_format": "int8"}, {"input_format": "e4m3"}):
            door(**settings)
        assert [plan.planned[1]["input_format"] for plan in made] == ["auto", "int8", "e4m3"]
    made.clear()
    for format in ("int8", "auto"):
        _torch._plans.clear()
        with torch.no_grad(), eightfold.replace_sdpa(input_format=format) as served:
            torch.nn.functional.scaled_dot_product_attention(by_heads, by_heads, by_heads)
        assert served.calls == 1 and made[-1].planned[1]["input_format"] == format
    from eightfold import diffusers

    diffusers.wrap(None, input_format="int8")(q, q, q)
    assert made[-1].planned[1]["input_format"] == "int8"


def test_values_are_looked_at_where_that_is_asked_for_and_never_in_a_graph(native, monkeypatch):
    made, _ = native
    q = torch.zeros(1, 8, 2, 64)
    eightfold.attention(q, q, q)
    eightfold.attention(q, q, q, validate=True, return_lse=True)
    eightfold.attention(q, q, q, validate=True)
    torch.ops.eightfold.attention(q, q, q, None, None, None, "NHD", False, None, "fast", True, None, False, validate=True)
    eightfold.sageattn(q, q, q, "NHD", validate=True)
    first, with_lse = made
    # It is the same plan, and the look has the addresses of the launch.
    assert [len(plan.launched) for plan in made] == [4, 1] and [len(plan.looked_at) for plan in made] == [3, 1]
    for looks, launches in ((first.looked_at, first.launched[1:]), (with_lse.looked_at, with_lse.launched)):
        assert looks == [launched[:8] for launched in launches]
    codes = q.to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="validate: looks at f32, f16 and bf16, and q is FP8 already; leave it out"):
        eightfold.attention(codes, codes, codes, q_descale=1.0, k_descale=1.0, v_descale=1.0, validate=True)
    monkeypatch.setattr(_torch, "_is_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="validate: looks and waits"):
        eightfold.attention(q, q, q, validate=True)


def test_scales_go_in_as_addresses(native):
    made, _ = native
    q = torch.zeros(2, 32, 4, 64, dtype=torch.float8_e4m3fn)
    k = torch.zeros(2, 32, 2, 64, dtype=torch.float8_e4m3fn)
    per_head, one = torch.ones(2, 2), torch.ones(1)
    out = eightfold.attention(q, k, k, q_descale=per_head, k_descale=per_head, v_descale=one)
    eightfold.attention(q, k, k, q_descale=0.5, k_descale=per_head, v_descale=one)
    assert out.dtype == torch.bfloat16
    assert [plan.planned[0][4] for plan in made] == [(True, True, False), (False, True, False)]
    scales = made[0].launched[0][8]
    assert scales[0] not in (0, per_head.data_ptr()) and scales[1:] == (per_head.data_ptr(), one.data_ptr())


def test_memory_that_must_be_zero_is_the_stream_s_own(native, monkeypatch):
    made, needs = native
    needs(zeroed_bytes=64, workspace_bytes=128)
    q = torch.zeros(1, 1, 4, 64)
    eightfold.attention(q, q, q)
    eightfold.attention(q, q, q)
    first, second = (at[5] for at in made[0].launched)
    assert first == second
    monkeypatch.setattr(_torch, "_raw_stream", lambda device: 78)
    eightfold.attention(q, q, q)
    assert made[0].launched[2][5] != first
    needs(workspace_bytes=4096)
    longer = torch.zeros(1, 9, 4, 64)
    eightfold.attention(longer, longer, longer)
    assert _torch._counting[q.device, 78].numel() == 4096 and not _torch._counting[q.device, 78].any()


def test_planning_within_a_capture_is_refused(native, monkeypatch):
    monkeypatch.setattr(_torch, "_is_capturing", lambda: True)
    q = torch.zeros(1, 8, 2, 64)
    with pytest.raises(RuntimeError, match=r"eightfold\.warmup"):
        eightfold.attention(q, q, q)


def test_scales_of_what_is_not_fp8_are_refused_also_where_a_plan_is_known(native):
    q = torch.zeros(1, 8, 2, 64)
    eightfold.attention(q, q, q)
    for name in ("q_descale", "k_descale", "v_descale"):
        with pytest.raises(ValueError, match=f"{name}: {name[0]} is not FP8"):
            eightfold.attention(q, q, q, **{name: 1.0})


def test_many_kinds_of_calls_push_out_old_ones_but_none_of_a_graph(native, monkeypatch):
    made, _ = native
    monkeypatch.setattr(_torch, "_MOST_PLANS", 4)
    calls = [torch.zeros(1, rows, 2, 64) for rows in range(1, 12)]
    eightfold.attention(*[calls[0]] * 3)
    monkeypatch.setattr(_torch, "_is_capturing", lambda: True)
    eightfold.attention(*[calls[0]] * 3)
    monkeypatch.setattr(_torch, "_is_capturing", lambda: False)
    for q in calls:
        eightfold.attention(q, q, q)
        assert len(_torch._plans) <= 5
    assert len(made) == 11 and made[0] in [plan.native for plan in _torch._plans.values()]


def test_numbers_as_scales_are_kept_up_to_a_limit(native, monkeypatch):
    monkeypatch.setattr(_torch, "_numbers", {})
    monkeypatch.setattr(_torch, "_MOST_NUMBERS", 2)
    q = torch.zeros(1, 8, 2, 64, dtype=torch.float8_e4m3fn)
    for scale in (0.5, 1.0, 1.5, 2.0):
        eightfold.attention(q, q, q, q_descale=scale, k_descale=1.0, v_descale=1.0)
    assert len(_torch._numbers) == 2


def test_warmup_plans_what_is_called_later(native):
    made, _ = native
    made_names = eightfold.warmup([(1, 8, 4, 64), ((1, 8, 4, 64), (1, 24, 2, 64), (1, 24, 2, 64))], device="cpu", is_causal=True)
    assert made_names == ["none", "none"] and len(made) == 2
    assert eightfold.warmup([(1, 8, 4, 64)], device="cpu", is_causal=True) == []
    q = torch.ones(1, 8, 4, 64, dtype=torch.bfloat16)
    eightfold.attention(q, q, q, is_causal=True)
    assert len(made) == 2


def test_a_mistake_plans_nothing(native):
    made, _ = native
    q = torch.zeros(1, 8, 2, 64)
    for k, settings in [(q.half(), {}), (q[0], {}), (q, {"out": [0.0]}), (q[:, :, :, :32], {}), (q, {"accuracy": "best"}), (q, {"k_descale": 1.0}), (q, {"out": q[..., :32]}), (q, {"input_format": "e5m2"})]:
        with pytest.raises((TypeError, ValueError)):
            eightfold.attention(q, k, k, **settings)
    assert made == [] and _torch._plans == {}


# A cache of servers: K and V side by side, 9 pages of 16 tokens of 2 heads.
def paged(tokens=16):
    both = torch.zeros(9, 2, tokens, 2, 64, dtype=torch.float8_e4m3fn)
    table, lengths = torch.zeros(3, 8, dtype=torch.int32)[:, :5], torch.ones(3, dtype=torch.int32)
    return (both[:, 0], both[:, 1], table, lengths), torch.full((1,), 0.5)


def test_a_call_on_pages_is_planned_once_and_launched_with_addresses(native):
    made, needs = native
    needs(workspace_bytes=640, zeroed_bytes=64)
    cache, one = paged()
    k_cache, v_cache, table, lengths = cache
    qkv = torch.zeros(3, 2, 8, 64, dtype=torch.bfloat16)
    q = qkv[:, :, :4]
    for _ in range(2):
        out, lse = eightfold.paged_attention(q, *cache, is_causal=True, k_descale=one, v_descale=one, return_lse=True)
    lengths.fill_(7)
    (plan,) = made
    (device, sizes, dtype, strides, described), settings = plan.planned
    assert (device, sizes, dtype) == (0, (3, 4, 2, 2, 80, 64, 64), "bf16")
    assert strides == ((1024, 64, 512, 1), tuple(out.stride()[i] for i in (0, 2, 1, 3)))
    page = 2 * 16 * 2 * 64
    none = (0, 0, 0)
    assert described == dict(sizes=(9, 16, 2, 64), k=(page, 128, 64), v=(page, 128, 64), dtype="e4m3", scales="tensor", k_scales=none, v_scales=none)
    assert settings == dict(scoring=SCORING, sinks=0, packed=False, batch_invariant=False, output="bf16", lse=True)
    sequences, at, workspace, size, stream, validate = plan.launched[1]
    assert (sequences, stream, validate) == (3, 77, False) and workspace and size >= 640
    assert at == dict(
        q=q.data_ptr(), q_scales=0, k=k_cache.data_ptr(), k_scales=one.data_ptr(), v=v_cache.data_ptr(), v_scales=one.data_ptr(),
        block_table=table.data_ptr(), max_pages=8, lengths=lengths.data_ptr(), query_starts=0, output=out.data_ptr(), lse=lse.data_ptr(),
    )  # fmt: skip


def test_sinks_on_pages_are_read_where_they_are(native):
    made, _ = native
    cache, one = paged()
    q, sinks = torch.zeros(3, 1, 4, 64), torch.ones(4)
    for _ in range(2):
        eightfold.paged_attention(q, *cache, k_descale=one, v_descale=one, sinks=sinks, window_size=(20, 0))
    (plan,) = made
    assert plan.planned[1]["sinks"] == sinks.data_ptr() and plan.planned[1]["scoring"]["sinks"] == [] and plan.planned[1]["scoring"]["window"] == (20, 0)
    with pytest.raises(ValueError, match=r"sinks: shape \(3,\) is not one logit"):
        eightfold.paged_attention(q, *cache, k_descale=one, v_descale=one, sinks=sinks[:3])


def test_packed_queries_on_pages_have_starts_and_codes_their_scales(native):
    made, _ = native
    cache, one = paged()
    starts = torch.zeros(4, dtype=torch.int32)
    q = torch.zeros(7, 4, 64).to(torch.float8_e4m3fn)
    by_head = torch.ones(2)
    out, lse = eightfold.paged_attention(
        q, *cache, cu_seqlens_q=starts, max_seqlen_q=4, q_descale=2.0, k_descale=by_head, v_descale=one, return_lse=True, batch_invariant=True
    )
    (plan,) = made
    (_, sizes, dtype, strides, described), settings = plan.planned
    assert sizes == (3, 4, 2, 4, 80, 64, 64) and dtype == "e4m3" and strides[0] == (0, 64, 256, 1) and described["scales"] == "head"
    assert settings["packed"] and settings["batch_invariant"] and out.dtype == torch.bfloat16 and lse.shape == (4, 7)
    at = plan.launched[0][1]
    assert at["query_starts"] == starts.data_ptr() and at["q_scales"] and at["k_scales"] and at["v_scales"] not in (0, one.data_ptr())


def test_pages_are_looked_at_where_that_is_asked_for_and_never_in_a_graph(native, monkeypatch):
    made, _ = native
    cache, one = paged()
    q = torch.zeros(3, 1, 4, 64)
    attend = lambda **settings: eightfold.paged_attention(q, *cache, k_descale=one, v_descale=one, **settings)  # noqa: E731
    attend(validate=True)
    assert made[0].launched[0][5] is True
    monkeypatch.setattr(_torch, "_is_capturing", lambda: True)
    attend()
    with pytest.raises(RuntimeError, match="validate: looks and waits"):
        attend(validate=True)
    with pytest.raises(RuntimeError, match="is not planned yet"):
        attend(is_causal=True)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_an_append_has_the_strides_and_any_number_of_tokens(native, layout):
    made, _ = native
    (k_cache, v_cache, _, _), _ = paged()
    if layout == "HND":
        k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    scales = torch.ones(2, *k_cache.shape[:3])
    qkv = torch.zeros(20, 8, 64, dtype=torch.bfloat16)
    for count, validate in ((20, True), (1, False)):
        slots = torch.arange(count)
        k, v = qkv[:count, 4:6], qkv[:count, 6:]
        eightfold.append_kv(
            k, v, k_cache, v_cache, slots, k_descale=scales[0], v_descale=scales[1], tensor_layout=layout, validate=validate
        )
    (plan,) = made
    (device, described, dtype, strides), _ = plan.planned
    assert (device, dtype, strides) == (0, "bf16", ((512, 64), (512, 64)))
    assert described["k"] == (2 * 16 * 2 * 64, 128, 64) and described["k_scales"] == ((32, 2, 1) if layout == "NHD" else (32, 1, 16))
    assert plan.launched[1] == (1, (k.data_ptr(), v.data_ptr()), slots.data_ptr(), (k_cache.data_ptr(), v_cache.data_ptr()), (scales[0].data_ptr(), scales[1].data_ptr()), 77, False)
    assert plan.launched[0][0] == 20 and plan.launched[0][-1] is True
    with pytest.raises(ValueError, match="v: shape"):
        eightfold.append_kv(k, qkv[:2, 6:], k_cache, v_cache, slots, k_descale=scales[0], v_descale=scales[1], tensor_layout=layout)


def test_what_lies_as_no_kernel_reads_it_is_told_before_anything_is_planned(native):
    made, _ = native
    (k_cache, v_cache, table, lengths), one = paged()
    q, new = torch.zeros(3, 1, 4, 64), torch.zeros(2, 2, 64)
    wide = torch.zeros(9, 16, 2, 128, dtype=torch.float8_e4m3fn)[..., ::2]
    attend = lambda **settings: eightfold.paged_attention(**(dict(q=q, k_cache=k_cache, v_cache=v_cache, block_table=table, lengths=lengths, k_descale=one, v_descale=one) | settings))  # noqa: E731
    append = lambda **settings: eightfold.append_kv(**(dict(k=new, v=new, k_cache=k_cache, v_cache=v_cache, slots=torch.arange(2), k_descale=one, v_descale=one) | settings))  # noqa: E731
    cases = [
        ("block_table: its entries are 2 apart", lambda: attend(block_table=torch.zeros(3, 10, dtype=torch.int32)[:, ::2])),
        ("lengths: its entries are 2 apart", lambda: attend(lengths=torch.ones(6, dtype=torch.int32)[::2])),
        ("v_cache: its channels are 2 elements apart", lambda: attend(v_cache=wide)),
        ("k: its channels are 2 elements apart", lambda: append(k=torch.zeros(2, 2, 128)[..., ::2])),
        ("k_cache: its channels are 2 elements apart", lambda: append(k_cache=wide)),
    ]
    for text, call in cases:
        with pytest.raises(ValueError) as caught:
            call()
        assert text in str(caught.value) and "; " in str(caught.value), str(caught.value)
    assert made == []


def test_parts_are_merged_in_the_order_of_their_rows(native):
    made, _ = native
    outs, lses = [torch.zeros(2, 5, 4, 64) for _ in range(3)], [torch.zeros(2, 4, 5) for _ in range(3)]
    out, lse = eightfold.merge(outs, lses)
    rows, parts, merged, stream = made[0].launched[0]
    assert made[0].planned[0] == (0, 64, "f32") and (rows, stream) == (40, 77)
    assert [at for at, _ in parts] == [one.data_ptr() for one in outs] and merged[0] == out.data_ptr() and lse.shape == (2, 4, 5)
    by_heads, _ = eightfold.merge([one.transpose(1, 2).contiguous() for one in outs], lses, tensor_layout="HND")
    rows, parts, merged, _ = made[0].launched[1]
    assert [at for _, at in parts] == [one.data_ptr() for one in lses] and by_heads.shape == (2, 4, 5, 64)
