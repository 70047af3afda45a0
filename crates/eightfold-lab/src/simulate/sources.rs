//! The simulator's C++ sources, which are compiled where it is used.

macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../simulator/", $name)))),*]
    };
}

/// What kernels see.
pub(super) static DEVICE: &[(&str, &str)] = embedded![
    "device/cuda.h",
    "device/numbers.h",
    "device/simulated.h",
    "device/ptx/address.cuh",
    "device/ptx/arithmetic.cuh",
    "device/ptx/barrier.cuh",
    "device/ptx/bulk.cuh",
    "device/ptx/cluster.cuh",
    "device/ptx/convert.cuh",
    "device/ptx/copy.cuh",
    "device/ptx/exponential.cuh",
    "device/ptx/half.cuh",
    "device/ptx/load.cuh",
    "device/ptx/matrix.cuh",
    "device/ptx/register.cuh",
    "device/ptx/wgmma.cuh",
];

/// The device.
pub(super) static RUNTIME: &[(&str, &str)] = embedded![
    "runtime/copies.cc",
    "runtime/driver.cc",
    "runtime/memory.cc",
    "runtime/order.cc",
    "runtime/order.h",
    "runtime/products.cc",
    "runtime/schedule.cc",
    "runtime/sync.cc",
    "runtime/world.h",
];

#[cfg(test)]
mod tests {
    use super::*;
    use eightfold::lab::compile;
    use std::path::Path;

    #[test]
    fn every_file_of_the_simulator_is_embedded() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("simulator");
        let mut found = Vec::new();
        for folder in ["device", "device/ptx", "runtime"] {
            for entry in std::fs::read_dir(root.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    found.push(path.strip_prefix(&root).unwrap().to_string_lossy().into_owned());
                }
            }
        }
        let mut embedded: Vec<_> = DEVICE.iter().chain(RUNTIME).map(|(name, _)| (*name).to_owned()).collect();
        found.sort();
        embedded.sort();
        assert_eq!(found, embedded);
    }

    #[test]
    fn every_header_of_ptx_has_its_twin() {
        for (name, _) in DEVICE {
            if let Some(header) = name.strip_prefix("device/").filter(|name| name.starts_with("ptx/")) {
                assert!(compile::source_text(header).is_some(), "{header} has no original");
            }
        }
        let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../eightfold/kernels/ptx");
        for entry in std::fs::read_dir(kernels).unwrap() {
            let name = format!("device/ptx/{}", entry.unwrap().file_name().to_string_lossy());
            assert!(DEVICE.iter().any(|(twin, _)| *twin == name), "{name} is missing");
        }
    }
}
