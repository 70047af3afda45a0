#!/usr/bin/env bash
# Makes the records of the simulated device that docs/src/simulator.md shows.
#
#   scripts/simulator.sh OUT [SECTION]...
#
# SECTIONs:
#   device     on an H200: the gates' cases for every stage and mode, for OUT/calibration/*.h200.json
#   simulator  the same on the simulated device, for OUT/calibration/*.simulator.json; five minutes
#   faults     every planted fault under 54 schedules, for OUT/faults.md; ten minutes
#   mutants    every mutant of the device code, for OUT/mutants.md; fifteen minutes
#   clean      every stage and mode under 100 schedules, for OUT/clean.md; an hour; what is there is kept
# Without one: simulator, faults, mutants, clean.
#
# Environment:
#   EIGHTFOLD  the binary [default: target/release/eightfold, which is built if there is none]
set -euo pipefail

if [ $# -lt 1 ] || [ "$1" = "-h" ] || [ "$1" = "--help" ]; then
    sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'
    exit 2
fi
mkdir -p "$1/calibration"
out=$(cd "$1" && pwd)
shift
[ -n "${EIGHTFOLD:-}" ] && EIGHTFOLD=$(realpath -m "$EIGHTFOLD")
cd "$(dirname "$0")/.."
eightfold=${EIGHTFOLD:-target/release/eightfold}

# Tails in both lengths, grouped heads, both widths.
shapes="1,2,2,100,200,64 1,2,2,130,300,128 1,4,2,77,513,64 2,2,1,65,129,128"

calibrate() {
    local suffix=$1 kernel mask records
    shift
    if [ ! -x "$eightfold" ]; then cargo build --release; fi
    for kernel in hopper ladder; do
        for mask in "" -causal; do
            records=$(mktemp -d)
            # As many multiprocessors as an H200 has, so that keys are split and heads are packed alike.
            EIGHTFOLD_SIMULATED_MULTIPROCESSORS=132 "$eightfold" run "$@" --kernel "$kernel" --shape $shapes \
                ${mask:+--causal} --records "$records" >"$out/calibration/$kernel$mask.$suffix.log"
            mv "$records"/*/record.json "$out/calibration/$kernel$mask.$suffix.json"
            "$eightfold" records --pack "$out/calibration" >/dev/null
            rm -r "$records" "$out/calibration/$kernel$mask.$suffix.log"
        done
    done
}

record() {
    EIGHTFOLD_REQUIRE_SIMULATOR=1 EIGHTFOLD_SIMULATOR_RECORD="$out" cargo test --release -p eightfold-lab --test simulator -- \
        --exact "$1" --nocapture
}

if [ $# -eq 0 ]; then set -- simulator faults mutants clean; fi
for section in "$@"; do
    case $section in
    device) calibrate h200 --seeds 1 ;;
    simulator) calibrate simulator --on simulator --no-races --seeds 0 ;;
    faults) record faults::every_planted_fault_is_found ;;
    mutants)
        if [ ! -x "$eightfold" ]; then cargo build --release; fi
        records=$(mktemp -d)
        # Also where one was not noticed: that is what the table is to show.
        "$eightfold" mutants --on simulator --jobs "$(nproc)" --format markdown --records "$records" >"$out/mutants.md" || true
        rm -r "$records"
        ;;
    clean) record clean::every_stage_and_mode_is_right_and_nothing_is_found ;;
    *)
        echo "error: section \`$section\` is unknown (valid: device simulator faults mutants clean)" >&2
        exit 2
        ;;
    esac
done
