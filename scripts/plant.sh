#!/usr/bin/env bash
# Puts the comparison itself to the test: a variant against itself, ten times each with a slowdown of 5 % planted in one of
# the two, with a speed-up of 5 %, and with nothing.
#
#   scripts/plant.sh OUT VARIANT [OPTION of eightfold compare]...
#
# OUT gets the three records. A slowdown must be a REGRESSION, a speed-up must pass, and nothing must be called no
# gain: a valid negative.
#
# Environment:
#   EIGHTFOLD  the binary [default: target/release/eightfold, which is built if there is none]
#   TRIES      how often [default: 10]
#
# Exits with 0 if every try was right, 1 if one was not, 2 on a mistake.
set -uo pipefail

if [ $# -lt 2 ] || [ "$1" = "-h" ] || [ "$1" = "--help" ]; then
    sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'
    exit 2
fi
out=$(realpath -m "$1")
variant=$2
shift 2
[ -n "${EIGHTFOLD:-}" ] && EIGHTFOLD=$(realpath -m "$EIGHTFOLD")
cd "$(dirname "$0")/.." || exit 2
eightfold=${EIGHTFOLD:-$PWD/target/release/eightfold}
if [ ! -x "$eightfold" ]; then
    cargo build --release || exit 2
fi
tries=${TRIES:-10}
failed=0

# Compares, and counts the verdicts that read as they should.
try() {
    local name=$1 expected=$2 said right
    shift 2
    said=$("$eightfold" compare "$variant" "$variant" --wide --tries "$tries" --records "$out" "$@")
    if [ $? -gt 1 ] && [ -z "$said" ]; then exit 2; fi
    right=$(printf '%s\n' "$said" | grep -cE "$expected")
    printf '%-18s %d of %d right\n' "$name" "$right" "$tries"
    if [ "$right" -ne "$tries" ]; then
        failed=1
        printf '%s\n' "$said" | grep -E '^(PASS|FAIL|VALID NEGATIVE|REGRESSION|INCONCLUSIVE|INVALID RUN) for' | grep -vE "$expected" | sed 's/^/    /'
    fi
}

try 'slowdown of 5 %' '^REGRESSION for ' --plant -5% "$@"
try 'speed-up of 5 %' '^PASS for ' --plant +5% "$@"
try 'nothing planted' '^VALID NEGATIVE for .*: no gain' "$@"
exit $failed
