//! Seconds of single kernels: matrix products by their size, and what only moves bytes.

use super::card::Card;

/// Sizes of a matrix product: m × k by k × n.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) m: f64,
    pub(super) n: f64,
    pub(super) k: f64,
}

/// The dtype of a product's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Units {
    /// The recipe's own dtype.
    Plain,
    /// FP8 with a scale per tensor.
    Float8,
    /// FP8 with a scale per row or block.
    Rowwise,
}

/// Tiles of the libraries' kernels, with their rates against a large tile's.
const TILES: [(f64, f64, f64); 4] =
    [(256.0, 128.0, 1.0), (128.0, 128.0, 0.95), (128.0, 64.0, 0.82), (64.0, 64.0, 0.65)];
/// Into how many parts a long inner dimension is cut where the tiles alone do not fill the card, and what that costs.
const SPLITS: [f64; 3] = [2.0, 4.0, 8.0];
const SPLIT_RATE: f64 = 0.9;
const SPLIT_FROM: f64 = 512.0;

/// Seconds of a product: as fast as its tiles fill the card, and no faster than its operands can be moved.
pub(super) fn product(card: &Card, sizes: Sizes, units: Units) -> f64 {
    let Sizes { m, n, k } = sizes;
    let mut filled = fill(m, n, card.sms);
    for s in SPLITS {
        if k / s >= SPLIT_FROM {
            filled = filled.max(fill(m, n * s, card.sms) * SPLIT_RATE);
        }
    }
    let rate = card.rate(units) * filled * k / (k + card.depth);
    let bytes = card.width * (m * n + m * k + n * k);
    (2.0 * m * n * k / rate).max(bytes / card.bytes_per_second)
}

/// The share of the card that the best tiling of an m × n result keeps busy: tiles run in waves, and the last one takes as
/// long as the others.
fn fill(m: f64, n: f64, sms: f64) -> f64 {
    let mut best = 0.0_f64;
    for (height, width, rate) in TILES {
        let (rows, columns) = ((m / height).ceil(), (n / width).ceil());
        let waves = rows * columns / sms;
        let useful = m * n / (rows * height * columns * width);
        best = best.max(useful * waves / waves.ceil() * rate);
    }
    best
}

/// Seconds to move `bytes`.
pub(super) fn moved(card: &Card, bytes: f64) -> f64 {
    bytes / card.bytes_per_second
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 108 multiprocessors and tiles of 256 × 128: a result of 108 such tiles fills them once, one more takes two waves.
    #[test]
    fn the_last_wave_costs_as_much_as_the_others() {
        assert!((fill(256.0 * 108.0, 128.0, 108.0) - 1.0).abs() < 1e-12);
        assert!((0.5..0.8).contains(&fill(256.0 * 109.0, 128.0, 108.0)));
        assert!(fill(256.0, 128.0, 108.0) < 0.05);
    }
}
