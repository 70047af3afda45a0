#!/bin/sh
# A mutator for `eightfold evolve --mutator examples/mutator.sh`: an idea after the other, each applied to the best so far.
#
# It gets one JSON object on standard input (the problem, the knobs and their values, the elite and what became of them,
# the latest failures, insights, and the kernel's source where that is compiled at run time) and prints one:
#   {"config": "knob=value,…"}    knobs that are not named stay the best candidate's
#   {"source": "…"}               a whole kernel, where the kernel is compiled at run time
# with, if it likes, "cost" (a number, summed up in the record) and "note". Anything else is an outcome like any other.
# A program that asks a language model would put the object into its prompt here.
bundle=$(cat)
trial=$(printf '%s' "$bundle" | sed 's/.*"trial":\([0-9]*\),"problem".*/\1/')
case $bundle in
*'"kernel":"cpu"'*) set -- tile_keys=512 tile_queries=128 tile_queries=32 schedule=static tile_keys=128 simd=avx2 ;;
*) set -- tile_keys=64 copy=async3 tile_queries=64,warps=4 schedule=persistent tile_keys=128 exp=poly ;;
esac
# Called for every fourth trial: another idea each time.
shift $((trial / 4 % $#))
printf '{"config": "%s", "cost": 0.001, "note": "idea for trial %s"}\n' "$1" "$trial"
