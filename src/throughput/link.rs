//! Seconds that ranks need to say something to each other, and that a copy to the host takes.

use super::card::Card;
use super::layout::Layout;

/// A group of ranks, and how many of them share a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) ranks: f64,
    pub(super) in_node: f64,
}

impl Group {
    /// `ranks` of which each is `stride` ranks from the next: tensor parallel ranks are neighbours, then context, data and
    /// pipeline ranks, as frameworks lay them out.
    pub(super) fn of(layout: &Layout, ranks: u64, stride: u64) -> Self {
        let in_node = (layout.gpus_per_node / stride.max(1)).clamp(1, ranks.max(1));
        #[expect(clippy::cast_precision_loss, reason = "at most 2²⁰ ranks")]
        Self { ranks: ranks as f64, in_node: in_node as f64 }
    }

    /// Bytes a second that pass a rank in a ring over the group (NCCL's bus bandwidth): within a node its link, across nodes
    /// what the group's ranks of one node can send together.
    fn bus(self, card: &Card, layout: &Layout) -> f64 {
        let link = layout.link_gbps.map_or(card.link, |gbps| gbps * 1e9 * card.link_reached);
        if self.ranks <= self.in_node {
            return link;
        }
        let network = layout.network_gbps.map_or(card.network, |gbps| gbps * 1e9 * card.network_reached);
        (network * self.in_node).min(link)
    }

    /// An all-gather or a reduce-scatter of `bytes` in all.
    pub(super) fn gather(self, card: &Card, layout: &Layout, bytes: f64) -> f64 {
        if self.ranks < 2.0 {
            return 0.0;
        }
        (self.ranks - 1.0) / self.ranks * bytes / self.bus(card, layout) + self.latency(card)
    }

    /// An all-reduce of `bytes`.
    pub(super) fn reduce(self, card: &Card, layout: &Layout, bytes: f64) -> f64 {
        2.0 * self.gather(card, layout, bytes)
    }

    /// One rank's `bytes` to its neighbour.
    pub(super) fn send(self, card: &Card, layout: &Layout, bytes: f64) -> f64 {
        if self.ranks < 2.0 { 0.0 } else { bytes / self.bus(card, layout) + card.latency }
    }

    /// Trees make the latency of large groups grow with their logarithm.
    fn latency(self, card: &Card) -> f64 {
        card.latency * self.ranks.log2().ceil()
    }
}
