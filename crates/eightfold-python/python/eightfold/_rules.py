"""What holds for every framework: words, shapes, and errors that name the argument and the fix."""

from __future__ import annotations

import math
import numbers

ACCURACIES = ("fast", "balanced", "exact-exp", "precise")
LAYOUTS = ("NHD", "HND")
INPUT_FORMATS = ("auto", "e4m3", "int8")

Sizes = tuple  # batch, query heads, key heads, queries, keys, channels of q and k, channels of v


def check_layout(tensor_layout: str) -> None:
    if tensor_layout not in LAYOUTS:
        raise ValueError(f'tensor_layout: {tensor_layout!r} is not a layout; say "NHD" or "HND"')


def check_words(tensor_layout: str, accuracy: str) -> None:
    check_layout(tensor_layout)
    if accuracy not in ACCURACIES:
        raise ValueError(f"accuracy: {accuracy!r} is not a mode; say one of {', '.join(ACCURACIES)}")


def check_input_format(input_format: str, is_fp8: bool) -> None:
    if input_format not in INPUT_FORMATS:
        raise ValueError(f"input_format: {input_format!r} is not a format; say one of {', '.join(INPUT_FORMATS)}")
    if is_fp8 and input_format != "auto":
        raise ValueError("input_format: says what values are quantised to, and q is FP8 already; leave it out")


def check_validate(validate: bool, is_fp8: bool) -> None:
    if validate and is_fp8:
        raise ValueError("validate: looks at f32, f16 and bf16, and q is FP8 already; leave it out")


def scoring_of(is_causal, sm_scale, window_size, softcap, sinks=None) -> dict:
    """Which keys are seen and how they are weighted, as the native module takes it."""
    check_scale(sm_scale)
    # Compilers that trace this know int and float, but not what numpy's are, and compare where they cannot ask isfinite.
    if not (isinstance(softcap, (int, float)) or isinstance(softcap, numbers.Real)) or not 0 <= softcap < math.inf:
        raise ValueError(f"softcap: {softcap!r} is not a finite number from 0; leave it at 0 for none")
    window = (-1, -1) if window_size is None else tuple(window_size)
    if len(window) != 2 or not all(isinstance(side, int) and side >= -1 for side in window):
        raise ValueError(
            f"window_size: {window_size!r} is not a pair of numbers of keys before and after a query's own; say -1 for a side that is open"
        )
    return dict(causal=bool(is_causal), sm_scale=sm_scale, window=window, softcap=softcap, sinks=sinks)


def check_scale(sm_scale) -> None:
    is_number = isinstance(sm_scale, (int, float)) or isinstance(sm_scale, numbers.Real)
    if sm_scale is not None and not (is_number and math.isfinite(sm_scale) and sm_scale > 0):
        raise ValueError(f"sm_scale: {sm_scale!r} is not a finite positive number; leave it out for 1/sqrt(head dim)")


def check_sinks(shape, heads) -> None:
    if tuple(shape) != (heads,):
        raise ValueError(f"sinks: shape {tuple(shape)} is not one logit for each of the {heads} query heads; give them as ({heads},)")


def sizes_of(q_shape, k_shape, v_shape, tensor_layout: str) -> Sizes:
    """The sizes of a problem, if the shapes fit each other."""
    if len(q_shape) != 4 or len(k_shape) != 4 or len(v_shape) != 4:
        name, shape = next((n, s) for n, s in zip("qkv", (q_shape, k_shape, v_shape)) if len(s) != 4)
        order = "(batch, row, head, channel)" if tensor_layout == "NHD" else "(batch, head, row, channel)"
        raise ValueError(f"{name}: has {len(shape)} dimensions {tuple(shape)}; reshape it to {order}")
    if tuple(k_shape[:3]) != tuple(v_shape[:3]):
        raise ValueError(f"v: shape {tuple(v_shape)} is not that of k, {tuple(k_shape)}; give both the same shape, but for the channels")
    if tensor_layout == "NHD":
        (b, sq, hq, d), (kb, sk, hk, kd) = q_shape, k_shape
    else:
        (b, hq, sq, d), (kb, hk, sk, kd) = q_shape, k_shape
    if b != kb:
        raise ValueError(f"k: batch {kb} is not that of q, {b}; give q, k and v the same batch")
    if d != kd:
        raise ValueError(f"k: head dim {kd} is not that of q, {d}; give q, k and v the same head dim")
    if hk == 0 or hq % hk:
        raise ValueError(
            f"k: {hk} heads do not divide the {hq} heads of q; check tensor_layout={tensor_layout!r}, or repeat heads of k and v"
        )
    return b, hq, hk, sq, sk, d, v_shape[3]


def descales_missing(name: str) -> ValueError:
    return ValueError(
        f"{name}_descale: FP8 tensors mean nothing without their scales; pass the number (or one for each batch and key head) "
        "that its codes are multiplied by, 1.0 if that is so"
    )


def descales_unused(name: str) -> ValueError:
    return ValueError(
        f"{name}_descale: {name} is not FP8, so that nothing scales it; leave it out, or convert {name} to float8_e4m3fn"
    )
