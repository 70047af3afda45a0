//! The space of configs: what a search or a test draws from.

use super::config::{Config, KNOBS};

/// A legal config, every listed value of every knob as likely as the rules allow. `below(n)` gives a number below n; the
/// same numbers give the same config.
pub fn draw(mut below: impl FnMut(usize) -> usize) -> Config {
    loop {
        let drawn = KNOBS.iter().try_fold(Config::default(), |config, knob| {
            config.with_knob(knob.name, knob.values[below(knob.values.len()) % knob.values.len()])
        });
        if let Ok(config) = drawn
            && config.check().is_ok()
        {
            return config;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Numbers that look random, the same on every run.
    fn numbers() -> impl FnMut(usize) -> usize {
        let mut state = 1u64;
        move |count| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % count
        }
    }

    #[test]
    fn every_listed_value_of_every_knob_is_part_of_some_legal_config() {
        let mut below = numbers();
        let configs: Vec<Config> = (0..3000).map(|_| draw(&mut below)).collect();
        for knob in KNOBS {
            let drawn: BTreeSet<_> = configs.iter().filter_map(|config| config.knob(knob.name)).collect();
            assert_eq!(drawn, knob.values.iter().map(|value| value.to_string()).collect(), "{}", knob.name);
        }
    }
}
