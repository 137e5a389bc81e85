//! Tensors as PyTorch counts them: a handle to an impl, the impl's share of a storage. A storage is freed when its last
//! share goes away, which is what makes the log's lifetimes those of the framework.

use core::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::bill::Part;
use crate::step::autograd::{Edge, Gradient, Node};
use crate::step::log::{Event, Stream};
use crate::step::ops::Quantized;
use crate::step::parallel::tp::Split;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;

/// The element types in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dtype {
    /// Boolean, one byte.
    Bool,
    /// Bytes.
    U8,
    /// 32-bit integers.
    I32,
    /// 64-bit integers: token ids and labels.
    I64,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Single precision.
    F32,
}

impl Dtype {
    /// Bytes per element.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bool | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    /// Whether gradients can be of this type.
    #[must_use]
    pub const fn is_floating(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32)
    }

    /// What an operation over both gives (`torch.promote_types`): FP16 with BF16 is FP32.
    #[must_use]
    pub fn promoted(self, other: Self) -> Self {
        if self.is_half() && other.is_half() && self != other { Self::F32 } else { self.max(other) }
    }

    /// Whether it is a 16-bit floating type.
    #[must_use]
    pub const fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16)
    }
}

/// The number of a storage that the log does not know: what a stopped recomputation would have made.
const UNKNOWN: u32 = u32::MAX;

/// A share of memory that tensors share; how many shares there are, the log counts. Dropping the last one frees it.
#[derive(Debug)]
pub(crate) struct Storage {
    /// The number in the log, or [`UNKNOWN`]: two whole words, which move in registers.
    id: u32,
    tape: Tape,
}

impl Storage {
    pub(crate) fn new(id: Option<u32>, tape: &Tape) -> Self {
        Self { id: id.unwrap_or(UNKNOWN), tape: tape.clone() }
    }

    fn id(&self) -> Option<u32> {
        (self.id != UNKNOWN).then_some(self.id)
    }

    fn is_sole_share(&self) -> bool {
        self.tape.0.log.shares(self.id) == 1
    }
}

impl Clone for Storage {
    fn clone(&self) -> Self {
        self.tape.0.log.share(self.id);
        Self { id: self.id, tape: self.tape.clone() }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.tape.0.log.unshare(self.id);
    }
}

/// A trainable parameter's gradient and its place in the graph.
#[derive(Debug)]
pub(crate) struct Leaf {
    pub(crate) id: u32,
    /// The layer it belongs to, counted from 1; 0 is outside the layers.
    pub(crate) layer: u32,
    pub(crate) accumulate: Rc<Node>,
    pub(crate) grad: Rc<Gradient>,
    /// Whether it is trained. Adapters freeze the weights beneath them after the model is built.
    pub(crate) frozen: Cell<bool>,
    /// Whether it is a table or the output head, which some optimizers treat apart.
    pub(crate) table: Cell<Table>,
    /// Whether it is a linear layer's weight that lies [in, out].
    pub(crate) lies_in_out: Cell<bool>,
    /// The sizes of Adam-mini's second moments of it.
    pub(crate) second_moments: Cell<Option<Shape>>,
    /// How tensor-parallel ranks split it.
    pub(crate) split: Cell<Option<Split>>,
    /// The function whose view it is, where it is one of a larger tensor: its gradient goes there.
    pub(crate) through: RefCell<Option<Edge>>,
    /// The pair that runs beside this linear weight.
    pub(crate) adapter: RefCell<Option<Rc<Adapter>>>,
    /// The trained copies that run in its place: in a linear layer, in a look-up.
    pub(crate) copies: RefCell<[Option<Tensor>; 2]>,
    /// How this linear weight is kept in 4 or 8 bits.
    pub(crate) quantized: Option<Rc<Quantized>>,
}

/// What a matrix is besides a linear layer's weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Table {
    /// Nothing else.
    #[default]
    No,
    /// The weight of an `nn.Embedding`.
    Embedding,
    /// The weight of the output head.
    Head,
}
/// Where a trained copy runs in a weight's place.
pub(crate) const AS_LINEAR: usize = 0;
/// Where a trained copy runs in a look-up table's place.
pub(crate) const AS_TABLE: usize = 1;

/// A low-rank pair: A [r, in] and B [out, r].
#[derive(Debug)]
pub(crate) struct Adapter {
    pub(crate) a: Tensor,
    pub(crate) b: Tensor,
    /// DoRA's magnitude per output.
    pub(crate) magnitude: Option<Tensor>,
    pub(crate) dropout: f64,
}

/// What a tensor refers to. Records go round: a walk makes thousands, and few live at once.
#[derive(Debug)]
pub(crate) struct Impl {
    grad_fn: Option<Edge>,
    leaf: Option<Rc<Leaf>>,
    /// None while the record waits for reuse.
    storage: Option<Storage>,
    shape: Shape,
    dtype: Dtype,
    view: bool,
}

impl Impl {
    /// A record that no tensor uses.
    pub(crate) fn unused() -> Rc<Self> {
        Rc::new(Self {
            storage: None,
            shape: Shape::new(&[]),
            dtype: Dtype::U8,
            grad_fn: None,
            leaf: None,
            view: false,
        })
    }
}

/// A tensor. Cloning is another reference to the same impl, as assigning in Python is.
#[derive(Clone, Debug)]
pub struct Tensor(Rc<Impl>);

impl Drop for Tensor {
    fn drop(&mut self) {
        let Some(own) = Rc::get_mut(&mut self.0) else { return };
        let Some(storage) = own.storage.take() else { return };
        // What only the graph holds is freed first (`TensorImpl::release_resources`, c10).
        drop(own.grad_fn.take());
        drop(own.leaf.take());
        storage.tape.put_back(&mut self.0);
    }
}

impl Tensor {
    pub(crate) fn new(storage: Storage, shape: Shape, dtype: Dtype) -> Self {
        Self::made(storage, shape, dtype, None, None, false)
    }

    fn made(
        storage: Storage,
        shape: Shape,
        dtype: Dtype,
        grad_fn: Option<Edge>,
        leaf: Option<Rc<Leaf>>,
        view: bool,
    ) -> Self {
        let mut record = storage.tape.unused_record();
        if let Some(own) = Rc::get_mut(&mut record) {
            own.storage = Some(storage);
            own.shape = shape;
            own.dtype = dtype;
            own.grad_fn = grad_fn;
            own.leaf = leaf;
            own.view = view;
        }
        Self(record)
    }

    /// Another tensor over the same storage.
    fn sharing(&self, shape: Shape, grad_fn: Option<Edge>, view: bool) -> Self {
        match &self.0.storage {
            Some(storage) => Self::made(storage.clone(), shape, self.0.dtype, grad_fn, None, view),
            // Only records that wait for reuse have none.
            None => self.clone(),
        }
    }

    /// A trainable parameter of the model: a leaf that gathers a gradient.
    #[must_use]
    pub fn parameter(tape: &Tape, id: u32, shape: Shape, dtype: Dtype) -> Self {
        Self::leaf_of(tape, id, shape, dtype, Part::Weights, tape.parameters_name())
    }

    /// A leaf that serves `part`.
    pub(crate) fn leaf_of(tape: &Tape, id: u32, shape: Shape, dtype: Dtype, part: Part, op: &'static str) -> Self {
        let data = tape.empty(shape, dtype, part, op);
        Self::leaf_over(tape, &data, id, shape, None)
    }

    /// A leaf of sizes `shape` over `data`, whose memory may be laid out as a code for weights.
    pub(crate) fn leaf_over(tape: &Tape, data: &Self, id: u32, shape: Shape, quantized: Option<Rc<Quantized>>) -> Self {
        let dtype = data.dtype();
        let grad: Rc<Gradient> = Rc::default();
        let accumulate = Node::accumulate(grad.clone(), shape, dtype);
        let leaf = Leaf {
            id,
            layer: tape.layer(),
            accumulate,
            grad,
            frozen: Cell::new(false),
            table: Cell::default(),
            lies_in_out: Cell::default(),
            second_moments: Cell::default(),
            split: Cell::default(),
            through: RefCell::default(),
            adapter: RefCell::default(),
            copies: RefCell::default(),
            quantized,
        };
        let mut tensor = data.sharing(shape, None, false);
        if let Some(own) = Rc::get_mut(&mut tensor.0) {
            own.leaf = Some(Rc::new(leaf));
        }
        tensor
    }

    /// The same impl with a place in the graph. Only for outputs that nobody else holds yet.
    pub(crate) fn with_grad_fn(mut self, node: &Rc<Node>, output: u8) -> Self {
        let edge = Edge { node: node.clone(), output };
        if let Some(own) = Rc::get_mut(&mut self.0) {
            own.grad_fn = Some(edge);
            return self;
        }
        self.sharing(self.0.shape, Some(edge), self.0.view)
    }

    /// The same storage under another shape, outside the graph.
    pub(crate) fn alias(&self, shape: Shape) -> Self {
        self.sharing(shape, None, true)
    }

    /// The same storage and shape, outside the graph.
    #[must_use]
    pub fn detached(&self) -> Self {
        self.sharing(self.0.shape, None, self.0.view)
    }

    /// Sizes and strides.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// Dimension `i`.
    #[must_use]
    pub fn dim(&self, i: usize) -> Dim {
        self.0.shape.dims()[i]
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.0.dtype
    }

    /// Whether a gradient can flow to it.
    #[must_use]
    pub fn requires_grad(&self) -> bool {
        self.0.grad_fn.is_some() || self.is_trained()
    }

    /// Says that what follows belongs to this parameter's layer.
    pub(crate) fn enter_layer(&self, tape: &Tape) {
        if let Some(leaf) = self.leaf() {
            tape.set_layer(leaf.layer);
        }
    }

    /// Says that it is never trained.
    pub(crate) fn freeze(&self) {
        if let Some(leaf) = self.leaf() {
            leaf.frozen.set(true);
        }
    }

    /// Whether it is a parameter that is trained.
    pub(crate) fn is_trained(&self) -> bool {
        self.leaf().is_some_and(|leaf| !leaf.frozen.get())
    }

    pub(crate) fn leaf(&self) -> Option<&Rc<Leaf>> {
        self.0.leaf.as_ref()
    }

    /// Where a gradient for it goes.
    pub(crate) fn edge(&self) -> Option<Edge> {
        match (&self.0.grad_fn, &self.0.leaf) {
            (Some(edge), _) => Some(edge.clone()),
            (None, Some(leaf)) if leaf.frozen.get() => None,
            (None, Some(leaf)) => {
                let through = leaf.through.borrow().clone();
                Some(through.unwrap_or_else(|| Edge { node: leaf.accumulate.clone(), output: 0 }))
            }
            (None, None) => None,
        }
    }

    /// What runs in its place (`modules_to_save`), itself where nothing does.
    pub(crate) fn in_use(&self, at: usize) -> Self {
        let runs = self.0.storage.as_ref().is_some_and(|storage| storage.tape.adapters_run());
        let copy = self.leaf().filter(|_| runs).and_then(|leaf| leaf.copies.borrow()[at].clone());
        copy.unwrap_or_else(|| self.clone())
    }

    /// What tells this leaf from another: the node that gathers its gradient. None for what is no leaf, or is not trained.
    pub(crate) fn gathering_node(&self) -> Option<*const Node> {
        self.edge().filter(|edge| edge.node.gathers_here()).map(|edge| Rc::as_ptr(&edge.node))
    }

    /// Its storage has memory from here on.
    pub(crate) fn provide(&self) {
        if let Some(storage) = &self.0.storage
            && let Some(id) = storage.id()
        {
            storage.tape.0.log.provide(id);
        }
    }

    /// Its storage gives its memory back; whoever refers to it keeps the reference.
    pub(crate) fn withdraw(&self) {
        if let Some(storage) = &self.0.storage
            && let Some(id) = storage.id()
        {
            storage.tape.0.log.withdraw(id);
        }
    }

    /// `stream` uses it too (`record_stream`).
    pub(crate) fn used_on(&self, stream: Stream) {
        if let Some(storage) = &self.0.storage
            && let Some(id) = storage.id()
        {
            storage.tape.0.log.push(Event::Uses(id, stream));
        }
    }

    pub(crate) fn storage_id(&self) -> Option<u32> {
        self.0.storage.as_ref()?.id()
    }

    /// Whether the gradient engine may add into it: a plain tensor of which this is the only reference.
    /// (`can_accumulate_inplace`, torch/csrc/autograd/input_buffer.cpp. A gradient that came through a view is never
    /// added into: observed with PyTorch 2.15.)
    pub(crate) fn can_be_added_into(&self) -> bool {
        !self.0.view
            && Rc::strong_count(&self.0) == 1
            && self.0.storage.as_ref().is_some_and(Storage::is_sole_share)
            && self.0.shape.is_dense()
    }

    /// How many refer to it or to its storage.
    pub(crate) fn references(&self) -> usize {
        let shares = self.0.storage.as_ref().map_or(0, |storage| storage.tape.0.log.shares(storage.id));
        Rc::strong_count(&self.0).saturating_add(shares as usize)
    }

    /// Whether this is the only reference to the impl.
    pub(crate) fn is_sole_reference(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }
}
