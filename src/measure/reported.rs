//! The names of what tools report of one instant: an error message, a table of the driver, the allocator's statistics.

use crate::measure::TierName;

/// A figure that a tool reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reported {
    /// What was asked of the driver when it failed: PyTorch's segment, not the tensor.
    Tried,
    /// What the driver refused to map, where a warning before the error says so.
    Refused,
    /// The card's memory.
    Total,
    /// Free on the card.
    Free,
    /// In use on the card.
    Used,
    /// What the process may take at most: a fraction, a watermark.
    Allowed,
    /// Handed out by the allocator.
    Allocated,
    /// Reserved and not handed out.
    Unallocated,
    /// Free blocks in private pools (CUDA graphs), which the text counts as allocated.
    PrivatePools,
    /// Taken from the driver by the allocator.
    Reserved,
    /// The tensors' own bytes.
    Requested,
    /// Handed out, or freed and waiting for another stream.
    Active,
    /// Free parts of segments that are in use: they cannot be given back.
    InactiveSplit,
    /// Highest requested.
    MaxRequested,
    /// Highest active.
    MaxActive,
    /// Highest free in segments in use.
    MaxInactiveSplit,
    /// Everything of the process on the card, libraries included.
    Process,
    /// Everything but the allocator's, where the tool counts it (MPS).
    Other,
    /// The process's memory outside of PyTorch's allocator.
    NonTorch,
    /// Peak of activations (vLLM's profile).
    Activations,
    /// What is left for the KV cache (vLLM's profile).
    KvCache,
    /// The largest allocation.
    Largest,
    /// In use in host memory.
    HostUsed,
    /// XLA: parameters.
    XlaParameter,
    /// XLA: constants.
    XlaConstant,
    /// XLA: what outlives the program.
    XlaLiveOut,
    /// XLA: temporaries.
    XlaTemp,
    /// XLA: everything.
    XlaTotal,
    /// XLA: lost to fragmentation.
    XlaFragmentation,
}

impl Reported {
    /// All of them, with their names in documents and their tiers.
    pub const ALL: [(Self, &'static str, TierName); 29] = [
        (Self::Tried, "tried", TierName::Reserved),
        (Self::Refused, "refused", TierName::Reserved),
        (Self::Total, "total", TierName::Device),
        (Self::Free, "free", TierName::Device),
        (Self::Used, "used", TierName::Device),
        (Self::Allowed, "allowed", TierName::Reserved),
        (Self::Allocated, "allocated", TierName::Allocated),
        (Self::Unallocated, "unallocated", TierName::Reserved),
        (Self::PrivatePools, "private_pools", TierName::Reserved),
        (Self::Reserved, "reserved", TierName::Reserved),
        (Self::Requested, "requested", TierName::Requested),
        (Self::Active, "active", TierName::Allocated),
        (Self::InactiveSplit, "inactive_split", TierName::Reserved),
        (Self::MaxRequested, "max_requested", TierName::Requested),
        (Self::MaxActive, "max_active", TierName::Allocated),
        (Self::MaxInactiveSplit, "max_inactive_split", TierName::Reserved),
        (Self::Process, "process", TierName::Process),
        (Self::Other, "other", TierName::Process),
        (Self::NonTorch, "non_torch", TierName::Process),
        (Self::Activations, "activations", TierName::Allocated),
        (Self::KvCache, "kv_cache", TierName::Reserved),
        (Self::Largest, "largest", TierName::Allocated),
        (Self::HostUsed, "host_used", TierName::Process),
        (Self::XlaParameter, "xla.parameter", TierName::Allocated),
        (Self::XlaConstant, "xla.constant", TierName::Allocated),
        (Self::XlaLiveOut, "xla.live_out", TierName::Allocated),
        (Self::XlaTemp, "xla.temp", TierName::Allocated),
        (Self::XlaTotal, "xla.total", TierName::Allocated),
        (Self::XlaFragmentation, "xla.fragmentation", TierName::Allocated),
    ];

    fn row(self) -> &'static (Self, &'static str, TierName) {
        // The table is in the order of the enum.
        &Self::ALL[self as usize]
    }

    /// The name in documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Which of the totals it is one of.
    #[must_use]
    pub const fn tier(self) -> TierName {
        Self::ALL[self as usize].2
    }
}

/// A figure of `torch.cuda.memory_stats()` that has no shorter name, called as PyTorch calls it:
/// `allocated_bytes.large_pool.peak`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stat {
    /// Index into [`Stat::GROUPS`].
    group: u8,
    /// Index into [`Stat::POOLS`].
    pool: u8,
    /// Index into [`Stat::METRICS`].
    metric: u8,
}

impl Stat {
    /// The groups that count bytes.
    pub const GROUPS: [&'static str; 5] =
        ["requested_bytes", "allocated_bytes", "active_bytes", "inactive_split_bytes", "reserved_bytes"];
    /// The pools.
    pub const POOLS: [&'static str; 3] = ["all", "large_pool", "small_pool"];
    /// What is counted of each.
    pub const METRICS: [&'static str; 4] = ["current", "peak", "allocated", "freed"];

    /// Every combination.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..5).flat_map(|group| (0..3).flat_map(move |pool| (0..4).map(move |metric| Self { group, pool, metric })))
    }

    /// The figure with PyTorch's name, such as `allocated_bytes.large_pool.peak`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('.');
        let index = |names: &[&str], part: Option<&str>| {
            let at = names.iter().position(|name| Some(*name) == part)?;
            u8::try_from(at).ok()
        };
        let found = Self {
            group: index(&Self::GROUPS, parts.next())?,
            pool: index(&Self::POOLS, parts.next())?,
            metric: index(&Self::METRICS, parts.next())?,
        };
        parts.next().is_none().then_some(found)
    }

    /// PyTorch's names of the group, the pool and the metric.
    #[must_use]
    pub fn parts(self) -> [&'static str; 3] {
        [
            Self::GROUPS[usize::from(self.group)],
            Self::POOLS[usize::from(self.pool)],
            Self::METRICS[usize::from(self.metric)],
        ]
    }

    /// Which of the totals it is one of.
    #[must_use]
    pub const fn tier(self) -> TierName {
        match self.group {
            0 => TierName::Requested,
            1 | 2 => TierName::Allocated,
            _ => TierName::Reserved,
        }
    }
}
