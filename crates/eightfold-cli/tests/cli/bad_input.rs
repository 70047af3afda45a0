//! Every mistake: one line that names the argument and the fix, exit 2, nothing written.

use crate::support::{Place, Tensor, numbers, sound_tensors, stderr};
use safetensors::Dtype;

/// Runs, expects a mistake, returns the line.
fn complaint(place: &Place, arguments: &str) -> String {
    let before = place.contents();
    let output = place.run(arguments);
    let line = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments}: {line}");
    assert!(output.stdout.is_empty(), "{arguments} printed on standard output");
    assert!(line.starts_with("error: ") && line.lines().count() == 1, "{arguments}: {line}");
    assert_eq!(place.contents(), before, "{arguments} left something behind");
    line.trim_end().to_string()
}

/// What each set of arguments is answered, one line each.
fn complaints(place: &Place, arguments: &[&str]) -> String {
    arguments.iter().map(|arguments| format!("{arguments}\n  {}\n", complaint(place, arguments))).collect()
}

#[test]
fn names_that_do_not_exist_are_answered_with_the_nearest() {
    let place = Place::new();
    insta::assert_snapshot!(complaints(
        &place,
        &[
            "--shape misson",
            "run --shape small lnog",
            "run --variant gpu",
            "run --kernel cpx",
            "run --variant cpu:baselin",
            "run --variant cpu:number=f32",
            "run --variant cpu:exp=pol",
            "run --variant cpu:tile_keys=17",
            "run --variant cpu:tile_keys=many",
            "run --variant cpu:simd=scalar,numbers=i16",
            "run --families gausian",
            "bench --variant cpu:simd=sse",
            "bench --peer tensorflow",
            "bench --dtype f8",
            "run --dtype e4m3",
            "explain --shape tiny",
            "explain --variant cpu:schedule=static,numbers=f64",
            "benhc",
            "bench --shpe small",
        ]
    ));
}

#[test]
fn comparisons_that_cannot_be_made() {
    let place = Place::new();
    insta::assert_snapshot!(complaints(
        &place,
        &[
            "compare cpu:baseline",
            "compare cpu:baselin cpu:lanes",
            "compare cpu:baseline gpu",
            "compare cpu:baseline cpu:lanes --shape misson",
            "compare cpu:baseline cpu:lanes --require 10",
            "compare cpu:baseline cpu:lanes --require ten%",
            "compare cpu:baseline cpu:lanes --require -100%",
            "compare cpu:baseline cpu:lanes --plant 5",
            "compare cpu:baseline cpu:lanes --rounds 3",
            "compare cpu:baseline missing.json",
        ]
    ));
}

#[test]
fn sizes_that_make_no_problem() {
    let place = Place::new();
    insta::assert_snapshot!(complaints(
        &place,
        &[
            "run --shape 1,8,0,64",
            "run --shape 0,8,32,64",
            "bench --shape 1,8,32,65",
            "bench --shape 1,8,32,264",
            "explain --shape 1,8,3,32,32,64",
            "explain --shape 1,8,32",
            "explain --shape 1,8,-32,64",
            "explain --shape 1,8,32,64,",
            "explain --shape 99999999999,99999999999,99999999999,64",
            "explain --threads 0",
            "explain --threads 100000",
            "explain --threads many",
            "bench --iterations 0 --shape small",
            "run --seeds one",
            "run --scale 2",
        ]
    ));
}

#[test]
fn windows_and_scores_that_make_no_problem_or_none_for_a_gpu() {
    let place = Place::new();
    insta::assert_snapshot!(complaints(
        &place,
        &[
            "explain --window -2,0",
            "explain --window 128",
            "run --shape small --window 1,2,3",
            "bench --shape small --softcap 0",
            "explain --softcap -50",
            "run --shape small --softcap nan",
            "run --shape small --softcap inf",
            "explain --shape 1,8,32,192/12",
            "explain --shape 1,8,32,192/260",
            "explain --shape 1,8,32,192/x",
            "ladder --shape 1,8,32,192/128",
            "explain --input-format int8 --variant ladder:unpack",
            "explain --shape 1,8,300,192/256 --variant ladder:mma-pv",
            "explain --shape 1,8,300,256 --variant ladder:tall-tiles",
        ]
    ));
}

#[test]
#[cfg(target_os = "linux")]
fn a_shape_too_large_for_memory_is_told_and_not_tried() {
    let place = Place::new();
    for job in ["run", "bench", ""] {
        let line = complaint(&place, &format!("{job} --shape 64,128,131072,128"));
        assert!(line.contains("GiB of memory, and "), "{line}");
    }
}

#[test]
fn tensors_that_do_not_belong_together() {
    let place = Place::new();
    let [q, k, v] = <[Tensor; 3]>::try_from(sound_tensors(&[1, 2, 8, 16])).ok().unwrap();
    let f32 = |name, sizes: &[usize]| Tensor::f32(name, sizes, &numbers(sizes.iter().product(), 1));
    let with_nan = {
        let mut values = numbers(256, 2);
        values[37] = f32::NAN;
        Tensor::f32("k", &[1, 2, 8, 16], &values)
    };
    let integers = Tensor { dtype: Dtype::I32, ..v.clone() };
    let codes = |name, dtype, code| Tensor::codes(name, dtype, &[1, 2, 8, 16], &[code; 256]);
    let (e4m3, e5m2) = (Dtype::F8_E4M3, Dtype::F8_E5M2);
    let scale = |name, sizes: &[usize], value| Tensor::f32(name, sizes, &vec![value; sizes.iter().product()]);
    let cases: Vec<(&str, Vec<Tensor>)> = vec![
        ("no-v", vec![q.clone(), k.clone()]),
        ("empty", vec![]),
        ("three-dimensions", vec![f32("q", &[2, 8, 16]), k.clone(), v.clone()]),
        ("other-head-dim", vec![q.clone(), f32("k", &[1, 2, 8, 24]), f32("v", &[1, 2, 8, 24])]),
        ("other-batch", vec![f32("q", &[2, 2, 8, 16]), k.clone(), v.clone()]),
        ("k-unlike-v", vec![q.clone(), k.clone(), f32("v", &[1, 2, 9, 16])]),
        ("zero-length", ["q", "k", "v"].map(|name| f32(name, &[1, 2, 0, 16])).to_vec()),
        ("head-dim-12", ["q", "k", "v"].map(|name| f32(name, &[1, 2, 8, 12])).to_vec()),
        ("heads-3-of-2", vec![f32("q", &[1, 3, 8, 16]), k.clone(), v.clone()]),
        ("integers", vec![q.clone(), k.clone(), integers]),
        ("nan", vec![q.clone(), with_nan, v.clone()]),
        ("no-scale", vec![codes("q", e4m3, 1), k.clone(), v.clone()]),
        ("nan-scale", vec![codes("q", e4m3, 1), scale("q_scale", &[1], f32::NAN), k.clone(), v.clone()]),
        ("zero-scale", vec![codes("q", e4m3, 1), scale("q_scale", &[1, 2], 0.0), k.clone(), v.clone()]),
        ("odd-scale", vec![codes("q", e4m3, 1), scale("q_scale", &[3], 1.0), k.clone(), v.clone()]),
        ("odd-blocks", vec![codes("q", e4m3, 1), scale("q_scale", &[1, 2, 5], 1.0), k.clone(), v.clone()]),
        ("half-scale", vec![codes("q", e4m3, 1), Tensor::f16("q_scale", &[1], &[1.0]), k.clone(), v.clone()]),
        ("nan-code", vec![codes("q", e4m3, 0x7f), scale("q_scale", &[1], 1.0), k.clone(), v.clone()]),
        (
            "two-formats",
            vec![
                codes("q", e4m3, 1),
                scale("q_scale", &[1], 1.0),
                codes("k", e5m2, 1),
                scale("k_scale", &[1], 1.0),
                v.clone(),
            ],
        ),
    ];
    let mut arguments = Vec::new();
    for (name, tensors) in &cases {
        place.write(name, tensors);
        arguments.push(format!("attend --inputs {name} --to out.safetensors"));
        // The gates read the same files and must refuse them the same way.
        complaint(&place, &format!("run --inputs {name}"));
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    insta::assert_snapshot!(complaints(&place, &arguments));
}

#[test]
fn flags_that_do_not_suit_the_tensors() {
    let place = Place::new();
    place.write("in", &sound_tensors(&[1, 2, 8, 16]));
    insta::assert_snapshot!(complaints(
        &place,
        &[
            "attend --inputs in --to out --scale NaN",
            "attend --inputs in --to out --scale -1",
            "attend --inputs in --to out --scale 0",
            "attend --inputs in --to out --scale big",
            "attend --inputs in --to out --layout bhds",
            "attend --inputs in --to out --dtype f64",
            "attend --inputs in --to out --variant cpu:nothing",
            "attend --inputs in --to missing/out",
            "attend --inputs in --to .",
            "attend --inputs in",
            "run --inputs in --shape small",
        ]
    ));
}

#[test]
fn what_cannot_be_asked_of_a_gpu_kernel() {
    let place = Place::new();
    insta::assert_snapshot!(complaints(
        &place,
        &[
            "--kernel gpu",
            "run --kernel laddr",
            "run --kernel cpu --variant cpu:baseline",
            "build --arch sm_88",
            "build --arch sm_90 hopper",
            "build --arch",
            "build --kernel cpu --arch sm_89",
            "build --arch sm_89 --variant ladder:copy=sync,producers=1",
            "build --arch sm_89 --variant ladder:softmax=separate,pv=fp8",
            "build --arch sm_89 --variant ladder:warps=3",
            "build --arch sm_89 --shape small",
            "run --odd --shape small",
            "run --odd --causal",
            "dump --to tiles --variant cpu:baseline --shape small",
            "dump --to tiles",
            "dump --variant ladder:unpack",
        ]
    ));
}

#[test]
fn files_that_are_not_safetensors() {
    let place = Place::new();
    place.write("whole", &sound_tensors(&[1, 2, 8, 16]));
    let whole = std::fs::read(place.file("whole")).unwrap();
    std::fs::write(place.file("truncated"), &whole[..whole.len() - 5]).unwrap();
    std::fs::write(place.file("header-only"), &whole[..20]).unwrap();
    std::fs::write(place.file("nothing"), "").unwrap();
    std::fs::write(place.file("text"), "these are not tensors\nat all\n").unwrap();
    std::fs::write(place.file("huge-header"), [0xff; 64]).unwrap();
    std::fs::create_dir(place.file("folder")).unwrap();
    for name in ["truncated", "header-only", "nothing", "text", "huge-header", "folder", "missing"] {
        for command in ["attend --to out --inputs", "run --inputs"] {
            let line = complaint(&place, &format!("{command} {name}"));
            assert!(line.starts_with(&format!("error: inputs: {name} ")), "{line}");
        }
    }
}

#[test]
fn every_prefix_of_a_file_is_refused() {
    let place = Place::new();
    place.write("whole", &sound_tensors(&[1, 1, 1, 8]));
    let whole = std::fs::read(place.file("whole")).unwrap();
    for length in (0..whole.len()).step_by(7) {
        std::fs::write(place.file("part"), &whole[..length]).unwrap();
        complaint(&place, "attend --inputs part --to out");
    }
}

#[test]
fn gate_files_that_do_not_hold() {
    let place = Place::new();
    let embedded = eightfold_lab::gates::Thresholds::embedded_text();
    std::fs::write(place.file("syntax"), "[timing\n").unwrap();
    std::fs::write(place.file("nothing"), "").unwrap();
    std::fs::write(place.file("unknown"), format!("{embedded}\n[surprise]\nx = 1\n")).unwrap();
    let negative = embedded.replace("max_abs = 0.06", "max_abs = -0.06");
    assert_ne!(negative, embedded);
    std::fs::write(place.file("negative"), negative).unwrap();
    for name in ["missing", "syntax", "nothing", "unknown", "negative"] {
        for command in ["", "run --shape small", "bench --shape small"] {
            complaint(&place, &format!("{command} --gates {name}"));
        }
    }
}
