//! Saved tensors, and what hooks on them do: activation checkpointing (`torch.utils.checkpoint`) and saving in host
//! memory (`torch.autograd.graph.save_on_cpu`), both read at PyTorch 2.15.
//!
//! Non-reentrant: in forward, what the layer saves is counted and dropped; only the layer's inputs are kept. The first
//! time backward asks for one of them the layer runs again, up to the last tensor that was saved; each is then given out
//! once. Selective: the outputs of products and of attention are kept beside, and taken when the layer runs again. Reentrant: the layer runs without a graph as one autograd function, whose backward runs it again with one, and
//! then that graph's own backward.

use core::cell::{Cell, RefCell};
use core::fmt;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use crate::bill::Part;
use crate::step::autograd::{Edge, Grads, Recorder, backward_all, grads_of};
use crate::step::shape::Shape;
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// What an operation keeps for its backward.
#[derive(Debug)]
pub enum Saved {
    /// Nothing: the input that would need it needs no gradient.
    Nothing,
    /// The tensor.
    Tensor(Tensor),
    /// A place among a checkpointed layer's saved tensors, and what says that it is still wanted.
    Packed(Rc<Frame>, usize, Rc<()>),
    /// A copy in host memory; each time it is asked for, a new copy on the device. Boxed: every backward holds a few of
    /// these, and hardly any is of this kind.
    Host(Box<(Shape, Dtype, OnHost)>),
}

/// A copy in host memory, as long as it is kept.
#[derive(Debug)]
pub struct OnHost {
    tape: Tape,
    layer: u32,
    bytes: u64,
}

impl OnHost {
    fn of(tape: &Tape, tensor: &Tensor) -> Self {
        let bytes = tensor.shape().numel().unwrap_or(0).saturating_mul(tensor.dtype().bytes());
        let layer = tape.layer();
        tape.0.log.keep_on_host(layer, bytes);
        Self { tape: tape.clone(), layer, bytes }
    }
}

impl Drop for OnHost {
    fn drop(&mut self) {
        self.tape.0.log.leave_host(self.layer, self.bytes);
    }
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
            Some(Hook::Host) => {
                // What does not lie densely is made contiguous on the device before it is copied (`copy_kernel_cuda`).
                let dense = tensor.shape().is_dense();
                drop((!dense).then(|| tape.temp(tensor.shape().contiguous(), tensor.dtype(), "copy for the host")));
                Self::Host(Box::new((tensor.shape().like(), tensor.dtype(), OnHost::of(tape, tensor))))
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
            Self::Host(host) => Some(tape.empty(host.0, host.1, Part::Activations, "copy from the host")),
        }
    }
}

/// A layer that can be run again: its positional arguments in, hidden states first; its outputs out.
pub(crate) type Layer = Rc<dyn Fn(&Tape, &[Tensor]) -> Vec<Tensor>>;

/// One checkpointed layer's call.
pub struct Frame {
    /// Before the inputs: the layer's named arguments are let go first.
    layer: Layer,
    inputs: Vec<Saved>,
    autocast: Option<Dtype>,
    /// Where the hidden states came from in the graph.
    edge: Option<Edge>,
    saved: Cell<usize>,
    wanted: RefCell<Vec<Weak<()>>>,
    recomputed: RefCell<Vec<Option<Tensor>>>,
    done: Cell<bool>,
    /// What products and attention gave, where that is kept.
    outputs: Option<RefCell<VecDeque<Vec<Tensor>>>>,
    keeps: Keeps,
    /// Products so far, in forward and while the layer runs again.
    products: [Cell<u32>; 2],
}

/// What a checkpoint keeps beside its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    Nothing,
    /// What products and attention give.
    Products,
    /// What products and attention give, of `aten::mm` the first, the third, …
    EverySecondProduct,
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
        let mut inputs: Vec<Tensor> = self.inputs.iter().filter_map(|input| input.unpack(tape)).collect();
        tape.0.hooks.borrow_mut().stack.push(Hook::Recompute(self.clone()));
        // In its place in the graph, or nothing would be saved along the residual stream.
        if let (Some(edge), Some(hidden)) = (&self.edge, inputs.first_mut()) {
            *hidden = hidden.detached().with_grad_fn(&edge.node, edge.output);
        }
        let out = tape.with_grad(true, || tape.with_autocast(self.autocast, || (self.layer)(tape, &inputs)));
        drop(out);
        tape.0.stopped.set(false);
        tape.0.hooks.borrow_mut().stack.pop();
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Hook {
    Pack(Rc<Frame>),
    Recompute(Rc<Frame>),
    Host,
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

impl Tape {
    /// The outputs of a product or of attention: computed, or in a selective checkpoint that runs again taken from what was
    /// kept. (`_CachingTorchDispatchMode`: outputs are cached as they are, views of them come after.)
    pub(crate) fn computed(&self, mm: bool, compute: &dyn Fn() -> Vec<Tensor>) -> Vec<Tensor> {
        let top = self.0.hooks.borrow().stack.last().cloned();
        let (frame, again) = match &top {
            Some(Hook::Pack(frame)) => (frame, false),
            Some(Hook::Recompute(frame)) if !self.stopped() => (frame, true),
            _ => return compute(),
        };
        let Some(outputs) = &frame.outputs else { return compute() };
        if mm && frame.keeps == Keeps::EverySecondProduct {
            let count = &frame.products[usize::from(again)];
            if count.replace(count.get().wrapping_add(1)) % 2 == 1 {
                return compute();
            }
        }
        if again && let Some(kept) = outputs.borrow_mut().pop_front() {
            return kept;
        }
        let computed = compute();
        let kept = computed.iter().map(Tensor::detached).inspect(|out| self.becomes(out, Part::Activations)).collect();
        outputs.borrow_mut().push_back(kept);
        computed
    }
}

fn hooked<T>(tape: &Tape, hook: Hook, body: impl FnOnce() -> T) -> T {
    tape.0.hooks.borrow_mut().stack.push(hook);
    let out = body();
    tape.0.hooks.borrow_mut().stack.pop();
    out
}

/// Runs `layer` on `input`, what it saves kept in host memory.
pub(crate) fn on_host(tape: &Tape, body: &dyn Fn() -> Vec<Tensor>) -> Vec<Tensor> {
    hooked(tape, Hook::Host, body)
}

/// Runs `layer` on `inputs`, keeping them in place of what the layer saves.
///
/// `layer` runs under the caller's autocast state in forward and in recomputation. What it
/// `keeps` is kept too.
pub(crate) fn checkpointed(tape: &Tape, inputs: &[Tensor], layer: Layer, keeps: Keeps) -> Vec<Tensor> {
    if !tape.grad_enabled() {
        return layer(tape, inputs);
    }
    let frame = Rc::new(Frame {
        inputs: inputs.iter().map(|input| Saved::new(tape, input)).collect(),
        layer: layer.clone(),
        autocast: tape.autocast(),
        edge: inputs.first().and_then(Tensor::edge),
        saved: Cell::new(0),
        wanted: RefCell::default(),
        recomputed: RefCell::default(),
        done: Cell::new(false),
        outputs: (keeps != Keeps::Nothing).then(RefCell::default),
        keeps,
        products: Default::default(),
    });
    hooked(tape, Hook::Pack(frame), || layer(tape, inputs))
}

/// Runs `layer` on `inputs` as one autograd function (`CheckpointFunction`).
///
/// Its keyword arguments are attributes of the function's node: they live as long as the graph does.
pub(crate) fn reentrant(tape: &Tape, inputs: &[Tensor], layer: Layer) -> Vec<Tensor> {
    let r = Recorder::begin(tape, &inputs.iter().collect::<Vec<_>>());
    let outs = tape.with_grad(false, || layer(tape, inputs));
    if !r.recorded() {
        return outs;
    }
    let saved: Vec<Saved> = inputs.iter().map(|input| r.save(input)).collect();
    tape.pin(layer.clone());
    let autocast = tape.autocast();
    r.finish_many(outs, move |t, grads| {
        let mut inputs: Vec<Tensor> = saved.iter().filter_map(|input| input.unpack(t)).collect();
        let Some(hidden) = inputs.first_mut() else { return Grads::default() };
        let (leaf, gradient) = Recorder::force(hidden);
        *hidden = leaf;
        let outs = t.with_grad(true, || t.with_autocast(autocast, || layer(t, &inputs)));
        let roots = outs.iter().zip(grads).filter_map(|(out, grad)| Some((out.edge()?, grad.clone()?)));
        backward_all(t, roots.collect());
        grads_of([gradient.tensor.take()])
    })
}
