//! The space of configs: what a search or a test draws from.

use super::config::{Config, KNOBS};
use crate::knobs;

/// Legal configs without end, every listed value of every knob as likely as the rules allow; a seed always gives the same.
pub fn draws(seed: u64) -> impl Iterator<Item = Config> {
    knobs::draws(seed, KNOBS, Config::with_knob).filter(|config| config.check().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_listed_value_of_every_knob_is_part_of_some_legal_config() {
        let configs: Vec<Config> = draws(1).take(8000).collect();
        for knob in KNOBS {
            let drawn: BTreeSet<_> = configs.iter().filter_map(|config| config.knob(knob.name)).collect();
            assert_eq!(drawn, knob.values.iter().map(|value| value.to_string()).collect(), "{}", knob.name);
        }
    }
}
