//! What a recording's program would have reserved under other settings.

use super::history::{History, NotReplayed};
use super::recording::Snapshot;
use super::replay::Replayed;
use crate::allocator::{AllocConf, ConfIssue, Config};
use crate::plan::Version;
use crate::units::Bytes;

/// What is tried where no settings are given, as in `PYTORCH_CUDA_ALLOC_CONF`.
const TRIED: [&str; 4] = ["", "expandable_segments:True", "roundup_power2_divisions:4", "max_split_size_mb:128"];

/// A recording's trace under its own settings and under others.
#[derive(Clone, Debug)]
pub struct WhatIf {
    /// The trace.
    pub history: History,
    /// What the device can give to the allocator, where that is known.
    pub capacity: Option<Bytes>,
    /// Under the recording's own settings.
    pub recorded: Tried,
    /// Under others.
    pub others: Vec<Tried>,
}

/// A replay under some settings, or why there is none.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The settings, as in `PYTORCH_CUDA_ALLOC_CONF`; empty: the defaults.
    pub conf: String,
    /// What was found.
    pub found: Result<Replayed, NotTried>,
}

/// Why settings were not tried.
#[derive(Clone, Debug, PartialEq)]
pub enum NotTried {
    /// The version does not know them.
    Settings(Vec<ConfIssue>),
    /// The recorded segments are not such as these settings make.
    Segments,
}

/// What is given beside a recording.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// PyTorch's version, whose rules apply.
    pub version: Version,
    /// The settings of the recording, where it does not hold them.
    pub recorded_conf: Option<&'a str>,
    /// What the device can give to the allocator; `None`: what a recorded failure tells.
    pub total: Option<Bytes>,
    /// The settings to try; none: some that are often advised.
    pub confs: &'a [String],
}

impl WhatIf {
    /// Replays a device's trace.
    ///
    /// # Errors
    /// Why it is not replayed.
    pub fn of(snapshot: &Snapshot, device: u32, given: &Given<'_>) -> Result<Self, NotReplayed> {
        let history = History::of(snapshot, device)?;
        let capacity = given.total.or_else(|| history.capacity());
        let replay =
            |conf: &str, as_recorded: bool| {
                let config = AllocConf::parse(conf, given.version)
                    .map_err(NotTried::Settings)
                    .map(|alloc_conf| Config { alloc_conf, total_bytes: capacity, ..Config::new(given.version) });
                let found = config.and_then(|config| history.replay(&config, as_recorded).ok_or(NotTried::Segments));
                Tried { conf: conf.into(), found }
            };
        // A recording of 2.1 to 2.3 does not say what was set, but shows expandable segments.
        let expandable = snapshot.segments_of(device).any(|(segment, _)| segment.expandable);
        let shown = if expandable { "expandable_segments:True" } else { "" };
        let own = given.recorded_conf.or(snapshot.alloc_conf.as_deref()).unwrap_or(shown);
        let recorded = replay(own, true);
        let others = if given.confs.is_empty() {
            TRIED.into_iter().filter(|conf| *conf != own).map(|conf| replay(conf, false)).collect()
        } else {
            given.confs.iter().map(|conf| replay(conf, false)).collect()
        };
        Ok(Self { capacity, recorded, others, history })
    }
}
