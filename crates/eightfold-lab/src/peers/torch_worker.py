"""PyTorch's CPU attention behind JSON lines: one request per line on stdin, one answer per line on stdout."""

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


class Attention:
    def load(self, file, query_dims, key_dims, causal, scale, threads):
        torch.set_num_threads(threads)
        query_len, key_len = query_dims[2], key_dims[2]
        if causal and query_len != key_len and query_len != 1:
            # is_causal aligns the mask to the top left; the problem's is aligned to the bottom right.
            raise ValueError("is_causal means another mask where query and key lengths differ")
        with open(file, "rb") as stream:
            values = torch.frombuffer(bytearray(stream.read()), dtype=torch.float32)
        counts = [torch.Size(dims).numel() for dims in (query_dims, key_dims, key_dims)]
        parts = values.split(counts)
        self.inputs = [part.view(dims) for part, dims in zip(parts, (query_dims, key_dims, key_dims))]
        self.options = {"is_causal": causal and query_len > 1, "scale": scale}
        if query_dims[1] != key_dims[1]:
            self.options["enable_gqa"] = True
        self.result = None
        return {"threads": torch.get_num_threads()}

    def run(self):
        with torch.inference_mode(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            self.result = torch.nn.functional.scaled_dot_product_attention(*self.inputs, **self.options)

    def time(self, iterations):
        """Runs and times; entering the context managers is not part of the kernel, so it is done once."""
        attention = torch.nn.functional.scaled_dot_product_attention
        inputs, options, times = self.inputs, self.options, []
        with torch.inference_mode(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            for _ in range(iterations):
                start = time.perf_counter_ns()
                self.result = attention(*inputs, **options)
                times.append(time.perf_counter_ns() - start)
        return {"ns": times}

    def output(self, file):
        """Writes the result of the last run, timed or not."""
        if self.result is None:
            self.run()
        flat = self.result.contiguous().view(-1)
        with open(file, "wb") as stream:
            stream.write(bytes(flat.view(torch.uint8).untyped_storage()))
        return {}


attention = Attention()
commands = {"load": attention.load, "time": attention.time, "output": attention.output}
answer(version=torch.__version__)
for line in sys.stdin:
    try:
        request = json.loads(line)
        answer(**commands[request.pop("command")](**request))
    except Exception as error:
        answer(error=f"{type(error).__name__}: {error}")
