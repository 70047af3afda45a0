"""PyTorch's attention behind JSON lines: one request per line on stdin, one answer per line on stdout."""

import contextlib
import ctypes
import importlib
import inspect
import itertools
import json
import os
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


def read_inputs(file, query_dims, key_dims, value_dims, causal, window, scale):
    """Q, K and V in f32 on the host, and the options that make PyTorch compute the same problem."""
    query_len, key_len = query_dims[2], key_dims[2]
    if causal and not window and query_len != key_len and query_len != 1:
        # is_causal aligns the mask to the top left; the problem's is aligned to the bottom right.
        raise ValueError("is_causal means another mask where query and key lengths differ")
    with open(file, "rb") as stream:
        values = torch.frombuffer(bytearray(stream.read()), dtype=torch.float32)
    sizes = (query_dims, key_dims, value_dims)
    parts = values.split([torch.Size(dims).numel() for dims in sizes])
    inputs = [part.view(dims) for part, dims in zip(parts, sizes)]
    options = {"is_causal": causal and query_len > 1 and not window, "scale": scale}
    if window:
        options["attn_mask"] = window_mask(query_len, key_len, causal, *window)
    if query_dims[1] != key_dims[1]:
        options["enable_gqa"] = True
    return inputs, options


def window_mask(query_len, key_len, causal, left, right):
    """Which keys each query sees: no other way to a window is open to all."""
    own = torch.arange(query_len)[:, None] + (key_len - query_len)
    ahead = torch.arange(key_len)[None, :] - own
    right = 0 if causal else right
    mask = torch.ones(query_len, key_len, dtype=torch.bool)
    if left is not None:
        mask &= ahead >= -left
    if right is not None:
        mask &= ahead <= right
    if not mask.any(1).all():
        raise ValueError("rows without keys are NaN in scaled_dot_product_attention")
    return mask


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
    def load(self, threads, dtype, **problem):
        torch.set_num_threads(threads)
        inputs, self.options = read_inputs(**problem)
        self.inputs = [part.to(getattr(torch, dtype)) for part in inputs]
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
        """Writes the result of the last run, timed or not, in f32."""
        if self.result is None:
            self.run()
        write_output(self.result.float(), file)
        return {}


# Several hundred launches are timed.
LONGEST_LAUNCH_MS = 15


class CudaAttention:
    """Several backends on the same inputs, each with a captured graph, so that they can take turns."""

    def load(self, **problem):
        # The graphs of the inputs before hold their memory.
        self.backends = {}
        inputs, self.options = read_inputs(**problem)
        self.inputs = [part.to("cuda") for part in inputs]
        torch.cuda.synchronize()
        return {}

    def prepare(self, backend, launches):
        if backend not in self.backends:
            make = {"TRITON_FP8": TritonFp8, "CUDNN_FP8": CudnnFp8, "FA3_FP8": Fa3Fp8, "SAGE": Sage}.get(backend)
            kernel = make(self.inputs, self.options) if make else Sdpa(backend, self.inputs, self.options)
            self.backends[backend] = Captured(kernel, launches)
        return {}

    def time(self, backend, timer, iterations, flush_bytes=0):
        captured = self.backends[backend]
        if timer == "graph_replay":
            return {"ns": captured.replay(iterations)}
        return {"ns": captured.launch(iterations, flush_bytes)}

    def output(self, backend, timer, file):
        captured = self.backends[backend]
        write_output(captured.kernel.values(captured.result_of(timer)).cpu(), file)
        return {}

    def keep(self, backend, timer):
        """Keeps the result, for `same`."""
        captured = self.backends[backend]
        with torch.inference_mode():
            captured.kept[timer] = captured.result_of(timer).clone()
        return {}

    def same(self, backend, timer):
        """Whether every bit is as it was kept: on the device, since a large result takes longer to read than to compute."""
        captured = self.backends[backend]
        with torch.inference_mode():
            now, before = (result.view(torch.uint8) for result in (captured.result_of(timer), captured.kept[timer]))
            return {"same": torch.equal(now, before)}


class Kernel:
    """What a peer must give: a context, a launch (`attend`), and what is done to its result."""

    # Whether its launches go to the stream that is captured.
    capturable = True

    def context(self):
        return torch.inference_mode()

    def poison(self, result):
        result.fill_(float("nan"))

    def values(self, result):
        return result.float()


class Sdpa(Kernel):
    """A backend of scaled_dot_product_attention, in bf16."""

    def __init__(self, backend, inputs, options):
        self.backend = getattr(SDPBackend, backend)
        self.inputs, self.options = [part.to(torch.bfloat16) for part in inputs], options

    def context(self):
        context = contextlib.ExitStack()
        context.enter_context(torch.inference_mode())
        context.enter_context(sdpa_kernel(self.backend))
        return context

    def attend(self):
        return torch.nn.functional.scaled_dot_product_attention(*self.inputs, **self.options)


class Fp8Kernel(Kernel):
    """A kernel on FP8 inputs with one scale for each tensor, that writes to a place of its own."""

    def __init__(self, inputs, options):
        q, k, v = inputs
        if q.shape != k.shape:
            raise ValueError("written for as many queries as keys, and as many heads")
        self.causal, self.scale = options["is_causal"], options["scale"]
        self.tensors, self.scales = zip(*(to_fp8(part) for part in (q, k, v)))

    def attend(self):
        return self.launch()


class TritonFp8(Fp8Kernel):
    """The Triton kernel, with the fastest of its configs; V is transposed beforehand."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        sys.path.insert(0, sys.argv[1])
        import triton_fp8

        q, k, v = self.tensors
        output = torch.empty(q.shape, device="cuda", dtype=torch.bfloat16)
        shared = (q, k, v.transpose(2, 3).contiguous(), output, torch.tensor(self.scales, device="cuda"))
        launchers = [
            triton_fp8.launcher(config, *shared, self.scale, self.causal) for config in triton_fp8.CONFIGS[q.shape[3]]
        ]
        for launch in launchers:
            launch()
        self.launch = min(launchers, key=lambda launch: min(between_events(launch) for _ in range(5)))


class CudnnFp8(Fp8Kernel):
    """cuDNN's FP8 attention, through its frontend for Python; the output is E4M3 with a scale too."""

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        import cudnn

        fp8, f32 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
        handle = cudnn.create_handle()
        graph = cudnn.pygraph(io_data_type=fp8, intermediate_data_type=f32, compute_data_type=f32, handle=handle)
        output = torch.empty_like(self.tensors[0])
        number = lambda value: torch.full((1, 1, 1, 1), float(value), device="cuda")
        # Softmax weights are scaled by 256 on their way into E4M3.
        numbers = dict(zip(("descale_q", "descale_k", "descale_v"), map(number, self.scales)))
        numbers |= {"descale_s": number(1 / 256), "scale_s": number(256), "scale_o": number(1)}
        places = {}

        def tensor(name, values, data_type):
            uid = len(places) + 1
            places[uid] = values
            dim, stride = list(values.shape), list(values.stride())
            return graph.tensor(name=name, dim=dim, stride=stride, data_type=data_type, uid=uid)

        operands = {name: tensor(name, values, fp8) for name, values in zip("qkv", self.tensors)}
        operands |= {name: tensor(name, value, f32) for name, value in numbers.items()}
        if self.causal:
            operands |= {"diagonal_alignment": cudnn.diagonal_alignment.TOP_LEFT, "right_bound": 0}
        made = graph.sdpa_fp8(**operands, generate_stats=False, attn_scale=self.scale)
        largest = [number(0), number(0)]
        for result, values, data_type in zip((made[0], *made[2:]), (output, *largest), (fp8, f32, f32)):
            uid = len(places) + 1
            places[uid] = values
            result.set_uid(uid).set_output(True).set_data_type(data_type)
            result.set_dim(list(values.shape)).set_stride(list(values.stride()))
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        workspace = torch.empty(max(graph.get_workspace_size(), 16), device="cuda", dtype=torch.uint8)

        def launch():
            cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
            graph.execute(places, workspace, handle=handle)
            return output

        launch()
        torch.cuda.synchronize()
        # The scale of the output is known after a first run.
        self.output_scale = 448 / max(float(largest[1]), 1e-30)
        numbers["scale_o"].fill_(self.output_scale)
        self.launch = launch

    def poison(self, result):
        result.view(torch.uint8).fill_(0x7F)

    def values(self, result):
        return result.float() / self.output_scale


def found(module):
    """The module of a package that may not be there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RuntimeError(f"not found: this Python has no {module} ({error})") from None


class Fa3Fp8(Fp8Kernel):
    """FlashAttention-3, whose tensors have heads behind rows."""

    def __init__(self, inputs, options):
        flash = found("flash_attn_interface")
        super().__init__(inputs, options)
        q, k, v = (part.transpose(1, 2).contiguous() for part in self.tensors)
        batch, heads = self.tensors[0].shape[:2]
        scales = [torch.full((batch, heads), scale, device="cuda") for scale in self.scales]
        names = dict(zip(("q_descale", "k_descale", "v_descale"), scales))

        def launch():
            result = flash.flash_attn_func(q, k, v, softmax_scale=self.scale, causal=self.causal, **names)
            return (result[0] if isinstance(result, tuple) else result).transpose(1, 2)

        self.launch = launch


class Sage(Kernel):
    """SageAttention, which quantises bf16 inputs in the call, as its users have it do."""

    # Some of its kernels go to the default stream, whichever is current.
    capturable = False

    def __init__(self, inputs, options):
        self.sage = found("sageattention")
        q, k, _ = inputs
        if q.shape != k.shape:
            raise ValueError("asked for as many queries as keys, and as many heads, alone")
        self.inputs = [part.to(torch.bfloat16) for part in inputs]
        self.options = {"is_causal": options["is_causal"], "sm_scale": options["scale"], "tensor_layout": "HND"}

    def attend(self):
        return self.sage.sageattn(*self.inputs, **self.options)


def to_fp8(values):
    """E4M3 with one scale. Values that are FP8 numbers already, of a scale that is near, stay what they are."""
    largest = values.abs().max()

    def rounded(largest_code):
        scale = largest / largest_code
        codes = (values / scale).to(torch.float8_e4m3fn)
        return (codes.float() * scale - values).norm(), codes, scale

    _, codes, scale = min((rounded(largest_code) for largest_code in (448.0, 256.0)), key=lambda one: float(one[0]))
    return codes.contiguous(), float(scale)


class Captured:
    """One kernel: a graph of launches, and single launches."""

    def __init__(self, kernel, launches):
        self.kernel, self.launches, self.kept = kernel, launches, {}
        # Warm-up on another stream, as a capture demands: kernels are chosen and loaded, workspaces allocated.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), kernel.context():
            for _ in range(3):
                self.result = kernel.attend()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        with kernel.context():
            milliseconds = between_events(self.keep_result) / 1e6
        if milliseconds > LONGEST_LAUNCH_MS:
            raise RuntimeError(f"a launch takes {milliseconds:.0f} ms, too long to take turns with the others")
        if kernel.capturable:
            graph = torch.cuda.CUDAGraph()
            with kernel.context(), torch.cuda.graph(graph):
                self.attend_all()
            self.replay_all = graph.replay
        else:
            self.replay_all = self.attend_all
        self.replay_all()
        torch.cuda.synchronize()

    def attend_all(self):
        for _ in range(self.launches):
            self.graph_result = self.kernel.attend()

    def result_of(self, timer):
        return self.graph_result if timer == "graph_replay" else self.result

    def replay(self, iterations):
        """Nanoseconds of a launch: the time of a replay over the number of launches in it."""
        with torch.inference_mode():
            # Whatever an earlier block left must not count as this one's work.
            self.kernel.poison(self.graph_result)
        torch.cuda.synchronize()
        with self.kernel.context():
            return [round(between_events(self.replay_all) / self.launches) for _ in range(iterations)]

    def launch(self, iterations, flush_bytes):
        """Nanoseconds of single launches, each on an idle device."""
        times = []
        torch.cuda.synchronize()
        with self.kernel.context():
            for _ in range(iterations):
                empty_caches(flush_bytes, "cuda")
                times.append(round(between_events(self.keep_result)))
        return times

    def keep_result(self):
        self.result = self.kernel.attend()


def between_events(work):
    """Nanoseconds of device time from before the work to after it; the device is idle again when this returns."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e6


class GatheredAttention:
    """Attention to what a server's cache holds, gathered beforehand: packed K and V in bf16, in copies that take turns."""

    def load(self, file, heads, head_dim, queries, keys, code_scale, scale, copies):
        # The graphs of the inputs before hold their memory.
        self.ways = {}
        self.caches = None
        data = bytearray(os.path.getsize(file))
        with open(file, "rb") as stream:
            stream.readinto(data)
        values, codes = sum(queries) * heads[0] * head_dim, sum(keys) * heads[1] * head_dim
        q = torch.frombuffer(data, dtype=torch.float32, count=values).to("cuda").to(torch.bfloat16)

        def cache(index):
            part = torch.frombuffer(data, dtype=torch.uint8, count=codes, offset=4 * values + index * codes).to("cuda")
            return (part.view(torch.float8_e4m3fn).to(torch.bfloat16) * code_scale).view(sum(keys), heads[1], head_dim)

        self.q, self.queries, self.keys, self.copies = q.view(sum(queries), heads[0], head_dim), queries, keys, copies
        self.caches = [cache(0), cache(1)]
        self.alike = len(set(queries)) == 1 and len(set(keys)) == 1
        self.scale, self.grouped = scale, heads[0] != heads[1]
        # Q, and copies of K and V, by heads and by sequence, once they are asked for.
        self.by_heads = None
        torch.cuda.synchronize()
        return {}

    def split(self, packed, counts):
        """[sequence, head, token, channel]: one tensor where sequences are alike, else one for each."""
        if self.alike:
            parts = [packed.view(len(counts), counts[0], *packed.shape[1:])]
        else:
            parts = [part[None] for part in packed.split(counts)]
        return [part.transpose(1, 2).contiguous() for part in parts]

    def of_heads(self):
        if self.by_heads is None:
            copies = [[self.split(part, self.keys) for part in self.caches]]
            while len(copies) < self.copies:
                copies.append([[part.clone() for part in side] for side in copies[0]])
            self.by_heads = (self.split(self.q, self.queries), copies)
        return self.by_heads

    def prepare(self, way, launches):
        """Every backend that computes this is captured, and the fastest stays."""
        makers = {
            "sdpa": [lambda name=name: GatheredSdpa(name, self) for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")],
            "varlen": [lambda: GatheredVarlen(self)],
        }[way]
        best, refusals = None, []
        for make in makers:
            try:
                captured = Captured(make(), launches)
                nanoseconds = round(min(between_events(captured.replay_all) for _ in range(5)))
            except Exception as error:
                refusals.append(str(error).split("\n")[0])
                continue
            if best is None or nanoseconds < best[0]:
                best = (nanoseconds, captured)
        if best is None:
            raise RuntimeError("; ".join(dict.fromkeys(refusals)))
        self.ways[way] = best[1]
        return {"what": best[1].kernel.what}

    def time(self, way, iterations):
        return {"ns": self.ways[way].replay(iterations)}

    def rows(self, way, places, width, file):
        """Rows of the last launch's output, by where they begin; all of it must be finite."""
        captured = self.ways[way]
        with torch.inference_mode():
            output = captured.kernel.packed(captured.graph_result).flatten()
            if not bool(output.isfinite().all()):
                raise ValueError("there are values that are not finite in its output")
            rows = torch.cat([output[place : place + width] for place in places])
            write_output(rows.float().cpu(), file)
        return {}


class GatheredSdpa(Kernel):
    """A backend of scaled_dot_product_attention, [sequence, head, token, channel]: one call where sequences are alike, else one for each."""

    def __init__(self, backend, batch):
        self.backend = getattr(SDPBackend, backend)
        calls = "one call" if batch.alike else f"{len(batch.keys)} calls"
        self.what = f"scaled_dot_product_attention, {backend} backend, {calls}"
        self.q, self.copies = batch.of_heads()
        self.options = [self.options_of(backend, *sizes, batch) for sizes in list(zip(batch.queries, batch.keys))[: len(self.q)]]
        self.next = 0

    def options_of(self, backend, query_len, key_len, batch):
        """The mask is aligned to the last key, where is_causal aligns it to the first."""
        options = {"scale": batch.scale}
        if batch.grouped:
            options["enable_gqa"] = True
        if query_len > 1 and query_len == key_len:
            options["is_causal"] = True
        elif query_len > 1 and backend == "FLASH_ATTENTION":
            options["attn_mask"] = importlib.import_module("torch.nn.attention.bias").causal_lower_right(query_len, key_len)
        elif query_len > 1:
            options["attn_mask"] = window_mask(query_len, key_len, True, None, None).to("cuda")
        return options

    def context(self):
        context = contextlib.ExitStack()
        context.enter_context(torch.inference_mode())
        context.enter_context(sdpa_kernel(self.backend))
        return context

    def attend(self):
        self.next = (self.next + 1) % len(self.copies)
        attention = torch.nn.functional.scaled_dot_product_attention
        return [attention(*parts, **options) for *parts, options in zip(self.q, *self.copies[self.next], self.options)]

    def poison(self, result):
        for part in result:
            part.fill_(float("nan"))

    def packed(self, result):
        """[row, head, channel], one sequence behind the other."""
        return torch.cat([part.transpose(1, 2).flatten() for part in result])


class GatheredVarlen(Kernel):
    """torch.nn.attention.varlen: sequences of different lengths in one call."""

    what = "varlen_attn, one call"

    def __init__(self, batch):
        self.function = found("torch.nn.attention.varlen").varlen_attn
        known = inspect.signature(self.function).parameters
        ends = [torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32, device="cuda") for counts in (batch.queries, batch.keys)]
        self.q, self.rest = batch.q, (*ends, max(batch.queries), max(batch.keys))
        # Named otherwise in each version; all of them align the mask to the last key.
        self.options = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
        if "scale" in known:
            self.options["scale"] = batch.scale
        if batch.grouped and "enable_gqa" in known:
            self.options["enable_gqa"] = True
        self.copies = [batch.caches]
        while len(self.copies) < batch.copies:
            self.copies.append([part.clone() for part in batch.caches])
        self.next = 0

    def attend(self):
        self.next = (self.next + 1) % len(self.copies)
        return self.function(self.q, *self.copies[self.next], *self.rest, **self.options)

    def packed(self, result):
        return result


attention, on_cuda, gathered = Attention(), CudaAttention(), GatheredAttention()
commands = {
    "load": attention.load,
    "time": attention.time,
    "output": attention.output,
    "load_cuda": on_cuda.load,
    "prepare_cuda": on_cuda.prepare,
    "time_cuda": on_cuda.time,
    "output_cuda": on_cuda.output,
    "keep_cuda": on_cuda.keep,
    "same_cuda": on_cuda.same,
    "load_gathered": gathered.load,
    "prepare_gathered": gathered.prepare,
    "time_gathered": gathered.time,
    "rows_gathered": gathered.rows,
}
device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
answer(version=torch.__version__, cuda=device)
for line in sys.stdin:
    try:
        request = json.loads(line)
        answer(**commands[request.pop("command")](**request))
    except Exception as error:
        answer(error=f"{type(error).__name__}: {error}")
