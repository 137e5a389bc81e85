//! The keys, the versions that have them and what they do here.

use crate::plan::Version;

/// What a key's value is and does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    MaxSplitSize,
    MaxNonSplitRounding,
    LargeSegmentSize,
    RoundupDivisions,
    GarbageCollectionThreshold,
    ExpandableSegments,
    MemoryFraction,
    Backend,
    /// A boolean that does not change device memory here.
    NoEffectBool,
    /// A whole number that does not change device memory here.
    NoEffectNumber,
    /// A boolean that is modelled only while it is `False`.
    FalseOnly,
    /// Changes device memory in ways that are not modelled.
    NotModelled,
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// The first version known to have it.
    pub(super) since: Version,
    /// The first version without it.
    pub(super) until: Option<Version>,
}

const fn key(name: &'static str, kind: Kind, since: Version) -> Key {
    Key { name, kind, since, until: None }
}

/// All keys of PyTorch 1.10 to 2.15. Source: the texts of the released libraries; a key first seen in 2.6, 2.9, 2.10,
/// 2.11, 2.12 or 2.15 may have come in an unseen version just before. (The pinned-memory keys `max_round_threshold`
/// and `max_cached_size` of 2.15 were seen in snapshots only, not as keys, and are therefore not listed.)
pub(super) const KEYS: [Key; 21] = [
    key("max_split_size_mb", Kind::MaxSplitSize, Version(1, 10)),
    key("roundup_power2_divisions", Kind::RoundupDivisions, Version(1, 12)),
    Key {
        name: "roundup_bypass_threshold_mb",
        kind: Kind::NotModelled,
        since: Version(1, 12),
        until: Some(Version(2, 1)),
    },
    key("garbage_collection_threshold", Kind::GarbageCollectionThreshold, Version(1, 12)),
    key("backend", Kind::Backend, Version(1, 13)),
    key("expandable_segments", Kind::ExpandableSegments, Version(2, 1)),
    key("release_lock_on_cudamalloc", Kind::NoEffectBool, Version(2, 2)),
    key("release_lock_on_hipmalloc", Kind::NoEffectBool, Version(2, 2)),
    key("pinned_use_cuda_host_register", Kind::NoEffectBool, Version(2, 2)),
    key("pinned_use_hip_host_register", Kind::NoEffectBool, Version(2, 2)),
    key("pinned_num_register_threads", Kind::NoEffectNumber, Version(2, 2)),
    key("pinned_use_background_threads", Kind::NoEffectBool, Version(2, 6)),
    key("max_non_split_rounding_mb", Kind::MaxNonSplitRounding, Version(2, 6)),
    // Only matters while a CUDA graph is captured, which is not modelled.
    key("graph_capture_record_stream_reuse", Kind::NoEffectBool, Version(2, 9)),
    key("per_process_memory_fraction", Kind::MemoryFraction, Version(2, 10)),
    key("pinned_reserve_segment_size_mb", Kind::NoEffectNumber, Version(2, 10)),
    key("large_segment_size_mb", Kind::LargeSegmentSize, Version(2, 11)),
    // Rejects before cudaMalloc when over the fraction.
    key("throw_on_cudamalloc_oom", Kind::FalseOnly, Version(2, 12)),
    key("pinned_free_catch_all", Kind::NoEffectBool, Version(2, 12)),
    key("expandable_segments_reserve", Kind::NotModelled, Version(2, 15)),
    key("expandable_segments_reserve_by_class", Kind::NotModelled, Version(2, 15)),
];

/// The key of that name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|k| k.name == name)
}

/// The key whose name has most in common with `name` at both ends, if that is more than half of the longer one.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let percent = |other: &str| {
        let front = name.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        let back = name.bytes().rev().zip(other.bytes().rev()).take_while(|(a, b)| a == b).count();
        100 * (front + back).min(name.len()).min(other.len()) / name.len().max(other.len()).max(1)
    };
    let best = KEYS.iter().max_by_key(|k| percent(k.name))?;
    (percent(best.name) > 50).then_some(best.name)
}
