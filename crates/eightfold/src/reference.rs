//! The float64 oracle.

use crate::error::Result;
use crate::problem::Problem;

/// Attention in float64, with the log-sum-exp.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// `[B,Hq,Sq,D]`, zero for rows that see no key.
    pub values: Vec<f64>,
    /// `[B,Hq,Sq]`, −∞ for rows that see no key.
    pub lse: Vec<f64>,
}

/// Attention in float64 on inputs in `[B,H,S,D]` order, threaded over rows.
pub fn attention(problem: &Problem, q: &[f64], k: &[f64], v: &[f64]) -> Result<Reference> {
    let _ = (problem, q, k, v);
    unimplemented!()
}
