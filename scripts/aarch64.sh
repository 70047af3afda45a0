#!/usr/bin/env bash
# The library's CPU kernels on aarch64, emulated by QEMU. Needs qemu-aarch64, aarch64-linux-gnu-gcc and its C library.
#
# usage: scripts/aarch64.sh [TEST]...
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(uname -m)" != aarch64 ]; then
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
    # An emulated test takes many times as long.
    export PROPTEST_CASES="${PROPTEST_CASES:-24}" EIGHTFOLD_SAMPLE="${EIGHTFOLD_SAMPLE:-1}"
fi
# Test names: what is special to an architecture is in cpu::, and tests/cpu.rs has it all together.
cargo test --target aarch64-unknown-linux-gnu -p eightfold --lib -- "${@:-cpu::}"
cargo test --target aarch64-unknown-linux-gnu -p eightfold --test cpu -- "$@"
