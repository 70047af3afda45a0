"""What there is to run on, what would run and why, and what is prepared before it is needed."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import threading
from pathlib import Path

from . import _eightfold
from ._rules import check_input_format, check_words, scoring_of, sizes_of

_UNSET = object()
_settled = False
_lock = threading.Lock()
_nvrtc = None
_cache = _UNSET


def configure(*, nvrtc=None, cache=_UNSET):
    """Names the NVRTC that compiles kernels, and where they are kept for later processes.

    ``nvrtc`` is a library or a folder that holds one. ``cache`` is a folder, or ``None`` to keep nothing. Without this call
    ``EIGHTFOLD_NVRTC`` and ``EIGHTFOLD_CACHE`` are looked at, then NVRTC is the one that torch brought or the toolkit's, and the
    cache is the user's, as the ``eightfold`` command has it. Must come before anything runs on a device.

    >>> import eightfold
    >>> eightfold.configure(cache=None)
    """
    global _nvrtc, _cache
    with _lock:
        if _settled:
            raise RuntimeError("configure: a device was used already; call it before the first call on a device")
        _nvrtc = nvrtc if nvrtc is not None else _nvrtc
        _cache = cache if cache is not _UNSET else _cache


def settle():
    """Tells the native module where NVRTC and the cache are, once."""
    global _settled
    if _settled:
        return
    with _lock:
        if _settled:
            return
        nvrtc = _nvrtc or os.environ.get("EIGHTFOLD_NVRTC")
        cache = _cache_folder() if _cache is _UNSET else _cache
        _eightfold.configure(nvrtc=str(nvrtc) if nvrtc else None, folders=_site_folders(), cache=str(cache) if cache else None)
        _settled = True


def _cache_folder():
    named = os.environ.get("EIGHTFOLD_CACHE")
    if named:
        return named
    base = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(base) if os.path.isabs(base) else (Path(os.environ["HOME"]) / ".cache" if os.environ.get("HOME") else None)
    return base / "eightfold" / "cubins" if base else None


def _site_folders():
    """Folders in which wheels of NVIDIA put NVRTC: those of this Python's packages."""
    try:
        found = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        found = None
    places = list(found.submodule_search_locations or []) if found else []
    folders = [str(Path(place).parent) for place in places]
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch, "__file__", None):
        # Wheels of torch that bring CUDA with them.
        folders.append(str(Path(torch.__file__).parent / "lib"))
    return [folder for folder in folders if os.path.isdir(folder)]


def _shapes(q, k, v, tensor_layout):
    shape = lambda x: tuple(getattr(x, "shape", x))  # noqa: E731
    return sizes_of(shape(q), shape(k), shape(v), tensor_layout)


def device_of(q):
    """The number of the CUDA device that a tensor is on, which can then be asked; ``None`` for the CPU."""
    own = getattr(q, "device", None)
    if getattr(own, "type", "cpu") != "cuda":
        return None
    settle()
    return own.index


def explain(
    q, k=None, v=None, *, tensor_layout="NHD", is_causal=False, window_size=(-1, -1), softcap=0.0, sinks=None, accuracy="fast", input_format="auto",
    fp8=None, device=None,
):  # fmt: skip
    """Every kernel that is considered for a call, the one that runs first, with reasons; then, for tensors that are quantised in the
    call, to what, and why.

    ``q``, ``k`` and ``v`` are tensors or shapes; k and v are as q where they are left out. ``device`` is ``"cpu"`` or the number
    of a CUDA device, and where it is left out that of q.

    >>> import eightfold
    >>> print(eightfold.explain((1, 512, 8, 64), device="cpu").splitlines()[0].split(":")[0])
    runs  cpu
    """
    check_words(tensor_layout, accuracy)
    k = q if k is None else k
    v = k if v is None else v
    sizes = _shapes(q, k, v, tensor_layout)
    if fp8 is None:
        fp8 = "float8" in str(getattr(q, "dtype", ""))
    if device is None:
        ordinal = device_of(q)
    else:
        ordinal = None if device == "cpu" else int(str(device).rsplit(":", 1)[-1])
        if ordinal is not None:
            settle()
    # Whether there are some decides, and not what they are.
    scoring = scoring_of(is_causal, None, window_size, softcap, None if sinks is None else [])
    check_input_format(input_format, bool(fp8))
    common = dict(scoring=scoring, accuracy=accuracy, input_format=input_format)
    considered = _eightfold.explain(ordinal, sizes, output="bf16", fp8=bool(fp8), **common)
    lines = [f"{'runs' if chosen else 'no  '}  {name}: {reason}" for name, chosen, reason in considered]
    if not fp8:
        lines.append(f"quantises q and k to {_eightfold.choose_format(ordinal, sizes, **common)[1]}")
    return "\n".join(lines)


def warmup(shapes, *, dtype=None, tensor_layout="NHD", device="cuda", **settings):
    """Compiles and plans calls before they are needed, for example before a graph is captured; returns the kernels.

    ``shapes`` is a list of shapes of q, or of (q, k, v). The plans are those of tensors without gaps; ``settings`` are those of
    :func:`eightfold.attention`.

    >>> import eightfold, importlib.util
    >>> eightfold.warmup([])
    []
    """
    names = []
    for shape in shapes:
        import torch

        from . import _torch

        shape = tuple(shape)
        three = shape if isinstance(shape[0], (tuple, list)) else (shape, shape, shape)
        q, k, v = (torch.zeros(tuple(one), dtype=dtype or torch.bfloat16, device=device) for one in three)
        from ._attention import attention

        with torch.no_grad():
            before = set(map(id, _torch._plans.values()))
            attention(q, k, v, tensor_layout=tensor_layout, **settings)
        new = [plan for plan in _torch._plans.values() if id(plan) not in before]
        names += [plan.native.variant for plan in new]
    return names


def doctor():
    """What there is on this machine, and what is missing, as text.

    >>> import eightfold
    >>> eightfold.doctor().splitlines()[0].startswith("eightfold ")
    True
    """
    settle()
    instructions = zip(("AVX2", "AVX-512", "VNNI", "AMX"), _eightfold.cpu())
    name = platform.processor() or platform.machine()
    levels = [level for level, there in instructions if there] or ["no wide vectors"]
    lines = [
        f"eightfold {_eightfold.__version__}, Python {platform.python_version()}",
        f"CPU      {name}: {', '.join(levels)}",
    ]
    torch = sys.modules.get("torch")
    if torch is not None:
        lines.append(f"torch    {torch.__version__}")
    elif importlib.util.find_spec("torch") is not None:
        lines.append("torch    installed, not imported")
    else:
        lines.append("torch    not installed: numpy arrays on the CPU alone")
    try:
        lines += [
            f"device   {number}: {name}, compute capability {capability[0]}.{capability[1]}, {count} multiprocessors"
            for number, name, capability, count in _eightfold.devices()
        ]
    except (RuntimeError, ValueError) as error:
        lines.append(f"device   {error}")
    try:
        lines.append(f"compiler {_eightfold.compiler()}")
    except (RuntimeError, ValueError) as error:
        lines.append(f"compiler {str(error).splitlines()[0]}")
    cache = _cache_folder() if _cache is _UNSET else _cache
    lines.append(f"cache    {cache if cache else 'none: kernels are compiled in every process'}")
    return "\n".join(lines)
