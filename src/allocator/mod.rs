//! PyTorch's native CUDA caching allocator as a pure, deterministic simulator: what `memory_allocated` and
//! `memory_reserved` show, and when a step runs out of memory.
//!
//! ```text
//! malloc(n, stream) ─► round ─► pool (small │ large, default │ private) ─► best fit ─► split ─► block
//!                                                     │ none
//!                       garbage collection ─► grow (segment or pages) ─► release oversize ─► flush ─► out of memory
//! free(block) ─► pending on other streams? ─► coalesce ─► the pool's free set
//! ```
//!
//! The rules are those of PyTorch 2.1 to 2.15; where they differ, [`rules`] holds one row per change, with its source
//! and with which released versions were run against it. A "device" here is a capacity that segments are taken from;
//! what the CUDA context, libraries and other processes use has to be taken off it by the caller.
//!
//! Not modelled: the `cudaMallocAsync` backend, real CUDA graph capture, the driver's own addresses (up to 2.10 ties
//! in size go to the lowest address, taken here to be the oldest segment's), `PYTORCH_NO_CUDA_MEMORY_CACHING`.

mod block;
mod conf;
mod device;
mod expandable;
mod free;
mod free_set;
mod gc;
mod grow;
mod malloc;
mod oom;
mod pool;
mod private;
mod release;
mod restore;
mod round;
pub mod rules;
mod segments;
mod stats;
mod streams;
pub mod trace;

use crate::plan::Version;
use crate::units::Bytes;

use block::Arena;
pub use block::BlockId;
pub use conf::{AllocConf, ConfIssue, ConfProblem};
use device::Device;
pub use oom::OutOfMemory;
use pool::{Pool, StreamSet};
pub use private::PrivatePoolError;
use private::PrivatePools;
pub use restore::Restored;
use rules::Rules;
pub use segments::{BlockState, BlockView, SegmentView};
use stats::Tallies;
pub use stats::{Count, Gauge, Stats};
use streams::CrossStream;

/// Bytes every block is a multiple of, and the least that a block has.
pub const MIN_BLOCK: u64 = 512;
/// The largest rounded size that the small pool serves.
pub const SMALL_SIZE: u64 = 1 << 20;
/// Segment and page size of the small pool; also what large segments are rounded to, and the driver's page.
pub const SMALL_BUFFER: u64 = 2 << 20;
/// Default segment size for rounded sizes above [`SMALL_SIZE`] and below [`MIN_LARGE_ALLOC`].
pub const LARGE_BUFFER: u64 = 20 << 20;
/// Rounded sizes from here on get a segment of their own.
pub const MIN_LARGE_ALLOC: u64 = 10 << 20;
/// The largest request: PyTorch refuses more than 1 EiB before it looks for memory.
pub const MAX_REQUEST: u64 = 1 << 60;

/// What decides how an [`Allocator`] behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The PyTorch version whose rules apply.
    pub version: Version,
    /// What the device can give to this allocator. `None`: without limit.
    pub total_bytes: Option<Bytes>,
    /// The parsed `PYTORCH_CUDA_ALLOC_CONF`.
    pub alloc_conf: AllocConf,
    /// `set_per_process_memory_fraction`, as a share of `total_bytes`. `None`: not called. Means nothing on a device
    /// without limit.
    pub fraction: Option<f64>,
    /// Whether no event of another stream has passed before the host waits for the device.
    pub events_pending: bool,
}

impl Config {
    /// PyTorch `version` with its defaults on a device without limit.
    #[must_use]
    pub fn new(version: Version) -> Self {
        Self { version, total_bytes: None, alloc_conf: AllocConf::default(), fraction: None, events_pending: false }
    }
}

/// The caching allocator of one device in one process.
///
/// Cloning forks the state: a warm-up can be replayed once and several steps tried from there.
#[derive(Clone, Debug)]
pub struct Allocator {
    conf: AllocConf,
    rules: Rules,
    device: Device,
    /// Bytes that `reserved` may not pass.
    limit: Option<u64>,
    blocks: Arena,
    pools: Vec<Pool>,
    /// The free blocks of each (pool, stream), in order of first use.
    sets: Vec<StreamSet>,
    private: PrivatePools,
    cross_stream: CrossStream,
    tallies: Tallies,
    /// Segments and address ranges made so far: the tie order among blocks of one size.
    segments_made: u32,
}

impl Allocator {
    /// An allocator that holds nothing yet.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let conf = config.alloc_conf.clone();
        let rules = Rules::of(config.version);
        let expandable = conf.expandable_segments;
        let pools = vec![Pool::new(true, None, expandable, &conf), Pool::new(false, None, expandable, &conf)];
        let mut new = Self {
            rules,
            device: Device::new(config.total_bytes),
            limit: None,
            blocks: Arena::default(),
            pools,
            sets: Vec::new(),
            private: PrivatePools::default(),
            cross_stream: CrossStream::default(),
            tallies: Tallies::default(),
            segments_made: 0,
            conf,
        };
        if let Some(fraction) = config.fraction.or(config.alloc_conf.per_process_memory_fraction) {
            new.set_fraction(fraction);
        }
        new.set_events_pending(config.events_pending);
        new
    }

    /// `torch.cuda.set_per_process_memory_fraction`: a cap on reserved bytes. Nothing on a device without limit.
    pub fn set_fraction(&mut self, fraction: f64) {
        self.limit = self.device.total().and_then(|total| self.rules.limit(fraction, total));
    }

    /// Current and peak figures.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.tallies.stats()
    }

    /// `torch.cuda.reset_peak_memory_stats`: every peak becomes the current figure.
    pub fn reset_peaks(&mut self) {
        self.tallies.reset_peaks();
    }
}
