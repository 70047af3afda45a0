"""Measures the package beside torch's own attention, for a record:

    python3 tests/h200.py python.json [--checks checks.tsv]... [--rounds 40] [--rehearse] [--calls]
    eightfold records DIR --import python.json

bf16 in, bf16 out, quantising included; what a call costs the host; models of transformers with random weights. Contestants take
turns, and the order changes from turn to turn. --checks names what was tested before: pytest's --junitxml, or lines of a
subject, a tab and a number of failures. --calls measures calls on tensors of each shape alone, in every format of Q and K. --rehearse
is the same on the CPU, small and without events: a test of this file.
"""

import argparse
import contextlib
import importlib.metadata
import json
import platform
import sys
import time
import xml.etree.ElementTree

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import eightfold
from eightfold import _torch

SHAPES = [(2, 16, 2048, 128), (4, 16, 4096, 128), (2, 16, 16384, 128), (4, 16, 4096, 64), (2, 16, 16384, 64)]
FORMATS = ("e4m3", "int8")
BACKENDS = {
    "torch-cudnn": SDPBackend.CUDNN_ATTENTION,
    "torch-flash": SDPBackend.FLASH_ATTENTION,
    "torch-efficient": SDPBackend.EFFICIENT_ATTENTION,
}
MISSION = (1, 8, 512, 64)
FLASH = "torch, FlashAttention-2 through scaled_dot_product_attention"
# Kind, layers, heads, head dim, key heads; sequences and tokens.
MODELS = [("Llama", 8, 16, 128, 4, (2, 1024)), ("Bert", 12, 12, 64, None, (4, 512))]

# Layers, heads, head dim, key heads; sequences and tokens of the prompt. Heads are grouped 8:1 and 6:1.
GENERATIONS = [(16, 32, 128, 4, (1, 8192)), (16, 32, 128, 4, (16, 8192)), (16, 24, 128, 4, (8, 4096))]
DECODED = 256


class Device:
    """Where it runs: a GPU, or the CPU for a rehearsal."""

    def __init__(self, rehearse):
        self.name = "cpu" if rehearse else "cuda"
        self.rehearse = rehearse

    def wait(self):
        if not self.rehearse:
            torch.cuda.synchronize()

    def timed_ns(self, call, count):
        """A call's share of the device's time for a few that follow each other."""
        call()
        if self.rehearse:
            start = time.perf_counter_ns()
            for _ in range(count):
                call()
            return max(1, (time.perf_counter_ns() - start) // count)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return max(1, round(start.elapsed_time(end) * 1e6 / count))

    def tensors(self, b, s, h, d):
        return [torch.randn(b, s, h, d, device=self.name, dtype=torch.bfloat16) for _ in range(3)]


def in_turns(calls, rounds, timed_ns):
    """Nanoseconds of every turn, by contestant."""
    times = {name: [] for name in calls}
    names = list(calls)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(timed_ns(calls[name]))
    return times


def as_calls(times):
    return [{"name": name, "samples": {"ns": ns}} for name, ns in times.items()]


def last_plan():
    return next(reversed(_torch._plans.values()))


def contestants(q, k, v, causal):
    """By name, calls that take another v if they are given one; and those that do not run, by reason."""

    def theirs(backend):
        def call(v=v):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return call

    def ours(**settings):
        return lambda v=v: eightfold.attention(q, k, v, tensor_layout="HND", is_causal=causal, **settings)

    calls, missing = {"eightfold": ours(), "eightfold, e4m3, not centred": ours(input_format="e4m3", centre_keys=False)}, {}
    wanted = {f"eightfold, {name}": ours(input_format=name) for name in FORMATS}
    for name, call in (wanted | {name: theirs(backend) for name, backend in BACKENDS.items()}).items():
        try:
            call()
            calls[name] = call
        except (RuntimeError, ValueError) as error:
            missing[name] = str(error).splitlines()[0]
    return calls, missing


def difference(got, want):
    return float((got.float() - want.float()).norm() / want.float().norm())


def measure_format(device, name, call, best, v):
    """What our call does with Q and K in this format, beside the fastest of torch's backends."""
    differences = [difference(call(values), best(values)) for values in (v, v + 1)]
    native = None if device.rehearse else plan_of(device, call)
    return {"name": name, "kernel": native.variant if native else "cpu", "kernels": native.kernels if native else 0, "differences": differences}


def plan_of(device, call):
    """The native plan of a call, which may have been made long before."""
    # A plan lives until its work is done.
    device.wait()
    _torch._plans.clear()
    call()
    return last_plan().native


def measure_shape(device, shape, causal, rounds):
    b, h, s, d = shape
    # As projections leave them: rows before heads.
    q, k, v = (x.transpose(1, 2) for x in device.tensors(b, s, h, d))
    calls, missing = contestants(q, k, v, causal)
    for call in calls.values():
        for _ in range(2):
            call()
    device.wait()
    times = in_turns(calls, rounds, lambda call: device.timed_ns(call, 3))
    median = {name: sorted(ns)[len(ns) // 2] for name, ns in times.items()}
    best = min((name for name in median if name in BACKENDS), key=median.get)
    formats = [
        measure_format(device, name, calls[f"eightfold, {name}"], calls[best], v) for name in FORMATS if f"eightfold, {name}" in calls
    ]
    kernel = "cpu" if device.rehearse else plan_of(device, calls["eightfold"]).variant
    off = difference(calls["eightfold"](), calls[best]())
    print(f"{b},{h},{s},{d}{', causal' if causal else ''}: {median[best] / median['eightfold']:.2f}x {best}, difference {off:.1e}")
    for one in formats:
        speedup = median[best] / median[f"eightfold, {one['name']}"]
        print(f"    {one['name']}: {speedup:.2f}x, differences {one['differences'][0]:.1e} {one['differences'][1]:.1e}, {one['kernels']} launches")
    return {
        "batch": b, "heads": h, "len": s, "head_dim": d, "causal": causal, "kernel": kernel, "difference": off,
        "contestants": as_calls(times), "missing": missing, "formats": formats,
    }  # fmt: skip


def launches_alone(q, k, v, scales=None):
    """A launch of the plan that the last call made, with memory that is there."""
    plan = last_plan()
    size = plan.workspace_bytes
    workspace = torch.zeros(max(size, 1), dtype=torch.uint8, device="cuda")
    out = torch.empty(q.shape, dtype=torch.bfloat16, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    at = [x.data_ptr() for x in (q, k, v, out)]
    # The tensors live as long as what is returned.
    return lambda held=(workspace, out): plan.launch(*at, 0, held[0].data_ptr(), size, stream, scales), plan.native.kernels


def host_calls(device, shape):
    """What is timed on the host, by name; and how many kernels our calls launch."""
    b, h, s, d = shape
    q, k, v = device.tensors(b, s, h, d)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    codes = [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
    one = torch.ones(1, device=device.name)
    descales = dict(q_descale=one, k_descale=one, v_descale=one)
    compiled = torch.compile(lambda q, k, v: eightfold.attention(q, k, v), fullgraph=True, backend="eager")
    operator = torch.ops.eightfold.attention
    calls = {
        "call, bf16": lambda: eightfold.attention(q, k, v),
        "call, FP8": lambda: eightfold.attention(*codes, **descales),
        "call, bf16, not centred": lambda: eightfold.attention(q, k, v, centre_keys=False),
        "operator, bf16": lambda: operator(q, k, v, None, None, None, "NHD", False, None, "fast", True, None, False),
        "under torch.compile, bf16": lambda: compiled(q, k, v),
        "torch, scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(*turned),
    }
    kernels = {}
    if not device.rehearse:
        calls[FLASH] = lambda: F.scaled_dot_product_attention(*turned)
        calls["call, bf16"]()
        calls["launches, bf16"], kernels["bf16"] = launches_alone(q, k, v)
        calls["call, FP8"]()
        calls["launches, FP8"], kernels["FP8"] = launches_alone(*codes, (one.data_ptr(),) * 3)
    return calls, kernels


def measure_host(device, rounds):
    shape = (1, 2, 64, 64) if device.rehearse else MISSION
    calls, kernels = host_calls(device, shape)

    def timed_ns(call):
        device.wait()
        # The backend is chosen before, as a program would.
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if call is calls.get(FLASH) else contextlib.nullcontext():
            start = time.perf_counter_ns()
            call()
            return max(1, time.perf_counter_ns() - start)

    in_turns(calls, 3 if device.rehearse else 50, timed_ns)
    times = in_turns(calls, rounds, timed_ns)
    for name, ns in times.items():
        print(f"host, {name}: {sorted(ns)[len(ns) // 2] / 1e3:.1f} us")
    b, h, s, d = shape
    return {"batch": b, "heads": h, "len": s, "head_dim": d, "kernels": kernels, "calls": as_calls(times)}


def measure_models(device):
    import models

    rows = []
    for kind, layers, heads, head_dim, kv_heads, tokens in MODELS:
        if device.rehearse:
            layers, heads, kv_heads, tokens = 2, 2, kv_heads and 1, (2, 32)
        model = models.build(kind, models.config(kind, layers, heads, head_dim, kv_heads), device.name, torch.bfloat16)
        ids = torch.randint(0, 1000, tokens, device=device.name)
        states, logits, served = models.differences(model, ids)
        made_of = {"layers": layers, "heads": heads, "head_dim": head_dim, "kv_heads": kv_heads or heads}
        print(f"{kind}: logits {logits:.1e} from sdpa's, layers", ", ".join(f"{x:.1e}" for x in states))
        rows.append({"name": models.KINDS[kind], "config": made_of, "tokens": list(tokens), "served": served, "layers": states, "logits": logits})
    return rows


def measure_generations(device):
    import models

    rows = []
    for layers, heads, head_dim, kv_heads, tokens in GENERATIONS[: 1 if device.rehearse else None]:
        decoded = DECODED
        if device.rehearse:
            layers, heads, head_dim, kv_heads, tokens, decoded = 2, 6, 64, 1, (2, 20), 4
        model = models.build("Llama", models.config("Llama", layers, heads, head_dim, kv_heads), device.name, torch.bfloat16)
        ids = torch.randint(0, 1000, tokens, device=device.name)
        # Kernels are compiled and chosen before.
        models.decode(model, ids[:, :40], 2, device.wait)
        found = models.decode(model, ids, decoded, device.wait)
        rate = {name: tokens[0] * decoded / found[f"{name}_seconds"] for name in ("sdpa", "eightfold")}
        print(f"Llama {heads}/{kv_heads}, {tokens[0]} x {tokens[1]}: {rate['eightfold']:.0f} tokens/s, sdpa {rate['sdpa']:.0f}; logits up to {max(found['differences']):.1e} from sdpa's")
        made_of = {"layers": layers, "heads": heads, "head_dim": head_dim, "kv_heads": kv_heads}
        rows.append({"name": models.KINDS["Llama"], "config": made_of, "tokens": list(tokens), **found})
    return rows


def read_checks(paths):
    """What was tested before, and by whom."""
    checks, tools = [], []
    for path in paths:
        if path.endswith(".xml"):
            tools.append(f"pytest {importlib.metadata.version('pytest')}")
            for case in xml.etree.ElementTree.parse(path).iter("testcase"):
                if case.find("skipped") is None:
                    failed = case.find("failure") is not None or case.find("error") is not None
                    checks.append((f"{case.get('classname')}::{case.get('name')}", int(failed)))
        else:
            with open(path) as lines:
                pairs = [line.rstrip("\n").split("\t") for line in lines]
            tools += [subject for subject, _ in pairs]
            checks += [(subject, int(failures)) for subject, failures in pairs]
    as_check = [{"subject": subject, "tool": "test", "findings": failures} for subject, failures in checks]
    return {"by": ", ".join(tools), "on": "a device, which was required", "checks": as_check}


def versions(device):
    found = {"eightfold": eightfold.__version__, "Python": platform.python_version(), "torch": torch.__version__}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["transformers"] = importlib.metadata.version("transformers")
    if not device.rehearse:
        found |= {"CUDA": torch.version.cuda, "cuDNN": str(torch.backends.cudnn.version())}
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--checks", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--generations", action="store_true", help="what models generate, and nothing else")
    parser.add_argument("--calls", action="store_true", help="calls on tensors of each shape, and nothing else")
    arguments = parser.parse_args(arguments)
    device = Device(arguments.rehearse)
    torch.manual_seed(0)
    if arguments.generations:
        with open(arguments.file, "w") as file:
            json.dump({"generations": measure_generations(device)}, file)
        return
    shapes = [(1, 2, 64, 64)] if device.rehearse else SHAPES
    rounds = lambda shape: arguments.rounds if shape[2] < 10000 else max(2, arguments.rounds // 4)  # noqa: E731
    with torch.no_grad():
        run = {
            "versions": versions(device),
            "shapes": [measure_shape(device, shape, causal, rounds(shape)) for shape in shapes for causal in (False, True)],
        }
        if not arguments.calls:
            run |= {
                "host": measure_host(device, 5 * arguments.rounds),
                "models": measure_models(device),
                "generations": measure_generations(device),
            }
    with open(arguments.file, "w") as file:
        json.dump({"run": run, "tests": read_checks(arguments.checks)}, file)


if __name__ == "__main__":
    sys.exit(main())
