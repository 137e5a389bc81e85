//! Shapes with symbols: a dimension knows its number and the letters of the formula it came from.

use crate::order::sort_short_by_key;
use crate::units::MAX_DOCUMENT_BYTES;

/// Up to four formula symbols, multiplied: `b`, `s`, `b s h`. Packed so that a shape stays `Copy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sym(u32);

/// One formula symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Symbol {
    /// Micro-batch.
    B = 1,
    /// Sequence length.
    S,
    /// Hidden size.
    H,
    /// MLP width.
    F,
    /// Query heads.
    A,
    /// Key and value heads.
    G,
    /// Head size.
    D,
    /// Query width, heads × head size.
    Q,
    /// Key and value width, heads × head size.
    K,
    /// Vocabulary.
    V,
    /// Longest position.
    P,
    /// Decoder sequence length.
    T,
}

impl Symbol {
    const ALL: [Self; 12] =
        [Self::B, Self::S, Self::H, Self::F, Self::A, Self::G, Self::D, Self::Q, Self::K, Self::V, Self::P, Self::T];

    /// The letter in formulas.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::B => "b",
            Self::S => "s",
            Self::H => "h",
            Self::F => "f",
            Self::A => "a",
            Self::G => "g",
            Self::D => "d",
            Self::Q => "q",
            Self::K => "k",
            Self::V => "V",
            Self::P => "p",
            Self::T => "t",
        }
    }
}

impl Sym {
    /// No symbol: the dimension is a plain number.
    pub const NONE: Self = Self(0);

    /// The product of two; forgets the letters (`NONE`) past four.
    #[must_use]
    pub fn times(self, other: Self) -> Self {
        let (mut all, mut rest) = (self.0, other.0);
        while rest != 0 {
            if all >> 24 != 0 {
                return Self::NONE;
            }
            all = (all << 8) | (rest >> 24);
            if all & 0xff == 0 {
                all >>= 8;
            }
            rest <<= 8;
        }
        Self(all)
    }

    /// The symbols, in order.
    pub fn symbols(self) -> impl Iterator<Item = Symbol> {
        self.0.to_be_bytes().into_iter().filter_map(|b| Symbol::ALL.get(usize::from(b).wrapping_sub(1)).copied())
    }
}

/// A dimension: how many, and what it is called. Three words, for a shape is copied with every tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C, packed(4))]
pub struct Dim {
    /// How many.
    pub n: u64,
    /// The letters of the formula.
    pub sym: Sym,
}

impl Dim {
    /// A plain number.
    #[must_use]
    pub const fn plain(n: u64) -> Self {
        Self { n, sym: Sym::NONE }
    }

    /// A named dimension.
    #[must_use]
    pub const fn named(n: u64, symbol: Symbol) -> Self {
        Self { n, sym: Sym(symbol as u32) }
    }

    /// Two dimensions flattened into one.
    #[must_use]
    pub fn times(self, other: Self) -> Self {
        let sym = match (self, other) {
            (Self { n: 1, sym: Sym::NONE }, o) => o.sym,
            (s, Self { n: 1, sym: Sym::NONE }) => s.sym,
            (Self { sym: Sym::NONE, .. }, _) | (_, Self { sym: Sym::NONE, .. }) => Sym::NONE,
            (s, o) => s.sym.times(o.sym),
        };
        Self { n: self.n.saturating_mul(other.n), sym }
    }
}

/// The most dimensions any tensor here has.
pub const MAX_RANK: usize = 5;

/// Sizes and strides, in elements, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    strides: [u64; MAX_RANK],
    dims: [Dim; MAX_RANK],
    rank: u32,
}

impl Shape {
    /// A contiguous shape. Dimensions past [`MAX_RANK`] are a programming error of a family description.
    #[must_use]
    pub fn new(dims: &[Dim]) -> Self {
        debug_assert!(dims.len() <= MAX_RANK);
        let mut shape = Self { rank: 0, dims: [Dim::plain(1); MAX_RANK], strides: [1; MAX_RANK] };
        for (to, dim) in shape.dims.iter_mut().zip(dims) {
            *to = *dim;
            shape.rank += 1;
        }
        shape.make_contiguous();
        shape
    }

    fn make_contiguous(&mut self) {
        let mut stride = 1u64;
        for i in (0..self.rank()).rev() {
            self.strides[i] = stride;
            stride = stride.saturating_mul(self.dims[i].n.max(1));
        }
    }

    /// Whether the strides are those of [`Shape::new`], of dimensions of size 1 too.
    fn lies_as_made(&self) -> bool {
        let mut stride = 1u64;
        (0..self.rank()).rev().all(|i| {
            let made = self.strides[i] == stride;
            stride = stride.saturating_mul(self.dims[i].n.max(1));
            made
        })
    }

    /// How many dimensions.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// The dimensions.
    #[must_use]
    pub fn dims(&self) -> &[Dim] {
        &self.dims[..self.rank()]
    }

    /// The dimensions, lengthened with ones.
    pub(crate) fn padded_dims(&self) -> &[Dim; MAX_RANK] {
        &self.dims
    }

    /// The strides, in elements.
    #[must_use]
    pub fn strides(&self) -> &[u64] {
        &self.strides[..self.rank()]
    }

    /// Elements, or `None` when there are more than a document can count in bytes.
    #[must_use]
    pub fn numel(&self) -> Option<u64> {
        let mut all = 1u64;
        for d in self.dims() {
            all = all.checked_mul(d.n)?;
        }
        (all <= MAX_DOCUMENT_BYTES).then_some(all)
    }

    /// The same sizes laid out densely in order.
    #[must_use]
    pub fn contiguous(mut self) -> Self {
        self.make_contiguous();
        self
    }

    /// Whether the elements lie densely in order (dimensions of size 1 do not count).
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1u64;
        for i in (0..self.rank()).rev() {
            if self.dims[i].n != 1 {
                if self.strides[i] != expected {
                    return false;
                }
                expected = expected.saturating_mul(self.dims[i].n);
            }
        }
        true
    }

    /// Whether the strides are equal where the dimension is longer than one.
    #[must_use]
    pub fn lies_like(&self, other: &Self) -> bool {
        let strides = self.strides().iter().zip(other.strides());
        self.rank == other.rank && self.dims().iter().zip(strides).all(|(d, (a, b))| d.n == 1 || a == b)
    }

    /// Whether the elements lie densely in some order of the dimensions.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        if self.is_contiguous() {
            return true;
        }
        let mut order: [usize; MAX_RANK] = [0, 1, 2, 3, 4];
        let order = &mut order[..self.rank()];
        sort_short_by_key(order, |&i| if self.dims[i].n < 2 { (u64::MAX, i) } else { (self.strides[i], i) });
        let mut expected = 1u64;
        for &i in order.iter() {
            if self.dims[i].n < 2 {
                return true;
            }
            if self.strides[i] != expected {
                return false;
            }
            expected = expected.saturating_mul(self.dims[i].n);
        }
        true
    }

    /// Two dimensions exchanged: a view.
    #[must_use]
    pub fn transposed(mut self, i: usize, j: usize) -> Self {
        self.dims.swap(i, j);
        self.strides.swap(i, j);
        self
    }

    /// Dimension `i` narrowed to `n` elements: a view.
    #[must_use]
    pub fn narrowed(mut self, i: usize, dim: Dim) -> Self {
        self.dims[i] = dim;
        self
    }

    /// Every second element along dimension `i`: a view.
    #[must_use]
    pub fn halved(mut self, i: usize) -> Self {
        self.dims[i] = Dim::plain(self.dims[i].n.div_ceil(2));
        self.strides[i] = self.strides[i].saturating_mul(2);
        self
    }

    /// Dimension `i` gone, one element of it kept: a view.
    #[must_use]
    pub fn selected(mut self, i: usize) -> Self {
        self.dims[i..].rotate_left(1);
        self.strides[i..].rotate_left(1);
        (self.dims[MAX_RANK - 1], self.strides[MAX_RANK - 1]) = (Dim::plain(1), 1);
        self.rank -= 1;
        self
    }

    /// Dimension `i` (of size 1) repeated without a copy: stride 0.
    #[must_use]
    pub fn expanded(mut self, i: usize, dim: Dim) -> Self {
        if self.dims[i].n != dim.n {
            self.strides[i] = 0;
        }
        self.dims[i] = dim;
        self
    }

    /// A dimension of size 1 inserted before `i`: a view.
    #[must_use]
    pub fn unsqueezed(mut self, i: usize) -> Self {
        let stride = if i < self.rank() { self.strides[i].saturating_mul(self.dims[i].n) } else { 1 };
        self.dims[i..].rotate_right(1);
        self.strides[i..].rotate_right(1);
        self.dims[i] = Dim::plain(1);
        self.strides[i] = stride;
        self.rank += 1;
        self
    }

    /// Dimension `i` left out, one of its elements taken: a view.
    #[must_use]
    pub fn without(mut self, i: usize) -> Self {
        let rank = self.rank();
        self.dims[i..rank].rotate_left(1);
        self.strides[i..rank].rotate_left(1);
        self.dims[rank - 1] = Dim::plain(1);
        self.strides[rank - 1] = 1;
        self.rank -= 1;
        self
    }

    /// The strides with which the same memory has other sizes, or `None` when only a copy can have them (the rule of
    /// `Tensor.view`).
    #[must_use]
    pub fn viewed(&self, dims: &[Dim]) -> Option<Self> {
        let mut out = Self::new(dims);
        // What lies as if just made is seen as if just made.
        if self.lies_as_made() && self.numel().is_some_and(|n| n > 0 && out.numel() == Some(n)) {
            return Some(out);
        }
        if out.numel() != self.numel() || self.numel() == Some(0) {
            return (out.numel() == self.numel()).then_some(out);
        }
        let Some(last) = self.rank().checked_sub(1) else {
            return Some(out);
        };
        let mut view = out.rank();
        let mut chunk_stride = self.strides[last];
        let (mut old_n, mut new_n) = (1u64, 1u64);
        for i in (0..self.rank()).rev() {
            old_n = old_n.checked_mul(self.dims[i].n)?;
            let ends = i == 0 || (self.dims[i - 1].n != 1 && self.strides[i - 1] != old_n.checked_mul(chunk_stride)?);
            if ends {
                while view > 0 && (new_n < old_n || out.dims[view - 1].n == 1) {
                    view -= 1;
                    out.strides[view] = new_n.checked_mul(chunk_stride)?;
                    new_n = new_n.checked_mul(out.dims[view].n)?;
                }
                if new_n != old_n {
                    return None;
                }
                if i > 0 {
                    chunk_stride = self.strides[i - 1];
                    (old_n, new_n) = (1, 1);
                }
            }
        }
        (view == 0).then_some(out)
    }

    /// The layout of `empty_like`: the same strides when dense, contiguous otherwise with the order of the strides
    /// kept.
    #[must_use]
    pub fn like(&self) -> Self {
        if self.is_dense() { *self } else { self.ordered_like(&[self]) }
    }

    /// The sizes of `self`, laid out as `TensorIterator` lays out the result of an elementwise operation over
    /// `operands`: contiguous, except that the order of the operands' strides is kept.
    #[must_use]
    pub fn ordered_like(&self, operands: &[&Self]) -> Self {
        let rank = self.rank();
        // All operands of the same sizes and the same dense strides: the result has them too.
        if let Some(first) = operands.first()
            && operands.iter().all(|o| o.rank() == rank && o.strides() == first.strides() && o.same_sizes(self))
            && first.is_dense()
        {
            let mut out = *self;
            out.strides = first.strides;
            return out;
        }
        // So is the result where every operand lies densely in order.
        if operands.iter().all(|o| o.is_contiguous()) {
            return self.contiguous();
        }
        // Insertion sort of the dimensions, innermost first, by every operand's strides in turn.
        let mut perm: [usize; MAX_RANK] = [0; MAX_RANK];
        for (i, p) in perm[..rank].iter_mut().enumerate() {
            *p = rank - 1 - i;
        }
        let should_swap = |d0: usize, d1: usize| -> i8 {
            for o in operands {
                let (s0, s1) = (o.stride_for(d0, rank), o.stride_for(d1, rank));
                if s0 == 0 || s1 == 0 {
                    continue;
                }
                if s0 < s1 {
                    return -1;
                }
                if s0 > s1 {
                    return 1;
                }
                if self.dims[d0].n > self.dims[d1].n {
                    return 1;
                }
            }
            0
        };
        for i in 1..rank {
            let mut dim1 = i;
            for dim0 in (0..i).rev() {
                match should_swap(perm[dim0], perm[dim1]) {
                    1 => {
                        perm.swap(dim0, dim1);
                        dim1 = dim0;
                    }
                    -1 => break,
                    _ => {}
                }
            }
        }
        let mut out = *self;
        let mut stride = 1u64;
        for &d in &perm[..rank] {
            out.strides[d] = stride;
            stride = stride.saturating_mul(out.dims[d].n.max(1));
        }
        out
    }

    /// The stride of this operand for output dimension `dim` of `rank`, 0 where it is broadcast.
    fn stride_for(&self, dim: usize, rank: usize) -> u64 {
        match dim.checked_sub(rank - self.rank()) {
            Some(i) if self.dims[i].n != 1 => self.strides[i],
            _ => 0,
        }
    }

    /// Whether the sizes are equal.
    #[must_use]
    pub fn same_sizes(&self, other: &Self) -> bool {
        self.rank == other.rank && self.dims().iter().zip(other.dims()).all(|(a, b)| a.n == b.n)
    }

    /// The sizes of an elementwise operation over both, contiguous.
    #[must_use]
    pub fn broadcast(&self, other: &Self) -> Self {
        let (long, short) = if self.rank >= other.rank { (self, other) } else { (other, self) };
        let mut out = *long;
        let shift = long.rank() - short.rank();
        for i in 0..short.rank() {
            if out.dims[i + shift].n == 1 {
                out.dims[i + shift] = short.dims[i];
            }
        }
        out.contiguous()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[u64]) -> Shape {
        let dims: Vec<Dim> = dims.iter().map(|&n| Dim::plain(n)).collect();
        Shape::new(&dims)
    }

    #[test]
    fn a_transposed_tensor_cannot_be_viewed_flat() {
        let q = shape(&[2, 384, 4, 64]).transposed(1, 2);
        assert!(q.viewed(&[Dim::plain(2 * 4 * 384 * 64)]).is_none());
        let back = q.transposed(1, 2).viewed(&[Dim::plain(768), Dim::plain(256)]).unwrap();
        assert!(back.is_contiguous());
    }

    #[test]
    fn elementwise_results_keep_the_order_of_strides() {
        // q after `view(...).transpose(1, 2)` times cos of sizes [1, 1, s, d].
        let q = shape(&[2, 384, 4, 64]).transposed(1, 2);
        let cos = shape(&[1, 1, 384, 64]);
        let out = q.contiguous().ordered_like(&[&q, &cos]);
        assert_eq!(out.strides(), q.strides());
    }

    #[test]
    fn symbols_multiply_up_to_four() {
        let (b, s, h) = (Dim::named(2, Symbol::B), Dim::named(3, Symbol::S), Dim::named(5, Symbol::H));
        let bsh = b.times(s).times(h);
        assert_eq!({ bsh.n }, 30);
        let letters: String = bsh.sym.symbols().map(Symbol::letter).collect();
        assert_eq!(letters, "bsh");
        assert_eq!(bsh.times(b).times(b).sym, Sym::NONE);
    }
}
