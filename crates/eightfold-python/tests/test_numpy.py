"""numpy alone: nothing here imports torch."""

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import threading

import eightfold
import numpy as np
import pytest
from conftest import error, exact, values


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_results_are_near_float64(layout, dtype, causal):
    q, k, v = values(1, 2, 6, 40, 72), values(2, 2, 3, 55, 72), values(3, 2, 3, 55, 72)
    want, want_lse = exact(q, k, v, causal, 0.2)
    turn = (lambda x: x.swapaxes(1, 2)) if layout == "NHD" else (lambda x: x)
    given = [turn(x).astype(dtype) for x in (q, k, v)]
    out, lse = eightfold.attention(*given, tensor_layout=layout, is_causal=causal, sm_scale=0.2, return_lse=True)
    assert out.dtype == dtype and lse.dtype == np.float32
    # Quantising to FP8 alone costs five hundredths where scores are this large; how little the kernel adds, check tells.
    assert error(turn(out), want) < 0.08
    assert np.abs(lse - want_lse).max() < 0.2
    found = eightfold.check(*given, tensor_layout=layout, is_causal=causal, sm_scale=0.2, accuracy="precise")
    assert found.kernel < 0.003 and abs(found.total - error(turn(out), want)) < 0.005


SCORING = [
    {"window": (9, -1)},
    {"window": (3, 5)},
    {"window": (7, 0), "causal": True},
    {"softcap": 2.0},
    {"softcap": 5.0, "window": (20, 2), "sinks": [0.5, -1.0, 3.0, 0.0, 1.0, 2.0]},
]


@pytest.mark.parametrize("settings", SCORING)
@pytest.mark.parametrize("channels", [64, 40])
def test_windows_softcaps_sinks_and_other_channels_of_v_are_served(settings, channels):
    q, k, v = values(1, 2, 6, 40, 64), values(2, 2, 3, 55, 64), values(3, 2, 3, 55, channels)
    want, want_lse = exact(q, k, v, **settings)
    asked = dict(settings)
    named = dict(window_size=asked.pop("window", (-1, -1)), is_causal=asked.pop("causal", False), **asked)
    out, lse = eightfold.attention(q, k, v, tensor_layout="HND", return_lse=True, **named)
    assert out.shape == (2, 6, 40, channels)
    assert error(out, want) < 0.08 and np.abs(lse - want_lse).max() < 0.2
    if "sinks" not in settings:
        named = {name: value for name, value in named.items() if name != "sinks"}
        found = eightfold.check(q, k, v, tensor_layout="HND", accuracy="precise", **named)
        assert found.kernel < 0.005 and abs(found.total - error(out, want)) < 0.005
    assert eightfold.explain(q, k, v, tensor_layout="HND", device="cpu", **named).startswith("runs  cpu")


def test_fp8_codes_are_scaled():
    codes = np.random.default_rng(4).integers(0, 0x58, (3, 1, 2, 16, 64)).astype(np.uint8)
    # The bits of E4M3 as numbers: 1 sign, 4 exponent, 3 mantissa.
    exponent, mantissa = (codes >> 3).astype(int), (codes & 7).astype(float)
    numbers = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (one.view(ml_dtypes.float8_e4m3fn) for one in codes)
    scales = np.array([[0.25, 0.5]], np.float32)
    out = eightfold.attention(q, k, v, tensor_layout="HND", q_descale=0.1, k_descale=scales, v_descale=np.float32(2.0))
    by_head = scales[:, :, None, None]
    want, _ = exact(numbers[0] * 0.1, numbers[1] * by_head, numbers[2] * 2.0)
    assert out.dtype == np.float32
    assert error(out, want) < 0.01


def test_strided_arrays_and_out_are_served():
    q = values(5, 1, 64, 2, 128)[..., ::2]
    want = eightfold.attention(np.ascontiguousarray(q), np.ascontiguousarray(q), np.ascontiguousarray(q))
    out = np.zeros((1, 64, 2, 130), np.float32)[..., ::2][..., :64]
    assert eightfold.attention(q, q, q, out=out) is out
    assert (out == want).all()


class Foreign:
    """As arrays of other libraries on the CPU: only what DLPack asks for."""

    def __init__(self, array):
        self.array = array
        self.dtype, self.shape = array.dtype, array.shape

    def __dlpack__(self, **settings):
        return self.array.__dlpack__(**settings)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_other_libraries_come_in_by_dlpack():
    q = values(6, 1, 16, 2, 64)
    out = eightfold.attention(*[Foreign(q)] * 3)
    assert (np.asarray(out) == eightfold.attention(q, q, q)).all()
    with pytest.raises(TypeError, match=r"q, k and v are of several kinds .*; convert"):
        eightfold.attention(q, Foreign(q), Foreign(q))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn"])
def test_jax_arrays_are_served_and_come_back(dtype):
    jax = pytest.importorskip("jax")
    cpu = jax.devices("cpu")[0]
    q = jax.numpy.asarray(values(6, 1, 16, 2, 64), device=cpu).astype(dtype)
    settings = dict(q_descale=0.5, k_descale=0.5, v_descale=2.0) if "8" in dtype else {}
    out, lse = eightfold.attention(q, q, q, is_causal=True, return_lse=True, **settings)
    want, want_lse = eightfold.attention(*[np.asarray(q)] * 3, is_causal=True, return_lse=True, **settings)
    assert isinstance(out, jax.Array) and isinstance(lse, jax.Array) and out.device == cpu
    assert out.dtype == want.dtype and (np.asarray(out) == want).all() and (np.asarray(lse) == want_lse).all()


def test_bf16_arrays_give_bf16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q = values(6, 1, 16, 2, 64).astype(ml_dtypes.bfloat16)
    out = eightfold.attention(q, q, q)
    want, _ = exact(*[q.astype(np.float32).swapaxes(1, 2)] * 3)
    assert out.dtype == q.dtype
    assert error(out.astype(np.float32).swapaxes(1, 2), want) < 0.05


Q = np.ones((1, 8, 2, 64), np.float32)


@pytest.mark.parametrize(
    "kind, text, q, k, settings",
    [
        (ValueError, "q: has 3 dimensions", Q[0], Q, {}),
        (ValueError, "k: batch 2 is not that of q", Q, Q.repeat(2, 0), {}),
        (ValueError, "k: head dim 32", Q, Q[..., :32], {}),
        (ValueError, "k: 2 heads do not divide the 3 heads", np.ones((1, 8, 3, 64), np.float32), Q, {}),
        (TypeError, "q: dtype float64", Q.astype(np.float64), Q, {}),
        (TypeError, "k: is f16, but q is f32", Q, Q.astype(np.float16), {}),
        (TypeError, "q: str is no tensor", "q", Q, {}),
        (ValueError, "tensor_layout: 'BSHD'", Q, Q, {"tensor_layout": "BSHD"}),
        (ValueError, "accuracy: 'best'", Q, Q, {"accuracy": "best"}),
        (ValueError, "sm_scale: nan", Q, Q, {"sm_scale": float("nan")}),
        (ValueError, "q_descale: q is not FP8", Q, Q, {"q_descale": 1.0}),
        (ValueError, "out: float32 of (1, 8, 2, 32)", Q, Q, {"out": Q[..., :32].copy()}),
        (TypeError, "out: list is no numpy array", Q, Q, {"out": [0.0]}),
        (TypeError, "out_dtype: float64", Q, Q, {"out_dtype": np.float64}),
        (ValueError, "window_size: (128, -2)", Q, Q, {"window_size": (128, -2)}),
        (ValueError, "softcap: nan", Q, Q, {"softcap": float("nan")}),
        (ValueError, "sinks: shape (3,) is not one logit for each of the 2 query heads", Q, Q, {"sinks": np.ones(3)}),
        (ValueError, "sinks: ", Q, Q, {"sinks": np.array([0.0, np.inf])}),
        (ValueError, "stream: is for tensors on a CUDA device", Q, Q, {"stream": object()}),
        (ValueError, "head_dim: 60 is not a multiple of 8", np.ones((1, 8, 2, 60), np.float32), np.ones((1, 8, 2, 60), np.float32), {}),
        (ValueError, "q (values): ", np.full_like(Q, np.nan), Q, {}),
        (ValueError, "batch: must be at least 1", Q[:0], Q[:0], {}),
    ],
)
def test_mistakes_are_named_with_their_fix(kind, text, q, k, settings):
    with pytest.raises(kind) as caught:
        eightfold.attention(q, k, k, **settings)
    assert text in str(caught.value)
    assert "; " in str(caught.value)


def test_fp8_without_scales_is_refused():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q = np.zeros((1, 8, 2, 64), ml_dtypes.float8_e4m3fn)
    with pytest.raises(ValueError, match="k_descale: FP8 tensors mean nothing without their scales"):
        eightfold.attention(q, q, q, q_descale=1.0)
    with pytest.raises(ValueError, match="v_descale: shape"):
        eightfold.attention(q, q, q, q_descale=1.0, k_descale=1.0, v_descale=np.ones((3, 3)))


def test_centring_helps_keys_with_an_outlying_channel():
    q, k, v = values(7, 1, 256, 2, 64), values(8, 1, 256, 2, 64), values(9, 1, 256, 2, 64)
    k[..., 3] += 100.0
    found = eightfold.check(q, k, v, centre_keys=False)
    assert found.quantiser_otherwise < 0.5 * found.quantiser
    assert "centre_keys=True" in found.recommendation
    assert eightfold.check(q, k, v).total < 0.5 * found.total
    assert "float64" in str(found)


def test_int8_loses_less_and_always_centres_keys():
    q, k, v = values(14, 1, 300, 4, 64), values(15, 1, 300, 2, 64), values(16, 1, 300, 2, 64)
    k[..., 3] += 20.0
    settings = dict(is_causal=True, accuracy="precise")
    e4m3, int8 = (eightfold.check(q, k, v, input_format=format, **settings) for format in ("e4m3", "int8"))
    assert int8.total < 0.75 * e4m3.total and int8.kernel < 0.005 and int8.input_format == "int8"
    assert eightfold.check(q, k, v, centre_keys=False, input_format="int8", **settings) == int8 and "to int8" in str(int8)
    auto, alike = (eightfold.attention(q, k, v, **format) for format in ({}, {"input_format": "e4m3"}))
    assert np.array_equal(auto, alike)
    for format, text in (("e5m2", "'e5m2' is not a format; say one of auto, e4m3, int8"), (None, "None is not a format")):
        with pytest.raises(ValueError, match=f"input_format: {text}"):
            eightfold.attention(q, k, v, input_format=format)


def test_check_takes_some_heads_of_long_sequences():
    q = values(10, 1, 4096, 8, 8)
    found = eightfold.check(q, q, q, is_causal=True)
    assert found.heads == (4, 8)
    assert 0 < found.total < 0.2


def test_explain_names_what_runs_first():
    lines = eightfold.explain((1, 512, 8, 64), device="cpu", accuracy="precise").splitlines()
    assert lines[0].startswith("runs  cpu:") and all(line.startswith("no ") for line in lines[1:-1])
    assert lines[-1] == "quantises q and k to e4m3: what the CPU takes unless it is told otherwise"
    named = eightfold.explain((1, 512, 8, 64), device="cpu", input_format="int8")
    assert named.startswith("runs  cpu:") and named.endswith("quantises q and k to int8: as it was asked for")
    assert "quantises" not in eightfold.explain((1, 512, 8, 64), device="cpu", fp8=True)
    assert eightfold.explain(Q, Q, Q, device="cpu")


def test_no_device_is_told_with_what_to_do():
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a device")
    with pytest.raises(eightfold.Unavailable, match="no NVIDIA driver"):
        eightfold.explain((1, 512, 8, 64), device=0)
    assert "device   CUDA is not available" in eightfold.doctor()


def in_new_process(program, *, timeout=120):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout)


def test_importing_brings_neither_torch_nor_threads():
    # numpy's own threads are there before.
    program = """
import os, sys, numpy
threads = len(os.listdir("/proc/self/task"))
import eightfold
assert "torch" not in sys.modules and len(os.listdir("/proc/self/task")) == threads
"""
    done = in_new_process(program)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("used_before", [False, True])
def test_a_forked_process_does_not_hang(used_before):
    program = f"""
import os, numpy as np, eightfold
q = np.random.default_rng(0).standard_normal((2, 300, 4, 64)).astype(np.float32)
want = eightfold.attention(q, q, q) if {used_before} else None
child = os.fork()
if child == 0:
    got = eightfold.attention(q, q, q)
    same = want is None or (got == want).all()
    os._exit(0 if same and np.isfinite(got).all() else 1)
assert os.waitpid(child, 0)[1] == 0
eightfold.attention(q, q, q)
"""
    done = in_new_process(program)
    assert done.returncode == 0, done.stderr


def test_threads_share_the_lock_and_get_their_own_results():
    inputs = [values(seed, 1, 200, 4, 64) for seed in range(4)]
    want = [eightfold.attention(q, q, q) for q in inputs]
    got = [None] * 4

    def run(index):
        for _ in range(5):
            got[index] = eightfold.attention(inputs[index], inputs[index], inputs[index])

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((a == b).all() for a, b in zip(got, want))


def test_the_lock_is_released_while_it_computes():
    # In a process where no thread is made to give up the lock: another runs only where a call releases it.
    program = """
import sys, threading, numpy as np, eightfold
q = np.ones((1, 500, 4, 64), np.float32)
eightfold.attention(q, q, q)
gate, ran = threading.Lock(), []
gate.acquire()
def wait():
    gate.acquire()
    ran.append(True)
thread = threading.Thread(target=wait)
thread.start()
sys.setswitchinterval(1000)
gate.release()
sum(range(3_000_000))
assert not ran, "nothing released the lock, and yet the other thread ran"
for _ in range(1000):
    eightfold.attention(q, q, q)
    if ran:
        break
assert ran, "attention held the lock"
"""
    done = in_new_process(program)
    assert done.returncode == 0, done.stderr


def test_the_command_comes_with_the_wheel():
    commands = [[sys.executable, "-m", "eightfold"]]
    # Where the wheel was only unpacked there are no scripts.
    if importlib.metadata.distribution("eightfold").read_text("INSTALLER"):
        commands.append([os.path.join(sysconfig.get_path("scripts"), "eightfold")])
    for command in commands:
        done = subprocess.run([*command, "explain", "--shape", "mission"], capture_output=True, text=True)
        if done.returncode == 2 and "built without the command" in done.stderr:
            assert not os.environ.get("EIGHTFOLD_REQUIRE_COMMAND"), done.stderr
            pytest.skip("this package was built without the command")
        assert done.returncode == 0 and "1,8,512,64" in done.stdout.splitlines()[0], done.stdout + done.stderr


def test_settings_come_before_their_use():
    program = """
import eightfold
eightfold.configure(cache=None)
assert "cache    none" in eightfold.doctor()
try:
    eightfold.configure(cache=None)
except RuntimeError as error:
    assert "before the first call" in str(error)
else:
    raise SystemExit("no error")
"""
    done = in_new_process(program)
    assert done.returncode == 0, done.stderr
