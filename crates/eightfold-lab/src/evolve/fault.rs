//! Faults to order, for tests of the search alone: `EIGHTFOLD_EVOLVE_FAULT=crash@3,hang@5` makes a worker fail as if the
//! candidate of that trial had done it. Nothing else reads the variable.

use super::fate::Fate;
use std::time::Duration;

/// The variable.
const VARIABLE: &str = "EIGHTFOLD_EVOLVE_FAULT";

/// Does to this worker what was ordered for a trial; a fate is what the worker is to answer.
pub(super) fn strike(trial: usize) -> Option<Fate> {
    let orders = std::env::var(VARIABLE).ok()?;
    let ordered = orders.split(',').filter_map(|order| order.split_once('@'));
    let (kind, _) = { ordered }.find(|(_, at)| at.parse() == Ok(trial))?;
    let device = |name: &str| format!("cuStreamSynchronize: CUDA_ERROR_{name}; ordered by a test");
    match kind {
        "crash" => std::process::abort(),
        "exit" => std::process::exit(3),
        "hang" => std::thread::sleep(Duration::from_secs(3600)),
        "garbage" => println!("this is not JSON"),
        "flood" => loop {
            print!("{}", "flood ".repeat(1000));
        },
        "illegal" => return Some(Fate::DeviceFault { reason: device("ILLEGAL_ADDRESS") }),
        "lost" => return Some(Fate::DeviceFault { reason: device("CONTEXT_IS_DESTROYED") }),
        "memory" => return Some(Fate::OutOfMemory { reason: device("OUT_OF_MEMORY") }),
        _ => {}
    }
    None
}
