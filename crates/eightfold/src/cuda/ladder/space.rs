//! The space of configs: what a search or a test draws from.

use super::config::{Config, KNOBS};
use crate::knobs::Knob;
use std::iter;

/// Legal configs without end, every listed value of every knob as likely as the rules allow; a seed always gives the same.
pub fn draws(seed: u64) -> impl Iterator<Item = Config> {
    let mut state = seed;
    let mut below = move |count: usize| {
        // Knuth's generator; its high bits look random enough to pick values by.
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % count
    };
    let draw = move || {
        let set = |config: Config, knob: &Knob| config.with_knob(knob.name, knob.values[below(knob.values.len())]);
        KNOBS.iter().try_fold(Config::default(), set)
    };
    iter::repeat_with(draw).flatten().filter(|config| config.check().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_listed_value_of_every_knob_is_part_of_some_legal_config() {
        let configs: Vec<Config> = draws(1).take(3000).collect();
        for knob in KNOBS {
            let drawn: BTreeSet<_> = configs.iter().filter_map(|config| config.knob(knob.name)).collect();
            assert_eq!(drawn, knob.values.iter().map(|value| value.to_string()).collect(), "{}", knob.name);
        }
    }
}
