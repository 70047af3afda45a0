"""What tests need: float64 attention in numpy, and which of torch and a GPU there are."""

import importlib.util
import os

import numpy as np
import pytest

# Before JAX comes in: it would take the memory of the device for itself.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

HAS_TORCH = importlib.util.find_spec("torch") is not None


def has_cuda():
    if not HAS_TORCH:
        return False
    import torch

    return torch.cuda.is_available()


def pytest_configure(config):
    config.addinivalue_line("markers", "torch: needs torch")
    config.addinivalue_line("markers", "cuda: needs torch and a CUDA device")


def pytest_collection_modifyitems(config, items):
    cuda = has_cuda()
    if os.environ.get("EIGHTFOLD_REQUIRE_DEVICE") and not cuda:
        pytest.exit("EIGHTFOLD_REQUIRE_DEVICE is set, but torch finds no CUDA device", returncode=1)
    for item in items:
        if ("torch" in item.keywords or "cuda" in item.keywords) and not HAS_TORCH:
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))
        elif "cuda" in item.keywords and not cuda:
            item.add_marker(pytest.mark.skip(reason="there is no CUDA device"))


def exact(q, k, v, causal=False, scale=None, window=(-1, -1), softcap=0.0, sinks=None):
    """Attention in float64 on (batch, head, row, channel), and the log-sum-exp."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = q @ k.swapaxes(2, 3) * (scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    rows, keys = scores.shape[2:]
    key, own = np.arange(keys)[None], np.arange(rows)[:, None] + keys - rows
    left, right = window[0], 0 if causal else window[1]
    hidden = ((left >= 0) & (key < own - left)) | ((right >= 0) & (key > own + right))
    scores = np.where(hidden, -np.inf, scores)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks, np.float64)[:, None, None] - top)
    return weights / total @ v, (np.log(total) + top)[..., 0]


def error(got, want):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    return np.linalg.norm(got - want) / np.linalg.norm(want)


def values(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
