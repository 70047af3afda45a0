//! Attention to pages, on a real device too.

use crate::pages::{cases, on_device, ragged_cases, run, run_alone, sweep};
use crate::support::{device, on_simulator, some};
use eightfold::cuda::paged::{PagedAddresses, PagedAttention, PagedKeys, PagedQueries, QueryFormat};
use eightfold::cuda::{Arch, Workspace};
use eightfold::lab::driver::{download, upload};
use eightfold::serving::{PageLayout, PageScales};
use eightfold::{OutputFormat, Problem, Shape};
use eightfold_lab::driver::Record as _;
use half::bf16;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn pages_of_every_kind_give_what_float64_gives() {
    if device().is_none() {
        return;
    }
    for case in some(&cases(), 4) {
        run(&case).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    }
    let mixed = cases().into_iter().find(|case| case.name == "mixed").unwrap();
    run_alone(&mixed).unwrap_or_else(|error| panic!("{error}"));
}

/// On threads side by side: most of the time goes into float64.
#[test]
fn every_page_size_and_group_gives_what_float64_gives() {
    if device().is_none() {
        return;
    }
    let cases = some(&sweep(), 40);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            run(case).unwrap_or_else(|error| panic!("{case:?}: {error}"));
        }
    };
    let threads = if on_simulator() { 1 } else { std::thread::available_parallelism().map_or(1, usize::from).min(16) };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
}

#[test]
fn prompts_of_many_lengths_give_what_float64_gives() {
    let Some((device, _)) = device() else { return };
    if !matches!(device.arch(), Ok(Arch::Sm90 | Arch::Sm90a)) {
        return;
    }
    for case in ragged_cases() {
        run(&case).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    }
    let chunks = ragged_cases().into_iter().find(|case| case.name == "chunks").unwrap();
    run_alone(&chunks).unwrap_or_else(|error| panic!("{error}"));
}

/// Lengths and block table are read when a launch runs: a graph is replayed after they changed.
#[test]
fn a_graph_follows_lengths_and_pages_that_change() {
    let Some((device, stream)) = device() else { return };
    let (pages, width, sequences) = (12usize, 64usize, 2usize);
    let problem = Problem::new(Shape::new(sequences, 1, 1, width).with_key_len(80)).unwrap().causal();
    let problem = problem.with_output_format(OutputFormat::Bf16);
    let keys = PagedKeys::new(PageLayout::nhd(pages, 16, 1, width), PageScales::Tensor);
    let lie = PagedQueries::dense(&problem, QueryFormat::Values(OutputFormat::Bf16));
    let call = PagedAttention::new(&device, &problem, lie, keys).unwrap();
    let mut workspace = Workspace::new(&stream, call.workspace_bytes()).unwrap();
    // Every value of a page is the page's number, in E4M3; keys are zero, so that every key weighs the same.
    let number = |page: usize| eightfold::fp8::encode(eightfold::Fp8Format::E4m3, page as f32);
    let values: Vec<u8> = (0..pages * 16 * width).map(|index| number(index / (16 * width))).collect();
    let k = on_device(&device, &stream, &vec![0u8; values.len()]).unwrap();
    let v = on_device(&device, &stream, &values).unwrap();
    let q = on_device(&device, &stream, &vec![bf16::ONE; sequences * width]).unwrap();
    let scale = on_device(&device, &stream, &[1.0f32]).unwrap();
    let table = on_device(&device, &stream, &[0i32; 10]).unwrap();
    let lengths = on_device(&device, &stream, &[0i32; 2]).unwrap();
    let output = on_device(&device, &stream, &vec![bf16::NAN; sequences * width]).unwrap();
    let addresses = PagedAddresses {
        q: q.pointer(),
        q_scales: 0,
        k: k.pointer(),
        k_scales: scale.pointer(),
        v: v.pointer(),
        v_scales: scale.pointer(),
        block_table: table.pointer(),
        max_pages: 5,
        lengths: lengths.pointer(),
        query_starts: 0,
        output: output.pointer(),
        lse: 0,
    };
    // SAFETY: all of it lives until the downloads have waited for the launches, which are in one stream.
    let mut launch = || unsafe { call.launch(&stream, sequences, &addresses, &mut workspace) };
    launch().unwrap();
    stream.synchronize().unwrap();
    let mut graph = stream.capture(&mut launch).unwrap();
    for (entries, lens, expected) in [
        ([3, 4, 9, 9, 9, 5, 9, 9, 9, 9], [32, 7], [3.5, 5.0]),
        ([11, 9, 9, 9, 9, 1, 2, 3, 4, 5], [16, 80], [11.0, 3.0]),
        ([0, 9, 9, 9, 9, 7, 8, 9, 9, 9], [0, 24], [0.0, (16.0 * 7.0 + 8.0 * 8.0) / 24.0]),
    ] {
        upload(&stream, &table, &entries).unwrap();
        upload(&stream, &lengths, &lens).unwrap();
        // SAFETY: what it launches is alive, by the above.
        unsafe { graph.launch(&stream).unwrap() };
        let mut got = vec![bf16::NAN; sequences * width];
        download(&stream, &output, &mut got).unwrap();
        for (sequence, expected) in expected.into_iter().enumerate() {
            for value in &got[sequence * width..][..width] {
                assert!((value.to_f64() - expected).abs() < 0.04, "{lens:?}, sequence {sequence}: {value}");
            }
        }
    }
}
