"""As much of PyTorch as the worker uses, without arithmetic: attention gives back Q. For tests alone."""

import array
import contextlib
import math
import os
import signal
import sys
import types


class Tensor:
    shape = ()

    def __init__(self, values, dtype="float32"):
        self.values, self.dtype = array.array("f", values), dtype

    def to(self, place_or_dtype):
        return Tensor(self.values, place_or_dtype)

    def split(self, counts):
        parts, start = [], 0
        for count in counts:
            parts.append(Tensor(self.values[start : start + count]))
            start += count
        return parts

    def view(self, *_):
        return self

    def fill_(self, value):
        self.values = array.array("f", [value] * len(self.values))

    def clone(self):
        return Tensor(self.values)

    def data_ptr(self):
        return self.values.buffer_info()[0]

    def numel(self):
        return len(self.values)

    def element_size(self):
        return self.values.itemsize

    def isfinite(self):
        return types.SimpleNamespace(all=lambda: all(map(math.isfinite, self.values)))

    def __getitem__(self, part):
        return Tensor(self.values if part is None else self.values[part])

    contiguous = float = cpu = transpose = flatten = __mul__ = lambda self, *_: self


class Size(list):
    def numel(self):
        count = 1
        for size in self:
            count *= size
        return count


class Event:
    clock = 0.0

    def __init__(self, enable_timing):
        self.ms = None

    def record(self):
        self.ms = Event.clock

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return end.ms - self.ms


class Graph:
    """Runs again, on replay, what was done while it was captured."""

    capturing = None

    def __init__(self):
        self.work = []

    def replay(self):
        for work in self.work:
            work()


class Stream:
    def wait_stream(self, _):
        pass


@contextlib.contextmanager
def capture(graph):
    Graph.capturing = graph
    yield
    Graph.capturing = None


class Backends:
    active = None


@contextlib.contextmanager
def sdpa_kernel(backend):
    Backends.active = backend
    yield
    Backends.active = None


def attention(q, k, v, scale, is_causal=False, enable_gqa=False):
    avoids_crash = "ONEDNN_MAX_CPU_ISA" in os.environ and not globals().get("CRASHES_WITH_SETTING")
    if q.dtype == globals().get("CRASHES_IN") and not avoids_crash:
        os.kill(os.getpid(), signal.SIGILL)
    if Backends.active == "CUDNN_ATTENTION":
        raise RuntimeError("No available kernel. Aborting execution.")
    result = Tensor(q.values)

    def launch():
        # A launch takes 3 microseconds.
        Event.clock += 0.003
        result.values = array.array("f", q.values)

    if Graph.capturing is not None:
        Graph.capturing.work.append(launch)
    else:
        launch()
    return result


def from_buffer(data, dtype, count=-1, offset=0):
    values = array.array("B" if dtype == "uint8" else "f", bytes(data[offset:]))
    return Tensor(values[: count if count >= 0 else None])


def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made
    return made


cuda = types.SimpleNamespace(
    is_available=lambda: "NO_GPU" not in globals(),
    get_device_name=lambda _: "Fake GPU",
    synchronize=lambda: None,
    current_stream=Stream,
    Stream=Stream,
    stream=lambda _: contextlib.nullcontext(),
    CUDAGraph=Graph,
    graph=capture,
    Event=Event,
)
threads = {}
names = ["MATH", "EFFICIENT_ATTENTION", "FLASH_ATTENTION", "CUDNN_ATTENTION"]
module(
    "torch",
    __version__="0.0-fake",
    float32="float32",
    bfloat16="bfloat16",
    float16="float16",
    set_num_threads=lambda count: threads.update(count=count),
    get_num_threads=lambda: threads["count"],
    uint8="uint8",
    Size=Size,
    equal=lambda a, b: a.values.tobytes() == b.values.tobytes(),
    ones=lambda count, dtype, device: Tensor([1.0]),
    float8_e4m3fn="float8_e4m3fn",
    cat=lambda parts: Tensor([value for part in parts for value in part.values]),
    frombuffer=from_buffer,
    inference_mode=contextlib.nullcontext,
    cuda=cuda,
    nn=types.SimpleNamespace(functional=types.SimpleNamespace(scaled_dot_product_attention=attention)),
)
module("torch.nn")
module("torch.nn.attention", SDPBackend=types.SimpleNamespace(**{name: name for name in names}), sdpa_kernel=sdpa_kernel)
