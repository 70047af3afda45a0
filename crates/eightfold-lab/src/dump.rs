//! The intermediate tiles of one block of a GPU kernel, for whoever looks for a fault.

use crate::gates::Case;
use crate::simulate;
use crate::store;
use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::tensor::DeviceTensor;
use eightfold::lab::ladder::DUMP_UNTOUCHED;
use eightfold::lab::{Config, hopper, ladder};
use eightfold::{Error, Layout, Problem, Result};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::collections::HashMap;
use std::path::Path;

/// What a unit of work computed, key tile after key tile.
#[derive(Debug, Clone, PartialEq)]
pub struct TileDump {
    /// Query rows of a tile.
    pub tile_queries: usize,
    /// Keys of a tile.
    pub tile_keys: usize,
    /// Channels of V.
    pub head_dim: usize,
    /// The key tiles that were visited, in order.
    pub tiles: Vec<Tile>,
}

/// The state of a unit of work after one key tile.
#[derive(Debug, Clone, PartialEq)]
pub struct Tile {
    /// Scores in powers of two, after scaling, −∞ where masked: `[query, key]`.
    pub scores: Vec<f32>,
    /// Weights before the division by their sum: `[query, key]`.
    pub weights: Vec<f32>,
    /// Output accumulators, of V's codes: `[query, channel]`. On Hopper those since the last promotion.
    pub output: Vec<f32>,
    /// The largest score of each row so far.
    pub row_maxima: Vec<f32>,
    /// The sum of the weights of each row so far.
    pub row_sums: Vec<f32>,
}

/// Runs a config on the inputs of a case in debug mode, and brings back what one unit of work computed.
pub fn tiles(config: &Config, case: &Case, unit: usize) -> Result<TileDump> {
    let device = Device::default()?;
    let stream = device.stream()?;
    let q = DeviceTensor::upload(&device, &stream, &case.q, Layout::Bhsd)?;
    let k = DeviceTensor::upload(&device, &stream, &case.k, Layout::Bhsd)?;
    let v = DeviceTensor::upload(&device, &stream, &case.v, config.value_layout())?;
    simulate::explain_failures(|| tiles_on_device(&stream, &case.problem, config, [&q, &k, &v], unit))
}

/// The same for tensors that are on the device already.
pub fn tiles_on_device(
    stream: &Stream,
    problem: &Problem,
    config: &Config,
    tensors: [&DeviceTensor; 3],
    unit: usize,
) -> Result<TileDump> {
    let (values, floats, tile_queries, tile_keys) = match config {
        Config::Ladder(config) => {
            let values = ladder::launch_dump(stream, problem, config, tensors, unit)?;
            (values, ladder::dump_floats(config, problem).0, config.tile_queries, config.tile_keys)
        }
        Config::Hopper(config) => {
            let values = hopper::launch_dump(stream, problem, config, tensors, unit)?;
            (values, hopper::dump_floats(config, problem).0, config.tile_queries(), config.tile_keys)
        }
        other => {
            let rule = format!("{} cannot show its tiles", eightfold::Variant::from(*other));
            return Err(Error::invalid("variant", rule, "name one of the ladder or the hopper kernel"));
        }
    };
    let empty = TileDump { tile_queries, tile_keys, head_dim: problem.value_dims().head_dim, tiles: Vec::new() };
    Ok(empty.cut(floats, &values))
}

impl TileDump {
    /// Cuts the buffer into tiles; those before and behind that the kernel never touched are left out.
    fn cut(self, floats: usize, values: &[f32]) -> TileDump {
        let TileDump { tile_queries, tile_keys, head_dim, .. } = self;
        let untouched = u32::from_ne_bytes([DUMP_UNTOUCHED; 4]);
        let is_touched = |tile: &&[f32]| tile.iter().any(|value| value.to_bits() != untouched);
        let tiles =
            values.chunks_exact(floats).skip_while(|tile| !is_touched(tile)).take_while(is_touched).map(|tile| {
                let mut rest = tile;
                let mut take = |columns: usize| {
                    let (part, after) = rest.split_at(tile_queries * columns);
                    rest = after;
                    part.to_vec()
                };
                Tile {
                    scores: take(tile_keys),
                    weights: take(tile_keys),
                    output: take(head_dim),
                    row_maxima: take(1),
                    row_sums: take(1),
                }
            });
        TileDump { tiles: tiles.collect(), ..self }
    }
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
    use eightfold::Shape;
    use eightfold::quantize::Quantizer;
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

    #[test]
    fn the_buffer_is_cut_in_the_kernels_order() {
        let problem = Problem::new(Shape::new(1, 1, 130, 64)).unwrap();
        let config: ladder::Config = "baseline".parse().unwrap();
        let (floats, tiles) = ladder::dump_floats(&config, &problem);
        assert_eq!((floats, tiles), (64 * (64 + 64 + 64 + 1 + 1), 3));
        let mut values: Vec<f32> = (0..floats * tiles).map(|index| index as f32).collect();
        values[2 * floats..].fill(f32::from_bits(u32::MAX));
        let empty = TileDump { tile_queries: 64, tile_keys: 64, head_dim: 64, tiles: Vec::new() };
        let dump = empty.cut(floats, &values);
        assert_eq!(dump.tiles.len(), 2);
        let tile = &dump.tiles[1];
        let first = floats as f32;
        let firsts = [tile.scores[0], tile.weights[0], tile.output[0], tile.row_maxima[0], tile.row_sums[0]];
        assert_eq!(firsts, [0.0, 4096.0, 8192.0, 12288.0, 12352.0].map(|offset: f32| first + offset));
        assert_eq!(tile.row_sums.len(), 64);
    }
}
