//! What becomes of the product of a query and a key before the softmax, and what else the softmax sums.

use crate::error::{Error, Result};

/// How scores are made of products, and whether there are sinks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scoring {
    /// What products are multiplied by.
    pub(crate) scale: f32,
    /// The bound c of c · tanh(score / c), where scores have one.
    pub(crate) softcap: Option<f32>,
    /// Whether every query head has a logit in its rows' sums that stands for no key.
    pub(crate) sinks: bool,
}

impl Scoring {
    /// Products times this, and nothing else.
    pub(super) fn scaled(scale: f32) -> Self {
        Scoring { scale, softcap: None, sinks: false }
    }

    /// The same with another scale.
    pub(super) fn with_scale(self, scale: f32, head_dim: usize) -> Result<Self> {
        let fix = format!("leave it out for the default 1/sqrt({head_dim})");
        check_positive("softmax_scale", scale, fix).map(|()| Scoring { scale, ..self })
    }

    /// The same with a bound.
    pub(super) fn with_softcap(self, softcap: f32) -> Result<Self> {
        check_positive("softcap", softcap, "leave it out for scores without a bound".into())?;
        Ok(Scoring { softcap: Some(softcap), ..self })
    }

    /// The score of a product.
    pub(crate) fn score(&self, product: f64) -> f64 {
        let score = f64::from(self.scale) * product;
        match self.softcap.map(f64::from) {
            Some(softcap) => softcap * (score / softcap).tanh(),
            None => score,
        }
    }
}

fn check_positive(argument: &str, value: f32, fix: String) -> Result<()> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(Error::invalid(argument, format!("must be finite and positive, got {value}"), fix))
}
