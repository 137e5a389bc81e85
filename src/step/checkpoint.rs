//! Saved tensors, and non-reentrant activation checkpointing as hooks on them
//! (`torch.utils.checkpoint`, `use_reentrant=False`, read at 2.15).
//!
//! In forward, what the layer saves is counted and dropped; only the layer's inputs are kept. The first time backward
//! asks for one of them the layer runs again, up to the last tensor that was saved; each is then given out once.

use core::cell::{Cell, RefCell};
use core::fmt;
use std::rc::{Rc, Weak};

use crate::bill::Part;
use crate::step::tape::Tape;
use crate::step::tensor::Tensor;

/// What an operation keeps for its backward.
#[derive(Debug)]
pub enum Saved {
    /// Nothing: the input that would need it needs no gradient.
    Nothing,
    /// The tensor.
    Tensor(Tensor),
    /// A place among a checkpointed layer's saved tensors, and what says that it is still wanted.
    Packed(Rc<Frame>, usize, Rc<()>),
}

impl Saved {
    pub(crate) fn new(tape: &Tape, tensor: &Tensor) -> Self {
        let top = tape.0.hooks.borrow().stack.last().cloned();
        match top {
            None => {
                let kept = tensor.detached();
                // A parameter stays a weight; an output becomes an activation.
                if tensor.leaf().is_none() {
                    tape.becomes(&kept, Part::Activations);
                }
                Self::Tensor(kept)
            }
            Some(Hook::Pack(frame)) => {
                let place = frame.saved.get();
                frame.saved.set(place + 1);
                let wanted = Rc::new(());
                frame.wanted.borrow_mut().push(Rc::downgrade(&wanted));
                Self::Packed(frame, place, wanted)
            }
            Some(Hook::Recompute(frame)) => {
                let kept = tensor.detached();
                if tensor.leaf().is_none() {
                    tape.becomes(&kept, Part::Activations);
                }
                let mut recomputed = frame.recomputed.borrow_mut();
                let wanted = frame.wanted.borrow().get(recomputed.len()).is_some_and(|w| w.strong_count() > 0);
                recomputed.push(wanted.then(|| kept.clone()));
                if recomputed.len() == frame.saved.get() {
                    tape.0.stopped.set(true);
                }
                // The recomputation's own graph is never run: its saved tensors are the frame's, but for those of a part
                // whose graph was gone before forward ended.
                if wanted { Self::Nothing } else { Self::Tensor(kept) }
            }
        }
    }

    /// The tensor, run again if it was dropped. `None` when it was not saved.
    pub(crate) fn unpack(&self, tape: &Tape) -> Option<Tensor> {
        match self {
            Self::Nothing => None,
            Self::Tensor(t) => Some(t.clone()),
            Self::Packed(frame, place, _) => {
                frame.recompute(tape);
                frame.recomputed.borrow_mut().get_mut(*place).and_then(Option::take)
            }
        }
    }
}

type Again = Box<dyn Fn(&Tape, &Tensor) -> Vec<Tensor>>;

/// One checkpointed layer's call.
pub struct Frame {
    /// Before the input: the layer's named arguments are let go first.
    again: Again,
    input: RefCell<Option<Tensor>>,
    saved: Cell<usize>,
    wanted: RefCell<Vec<Weak<()>>>,
    recomputed: RefCell<Vec<Option<Tensor>>>,
    done: Cell<bool>,
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} saved)", self.saved.get())
    }
}

impl Frame {
    fn recompute(self: &Rc<Self>, tape: &Tape) {
        if self.done.replace(true) || self.saved.get() == 0 {
            return;
        }
        let input = self.input.borrow().clone();
        let Some(input) = input else { return };
        tape.0.hooks.borrow_mut().stack.push(Hook::Recompute(self.clone()));
        let out = tape.with_grad(true, || (self.again)(tape, &input));
        drop(out);
        tape.0.stopped.set(false);
        tape.0.hooks.borrow_mut().stack.pop();
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Hook {
    Pack(Rc<Frame>),
    Recompute(Rc<Frame>),
}

#[derive(Debug, Default)]
pub(crate) struct Hooks {
    stack: Vec<Hook>,
}

impl Hooks {
    /// Whether a layer is being run again.
    pub(crate) fn recomputing(&self) -> bool {
        matches!(self.stack.last(), Some(Hook::Recompute(_)))
    }
}

/// Runs `layer` on `input`, keeping the input in place of what the layer saves.
///
/// `layer` runs under the caller's autocast state in forward and in recomputation.
pub fn checkpointed(tape: &Tape, input: &Tensor, layer: impl Fn(&Tape, &Tensor) -> Tensor + 'static) -> Tensor {
    let mut outputs = checkpointed_many(tape, input, move |tape, input| vec![layer(tape, input)]);
    outputs.pop().unwrap_or_else(|| input.clone())
}

/// As [`checkpointed`] for a layer of several outputs.
pub fn checkpointed_many(
    tape: &Tape,
    input: &Tensor,
    layer: impl Fn(&Tape, &Tensor) -> Vec<Tensor> + 'static,
) -> Vec<Tensor> {
    let kept = input.detached();
    tape.becomes(&kept, Part::Activations);
    let autocast = tape.autocast();
    let layer = Rc::new(layer);
    let again = layer.clone();
    // The recomputed graph needs gradients to flow to its input, or nothing would be saved along the residual stream.
    let needs_grad = input.requires_grad();
    let frame = Rc::new(Frame {
        input: RefCell::new(Some(kept)),
        again: Box::new(move |tape, input| {
            let input = if needs_grad { tape.require_grad(input) } else { input.clone() };
            tape.with_autocast(autocast, || again(tape, &input))
        }),
        saved: Cell::new(0),
        wanted: RefCell::default(),
        recomputed: RefCell::default(),
        done: Cell::new(false),
    });
    tape.0.hooks.borrow_mut().stack.push(Hook::Pack(frame));
    let out = layer(tape, input);
    tape.0.hooks.borrow_mut().stack.pop();
    out
}
