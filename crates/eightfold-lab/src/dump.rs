//! The intermediate tiles of one block of a GPU kernel, for whoever looks for a fault.

use crate::gates::Case;
use crate::simulate;
use crate::store;
use eightfold::cuda::driver::Device;
use eightfold::cuda::ladder::{self, Config, Tile, TileDump};
use eightfold::cuda::tensor::DeviceTensor;
use eightfold::{Error, Layout, Result};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::collections::HashMap;
use std::path::Path;

/// Runs a config on the inputs of a case in debug mode, and brings back what one unit of work computed.
pub fn tiles(config: &Config, case: &Case, unit: usize) -> Result<TileDump> {
    let device = Device::default()?;
    let stream = device.stream()?;
    let q = DeviceTensor::upload(&device, &stream, &case.q, Layout::Bhsd)?;
    let k = DeviceTensor::upload(&device, &stream, &case.k, Layout::Bhsd)?;
    let v = DeviceTensor::upload(&device, &stream, &case.v, config.value_layout())?;
    simulate::explain_failures(|| ladder::dump(&device, &stream, &case.problem, config, [&q, &k, &v], unit))
}

/// Writes the tiles as `tile0.scores`, `tile0.weights`, `tile0.output`, `tile0.row_maxima`, `tile0.row_sums`, and so on.
pub fn write(path: &Path, dump: &TileDump, variant: &str, case: &Case) -> Result<()> {
    let TileDump { tile_queries, tile_keys, head_dim, tiles } = dump;
    let (rows, keys, channels) = (*tile_queries, *tile_keys, *head_dim);
    let mut tensors = Vec::new();
    for (index, Tile { scores, weights, output, row_maxima, row_sums }) in tiles.iter().enumerate() {
        let parts = [
            ("scores", scores, vec![rows, keys]),
            ("weights", weights, vec![rows, keys]),
            ("output", output, vec![rows, channels]),
            ("row_maxima", row_maxima, vec![rows]),
            ("row_sums", row_sums, vec![rows]),
        ];
        for (name, values, sizes) in parts {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            tensors.push((format!("tile{index}.{name}"), sizes, bytes));
        }
    }
    let metadata = HashMap::from([
        ("variant".to_string(), variant.to_string()),
        ("problem".into(), case.problem.to_string()),
        ("inputs".into(), case.origin.clone()),
    ]);
    let failed = |error: safetensors::SafeTensorError| {
        Error::unavailable("the dump", error.to_string(), "look at another variant or shape")
    };
    let views = tensors
        .iter()
        .map(|(name, sizes, bytes)| Ok((name, TensorView::new(Dtype::F32, sizes.clone(), bytes)?)))
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(failed)?;
    store::write_file(path, &safetensors::serialize(views, Some(metadata)).map_err(failed)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::{StandardCase, Thresholds};
    use crate::inputs::Family;
    use eightfold::quantize::Quantizer;
    use eightfold::{Problem, Shape};
    use safetensors::SafeTensors;

    #[test]
    fn every_part_of_every_tile_is_written_under_its_name() {
        let problem = Problem::new(Shape::new(1, 1, 4, 8)).unwrap();
        let case = StandardCase { problem, family: Family::Gaussian, seed: 1 };
        let policy = Thresholds::embedded().correctness.reference;
        let case = case.prepare(&Quantizer::new(problem.input_format()), &policy).unwrap();
        let tile = Tile {
            scores: vec![1.0; 2 * 3],
            weights: vec![2.0; 2 * 3],
            output: vec![3.0; 2 * 8],
            row_maxima: vec![4.0; 2],
            row_sums: vec![5.0; 2],
        };
        let dump = TileDump { tile_queries: 2, tile_keys: 3, head_dim: 8, tiles: vec![tile.clone(), tile] };
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("tiles.safetensors");
        write(&path, &dump, "ladder:baseline", &case).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.len(), 10);
        assert_eq!(file.tensor("tile1.output").unwrap().shape(), [2, 8]);
        assert_eq!(file.tensor("tile0.row_sums").unwrap().data()[..4], 5.0f32.to_le_bytes());
    }
}
