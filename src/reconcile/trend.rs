//! Whether a figure grows from step to step: a slope with its interval, and what single jumps do to it left out.
//!
//! The steps are cut into ten windows of equal length. A leak raises every window over the one before; a new shape, a cache
//! that fills, the start of an evaluation raise one of them once. So the slope is the median of the nine rises, and its
//! interval leaves out the lowest and the highest: it holds whatever the figures are distributed as (the median of nine lies
//! below the second lowest with probability 10 ÷ 2⁹, 2 %).

use crate::measure::{Series, TierName};

/// Windows of a series.
const WINDOWS: usize = 10;
/// Fewer points tell nothing.
const LEAST_POINTS: usize = 2 * WINDOWS;
/// What a figure may grow by in a step: more is a leak (the articles' B7).
pub const LEAK: f64 = 1e6;
/// Points at the start that are left out even where the series names no warm-up: the optimizer makes its states.
const FIRST_STEPS: usize = 2;

/// How a figure grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// Bytes a step.
    pub slope: f64,
    /// Its interval, of 96 %.
    pub within: [f64; 2],
    /// Over how many steps.
    pub steps: u64,
}

/// The trend of a figure by step. `None`: too few points.
#[must_use]
pub fn trend(points: &[[i64; 2]]) -> Option<Trend> {
    if points.len() < LEAST_POINTS {
        return None;
    }
    let window = |at: usize| &points[at * points.len() / WINDOWS..(at + 1) * points.len() / WINDOWS];
    // The lowest point of a window is that of its smallest shape, the middle one that of a usual shape: what both say.
    let of_lowest = rises(&core::array::from_fn(|at| lowest(window(at))))?;
    let of_middle = rises(&core::array::from_fn(|at| middle(window(at))))?;
    let best = if of_lowest[1] >= of_middle[1] { of_lowest } else { of_middle };
    let steps = points.last()?[0].checked_sub(points.first()?[0])?;
    Some(Trend { slope: best[4], within: [best[1], best[7]], steps: u64::try_from(steps).ok()? })
}

/// Whether tensors pile up: a series of what is allocated that grows by more than a megabyte a step, for certain.
///
/// Peaks are level by nature, and the cache grows with every new shape: neither says anything here.
#[must_use]
pub fn leak(series: &Series) -> Option<Trend> {
    let name = series.name.to_ascii_lowercase();
    if series.tier != TierName::Allocated || name.contains("max") || name.contains("peak") {
        return None;
    }
    let warm_up = usize::try_from(series.warm_up).ok()?.max(FIRST_STEPS);
    trend(series.points.get(warm_up..)?).filter(|found| found.within[0] > LEAK)
}

/// The rises from window to window, in bytes a step, the lowest first.
fn rises(windows: &[[f64; 2]; WINDOWS]) -> Option<[f64; WINDOWS - 1]> {
    let mut rises = [0.0; WINDOWS - 1];
    for (rise, pair) in rises.iter_mut().zip(windows.windows(2)) {
        let steps = pair[1][0] - pair[0][0];
        if steps <= 0.0 {
            return None;
        }
        *rise = (pair[1][1] - pair[0][1]) / steps;
    }
    rises.sort_unstable_by(f64::total_cmp);
    Some(rises)
}

/// The middle step of a window, and the lowest figure of it.
fn lowest(window: &[[i64; 2]]) -> [f64; 2] {
    [centre(window), float(window.iter().map(|point| point[1]).min().unwrap_or(0))]
}

/// The middle step of a window, and the middle figure of it.
fn middle(window: &[[i64; 2]]) -> [f64; 2] {
    let mut figures: Vec<i64> = window.iter().map(|point| point[1]).collect();
    figures.sort_unstable();
    [centre(window), float(figures.get(figures.len() / 2).copied().unwrap_or(0))]
}

fn centre(window: &[[i64; 2]]) -> f64 {
    let ends = window.first().zip(window.last());
    ends.map_or(0.0, |(first, last)| float(first[0]).midpoint(float(last[0])))
}

#[expect(clippy::cast_precision_loss, reason = "a slope")]
const fn float(figure: i64) -> f64 {
    figure as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fragmentation::Random;

    const MB: i64 = 1_000_000;

    fn below(random: &mut Random, n: u64) -> i64 {
        i64::try_from(random.below(n)).unwrap()
    }

    /// What is allocated at the end of each step of a run with `leak` bytes a step: some shapes drawn at random, each of
    /// which keeps a batch of its own size alive and, when it is new, fills caches for good; the optimizer's states after
    /// the first step; perhaps an evaluation now and then, cycles that Python's collector frees late, a phase of training
    /// that begins.
    fn run(seed: u64, steps: i64, leak: i64) -> Series {
        let mut random = Random(seed);
        let shapes: Vec<(i64, i64)> =
            (0..=below(&mut random, 12)).map(|_| (below(&mut random, 24) * MB, below(&mut random, 64) * MB)).collect();
        let mut seen = vec![false; shapes.len()];
        let mut level = 2_000 * MB + below(&mut random, 20_000) * MB;
        let states = level;
        let (evaluates, collects) = (below(&mut random, 3) == 0, below(&mut random, 3) == 0);
        let shift = (below(&mut random, 2) == 0).then(|| (below(&mut random, 200), below(&mut random, 800) * MB));
        let period = 10 + below(&mut random, 20);
        let points = (0..steps)
            .map(|step| {
                let drawn = usize::try_from(below(&mut random, shapes.len() as u64)).unwrap();
                let (kept, cached) = shapes[drawn];
                if !core::mem::replace(&mut seen[drawn], true) {
                    level += cached;
                }
                if step == 1 {
                    level += states;
                }
                if let Some((at, bytes)) = shift
                    && at == step
                {
                    level += bytes;
                }
                level += leak;
                let evaluation = if evaluates && step % 50 == 49 { 300 * MB } else { 0 };
                let cycles = if collects { step % period * 2 * MB } else { 0 };
                [step, level + kept + evaluation + cycles]
            })
            .collect();
        let (name, tier) = ("allocated".into(), TierName::Allocated);
        Series { name, tier, warm_up: 0, every: None, points }
    }

    #[test]
    fn clean_runs_raise_no_alarm() {
        let alarms: Vec<u64> = (0..1000).filter(|seed| leak(&run(*seed, 200, 0)).is_some()).collect();
        assert_eq!(alarms, [0; 0]);
        let longer: Vec<u64> = (0..200).filter(|seed| leak(&run(*seed, 1000, 0)).is_some()).collect();
        assert_eq!(longer, [0; 0]);
    }

    #[test]
    fn leaks_of_two_megabytes_a_step_are_found_within_200_steps() {
        let found: Vec<Trend> = (0..1000).filter_map(|seed| leak(&run(seed, 200, 2 * MB))).collect();
        assert!(found.len() >= 950, "{}", found.len());
        let right = |t: &&Trend| t.within[0] <= 2e6 && 2e6 <= t.within[1];
        let right = found.iter().filter(right).count();
        assert!(right * 10 >= found.len() * 9, "{right} of {}", found.len());
    }

    #[test]
    fn peaks_caches_and_short_series_tell_nothing() {
        let mut series = run(1, 200, 5 * MB);
        assert!(leak(&series).is_some());
        assert_eq!(leak(&Series { points: series.points[..15].to_vec(), ..series.clone() }), None);
        series.name = "max_memory_allocated".into();
        assert_eq!(leak(&series), None);
        series.name = "reserved".into();
        series.tier = TierName::Reserved;
        assert_eq!(leak(&series), None);
    }
}
