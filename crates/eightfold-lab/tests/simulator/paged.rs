//! Attention to pages, appending and merging on the simulated device, with races looked for.

use crate::pages::{Case, Noise, cases, on_device, ragged_cases, run, run_alone, sweep};
use crate::support::{in_parallel, simulator};
use eightfold::cuda::Workspace;
use eightfold::cuda::driver::Device;
use eightfold::cuda::paged::{
    AppendAddresses, CacheLimits, KvCache, MergeOutputs, PagedAddresses, PagedAppend, PagedAttention, PagedKeys,
    PagedQueries, PartAddresses, QueryFormat,
};
use eightfold::lab::driver::{Buffer, download, upload};
use eightfold::quantize::Quantizer;
use eightfold::serving::{
    AppendScales, KvCache as HostCache, Packed, PageLayout, PageScales, PageStrides, PagedTensorMut, merge,
};
use eightfold::{Dims, Fp8Format, Granularity, Layout, Output, OutputFormat, Problem, Result, Shape, Strides, Values};
use eightfold_lab::decode;
use eightfold_lab::gates::{Outcome, Thresholds, TimingPolicy};
use eightfold_lab::measure::{Manner, Method};
use eightfold_lab::peers::Torch;
use eightfold_lab::simulate::{self, Schedule};
use half::{bf16, f16};
use std::path::Path;
use std::process::Command;
use std::{fs, ptr};

#[test]
fn pages_give_what_float64_gives() {
    if !simulator() {
        return;
    }
    let cases = cases().into_iter().chain(ragged_cases()).chain(sweep().into_iter().step_by(37));
    let jobs: Vec<(Case, u64)> = cases.flat_map(|case| [(case.clone(), 0), (case, 1)]).collect();
    let failed: Vec<String> = in_parallel(jobs, |(case, seed)| {
        let name = case.name;
        simulate::begin(Schedule::of_seed(seed));
        let ended = run(&case).and_then(|()| match simulate::findings() {
            found if found.is_empty() => Ok(()),
            found => Err(format!("{found:?}")),
        });
        ended.err().map(|error| format!("{name}, schedule {seed}: {error} {:?}", simulate::findings()))
    })
    .into_iter()
    .flatten()
    .collect();
    assert_eq!(failed, Vec::<String>::new());
}

#[test]
fn a_sequence_has_the_same_bits_alone() {
    if !simulator() {
        return;
    }
    let names = ["fixed cuts", "mixed", "chunks"];
    let jobs: Vec<Case> = cases().into_iter().chain(ragged_cases()).filter(|case| names.contains(&case.name)).collect();
    assert_eq!(jobs.len(), names.len());
    let failed: Vec<String> = in_parallel(jobs, |case| {
        simulate::begin(Schedule { races: false, ..Schedule::of_seed(0) });
        run_alone(&case).err().map(|error| format!("{}: {error} {:?}", case.name, simulate::findings()))
    })
    .into_iter()
    .flatten()
    .collect();
    assert_eq!(failed, Vec::<String>::new());
}

/// Bits of the host's, by the same slots into the same memory.
#[test]
fn appending_gives_the_bits_of_the_host() {
    if !simulator() {
        return;
    }
    let jobs: Vec<(OutputFormat, bool, usize)> =
        vec![(OutputFormat::Bf16, true, 64), (OutputFormat::F16, false, 128), (OutputFormat::F32, true, 96)];
    let failed: Vec<String> = in_parallel(jobs, |(values, computed, width)| {
        append(values, computed, width).err().map(|error| format!("{values}, computed {computed}: {error}"))
    })
    .into_iter()
    .flatten()
    .collect();
    assert_eq!(failed, Vec::<String>::new());
}

fn append(format: OutputFormat, computed: bool, width: usize) -> std::result::Result<(), String> {
    let (pages, size, heads, tokens) = (5, 16, 3, 11);
    let noise = &mut Noise(3);
    let layout = PageLayout::hnd(pages, size, heads, width);
    let beside = PageStrides::new(size * heads, heads, 1);
    let granularity = if computed { PageScales::Token(beside) } else { PageScales::Head };
    let slots: Vec<i64> = (0..tokens as i64).map(|token| if token % 4 == 1 { -1 } else { token * 7 % 80 }).collect();
    let mut values = || -> (Vec<f32>, Vec<u8>) {
        let mut bytes = Vec::new();
        let mut round = |value: f32| match format {
            OutputFormat::F16 => {
                bytes.extend(f16::from_f32(value).to_ne_bytes());
                f16::from_f32(value).to_f32()
            }
            OutputFormat::Bf16 => {
                bytes.extend(bf16::from_f32(value).to_ne_bytes());
                bf16::from_f32(value).to_f32()
            }
            _ => {
                bytes.extend(value.to_ne_bytes());
                value
            }
        };
        let values = (0..tokens * heads * width).map(|index| round(noise.value() * (1 + index % 5) as f32)).collect();
        (values, bytes)
    };
    let (inputs, given) = ([values(), values()], vec![0.003f32, 0.01, 0.02]);

    simulate::begin(Schedule::of_seed(5));
    let launch = || -> Result<[(Vec<u8>, Vec<f32>); 2]> {
        let device = Device::default()?;
        let stream = device.stream()?;
        let rows = Strides::new(0, width, heads * width, 1);
        let keys = PagedKeys::new(layout, granularity);
        let call = PagedAppend::new(&device, keys, Fp8Format::E4m3, format, [rows; 2])?;
        let cache_bytes = pages * size * heads * width;
        let scale_count = if computed { pages * size * heads } else { heads };
        let slots =
            on_device(&device, &stream, &slots.iter().flat_map(|slot| slot.to_ne_bytes()).collect::<Vec<u8>>())?;
        let make = |bytes: &[u8]| -> Result<[Buffer; 3]> {
            let scales = if computed { vec![-1.0; scale_count] } else { given.clone() };
            Ok([
                on_device(&device, &stream, bytes)?,
                on_device(&device, &stream, &vec![0x7fu8; cache_bytes])?,
                on_device(&device, &stream, &scales)?,
            ])
        };
        let [[k, k_cache, k_scales], [v, v_cache, v_scales]] = [make(&inputs[0].1)?, make(&inputs[1].1)?];
        let addresses = AppendAddresses {
            k: k.pointer(),
            v: v.pointer(),
            slots: slots.pointer(),
            k_cache: k_cache.pointer(),
            v_cache: v_cache.pointer(),
            k_scales: k_scales.pointer(),
            v_scales: v_scales.pointer(),
        };
        // SAFETY: there are as many slots; all of it lives until the downloads have waited for the launch.
        unsafe { call.validate(&stream, tokens, &addresses)? };
        for (index, wrong) in [(3, -2i64), (0, (pages * size) as i64)] {
            let mut other = vec![-1i64; tokens];
            other[index] = wrong;
            let other =
                on_device(&device, &stream, &other.iter().flat_map(|slot| slot.to_ne_bytes()).collect::<Vec<u8>>())?;
            let other = AppendAddresses { slots: other.pointer(), ..addresses };
            // SAFETY: as above.
            let told = unsafe { call.validate(&stream, tokens, &other) }.unwrap_err().to_string();
            assert!(told.starts_with(&format!("slots: that of token {index} is neither")), "{told}");
            // SAFETY: as above; what is not in the cache is left out.
            unsafe { call.launch(&stream, tokens, &other)? };
            stream.synchronize()?;
        }
        for (head, wrong) in [(1, f32::NAN), (0, f32::INFINITY), (2, 0.0), (1, -0.5)] {
            let mut other = vec![1.0f32; scale_count];
            other[head] = wrong;
            let other = on_device(&device, &stream, &other)?;
            let other = AppendAddresses { v_scales: other.pointer(), ..addresses };
            // SAFETY: as above.
            let told = unsafe { call.validate(&stream, tokens, &other) }.map_err(|error| error.to_string());
            // Those of tokens are written, whatever they were.
            let expected = format!("scales: that of the keys or values of head {head} is not finite and positive");
            assert!(told.as_ref().err().is_some_and(|told| told.starts_with(&expected)) != computed, "{told:?}");
        }
        // SAFETY: as above.
        unsafe { call.launch(&stream, tokens, &addresses)? };
        let read = |codes: &Buffer, scales: &Buffer| -> Result<(Vec<u8>, Vec<f32>)> {
            let (mut bytes, mut numbers) = (vec![0; cache_bytes], vec![0.0; scale_count]);
            download(&stream, codes, &mut bytes)?;
            download(&stream, scales, &mut numbers)?;
            Ok((bytes, numbers))
        };
        Ok([read(&k_cache, &k_scales)?, read(&v_cache, &v_scales)?])
    };
    let got = launch().map_err(|error| format!("{error} {:?}", simulate::findings()))?;
    let found = simulate::findings();
    if !found.is_empty() {
        return Err(format!("{found:?}"));
    }
    for ((values, _), (codes, scales)) in inputs.iter().zip(got) {
        let mut expected = vec![0x7fu8; codes.len()];
        let mut expected_scales = if computed { vec![-1.0f32; scales.len()] } else { given.clone() };
        let scaling = match computed {
            true => AppendScales::Computed { scales: &mut expected_scales, strides: beside },
            false => AppendScales::Given(&given),
        };
        let mut cache = PagedTensorMut::new(layout, Fp8Format::E4m3, &mut expected).unwrap();
        cache.append(values, &slots, scaling).unwrap();
        if codes != expected || scales != expected_scales {
            return Err("other bits than the host's".into());
        }
    }
    Ok(())
}

/// The cache of the device against that of the host: the same tokens, the same queries.
#[test]
fn a_cache_on_the_device_gives_what_that_of_the_host_gives() {
    if !simulator() {
        return;
    }
    let (heads, kv_heads, width, size) = (6, 2, 64, 16);
    let noise = &mut Noise(11);
    let mut host = HostCache::new(12, size, kv_heads, width).unwrap();
    let mut values = |tokens: usize| -> Vec<f32> { (0..tokens * kv_heads * width).map(|_| noise.value()).collect() };
    // What is closed leaves pages behind, of which others are made.
    let steps: [&[(usize, usize)]; 3] = [&[(0, 20), (1, 7)], &[(1, 1), (0, 40)], &[(2, 33), (1, 9)]];
    simulate::begin(Schedule::of_seed(4));
    let device = Device::default().unwrap();
    let stream = device.stream().unwrap();
    let limits = CacheLimits { sequences: 3, tokens: 64, appended: 64 };
    let mut cache = KvCache::new(&stream, 12, size, [kv_heads, width], limits).unwrap();
    let mut open: Vec<_> = (0..3).map(|_| (cache.open(), host.open())).collect();
    for (step, growing) in steps.iter().enumerate() {
        let of_each: Vec<[Vec<f32>; 2]> = growing.iter().map(|(_, count)| [values(*count), values(*count)]).collect();
        let all = |side: usize| of_each.iter().flat_map(|pair| pair[side].iter().copied()).collect::<Vec<f32>>();
        let [k, v] = [0, 1].map(|side| on_device(&device, &stream, &all(side)).unwrap());
        let counted: Vec<_> = growing.iter().map(|(index, count)| (open[*index].0, *count)).collect();
        // SAFETY: the values live until the stream was waited for, in which all launches are.
        unsafe { cache.append(&stream, &counted, OutputFormat::F32, [k.pointer(), v.pointer()]).unwrap() };
        stream.synchronize().unwrap();
        for ((index, _), [k, v]) in growing.iter().zip(&of_each) {
            host.append(open[*index].1, k, v).unwrap();
        }
        if step == 1 {
            cache.close(open[0].0).unwrap();
            host.close(open[0].1).unwrap();
            open[0] = (cache.open(), host.open());
        }
    }
    assert_eq!(cache.free_pages(), host.free_pages());
    let twice = [(open[1].0, 1), (open[1].0, 1)];
    // SAFETY: refused before anything is launched.
    let told = unsafe { cache.append(&stream, &twice, OutputFormat::F32, [16, 16]) }.unwrap_err().to_string();
    assert!(told.starts_with("sequences: 1 is there twice"), "{told}");
    // SAFETY: as above.
    let told = unsafe { cache.append(&stream, &[(open[2].0, 40)], OutputFormat::F32, [16, 16]) }.unwrap_err();
    assert!(told.to_string().starts_with("tokens: a sequence would have 73"), "{told}");

    let problem = Problem::new(Shape::new(3, heads, 1, width).with_kv_heads(kv_heads).with_key_len(64)).unwrap();
    let dims = Dims::new(1, heads, 3, width);
    let queries: Vec<f32> = (0..dims.count()).map(|_| noise.value()).collect();
    let per_token = Quantizer::new(Fp8Format::E4m3).with_granularity(Granularity::Block { rows: 1 });
    let q = per_token.with_layout(Layout::Bshd).quantize(&queries, dims, Layout::Bshd).unwrap();
    let sequences: Vec<_> = open.iter().map(|(_, sequence)| *sequence).collect();
    let expected = host.attention(&problem, &q, &Packed::new(&[0, 1, 2, 3]).unwrap(), &sequences).unwrap();
    let Values::F32(expected) = expected.values else { unreachable!("as the problem asks") };

    let call = PagedAttention::new(&device, &problem, PagedQueries::dense(&problem, QueryFormat::Codes), cache.keys());
    let call = call.unwrap();
    let mut workspace = Workspace::new(&stream, call.workspace_bytes()).unwrap();
    let codes = on_device(&device, &stream, q.codes()).unwrap();
    let scales: Vec<f32> = (0..3)
        .flat_map(|row| (0..heads).map(move |head| (row, head)))
        .map(|(row, head)| q.scales().of_row(dims, 0, head, row))
        .collect();
    let scales = on_device(&device, &stream, &scales).unwrap();
    let output = on_device(&device, &stream, &vec![f32::NAN; dims.count()]).unwrap();
    let sequences: Vec<_> = open.iter().map(|(sequence, _)| *sequence).collect();
    let addresses = PagedAddresses {
        q: codes.pointer(),
        q_scales: scales.pointer(),
        output: output.pointer(),
        ..cache.addresses(&stream, &sequences).unwrap()
    };
    // SAFETY: all of it lives until the download has waited for the launch.
    unsafe { call.launch(&stream, 3, &addresses, &mut workspace).unwrap() };
    let mut got = vec![0.0f32; dims.count()];
    download(&stream, &output, &mut got).unwrap();
    // The host's output is by heads, or by rows, as the problem says: by heads here.
    for row in 0..3 {
        for head in 0..heads {
            for channel in 0..width {
                let (a, b) =
                    (got[(row * heads + head) * width + channel], expected[(head * 3 + row) * width + channel]);
                assert!((a - b).abs() < 3e-3, "sequence {row}, head {head}, channel {channel}: {a} and {b}");
            }
        }
    }
    assert_eq!(simulate::findings(), []);
}

/// Parts of the keys, merged, against all of them.
#[test]
fn merging_parts_gives_what_the_host_gives() {
    if !simulator() {
        return;
    }
    let (rows, width) = (7usize, 64usize);
    let noise = &mut Noise(9);
    let problem = Problem::new(Shape::new(1, 1, rows, width)).unwrap().with_lse(true);
    let parts: Vec<Output> = (0..5)
        .map(|part| {
            let mut output = Output::zeros(&problem);
            output.values = Values::F32((0..rows * width).map(|_| noise.value()).collect());
            // One row that sees nothing anywhere, and one that a single part sees.
            let sees = |row: usize| row != 3 && (row != 4 || part == 2);
            let lse = (0..rows).map(|row| if sees(row) { noise.value() * 9.0 } else { f32::NEG_INFINITY });
            output.lse = Some(lse.collect());
            output
        })
        .collect();
    let expected =
        merge(problem.shape().query_dims(), problem.output_layout(), &parts.iter().collect::<Vec<_>>()).unwrap();

    simulate::begin(Schedule::of_seed(2));
    let run = || -> Result<(Vec<f32>, Vec<f32>)> {
        let device = Device::default()?;
        let stream = device.stream()?;
        let call = MergeOutputs::new(&device, width, OutputFormat::F32)?;
        let mut buffers = Vec::new();
        for part in &parts {
            let Values::F32(values) = &part.values else { unreachable!("made above") };
            buffers
                .push((on_device(&device, &stream, values)?, on_device(&device, &stream, part.lse.as_ref().unwrap())?));
        }
        let at = |(output, lse): &(Buffer, Buffer)| PartAddresses { output: output.pointer(), lse: lse.pointer() };
        let addresses: Vec<PartAddresses> = buffers.iter().map(at).collect();
        // SAFETY: all of it lives until the downloads have waited for the launch.
        unsafe { call.launch(&stream, rows, &addresses, addresses[0])? };
        // SAFETY: refused before anything is launched.
        let many = unsafe { call.launch(&stream, rows, &vec![addresses[0]; 17], addresses[0]) };
        assert!(many.unwrap_err().to_string().starts_with("parts: 17 parts are not 1 to 16"));
        let (mut values, mut lse) = (vec![0.0; rows * width], vec![0.0; rows]);
        download(&stream, &buffers[0].0, &mut values)?;
        download(&stream, &buffers[0].1, &mut lse)?;
        Ok((values, lse))
    };
    let (values, lse) = run().unwrap_or_else(|error| panic!("{error} {:?}", simulate::findings()));
    let near = |got: &[f32], expected: &[f32]| got.iter().zip(expected).all(|(a, b)| a == b || (a - b).abs() < 1e-5);
    let Values::F32(expected_values) = &expected.values else { unreachable!("as the parts are") };
    assert!(near(&values, expected_values) && near(&lse, expected.lse.as_ref().unwrap()), "{lse:?}");
}

/// What a launch would read beyond the cache is told by sequence before it does.
#[test]
fn tables_that_reach_beyond_the_cache_are_told() {
    if !simulator() {
        return;
    }
    let problem = Problem::new(Shape::new(3, 1, 1, 64).with_key_len(64)).unwrap().causal();
    let keys = PagedKeys::new(PageLayout::nhd(10, 16, 1, 64), PageScales::Tensor);
    simulate::begin(Schedule::of_seed(1));
    let device = Device::default().unwrap();
    let stream = device.stream().unwrap();
    let format = QueryFormat::Values(OutputFormat::Bf16);
    let call = PagedAttention::new(&device, &problem, PagedQueries::dense(&problem, format), keys).unwrap();
    let packed = PagedAttention::new(&device, &problem, PagedQueries::packed(&problem, format), keys).unwrap();
    let mut workspace = Workspace::new(&stream, call.workspace_bytes()).unwrap();
    let memory = on_device(&device, &stream, &[0u8; 16]).unwrap().pointer();
    let scale = on_device(&device, &stream, &[1.0f32]).unwrap();
    let q_scales = on_device(&device, &stream, &[1.0f32; 3]).unwrap();
    let codes =
        PagedAttention::new(&device, &problem, PagedQueries::dense(&problem, QueryFormat::Codes), keys).unwrap();
    let mut check = |call: &PagedAttention, table: [i32; 12], lengths: [i32; 3], starts: Option<[i32; 4]>| {
        let table = on_device(&device, &stream, &table).unwrap();
        let lengths = on_device(&device, &stream, &lengths).unwrap();
        let starts = starts.map(|starts| on_device(&device, &stream, &starts).unwrap());
        let addresses = PagedAddresses {
            q: memory,
            q_scales: if ptr::eq(call, &raw const codes) { q_scales.pointer() } else { 0 },
            k: memory,
            k_scales: scale.pointer(),
            v: memory,
            v_scales: scale.pointer(),
            block_table: table.pointer(),
            max_pages: 4,
            lengths: lengths.pointer(),
            query_starts: starts.as_ref().map_or(0, Buffer::pointer),
            output: memory,
            lse: 0,
        };
        // SAFETY: tables, lengths and starts are as long as the numbers say; nothing else is read.
        unsafe { call.validate(&stream, 3, &addresses, &mut workspace) }.map_err(|error| error.to_string())
    };
    let sound = [0, 1, -1, -1, 9, 77, -1, -1, 3, 4, 5, 6];
    assert_eq!(check(&call, sound, [32, 16, 64], None), Ok(()));
    let told = check(&call, sound, [32, 17, 64], None).unwrap_err();
    assert!(told.starts_with("block_table: entry 1 of sequence 1 is no page of the cache"), "{told}");
    assert!(check(&call, sound, [32, 16, 65], None).unwrap_err().starts_with("lengths: that of sequence 2"));
    assert!(check(&call, sound, [-1, 16, 64], None).unwrap_err().starts_with("lengths: that of sequence 0"));
    assert!(check(&call, sound, [1, 1, 1], Some([0; 4])).unwrap_err().starts_with("query_starts: is given, but"));
    assert_eq!(check(&packed, sound, [32, 16, 64], Some([0, 1, 1, 2])), Ok(()));
    let told = check(&packed, sound, [32, 16, 64], Some([0, 1, 3, 3])).unwrap_err();
    assert!(told.starts_with("query_starts: sequence 1 begins"), "{told}");
    for wrong in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
        upload(&stream, &scale, &[wrong]).unwrap();
        let told = check(&call, sound, [0, 16, 64], None).unwrap_err();
        assert!(told.starts_with("scales: one of the queries, keys or values of sequence 1"), "{wrong}: {told}");
    }
    upload(&stream, &scale, &[1.0]).unwrap();
    assert_eq!(check(&codes, sound, [32, 16, 64], None), Ok(()));
    upload(&stream, &q_scales, &[1.0, 1.0, f32::NAN]).unwrap();
    assert_eq!(check(&call, sound, [32, 16, 64], None), Ok(()));
    let told = check(&codes, sound, [32, 16, 64], None).unwrap_err();
    assert!(told.starts_with("scales: one of the queries, keys or values of sequence 2"), "{told}");
    assert_eq!(simulate::findings(), []);
}

/// The whole of the bench but its times, which mean nothing here.
#[test]
fn a_timing_of_pages_checks_what_it_timed() {
    if !simulator() {
        return;
    }
    simulate::begin(Schedule { races: false, ..Schedule::of_seed(0) });
    let policy = TimingPolicy { iterations: 2, ..Thresholds::embedded().cuda_timing };
    let method = Method { policy: &policy, manner: Manner::default(), on_gpu: true };
    for case in ["2,1,64,2,100", "2,1,64,2,100,30", "2,2,64,21,append"] {
        let group = decode::measure(&case.parse().unwrap(), &[16], 3, None, &method, &mut ()).unwrap();
        assert!(group.entries.iter().all(|entry| entry.timing.is_some()), "{group:?}");
    }
    assert_eq!(simulate::findings(), []);
}

/// A stand-in for PyTorch gives back Q: it takes its turns, and what it computed is found to be wrong.
#[cfg(unix)]
#[test]
fn a_peer_on_the_same_lengths_takes_turns_and_is_checked() {
    use std::os::unix::fs::PermissionsExt;
    let has_python = Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    if !simulator() || !has_python {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let stand_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/peers/fake_torch.py");
    let python = folder.path().join("python");
    let script = format!("#!/bin/sh\nexec python3 -c \"$(cat '{}')\n$2\" \"$3\"\n", stand_in.display());
    fs::write(&python, script).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let mut torch = Torch::start(python.to_str().unwrap(), 1).unwrap();

    simulate::begin(Schedule { races: false, ..Schedule::of_seed(0) });
    let policy = TimingPolicy { iterations: 2, ..Thresholds::embedded().cuda_timing };
    let method = Method { policy: &policy, manner: Manner::default(), on_gpu: true };
    let case = "2,1,64,2,100".parse().unwrap();
    let group = decode::measure(&case, &[16], 3, Some(&mut torch), &method, &mut ()).unwrap();
    let (peer, ours) = group.entries.split_last().unwrap();
    assert!(ours.len() == 3 && ours.iter().all(|entry| entry.timing.is_some()), "{group:?}");
    assert_eq!((peer.name.as_str(), peer.least_bytes), ("torch-sdpa-bf16-contiguous", 2 * ours[0].least_bytes));
    let gate = peer.gate.as_ref().unwrap();
    assert_eq!((gate.outcome, peer.timing.is_none()), (Outcome::Unavailable, true));
    assert!(gate.summary.contains("after the timed runs the row at value 0 has a relative L2 error"), "{gate:?}");
    assert!(group.peers[0].starts_with("torch-sdpa-bf16-contiguous: PyTorch 0.0-fake"), "{:?}", group.peers);
    assert_eq!(simulate::findings(), []);
}
