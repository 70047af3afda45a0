//! A variant on a GPU as a contestant, timed on the device.

use super::kernel::verify;
use super::stopwatch::Stopwatch;
use super::{Contestant, Plant, Rotation, Timer};
use crate::driver::Record as _;
use crate::driver::{Graph, range};
use eightfold::cuda::driver::{Device, Stream};
use eightfold::cuda::tensor::{DeviceOutput, DeviceTensor};
use eightfold::cuda::{Arguments, Kernel, Operands, Workspace};
use eightfold::lab::driver::Buffer;
use eightfold::lab::{Config, TileList};
use eightfold::{Layout, Output, Result};
use std::cell::RefCell;
use std::rc::Rc;

/// Launches that are captured in one graph: enough that what it takes to start the graph is a small share of each.
pub const GRAPH_LAUNCHES: usize = Plant::RUNS;

/// What a graph of a brief contestant takes at least, if that is not more launches than that.
const BRIEF_NS: f64 = 4e6;

/// Launches in the graph of a brief contestant, each of which takes so long.
fn brief_launches(ns: f64) -> usize {
    ((BRIEF_NS / ns.max(1.0)).ceil() as usize).clamp(1, GRAPH_LAUNCHES)
}

/// A compiled variant with its inputs on the device. The fields that others point at come last, so that they live longest.
struct Loaded {
    stopwatch: Stopwatch,
    kernel: Kernel,
    workspace: Workspace,
    _list: Option<TileList>,
    _inputs: Vec<[DeviceTensor; 3]>,
    stream: Stream,
}

/// Puts so many launches into the stream.
fn launch(
    kernel: &Kernel,
    stream: &Stream,
    arguments: &Arguments,
    workspace: &mut Workspace,
    launches: usize,
) -> Result<()> {
    // SAFETY: inputs, list and workspace are of a `Loaded`, and the output is of the contestant, which waits for its launches
    // before it lets go of anything. All launches are in one stream.
    (0..launches).try_for_each(|_| unsafe { kernel.launch(stream, arguments, workspace) })
}

/// One timer of a variant on inputs that change from round to round; it must keep giving the bits that the gate saw, if
/// those were always the same.
pub struct CudaContestant<'a> {
    name: String,
    inputs: Rotation<'a>,
    current: usize,
    timer: Timer,
    /// Whether graphs are no longer than they must be.
    brief: bool,
    /// Launches of a graph.
    graph_launches: usize,
    /// One for each set of inputs. Released before what their launches read and write.
    graphs: Vec<Graph>,
    /// One for each set of inputs.
    arguments: Vec<Arguments>,
    /// Each timer has its own, so that neither is credited with what the other wrote.
    output: DeviceOutput,
    /// What was last brought to the host: fresh memory would take longer than the copy.
    downloaded: Option<Output>,
    loaded: Rc<RefCell<Loaded>>,
    plant: Option<Plant>,
    /// Larger than the second-level cache: written to empty it.
    flush: Option<Buffer>,
}

impl<'a> CudaContestant<'a> {
    /// The contestants for a variant that passed the correctness gate on these inputs: by graph replay, by events around
    /// single launches, and, if its launches may overlap, by a replay in which they do not.
    pub fn of_each_timer(name: &str, config: &Config, inputs: Rotation<'a>) -> Result<Vec<Self>> {
        let device = Device::default()?;
        let stream = device.stream()?;
        let mut tensors = Vec::new();
        for case in inputs.cases() {
            tensors.push([
                DeviceTensor::upload(&device, &stream, &case.q, Layout::Bhsd)?,
                DeviceTensor::upload(&device, &stream, &case.k, Layout::Bhsd)?,
                DeviceTensor::upload(&device, &stream, &case.v, config.value_layout())?,
            ]);
        }
        let problem = inputs.at(0).0.problem;
        let [q, k, v] = &tensors[0];
        let kernel = Kernel::of(&device, &problem, config, &Operands::of(q, k, v))?;
        let list = TileList::new(&kernel, &problem)?;
        let arguments = |output: &DeviceOutput| -> Result<Vec<Arguments>> {
            let of = |[q, k, v]: &[DeviceTensor; 3]| {
                let arguments = kernel.arguments(&problem, [q, k, v], output)?;
                list.iter().try_fold(arguments, |arguments, list| list.deal(arguments, &problem))
            };
            tensors.iter().map(of).collect()
        };
        let lane = |timer: Timer| -> Result<(Timer, DeviceOutput, Vec<Arguments>)> {
            let output = DeviceOutput::new(&device, &problem)?;
            let arguments = arguments(&output)?;
            Ok((timer, output, arguments))
        };
        let mut lanes = vec![lane(Timer::GraphReplay)?, lane(Timer::Event)?];
        if lanes[0].2[0].may_overlap() {
            let (timer, output, arguments) = lane(Timer::SeparateReplay)?;
            lanes.push((timer, output, arguments.into_iter().map(Arguments::without_overlap).collect()));
        }
        let workspace = Workspace::new(&stream, lanes[0].2[0].workspace_bytes())?;
        stream.synchronize()?;
        let stopwatch = Stopwatch::new(&stream)?;
        let loaded = Loaded { stopwatch, kernel, workspace, _list: list, _inputs: tensors, stream };
        let loaded = Rc::new(RefCell::new(loaded));
        let contestant = |(timer, output, arguments): (Timer, DeviceOutput, Vec<Arguments>)| CudaContestant {
            name: name.into(),
            inputs: inputs.clone(),
            current: 0,
            timer,
            brief: false,
            graph_launches: GRAPH_LAUNCHES,
            graphs: Vec::new(),
            arguments,
            output,
            downloaded: None,
            loaded: loaded.clone(),
            plant: None,
            flush: None,
        };
        Ok(lanes.into_iter().map(contestant).collect())
    }

    /// The same with a slowdown.
    pub fn planted(self, plant: Option<Plant>) -> Self {
        CudaContestant { plant, ..self }
    }

    /// The same with graphs of few launches where those are slow: for contestants that are all ours and many, since who
    /// works longer at a time may meet another clock.
    pub fn brief(self) -> Self {
        CudaContestant { brief: true, ..self }
    }

    /// The same with a second-level cache that is emptied before every timed region, by writing twice as much.
    pub fn on_cold_caches(self) -> Result<Self> {
        let device = Device::default()?;
        let flush = Some(device.allocate(2 * device.info().l2_bytes)?);
        Ok(CudaContestant { flush, ..self })
    }

    /// What its times are taken with.
    pub fn timer(&self) -> Timer {
        self.timer
    }

    /// Launches between two events, and those that their time is divided by.
    fn launches(&self) -> (usize, usize) {
        let extra = self.plant.map_or(0, |plant| plant.extra_runs);
        match (self.timer, self.plant) {
            (Timer::GraphReplay | Timer::SeparateReplay, _) => (self.graph_launches + extra, self.graph_launches),
            (_, Some(_)) => (Plant::RUNS + extra, Plant::RUNS),
            (_, None) => (1, 1),
        }
    }
}

impl Contestant for CudaContestant<'_> {
    fn prepare(&mut self) -> Result<()> {
        let _range = range("prepare", &self.name);
        let loaded = self.loaded.clone();
        let Loaded { stopwatch, kernel, workspace, stream, .. } = &mut *loaded.borrow_mut();
        // A first launch outside the capture: modules may load lazily, which a capture does not allow.
        let first = &self.arguments[0];
        launch(kernel, stream, first, workspace, 1)?;
        stream.synchronize()?;
        if self.brief {
            let ns = stopwatch.time_ns(stream, &mut || launch(kernel, stream, first, workspace, 1))?;
            self.graph_launches = brief_launches(ns);
        }
        let (launches, _) = self.launches();
        if self.timer != Timer::Event {
            self.graphs.clear();
            for arguments in &self.arguments {
                let graph = stream.capture(&mut || launch(kernel, stream, arguments, workspace, launches))?;
                self.graphs.push(graph);
            }
        }
        Ok(())
    }

    fn begin_round(&mut self, round: usize) -> Result<()> {
        self.current = self.inputs.index(round);
        Ok(())
    }

    fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>> {
        let (launches, counted) = self.launches();
        let _range = range("launch", &self.name);
        let Loaded { stopwatch, kernel, workspace, stream, .. } = &mut *self.loaded.borrow_mut();
        // Whatever an earlier block left must not count as this one's work.
        self.output.poison(stream)?;
        stream.synchronize()?;
        let arguments = &self.arguments[self.current];
        let mut graph = self.graphs.get_mut(self.current);
        (0..iterations)
            .map(|_| {
                if let Some(flush) = &self.flush {
                    flush.fill(stream, 0)?;
                    stream.synchronize()?;
                }
                let ns = stopwatch.time_ns(stream, &mut || match &mut graph {
                    // SAFETY: kernel, inputs and output are this value's, which outlives the wait for the time.
                    Some(graph) => unsafe { graph.launch(stream) },
                    None => launch(kernel, stream, arguments, workspace, launches),
                })?;
                Ok((ns / counted as f64).round() as u64)
            })
            .collect()
    }

    fn launches_per_run(&self) -> usize {
        self.launches().1
    }

    fn verify(&mut self) -> Result<()> {
        let _range = range("verify", &self.name);
        let loaded = self.loaded.borrow();
        let (case, expected_hash) = self.inputs.at(self.current);
        let output = self.downloaded.get_or_insert_with(|| Output::zeros(&case.problem));
        self.output.download(&loaded.stream, output)?;
        verify(&self.name, output, expected_hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_launches_make_short_graphs() {
        let counts = [0.0, 2e3, 2e5, 3e5, 1.9e6, 4e6, 1e9].map(brief_launches);
        assert_eq!(counts, [GRAPH_LAUNCHES, GRAPH_LAUNCHES, 20, 14, 3, 1, 1]);
    }
}
