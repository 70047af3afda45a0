#!/usr/bin/env bash
# Makes, on a machine with a GPU, the records that the README shows, and puts every stage through compute-sanitizer.
#
#   scripts/h200.sh OUT [SECTION]...
#
# OUT gets the records (OUT/records), the table of the sanitizer (OUT/sanitizer.txt) and everything that the tools say
# (OUT/log); a short table of each section is printed.
# SECTIONs, all of them unless some are named:
#   doctor         what this machine has
#   tests          the tests of the CUDA backend, none of which may be skipped here
#   build          every stage compiled by NVRTC and, beside it, by nvcc
#   run            the gates for every stage and for what the plan picks, standard shapes, both masks
#   odd            the gates for every stage on sizes that divide nothing
#   many-keys      the gates for every stage of the hopper kernel, and for what the plan picks, on 4096 to 131072 keys and V of
#                  mean 1, where sums that lose small terms go wrong
#   few-heads      the gates for what the plan picks, both masks, on Gaussian inputs of eight seeds, from which errors vary most there
#   ladder         gates, timing and verdicts for every stage, both masks, beside PyTorch's four backends
#   bench          what the plan picks, both masks, beside PyTorch's four backends
#   flagship       what the plan picks for each accuracy on the shapes that large models have, both masks, beside the same
#   optimisations  what each optimisation of the hopper kernel brings, beside what was predicted of it
#   quantizer      the quantiser beside copies that move as many bytes, by shape
#   profile        what Nsight Compute counts for every stage, and with hopper for what the plan picks on the shapes of
#                  flagship, both masks; what bounds each
#   plant          ten tries each of a planted slowdown, a planted speed-up and nothing planted: does compare tell?
#   evolve         each kernel's knobs searched for three shapes: a random survey and a guided search each, and verdicts
#   sanitizer      memcheck, racecheck, initcheck and synccheck for every stage on one tile, a tail and several tiles
#
# Environment:
#   EIGHTFOLD  the binary [default: target/release/eightfold, which is built if there is none]
#   TESTS      their binary, which `cargo test --release -p eightfold-lab --test cuda --no-run` names [default: built and run by cargo]
#   PYTHON     the Python that has PyTorch [default: python3]
#   KERNELS    the kernels whose stages are built, gated, timed, searched and sanitised [default: ladder hopper]
#   STAGES     the stages to sanitise [default: all]
#   SHAPES     the shapes to search [default: mission long 4,16,4096,128]
#   SURVEY     how long each random survey lasts at most [default: 60s]
#   SEARCH     how long each guided search lasts, without its validation [default: 15s]
#   TOOLS      the tools to use [default: memcheck racecheck initcheck synccheck]
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
all="doctor tests build run odd many-keys few-heads ladder bench flagship optimisations quantizer profile plant evolve sanitizer"
sections=${*:-$all}
for section in $sections; do
    case " $all " in
    *" $section "*) ;;
    *)
        echo "error: section \`$section\` is unknown (valid: $all)" >&2
        exit 2
        ;;
    esac
done

# A relative path is meant from where the script was called.
[ -n "${EIGHTFOLD:-}" ] && EIGHTFOLD=$(realpath -m "$EIGHTFOLD")
tests=${TESTS:+$(realpath -m "$TESTS")}
cd "$(dirname "$0")/.." || exit 2
eightfold=${EIGHTFOLD:-$PWD/target/release/eightfold}
if [ ! -x "$eightfold" ]; then
    if [ -n "${EIGHTFOLD:-}" ]; then
        echo "error: EIGHTFOLD names $eightfold, which is not a program" >&2
        exit 2
    fi
    cargo build --release || exit 2
fi
python=${PYTHON:-python3}
kernels=${KERNELS:-ladder hopper}
every_accuracy="--accuracy fast balanced exact-exp precise"
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

# Runs a job, keeps all that it says, and shows how it ended and how long it took.
job() {
    local name=$1 start=$SECONDS code
    shift
    "$@" >"$out/log/$name.txt" 2>"$out/log/$name.err"
    code=$?
    printf '%-24s exit %d after %d s\n' "$name" "$code" $((SECONDS - start))
    if [ $code -ne 0 ]; then
        failed=1
        tail -n 3 "$out/log/$name.err" | sed 's/^/    /'
    fi
    return $code
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
    job doctor "$eightfold" doctor --python "$python" --out "$out/records"
    grep -E '^[+-] (GPU|NVRTC|PyTorch|ncu|compute-sanitizer)' "$out/log/doctor.txt" | cut -c1-160
}

section_tests() {
    local program=(cargo test --release -p eightfold-lab --test cuda --)
    if [ -n "$tests" ]; then
        program=("$tests")
    elif ! command -v cargo >/dev/null; then
        echo "there is no cargo to build them: name their binary, built elsewhere, by TESTS"
        failed=1
        return
    fi
    job tests env EIGHTFOLD_REQUIRE_DEVICE=1 "${program[@]}" ||
        grep -hE 'panicked|^  for ' "$out/log/tests.txt" "$out/log/tests.err" | cut -c1-160 | head -n 20
    grep -E '^test result' "$out/log/tests.txt"
}

section_build() {
    local kernel arch
    for kernel in $kernels; do
        arch=sm_90
        [ "$kernel" = hopper ] && arch=sm_90a
        job "build-$kernel" "$eightfold" run --kernel "$kernel" --arch $arch --nvcc --no-toggle --out "$out/records" ||
            troubles "build-$kernel"
    done
}

section_run() {
    local kernel mask
    for mask in "" --causal; do
        for kernel in $kernels; do
            job "run-$kernel$mask" "$eightfold" run --kernel "$kernel" $mask --out "$out/records" ||
                troubles "run-$kernel$mask"
        done
        job "run-plan$mask" "$eightfold" run $every_accuracy $mask --out "$out/records" || troubles "run-plan$mask"
    done
}

section_odd() {
    local kernel
    for kernel in $kernels; do
        job "odd-$kernel" "$eightfold" run --kernel "$kernel" --odd --out "$out/records" || troubles "odd-$kernel"
    done
}

section_many-keys() {
    local len shapes=
    for len in 4096 16384 65536 131072; do
        shapes+=" 1,4,4,192,$len,64 1,4,4,192,$len,128"
    done
    job many-keys-stages "$eightfold" run --kernel hopper --shape $shapes --families biased-v --out "$out/records" ||
        troubles many-keys-stages
    # Blocks share the keys of these, but not of the last.
    job many-keys-plan "$eightfold" run $every_accuracy --shape $shapes 1,24,24,192,65536,64 --families biased-v gaussian \
        --out "$out/records" || troubles many-keys-plan
}

section_few-heads() {
    local gates=("$eightfold" run $every_accuracy --families gaussian --seeds 1 2 3 4 5 6 7 8 --out "$out/records")
    job few-heads "${gates[@]}" --shape 1,1,512,64 1,1,1024,64 1,2,2048,64 1,4,4096,64 1,1,4096,128 1,1,8192,64 1,2,8192,64 \
        1,2,8192,128 1,8,16384,64 1,1,65536,64 1,2,65536,128 1,1,131072,64 || troubles few-heads
    # Whole prompts, and their ends.
    job few-heads-causal "${gates[@]}" --causal --shape 1,1,8192,64 1,2,65536,128 1,2,2,4096,16384,64 1,1,1,2048,65536,128 ||
        troubles few-heads-causal
}

section_ladder() {
    local kernel name
    for kernel in $kernels; do
        for name in "$kernel" "$kernel-causal"; do
            local mask=()
            [ "$name" = "$kernel-causal" ] && mask=(--causal)
            job "$name" "$eightfold" --kernel "$kernel" ${mask[@]+"${mask[@]}"} --peer torch --python "$python" \
                --out "$out/records" || troubles "$name"
            cut -c1-180 "$out/log/$name.txt"
        done
    done
}

section_bench() {
    local name
    for name in bench bench-causal; do
        local mask=()
        [ "$name" = bench-causal ] && mask=(--causal)
        job "$name" "$eightfold" bench ${mask[@]+"${mask[@]}"} --peer torch --python "$python" --out "$out/records" \
            --shape small mission mission_b2 long 1,8,512,128 2,16,2048,128 || troubles "$name"
        cut -c1-160 "$out/log/$name.txt"
    done
}

section_flagship() {
    local name
    for name in flagship flagship-causal; do
        local mask=()
        [ "$name" = flagship-causal ] && mask=(--causal)
        job "$name" "$eightfold" bench $every_accuracy ${mask[@]+"${mask[@]}"} --peer torch \
            --python "$python" --out "$out/records" --shape $flagship_shapes || troubles "$name"
        cut -c1-160 "$out/log/$name.txt"
    done
}

section_optimisations() {
    has_kernel hopper || return 0
    job optimisations "$eightfold" ledger --kernel hopper --measure --out "$out/records" ||
        grep '^error' "$out/log/optimisations.err"
    cut -c1-180 "$out/log/optimisations.txt"
}

section_quantizer() {
    job quantizer "$eightfold" bench --quantizer --shape 4,16,4096,128 4,16,4096,64 2,16,16384,128 1,8,1024,128 \
        --out "$out/records" || troubles quantizer
    cut -c1-160 "$out/log/quantizer.txt"
}

section_profile() {
    local kernel shapes mask
    for kernel in $kernels; do
        shapes="mission long"
        [ "$kernel" = hopper ] && shapes="long 4,16,4096,64 4,16,4096,128"
        job "profile-$kernel" "$eightfold" profile --kernel "$kernel" --shape $shapes --out "$out/records" ||
            troubles "profile-$kernel"
        cut -c1-200 "$out/log/profile-$kernel.txt"
    done
    has_kernel hopper || return 0
    # With the inputs where they are when launches are timed.
    for mask in "" --causal; do
        job "profile-plan$mask" "$eightfold" profile --cache hot $mask --shape $flagship_shapes --out "$out/records" ||
            troubles "profile-plan$mask"
        cut -c1-200 "$out/log/profile-plan$mask.txt"
    done
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
                --budget "${SURVEY:-60s}" --no-validation --out "$out/surveys/$name"
            job "search-$name" "${evolve[@]}" --restrict "$space" --budget "${SEARCH:-15s}" --out "$out/searches/$name"
            cut -c1-200 "$out/log/search-$name.txt"
        done
    done
}

sanitizer_program() {
    local folder
    if command -v compute-sanitizer; then return; fi
    for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /opt/cuda; do
        for folder in "$folder/bin" "$folder/compute-sanitizer"; do
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
shapes=(small 1,2,77,64 1,1,300,64)
paired_shapes=(1,1,128,64 1,2,77,64 1,1,380,64)
tall_shapes=(1,2,77,128 1,1,300,128)
wide_shapes=(small 1,2,77,128 1,1,200,64)

section_sanitizer() {
    local program kernel stages stage variant watched output tool name code line found
    if ! program=$(sanitizer_program); then
        echo "compute-sanitizer is neither on the search path nor in a CUDA folder: install the CUDA toolkit"
        failed=1
        return
    fi
    stages=
    for kernel in $kernels; do
        # The answer to a name that does not exist lists those that do.
        for stage in ${STAGES:-$("$eightfold" run --variant "$kernel:no-such-stage" 2>&1 | sed 's/.*valid: //; s/[),]//g')}; do
            stages+=" $kernel:$stage"
        done
        [ "$kernel" = hopper ] && [ -z "${STAGES:-}" ] && stages+=" hopper:few-keys hopper:pairs hopper:tall hopper:wide"
    done
    local tools=${TOOLS:-memcheck racecheck initcheck synccheck}
    {
        printf 'eightfold %s, commit %s\n' "$("$eightfold" --version | cut -d' ' -f2)" "$(git rev-parse HEAD 2>/dev/null)"
        printf '%s, shapes %s; pairs %s; tall %s; wide %s\n' "$("$program" --version | grep -i version | head -n 1)" \
            "${shapes[*]}" "${paired_shapes[*]}" "${tall_shapes[*]}" "${wide_shapes[*]}"
        printf '%-28s' 'stage, output'
        printf '%-14s' $tools
        printf '\n'
    } | tee "$out/sanitizer.txt"
    for stage in $stages; do
        variant=$stage watched=("${shapes[@]}")
        case $stage in
        hopper:few-keys) variant=$few_keys ;;
        hopper:pairs) variant=$pairs watched=("${paired_shapes[@]}") ;;
        hopper:tall) variant=$tall watched=("${tall_shapes[@]}") ;;
        hopper:wide) variant=$wide watched=("${wide_shapes[@]}") ;;
        esac
        # Results of 16 bits are stored by other instructions.
        for output in f32 bf16; do
            local run=("$eightfold" run --variant "$variant" --shape "${watched[@]}" --output "$output" --families gaussian
                --seeds 1 --out "$out/sanitized")
            # Compiled and cached first: the tools need only watch the kernel.
            "${run[@]}" >"$out/log/plain-${stage/:/-}-$output.txt" 2>&1 || failed=1
            # The tools side by side: each mostly waits for its own process to start.
            for tool in $tools; do
                name=$tool-${stage/:/-}-$output
                {
                    "$program" --tool "$tool" --error-exitcode 3 "${run[@]}" >"$out/log/$name.txt" 2>&1
                    echo $? >"$out/log/$name.code"
                } &
            done
            wait
            line=$(printf '%-28s' "$stage, $output")
            for tool in $tools; do
                name=$tool-${stage/:/-}-$output
                code=$(cat "$out/log/$name.code")
                found=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/log/$name.txt" | tail -n 1 | grep -oE '[0-9]+ (errors?|hazards?)' | head -n 1)
                if [ "$code" -eq 0 ]; then
                    line+=$(printf ' %-13s' "${found:-clean}")
                else
                    failed=1
                    line+=$(printf ' %-13s' "${found:-exit} ($code)")
                fi
            done
            printf '%s\n' "$line" | tee -a "$out/sanitizer.txt"
        done
    done
}

for section in $sections; do
    printf '== %s\n' "$section"
    "section_$section"
done
exit $failed
