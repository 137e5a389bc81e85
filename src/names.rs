//! "Did you mean": the names of a list that are close to one that is not in it.

/// The longest name that is compared; a name longer than any known one need not be read to its end.
const LONGEST: usize = 64;

/// At most `limit` of `known`: the names that contain `wanted`, or else those a few letters away, nearest first.
/// `normalise` is applied to each known name; `wanted` is normalised already.
pub(crate) fn nearest<'a>(
    wanted: &str,
    known: impl Iterator<Item = &'a str>,
    normalise: impl Fn(&str) -> String,
    limit: usize,
) -> Vec<&'a str> {
    let wanted: String = wanted.chars().take(LONGEST).collect();
    let near_enough = 1 + wanted.chars().count() / 4;
    let mut scored: Vec<(usize, &str)> = known
        .filter_map(|name| {
            let normal = normalise(name);
            let distance = if !wanted.is_empty() && normal.contains(&wanted) {
                0
            } else {
                // A memory size or a suffix that was left out is no mistake.
                let length = wanted.chars().count();
                let head: String = normal.chars().take(length).collect();
                edits(&wanted, &normal).min(1 + edits(&wanted, &head))
            };
            (distance <= near_enough).then_some((distance, name))
        })
        .collect();
    crate::order::sort_short_by_key(&mut scored, |(distance, _)| *distance);
    if scored.first().is_some_and(|(distance, _)| *distance == 0) {
        scored.retain(|(distance, _)| *distance == 0);
    }
    scored.into_iter().take(limit).map(|(_, name)| name).collect()
}

/// Insertions, deletions, substitutions and swaps of neighbours between two short strings (optimal string alignment).
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + changed);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = core::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, distance) in
            [("", "", 0), ("abc", "", 3), ("abc", "abc", 0), ("abc", "acb", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(edits(a, b), distance, "{a} {b}");
            assert_eq!(edits(b, a), distance, "{b} {a}");
        }
    }

    #[test]
    fn containing_names_exclude_near_ones_and_far_ones_do_not_come() {
        let known = ["llama-2-7b", "llama-3-8b", "gpt2", "llama-3.1-8b"];
        let near = |wanted| nearest(wanted, known.into_iter(), str::to_owned, 3);
        assert_eq!(near("llama-3"), ["llama-3-8b", "llama-3.1-8b"]);
        assert_eq!(near("llama-2-b7"), ["llama-2-7b", "llama-3-8b"]);
        assert!(near("stable-diffusion").is_empty());
        assert!(near(&"x".repeat(100_000)).is_empty());
    }
}
