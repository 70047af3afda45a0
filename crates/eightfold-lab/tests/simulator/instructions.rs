//! Instructions one by one: the simulator's numbers against those of an H200, which `h200.json` keeps.
//!
//! The same source runs on both. `write_what_this_device_computes` makes the file, on a device.

use crate::support::simulator;
use cudarc::driver::sys;
use eightfold::cuda::Arch;
use eightfold::cuda::driver::Device;
use eightfold::lab::compile::Program;
use eightfold_lab::environment;
use eightfold_lab::simulate::{self, Schedule};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;

/// A kind of instruction: its name, its number in the source, the format, blocks, threads, words in and out of a block,
/// and what the words are.
struct Kind {
    name: &'static str,
    number: usize,
    e5m2: bool,
    blocks: usize,
    threads: usize,
    words_in: usize,
    words_out: usize,
    draw: fn(&mut Random, usize) -> u32,
}

const fn wgmma(name: &'static str, number: usize, e5m2: bool) -> Kind {
    let sums = if number == 0 { 32 } else { 16 };
    let draw = match (number, e5m2) {
        (0, false) => |random: &mut Random, at| if at < 1024 { random.e4m3() } else { random.float(-6, 8) },
        (0, true) => |random: &mut Random, at| if at < 1024 { random.e5m2() } else { random.float(-6, 8) },
        (_, false) => |random: &mut Random, at| if at < 1024 { random.e4m3() } else { random.halves() },
        (_, true) => |random: &mut Random, at| if at < 1024 { random.e5m2() } else { random.halves() },
    };
    Kind { name, number, e5m2, blocks: 6, threads: 128, words_in: 1024 + 128 * sums, words_out: 128 * sums, draw }
}

const fn mma(name: &'static str, number: usize, e5m2: bool) -> Kind {
    let draw = match (number, e5m2) {
        (2, _) => |random: &mut Random, at: usize| if at % 10 < 6 { random.halves() } else { random.float(-6, 8) },
        (_, false) => |random: &mut Random, at: usize| if at % 10 < 6 { random.e4m3() } else { random.float(-6, 8) },
        (_, true) => |random: &mut Random, at: usize| if at % 10 < 6 { random.e5m2() } else { random.float(-6, 8) },
    };
    Kind { name, number, e5m2, blocks: 64, threads: 32, words_in: 320, words_out: 128, draw }
}

const fn each(name: &'static str, number: usize, e5m2: bool, draw: fn(&mut Random, usize) -> u32) -> Kind {
    Kind { name, number, e5m2, blocks: 512, threads: 128, words_in: 384, words_out: 1024, draw }
}

/// Must be the same to the last bit.
const EXACT: [Kind; 11] = [
    wgmma("wgmma, E4M3, sums in f32", 0, false),
    wgmma("wgmma, E5M2, sums in f32", 0, true),
    wgmma("wgmma, E4M3, sums in f16", 1, false),
    wgmma("wgmma, E5M2, sums in f16", 1, true),
    mma("mma.sync, f16", 2, false),
    mma("mma.sync, E4M3", 3, false),
    mma("mma.sync, E5M2", 3, true),
    each("cvt and div.rn, E4M3", 4, false, |random, _| random.any_float()),
    each("cvt and div.rn, E5M2", 4, true, |random, _| random.any_float()),
    each("arithmetic of f16x2", 5, false, |random, _| random.halves()),
    // All but the largest value below zero, of which the hardware makes 1 and not the number before it.
    each("ex2.approx.f16x2, all values", 6, false, |random, _| random.next()),
];
/// Good to some units in the last place: how many the simulator may be off.
const APPROXIMATE: Kind = each("ex2, rcp and lg2.approx.f32", 7, false, |random, _| random.float(-20, 4));
const MOST_UNITS: [i64; 2] = [2, 1];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 32) as u32
    }

    /// A number with an exponent from here to there, or zero.
    fn float(&mut self, lowest: i32, highest: i32) -> u32 {
        let word = self.next();
        if word.is_multiple_of(16) {
            return 0;
        }
        let exponent = lowest + (self.next() % (highest - lowest) as u32) as i32;
        word & 0x807f_ffff | ((exponent + 127) as u32) << 23
    }

    /// Of any size, and now and then infinite or no number.
    fn any_float(&mut self) -> u32 {
        match self.next() % 16 {
            0 => [0, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 1, 0x0080_0000][self.next() as usize % 7],
            1 => self.next(),
            _ => self.float(-20, 20),
        }
    }

    fn halves(&mut self) -> u32 {
        let mut half = || {
            let word = self.next();
            let exponent = if word >> 28 == 0 { 0 } else { 8 + (word >> 16) % 14 };
            word & 0x8000 | exponent << 10 | if exponent == 0 { 0 } else { word & 0x3ff }
        };
        half() | half() << 16
    }

    fn codes(&mut self, is_number: fn(u32) -> bool) -> u32 {
        let mut code = || loop {
            let code = self.next() >> 13 & 255;
            if is_number(code) {
                return code;
            }
        };
        code() | code() << 8 | code() << 16 | code() << 24
    }

    fn e4m3(&mut self) -> u32 {
        self.codes(|code| code & 0x7f != 0x7f)
    }

    fn e5m2(&mut self) -> u32 {
        self.codes(|code| code & 0x7f < 0x70)
    }
}

#[repr(C)]
struct Numbers {
    input: sys::CUdeviceptr,
    output: sys::CUdeviceptr,
}

/// What the device of this process computes.
fn compute(kind: &Kind) -> Vec<u32> {
    let program = Program {
        file: "instructions.cu",
        entry: "numbers",
        defines: vec![("KIND", kind.number.to_string()), ("IS_E5M2", u8::from(kind.e5m2).to_string())],
        dynamic_shared_bytes: 8192,
    };
    let device = Device::default().unwrap();
    device.stream().unwrap().synchronize().unwrap();
    let cubin =
        environment::compiler().unwrap().compile_text(include_str!("instructions.cu"), &program, Arch::Sm90a).unwrap();
    let mut random = Random(kind.number as u64 * 2 + u64::from(kind.e5m2));
    let input: Vec<u32> = (0..kind.blocks)
        .flat_map(|_| (0..kind.words_in).map(|at| (kind.draw)(&mut random, at)).collect::<Vec<_>>())
        .collect();
    let mut output = vec![0u32; kind.blocks * kind.words_out];
    // SAFETY: the driver is loaded by `device`; handles and buffers are made here, outlive their uses and are as large as
    // what is copied; the kernel takes one argument of this layout and stays within its block's words.
    unsafe {
        let done = |result: sys::CUresult| assert_eq!(result, sys::CUresult::CUDA_SUCCESS, "{}", kind.name);
        let (mut module, mut function, mut stream) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let (mut context, mut numbers) = (ptr::null_mut(), Numbers { input: 0, output: 0 });
        done(sys::cuDevicePrimaryCtxRetain(&mut context, 0));
        done(sys::cuCtxSetCurrent(context));
        done(sys::cuModuleLoadData(&mut module, cubin.image.as_ptr().cast()));
        done(sys::cuModuleGetFunction(&mut function, module, c"numbers".as_ptr()));
        done(sys::cuStreamCreate(&mut stream, 0));
        done(sys::cuMemAlloc_v2(&mut numbers.input, 4 * input.len()));
        done(sys::cuMemAlloc_v2(&mut numbers.output, 4 * output.len()));
        done(sys::cuMemcpyHtoDAsync_v2(numbers.input, input.as_ptr().cast(), 4 * input.len(), stream));
        let config = sys::CUlaunchConfig {
            gridDimX: kind.blocks as u32,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: kind.threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 8192,
            hStream: stream,
            attrs: ptr::null_mut(),
            numAttrs: 0,
        };
        let mut arguments = [ptr::from_mut(&mut numbers).cast::<c_void>()];
        done(sys::cuLaunchKernelEx(&config, function, arguments.as_mut_ptr(), ptr::null_mut()));
        done(sys::cuMemcpyDtoHAsync_v2(output.as_mut_ptr().cast(), numbers.output, 4 * output.len(), stream));
        done(sys::cuStreamSynchronize(stream));
        done(sys::cuMemFree_v2(numbers.input));
        done(sys::cuMemFree_v2(numbers.output));
    }
    output
}

/// FNV-1a.
fn hash(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    format!(
        "{:016x}",
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    )
}

/// The values below zero that are next to it are left out.
fn without_exceptions(kind: &Kind, mut words: Vec<u32>) -> Vec<u32> {
    if kind.number == 6 {
        words[8 * 0x8001] = 0;
    }
    words
}

/// Of the approximations as many as fit a small file.
const KEPT: usize = 2048;

#[derive(serde::Serialize, serde::Deserialize)]
struct Fixture {
    device: String,
    /// Hashes of all results.
    exact: BTreeMap<String, String>,
    /// ex2 and rcp of the first numbers.
    approximate: Vec<[u32; 2]>,
}

fn computed() -> Fixture {
    let exact = EXACT.iter().map(|kind| (kind.name.to_owned(), hash(&without_exceptions(kind, compute(kind)))));
    let exact = exact.collect();
    let approximate = compute(&APPROXIMATE).chunks(8).take(KEPT).map(|words| [words[0], words[1]]).collect();
    Fixture { device: Device::default().unwrap().info().name.clone(), exact, approximate }
}

#[test]
fn instructions_give_the_bits_of_an_h200() {
    if !simulator() {
        return;
    }
    simulate::begin(Schedule { races: false, ..Schedule::of_seed(0) });
    let expected: Fixture = serde_json::from_str(include_str!("h200.json")).unwrap();
    assert_eq!(expected.device, "NVIDIA H200");
    let got = computed();
    let differing: Vec<_> = got.exact.iter().filter(|(name, hash)| expected.exact.get(*name) != Some(hash)).collect();
    assert!(differing.is_empty(), "{differing:?}");
    assert_eq!(got.approximate.len(), expected.approximate.len());
    for (index, most) in MOST_UNITS.into_iter().enumerate() {
        let off = got.approximate.iter().zip(&expected.approximate);
        let off = off.map(|(got, expected)| (i64::from(got[index] as i32) - i64::from(expected[index] as i32)).abs());
        assert!(off.max().unwrap() <= most, "{index}");
    }
}

#[test]
#[ignore = "for a device whose numbers are to be kept"]
fn write_what_this_device_computes() {
    let folder = crate::support::record_folder().expect("EIGHTFOLD_SIMULATOR_RECORD names the folder");
    std::fs::create_dir_all(&folder).unwrap();
    let text = serde_json::to_string(&computed()).unwrap();
    std::fs::write(folder.join("h200.json"), text.replace("],[", "],\n[") + "\n").unwrap();
}
