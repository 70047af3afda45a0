//! Where an accuracy mode's figure, which is of Gaussian inputs, is exceeded.

use super::Thresholds;
use crate::inputs::Family;
use eightfold::Accuracy;

impl Thresholds {
    /// The kinds of inputs on which a larger relative L2 error was measured than the mode's own figure, the largest first.
    pub fn beyond(&self, accuracy: Accuracy) -> Vec<(Family, f64)> {
        let rows = self.tolerance_of(accuracy, false).families.iter();
        let measured = rows.filter_map(|(family, limits)| Some((*family, limits.measured?.relative_l2)));
        let mut beyond: Vec<(Family, f64)> = measured.filter(|(_, error)| *error > accuracy.within()).collect();
        beyond.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        beyond
    }
}

/// A mode's figure and where it is exceeded, in one line.
pub fn promise(accuracy: Accuracy) -> String {
    let within =
        format!("{accuracy} stays within {:.1e} of float64 on values of N(0,1), in the mean", accuracy.within());
    let beyond = Thresholds::embedded().beyond(accuracy);
    let named = beyond.iter().map(|(family, error)| format!("{family} {error:.1e}")).collect::<Vec<_>>().join(", ");
    if named.is_empty() { within } else { format!("{within}; measured beyond that: {named}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_for_which_a_mode_does_not_hold_are_named_with_what_was_measured() {
        let thresholds = Thresholds::embedded();
        for accuracy in Accuracy::ALL {
            let beyond = thresholds.beyond(*accuracy);
            assert!(beyond.iter().all(|(family, error)| *family != Family::Gaussian && *error > accuracy.within()));
            assert!(beyond.is_sorted_by(|(_, a), (_, b)| a >= b));
            let text = promise(*accuracy);
            assert!(beyond.iter().all(|(family, _)| text.contains(&family.to_string())), "{text}");
        }
        // 6e-3 on V of a large mean and 5e-3 on loud key channels are no secrets.
        let precise: Vec<Family> = thresholds.beyond(Accuracy::Precise).into_iter().map(|(family, _)| family).collect();
        for family in [Family::BiasedValues, Family::KeyChannelOutliers, Family::Outliers, Family::AttentionSink] {
            assert!(precise.contains(&family), "{family}");
        }
        assert!(promise(Accuracy::Precise).starts_with("precise stays within 3.0e-3 of float64"));
    }
}
