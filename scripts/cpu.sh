#!/usr/bin/env bash
# Makes, on a quiet machine with AVX-512, the records of the CPU kernel that the README and the book show.
#
#   scripts/cpu.sh OUT [SECTION]...
#
# OUT gets the records. Afterwards `eightfold records --adopt OUT` puts them into results/ by topic, removes what they
# replace, and writes the pages anew.
# SECTIONs, ladder, bench and decode unless some are named, and before where BEFORE is:
#   ladder  every stage on the standard shapes: gates, timing, verdicts
#   bench   the number paths on six shapes beside PyTorch in f32, bf16 and f16, without a mask and causal
#   decode  one query of each sequence, in tensors and in pages, beside reading K and V alone: from the caches, and from memory
#   before  an older binary against this one on the same shapes, with what each chooses; a regression is a failure
#   plant   ten tries each of a planted slowdown, a planted speed-up and nothing planted: does compare tell?
#
# Environment:
#   EIGHTFOLD  the binary [default: target/release/eightfold, which is built if there is none]
#   BEFORE     the older binary
#   PYTHON     the Python that has PyTorch, and numpy [default: python3]
#   THREADS    threads, ours and PyTorch's [default: all cores]
#
# Exits with 0 if everything holds, 1 if a gate failed or a shape became slower, 2 on a mistake.
set -uo pipefail

usage() { sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'; }

if [ $# -lt 1 ] || [ "$1" = "-h" ] || [ "$1" = "--help" ]; then
    usage
    exit 2
fi
out=$(realpath -m "$1")
shift
[ -n "${EIGHTFOLD:-}" ] && EIGHTFOLD=$(realpath -m "$EIGHTFOLD")
[ -n "${BEFORE:-}" ] && BEFORE=$(realpath -m "$BEFORE")
sections=${*:-ladder bench decode ${BEFORE:+before}}
cd "$(dirname "$0")/.." || exit 2
eightfold=${EIGHTFOLD:-$PWD/target/release/eightfold}
if [ ! -x "$eightfold" ]; then
    cargo build --release || exit 2
fi
options=(--records "$out" --threads "${THREADS:-$(nproc)}")
variants=('cpu:int16-avx512,tile_keys=512' cpu:avx512 cpu:int16-avx2 cpu:avx2)
shapes=(small mission mission_b2 long '1,8,512,128' '1,32,4,1,8192,128')
# One head of K and V for each query head, groups of 4, of 8, and narrow heads.
decoding=('1,8,8,1,8192,128' '1,32,8,1,8192,128' '1,32,4,1,8192,128' '1,8,8,1,8192,64')
# More than the caches hold.
from_memory=('1,8,8,1,65536,128' '1,32,8,1,65536,128')
status=0

# Keeps the worst exit code.
keep() {
    [ "$1" -gt "$status" ] && status=$1
    return 0
}

check() {
    "$@"
    keep $?
}

# The binary of before against this one at a shape. That it is not faster is no failure, a regression is one.
compare_at() {
    local told
    # By names alone: what a record calls a binary must say nothing of the machine.
    told=$(cd "$binaries" && ./now compare before now --shape "$@" --rounds 40 "${options[@]}")
    keep $?
    printf '%s\n' "$told"
    [[ $told == *REGRESSION* ]] && keep 1
    return 0
}

mkdir -p "$out"
for section in $sections; do
    printf '\n== %s (load %s)\n' "$section" "$(cut -d' ' -f1 /proc/loadavg 2>/dev/null)"
    case $section in
    ladder)
        check "$eightfold" ladder --kernel cpu "${options[@]}"
        ;;
    bench)
        for mask in "" --causal; do
            check "$eightfold" bench --variant "${variants[@]}" --shape "${shapes[@]}" $mask \
                --peer torch --python "${PYTHON:-python3}" "${options[@]}"
        done
        ;;
    decode)
        check "$eightfold" bench --shape "${decoding[@]}" --pages 16 64 "${options[@]}"
        check "$eightfold" bench --shape "${from_memory[@]}" --pages 16 64 --iterations 20 "${options[@]}"
        ;;
    before)
        if [ ! -x "${BEFORE:-}" ]; then
            echo "BEFORE must name an older binary of eightfold" >&2
            exit 2
        fi
        binaries=$(mktemp -d)
        trap 'rm -rf "$binaries"' EXIT
        ln -s "$BEFORE" "$binaries/before"
        ln -s "$eightfold" "$binaries/now"
        for shape in "${shapes[@]}"; do
            compare_at "$shape"
        done
        for shape in mission long '1,8,512,128'; do
            compare_at "$shape" --causal
        done
        ;;
    plant)
        EIGHTFOLD=$eightfold check scripts/plant.sh "$out" cpu:avx512 --shape mission --threads "${THREADS:-$(nproc)}"
        ;;
    *)
        echo "there is no section $section; scripts/cpu.sh --help lists them" >&2
        exit 2
        ;;
    esac
done
exit "$status"
