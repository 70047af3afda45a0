#!/usr/bin/env bash
# Makes, on a machine with a GPU, the records that the README and the book show.
#
#   scripts/h200.sh OUT [SECTION]...
#
# OUT gets the records (OUT/records) and everything that the tools say (OUT/log); a short table of each section is printed.
# Afterwards `eightfold records --adopt OUT/records` puts them into results/ by topic, removes what they replace, takes back the
# withdrawals that nothing needs any more, and writes the pages anew.
#
# SECTIONs, all of them in this order unless some are named, with seconds on an H200 with 16 cores: as they were measured on
# 2026-11-18, or ~ where that is an estimate. What times nothing runs side by side.
#   doctor            5  what this machine has
#   claims         ~200  tests run odd many-keys few-heads sanitizer, side by side: what the claims of correctness rest on
#   mutants         ~60  small mutations of the device code, eight at a time: a gate must notice each
#   flagship        260  what the plan picks on the shapes that large models have, both masks, beside PyTorch's four backends, Triton
#                        and cuDNN FP8
#   paged          ~220  small cases under the tools of `sanitizer`, where they are installed; attention to an FP8 cache in pages, and
#                        of prompts and chunks, beside a plain read, for heads and lengths that models have, and appending beside a copy
#   problems       ~300  windows, softcap, sinks and every head dim: the gates of both kernels on sizes that divide nothing; the hopper
#                        kernel beside PyTorch's backends on shapes of models that have them; what a window saves and a softcap costs
#   ladder          180  gates, timing and verdicts for every stage, both masks, beside PyTorch's four backends
#   accuracies       90  what the plan picks for each accuracy mode, on some of those shapes
#   ablation        ~40  each stage of the ladder alone, and all but each, in one run a shape
#   python         ~180  the front ends, from FRONT: the Python package's tests, its calls beside torch's attention, what they cost
#                        the host, and models of transformers; the C program; candle's tests
#   gate            ~40  three variants through every gate in a row: a stage against the one before, one against what it extends,
#                        and what the plan picks for Hopper against PyTorch's plain attention, 15 times as fast
#   survey         ~180  what the plan picks beside all that is near it, on a grid of problems: two thirds of it
#   survey-aside    ~90  the same on the third that is kept aside: after rules were made of what the other section found
#   evolve-code    ~120  sources searched with the scripted mutator, and knobs alone with the same budget; the best source against
#                        the baseline once more
#   optimisations   200  what each optimisation that is a knob brings, beside what was predicted of it
#   int8           ~270  Q and K in INT8: the gates for every mode, family and odd size; each mode beside FP8's of the same name,
#                        taking turns, and beside PyTorch's backends; with a wheel in FRONT calls from bf16 to bf16 in both formats,
#                        quantising included, beside the same backends; what was predicted of them; the quantiser; mutants
#   quantizer        10  the quantiser beside copies that move as many bytes, by shape
#   profile         ~90  what Nsight Compute counts for every stage, and with hopper for what the plan picks on the shapes of
#                        flagship, both masks; what bounds each
#   host             10  what a launch costs the host, beside the driver's own call
#   before         ~160  with BEFORE: is any of these shapes slower than in that binary? Both masks, and decoding
#   build           ~30  every stage compiled by NVRTC and, beside it, by nvcc
#   plant          ~180  ten tries each of a planted slowdown, a planted speed-up and nothing planted: does compare tell?
#   evolve         ~600  each kernel's knobs searched for three shapes: a random survey and a guided search each, and verdicts
# The parts of claims can be named for themselves:
#   tests           150  the tests of the CUDA backend, none of which may be skipped here
#   run              50  the gates for every stage and for what the plan picks, standard shapes, both masks
#   odd              35  the gates for every stage on sizes that divide nothing
#   many-keys        50  the gates for every stage of the hopper kernel, and for what the plan picks, on 4096 to 131072 keys and V of
#                        mean 1, where sums that lose small terms go wrong
#   few-heads        50  the gates for what the plan picks, both masks, on Gaussian inputs of eight seeds, from which errors vary most
#                        there
#   sanitizer       ~50  memcheck, racecheck, initcheck and synccheck for every stage on one tile, a tail and several tiles
# All of serving, from the first wrong bit to the last number, is a section of its own:
#   serving        ~330  tests of pages and of prompts of many lengths, `paged`, beside PyTorch's attention where PYTHON is set, the
#                        peers that servers run where PEERS has them (240 more), and with a wheel in FRONT what a Llama of random
#                        weights generates
# `pages` stands for claims ladder flagship accuracies quantizer paged profile.
#
# Environment:
#   EIGHTFOLD  the binary [default: target/release/eightfold, which is built if there is none]
#   TESTS      their binary, which `cargo test --release -p eightfold-lab --test cuda --no-run` names [default: built and run by cargo]
#   PYTHON     the Python that has PyTorch [default: python3]
#   KERNELS    the kernels whose stages are built, gated, timed, searched and sanitised [default: ladder hopper]
#   STAGES     the stages to sanitise [default: all]
#   SHAPES     the shapes to search [default: mission long 4,16,4096,128]
#   SURVEY     how long each random survey lasts at most [default: 60s]
#   GRID       seconds of each survey of the plan [default: 180, and 90 for the third kept aside]
#   CODE_TRIALS  candidates of each search of evolve-code [default: 80]
#   SEARCH     how long each guided search lasts, without its validation [default: 15s]
#   BEFORE     an older binary of Eightfold [default: none, and `before` does nothing]
#   FRONT      a folder with what the section `python` takes along [default: dist, see CONTRIBUTING.md]
#   PEERS      a folder with serving_peers.py, which times the kernels of servers, and with those [default: none]
#   TOOLS      the tools to use [default: memcheck racecheck initcheck synccheck]
#   PACK       an archive of the records and logs, written anew after each section [default: none]
#   LIMIT      seconds from the start on after which no job is begun and none goes on [default: none]
#   PATIENCE   seconds that one job may take [default: 400]
#
# Exits with 0 if everything holds, 1 if a gate failed or a tool found an error, 2 on a mistake.
set -uo pipefail

usage() { sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'; }

if [ $# -lt 1 ] || [ "$1" = "-h" ] || [ "$1" = "--help" ]; then
    usage
    exit 2
fi
mkdir -p "$1/records" "$1/log" || exit 2
out=$(cd "$1" && pwd)
shift
all="doctor claims mutants flagship paged problems ladder accuracies ablation python gate survey survey-aside evolve-code \
optimisations int8 quantizer profile host before build plant evolve"
valid="$all tests run odd many-keys few-heads sanitizer serving"
sections=${*:-$all}
sections=${sections/pages/claims ladder flagship accuracies quantizer paged profile}
for section in $sections; do
    case " $valid " in
    *" $section "*) ;;
    *)
        echo "error: section \`$section\` is unknown (valid: $valid pages)" >&2
        exit 2
        ;;
    esac
done

# A relative path is meant from where the script was called.
[ -n "${EIGHTFOLD:-}" ] && EIGHTFOLD=$(realpath -m "$EIGHTFOLD")
tests=${TESTS:+$(realpath -m "$TESTS")}
older=${BEFORE:+$(realpath -m "$BEFORE")}
archive=${PACK:+$(realpath -m "$PACK")}
[ -n "${PEERS:-}" ] && PEERS=$(realpath -m "$PEERS")
front=$(realpath -m "${FRONT:-$(dirname "$0")/../dist}")
cd "$(dirname "$0")/.." || exit 2
eightfold=${EIGHTFOLD:-$PWD/target/release/eightfold}
# The front ends bring their own.
if [ ! -x "$eightfold" ] && [ "$sections" != python ]; then
    if [ -n "${EIGHTFOLD:-}" ]; then
        echo "error: EIGHTFOLD names $eightfold, which is not a program" >&2
        exit 2
    fi
    cargo build --release || exit 2
fi
python=${PYTHON:-python3}
kernels=${KERNELS:-ladder hopper}
every_accuracy=(--accuracy fast balanced exact-exp precise)
# No stages, but what the plan picks for few keys: most plainly, for blocks in whole rounds and in pairs that bring V for each
# other, for blocks of two warpgroups, and for codes of wide range.
few_keys=hopper:fast,warpgroups=1,tile_keys=512,stages=1,promote=0,sums=registers,flight=4,launch=dependent,keys=at-once
pairs=$few_keys,share=values,grid=rounds
tall=${few_keys/warpgroups=1/warpgroups=2}
wide=hopper:exact-exp,warpgroups=1,tile_keys=256,stages=1,promote=0,sums=registers,flight=2,launch=dependent,keys=at-once
wide=$wide,scores=f32
# From what a launch alone takes to what only the tensor cores do, and decoding.
flagship_shapes="small mission mission_b2 long 4,16,4096,64 2,16,2048,128 4,16,4096,128 2,16,16384,128 1,32,4,1,8192,128"
failed=0

# Seconds that a job may take by now.
left() {
    local most=${PATIENCE:-400}
    if [ -n "${LIMIT:-}" ] && [ $((LIMIT - SECONDS)) -lt "$most" ]; then most=$((LIMIT - SECONDS)); fi
    echo "$most"
}

# Runs a job, keeps all that it says, and shows how it ended and how long it took.
job() {
    local name=$1 start=$SECONDS code most
    shift
    : >"$out/log/$name.txt"
    most=$(left)
    if [ "$most" -le 0 ]; then
        printf '%-24s not begun: %d s are over\n' "$name" "$LIMIT"
        failed=1
        return 1
    fi
    timeout -k 5 "$most" "$@" >"$out/log/$name.txt" 2>"$out/log/$name.err"
    code=$?
    printf '%-24s exit %d after %d s\n' "$name" "$code" $((SECONDS - start))
    if [ $code -ne 0 ]; then
        failed=1
        tail -n 3 "$out/log/$name.err" | sed 's/^/    /'
    fi
    return $code
}

# A job that is a gate.
gates() {
    job "$@" || {
        troubles "$1"
        return 1
    }
}

# Does something that times nothing while others do. The loop below waits for all of them.
beside() {
    { "$@" || : >"$out/log/failed"; } &
}

# Waits for what was begun beside.
settle() {
    wait
    if [ -e "$out/log/failed" ]; then failed=1; fi
    rm -f "$out/log/failed"
}

# An archive of what there is so far, put in its place as a whole: whoever is stopped leaves the one before.
pack() {
    [ -n "$archive" ] || return 0
    tar -C "$out" -czf "$archive.new" --exclude=./sanitized --exclude='*.code' . && mv "$archive.new" "$archive"
}

# Whether a kernel is among those that were asked for.
has_kernel() {
    case " $kernels " in
    *" $1 "*) return 0 ;;
    *) return 1 ;;
    esac
}

# The lines of a log that a person wants at once: whatever is not a row that passed.
troubles() {
    grep -E 'FAIL|INVALID|UNAVAILABLE' "$out/log/$1.txt" | cut -c1-160 | head -n 20
}

section_doctor() {
    job doctor "$eightfold" doctor --verbose --python "$python" --records "$out/records"
    grep -E '^[+-] (GPU|NVRTC|PyTorch|ncu|compute-sanitizer)' "$out/log/doctor.txt" | cut -c1-160
}

# The short one: it times nothing.
section_claims() {
    section_tests
    section_run
    section_odd
    section_many-keys
    section_few-heads
    section_sanitizer
}

# All of them, or under another name those that more words choose.
section_tests() {
    if [ -z "$tests" ] && ! command -v cargo >/dev/null; then
        echo "there is no cargo to build them: name their binary, built elsewhere, by TESTS"
        failed=1
        return
    fi
    beside gpu_tests "${@:-tests}"
}

gpu_tests() {
    local name=$1 program=(cargo test --release -p eightfold-lab --test cuda --) code=0
    shift
    [ -n "$tests" ] && program=("$tests")
    job "$name" env EIGHTFOLD_REQUIRE_DEVICE=1 "${program[@]}" "$@" || {
        code=1
        grep -hE 'panicked|^  for ' "$out/log/$name.txt" "$out/log/$name.err" | cut -c1-160 | head -n 20
    }
    grep -E '^test result' "$out/log/$name.txt"
    [ "$name" = tests ] || return $code
    job tests-record "$eightfold" records "$out/records" --import "$out/log/tests.txt" || code=1
    return $code
}

section_build() {
    local kernel arch
    for kernel in $kernels; do
        arch=sm_90
        [ "$kernel" = hopper ] && arch=sm_90a
        job "build-$kernel" "$eightfold" build --kernel "$kernel" --arch $arch --nvcc --no-toggle --records "$out/records" ||
            troubles "build-$kernel"
    done
}

section_run() {
    local kernel mask
    for mask in "" --causal; do
        for kernel in $kernels; do
            beside gates "run-$kernel$mask" "$eightfold" run --kernel "$kernel" $mask --records "$out/records"
        done
        beside gates "run-plan$mask" "$eightfold" run "${every_accuracy[@]}" $mask --records "$out/records"
    done
}

section_odd() {
    local kernel
    for kernel in $kernels; do
        beside gates "odd-$kernel" "$eightfold" run --kernel "$kernel" --odd --records "$out/records"
    done
}

section_many-keys() {
    local len shapes=
    for len in 4096 16384 65536 131072; do
        shapes+=" 1,4,4,192,$len,64 1,4,4,192,$len,128"
    done
    beside gates many-keys-stages "$eightfold" run --kernel hopper --shape $shapes --families biased-v --records "$out/records"
    # Blocks share the keys of these, but not of the last.
    beside gates many-keys-plan "$eightfold" run "${every_accuracy[@]}" --shape $shapes 1,24,24,192,65536,64 \
        --families biased-v gaussian --records "$out/records"
    # Inputs by which the number of exact weights was not chosen.
    beside gates many-keys-families "$eightfold" run "${every_accuracy[@]}" --shape 1,4,4,192,16384,64 1,4,4,192,65536,128 \
        --families outliers key-channels sink constant tiny --seeds 1 --records "$out/records"
}

section_few-heads() {
    local run=("$eightfold" run "${every_accuracy[@]}" --families gaussian --seeds 1 2 3 4 5 6 7 8 --records "$out/records")
    beside gates few-heads "${run[@]}" --shape 1,1,512,64 1,1,1024,64 1,2,2048,64 1,4,4096,64 1,1,4096,128 1,1,8192,64 \
        1,2,8192,64 1,2,8192,128 1,8,16384,64 1,1,65536,64 1,2,65536,128 1,1,131072,64
    # Whole prompts, and their ends.
    beside gates few-heads-causal "${run[@]}" --causal --shape 1,1,8192,64 1,2,65536,128 1,2,2,4096,16384,64 1,1,1,2048,65536,128
}

section_ladder() {
    local kernel name
    for kernel in $kernels; do
        for name in "$kernel" "$kernel-causal"; do
            local mask=()
            [ "$name" = "$kernel-causal" ] && mask=(--causal)
            job "$name" "$eightfold" ladder --wide --kernel "$kernel" ${mask[@]+"${mask[@]}"} --peer torch --python "$python" \
                --records "$out/records" || troubles "$name"
            cut -c1-180 "$out/log/$name.txt"
        done
    done
}

section_flagship() {
    local name
    for name in flagship flagship-causal; do
        local mask=()
        [ "$name" = flagship-causal ] && mask=(--causal)
        job "$name" "$eightfold" bench --accuracy fast ${mask[@]+"${mask[@]}"} --peer torch \
            --python "$python" --records "$out/records" --shape $flagship_shapes || troubles "$name"
        cut -c1-160 "$out/log/$name.txt"
    done
}

# How many times as long one job's first contestant took as another's, both printed as csv.
times_as_long() {
    "$python" - "$out/log/$1.txt" "$out/log/$2.txt" <<'EOF'
import csv, sys
longer, shorter = (float(next(csv.DictReader(open(path)))["p50_us"]) for path in sys.argv[1:])
print(f"{longer / shorter:.2f} times as long ({longer:.1f} and {shorter:.1f} us)")
EOF
}

# The gates of one kernel on problems that not every model has, of sizes that divide nothing.
problem_gates() {
    local kernel=$1 dim mask window left name shapes='' windowed=''
    shift
    local run=("$eightfold" run "$@" --families gaussian biased-v --seeds 1 --records "$out/records")
    for dim in 8 24 64 72 80 96 112 128 136 160 192 256; do
        shapes+=" 1,6,2,130,333,$dim 1,2,2,301,67,$dim"
    done
    for dim in 24 96 192; do
        windowed+=" 1,6,2,130,333,$dim"
    done
    for dim in 64 128 256; do
        windowed+=" 1,2,2,301,67,$dim"
    done
    for mask in "" --causal; do
        beside gates "problems-$kernel-dims$mask" "${run[@]}" $mask --shape $shapes
        beside gates "problems-$kernel-values$mask" "${run[@]}" $mask --shape 1,6,2,130,333,192/128 1,2,2,301,67,64/256
        for left in 0 1 63 64 65 1000; do
            window=$left,-1
            [ -z "$mask" ] && window=$left,$((left / 2))
            for name in window window-sinks window-softcap; do
                local scoring=()
                [ "$name" = window-sinks ] && scoring=(--sinks)
                [ "$name" = window-softcap ] && scoring=(--softcap 30 --sinks)
                beside gates "problems-$kernel-$name-$left$mask" "${run[@]}" $mask --window "$window" \
                    ${scoring[@]+"${scoring[@]}"} --shape $windowed
            done
        done
        settle
    done
}

# What windows save one kernel, and what a softcap costs it.
problem_times() {
    local kernel=$1 left
    local ours=("$eightfold" bench --format csv --records "$out/records")
    local long="--causal --shape 1,64,8,8192,8192,64"
    job "problems-$kernel-plain" "${ours[@]}" $2 $long || troubles "problems-$kernel-plain"
    for left in 127 511 2047; do
        job "problems-$kernel-behind-$left" "${ours[@]}" $2 $long --window $left,-1 --sinks &&
            echo "  without a window of $left: $(times_as_long "problems-$kernel-plain" "problems-$kernel-behind-$left")"
    done
    job "problems-$kernel-uncapped" "${ours[@]}" $3 --shape 4,16,4096,128 || troubles "problems-$kernel-uncapped"
    job "problems-$kernel-capped" "${ours[@]}" $3 --shape 4,16,4096,128 --softcap 50 &&
        echo "  with a softcap: $(times_as_long "problems-$kernel-capped" "problems-$kernel-uncapped")"
}

section_problems() {
    local mask
    has_kernel hopper && problem_gates hopper --accuracy fast precise
    # Of the ladder, which Ada runs, what fits every head dim.
    has_kernel ladder && problem_gates ladder --variant ladder:unpack,tile_keys=32 ladder:split-keys,tile_keys=64
    has_kernel ladder && problem_times ladder "--variant ladder:tall-tiles" "--variant ladder:tall-tiles,warps=8"
    has_kernel hopper || return 0
    local peers=(--peer torch --python "$python" --records "$out/records")
    for mask in "" --causal; do
        job "problems-256$mask" "$eightfold" bench --accuracy fast $mask --shape 2,8,8192,256 4,16,4096,96 4,16,4096,192 \
            "${peers[@]}" || troubles "problems-256$mask"
        cut -c1-160 "$out/log/problems-256$mask.txt"
    done
    problem_times hopper "--accuracy fast" "--accuracy exact-exp"
    # All keys of the window at once, or streamed.
    job problems-streamed "$eightfold" bench --variant hopper:fast,tile_keys=128 hopper:fast,tile_keys=128,warpgroups=2 --causal \
        --window 127,-1 --sinks --shape 1,64,8,8192,8192,64 --records "$out/records" || troubles problems-streamed
    cut -c1-160 "$out/log/problems-streamed.txt"
}

section_accuracies() {
    has_kernel hopper || return 0
    job accuracies "$eightfold" bench "${every_accuracy[@]}" --records "$out/records" \
        --shape mission long 4,16,4096,64 4,16,4096,128 2,16,16384,128 || troubles accuracies
    cut -c1-160 "$out/log/accuracies.txt"
}

section_optimisations() {
    local kernel
    for kernel in $kernels; do
        job "optimisations-$kernel" "$eightfold" ledger --kernel "$kernel" --measure --records "$out/records" ||
            grep '^error' "$out/log/optimisations-$kernel.err"
        cut -c1-180 "$out/log/optimisations-$kernel.txt"
    done
}

section_ablation() {
    has_kernel ladder || return 0
    job ablation "$eightfold" ablation --kernel ladder --shape mission long --records "$out/records" || troubles ablation
    cut -c1-180 "$out/log/ablation.txt"
}

section_survey() {
    job survey "$eightfold" survey --budget "${GRID:-180}" --records "$out/records"
    tail -n 3 "$out/log/survey.txt"
}

section_survey-aside() {
    job survey-aside "$eightfold" survey --aside --budget "${GRID:-90}" --records "$out/records"
    tail -n 3 "$out/log/survey-aside.txt"
}

section_gate() {
    local line=("$eightfold" gate --records "$out/records" --python "$python")
    job gate-mma-pv "${line[@]}" ladder:mma-pv
    job gate-tall-tiles "${line[@]}" ladder:tall-tiles --shape long
    has_kernel hopper && job gate-fast "${line[@]}" hopper:fast --shape long --require 15x torch-math
    cut -c1-180 "$out"/log/gate-*.txt
}

section_mutants() {
    # What a mutant leaves waiting for ever is ended; each is compiled within seconds.
    gates mutants "$eightfold" mutants --jobs 8 --patience 60 --records "$out/records"
    tail -n 1 "$out/log/mutants.txt"
}

section_int8() {
    has_kernel hopper || return 0
    local mask mode variants=() name names=() of=warpgroups=2,stages=2,scores=s32,promote=0,sums=registers,flight=2
    local gates=("$eightfold" run --input-format int8 "${every_accuracy[@]}" --records "$out/records")
    for mask in "" --causal; do
        job "int8-run$mask" "${gates[@]}" $mask --shape small long 1,2,2,200,600,128 1,8,2,1,1500,64 || troubles "int8-run$mask"
    done
    job int8-odd "${gates[@]}" --odd || troubles int8-odd
    job int8-many-keys "${gates[@]}" --shape 1,4,4,192,16384,64 1,4,4,192,16384,128 --families gaussian biased-v --seeds 1 ||
        troubles int8-many-keys
    for mode in fast exact-exp precise; do variants+=("hopper:$mode" "hopper:$mode,$of"); done
    local beside=("$eightfold" bench --peer torch --python "$python" --records "$out/records")
    for mask in "" --causal; do
        job "int8-128$mask" "${beside[@]}" $mask --variant "${variants[@]}" --shape 4,16,4096,128 2,16,2048,128 2,16,16384,128 ||
            troubles "int8-128$mask"
        job "int8-64$mask" "${beside[@]}" $mask --variant hopper:fast "hopper:fast,$of" \
            --shape 4,16,4096,64 || troubles "int8-64$mask"
        cut -c1-160 "$out/log/int8-128$mask.txt" "$out/log/int8-64$mask.txt"
    done
    int8_calls
    for name in fast exact-exp precise "64 channels" "many keys"; do names+=("int8 scores: $name"); done
    job int8-ledger "$eightfold" ledger --kernel hopper --measure --only "${names[@]}" --records "$out/records" ||
        grep '^error' "$out/log/int8-ledger.err"
    cut -c1-180 "$out/log/int8-ledger.txt"
    job int8-quantizer "$eightfold" bench quantizer --shape 4,16,4096,128 2,16,16384,128 --records "$out/records" ||
        troubles int8-quantizer
    cut -c1-160 "$out/log/int8-quantizer.txt"
    job int8-mutants "$eightfold" mutants --only int8-range-unguarded int8-keys-out-of-sight-weigh \
        int8-line-not-lowered int8-second-line-in-step int8-scale-of-the-first-block --records "$out/records" || troubles int8-mutants
    tail -n 1 "$out/log/int8-mutants.txt"
}

# From bf16 to bf16, with the quantiser inside, as a user calls it.
int8_calls() {
    local wheel wheels=("$front"/*.whl) package
    if [ ! -e "${wheels[0]}" ]; then
        echo "there is no wheel in $front, so that no call from bf16 is timed beside PyTorch's"
        return
    fi
    package=$(mktemp -d)
    for wheel in "${wheels[@]}"; do
        "$python" -m zipfile -e "$wheel" "$package" || failed=1
    done
    chmod +x "$package/eightfold/bin/eightfold"
    local within=(env PYTHONPATH="$package" PYTHONDONTWRITEBYTECODE=1 EIGHTFOLD_CACHE="$package/cubins")
    job int8-calls "${within[@]}" "$python" crates/eightfold-python/tests/h200.py "$out/log/int8-calls.json" --calls &&
        job int8-calls-record "${within[@]}" "$python" -m eightfold records "$out/records" --import "$out/log/int8-calls.json"
    cut -c1-160 "$out/log/int8-calls.txt"
    rm -rf "$package"
}

section_quantizer() {
    job quantizer "$eightfold" bench quantizer --shape 4,16,4096,128 4,16,4096,64 2,16,16384,128 1,8,1024,128 \
        --records "$out/records" || troubles quantizer
    cut -c1-160 "$out/log/quantizer.txt"
}

# Wrong results first: with them times tell nothing.
section_paged() {
    local program tool
    local small=("$eightfold" bench paged --page 16 --iterations 1 --records "$out/sanitized"
        --case '8,2,64,3,300' '8,2,128,2,100,4' '4,1,128,1,20000' '8,2,64,2,300,40' '2,2,64,21,append')
    # Compiled and cached first: the tools need only watch the kernels.
    job paged-small "${small[@]}" || troubles paged-small
    if program=$(sanitizer_program); then
        for tool in ${TOOLS:-memcheck racecheck initcheck synccheck}; do
            beside job "paged-$tool" "$program" --tool "$tool" --error-exitcode 3 "${small[@]}"
        done
    fi
    settle
    job paged "$eightfold" bench paged ${PYTHON:+--peer torch --python "$python"} --records "$out/records" || troubles paged
    cut -c1-160 "$out/log/paged.txt"
}

section_serving() {
    section_tests serving-tests paged::
    section_paged
    if [ -e "${PEERS:-}/serving_peers.py" ]; then
        job serving-peers "$python" "$PEERS/serving_peers.py" --peers "$PEERS" --out "$out/log/serving-peers.json" \
            --parts decode,ragged,spec,oss,prefill --budget 240
    else
        echo "peers that servers run: not found (PEERS names no folder with serving_peers.py)"
    fi
    local wheels=("$front"/*.whl) package wheel
    if [ ! -e "${wheels[0]}" ]; then
        echo "there is no wheel in $front, so that no model generates"
        return
    fi
    package=$(mktemp -d)
    for wheel in "${wheels[@]}"; do
        "$python" -m zipfile -e "$wheel" "$package" || failed=1
    done
    job serving-generate env PYTHONPATH="$package" PYTHONDONTWRITEBYTECODE=1 EIGHTFOLD_CACHE="$package/cubins" \
        "$python" crates/eightfold-python/tests/h200.py "$out/log/generations.json" --generations
    cut -c1-160 "$out/log/serving-generate.txt"
    rm -rf "$package"
}

section_profile() {
    local kernel shapes mask
    for kernel in $kernels; do
        shapes="mission long"
        [ "$kernel" = hopper ] && shapes="long 4,16,4096,64 4,16,4096,128"
        job "profile-$kernel" "$eightfold" profile --kernel "$kernel" --shape $shapes --records "$out/records" ||
            troubles "profile-$kernel"
        cut -c1-200 "$out/log/profile-$kernel.txt"
    done
    has_kernel hopper || return 0
    # With the inputs where they are when launches are timed.
    for mask in "" --causal; do
        job "profile-plan$mask" "$eightfold" profile --cache hot $mask --shape $flagship_shapes --records "$out/records" ||
            troubles "profile-plan$mask"
        cut -c1-200 "$out/log/profile-plan$mask.txt"
    done
}

section_host() {
    job host "$eightfold" bench host --shape mission long 1,32,4,1,8192,128 --records "$out/records" || troubles host
    cut -c1-160 "$out/log/host.txt"
}

section_before() {
    local mask shape binaries
    if [ -z "$older" ]; then
        echo "BEFORE names no older binary: nothing is compared"
        return
    fi
    # By names alone: what a record calls a binary must say nothing of the machine.
    binaries=$(mktemp -d)
    ln -s "$older" "$binaries/before"
    ln -s "$eightfold" "$binaries/now"
    for mask in "" --causal; do
        for shape in mission mission_b2 long 4,16,4096,64 4,16,4096,128 2,16,16384,128 1,32,4,1,8192,128; do
            job "before-$shape$mask" env -C "$binaries" ./now compare before now --shape "$shape" $mask --records "$out/records" ||
                troubles "before-$shape$mask"
            tail -n 1 "$out/log/before-$shape$mask.txt" | cut -c1-160
        done
    done
    rm -rf "$binaries"
}

section_plant() {
    EIGHTFOLD=$eightfold job plant scripts/plant.sh "$out/records" ladder:unpack --shape mission
    cat "$out/log/plant.txt"
}

# The knobs that a survey turns, so few that all of their settings can be tried: what lies between two settings is then known
# too, and replays can follow any strategy.
survey_space() {
    case $1-$2 in
    ladder-*) echo softmax=fused,qk=unpack,pv=unpack,exp=hardware,schedule=grid,producers=0 ;;
    hopper-mission) echo linear=8,split_keys=off,promote=0 ;;
    hopper-long) echo linear=8,split_keys=off,keys=streamed,launch=dependent,promote=512 ;;
    *) echo linear=8,split_keys=off,keys=streamed,launch=plain,warpgroups=2,warpgroups=3,promote=512 ;;
    esac
}

# The survey shows what the space is like, for replays; the search is what a user would run, on most of the space. Plans
# that are installed on this machine count for neither.
section_evolve() {
    local kernel shape name
    for kernel in $kernels; do
        local space=softmax=fused
        [ "$kernel" = hopper ] && space=linear=8
        for shape in ${SHAPES:-mission long 4,16,4096,128}; do
            name=$kernel-$shape
            local evolve=(env EIGHTFOLD_PLANS=off "$eightfold" evolve --kernel "$kernel" --shape "$shape" --ahead 16)
            job "survey-$name" "${evolve[@]}" --restrict "$(survey_space "$kernel" "$shape")" --policy random \
                --budget "${SURVEY:-60s}" --no-validation --records "$out/surveys/$name"
            job "search-$name" "${evolve[@]}" --restrict "$space" --budget "${SEARCH:-15s}" --records "$out/searches/$name"
            cut -c1-200 "$out/log/search-$name.txt"
        done
    done
}

# 26 changes of the ladder kernel, good and bad, stand for a language model: what hangs the compiler and what hangs the device must
# be outcomes like any other. A second search of as many trials turns knobs alone.
section_evolve-code() {
    local elite source run
    has_kernel ladder || return 0
    local evolve=(env EIGHTFOLD_PLANS=off "$eightfold" evolve --kernel ladder --baseline ladder:baseline --shape mission
        --budget "${CODE_TRIALS:-80} trials" --timeout 30 --ahead 1)
    job evolve-code "${evolve[@]}" --restrict pv=scalar,softmax=shared,copy=sync,exp=hardware,schedule=grid \
        --mutator examples/mutator_scripted.py --mutator-every 2 --records "$out/searches/code"
    job evolve-knobs "${evolve[@]}" --restrict pv=scalar,softmax=shared,copy=sync,exp=hardware,schedule=grid \
        --records "$out/searches/code-knobs"
    cut -c1-200 "$out/log/evolve-code.txt" "$out/log/evolve-knobs.txt"
    elite=$(ls -d "$out"/searches/code/*/elite.json | tail -n 1)
    run=$(dirname "$elite")
    source=$(sed -n 's/.*"source": "\([0-9a-f]*\)".*/\1/p' "$elite" | head -n 1)
    if [ -z "$source" ]; then
        echo "no source entered the elite"
        failed=1
        return
    fi
    for kind in compiler_hung hung not_compiled wrong path_outside patch_does_not_apply too_large not_text not_understood; do
        grep -q "\"$kind\"" "$run/record.json" || { echo "no outcome of kind $kind"; failed=1; }
    done
    job compare-source "$eightfold" compare ladder:baseline ladder:baseline --source "$run/sources/$source" --shape mission \
        --records "$out/searches/code-compare" || troubles compare-source
    cut -c1-200 "$out/log/compare-source.txt"
}

# A program that was taken along: its log, and a line for the record of how it ended.
front_program() {
    local name=$1 file=$2 findings=0
    if [ ! -e "$file" ]; then
        echo "there is no $file, so that $name is not run"
        failed=1
        return
    fi
    chmod +x "$file" 2>/dev/null
    job "front-$name" env EIGHTFOLD_REQUIRE_DEVICE=1 "$file" || findings=1
    # A program that skipped itself has shown nothing.
    if grep '^SKIP' "$out/log/front-$name.txt"; then
        failed=1
        return
    fi
    printf '%s\t%d\n' "$name" $findings >>"$out/log/front.tsv"
}

section_python() {
    local wheel wheels=("$front"/*.whl) package checks=()
    if [ ! -e "${wheels[0]}" ]; then
        echo "there is no wheel in $front: build it with crates/eightfold-python/ci.sh, and take it along"
        failed=1
        return
    fi
    # Without pip, which may be missing; it would set the bit by which a file is a program.
    package=$(mktemp -d)
    for wheel in "${wheels[@]}"; do
        "$python" -m zipfile -e "$wheel" "$package" || failed=1
    done
    chmod +x "$package/eightfold/bin/eightfold"
    local within=(env PYTHONPATH="$package" PYTHONDONTWRITEBYTECODE=1 EIGHTFOLD_CACHE="$package/cubins")
    : >"$out/log/front.tsv"
    front_program c "$front/c-device"
    front_program candle "$front/candle-cuda"
    job python-tests "${within[@]}" EIGHTFOLD_REQUIRE_DEVICE=1 EIGHTFOLD_REQUIRE_COMMAND=1 "$python" -m pytest -q -rs \
        -p no:cacheprovider --tb=short --junitxml="$out/log/python-tests.xml" crates/eightfold-python/tests ||
        grep -E '^(FAILED|ERROR)' "$out/log/python-tests.txt" | cut -c1-200 | head -n 20
    tail -n 1 "$out/log/python-tests.txt"
    [ -e "$out/log/python-tests.xml" ] && checks+=(--checks "$out/log/python-tests.xml")
    [ -s "$out/log/front.tsv" ] && checks+=(--checks "$out/log/front.tsv")
    job python-calls "${within[@]}" "$python" crates/eightfold-python/tests/h200.py "$out/log/python.json" \
        ${checks[@]+"${checks[@]}"} &&
        # The command of the wheel, so that the record names the commit which that was built from.
        job python-record "${within[@]}" "$python" -m eightfold records "$out/records" --import "$out/log/python.json"
    cut -c1-160 "$out/log/python-calls.txt"
    rm -rf "$package"
}

sanitizer_program() {
    local toolkit folder
    if command -v compute-sanitizer; then return; fi
    for toolkit in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /opt/cuda; do
        for folder in "$toolkit/bin" "$toolkit/compute-sanitizer"; do
            if [ -x "$folder/compute-sanitizer" ]; then
                echo "$folder/compute-sanitizer"
                return
            fi
        done
    done
    return 1
}

# One tile, a tail, several tiles with a tail; the last stages of the ladder differ in what they do with each. Pairs of
# blocks have an even number of tiles, two warpgroups are for long rows, and wide codes for fewer keys.
shapes=("small" "1,2,77,64" "1,1,300,64")
paired_shapes=("1,1,128,64" "1,2,77,64" "1,1,380,64")
tall_shapes=("1,2,77,128" "1,1,300,128")
wide_shapes=("small" "1,2,77,128" "1,1,200,64")

section_sanitizer() {
    beside sanitize
}

sanitize() {
    local program kernel stages stage output tools version count=0 findings=0
    if ! program=$(sanitizer_program); then
        echo "compute-sanitizer is neither on the search path nor in a CUDA folder: install the CUDA toolkit"
        return 1
    fi
    stages=
    for kernel in $kernels; do
        for stage in ${STAGES:-$("$eightfold" list stages --kernel "$kernel" | sed -n "s/^ *$kernel:\([^ ]*\) .*/\1/p")}; do
            stages+=" $kernel:$stage"
        done
        [ "$kernel" = hopper ] && [ -z "${STAGES:-}" ] && stages+=" hopper:few-keys hopper:pairs hopper:tall hopper:wide"
    done
    tools=${TOOLS:-memcheck racecheck initcheck synccheck}
    version=$("$program" --version | grep -oE '[0-9]+(\.[0-9]+){2,}' | head -n 1)
    rm -f "$out"/log/watched-*
    for stage in $stages; do
        # Results of 16 bits are stored by other instructions.
        for output in f32 bf16; do
            watch_one "$program" "$tools" "$stage" "$output" &
            # The tools of three side by side: each mostly waits for its own process to start.
            if [ $((++count % 3)) -eq 0 ]; then wait; fi
        done
    done
    wait
    for stage in $stages; do
        for output in f32 bf16; do
            if [ -e "$out/log/watched-${stage/:/-}-$output.tsv" ]; then continue; fi
            echo "$stage, $output was not watched any more: there is no record of the tools"
            return 1
        done
    done
    printf '%-28s' 'stage, output' && printf '%-14s' $tools && printf '\n'
    {
        printf 'compute-sanitizer\t%s\tshapes %s; pairs %s; tall %s; wide %s\n' "$version" \
            "${shapes[*]}" "${paired_shapes[*]}" "${tall_shapes[*]}" "${wide_shapes[*]}"
        for stage in $stages; do cat "$out/log/watched-${stage/:/-}-f32.tsv" "$out/log/watched-${stage/:/-}-bf16.tsv"; done
    } >"$out/log/sanitizer.tsv"
    for stage in $stages; do cat "$out/log/watched-${stage/:/-}-f32.txt" "$out/log/watched-${stage/:/-}-bf16.txt"; done
    if [ -e "$out/log/watched-failed" ]; then findings=1; fi
    job sanitizer-record "$eightfold" records "$out/records" --import "$out/log/sanitizer.tsv" || findings=1
    return $findings
}

# One stage under all tools: a line for a person, and a line of each for the record.
watch_one() {
    local program=$1 tools=$2 stage=$3 output=$4 tool name code found line most
    local variant=$stage watched=("${shapes[@]}") log=$out/log/watched-${stage/:/-}-$output
    case $stage in
    hopper:few-keys) variant=$few_keys ;;
    hopper:pairs) variant=$pairs watched=("${paired_shapes[@]}") ;;
    hopper:tall) variant=$tall watched=("${tall_shapes[@]}") ;;
    hopper:wide) variant=$wide watched=("${wide_shapes[@]}") ;;
    esac
    most=$(left)
    if [ "$most" -le 0 ]; then return; fi
    local run=(timeout -k 5 "$most")
    local gated=("$eightfold" run --variant "$variant" --shape "${watched[@]}" --dtype "$output" --families gaussian
        --seeds 1 --records "$out/sanitized")
    # Compiled and cached first: the tools need only watch the kernel.
    "${run[@]}" "${gated[@]}" >"$out/log/plain-${stage/:/-}-$output.txt" 2>&1 || : >"$out/log/watched-failed"
    for tool in $tools; do
        name=$tool-${stage/:/-}-$output
        {
            "${run[@]}" "$program" --tool "$tool" --error-exitcode 3 "${gated[@]}" >"$out/log/$name.txt" 2>&1
            echo $? >"$out/log/$name.code"
        } &
    done
    wait
    line=$(printf '%-28s' "$stage, $output")
    : >"$log.tsv"
    for tool in $tools; do
        name=$tool-${stage/:/-}-$output
        code=$(cat "$out/log/$name.code")
        found=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/log/$name.txt" | tail -n 1 | grep -oE '[0-9]+ (errors?|hazards?)' | head -n 1)
        if [ "$code" -eq 0 ]; then
            line+=$(printf ' %-13s' "${found:-clean}")
            found=${found:-0}
        else
            : >"$out/log/watched-failed"
            line+=$(printf ' %-13s' "${found:-exit} ($code)")
            # It ended badly: whatever it counted, that is one finding at least.
            [ "${found%% *}" = 0 ] && found=1
            found=${found:-1}
        fi
        printf '%s, %s\t%s\t%s\n' "$stage" "$output" "$tool" "${found%% *}" >>"$log.tsv"
    done
    printf '%s\n' "$line" >"$log.txt"
}

for section in $sections; do
    printf '== %s\n' "$section"
    "section_$section"
    settle
    pack
done
exit $failed
