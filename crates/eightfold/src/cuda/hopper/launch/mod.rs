//! Host side of `kernels/hopper/attention.cu` and `short.cu`: what is passed to it, how many blocks, and the memory that it needs.

mod argument;
mod arrange;
mod divider;
mod order;
mod parts;
pub(super) mod work;

use super::config::{Config, Launch, SplitKeys};
use super::target;
use crate::cuda::driver::{Device, Grid, Stream};
use crate::cuda::kernel::Kernel;
use crate::cuda::tensor::{DeviceOutput, DeviceTensor, check_device};
use crate::cuda::{Operands, Specialisation};
use crate::error::{Error, Result};
use crate::plan::RunReport;
use crate::problem::Problem;
use crate::tensor::Layout;
use argument::Attention;
use arrange::Arranger;
use order::Places;
use parts::Parts;
use std::sync::Arc;
use work::Cut;

/// A variant compiled and loaded for one problem, ready to be launched any number of times.
#[derive(Debug)]
pub struct Prepared {
    device: Device,
    problem: Problem,
    config: Config,
    specialisation: Specialisation,
    kernel: Arc<Kernel>,
    cut: Cut,
    grid: Grid,
    blocks_per_multiprocessor: usize,
    /// Where V does not lie as the kernel reads it.
    arranger: Option<Box<Arranger>>,
    /// Where blocks share keys.
    parts: Option<Parts>,
    /// The one stream of launches that need the memory above.
    stream: Option<usize>,
    /// Where causal units are not dealt out in rounds; launches only read it.
    places: Option<Places>,
}

impl Prepared {
    /// Compiles (or takes from the cache) and loads the kernel for tensors of this kind, and allocates what it needs: for
    /// V in any other layout than [`Layout::BhdsExchanged`], for split keys, and to list which block does which part of a
    /// causal problem.
    pub fn new(
        device: &Device,
        problem: &Problem,
        config: &Config,
        q: &DeviceTensor,
        k: &DeviceTensor,
        v: &DeviceTensor,
    ) -> Result<Self> {
        let mut prepared = Prepared::for_one_launch(device, problem, config, q, k, v)?;
        prepared.places = Places::new(device, problem, config, &prepared.cut, prepared.blocks())?;
        Ok(prepared)
    }

    /// The same without the list, which costs more time than it saves one launch. The results are the same, bit for bit.
    pub(crate) fn for_one_launch(
        device: &Device,
        problem: &Problem,
        config: &Config,
        q: &DeviceTensor,
        k: &DeviceTensor,
        v: &DeviceTensor,
    ) -> Result<Self> {
        let arch = target(device.arch())?;
        let operands = Operands::of(q, k, v);
        let specialisation = check_operands(device, problem, config, &operands)?;
        let mut program = super::program(&specialisation, config);
        if cfg!(debug_assertions) {
            // What waits for ever becomes an error of the launch. Gates judge the kernel without.
            program.defines.push(("BOUNDED_WAITS", "1".into()));
        }
        let dynamic_shared_bytes = program.dynamic_shared_bytes;
        let threads = config.threads();
        let (kernel, blocks_per_multiprocessor) = Kernel::get_fitting(
            device,
            &program,
            arch,
            threads,
            &format!("hopper:{config}"),
            "set a smaller tile_keys, fewer warpgroups or fewer stages",
        )?;
        let multiprocessors = device.info().multiprocessors;
        let cut = Cut::new(problem, config, multiprocessors)?;
        config.check_sums(cut.keys_of_part(config).min(problem.shape().key_len), &operands)?;
        let arranged = v.layout() == Layout::BhdsExchanged;
        let split = config.split_keys == SplitKeys::On;
        Ok(Prepared {
            device: device.clone(),
            problem: *problem,
            config: *config,
            specialisation,
            kernel,
            cut,
            grid: Grid {
                blocks: cut.blocks(config, multiprocessors, blocks_per_multiprocessor),
                threads: threads as u32,
                dynamic_shared_bytes,
                cluster: config.cluster() as u32,
            },
            blocks_per_multiprocessor,
            arranger: (!arranged).then(|| Arranger::new(device, v.dims(), v.layout()).map(Box::new)).transpose()?,
            parts: split.then(|| Parts::new(device, config, &cut, specialisation.head_dim)).transpose()?,
            stream: None,
            places: None,
        })
    }

    /// The layout in which V needs no arranging.
    pub fn value_layout(_config: &Config) -> Layout {
        Layout::BhdsExchanged
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

    /// Puts one launch (two where V is to be arranged) into the stream and returns at once. The tensors and the output
    /// must live until it is done.
    ///
    /// Nothing is allocated and nothing waits, so it may be captured into a graph. The tensors may be others than
    /// those it was prepared for, if they are of the same kind. Launches may overlap if they are in different streams
    /// and write different outputs, unless V is arranged or keys are split: those use memory of this value, so that a
    /// second stream is refused.
    pub fn launch(
        &mut self,
        stream: &Stream,
        q: &DeviceTensor,
        k: &DeviceTensor,
        v: &DeviceTensor,
        output: &mut DeviceOutput,
    ) -> Result<()> {
        let kind = check_operands(&self.device, &self.problem, &self.config, &Operands::of(q, k, v))?;
        self.specialisation.check_same(kind)?;
        if kind.centred != self.specialisation.centred {
            return Err(Error::invalid(
                "v",
                "the kernel was prepared for V with its means taken from it, or for V without: not for both",
                "prepare the kernel for these tensors",
            ));
        }
        output.check(&self.problem)?;
        check_device(&self.device, q, k, v, output)?;
        let arranger = match v.layout() {
            Layout::BhdsExchanged => None,
            layout => Some(self.arranger.as_ref().ok_or_else(|| not_prepared(layout))?),
        };
        if arranger.is_some() || self.parts.is_some() {
            check_stream(&mut self.stream, stream.as_raw() as usize)?;
        }
        let values = arranger.map_or((v.codes(), v.lines()), |arranger| (arranger.pointer(), arranger.lines()));
        let context = self.device.context();
        let mut argument = Attention::new(context, &self.problem, &self.config, &self.cut, [q, k, v], values, output)?;
        if let Some(Parts { sums, tickets }) = &self.parts {
            argument.partial = sums.pointer();
            argument.tickets = tickets.pointer();
        }
        if let Some(Places { list, listed }) = &self.places {
            argument.places = list.pointer();
            argument.listed = *listed;
        }
        if let Some(arranger) = arranger {
            arranger.launch(stream, v)?;
        }
        let function = self.kernel.function();
        // SAFETY: the kernel takes this struct (its layout is tested against the device code's), whose pointers were
        // checked to be of this device and of the problem's sizes; that they live is the caller's part. With
        // launch=dependent it waits for the launch before.
        unsafe {
            match self.config.launch {
                Launch::Plain => function.launch(stream, self.grid, &argument),
                Launch::Dependent => function.launch_dependent(stream, self.grid, &argument),
            }
        }
    }
}

/// What the kernel for tensors like these is specialised for, if there is one.
fn check_operands(device: &Device, problem: &Problem, config: &Config, operands: &Operands) -> Result<Specialisation> {
    operands.check(problem)?;
    config.check_problem(problem, operands, device.arch())?;
    Ok(operands.specialisation(problem))
}

fn not_prepared(layout: Layout) -> Error {
    Error::invalid(
        "v",
        format!("is laid out as {layout}, and the kernel was prepared for V as {}", Layout::BhdsExchanged),
        "prepare the kernel for these tensors",
    )
}

/// Remembers the first stream, and refuses every other.
fn check_stream(known: &mut Option<usize>, stream: usize) -> Result<()> {
    if *known.get_or_insert(stream) != stream {
        return Err(Error::invalid(
            "stream",
            "the prepared kernel was launched in another stream, and launches that arrange V or split keys share its \
             memory",
            "prepare the kernel again for this stream, which is cheap",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_for_one_stream() {
        let mut known = None;
        assert_eq!(check_stream(&mut known, 7), Ok(()));
        assert_eq!(check_stream(&mut known, 7), Ok(()));
        assert!(check_stream(&mut known, 8).unwrap_err().to_string().starts_with("stream: the prepared kernel was"));
    }
}
