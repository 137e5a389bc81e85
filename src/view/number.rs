//! Figures as tables show them: fixed decimals of GiB that add up, differences with their sign, shares.

use crate::units::{Bytes, GIB, three_digits};

/// GiB with two decimals: `14.96`. An exact zero is `0`, which is not the same as a little.
#[must_use]
pub fn gib(bytes: Bytes) -> String {
    if bytes == Bytes::ZERO { "0".into() } else { decimal(hundredths(bytes)) }
}

/// A difference in GiB with its sign, two decimals: `+0.02`, `−65.54`, `0`.
#[must_use]
pub fn signed_gib(bytes: i64) -> String {
    let sign = match bytes {
        0 => return "0".into(),
        1.. => '+',
        _ => '−',
    };
    format!("{sign}{}", decimal(hundredths(Bytes(bytes.unsigned_abs()))))
}

/// The addends of a column whose foot is `foot` hundredths, each rounded so that they add up to it (largest remainder:
/// the addends that lose most by rounding down get the missing hundredths).
#[must_use]
pub fn column(addends: &[Bytes], foot: u64) -> Vec<String> {
    let mut floors: Vec<u64> = addends.iter().map(|b| floor_hundredths(*b)).collect();
    let mut waiting: Vec<usize> = (0..addends.len()).filter(|&i| addends[i] != Bytes::ZERO).collect();
    let lost = |i: usize| (u128::from(addends[i].get()) * 100) % u128::from(GIB);
    for _ in 0..foot.saturating_sub(floors.iter().sum()) {
        let Some(at) = (0..waiting.len()).rev().max_by_key(|&at| lost(waiting[at])) else { break };
        floors[waiting.remove(at)] += 1;
    }
    addends.iter().zip(floors).map(|(b, n)| if *b == Bytes::ZERO { "0".into() } else { decimal(n) }).collect()
}

/// Hundredths of a GiB, rounded to the nearest.
#[must_use]
pub fn hundredths(bytes: Bytes) -> u64 {
    let rounded = (u128::from(bytes.get()) * 100 + u128::from(GIB / 2)) / u128::from(GIB);
    u64::try_from(rounded).unwrap_or(u64::MAX)
}

fn floor_hundredths(bytes: Bytes) -> u64 {
    u64::try_from(u128::from(bytes.get()) * 100 / u128::from(GIB)).unwrap_or(u64::MAX)
}

/// `1496` hundredths as `14.96`.
#[must_use]
pub fn decimal(hundredths: u64) -> String {
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// A share as a percentage with three significant digits: `253 %`, with a no-break space.
#[must_use]
pub fn percent(share: f64) -> String {
    let sign = if share < 0.0 { "−" } else { "" };
    let size = (share * 100.0).abs();
    // 80.0 % and 10.0 % are policies: a whole percentage has no decimals.
    let digits = if (size - size.round()).abs() < 1e-9 { format!("{size:.0}") } else { three_digits(size) };
    format!("{sign}{digits}\u{a0}%")
}

/// A count as people say it: `8.03 B`, `41.9 M`, `7168`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub fn count(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..1_000_000 => format!("{} k", three_digits(n as f64 / 1e3)),
        1_000_000..1_000_000_000 => format!("{} M", three_digits(n as f64 / 1e6)),
        _ => format!("{} B", three_digits(n as f64 / 1e9)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tables_have_fixed_decimals_and_exact_zeros() {
        for (bytes, text) in [(0, "0"), (1, "0.00"), (GIB, "1.00"), (GIB * 75 - GIB / 5, "74.80"), (GIB / 2, "0.50")] {
            assert_eq!(gib(Bytes(bytes)), text);
        }
        assert_eq!(signed_gib(0), "0");
        assert_eq!(signed_gib(i64::MIN), "−8589934592.00");
        assert_eq!(signed_gib(-(1 << 30)), "−1.00");
        assert_eq!(signed_gib(1 << 29), "+0.50");
    }

    #[test]
    fn shares_have_three_digits_and_policies_none_after_the_point() {
        for (share, text) in [(2.532, "253 %"), (0.8, "80 %"), (0.1, "10 %"), (0.532, "53.2 %"), (-0.051, "−5.10 %")]
        {
            assert_eq!(percent(share).replace('\u{a0}', " "), text);
        }
    }

    #[test]
    fn counts_read_as_people_say_them() {
        for (n, text) in [(768, "768"), (7168, "7168"), (124_439_808, "124 M"), (8_030_261_248, "8.03 B")] {
            assert_eq!(count(n), text);
        }
    }

    proptest! {
        #[test]
        fn a_column_adds_up_to_its_foot(addends in prop::collection::vec(0u64..(200 << 30), 1..8)) {
            let addends: Vec<Bytes> = addends.into_iter().map(Bytes).collect();
            let foot = hundredths(addends.iter().copied().sum());
            let shown = column(&addends, foot);
            let total: u64 = shown.iter().map(|s| match s.as_str() {
                "0" => 0,
                s => s.replace('.', "").parse().unwrap(),
            }).sum();
            prop_assert_eq!(total, foot);
            for (bytes, text) in addends.iter().zip(&shown) {
                // Each is its own figure rounded down or up, no more.
                let value: u64 = text.replace('.', "").parse().unwrap();
                let floor = floor_hundredths(*bytes);
                prop_assert!(value == floor || value == floor + 1, "{} for {}", text, bytes.get());
            }
        }
    }
}
