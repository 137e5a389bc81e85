//! From a distribution of lengths to the padded lengths of every micro-batch, the same on every machine.

use crate::recipe::{Batching, Distribution, Lengths, Recipe};

/// The padded lengths of each step's micro-batches, of a recipe without issues. Without a word on lengths, every
/// sequence has `seq_len` tokens.
#[must_use]
pub fn steps(recipe: &Recipe, lengths: &Lengths) -> Vec<Vec<u64>> {
    let whole = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let (rows, micro_batches) = (whole(recipe.micro_batch).max(1), whole(recipe.grad_accum).max(1));
    let per_step = rows.saturating_mul(micro_batches);
    let mut all = sequences(lengths, recipe.seq_len, per_step.saturating_mul(whole(lengths.steps)));
    match lengths.batching {
        Batching::Padded => {}
        Batching::Bucketed => group_by_length(&mut all, per_step),
        Batching::Packed => all.fill(recipe.seq_len),
    }
    let padded = |rows: &[u64]| {
        let longest = rows.iter().copied().max().unwrap_or(1);
        longest.checked_next_multiple_of(lengths.pad_to_multiple_of).unwrap_or(longest)
    };
    let mut steps: Vec<Vec<u64>> = all.chunks(per_step).map(|step| step.chunks(rows).map(padded).collect()).collect();
    if lengths.longest_first
        && let Some((at, _)) = steps.iter().enumerate().rev().max_by_key(|(_, step)| step.iter().max())
    {
        let longest = steps.remove(at);
        steps.insert(0, longest);
    }
    steps
}

fn sequences(lengths: &Lengths, longest: u64, count: usize) -> Vec<u64> {
    let mut random = Random(lengths.seed);
    let mut draw = |n: usize| match &lengths.of {
        Distribution::Fixed => longest,
        Distribution::Uniform { min, max } => {
            min.saturating_add(random.below(max.saturating_sub(*min).saturating_add(1)))
        }
        Distribution::LogNormal { median, sigma } => scaled(*median, exp(sigma * random.normal())),
        Distribution::List(list) => list.get(n % list.len().max(1)).copied().unwrap_or(longest),
    };
    (0..count).map(|n| draw(n).clamp(1, longest)).collect()
}

/// `get_length_grouped_indices` of transformers (trainer_pt_utils.py, 5.24), whose batches are those of a whole step: the
/// drawn order stands for its permutation.
fn group_by_length(all: &mut [u64], batch: usize) {
    let stretch = (all.len() / batch.saturating_mul(4).max(1)).clamp(1, 50).saturating_mul(batch).max(1);
    for stretch in all.chunks_mut(stretch) {
        stretch.sort_unstable_by(|a, b| b.cmp(a));
    }
    let firsts = (0..all.len()).step_by(stretch).rev();
    if let Some(longest) = firsts.max_by_key(|at| all[*at]) {
        all.swap(0, longest);
    }
}

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        let high = (u128::from(self.next()) * u128::from(n)) >> 64;
        u64::try_from(high).unwrap_or_default()
    }

    /// Nearly normal, mean 0 and deviation 1: the sum of twelve uniform numbers less 6, which needs no function whose
    /// last digit differs between machines.
    fn normal(&mut self) -> f64 {
        let mut sum = -6.0;
        for _ in 0..12 {
            let bits = u32::try_from(self.next() >> 32).unwrap_or_default();
            sum += f64::from(bits) / 4_294_967_296.0;
        }
        sum
    }
}

/// eˣ by halving and its series, from sums and products alone: the same digits on every machine.
fn exp(x: f64) -> f64 {
    // |x| stays below 24: six deviations of at most 4.
    let r = x / 1024.0;
    let mut sum = 1.0;
    for n in (1..=8).rev() {
        sum = 1.0 + sum * r / f64::from(n);
    }
    for _ in 0..10 {
        sum *= sum;
    }
    sum
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn scaled(median: u64, by: f64) -> u64 {
    // A length is at most 2²⁴; what is too large saturates, and is cut to the longest.
    (median as f64 * by) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(of: Distribution, batching: Batching, micro_batch: u64, steps_: u64) -> Vec<Vec<u64>> {
        let recipe = Recipe { micro_batch, seq_len: 2048, ..Recipe::default() };
        let lengths = Lengths { of, batching, pad_to_multiple_of: 1, longest_first: false, steps: steps_, seed: 0 };
        steps(&recipe, &lengths)
    }

    #[test]
    fn the_generator_is_the_published_one() {
        // The first numbers of SplitMix64 from seed 1234567, as in its published reference output.
        let mut random = Random(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
        assert_eq!(random.next(), 9_817_491_932_198_370_423);
    }

    #[test]
    fn the_exponential_is_one() {
        for x in [-20.0, -1.0, -0.1, 0.0, 0.3, 1.0, 5.0, 23.9] {
            assert!((exp(x) / f64::exp(x) - 1.0).abs() < 1e-12, "{x}");
        }
    }

    #[test]
    fn log_normal_lengths_have_their_median_and_width() {
        let of = Distribution::LogNormal { median: 512, sigma: 0.7 };
        let mut all: Vec<u64> = drawn(of, Batching::Padded, 1, 10_000).into_iter().flatten().collect();
        all.sort_unstable();
        assert!((500..=524).contains(&all[5000]), "{}", all[5000]);
        // One deviation below: 512 / e^0.7 = 254.
        assert!((245..=264).contains(&all[1587]), "{}", all[1587]);
        assert!(all.iter().all(|n| (1..=2048).contains(n)));
    }

    #[test]
    fn a_micro_batch_is_as_long_as_its_longest_sequence() {
        let of = Distribution::List(vec![5, 9, 3, 4, 100_000]);
        assert_eq!(drawn(of, Batching::Padded, 2, 3), [[9], [4], [2048]]);
        assert_eq!(drawn(Distribution::List(vec![5]), Batching::Packed, 2, 2), [[2048], [2048]]);
    }

    #[test]
    fn buckets_hold_sequences_of_similar_length_and_the_longest_comes_first() {
        // Eight batches of two, so stretches of two batches: [4 3 2 1], [9 8 7 5], [3 2 2 1], [3 3 1 1]; then 9 and 4
        // change places.
        let list = vec![1, 2, 3, 4, 5, 9, 7, 8, 3, 1, 2, 2, 3, 3, 1, 1];
        let steps = drawn(Distribution::List(list), Batching::Bucketed, 2, 8);
        assert_eq!(steps.concat(), [9, 2, 8, 7, 3, 2, 3, 1]);
    }
}
