#!/usr/bin/env python3
"""A mutator that stands for a language model: it knows 26 changes of the ladder kernel's sources, good and bad.

    eightfold evolve --kernel ladder --baseline ladder:baseline --mutator examples/mutator_scripted.py

It gets what the search knows on standard input, and prints the next change: better ones, right but slower ones, wrong ones,
races, deadlocks, what does not compile or compiles for ever, and answers that are none. `--list` names them; `--only NAME,…`
keeps to some, in this order. Which is next is counted in the search's folder.
"""

import argparse
import json
import pathlib
import sys

ATTENTION = "ladder/attention.cu"
LOAD = "ladder/load.cuh"
PIPELINE = "ladder/pipeline.cuh"
SOFTMAX = "ladder/softmax.cuh"
STORE = "ladder/store.cuh"
VALUES = "ladder/values.cuh"


def edit(file, before, after):
    return {"file": file, "before": before, "after": after}


# Two to the power of 40 templates: nobody lives to see the end.
ENDLESS = """template <int DEPTH, long long PATH>
struct Endless {
    static constexpr int value = Endless<DEPTH - 1, 2 * PATH>::value + Endless<DEPTH - 1, 2 * PATH + 1>::value;
};
template <long long PATH>
struct Endless<0, PATH> {
    static constexpr int value = 0;
};
static_assert(Endless<40, 1>::value == 0, "never known");
"""


def with_header(name, text):
    """A new file, included where everything else is."""
    line = '#include "ladder/dump.cuh"\n'
    return {"files": {name: text}, "edits": [edit(ATTENTION, line, f'#include "{name}"\n{line}')]}


# Name, kind, what is printed: a JSON object, or raw bytes, or an exit code.
CHANGES = [
    # Better.
    ("rows are read once, at the end", "good", {"edits": [
        edit(ATTENTION, "            rows.read(shared_rows, row_warp, lane);\n", ""),
        edit(ATTENTION, "        if constexpr (SOFTMAX == SOFTMAX_FUSED) rows.gather();",
             "        if constexpr (SOFTMAX == SOFTMAX_FUSED) rows.gather();\n"
             "        if constexpr (SOFTMAX != SOFTMAX_FUSED) rows.read(shared_rows, row_warp, lane);")]}),
    ("weights are read two at a time", "good", {"edits": [
        edit(VALUES, "        for (int key = 0; key < TILE_KEYS; ++key) {\n            float weight = to_float(weights[key]);",
             "        unsigned two = 0;\n        for (int key = 0; key < TILE_KEYS; ++key) {\n"
             "            if (key % 2 == 0) two = *reinterpret_cast<const unsigned*>(weights + key);\n"
             "            float weight = to_float(static_cast<unsigned short>(two >> 16 * (key % 2)));")]}),
    ("values are read two at a time", "good", {"edits": [
        edit(VALUES, "                for (int i = 0; i < COUNT; ++i) {\n                    unsigned offset",
             "                for (int i = 0; i < COUNT; i += 2) {\n                    unsigned offset"),
        edit(VALUES, "                    value[i] =\n                        fmaf(weight, to_float(*reinterpret_cast<const unsigned short*>"
                     "(tile + offset)), value[i]);",
             "                    Floats2 both = to_floats(*reinterpret_cast<const unsigned*>(tile + offset));\n"
             "                    value[i] = fmaf(weight, both.low, value[i]);\n"
             "                    value[i + 1] = fmaf(weight, both.high, value[i + 1]);")]}),
    ("nobody waits before the first tile", "good", {"edits": [
        edit(PIPELINE, "            sync_compute_warps();  // everyone is done with the tile before\n            copy_tile",
             "            if (tile > 0) sync_compute_warps();  // everyone is done with the tile before\n            copy_tile")]}),
    # Right, and no better.
    ("one more barrier of the warp", "slower", {"edits": [
        edit(SOFTMAX, "        __syncwarp();  // weights may lie where the scores were",
             "        __syncwarp();\n        __syncwarp();  // weights may lie where the scores were")]}),
    ("one more barrier of the block", "slower", {"edits": [
        edit(PIPELINE, "            copy_tile(problem, work, tile, shared, thread);",
             "            copy_tile(problem, work, tile, shared, thread);\n            sync_compute_warps();")]}),
    ("the maximum is read twice", "slower", {"edits": [
        edit(SOFTMAX, "        float before = shared.maximum(row);",
             "        float before = fmaxf(shared.maximum(row), *const_cast<volatile float*>(&shared.maximum(row)));")]}),
    # Do not compile.
    ("a comma is lost", "bad", {"edits": [edit(STORE, "RowEnd end(problem, query, row < 8", "RowEnd end(problem query, row < 8")]}),
    ("a name that nobody declared", "bad", {"edits": [edit(STORE, "value_scale / normaliser", "value_scale / no_such_name")]}),
    ("a promise that does not hold", "bad", with_header("ladder/promise.cuh", "static_assert(1 == 2, \"never\");\n")),
    ("the compiler never ends", "bad", with_header("ladder/endless.cuh", ENDLESS)),
    ("a stack of its own", "bad", {"edits": [
        edit(VALUES, "        float correction = shared.correction(warp * WARP_ROWS + row(lane)) * unit_change;",
             "        volatile float waste[2048];\n        waste[lane * 7 % 2048] = 1.0f;\n"
             "        float correction = shared.correction(warp * WARP_ROWS + row(lane)) * unit_change * waste[lane * 7 % 2048];")]}),
    # Compile, and are wrong.
    ("earlier sums are not corrected", "bad", {"edits": [
        edit(SOFTMAX, "shared.sum(row) = fmaf(shared.sum(row), correction, sum);", "shared.sum(row) += sum;")]}),
    ("the mask is off by one", "bad", {"edits": [edit(SOFTMAX, "if (key >= end ||", "if (key > end ||")]}),
    ("weights against the maximum before", "bad", {"edits": [
        edit(SOFTMAX, "float shift = WEIGHT_EXPONENT - maximum, sum = 0.0f;\n        __syncwarp();",
             "float shift = WEIGHT_EXPONENT - before, sum = 0.0f;\n        __syncwarp();")]}),
    ("nobody waits for the tile", "bad", {"edits": [
        edit(PIPELINE, "            copy_tile(problem, work, tile, shared, thread);\n            sync_compute_warps();",
             "            copy_tile(problem, work, tile, shared, thread);")]}),
    ("one lane waits for all", "bad", {"edits": [
        edit(SOFTMAX, "        if (lane == 0) {\n            float correction",
             "        if (lane == 0) {\n            __syncthreads();\n            float correction")]}),
    ("the loop never ends", "bad", {"edits": [
        edit(ATTENTION, "for (int tile = work.first_tile(problem); tile < work.last_tile; ++tile) visit(tile);",
             "for (int tile = work.first_tile(problem); tile < work.last_tile;) visit(tile);")]}),
    ("stores far outside", "bad", {"edits": [
        edit(STORE, "problem.output.place(work.batch, work.head, row.query) + channel;",
             "problem.output.place(work.batch, work.head, row.query) + channel + (1ll << 36);")]}),
    # Cannot be tried.
    ("a path outside", "bad", {"files": {"../../evil.cu": "x"}}),
    ("a patch that stands nowhere", "bad", {"edits": [edit(STORE, "this stands nowhere", "x")]}),
    ("an include that leads nowhere", "bad", {"edits": [
        edit(ATTENTION, '#include "ladder/dump.cuh"', '#include "ladder/nowhere.cuh"\n#include "ladder/dump.cuh"')]}),
    ("a gigabyte", "bad", 1 << 30),
    ("no text", "bad", b'{"note": "\xff\xfe"}'),
    ("no JSON", "bad", b"Sure! Here is a faster kernel:"),
    ("no answer", "bad", None),
]


def applies(change, sources):
    """Whether every edit stands once in the sources as they are: what was made already is not made again."""
    edits = change.get("edits", [])
    return all(sources.get(one["file"], "").count(one["before"]) == 1 for one in edits)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--list", action="store_true", help="name the changes and end")
    arguments.add_argument("--only", help="names of changes, with commas between")
    given = arguments.parse_args()
    known = {name: (kind, change) for name, kind, change in CHANGES}
    if given.list:
        print("\n".join(f"{kind}\t{name}" for name, kind, _ in CHANGES))
        return
    # Their names have commas.
    names = [name for name in known if name in given.only] if given.only else list(known)
    bundle = json.load(sys.stdin)
    place = pathlib.Path(bundle.get("folder", ".")) / "scripted.count"
    count = int(place.read_text()) if place.exists() else 0
    for turn in range(count, count + len(names)):
        name = names[turn % len(names)]
        kind, change = known[name]
        # Good changes that are in the parent already would not apply; bad answers are always possible.
        if kind == "bad" or applies(change, bundle["sources"]):
            break
    place.write_text(str(turn + 1))
    if change is None:
        sys.exit("there is no model here")
    if isinstance(change, int):
        block = b"x" * (1 << 20)
        while change > 0:
            sys.stdout.buffer.write(block)
            change -= len(block)
    elif isinstance(change, bytes):
        sys.stdout.buffer.write(change)
    else:
        print(json.dumps({"note": name, "cost": 0.001, **change}))


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        # Nobody listens any longer.
        sys.stderr.close()
