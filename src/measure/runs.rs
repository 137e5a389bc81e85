//! Several runs of one configuration as one measurement: each figure their mean, every run's kept.

use crate::measure::{Figure, Measurement};

/// The mean of several runs of one job. The first is the description's; figures that not every run has are left as the
/// first has them.
///
/// `warm_up` runs at the start are left out, as long as one is left. `None` without runs.
#[must_use]
pub fn average(runs: &[Measurement], warm_up: usize) -> Option<Measurement> {
    let runs = &runs[warm_up.min(runs.len().saturating_sub(1))..];
    let mut mean = runs.first()?.clone();
    if runs.len() < 2 {
        return Some(mean);
    }
    for reading in &mut mean.readings {
        let figures: Option<Vec<i64>> = runs
            .iter()
            .map(|run| run.readings.iter().find(|r| r.name == reading.name && r.tier == reading.tier)?.bytes())
            .collect();
        let Some(figures) = figures else { continue };
        let sum: i128 = figures.iter().copied().map(i128::from).sum();
        let count = figures.len() as i128;
        // To the nearest byte, halves upwards.
        let Ok(bytes) = i64::try_from((2 * sum + count).div_euclid(2 * count)) else { continue };
        reading.figure = Figure::Bytes(bytes);
        reading.range = None;
        reading.runs = figures;
    }
    Some(mean)
}
