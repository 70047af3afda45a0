//! What one who has no kernel for pages runs on the same lengths: PyTorch's attention in bf16, on K and V that were gathered.

use super::case::Case;
use super::inputs::{Inputs, Lie, SCALE, Sample};
use crate::measure::Contestant;
use crate::peers::{Gathered, GatheredPeer, Torch};
use eightfold::{Error, Result};
use std::cell::RefCell;

/// The largest relative L2 error of the samples: K, V, weights and outputs are rounded to bf16.
pub(super) const LARGEST_ERROR: f64 = 1e-2;

/// What must be read at least: keys and values in bf16.
pub(super) fn bytes(case: &Case) -> usize {
    2 * case.bytes()
}

/// PyTorch's process with the inputs of a case, or why it has none.
pub(super) struct Peers<'a> {
    torch: RefCell<&'a mut Torch>,
    loaded: Result<Vec<Sample>>,
    peers: Vec<GatheredPeer>,
    launches: usize,
}

impl<'a> Peers<'a> {
    /// Hands over the inputs; graphs will be of so many launches, around so many copies of K and V.
    pub(super) fn new(torch: &'a mut Torch, case: &Case, copies: usize, launches: usize) -> Self {
        let loaded = load(torch, case, copies);
        let (torch, peers) = (RefCell::new(torch), GatheredPeer::all(&case.lengths(), &queries(case)));
        Peers { torch, loaded, peers, launches }
    }

    /// Those who have something for these lengths.
    pub(super) fn contestants(&self) -> Vec<PeerContestant<'_, 'a>> {
        let contestant = |peer: &GatheredPeer| PeerContestant { peers: self, peer: *peer, what: None };
        self.peers.iter().map(contestant).collect()
    }
}

/// Queries of every sequence.
fn queries(case: &Case) -> Vec<usize> {
    case.query_starts().windows(2).map(|pair| pair[1] - pair[0]).collect()
}

fn load(torch: &mut Torch, case: &Case, copies: usize) -> Result<Vec<Sample>> {
    if torch.cuda().is_none() {
        let fix = "choose a Python whose PyTorch has CUDA with --python";
        return Err(Error::unavailable("PyTorch on this GPU", "its PyTorch sees no GPU", fix));
    }
    let Inputs { k, v, q, samples, .. } = Inputs::new(case, 1, Lie::InOrder)?;
    let gathered = Gathered {
        heads: [case.query_heads, case.kv_heads],
        head_dim: case.head_dim,
        queries: queries(case),
        keys: case.lengths(),
        q: &q,
        k: &k,
        v: &v,
        scale: SCALE,
        softmax_scale: case.problem()?.softmax_scale(),
    };
    torch.load_gathered(&gathered, copies)?;
    Ok(samples)
}

/// One of PyTorch's ways.
pub(super) struct PeerContestant<'p, 'a> {
    peers: &'p Peers<'a>,
    peer: GatheredPeer,
    /// What runs, in words, once it is prepared.
    what: Option<String>,
}

impl PeerContestant<'_, '_> {
    pub(super) fn name(&self) -> &'static str {
        self.peer.name()
    }

    /// What ran, in words.
    pub(super) fn describe(&self) -> Option<String> {
        self.what.as_ref().map(|what| format!("{}: {what}", self.name()))
    }
}

impl Contestant for PeerContestant<'_, '_> {
    fn prepare(&mut self) -> Result<()> {
        self.peers.loaded.as_ref().map_err(Clone::clone)?;
        self.what = Some(self.peers.torch.borrow_mut().prepare_gathered(self.peer, self.peers.launches)?);
        Ok(())
    }

    fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>> {
        self.peers.torch.borrow_mut().time_gathered(self.peer, iterations)
    }

    fn launches_per_run(&self) -> usize {
        self.peers.launches
    }

    fn verify(&mut self) -> Result<()> {
        let samples = self.peers.loaded.as_ref().map_err(Clone::clone)?;
        let places: Vec<usize> = samples.iter().map(|sample| sample.at).collect();
        let mut torch = self.peers.torch.borrow_mut();
        let width = samples.first().map_or(1, |sample| sample.expected.len());
        let rows = torch.rows_of_gathered(self.peer, &places, width)?;
        for (sample, row) in samples.iter().zip(rows.chunks(width)) {
            sample.check(row, LARGEST_ERROR).map_err(|what| torch.error(format!("after the timed runs {what}")))?;
        }
        Ok(())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::peers::scripted;

    #[test]
    fn a_peer_takes_its_turns_and_a_wrong_output_is_an_error() {
        let Some(mut torch) = scripted("") else { return };
        let case: Case = "4,2,64,3,40".parse().unwrap();
        let mut peers = Peers::new(&mut torch, &case, 2, 20);
        {
            let mut contestants = peers.contestants();
            assert_eq!(
                contestants.iter().map(PeerContestant::name).collect::<Vec<_>>(),
                ["torch-sdpa-bf16-contiguous"]
            );
            let contestant = &mut contestants[0];
            assert_eq!(contestant.describe(), None);
            contestant.prepare().unwrap();
            assert_eq!((contestant.run_block(3).unwrap(), contestant.launches_per_run()), (vec![3000; 3], 20));
            assert!(contestant.describe().unwrap().contains("FLASH_ATTENTION"));
            // The stand-in gives back Q, which is not attention.
            let told = contestant.verify().unwrap_err().to_string();
            assert!(told.contains("has a relative L2 error of"), "{told}");
        }
        let Inputs { q, .. } = Inputs::new(&case, 1, Lie::InOrder).unwrap();
        for sample in peers.loaded.as_mut().unwrap() {
            sample.expected = q[sample.at..][..64].iter().map(|value| value.to_f64()).collect();
        }
        let mut contestant = peers.contestants().remove(0);
        contestant.prepare().unwrap();
        contestant.run_block(1).unwrap();
        contestant.verify().unwrap();
    }

    #[test]
    fn sequences_of_different_lengths_are_for_a_peer_more_and_without_a_gpu_there_is_none() {
        let Some(mut torch) = scripted("NO_GPU = True") else { return };
        let peers = Peers::new(&mut torch, &"4,2,64,3,ragged".parse().unwrap(), 1, 20);
        let mut contestants = peers.contestants();
        assert_eq!(contestants.len(), 2);
        for contestant in &mut contestants {
            let told = contestant.prepare().unwrap_err().to_string();
            assert!(told.contains("its PyTorch sees no GPU") && contestant.describe().is_none(), "{told}");
        }
    }

    #[test]
    fn what_is_in_order_is_what_pages_hold() {
        let case: Case = "4,2,8,3,37,2".parse().unwrap();
        for (page_size, lie) in [(16, Lie::Served), (16, Lie::Own), (1, Lie::InOrder)] {
            let inputs = Inputs::new(&case, page_size, lie).unwrap();
            assert_eq!(inputs.samples.len(), super::super::SAMPLES);
            assert!(inputs.samples.iter().all(|sample| sample.expected.iter().all(|value| value.is_finite())));
            if lie == Lie::InOrder {
                assert!(inputs.table.iter().enumerate().all(|(index, page)| index as i32 == *page));
                assert_eq!((inputs.k.len(), inputs.layout.strides.token), (3 * 37 * 2 * 8, 2 * 8));
            }
        }
    }
}
