//! A variant on a GPU as a contestant, timed on the device.

use super::kernel::verify;
use super::{Contestant, Timer};
use crate::gates::Case;
use eightfold::cuda::driver::{Device, Event, Graph, Stream};
use eightfold::cuda::tensor::{DeviceOutput, DeviceTensor};
use eightfold::cuda::{Config, Prepared};
use eightfold::{Error, Layout, Output, Result};
use std::cell::RefCell;
use std::rc::Rc;

/// Launches that are captured in one graph: enough that what it takes to start the graph is a small share of each.
pub const GRAPH_LAUNCHES: usize = 20;

/// A compiled variant with its inputs on the device.
struct Loaded {
    stream: Stream,
    q: DeviceTensor,
    k: DeviceTensor,
    v: DeviceTensor,
    prepared: Prepared,
    start: Event,
    end: Event,
}

impl Loaded {
    fn launch(&mut self, output: &mut DeviceOutput) -> Result<()> {
        self.prepared.launch(&self.stream, &self.q, &self.k, &self.v, output)
    }

    /// The device time of what the closure puts into the stream, with nothing else under way.
    fn time_ns(&mut self, work: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<f64> {
        self.start.record(&self.stream)?;
        work(self)?;
        self.end.record(&self.stream)?;
        self.end.synchronize()?;
        self.end.elapsed_ns(&self.start)
    }
}

/// One timer of a variant on the inputs of one case; it must keep giving the bits that the gate saw, if those were
/// always the same.
pub struct CudaContestant<'a> {
    name: String,
    case: &'a Case,
    timer: Timer,
    /// Released before what its launches read and write.
    graph: Option<Graph>,
    /// Each timer has its own, so that neither is credited with what the other wrote.
    output: DeviceOutput,
    loaded: Rc<RefCell<Loaded>>,
    expected_hash: Option<u64>,
    /// Launches of a graph beyond those that its time is divided by.
    extra_launches: usize,
}

impl<'a> CudaContestant<'a> {
    /// Two contestants for a variant that passed the correctness gate on this case with this output hash (none if its
    /// bits differed from run to run): by graph replay, and by events around single launches.
    pub fn both(name: &str, config: &Config, case: &'a Case, expected_hash: Option<u64>) -> Result<[Self; 2]> {
        let device = Device::default()?;
        let stream = device.stream()?;
        let q = DeviceTensor::upload(&device, &stream, &case.q, Layout::Bhsd)?;
        let k = DeviceTensor::upload(&device, &stream, &case.k, Layout::Bhsd)?;
        let v = DeviceTensor::upload(&device, &stream, &case.v, config.value_layout())?;
        let prepared = Prepared::new(&device, &case.problem, config, &q, &k, &v)?;
        stream.synchronize()?;
        let outputs = [DeviceOutput::new(&device, &case.problem)?, DeviceOutput::new(&device, &case.problem)?];
        let (start, end) = (stream.record()?, stream.record()?);
        let loaded = Rc::new(RefCell::new(Loaded { stream, q, k, v, prepared, start, end }));
        let mut timers = [Timer::GraphReplay, Timer::Event].into_iter();
        Ok(outputs.map(|output| CudaContestant {
            name: name.into(),
            case,
            timer: timers.next().unwrap_or(Timer::Event),
            graph: None,
            output,
            loaded: loaded.clone(),
            expected_hash,
            extra_launches: 0,
        }))
    }

    /// The same, with every replay made longer by this share of itself: a slowdown of known size, for a test of whoever
    /// judges the times. The share is that of whole launches, and single launches stay as they are.
    pub fn delayed_by(self, delay: f64) -> Result<Self> {
        let launches = delay * GRAPH_LAUNCHES as f64;
        if (launches - launches.round()).abs() > 1e-6 {
            let step = 100.0 / GRAPH_LAUNCHES as f64;
            let rule = format!("must be a multiple of {step} % on a GPU, got {} %", 100.0 * delay);
            return Err(Error::invalid("plant", rule, format!("give {step}% or a multiple of it")));
        }
        Ok(CudaContestant { extra_launches: launches.round() as usize, ..self })
    }

    /// What its times are taken with.
    pub fn timer(&self) -> Timer {
        self.timer
    }
}

impl Contestant for CudaContestant<'_> {
    fn prepare(&mut self) -> Result<()> {
        let loaded = &mut *self.loaded.borrow_mut();
        let output = &mut self.output;
        // A first launch outside the capture: modules may load lazily, which a capture does not allow.
        loaded.launch(output)?;
        loaded.stream.synchronize()?;
        if self.timer == Timer::GraphReplay {
            let Loaded { stream, q, k, v, prepared, .. } = loaded;
            let launches = GRAPH_LAUNCHES + self.extra_launches;
            let graph =
                stream.capture(&mut || (0..launches).try_for_each(|_| prepared.launch(stream, q, k, v, output)))?;
            self.graph = Some(graph);
        }
        Ok(())
    }

    fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>> {
        let loaded = &mut *self.loaded.borrow_mut();
        // Whatever an earlier block left must not count as this one's work.
        self.output.poison(&loaded.stream)?;
        loaded.stream.synchronize()?;
        let (graph, output) = (&self.graph, &mut self.output);
        (0..iterations)
            .map(|_| {
                let ns = match graph {
                    Some(graph) => loaded.time_ns(&mut |loaded| graph.launch(&loaded.stream))? / GRAPH_LAUNCHES as f64,
                    None => loaded.time_ns(&mut |loaded| loaded.launch(output))?,
                };
                Ok(ns.round() as u64)
            })
            .collect()
    }

    fn launches_per_run(&self) -> usize {
        if self.graph.is_some() { GRAPH_LAUNCHES } else { 1 }
    }

    fn verify(&mut self) -> Result<()> {
        let loaded = self.loaded.borrow();
        let mut output = Output::zeros(&self.case.problem);
        self.output.download(&loaded.stream, &mut output)?;
        verify(&self.name, &output, self.expected_hash)
    }
}
