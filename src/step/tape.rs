//! The tape: where operations run. It knows what PyTorch's thread-local state knows (grad mode, autocast and its cache
//! of casts, the saved-tensor hooks of checkpointing) and writes the log.

use core::any::Any;
use core::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::bill::{Instant, Part};
use crate::recipe::{Float8Scaling, LigerKernel};
use crate::step::autograd::Node;
use crate::step::checkpoint::Hooks;
use crate::step::log::{Belongs, Event, Log, Mark, Stream, Sync};
use crate::step::parallel::Wrapper;
use crate::step::parallel::tp::{Layout, flagged};
use crate::step::shape::{Dim, Shape};
use crate::step::tensor::{Dtype, Impl, Storage, Tensor};
use crate::versions::{LtWorkspace, Rules};

/// What the device and the framework version decide about an operation's temporaries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// Compute capability × 10: 80, 89, 90.
    pub sm: u32,
    /// Streaming multiprocessors; sizes some kernels' scratch.
    pub multiprocessors: u64,
    /// Whether cuBLAS workspaces outlive the call.
    pub workspace_kept: bool,
}

/// Something that the graph holds until its loss goes away.
pub(crate) struct Pinned(#[expect(dead_code, reason = "held for its lifetime")] Rc<dyn Any>);

impl core::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Pinned")
    }
}

/// Memory for what a walk makes by the thousand: records of tensors that are gone and nodes that have run. It goes from
/// walk to walk.
#[derive(Debug, Default)]
struct Spare {
    records: Vec<Rc<Impl>>,
    nodes: Vec<Rc<Node>>,
}

thread_local! {
    static SPARE: RefCell<Spare> = RefCell::default();
}

/// How much is kept, which is plenty for a short walk.
const MAX_SPARE: usize = 2048;

impl Drop for State {
    fn drop(&mut self) {
        let mut spare = self.spare.take();
        spare.records.truncate(MAX_SPARE);
        spare.nodes.truncate(MAX_SPARE);
        // Where the thread ends there is no next walk.
        let _ = SPARE.try_with(|kept| kept.replace(spare));
    }
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) log: Log,
    pub(crate) device: Device,
    rules: Rules,
    grad: Cell<bool>,
    autocast: Cell<Option<Dtype>>,
    /// Casts of FP32 leaves that autocast keeps until its outermost context ends.
    casts: RefCell<Vec<(*const Node, Tensor)>>,
    pub(crate) hooks: RefCell<Hooks>,
    pub(crate) stopped: Cell<bool>,
    graph_leaves: RefCell<Vec<Tensor>>,
    sequence: Cell<u64>,
    scope: Cell<&'static str>,
    layer: Cell<u32>,
    stream: Cell<Stream>,
    wrapper: RefCell<Option<Rc<dyn Wrapper>>>,
    tensor_parallel: Cell<Option<Layout>>,
    /// Whether operations run on DTensors.
    dtensors: Cell<bool>,
    positions: RefCell<Option<Tensor>>,
    instant: Cell<Instant>,
    inputs_need_grad: Cell<bool>,
    /// Whether low-rank pairs and trained copies run.
    adapters: Cell<bool>,
    /// What parameters that are built are called: whose they are.
    parameters: Cell<&'static str>,
    /// Parameters that are on the device already, by their place among the model's.
    supplied: RefCell<Vec<Tensor>>,
    float8: Cell<bool>,
    transformer_engine: Cell<Option<Float8Scaling>>,
    /// Which of Liger's kernels run, one bit each.
    liger: Cell<u8>,
    pinned: RefCell<Vec<Pinned>>,
    training: Cell<bool>,
    /// Whether this is the thread that runs backward: it has cuBLAS handles of its own.
    backward_thread: Cell<bool>,
    /// What cuBLAS keeps per thread, and what cuBLASLt keeps beside it.
    workspaces: RefCell<[Option<Tensor>; 4]>,
    spare: RefCell<Spare>,
    /// What takes a record's place in a tensor that goes.
    blank: Rc<Impl>,
}

/// A handle to the tape; clones are the same tape.
#[derive(Clone, Debug)]
pub struct Tape(pub(crate) Rc<State>);

impl Tape {
    /// An empty tape under the newest rules.
    #[must_use]
    pub fn new(device: Device) -> Self {
        Self::under(device, Rules::NEWEST)
    }

    /// An empty tape under the rules of some versions.
    #[must_use]
    pub fn under(device: Device, rules: Rules) -> Self {
        Self(Rc::new(State {
            log: Log::default(),
            device,
            rules,
            grad: Cell::new(true),
            autocast: Cell::new(None),
            casts: RefCell::default(),
            hooks: RefCell::default(),
            stopped: Cell::new(false),
            graph_leaves: RefCell::default(),
            sequence: Cell::new(0),
            scope: Cell::new(""),
            layer: Cell::new(0),
            stream: Cell::default(),
            wrapper: RefCell::default(),
            tensor_parallel: Cell::default(),
            dtensors: Cell::default(),
            positions: RefCell::default(),
            instant: Cell::new(Instant::Forward),
            inputs_need_grad: Cell::new(false),
            adapters: Cell::new(true),
            parameters: Cell::new(PARAMETER),
            supplied: RefCell::default(),
            float8: Cell::new(false),
            transformer_engine: Cell::new(None),
            liger: Cell::new(0),
            pinned: RefCell::default(),
            training: Cell::new(true),
            backward_thread: Cell::new(false),
            workspaces: RefCell::default(),
            spare: RefCell::new(SPARE.take()),
            blank: Impl::unused(),
        }))
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The rules of the plan's versions.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.0.rules
    }

    /// A new tensor, contiguous unless `shape` says otherwise, outside the graph.
    #[must_use]
    pub fn empty(&self, shape: Shape, dtype: Dtype, part: Part, op: &'static str) -> Tensor {
        let of = self.belonging(part);
        let id = (!self.0.stopped.get()).then(|| self.0.log.alloc(&shape, dtype.bytes(), of, op));
        Tensor::new(Storage::new(id, self), shape, dtype)
    }

    fn belonging(&self, part: Part) -> Belongs {
        Belongs { part, layer: self.0.layer.get(), scope: self.0.scope.get(), stream: self.0.stream.get() }
    }

    /// A tensor whose storage has no memory yet: see [`Tensor::provide`].
    pub(crate) fn absent(&self, shape: Shape, dtype: Dtype, part: Part, op: &'static str) -> Tensor {
        let id = self.0.log.register(&shape, dtype.bytes(), self.belonging(part), op);
        Tensor::new(Storage::new(Some(id), self), shape, dtype)
    }

    /// Runs `body` with `stream` as the current one.
    pub(crate) fn on_stream<T>(&self, stream: Stream, body: impl FnOnce() -> T) -> T {
        let before = self.0.stream.replace(stream);
        let out = body();
        self.0.stream.set(before);
        out
    }

    /// Says what wraps the model; nothing, at the end: the two hold each other.
    pub(crate) fn set_wrapper(&self, wrapper: Option<Rc<dyn Wrapper>>) {
        let before = self.0.wrapper.replace(wrapper);
        drop(before);
    }

    /// What wraps the model.
    pub(crate) fn wrapper(&self) -> Option<Rc<dyn Wrapper>> {
        self.0.wrapper.borrow().clone()
    }

    /// Says how tensor-parallel ranks share the model.
    pub(crate) fn set_tensor_parallel(&self, layout: Option<Layout>) {
        self.0.tensor_parallel.set(layout);
    }

    /// The positions that a loop gives the model; none: it makes its own.
    pub(crate) fn give_positions(&self, positions: Option<Tensor>) {
        let before = self.0.positions.replace(positions);
        drop(before);
    }

    pub(crate) fn given_positions(&self) -> Option<Tensor> {
        self.0.positions.borrow().clone()
    }

    pub(crate) fn tensor_parallel(&self) -> Option<Layout> {
        self.0.tensor_parallel.get()
    }

    /// Runs `body` on DTensors.
    pub(crate) fn as_dtensors<T>(&self, body: impl FnOnce() -> T) -> T {
        flagged(&self.0.dtensors, body)
    }

    pub(crate) fn runs_on_dtensors(&self) -> bool {
        self.0.dtensors.get()
    }

    /// Whether a backward is running.
    pub(crate) fn in_backward(&self) -> bool {
        self.0.backward_thread.get()
    }

    /// A record for a tensor.
    pub(crate) fn unused_record(&self) -> Rc<Impl> {
        self.0.spare.borrow_mut().records.pop().unwrap_or_else(Impl::unused)
    }

    /// Takes back the record of a tensor that goes.
    pub(crate) fn put_back(&self, record: &mut Rc<Impl>) {
        let record = core::mem::replace(record, self.0.blank.clone());
        self.0.spare.borrow_mut().records.push(record);
    }

    /// A node that nothing refers to.
    pub(crate) fn unused_node(&self) -> Rc<Node> {
        self.0.spare.borrow_mut().nodes.pop().unwrap_or_else(Node::unused)
    }

    /// Takes back a node that has run and that nothing refers to.
    pub(crate) fn put_back_node(&self, node: Rc<Node>) {
        self.0.spare.borrow_mut().nodes.push(node);
    }

    /// A temporary.
    #[must_use]
    pub fn temp(&self, shape: Shape, dtype: Dtype, op: &'static str) -> Tensor {
        self.empty(shape, dtype, Part::Temporary, op)
    }

    /// Says which parameters are on the device already; a model that is built takes them.
    pub(crate) fn supply(&self, weights: Vec<Tensor>) {
        *self.0.supplied.borrow_mut() = weights;
    }

    pub(crate) fn supplied(&self, place: usize) -> Option<Tensor> {
        self.0.supplied.borrow().get(place).cloned()
    }

    /// A buffer of the model, whose memory is counted where the model is built.
    #[must_use]
    pub fn buffer(&self, shape: Shape, dtype: Dtype) -> Tensor {
        Tensor::new(Storage::new(None, self), shape, dtype)
    }

    /// A temporary that gathers a gradient of its own (`requires_grad = True`). The graph holds it, and it its gradient,
    /// until the loss goes away; a recomputation's graph does not last.
    #[must_use]
    pub fn leaf_without_parameter(&self, shape: Shape, dtype: Dtype, op: &'static str) -> Tensor {
        let leaf = Tensor::leaf_of(self, u32::MAX, shape, dtype, Part::Temporary, op);
        if let Some(own) = leaf.leaf() {
            own.grad.of_activation.set(true);
        }
        if !self.0.hooks.borrow().recomputing() {
            self.0.graph_leaves.borrow_mut().push(leaf.clone());
        }
        leaf
    }

    /// Keeps what an autograd function holds as an attribute of its own, which backward does not release. What runs again
    /// during backward has a graph that ends there.
    pub(crate) fn hold(&self, tensor: &Tensor) {
        if !self.0.hooks.borrow().recomputing() && !self.0.backward_thread.get() {
            self.0.graph_leaves.borrow_mut().push(tensor.clone());
        }
    }

    /// Keeps `tensor` as long as the graph, which holds it beside what backward releases; a recomputation's does not last.
    pub(crate) fn keep_with_graph(&self, tensor: &Tensor) {
        if !self.0.hooks.borrow().recomputing() {
            self.0.graph_leaves.borrow_mut().push(tensor.clone());
        }
    }

    /// The leaves that the graph of the forward just run holds, for whoever holds its loss.
    pub(crate) fn take_graph_leaves(&self) -> Vec<Tensor> {
        self.0.graph_leaves.take()
    }

    /// `n` bytes of scratch.
    #[must_use]
    pub fn scratch(&self, n: u64, op: &'static str) -> Tensor {
        self.temp(Shape::new(&[Dim::plain(n)]), Dtype::U8, op)
    }

    /// Notes that `tensor`'s storage serves `part` from here on.
    pub(crate) fn becomes(&self, tensor: &Tensor, part: Part) {
        if let Some(id) = tensor.storage_id() {
            self.0.log.push(Event::Becomes(id, part));
        }
    }

    pub(crate) fn mark(&self, mark: Mark) {
        self.0.log.push(Event::Mark(mark));
    }

    pub(crate) fn enter(&self, instant: Instant) {
        self.0.instant.set(instant);
        self.0.log.push(Event::Enter(instant));
    }

    /// From the loss's backward to the layers'.
    pub(crate) fn leave_loss(&self) {
        if self.0.instant.get() == Instant::Loss {
            self.enter(Instant::Backward);
        }
    }

    /// The host waits for the device.
    pub(crate) fn synchronize(&self) {
        self.sync(Sync::Device);
    }

    /// A stream or the host waits.
    pub(crate) fn sync(&self, sync: Sync) {
        self.0.log.push(Event::Sync(sync));
    }

    pub(crate) fn empty_cache(&self) {
        self.0.log.push(Event::EmptyCache);
    }

    /// Names the module whose operations follow, and returns the name before.
    pub fn set_scope(&self, scope: &'static str) -> &'static str {
        self.0.scope.replace(scope)
    }

    /// Runs `body` with the module named.
    pub fn scope<T>(&self, scope: &'static str, body: impl FnOnce() -> T) -> T {
        let before = self.set_scope(scope);
        let out = body();
        self.set_scope(before);
        out
    }

    /// Says which layer's operations follow, counted from 1; 0 is outside the layers.
    pub fn set_layer(&self, layer: u32) {
        if self.0.layer.replace(layer) != layer {
            self.0.log.push(Event::Layer(layer));
        }
    }

    /// `enable_input_require_grads`: gradients flow to the output of the input embedding, so that checkpointed layers
    /// over frozen weights are run backward.
    pub(crate) fn set_inputs_need_grad(&self, on: bool) {
        self.0.inputs_need_grad.set(on);
    }

    /// `convert_model`: linear layers are Transformer Engine's, under its `fp8_autocast`.
    pub(crate) fn convert_to_te(&self, scaling: Option<Float8Scaling>) {
        self.0.transformer_engine.set(scaling);
    }

    pub(crate) fn transformer_engine(&self) -> Option<Float8Scaling> {
        self.0.transformer_engine.get()
    }

    /// `convert_to_float8_training`: linear layers run their products in FP8.
    pub(crate) fn convert_to_float8(&self, on: bool) {
        self.0.float8.set(on);
    }

    pub(crate) fn converts_to_float8(&self) -> bool {
        self.0.float8.get()
    }

    /// `apply_liger_kernel`: these kernels of Liger's run in the place of what transformers writes in Python.
    pub(crate) fn fuse(&self, kernels: &[LigerKernel]) {
        self.0.liger.set(kernels.iter().fold(0, |all, kernel| all | 1 << *kernel as u8));
    }

    /// Whether this kernel of Liger's runs.
    pub(crate) fn fuses(&self, kernel: LigerKernel) -> bool {
        self.0.liger.get() & 1 << kernel as u8 != 0
    }

    /// Keeps something that the graph refers to, beside what backward releases, until [`Tape::take_pinned`] is dropped.
    pub(crate) fn pin(&self, held: impl Any) {
        self.0.pinned.borrow_mut().push(Pinned(Rc::new(held)));
    }

    /// What was pinned since the last call: it goes with the loss.
    pub(crate) fn take_pinned(&self) -> Vec<Pinned> {
        self.0.pinned.take()
    }

    /// Runs `body` as an evaluation: without a graph, nothing dropped (`model.eval()`, `torch.no_grad()`).
    pub(crate) fn evaluating<T>(&self, body: impl FnOnce() -> T) -> T {
        self.0.training.set(false);
        let out = self.with_grad(false, body);
        self.0.training.set(true);
        out
    }

    /// Whether the model is in training.
    pub(crate) fn training(&self) -> bool {
        self.0.training.get()
    }

    /// The share that dropout drops: none in an evaluation.
    pub(crate) fn dropped(&self, p: f64) -> f64 {
        if self.0.training.get() { p } else { 0.0 }
    }

    /// Runs `body` with adapters off (`model.disable_adapter()`).
    pub(crate) fn without_adapters<T>(&self, body: impl FnOnce() -> T) -> T {
        self.0.adapters.set(false);
        let out = body();
        self.0.adapters.set(true);
        out
    }

    pub(crate) fn adapters_run(&self) -> bool {
        self.0.adapters.get()
    }

    /// Runs `body`, what it builds being `whose` parameters.
    pub(crate) fn building<T>(&self, whose: &'static str, body: impl FnOnce() -> T) -> T {
        let before = self.0.parameters.replace(whose);
        let out = body();
        self.0.parameters.set(before);
        out
    }

    pub(crate) fn parameters_name(&self) -> &'static str {
        self.0.parameters.get()
    }

    pub(crate) fn inputs_need_grad(&self) -> bool {
        self.0.inputs_need_grad.get()
    }

    pub(crate) fn layer(&self) -> u32 {
        self.0.layer.get()
    }

    pub(crate) fn scope_name(&self) -> &'static str {
        self.0.scope.get()
    }

    /// Whether operations record the graph.
    #[must_use]
    pub fn grad_enabled(&self) -> bool {
        self.0.grad.get()
    }

    /// Runs `body` with or without recording.
    pub fn with_grad<T>(&self, on: bool, body: impl FnOnce() -> T) -> T {
        let before = self.0.grad.replace(on);
        let out = body();
        self.0.grad.set(before);
        out
    }

    /// The dtype of `torch.autocast`, inside one.
    #[must_use]
    pub fn autocast(&self) -> Option<Dtype> {
        self.0.autocast.get()
    }

    /// Runs `body` under autocast to `dtype` (none: without); the outermost one drops its cache of casts at its end.
    pub fn with_autocast<T>(&self, dtype: Option<Dtype>, body: impl FnOnce() -> T) -> T {
        let before = self.0.autocast.replace(dtype);
        let out = body();
        self.0.autocast.set(before);
        if before.is_none() {
            let casts = self.0.casts.take();
            drop(casts);
        }
        out
    }

    pub(crate) fn cached_cast(&self, leaf: *const Node) -> Option<Tensor> {
        self.0.casts.borrow().iter().find(|(id, _)| *id == leaf).map(|(_, t)| t.clone())
    }

    pub(crate) fn cache_cast(&self, leaf: *const Node, cast: &Tensor) {
        self.0.casts.borrow_mut().push((leaf, cast.clone()));
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        let n = self.0.sequence.get();
        self.0.sequence.set(n + 1);
        n
    }

    /// Whether recomputation has all it needs and runs no further operation.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.0.stopped.get()
    }

    pub(crate) fn on_backward_thread<T>(&self, body: impl FnOnce() -> T) -> T {
        let before = self.0.backward_thread.replace(true);
        let out = body();
        self.0.backward_thread.set(before);
        out
    }

    /// The cuBLAS workspace that one product asks for. PyTorch 2.15 allocates it for the call; before, each thread's
    /// handle kept its own.
    pub(crate) fn blas_workspace(&self) -> Option<Tensor> {
        if self.stopped() {
            return None;
        }
        let n = if self.0.device.sm >= 90 { BLAS_WORKSPACE_HOPPER } else { BLAS_WORKSPACE };
        if !self.0.device.workspace_kept {
            return Some(self.scratch(n, "cuBLAS workspace"));
        }
        self.keep_workspace(0, n, "cuBLAS workspace");
        None
    }

    /// Scratch of one cuBLASLt product: 1 MiB on every generation (`CUBLASLT_WORKSPACE_SIZE`, ATen/cuda/CUDABlas.cpp;
    /// recorded with PyTorch 2.15 on compute capabilities 8.0, 8.9, 9.0 and 10.0). Where cuBLAS workspaces are kept, it
    /// depends on the version ([`LtWorkspace`]); shared with cuBLAS, as recorded with PyTorch 2.15 and
    /// `TORCH_CUBLAS_WORKSPACE_CACHE=1`.
    pub(crate) fn blas_lt_workspace(&self) -> Option<Tensor> {
        const LABEL: &str = "cuBLASLt workspace";
        if self.stopped() {
            return None;
        }
        if !self.0.device.workspace_kept {
            return Some(self.scratch(BLAS_LT_WORKSPACE, LABEL));
        }
        // cuBLASLt's handle is cuBLAS's, which comes with its workspace (`getCurrentCUDABlasLtHandle`).
        let shared = self.blas_workspace();
        match self.0.rules.lt_workspace {
            LtWorkspace::Shared => shared,
            LtWorkspace::Kept => {
                self.keep_workspace(2, BLAS_LT_WORKSPACE, LABEL);
                None
            }
            LtWorkspace::PerCall => Some(self.scratch(BLAS_LT_WORKSPACE, LABEL)),
        }
    }

    /// Allocates this thread's workspace of a library, whose slots begin at `first`, unless it exists.
    fn keep_workspace(&self, first: usize, n: u64, label: &'static str) {
        let slot = first + usize::from(self.0.backward_thread.get());
        if self.0.workspaces.borrow()[slot].is_none() {
            let workspace = self.scratch(n, label);
            self.0.workspaces.borrow_mut()[slot] = Some(workspace);
        }
    }

    pub(crate) fn with_autocast_off<T>(&self, body: impl FnOnce() -> T) -> T {
        let before = self.0.autocast.replace(None);
        let out = body();
        self.0.autocast.set(before);
        out
    }

    pub(crate) fn node_is_recorded(&self) -> bool {
        self.grad_enabled() && !self.stopped()
    }

    pub(crate) fn drop_workspaces(&self) {
        let kept = self.0.workspaces.take();
        drop(kept);
    }
}

/// What the trained model's parameters are called.
pub(crate) const PARAMETER: &str = "parameter";
/// cuBLASLt workspace.
const BLAS_LT_WORKSPACE: u64 = 1 << 20;
/// cuBLAS workspace before Hopper: `:4096:2:16:8`, 8 MiB and 128 KiB (`getChosenWorkspaceSize`, ATen/cuda).
const BLAS_WORKSPACE: u64 = 2 * 4096 * 1024 + 8 * 16 * 1024;
/// cuBLAS workspace from Hopper on: `:4096:8`, 32 MiB.
const BLAS_WORKSPACE_HOPPER: u64 = 8 * 4096 * 1024;
