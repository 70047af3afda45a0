//! Kernels through the real NVRTC. Where there is none the tests say so and pass, unless `EIGHTFOLD_REQUIRE_NVRTC` is
//! set.

use eightfold::Error;
use eightfold::cuda::Arch;
use eightfold::lab::compile::{Compiler, Cubin, Program, set_nvrtc};
use eightfold_lab::compile::{Compiled, compile_all, compile_text};
use eightfold_lab::environment;
use std::fs;
use std::path::Path;

/// Uses static and dynamic shared memory; `FACTOR` goes into the code, any other macro does not.
const KERNEL: &str = r#"
#ifndef FACTOR
#define FACTOR 1
#endif
extern "C" __global__ void k(float *p) {
    __shared__ float own[1024];
    extern __shared__ float more[];
    own[threadIdx.x] = p[threadIdx.x] * FACTOR;
    more[threadIdx.x] = p[1];
    __syncthreads();
    p[0] = own[1023 - threadIdx.x] + more[3];
}
"#;

/// More live values than registers when a thousand threads share them.
const SPILLING: &str = r#"
extern "C" __global__ void __launch_bounds__(1024) k(float *p, int n) {
    float a[96];
#pragma unroll
    for (int i = 0; i < 96; i++) a[i] = p[i * 1024 + threadIdx.x];
    for (int j = 0; j < n; j++) {
#pragma unroll
        for (int i = 0; i < 96; i++) a[i] = a[i] * a[(i * 7 + 1) % 96] + a[(i * 5 + 3) % 96];
    }
#pragma unroll
    for (int i = 0; i < 96; i++) p[i * 1024 + threadIdx.x] = a[i];
}
"#;

fn program(defines: &[(&'static str, &str)]) -> Program {
    let defines = defines.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Program { file: "test.cu", entry: "k", defines, dynamic_shared_bytes: 4096 }
}

/// The NVRTC of this machine with a cache in this folder.
fn compiler(cache: &Path) -> Option<Compiler> {
    compiler_with(cache, 64 << 20)
}

fn compiler_with(cache: &Path, max_bytes: u64) -> Option<Compiler> {
    if let Err(error) = environment::compiler() {
        assert!(std::env::var_os("EIGHTFOLD_REQUIRE_NVRTC").is_none(), "{error}");
        eprintln!("skipped: {error}");
        return None;
    }
    let used = Compiler::search().last().unwrap();
    Some(Compiler::load(&used.path).unwrap().with_cache(cache, max_bytes))
}

fn compile(compiler: &Compiler, text: &str, defines: &[(&'static str, &str)], arch: Arch) -> Compiled {
    compile_text(compiler, text, &program(defines), arch).unwrap()
}

#[test]
fn a_kernel_for_every_architecture() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    for arch in Arch::ALL {
        let Compiled { cubin, resources, .. } = compile(&compiler, KERNEL, &[], *arch);
        assert_eq!((cubin.arch, cubin.entry.as_str(), cubin.compiler.as_str()), (*arch, "k", compiler.version()));
        assert!(cubin.image.starts_with(b"\x7fELF"));
        assert!((4..64).contains(&resources.registers), "{resources:?}");
        assert_eq!((resources.static_shared_bytes, resources.dynamic_shared_bytes), (4096, 4096));
        assert_eq!((resources.spill_store_bytes, resources.spill_load_bytes, resources.stack_bytes), (0, 0, 0));
        assert_eq!(resources.warnings, Vec::<String>::new());
    }
}

#[test]
fn shared_memory_agrees_with_the_cubin_in_every_shape() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    let shapes = [
        ("p[0] = 1;", 0),
        ("extern __shared__ float d[]; d[threadIdx.x] = p[1]; __syncthreads(); p[0] = d[3];", 0),
        ("__shared__ char c[13]; c[threadIdx.x] = p[1]; __syncthreads(); p[0] = c[3];", 13),
        ("__shared__ __align__(1024) float d[10]; d[threadIdx.x] = p[1]; __syncthreads(); p[0] = d[3];", 40),
        ("__shared__ char c[49152]; c[threadIdx.x] = p[1]; __syncthreads(); p[0] = c[3];", 49152),
    ];
    for (body, bytes) in shapes {
        let text = format!("extern \"C\" __global__ void k(float *p) {{ {body} }}");
        for arch in Arch::ALL {
            assert_eq!(compile(&compiler, &text, &[], *arch).resources.static_shared_bytes, bytes, "{arch}: {body}");
        }
    }
}

#[test]
fn what_a_called_function_needs_is_the_kernels() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    let text = r#"
        __noinline__ float pick(float x, float *p) {
            float a[30];
            for (int i = 0; i < 30; i++) a[i] = p[i];
            a[(int)x] = x;
            return a[(int)x + 1];
        }
        extern "C" __global__ void k(float *p) { p[0] = pick(p[3], p) + pick(p[7], p); }
        extern "C" __global__ void other(float *p) { p[0] = 2; }
    "#;
    for arch in Arch::ALL {
        assert_eq!(compile(&compiler, text, &[], *arch).resources.stack_bytes, 120);
    }
}

#[test]
fn spills_are_seen_and_warned_of() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    for arch in Arch::ALL {
        let resources = compile(&compiler, SPILLING, &[], *arch).resources;
        assert!(resources.spill_store_bytes > 0 && resources.spill_load_bytes > 0, "{resources:?}");
        assert!(resources.stack_bytes > 0 && resources.registers == 64, "{resources:?}");
        assert!(resources.warnings.iter().any(|line| line.contains("spilled")), "{resources:?}");
    }
}

#[test]
fn the_hash_follows_the_code_alone() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    for arch in Arch::ALL {
        let hash = |defines: &[(&'static str, &str)]| compile(&compiler, KERNEL, defines, *arch).code_hash;
        let plain = hash(&[]);
        assert_eq!(plain, hash(&[("FACTOR", "1"), ("IRRELEVANT", "7")]));
        assert_ne!(plain, hash(&[("FACTOR", "3")]));
        let commented = format!("// a comment moves every line\n{KERNEL}");
        assert_eq!(plain, compile(&compiler, &commented, &[], *arch).code_hash);
        let with_other = format!("extern \"C\" __global__ void a(float *p) {{ p[7] = 7; }}\n{KERNEL}");
        assert_eq!(plain, compile(&compiler, &with_other, &[], *arch).code_hash);
    }
}

#[test]
fn what_does_not_compile_is_told_with_file_and_line() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    let error = |text: &str, defines: &[(&'static str, &str)]| {
        let error = compile_text(&compiler, text, &program(defines), Arch::Sm89).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        error.to_string()
    };
    let undefined = error("\nextern \"C\" __global__ void k(float *p) { p[0] = nothing; }", &[]);
    assert!(undefined.contains("test.cu(2): error: identifier \"nothing\" is undefined"), "{undefined}");
    let asserted = error("static_assert(N == 4, \"N must be 4\");", &[("N", "3")]);
    assert!(asserted.contains("N must be 4") && asserted.contains("N=3"), "{asserted}");
    let assembler = error("extern \"C\" __global__ void k() { asm volatile(\"bogus.f32;\"); }", &[]);
    assert!(assembler.contains("bogus"), "{assembler}");
    let shared = "extern \"C\" __global__ void k(float *p) { __shared__ char c[500000]; c[threadIdx.x] = 1; \
                  __syncthreads(); p[0] = c[3]; }";
    assert!(error(shared, &[]).contains("too much shared data"), "{}", error(shared, &[]));
    assert!(error("#include \"nowhere.cuh\"", &[]).contains("nowhere.cuh"));
    assert!(error("__device__ int nothing_to_launch;", &[]).contains("no machine code"));
    assert!(error("__global__ void k() {}", &[]).contains("only for _Z1kv"));
    assert!(error(KERNEL, &[("FACTOR", "1\0")]).contains("NUL"));
    assert!(error("\0", &[]).contains("NUL"));
    let unknown = compiler.compile(&program(&[]), Arch::Sm89).unwrap_err().to_string();
    assert!(unknown.contains("`test.cu` is unknown"), "{unknown}");
}

#[test]
fn compiled_once_and_taken_from_the_cache_after() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    let first = compile(&compiler, SPILLING, &[], Arch::Sm90);
    let second = compile(&compiler, SPILLING, &[], Arch::Sm90);
    assert!(!first.cubin.cached && second.cubin.cached);
    assert_eq!(Cubin { cached: true, ..first.cubin.clone() }, second.cubin);
    assert_eq!((&first.resources, first.code_hash), (&second.resources, second.code_hash));
    assert!(!compile(&compiler, SPILLING, &[], Arch::Sm89).cubin.cached);
    assert!(!compile(&compiler, SPILLING, &[("A", "1")], Arch::Sm90).cubin.cached);
    assert!(!compile(&compiler, &format!("{SPILLING} "), &[], Arch::Sm90).cubin.cached);
    let more = Program { dynamic_shared_bytes: 1, ..program(&[]) };
    let third = compile_text(&compiler, SPILLING, &more, Arch::Sm90).unwrap();
    assert!(third.cubin.cached && third.resources.dynamic_shared_bytes == 1);

    for entry in fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().path()) {
        let bytes = fs::read(&entry).unwrap();
        fs::write(&entry, &bytes[..bytes.len() / 2]).unwrap();
    }
    let rebuilt = compile(&compiler, SPILLING, &[], Arch::Sm90);
    // The log tells how long it took, too.
    assert_eq!((&rebuilt.resources, rebuilt.cubin.image), (&first.resources, first.cubin.image));
    assert!(compile(&compiler, SPILLING, &[], Arch::Sm90).cubin.cached);
    assert_eq!(compiler.cache_note(), None);
}

#[test]
fn without_a_folder_to_write_to_it_still_compiles() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let Some(compiler) = compiler(&file.join("cache")) else { return };
    for _ in 0..2 {
        assert!(!compile(&compiler, KERNEL, &[], Arch::Sm90).cubin.cached);
    }
    assert!(compiler.cache_note().unwrap().contains("not kept"));
}

#[test]
fn the_cache_stays_within_its_size() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler_with(cache.path(), 20_000) else { return };
    for factor in ["2", "3", "4", "5", "6", "7"] {
        compile(&compiler, KERNEL, &[("FACTOR", factor)], Arch::Sm90);
    }
    let sizes: Vec<u64> =
        fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
    assert!(sizes.len() < 6 && sizes.iter().sum::<u64>() <= 20_000, "{sizes:?}");
    assert!(compile(&compiler, KERNEL, &[("FACTOR", "7")], Arch::Sm90).cubin.cached);
}

#[test]
fn many_threads_compile_at_once() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    let alone = compile(&compiler, KERNEL, &[("FACTOR", "3")], Arch::Sm89).code_hash;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let compiler = &compiler;
            scope.spawn(move || {
                let uncached = format!("// thread {thread}\n{KERNEL}");
                assert_eq!(compile(compiler, &uncached, &[("FACTOR", "3")], Arch::Sm89).code_hash, alone);
                compile(compiler, KERNEL, &[("FACTOR", "5")], Arch::Sm90);
            });
        }
    });
    let jobs = [(program(&[]), Arch::Sm89), (program(&[]), Arch::Sm90)];
    assert!(compile_all(&compiler, &jobs).iter().all(|result| matches!(result, Err(Error::Invalid { .. }))));
}

#[test]
fn a_library_is_named_before_the_search_or_not_at_all() {
    let _ = environment::compiler();
    let error = set_nvrtc("/somewhere").unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    for tried in Compiler::search() {
        assert!(!tried.origin.is_empty() && !tried.path.as_os_str().is_empty());
    }
}
