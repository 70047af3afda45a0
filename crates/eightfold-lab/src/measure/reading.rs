//! Reading the keys and values of a problem and doing nothing else with them: the floor of decoding.

use super::flush::HostFlush;
use super::{Cache, Contestant};
use crate::gates::Case;
use crate::paged::Paged;
use crate::record::Timing;
use eightfold::{Error, Problem, Result};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Query rows that meet a key at most where reading it may take longer than computing with it.
const FEW_ROWS: usize = 16;

/// How long the codes of K and V took to read, on as many threads as the contestants had, in turns with them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The codes.
    pub bytes: usize,
    /// Their times.
    pub timing: Timing,
}

impl Reading {
    /// The median time.
    pub fn p50_us(&self) -> f64 {
        self.timing.summary.p50_us
    }

    /// Bytes in a second.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / (self.p50_us() * 1e-6)
    }
}

/// How long the codes of K and V took to read where they lie in pages, in the order of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PageReading {
    /// Tokens of a page.
    pub page_size: usize,
    /// The codes and their times.
    pub reading: Reading,
}

/// Sums the codes of K and V as words, a share of them on each thread.
pub struct ReadContestant<'a> {
    /// The codes that each share reads, one piece after the other.
    shares: Vec<Vec<&'a [u8]>>,
    expected: u64,
    found: u64,
    flush: Option<HostFlush>,
}

impl<'a> ReadContestant<'a> {
    /// A contestant on the inputs of this case; none where computing takes longer than reading in any case.
    pub fn new(case: &'a Case, cache: Cache) -> Option<Self> {
        may_bind(&case.problem).then(|| {
            let threads = rayon::current_num_threads();
            let of = |codes: &'a [u8]| codes.chunks(codes.len().div_ceil(threads).next_multiple_of(WORDS * 8));
            let shares = of(case.k.codes()).chain(of(case.v.codes())).map(|share| vec![share]);
            ReadContestant::of(shares.collect(), cache)
        })
    }

    /// One that reads pages in the order of their table, of each page all of K, then all of V. It asks for nothing ahead, so that
    /// who does may be faster.
    pub fn in_pages(paged: &'a Paged, cache: Cache) -> Self {
        let pages: Vec<[&[u8]; 2]> = paged.codes().collect();
        // As many shares as K and V have together in tensors.
        let share = pages.len().div_ceil(2 * rayon::current_num_threads());
        ReadContestant::of(pages.chunks(share.max(1)).map(|pages| pages.as_flattened().to_vec()).collect(), cache)
    }

    fn of(shares: Vec<Vec<&'a [u8]>>, cache: Cache) -> Self {
        let expected = shares.iter().map(|share| sum_of(share)).fold(0, u64::wrapping_add);
        let flush = (cache == Cache::Cold).then(HostFlush::new);
        ReadContestant { shares, expected, found: 0, flush }
    }

    /// The codes that it reads.
    pub fn bytes(&self) -> usize {
        self.shares.iter().flatten().map(|codes| codes.len()).sum()
    }
}

fn may_bind(problem: &Problem) -> bool {
    problem.shape().query_len * problem.shape().group() <= FEW_ROWS
}

impl Contestant for ReadContestant<'_> {
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    fn run_block(&mut self, iterations: usize) -> Result<Vec<u64>> {
        let times = (0..iterations).map(|_| {
            if let Some(flush) = &mut self.flush {
                flush.empty_caches();
            }
            let start = Instant::now();
            self.found =
                self.shares.par_iter().with_max_len(1).map(|share| sum_of(share)).reduce(|| 0, u64::wrapping_add);
            start.elapsed().as_nanos().try_into().unwrap_or(u64::MAX)
        });
        Ok(times.collect())
    }

    fn verify(&mut self) -> Result<()> {
        let missed = || Error::unavailable("reading", "another sum than the first time", "look for failing memory");
        (self.found == self.expected).then_some(()).ok_or_else(missed)
    }
}

/// Words that are summed side by side: enough for the compiler to keep every load unit busy.
const WORDS: usize = 32;

/// The sums of all pieces.
fn sum_of(share: &[&[u8]]) -> u64 {
    share.iter().map(|codes| sum(codes)).fold(0, u64::wrapping_add)
}

/// The sum of the words of 8 bytes, and of the bytes that are left.
fn sum(codes: &[u8]) -> u64 {
    let (blocks, rest) = codes.as_chunks::<{ 8 * WORDS }>();
    let mut sums = [0u64; WORDS];
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    sums.into_iter().chain(rest.iter().map(|byte| u64::from(*byte))).fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::Thresholds;
    use crate::inputs::{Family, Inputs};
    use eightfold::quantize::Quantizer;
    use eightfold::{Fp8Tensor, Layout, Scales};

    fn case(shape: &str) -> Case {
        let problem = Problem::new(shape.parse().unwrap()).unwrap();
        let inputs = Inputs::generate(problem.shape(), Family::Gaussian, 1);
        let policy = Thresholds::embedded().correctness.reference;
        Case::prepare(&problem, &inputs, &Quantizer::new(problem.input_format()), &policy).unwrap()
    }

    #[test]
    fn every_code_of_k_and_v_is_read_and_a_changed_one_noticed() {
        let case = case("1,4,2,1,333,40");
        for cache in [Cache::Hot, Cache::Cold] {
            let mut reading = ReadContestant::new(&case, cache).unwrap();
            assert_eq!(reading.bytes(), 2 * 2 * 333 * 40);
            assert_eq!(reading.run_block(2).unwrap().len(), 2);
            reading.verify().unwrap();
            reading.expected = reading.expected.wrapping_add(1);
            assert!(reading.verify().is_err());
        }
    }

    fn paged(Case { problem, q, k, v, .. }: &Case, page_size: usize) -> Paged {
        Paged::new(problem, q, k, v, page_size).unwrap()
    }

    #[test]
    fn every_code_of_every_page_is_read_once() {
        let case = case("2,4,2,1,333,40");
        for (page_size, cache) in [(1, Cache::Hot), (16, Cache::Hot), (64, Cache::Cold), (512, Cache::Hot)] {
            let paged = paged(&case, page_size);
            let mut reading = ReadContestant::in_pages(&paged, cache);
            assert_eq!(reading.bytes(), 2 * 2 * 2 * 333 * 40);
            assert_eq!(reading.run_block(2).unwrap().len(), 2);
            reading.verify().unwrap();
            let mut pieces: Vec<_> = reading.shares.iter().flatten().map(|codes| codes.as_ptr_range()).collect();
            pieces.sort_by_key(|piece| piece.start);
            assert!(pieces.windows(2).all(|pair| pair[0].end <= pair[1].start), "a piece is read twice");
        }
    }

    #[test]
    fn a_changed_code_in_any_page_is_noticed() {
        let case = case("1,2,1,1,37,8");
        let unchanged = paged(&case, 16);
        let expected = ReadContestant::in_pages(&unchanged, Cache::Hot).expected;
        for index in 0..case.k.codes().len() {
            let change = |tensor: &Fp8Tensor| {
                let mut codes = tensor.codes().to_vec();
                // Another sign leaves every code finite.
                codes[index] ^= 0x80;
                let scales = Scales::per_tensor(1.0).unwrap();
                Fp8Tensor::new(tensor.dims(), Layout::Bhsd, tensor.format(), codes, scales).unwrap()
            };
            for changed in [
                Paged::new(&case.problem, &case.q, &change(&case.k), &case.v, 16).unwrap(),
                Paged::new(&case.problem, &case.q, &case.k, &change(&case.v), 16).unwrap(),
            ] {
                let mut reading = ReadContestant { expected, ..ReadContestant::in_pages(&changed, Cache::Hot) };
                reading.run_block(1).unwrap();
                assert!(reading.verify().is_err(), "code {index}");
            }
        }
    }

    #[test]
    fn many_queries_are_not_bound_by_reading() {
        assert!(ReadContestant::new(&case("1,1,32,16"), Cache::Hot).is_none());
    }
}
