//! The graph and its engine, with PyTorch's order: nodes become ready when all their gradients have arrived and run
//! latest-created first; parameters gather their gradients at once. (torch/csrc/autograd/engine.cpp, read at 2.15.)

use core::cell::{Cell, RefCell};
use core::fmt;
use std::collections::BinaryHeap;
use std::rc::Rc;

use crate::bill::Part;
use crate::step::checkpoint::Saved;
use crate::step::shape::Shape;
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// Gradients, one per input of a node's operation; none where the input needs none.
pub type Grads = [Option<Tensor>; MAX_INPUTS];

/// The gradients of an operation's first inputs.
pub(crate) fn grads_of<const N: usize>(first: [Option<Tensor>; N]) -> Grads {
    const { assert!(N <= MAX_INPUTS) };
    let mut first = first.into_iter();
    core::array::from_fn(|_| first.next().flatten())
}

type Apply = Box<dyn FnMut(&Tape, &[Option<Tensor>]) -> Grads>;

/// The end of an edge: a node and which of its operation's outputs the gradient is for.
#[derive(Clone, Debug)]
pub struct Edge {
    pub(crate) node: Rc<Node>,
    pub(crate) output: u8,
}

/// What a hook does with a gradient as soon as it is there (`register_post_accumulate_grad_hook`); what it returns stays.
type Hook = Box<dyn FnMut(&Tape, Tensor) -> Option<Tensor>>;

/// What a hook on a tensor does before its gradient goes on (`Tensor.register_hook`).
pub(crate) type PreHook = Rc<dyn Fn(&Tape)>;

/// A parameter's gradient.
#[derive(Default)]
pub(crate) struct Gradient {
    pub(crate) tensor: RefCell<Option<Tensor>>,
    /// Megatron-LM adds each gradient to an FP32 main gradient; an optimizer in backward takes its step.
    pub(crate) hook: RefCell<Option<Hook>>,
    /// Whether it is the gradient of an activation that was made a leaf, not of a parameter.
    pub(crate) of_activation: Cell<bool>,
    /// What it is cast to when it gathers (`Tensor.grad_dtype`); none: as it comes.
    pub(crate) dtype: Cell<Option<Dtype>>,
}

impl Gradient {
    fn call_hook(&self, tape: &Tape) {
        if let Some(hook) = &mut *self.hook.borrow_mut() {
            let gradient = self.tensor.take();
            let stays = gradient.and_then(|gradient| hook(tape, gradient));
            *self.tensor.borrow_mut() = stays;
        }
    }
}

impl fmt::Debug for Gradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gradient").field(&self.tensor).finish()
    }
}

/// The most inputs that an operation with a backward has.
pub const MAX_INPUTS: usize = 4;

/// Where the gradients of an operation's inputs go.
type Edges = [Option<Edge>; MAX_INPUTS];

/// One operation's backward.
pub struct Node {
    sequence: u64,
    scope: &'static str,
    layer: u32,
    apply: RefCell<Option<Apply>>,
    edges: RefCell<Edges>,
    /// The first output, which nearly every operation has alone, and the others.
    first: RefCell<Output>,
    others: RefCell<Vec<Output>>,
    /// For a parameter: where its gradient gathers.
    gathers: Option<Rc<Gradient>>,
    /// Run before it.
    hooks: RefCell<Vec<PreHook>>,
    /// Whether its gradients are DTensors, which are not added to in place.
    dtensor: Cell<bool>,
    waiting: Cell<u32>,
    seen: Cell<bool>,
}

/// One output of an operation: what its gradient must look like, and the gradient so far.
struct Output {
    shape: Shape,
    dtype: Dtype,
    gradient: Option<Tensor>,
}

impl Output {
    fn of(tensor: &Tensor) -> Self {
        Self { shape: *tensor.shape(), dtype: tensor.dtype(), gradient: None }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({} {})", self.sequence, self.scope)
    }
}

impl Node {
    fn new(sequence: u64, gathers: Option<Rc<Gradient>>) -> Self {
        Self {
            sequence,
            scope: "",
            layer: 0,
            apply: RefCell::new(None),
            edges: RefCell::default(),
            first: RefCell::new(Output { shape: Shape::new(&[]), dtype: Dtype::F32, gradient: None }),
            others: RefCell::default(),
            gathers,
            hooks: RefCell::default(),
            dtensor: Cell::new(false),
            waiting: Cell::new(0),
            seen: Cell::new(false),
        }
    }

    /// A node for an operation to come.
    pub(crate) fn unused() -> Rc<Self> {
        Rc::new(Self::new(0, None))
    }

    /// The node that gathers a parameter's gradient. It runs as soon as it is ready: its sequence number is the highest.
    pub(crate) fn accumulate(grad: Rc<Gradient>, shape: Shape, dtype: Dtype) -> Rc<Self> {
        let node = Self::new(u64::MAX, Some(grad));
        *node.first.borrow_mut() = Output { shape, dtype, gradient: None };
        Rc::new(node)
    }

    /// The dtype in which its gradient arrives: the edge casts it.
    pub(crate) fn set_dtype(&self, dtype: Dtype) {
        self.first.borrow_mut().dtype = dtype;
    }

    /// The sizes that its gradient has.
    pub(crate) fn set_shape(&self, shape: Shape) {
        self.first.borrow_mut().shape = shape;
    }

    /// Does `change` to output `at`.
    fn with_output<T>(&self, at: u8, change: impl FnOnce(&mut Output) -> T) -> Option<T> {
        match usize::from(at).checked_sub(1) {
            None => Some(change(&mut self.first.borrow_mut())),
            Some(at) => self.others.borrow_mut().get_mut(at).map(change),
        }
    }
}

impl Node {
    /// Whether it gathers the gradient of a leaf.
    pub(crate) fn gathers_here(&self) -> bool {
        self.gathers.is_some()
    }
}

/// An operation about to run: decides whether it is recorded, and saves what its backward needs.
#[derive(Debug)]
pub struct Recorder {
    tape: Tape,
    node: Option<Rc<Node>>,
}

impl Recorder {
    /// Begins an operation over `inputs`. The node exists before the operation runs, as in PyTorch.
    #[must_use]
    pub fn begin(tape: &Tape, inputs: &[&Tensor]) -> Self {
        let recorded = tape.node_is_recorded() && inputs.iter().any(|t| t.requires_grad());
        debug_assert!(inputs.len() <= MAX_INPUTS);
        let node = recorded.then(|| {
            let mut node = tape.unused_node();
            if let Some(own) = Rc::get_mut(&mut node) {
                (own.sequence, own.scope, own.layer) = (tape.next_sequence(), tape.scope_name(), tape.layer());
                for (edge, input) in own.edges.get_mut().iter_mut().zip(inputs) {
                    *edge = input.edge();
                }
                own.dtensor.set(tape.runs_on_dtensors());
            }
            node
        });
        Self { tape: tape.clone(), node }
    }

    /// Whether a backward will run.
    #[must_use]
    pub fn recorded(&self) -> bool {
        self.node.is_some()
    }

    /// Saves `tensor` for backward if the operation is recorded and `when`.
    #[must_use]
    pub fn save_if(&self, when: bool, tensor: &Tensor) -> Saved {
        if self.node.is_some() && when { Saved::new(&self.tape, tensor) } else { Saved::Nothing }
    }

    /// Saves `tensor` for backward.
    #[must_use]
    pub fn save(&self, tensor: &Tensor) -> Saved {
        self.save_if(true, tensor)
    }

    /// Ends the operation: `out` gets its place in the graph.
    #[must_use]
    pub fn finish(self, out: Tensor, apply: impl FnMut(&Tape, &[Option<Tensor>]) -> Grads + 'static) -> Tensor {
        match self.node {
            None => out,
            Some(node) => {
                *node.first.borrow_mut() = Output::of(&out);
                *node.apply.borrow_mut() = Some(Box::new(apply));
                out.with_grad_fn(&node, 0)
            }
        }
    }

    /// As [`Recorder::finish`] for several outputs.
    #[must_use]
    pub fn finish_many(
        self,
        outs: Vec<Tensor>,
        apply: impl FnMut(&Tape, &[Option<Tensor>]) -> Grads + 'static,
    ) -> Vec<Tensor> {
        match self.node {
            None => outs,
            Some(node) => {
                let mut all = outs.iter().map(Output::of);
                if let Some(first) = all.next() {
                    *node.first.borrow_mut() = first;
                }
                node.others.borrow_mut().extend(all);
                *node.apply.borrow_mut() = Some(Box::new(apply));
                (0u8..).zip(outs).map(|(i, o)| o.with_grad_fn(&node, i)).collect()
            }
        }
    }
}

/// The scope whose backward still belongs to the loss's column of the bill.
const LOSS: &str = "loss";

/// A ready node; the latest-created one runs first.
struct Ready(Rc<Node>);

impl PartialEq for Ready {
    fn eq(&self, other: &Self) -> bool {
        self.0.sequence == other.0.sequence
    }
}
impl Eq for Ready {}
impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Ready {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.0.sequence.cmp(&other.0.sequence)
    }
}

/// Runs backward from `root` with the gradient `grad`. Saved tensors are released node by node.
pub fn backward(tape: &Tape, root: &Tensor, grad: Tensor) {
    backward_all(tape, root.edge().map(|edge| (edge, grad)).into_iter().collect());
}

/// Runs backward from several roots, each with its gradient; inside a backward, before it goes on.
pub(crate) fn backward_all(tape: &Tape, roots: Vec<(Edge, Tensor)>) {
    tape.with_grad(false, || tape.on_backward_thread(|| tape.with_autocast_off(|| run(tape, roots))));
}

fn run(tape: &Tape, roots: Vec<(Edge, Tensor)>) {
    let mut ready = BinaryHeap::new();
    for (root, _) in &roots {
        // Roots of one node, and roots before others, are counted once.
        if !root.node.seen.get() {
            count_dependencies(&root.node);
        }
    }
    for (root, grad) in roots {
        root.node.with_output(root.output, |output| output.gradient = Some(grad));
        if root.node.waiting.get() == 0 && ready.iter().all(|Ready(node)| !Rc::ptr_eq(node, &root.node)) {
            ready.push(Ready(root.node));
        }
    }
    while let Some(Ready(node)) = ready.pop() {
        node.seen.set(false);
        let before = tape.set_scope(node.scope);
        if node.scope != LOSS {
            tape.leave_loss();
        }
        let first = node.first.borrow_mut().gradient.take();
        if let Some(gathers) = &node.gathers {
            gather(tape, gathers, first, &node.first.borrow().shape);
            tape.set_scope(before);
            continue;
        }
        tape.set_layer(node.layer);
        for hook in node.hooks.take() {
            hook(tape);
        }
        let apply = node.apply.take();
        let Some(mut apply) = apply else { continue };
        let others = node.others.take();
        let (mut one, mut all) = ([first], Vec::new());
        let inputs = if others.is_empty() {
            one.as_slice()
        } else {
            all.push(one[0].take());
            all.extend(others.into_iter().map(|output| output.gradient));
            &all
        };
        let mut outputs = apply(tape, inputs);
        let mut edges = node.edges.borrow_mut();
        for (edge, out) in edges.iter().zip(&mut outputs) {
            if let (Some(edge), Some(grad)) = (edge, out.take()) {
                *out = Some(validated(tape, edge, grad));
            }
        }
        // The node's inputs go first, then what it saved.
        drop((one, all));
        drop(apply);
        for (edge, grad) in edges.iter_mut().zip(&mut outputs) {
            let Some(edge) = edge.take() else { continue };
            if let Some(grad) = grad.take() {
                add_to_buffer(tape, &edge, grad);
            }
            let waiting = edge.node.waiting.get() - 1;
            edge.node.waiting.set(waiting);
            if waiting == 0 {
                ready.push(Ready(edge.node));
            }
        }
        *edges = Edges::default();
        drop(edges);
        tape.set_scope(before);
        if Rc::strong_count(&node) == 1 {
            tape.put_back_node(node);
        }
    }
}

fn count_dependencies(root: &Rc<Node>) {
    let mut stack = vec![root.clone()];
    root.seen.set(true);
    while let Some(node) = stack.pop() {
        for edge in node.edges.borrow().iter().flatten() {
            edge.node.waiting.set(edge.node.waiting.get() + 1);
            if !edge.node.seen.replace(true) {
                stack.push(edge.node.clone());
            }
        }
    }
}

/// The gradient as the edge's end wants it: summed over broadcast dimensions, cast to its dtype (`validate_outputs`).
fn validated(tape: &Tape, edge: &Edge, grad: Tensor) -> Tensor {
    let wanted = |o: &mut Output| ((!grad.shape().same_sizes(&o.shape)).then_some(o.shape), o.dtype);
    let Some((sizes, dtype)) = edge.node.with_output(edge.output, wanted) else { return grad };
    // A function's return value: the unsummed gradient is gone before the cast.
    let summed = |grad: Tensor, sizes| tape.sum_to(&grad, &sizes);
    let grad = match sizes {
        None => grad,
        Some(sizes) => summed(grad, sizes),
    };
    if grad.dtype() == dtype { grad } else { tape.cast_raw(&grad, dtype) }
}

fn add_to_buffer(tape: &Tape, edge: &Edge, grad: Tensor) {
    edge.node.with_output(edge.output, |output| {
        output.gradient = Some(match output.gradient.take() {
            None => grad,
            Some(old) if !edge.node.dtensor.get() && old.can_be_added_into() => old,
            Some(old) => {
                let shape = old.shape().ordered_like(&[old.shape(), grad.shape()]);
                let sum = tape.temp(shape, old.dtype(), "sum of gradients");
                drop(old);
                sum
            }
        });
    });
}

/// `AccumulateGrad`: the first gradient is taken as it is when nobody else holds it and it lies as the parameter does;
/// later ones are added in place.
fn gather(tape: &Tape, gathers: &Gradient, grad: Option<Tensor>, shape: &Shape) {
    let Some(grad) = grad else { return };
    if gathers.tensor.borrow().is_some() {
        // Added in place.
        drop(grad);
        gathers.call_hook(tape);
        return;
    }
    let grad = match gathers.dtype.get() {
        Some(dtype) if dtype != grad.dtype() => tape.cast_raw(&grad, dtype),
        _ => grad,
    };
    let kept = if grad.is_sole_reference() && grad.shape().lies_like(shape) {
        grad.detached()
    } else {
        tape.temp(*shape, grad.dtype(), "gradient")
    };
    if !gathers.of_activation.get() {
        tape.becomes(&kept, Part::Gradients);
    }
    *gathers.tensor.borrow_mut() = Some(kept);
    gathers.call_hook(tape);
}

impl Tape {
    /// Runs `hook` in backward when the gradient of `x` is there, before it goes on (`Tensor.register_hook`).
    pub(crate) fn before_gradient(&self, x: &Tensor, hook: PreHook) {
        if let Some(edge) = x.edge() {
            edge.node.hooks.borrow_mut().push(hook);
        }
    }

    /// `x` through a function of its own in the graph, whose backward runs `hook` and passes the gradient on.
    pub(crate) fn pass_through(&self, x: &Tensor, hook: PreHook) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        if !r.recorded() {
            return x.clone();
        }
        r.finish(x.alias(*x.shape()), move |tape, grads| {
            hook(tape);
            grads_of([grads.first().cloned().flatten()])
        })
    }
}

impl Recorder {
    /// `x` as a leaf that needs a gradient (`requires_grad_()` on an activation), and where its gradient gathers.
    pub(crate) fn force(x: &Tensor) -> (Tensor, Rc<Gradient>) {
        let gradient: Rc<Gradient> = Rc::default();
        gradient.of_activation.set(true);
        let node = Node::accumulate(gradient.clone(), *x.shape(), x.dtype());
        (x.detached().with_grad_fn(&node, 0), gradient)
    }
}
