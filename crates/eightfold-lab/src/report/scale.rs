//! Where a value lies on an axis, and which values are written along it.

/// Beyond this ratio the small bars of a linear axis can no longer be told apart.
const LINEAR_RANGE: f64 = 20.0;

/// Ticks that fit along a chart on a phone.
const MOST_TICKS: usize = 6;

/// A mapping of values to the share of the axis' length, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// Distances are differences.
    Linear {
        /// The value at the start.
        from: f64,
        /// The value at the end.
        to: f64,
    },
    /// Distances are ratios.
    Log {
        /// The value at the start, above zero.
        from: f64,
        /// The value at the end.
        to: f64,
    },
}

impl Scale {
    /// The axis for bars of these lengths: linear from zero, or logarithmic where they range too far.
    pub fn of_bars(values: impl IntoIterator<Item = f64>) -> Option<Scale> {
        let (least, most) = range(values)?;
        if most / least > LINEAR_RANGE {
            // A little below the least, so that its bar can be seen.
            Some(Scale::Log { from: nice_below(least * 0.8), to: most })
        } else {
            Some(Scale::Linear { from: 0.0, to: most })
        }
    }

    /// The logarithmic axis for points at these values, with room around them.
    pub fn of_points(values: impl IntoIterator<Item = f64>) -> Option<Scale> {
        let (least, most) = range(values)?;
        Some(Scale::Log { from: nice_below(least / 1.5), to: nice_above(most * 1.5) })
    }

    /// The share of the axis at which a value lies; values beyond the ends are put there.
    pub fn position(&self, value: f64) -> f64 {
        let share = match *self {
            Scale::Linear { from, to } => (value - from) / (to - from),
            Scale::Log { from, to } => (value.max(f64::MIN_POSITIVE) / from).ln() / (to / from).ln(),
        };
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Whether distances are ratios.
    pub fn is_log(&self) -> bool {
        matches!(self, Scale::Log { .. })
    }

    /// Round values along the axis.
    pub fn ticks(&self) -> Vec<f64> {
        match *self {
            Scale::Linear { from, to } => {
                let step = nice_above((to - from) / MOST_TICKS as f64);
                let first = (from / step).ceil() as i64;
                let last = (to / step * (1.0 + 1e-9)).floor() as i64;
                (first..=last).map(|index| index as f64 * step).collect()
            }
            Scale::Log { from, to } => {
                let decades = from.log10().floor() as i32..=to.log10().ceil() as i32;
                let with = |steps: &[f64]| -> Vec<f64> {
                    let values = decades.clone().flat_map(|decade| steps.iter().map(move |step| power(*step, decade)));
                    values.filter(|value| (from * (1.0 - 1e-9)..=to * (1.0 + 1e-9)).contains(value)).collect()
                };
                let choices = [with(&[1.0, 2.0, 5.0]), with(&[1.0, 3.0]), with(&[1.0])];
                let fits = choices.iter().find(|ticks| ticks.len() <= MOST_TICKS);
                fits.cloned().unwrap_or_else(|| {
                    let all = with(&[1.0]);
                    all.iter().copied().step_by(all.len().div_ceil(MOST_TICKS)).collect()
                })
            }
        }
    }
}

/// The least and the most of the values that can be drawn on any axis.
fn range(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let drawable = values.into_iter().filter(|value| value.is_finite() && *value > 0.0);
    drawable.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((least, most)) => Some((f64::min(least, value), f64::max(most, value))),
    })
}

/// `step · 10^decade`, exact to the last digit where that can be.
fn power(step: f64, decade: i32) -> f64 {
    if decade < 0 { step / 10f64.powi(-decade) } else { step * 10f64.powi(decade) }
}

/// The nearest of 1, 2, 5, 10, … that is not above.
fn nice_below(value: f64) -> f64 {
    let decade = value.log10().floor() as i32;
    let steps = [5.0, 2.0, 1.0].map(|step| power(step, decade));
    steps.into_iter().find(|nice| *nice <= value * (1.0 + 1e-9)).unwrap_or(steps[2])
}

/// The nearest of 1, 2, 5, 10, … that is not below.
fn nice_above(value: f64) -> f64 {
    let decade = value.log10().floor() as i32;
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| power(step, decade));
    steps.into_iter().find(|nice| *nice >= value * (1.0 - 1e-9)).unwrap_or(steps[3])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_linear_from_zero_until_they_range_too_far() {
        assert_eq!(Scale::of_bars([5.0, 100.0]), Some(Scale::Linear { from: 0.0, to: 100.0 }));
        assert_eq!(Scale::of_bars([4.9, 100.0]), Some(Scale::Log { from: 2.0, to: 100.0 }));
        assert_eq!(Scale::of_bars([7.0]), Some(Scale::Linear { from: 0.0, to: 7.0 }));
    }

    #[test]
    fn what_cannot_be_drawn_has_no_axis() {
        assert_eq!(Scale::of_bars([]), None);
        assert_eq!(Scale::of_bars([f64::NAN, 0.0, -1.0, f64::INFINITY]), None);
        assert_eq!(Scale::of_points([f64::NAN]), None);
    }

    #[test]
    fn positions_stay_on_the_axis() {
        let log = Scale::Log { from: 1.0, to: 100.0 };
        assert_eq!(
            [0.0, 1.0, 10.0, 100.0, 1e9, f64::NAN].map(|value| log.position(value)),
            [0.0, 0.0, 0.5, 1.0, 1.0, 0.0]
        );
        let linear = Scale::Linear { from: 0.0, to: 4.0 };
        assert_eq!([-1.0, 1.0, 5.0].map(|value| linear.position(value)), [0.0, 0.25, 1.0]);
    }

    #[test]
    fn ticks_are_round_few_and_within() {
        assert_eq!(Scale::Linear { from: 0.0, to: 81.6 }.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert_eq!(Scale::Linear { from: -0.02, to: 0.05 }.ticks(), [-0.02, 0.0, 0.02, 0.04]);
        assert_eq!(Scale::Log { from: 2.0, to: 100.0 }.ticks(), [2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(Scale::Log { from: 1e-7, to: 1e-1 }.ticks(), [1e-7, 1e-5, 1e-3, 1e-1]);
        assert_eq!(Scale::Linear { from: -0.02, to: 0.1 }.ticks().len(), 7);
        for (from, to) in [(0.3, 7e5), (1e-12, 1e12), (5.0, 5.0001)] {
            assert!(Scale::Log { from, to }.ticks().len() <= MOST_TICKS + 1);
        }
    }
}
