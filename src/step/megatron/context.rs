//! What a rank of a Megatron-LM job knows while it walks, and the buffers that it keeps.

use core::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::bill::Part;
use crate::model::family::Gpt;
use crate::recipe::parallel::Megatron;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// The sizes that an operation looks at.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) gpt: Gpt,
    pub(super) options: Megatron,
    pub(super) tensor: u64,
    pub(super) sequence_parallel: bool,
    pub(super) context: u64,
    pub(super) expert: u64,
    /// Ranks that share each expert.
    pub(super) expert_tensor: u64,
    pub(super) batch: u64,
    /// Tokens of a sequence on this rank.
    pub(super) seq: u64,
    pub(super) vocab: u64,
}

/// Buffers by name and bytes.
type Kept = BTreeMap<(&'static str, u64), Tensor>;

/// A handle to them, and to the buffers that are made at first use and kept.
#[derive(Clone, Debug)]
pub(super) struct Cx(Rc<Inner>, Rc<RefCell<Kept>>);

impl core::ops::Deref for Cx {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Cx {
    pub(super) fn new(inner: Inner) -> Self {
        Self(Rc::new(inner), Rc::default())
    }

    /// Tokens of a micro-batch on this rank, and those that it keeps between its layers.
    pub(super) fn rows(&self) -> Dim {
        Dim::plain(self.batch.saturating_mul(self.seq))
    }

    pub(super) fn kept_rows(&self) -> Dim {
        let by = if self.sequence_parallel { self.tensor } else { 1 };
        Dim::plain(self.rows().n / by.max(1))
    }

    /// A buffer that this name and size share.
    pub(super) fn keep(&self, t: &Tape, name: &'static str, shape: Shape, dtype: Dtype) -> Tensor {
        let bytes = shape.numel().unwrap_or(u64::MAX).saturating_mul(dtype.bytes());
        let found = self.1.borrow().get(&(name, bytes)).cloned();
        found.unwrap_or_else(|| {
            let buffer = t.empty(shape, dtype, Part::Temporary, name);
            self.1.borrow_mut().insert((name, bytes), buffer.clone());
            buffer
        })
    }

    /// Gives the buffers back.
    pub(super) fn forget(&self) {
        let all = self.1.take();
        drop(all);
    }
}
