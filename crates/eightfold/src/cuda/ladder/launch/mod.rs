//! Host side of `kernels/ladder/attention.cu`: what is passed to it, and how many blocks.

mod argument;
mod dump;
mod queue;
mod work;

pub use dump::{Tile, TileDump};

use super::config::{Config, Pv, Schedule};
use crate::cuda::counts::size;
use crate::cuda::driver::{Device, Grid, Stream};
use crate::cuda::kernel::Kernel;
use crate::cuda::tensor::{DeviceOutput, DeviceTensor, check_device};
use crate::cuda::{Arch, Operands, Specialisation};
use crate::error::{Error, Result};
use crate::plan::RunReport;
use crate::problem::Problem;
use crate::tensor::Layout;
use argument::Attention;
use queue::Queue;
use std::sync::Arc;

/// A variant compiled and loaded for one problem, ready to be launched any number of times.
#[derive(Debug)]
pub struct Prepared {
    device: Device,
    problem: Problem,
    config: Config,
    specialisation: Specialisation,
    kernel: Arc<Kernel>,
    grid: Grid,
    paired_from: i32,
    blocks_per_multiprocessor: usize,
    queue: Option<Queue>,
}

impl Prepared {
    /// Compiles (or takes from the cache) and loads the kernel for tensors of this kind.
    pub fn new(
        device: &Device,
        problem: &Problem,
        config: &Config,
        q: &DeviceTensor,
        k: &DeviceTensor,
        v: &DeviceTensor,
    ) -> Result<Self> {
        let specialisation = check_operands(device.arch(), problem, config, &Operands::of(q, k, v))?;
        Prepared::specialised(device, problem, config, specialisation)
    }

    fn specialised(
        device: &Device,
        problem: &Problem,
        config: &Config,
        specialisation: Specialisation,
    ) -> Result<Self> {
        let units = work::units(problem, config)?;
        let program = specialisation.program(*config);
        let dynamic_shared_bytes = program.dynamic_shared_bytes;
        let threads = config.threads();
        let (kernel, blocks_per_multiprocessor) = Kernel::get_fitting(
            device,
            &program,
            device.arch(),
            threads,
            &format!("ladder:{config}"),
            "set smaller tiles, fewer warps or fewer copy stages",
        )?;
        let multiprocessors = device.info().multiprocessors;
        let blocks = work::blocks(units, config, multiprocessors, blocks_per_multiprocessor);
        let paired_from = work::paired_from(units, config, multiprocessors, blocks_per_multiprocessor);
        let persistent = config.schedule == Schedule::Persistent;
        Ok(Prepared {
            device: device.clone(),
            problem: *problem,
            config: *config,
            specialisation,
            kernel,
            grid: Grid { blocks, threads: threads as u32, dynamic_shared_bytes, cluster: 1 },
            paired_from: size("multiprocessors", paired_from)?,
            blocks_per_multiprocessor,
            queue: persistent.then(|| Queue::new(device)).transpose()?,
        })
    }

    /// The layout in which this config wants V.
    pub fn value_layout(config: &Config) -> Layout {
        match config.pv {
            Pv::Unpack | Pv::Fp8 => Layout::Bhds,
            Pv::Scalar | Pv::Simd | Pv::Mma => Layout::Bhsd,
        }
    }

    /// Blocks of a launch.
    pub fn blocks(&self) -> usize {
        self.grid.blocks as usize
    }

    /// Blocks that a multiprocessor can hold at a time.
    pub fn blocks_per_multiprocessor(&self) -> usize {
        self.blocks_per_multiprocessor
    }

    /// What a launch does: how many tiles it computes.
    pub fn report(&self) -> RunReport {
        RunReport { tiles: work::tiles(&self.problem, &self.config), ..RunReport::default() }
    }

    /// Puts one launch into the stream and returns at once. The tensors and the output must live until it is done.
    ///
    /// Nothing is allocated and nothing waits, so it may be captured into a graph. The tensors may be others than
    /// those it was prepared for, if they are of the same kind. Launches may overlap if they are in different streams
    /// and write different outputs; a graph must not be launched in two streams at a time.
    pub fn launch(
        &mut self,
        stream: &Stream,
        q: &DeviceTensor,
        k: &DeviceTensor,
        v: &DeviceTensor,
        output: &mut DeviceOutput,
    ) -> Result<()> {
        let mut argument = self.argument(q, k, v, output)?;
        if let Some(queue) = &mut self.queue {
            argument.queue = queue.of(stream)?;
        }
        // SAFETY: the kernel takes this struct (its layout is tested against the device code's), whose pointers were
        // checked to be of this device and of the problem's sizes; that they live is the caller's part.
        unsafe { self.kernel.function().launch(stream, self.grid, &argument) }
    }

    /// Runs once in debug mode and returns the intermediate tiles of one unit of work. Waits for the stream.
    pub fn dump(
        &self,
        stream: &Stream,
        q: &DeviceTensor,
        k: &DeviceTensor,
        v: &DeviceTensor,
        unit: usize,
    ) -> Result<TileDump> {
        let units = work::units(&self.problem, &self.config)?;
        if unit >= units as usize {
            return Err(Error::invalid(
                "unit",
                format!("{unit} is not one of the {units} units of work of {}", self.problem),
                format!("choose one of 0 to {}", units - 1),
            ));
        }
        if self.config.key_groups > 1 {
            return Err(Error::invalid(
                "key_groups",
                format!("with {} of them no warp has the sums of all keys to show", self.config.key_groups),
                "set key_groups=1 (and as many tile_queries as 16 for each warp)",
            ));
        }
        let specialisation = Specialisation { dump: true, ..self.specialisation };
        let mut debug = Prepared::specialised(&self.device, &self.problem, &self.config, specialisation)?;
        let mut output = DeviceOutput::new(&self.device, &self.problem)?;
        let (floats, tiles) = dump::floats_and_tiles(&self.problem, &self.config);
        let mut values = vec![0.0f32; floats * tiles];
        let buffer = self.device.allocate(size_of_val(values.as_slice()))?;
        buffer.fill(stream, dump::UNTOUCHED)?;
        let mut argument = debug.argument(q, k, v, &mut output)?;
        argument.dump = buffer.pointer();
        argument.dump_work = size("unit", unit)?;
        if let Some(queue) = &mut debug.queue {
            argument.queue = queue.of(stream)?;
        }
        // SAFETY: as in `launch`; the dump buffer is large enough for every key tile, and all live until the wait
        // below is over.
        unsafe { debug.kernel.function().launch(stream, debug.grid, &argument)? };
        buffer.download(stream, &mut values)?;
        Ok(TileDump::cut(&self.problem, &self.config, &values))
    }

    fn argument(
        &self,
        q: &DeviceTensor,
        k: &DeviceTensor,
        v: &DeviceTensor,
        output: &mut DeviceOutput,
    ) -> Result<Attention> {
        let kind = check_operands(self.device.arch(), &self.problem, &self.config, &Operands::of(q, k, v))?;
        self.specialisation.check_same(kind)?;
        output.check(&self.problem)?;
        check_device(&self.device, q, k, v, output)?;
        let mut argument = Attention::new(&self.problem, q, k, v, output)?;
        argument.paired_from = self.paired_from;
        Ok(argument)
    }
}

/// What the kernel for tensors like these is specialised for, if there is one.
fn check_operands(arch: Arch, problem: &Problem, config: &Config, operands: &Operands) -> Result<Specialisation> {
    operands.check(problem)?;
    let layout = operands.v.layout;
    let (fits, fix) = match Prepared::value_layout(config) {
        Layout::Bhds => (layout == Layout::Bhds, "lay V out transposed, as Layout::Bhds"),
        _ => (!layout.is_transposed(), "lay it out as Layout::Bhsd or Layout::Bshd"),
    };
    if !fits {
        let reason = format!("is laid out as {layout}, which pv={} does not read", config.pv);
        return Err(Error::invalid("v", reason, fix));
    }
    config.check_problem(problem, operands.k.granularity, operands.v.granularity, arch)?;
    Ok(operands.specialisation(problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::operands::Operand;
    use crate::problem::Shape;
    use crate::tensor::Granularity;

    #[test]
    fn tensors_that_the_knobs_do_not_suit_are_refused_by_name() {
        let problem = Problem::new(Shape { query_len: 33, ..Shape::new(1, 2, 70, 64) }).unwrap();
        let hoped = Operands::hoped(&problem);
        let check = |config: &str, operands| check_operands(Arch::Sm90, &problem, &config.parse().unwrap(), &operands);
        let kind = check("baseline", hoped).unwrap();
        assert_eq!((kind.key_blocks, kind.value_blocks), (false, false));
        let refused = |config: &str, operands| check(config, operands).unwrap_err().to_string();
        let with_values = |layout| Operands { v: Operand { layout, ..hoped.v }, ..hoped };
        let turned = with_values(Layout::Bhds);
        assert!(refused("baseline", turned).starts_with("v: is laid out as bhds, which pv=scalar does not read"));
        assert!(refused("unpack", hoped).starts_with("v: is laid out as bhsd, which pv=unpack does not read"));
        assert!(refused("unpack", with_values(Layout::BhdsExchanged)).starts_with("v: is laid out as bhds-exchanged"));
        assert!(check("unpack", turned).is_ok());
        let blocks = |rows| Operand { granularity: Granularity::Block { rows }, ..hoped.k };
        let fine = Operands { k: blocks(48), ..hoped };
        assert!(refused("baseline", fine).starts_with("k scales: a scale for every 48 rows"));
        let kind = check("baseline", Operands { k: blocks(128), ..hoped }).unwrap();
        assert_eq!((kind.key_blocks, kind.value_blocks), (true, false));
    }

    #[test]
    fn only_fp8_values_are_wanted_transposed() {
        let layout = |config: &str| Prepared::value_layout(&config.parse().unwrap());
        assert_eq!(layout("mma-pv"), Layout::Bhsd);
        assert_eq!(layout("fp8-mma"), Layout::Bhds);
        assert_eq!(layout("unpack"), Layout::Bhds);
    }
}
