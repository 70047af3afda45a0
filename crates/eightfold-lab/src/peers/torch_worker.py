"""PyTorch's attention behind JSON lines: one request per line on stdin, one answer per line on stdout."""

import contextlib
import ctypes
import json
import sys
import time


def answer(**fields):
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except Exception as error:
    answer(error=f"{type(error).__name__}: {error}")
    sys.exit(0)


def read_inputs(file, query_dims, key_dims, causal, scale):
    """Q, K and V in f32 on the host, and the options that make PyTorch compute the same problem."""
    query_len, key_len = query_dims[2], key_dims[2]
    if causal and query_len != key_len and query_len != 1:
        # is_causal aligns the mask to the top left; the problem's is aligned to the bottom right.
        raise ValueError("is_causal means another mask where query and key lengths differ")
    with open(file, "rb") as stream:
        values = torch.frombuffer(bytearray(stream.read()), dtype=torch.float32)
    counts = [torch.Size(dims).numel() for dims in (query_dims, key_dims, key_dims)]
    parts = values.split(counts)
    inputs = [part.view(dims) for part, dims in zip(parts, (query_dims, key_dims, key_dims))]
    options = {"is_causal": causal and query_len > 1, "scale": scale}
    if query_dims[1] != key_dims[1]:
        options["enable_gqa"] = True
    return inputs, options


def write_output(result, file):
    # Through its address: NumPy may be missing, and a storage would be read byte by byte.
    flat = result.contiguous()
    with open(file, "wb") as stream:
        stream.write(ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()))


flushed = {}


def empty_caches(count, device):
    """Writes as many bytes, which puts everything else out of the caches; nothing for none."""
    if count:
        if device not in flushed:
            flushed[device] = torch.ones(count, dtype=torch.uint8, device=device)
        flushed[device].fill_(1)
        if device == "cuda":
            torch.cuda.synchronize()


class Attention:
    def load(self, file, query_dims, key_dims, causal, scale, threads):
        torch.set_num_threads(threads)
        self.inputs, self.options = read_inputs(file, query_dims, key_dims, causal, scale)
        self.result = None
        return {"threads": torch.get_num_threads()}

    def run(self):
        with torch.inference_mode(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            self.result = torch.nn.functional.scaled_dot_product_attention(*self.inputs, **self.options)

    def time(self, iterations, flush_bytes=0):
        """Runs and times; entering the context managers is not part of the kernel, so it is done once."""
        attention = torch.nn.functional.scaled_dot_product_attention
        inputs, options, times = self.inputs, self.options, []
        with torch.inference_mode(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            for _ in range(iterations):
                empty_caches(flush_bytes, "cpu")
                start = time.perf_counter_ns()
                self.result = attention(*inputs, **options)
                times.append(time.perf_counter_ns() - start)
        return {"ns": times}

    def output(self, file):
        """Writes the result of the last run, timed or not."""
        if self.result is None:
            self.run()
        write_output(self.result, file)
        return {}


class CudaAttention:
    """Several backends on the same bf16 inputs, each with a captured graph, so that they can take turns."""

    def load(self, file, query_dims, key_dims, causal, scale):
        # The graphs of the inputs before hold their memory.
        self.backends = {}
        inputs, self.options = read_inputs(file, query_dims, key_dims, causal, scale)
        self.inputs = [part.to("cuda").to(torch.bfloat16) for part in inputs]
        torch.cuda.synchronize()
        return {}

    def prepare(self, backend, launches):
        if backend not in self.backends:
            self.backends[backend] = Captured(getattr(SDPBackend, backend), self.inputs, self.options, launches)
        return {}

    def time(self, backend, timer, iterations, flush_bytes=0):
        captured = self.backends[backend]
        if timer == "graph_replay":
            return {"ns": captured.replay(iterations)}
        return {"ns": captured.launch(iterations, flush_bytes)}

    def output(self, backend, timer, file):
        captured = self.backends[backend]
        result = captured.graph_result if timer == "graph_replay" else captured.result
        write_output(result.float().cpu(), file)
        return {}


class Captured:
    """One backend: a graph of launches, and single launches."""

    def __init__(self, backend, inputs, options, launches):
        self.backend, self.inputs, self.options, self.launches = backend, inputs, options, launches
        # Warm-up on another stream, as a capture demands: kernels are chosen and loaded, workspaces allocated.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), self.context():
            for _ in range(3):
                self.result = self.attend()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with self.context(), torch.cuda.graph(self.graph):
            for _ in range(launches):
                self.graph_result = self.attend()
        self.graph.replay()
        torch.cuda.synchronize()

    def context(self):
        context = contextlib.ExitStack()
        context.enter_context(torch.inference_mode())
        context.enter_context(sdpa_kernel(self.backend))
        return context

    def attend(self):
        return torch.nn.functional.scaled_dot_product_attention(*self.inputs, **self.options)

    def replay(self, iterations):
        """Nanoseconds of a launch: the time of a replay over the number of launches in it."""
        with torch.inference_mode():
            # Whatever an earlier block left must not count as this one's work.
            self.graph_result.fill_(float("nan"))
        torch.cuda.synchronize()
        return [round(between_events(self.graph.replay) / self.launches) for _ in range(iterations)]

    def launch(self, iterations, flush_bytes):
        """Nanoseconds of single launches, each on an idle device."""
        times = []
        torch.cuda.synchronize()
        with self.context():
            for _ in range(iterations):
                empty_caches(flush_bytes, "cuda")
                times.append(round(between_events(self.keep_result)))
        return times

    def keep_result(self):
        self.result = self.attend()


def between_events(work):
    """Nanoseconds of device time from before the work to after it; the device is idle again when this returns."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e6


attention, on_cuda = Attention(), CudaAttention()
commands = {
    "load": attention.load,
    "time": attention.time,
    "output": attention.output,
    "load_cuda": on_cuda.load,
    "prepare_cuda": on_cuda.prepare,
    "time_cuda": on_cuda.time,
    "output_cuda": on_cuda.output,
}
device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
answer(version=torch.__version__, cuda=device)
for line in sys.stdin:
    try:
        request = json.loads(line)
        answer(**commands[request.pop("command")](**request))
    except Exception as error:
        answer(error=f"{type(error).__name__}: {error}")
