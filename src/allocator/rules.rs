//! What changed between PyTorch versions, as data: one row per change.
//!
//! Rows marked `run` were found by driving the released allocator of 2.1.2, 2.2.2, 2.4.1, 2.6.0, 2.9.1, 2.10.0, 2.11.0, 2.12.0
//! and 2.15.0 over a stand-in device that only counts bytes. Versions between two of these were not run: a change that
//! happened between them is dated to the later one (a quirk of one release alone ends with it), and [`Standing`] says
//! which versions are a guess in this way.

use crate::plan::Version;

/// The released versions that the rules were checked against.
pub const RUN: [Version; 9] = [
    Version(2, 1),
    Version(2, 2),
    Version(2, 4),
    Version(2, 6),
    Version(2, 9),
    Version(2, 10),
    Version(2, 11),
    Version(2, 12),
    Version(2, 15),
];

/// How far the rules for a version are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// That release itself was run.
    Run,
    /// The releases on both sides were run; this one was not.
    Between(Version, Version),
    /// Older than the oldest run: the oldest's rules are used.
    Before(Version),
    /// Newer than the newest run: the newest's rules are used.
    After(Version),
}

/// How far the rules for `version` are known.
#[must_use]
pub fn standing(version: Version) -> Standing {
    let later = RUN.partition_point(|&v| v < version);
    match (later.checked_sub(1).and_then(|i| RUN.get(i)), RUN.get(later)) {
        (_, Some(&v)) if v == version => Standing::Run,
        (Some(&a), Some(&b)) => Standing::Between(a, b),
        (None, Some(&b)) => Standing::Before(b),
        (Some(&a), None) => Standing::After(a),
        (None, None) => Standing::Run,
    }
}

/// The switches that depend on the version. [`Rules::OLDEST`] are those of 2.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one independent switch per change")]
pub struct Rules {
    /// `roundup_power2_divisions` of 1 leaves a size unrounded, instead of meaning "no power-of-two rounding".
    pub division_one_unrounded: bool,
    /// In a divisions list, `>` also overwrites the last listed interval.
    pub open_interval_overwrites_last: bool,
    /// Blocks of one size are ordered by the creation of their records, instead of by segment and address.
    pub ties_by_record: bool,
    /// An active private pool blocks the flush, event polling and `empty_cache`, even outside graph capture.
    pub private_pool_blocks_flush: bool,
    /// A request larger than an expandable segment's address range fails before a range is reserved for it.
    pub rejects_over_reserve: bool,
    /// The fraction's limit is rounded to the nearest byte, instead of truncated.
    pub fraction_rounds: bool,
    /// A fraction of 1 sets no limit, instead of a limit equal to the device.
    pub full_fraction_is_no_limit: bool,
    /// Private pools use expandable segments too.
    pub expandable_in_private_pools: bool,
    /// Whole numbers in the settings are read into 32 bits.
    pub reads_32_bit_numbers: bool,
    /// The least `max_split_size_mb`. `None`: that of `large_segment_size_mb`.
    pub min_max_split_mib: Option<u64>,
}

/// One change of rules.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The first version with the new rule.
    pub since: Version,
    /// What changed.
    pub what: &'static str,
    /// How it is known.
    pub source: &'static str,
    apply: fn(&mut Rules),
}

/// All changes, oldest first.
pub const CHANGES: [Change; 12] = [
    Change {
        since: Version(2, 4),
        what: "roundup_power2_divisions of 1 means rounding to 512 bytes",
        source: "run: 2.2.2 leaves 300 MiB + 1 unrounded, 2.4.1 does not; 2.3 not run",
        apply: |r| r.division_one_unrounded = false,
    },
    Change {
        since: Version(2, 6),
        what: "private pools use expandable segments",
        source: "run: absent in 2.4.1, present in 2.6.0; 2.5 not run",
        apply: |r| r.expandable_in_private_pools = true,
    },
    Change {
        since: Version(2, 9),
        what: "whole numbers in the settings are read into 64 bits",
        source: "read: c10/core/AllocatorConfig.h, stoull where there was stoi",
        apply: |r| r.reads_32_bit_numbers = false,
    },
    Change {
        since: Version(2, 10),
        what: "`>` in a divisions list starts after the last listed interval",
        source: "run: 2.9.1 and 2.10.0 differ on [256:1,512:2,1024:4,>:8] at 1100 MiB",
        apply: |r| r.open_interval_overwrites_last = false,
    },
    Change {
        since: Version(2, 10),
        what: "max_split_size_mb may be 20 (before, it had to be more)",
        source: "run: 2.9.1 refuses 20, 2.10.0 accepts it",
        apply: |r| r.min_max_split_mib = Some(20),
    },
    Change {
        since: Version(2, 10),
        what: "a memory fraction of 1 sets no limit",
        source: "read in the sources of late 2024 and early 2026; the exact version is not known",
        apply: |r| r.full_fraction_is_no_limit = true,
    },
    Change {
        since: Version(2, 11),
        what: "max_split_size_mb may be as small as large_segment_size_mb",
        source: "read: c10/core/AllocatorConfig.cpp, with the key large_segment_size_mb",
        apply: |r| r.min_max_split_mib = None,
    },
    Change {
        since: Version(2, 12),
        what: "blocks of one size are ordered by the creation of their records",
        source: "run: 2.12.0 only; absent in 2.11.0",
        apply: |r| r.ties_by_record = true,
    },
    Change {
        since: Version(2, 13),
        what: "blocks of one size are ordered by segment creation, then address",
        source: "run: 2.15.0; 2.13 and 2.14 not run",
        apply: |r| r.ties_by_record = false,
    },
    Change {
        since: Version(2, 15),
        what: "only a real graph capture blocks the flush, not a private pool",
        source: "run: 2.12.0 and 2.15.0 differ; 2.13 and 2.14 not run",
        apply: |r| r.private_pool_blocks_flush = false,
    },
    Change {
        since: Version(2, 15),
        what: "a request larger than the address range of an expandable segment fails at once",
        source: "run: 2.12.0 and 2.15.0 differ; 2.13 and 2.14 not run",
        apply: |r| r.rejects_over_reserve = true,
    },
    Change {
        since: Version(2, 15),
        what: "the limit of a memory fraction is rounded to the nearest byte",
        source: "run: 2.12.0 and 2.15.0 differ; 2.13 and 2.14 not run",
        apply: |r| r.fraction_rounds = true,
    },
];

impl Rules {
    /// The rules of 2.1, before any change.
    pub const OLDEST: Self = Self {
        division_one_unrounded: true,
        open_interval_overwrites_last: true,
        ties_by_record: false,
        private_pool_blocks_flush: true,
        rejects_over_reserve: false,
        fraction_rounds: false,
        full_fraction_is_no_limit: false,
        expandable_in_private_pools: false,
        reads_32_bit_numbers: true,
        min_max_split_mib: Some(21),
    };

    /// The rules of `version`: every change up to it, in order.
    #[must_use]
    pub fn of(version: Version) -> Self {
        let mut rules = Self::OLDEST;
        for change in CHANGES.iter().filter(|c| c.since <= version) {
            (change.apply)(&mut rules);
        }
        rules
    }

    /// The bytes that a memory fraction allows out of `total`. `None`: no limit.
    #[must_use]
    pub fn limit(&self, fraction: f64, total: u64) -> Option<u64> {
        if fraction >= 1.0 {
            return (!self.full_fraction_is_no_limit).then_some(total);
        }
        let rounding = if self.fraction_rounds { 0.5 } else { 0.0 };
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "PyTorch computes the limit in double precision; a negative or undefined product saturates to 0"
        )]
        Some((fraction * total as f64 + rounding) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_in_order_and_each_has_an_effect() {
        assert!(CHANGES.is_sorted_by_key(|c| c.since));
        let mut rules = Rules::OLDEST;
        for change in CHANGES {
            let before = rules;
            (change.apply)(&mut rules);
            assert_ne!(before, rules, "{} changes nothing", change.what);
        }
    }

    #[test]
    fn versions_say_how_far_they_are_known() {
        assert_eq!(standing(Version(2, 15)), Standing::Run);
        assert_eq!(standing(Version(2, 13)), Standing::Between(Version(2, 12), Version(2, 15)));
        assert_eq!(standing(Version(2, 0)), Standing::Before(Version(2, 1)));
        assert_eq!(standing(Version(2, 16)), Standing::After(Version(2, 15)));
    }

    #[test]
    fn a_fraction_of_one_was_a_limit_once() {
        assert_eq!(Rules::of(Version(2, 9)).limit(1.0, 1000), Some(1000));
        assert_eq!(Rules::of(Version(2, 15)).limit(1.0, 1000), None);
        assert_eq!(Rules::of(Version(2, 12)).limit(0.99, 1050), Some(1039));
        assert_eq!(Rules::of(Version(2, 15)).limit(0.99, 1050), Some(1040));
    }
}
