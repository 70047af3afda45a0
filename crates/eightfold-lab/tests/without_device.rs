//! What is said on a machine without a device.

use eightfold::cuda::driver::Device;
use eightfold::{Error, Fp8Tensor, Output, Problem, Shape, Variant, quantize};
use eightfold_lab::choice::{self, Choice};

fn tensor(problem: &Problem) -> Fp8Tensor<'static> {
    let dims = problem.shape().query_dims();
    let values: Vec<f32> = (0..dims.count()).map(|index| (index as f32).sin()).collect();
    quantize(&values, dims).unwrap()
}

#[test]
fn without_a_device_a_plan_runs_on_the_cpu_and_says_why() {
    let Err(missing) = Device::default() else { return };
    let problem = Problem::new(Shape::new(1, 2, 40, 64)).unwrap();
    let chosen = choice::choose(&problem).unwrap();
    assert_eq!(chosen.variant.kernel(), "cpu");
    let on_device = chosen.considered.iter().find(|considered| considered.variant.kernel() == "hopper").unwrap();
    assert!(!on_device.chosen);
    assert_eq!(on_device.reason, missing.to_string());
    assert!(chosen.explain().contains(&missing.to_string()));
}

#[test]
fn without_a_device_a_named_variant_can_be_explained_but_not_run() {
    let Err(missing) = Device::default() else { return };
    let problem = Problem::new(Shape::new(1, 2, 40, 64)).unwrap();
    for variant in ["ladder:mma-pv", "hopper:fast"] {
        let variant: Variant = variant.parse().unwrap();
        assert!(Choice::named(&problem, variant).unwrap().explain().contains("asked for by name"));
        let tensor = tensor(&problem);
        let error =
            choice::run(&variant, &problem, &tensor, &tensor, &tensor, &mut Output::zeros(&problem)).unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }));
        assert_eq!(error, missing);
    }
}

#[test]
fn knobs_that_a_head_leaves_no_room_for_are_refused_by_name() {
    let problem = Problem::new(Shape::new(1, 2, 40, 256)).unwrap();
    for (variant, rule) in [
        ("ladder:mma-pv", "tile_keys: heads of 256 and 256 channels leave a warp no registers for scores of 64 keys"),
        ("hopper:fast,warpgroups=3,stages=4", "tile_keys: the tiles of"),
    ] {
        let error = Choice::named(&problem, variant.parse().unwrap()).unwrap_err().to_string();
        assert!(error.starts_with(rule), "{error}");
    }
    assert_eq!(choice::choose(&problem).unwrap().variant.kernel(), "cpu");
}
