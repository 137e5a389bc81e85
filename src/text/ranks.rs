//! What is said of every rank of a job. A catalogue of its own: the page's first program has no use for it.

use crate::bill::{Instant, Part};
use crate::text::Locale;
use crate::units::Bytes;

/// Something that is said of the ranks.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "a name says what it is")]
pub enum RankSaid {
    Ask,
    Start,
    Stop,
    /// How many are walked, of how many.
    Progress(u64, u64),
    /// The figures are of earlier inputs.
    Earlier,
    /// Below the heading: at which instant the bars are.
    Hint,
    // The heads of the table.
    RankHead,
    HeldHead,
    PeakHead,
    /// One of them: a GPU of a process, or a pipeline's rank.
    Rank {
        gpu: bool,
        rank: u64,
    },
    /// When its peak is, and what else stands on it than layers.
    At {
        instant: Instant,
        embedding: bool,
        head: bool,
    },
    /// How many layers stand on it, and how many micro-batches are in flight there.
    Holds {
        layers: u64,
        in_flight: u64,
    },
    /// The one that holds the most, against the one that holds the least: how much more, and of what the most of it is.
    Binds {
        gpu: bool,
        rank: u64,
        peak: Bytes,
        least: u64,
        more: Bytes,
        part: Part,
    },
    /// All hold the same.
    Alike(Bytes),
}

impl Locale {
    /// What is said of the ranks.
    #[must_use]
    pub fn rank(self, what: RankSaid) -> String {
        match self {
            Self::En => english(what),
        }
    }
}

fn english(what: RankSaid) -> String {
    let name = |gpu: bool, rank: u64| if gpu { format!("GPU {rank}") } else { format!("Rank {rank}") };
    match what {
        RankSaid::Ask => "Every rank: which one holds the most, and why".into(),
        RankSaid::Start => "Walk every rank".into(),
        RankSaid::Stop => "Stop".into(),
        RankSaid::Progress(_, 0) => "Walking the ranks".into(),
        RankSaid::Progress(done, total) => format!("Walking the ranks: {done} of {total}"),
        RankSaid::Earlier => "These are the ranks of earlier inputs.".into(),
        RankSaid::Hint => {
            "Requested memory of each at its own peak, by the step's rules; the allocator is not replayed.".into()
        }
        RankSaid::RankHead => "Rank".into(),
        RankSaid::HeldHead => "Held at its peak".into(),
        RankSaid::PeakHead => "GiB".into(),
        RankSaid::Rank { gpu, rank } => name(gpu, rank),
        RankSaid::At { instant, embedding, head } => {
            let ends = match (embedding, head) {
                (true, true) => ", embedding and head",
                (true, false) => ", embedding",
                (false, true) => ", head",
                (false, false) => "",
            };
            format!("{}{ends}", Locale::En.text().at_instant(instant))
        }
        RankSaid::Holds { layers, in_flight } => {
            let s = if layers == 1 { "" } else { "s" };
            format!("{layers} layer{s}, {in_flight} in flight")
        }
        RankSaid::Binds { gpu, rank, peak, least, more, part } => format!(
            "{} holds the most, {peak}: {more} more than {}, mostly {}.",
            name(gpu, rank),
            name(gpu, least),
            Locale::En.text().part(part).to_lowercase(),
        ),
        RankSaid::Alike(bytes) => format!("All hold the same, {bytes}."),
    }
}
