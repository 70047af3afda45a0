#!/usr/bin/env bash
# Builds the wheel, installs it into fresh virtual environments, and runs its tests there: without torch, with numpy and
# JAX, and with torch and transformers on the CPU. Needs Rust and Python 3.10 or later, with pip.
#
#   crates/eightfold-python/ci.sh [PROFILE]
#
# PROFILE is `release`, which also leaves the wheel in dist/ (the default), or `dev`, which builds faster.
#
# Environment:
#   EIGHTFOLD      the command that goes into the wheel [default: it is built]
#   PYTHON         the Python of the environments [default: python3]
#   TORCH_BACKEND  where torch comes from, as uv has it [default: `cpu` where PyTorch's own index can be reached, and else the
#                  package index's build for CUDA, which runs on the CPU, too]
set -euo pipefail
cd "$(dirname "$0")/../.."
profile=${1:-release}
root=$PWD
crate=$root/crates/eightfold-python
place=$root/target/python
python=${PYTHON:-python3}
# As on the machine of the records in results/; the wheel itself asks for 2.4 or later.
torch=(torch==2.11.0 'transformers>=5,<6')
folder=$profile
[ "$profile" = dev ] && folder=debug
command=${EIGHTFOLD:-target/$folder/eightfold}

mkdir -p "$place"
export UV_CACHE_DIR=$place/cache UV_PYTHON_DOWNLOADS=never
# Where pip takes packages from, uv does.
index=$("$python" -m pip config get global.index-url 2>/dev/null) && export UV_DEFAULT_INDEX=$index
uv=$place/tools/bin/uv

timed() {
    local start=$SECONDS
    "${@:2}"
    printf '%s: %d s\n' "$1" $((SECONDS - start))
}

tools() {
    "$python" -m venv "$place/tools"
    "$place/tools/bin/python" -m pip install --quiet --disable-pip-version-check uv 'maturin>=1.9,<2'
}

# The wheel, with the command in it.
build() {
    local bin=$crate/python/eightfold/bin
    [ -n "${EIGHTFOLD:-}" ] || cargo build --quiet --profile "$profile" -p eightfold-cli
    mkdir -p "$bin"
    cp "$command" "$bin/eightfold"
    strip "$bin/eightfold" 2>/dev/null || true
    rm -rf "$place/dist"
    "$place/tools/bin/maturin" build --quiet --profile "$profile" --manifest-path "$crate/Cargo.toml" --out "$place/dist"
    if [ "$profile" = release ]; then
        mkdir -p dist
        cp "$place"/dist/*.whl dist/
    fi
}

environment() {
    local name=$1
    shift
    "$uv" venv --quiet --clear --python "$python" "$place/$name"
    "$uv" pip install --quiet --python "$place/$name/bin/python" numpy ml_dtypes pytest "$@"
}

environments() {
    environment numpy jax
    environment torch ${backend:+--torch-backend "$backend"} "${torch[@]}"
}

tests() {
    "$uv" pip install --quiet --python "$place/$1/bin/python" "$place"/dist/*.whl
    # Where no folder is taken for a package, so that the installed ones are what is tested.
    (cd "$place/dist" && EIGHTFOLD_REQUIRE_COMMAND=1 "$place/$1/bin/python" -m pytest -q -p no:cacheprovider -p no:logging "$crate/tests")
}

reaches_torch() { curl -fs -m 5 -o /dev/null https://download.pytorch.org/whl/cpu/torch/; }
backend=${TORCH_BACKEND:-$(reaches_torch && echo cpu || true)}

timed "tools" tools
# One waits for the network, the other for the compiler.
timed "environments" environments &
environments=$!
timed "wheel" build
wait $environments
ls -l "$place"/dist/*.whl
timed "tests without torch" tests numpy
timed "tests with torch on the CPU" tests torch
