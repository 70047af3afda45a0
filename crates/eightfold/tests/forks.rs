//! Attention on a CPU in a fork of a process that was computing: its threads are not there, and locks that they held stay locked.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod fork;

use eightfold::{Fp8Tensor, Problem, Shape, attention, quantize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[test]
fn a_fork_computes_what_its_parent_does() {
    // Large enough for more than one thread.
    let problem = Problem::new(Shape::new(1, 4, 256, 64)).unwrap();
    let dims = problem.shape().query_dims();
    let values: Vec<f32> = (0..dims.count()).map(|index| ((index * 7919) % 2003) as f32 / 1001.5 - 1.0).collect();
    let [q, k, v]: [Fp8Tensor; 3] = [(); 3].map(|()| quantize(&values, dims).unwrap());
    let compute = || attention(&problem, &q, &k, &v).unwrap().values.to_f32();
    let expected = compute();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        // The pool is taken most of the time.
        let other = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                compute();
            }
        });
        let statuses: Vec<i32> = (0..10).map(|_| fork::status_of(|| i32::from(compute() != expected))).collect();
        done.store(true, Ordering::Relaxed);
        other.join().unwrap();
        assert_eq!(statuses, [0; 10]);
    });
}
