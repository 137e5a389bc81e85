//! ResNet as torchvision 0.29 has it (`torchvision/models/resnet.py`), at 224 × 224 pixels and 1000 classes. A micro-batch
//! is of images: a recipe's sequence length and attention mean nothing here. The loss is the cross entropy that the
//! loop takes of the model's output. What cuDNN asks for as workspace depends on the plan that it picks and is not
//! counted.

use serde_json::{Map, Value};

use crate::bill::{Instant, Part};
use crate::issue::{Issue, IssueKind};
use crate::model::family::common::Run;
use crate::model::family::{Built, Dimensions, Model, Parameter, Parameters, matrix, vector};
use crate::model::fields::Fields;
use crate::recipe::{Checkpointing, Recipe};
use crate::step::ops::Window;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

const IMAGE: u64 = 224;
const CLASSES: u64 = 1000;
/// Channels after the first convolution.
const STEM: u64 = 64;

/// A ResNet by its depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ResNet {
    name: &'static str,
    /// Blocks of each stage.
    blocks: [u64; 4],
    /// Whether a block narrows by four, convolves, and widens again; else it convolves twice.
    bottleneck: bool,
}

const KNOWN: [ResNet; 5] = [
    ResNet { name: "resnet18", blocks: [2, 2, 2, 2], bottleneck: false },
    ResNet { name: "resnet34", blocks: [3, 4, 6, 3], bottleneck: false },
    ResNet { name: "resnet50", blocks: [3, 4, 6, 3], bottleneck: true },
    ResNet { name: "resnet101", blocks: [3, 4, 23, 3], bottleneck: true },
    ResNet { name: "resnet152", blocks: [3, 8, 36, 3], bottleneck: true },
];

/// A config that is no more than the name of torchvision's function.
pub(super) fn read(config: &Map<String, Value>) -> Result<Box<dyn Model>, Vec<Issue>> {
    let mut f = Fields::new(config);
    let name = config.get("architectures").and_then(|a| a.get(0)).or_else(|| config.get("model_type"));
    let known = KNOWN.into_iter().find(|known| name.and_then(Value::as_str) == Some(known.name));
    if known.is_none() {
        f.refuse("architectures", "this ResNet");
    }
    for name in config.keys().filter(|k| !matches!(k.as_str(), "architectures" | "model_type")) {
        f.refuse(name, "a ResNet other than torchvision's own");
    }
    f.finish(Box::new(known.unwrap_or(KNOWN[2])) as Box<dyn Model>)
}

/// A convolution without a bias and the batch norm after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unit {
    from: u64,
    to: u64,
    window: Window,
}

impl Unit {
    const fn new(from: u64, to: u64, size: u64, stride: u64) -> Self {
        Self { from, to, window: Window { size, stride, padding: size / 2 } }
    }

    fn shapes(self) -> [Shape; 3] {
        let (to, k) = (Dim::plain(self.to), Dim::plain(self.window.size));
        [Shape::new(&[to, Dim::plain(self.from), k, k]), vector(to), vector(to)]
    }
}

/// A block's units in order, and the one on its shortcut where sizes change.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BlockPlan {
    units: Vec<Unit>,
    shortcut: Option<Unit>,
}

impl ResNet {
    const fn stem() -> Unit {
        Unit::new(3, STEM, 7, 2)
    }

    const fn expansion(self) -> u64 {
        if self.bottleneck { 4 } else { 1 }
    }

    fn plans(self) -> Vec<BlockPlan> {
        let mut plans = Vec::new();
        let mut from = STEM;
        let widths = [64, 128, 256, 512];
        for (stage, (width, blocks)) in widths.into_iter().zip(self.blocks).enumerate() {
            let to = width * self.expansion();
            for i in 0..blocks {
                let stride = if stage > 0 && i == 0 { 2 } else { 1 };
                let units = if self.bottleneck {
                    vec![Unit::new(from, width, 1, 1), Unit::new(width, width, 3, stride), Unit::new(width, to, 1, 1)]
                } else {
                    vec![Unit::new(from, width, 3, stride), Unit::new(width, to, 3, 1)]
                };
                let shortcut = (stride != 1 || from != to).then(|| Unit::new(from, to, 1, stride));
                plans.push(BlockPlan { units, shortcut });
                from = to;
            }
        }
        plans
    }

    fn head_shapes(self) -> [Shape; 2] {
        let classes = Dim::plain(CLASSES);
        [matrix(classes, Dim::plain(512 * self.expansion())), vector(classes)]
    }

    /// Every convolution with its norm, in registration order.
    fn units(self) -> Vec<Unit> {
        let mut all = vec![Self::stem()];
        for plan in self.plans() {
            all.extend(plan.units);
            all.extend(plan.shortcut);
        }
        all
    }
}

impl Model for ResNet {
    fn family(&self) -> &'static str {
        self.name
    }

    fn parameters(&self) -> Vec<Parameter> {
        // Autocast casts a convolution's weight as it does a linear layer's.
        let of = |shape: Shape| Parameter { shape, linear: shape.rank() > 1, lookup_only: false };
        self.units().into_iter().flat_map(Unit::shapes).chain(self.head_shapes()).map(of).collect()
    }

    fn buffers(&self) -> Vec<u64> {
        // Running mean and variance, and the count of batches: a 64-bit integer.
        self.units().into_iter().flat_map(|unit| [unit.to, unit.to, 2]).collect()
    }

    fn buffer_bytes(&self, weights: Dtype) -> Vec<u64> {
        self.units().into_iter().flat_map(|unit| [weights.bytes() * unit.to, weights.bytes() * unit.to, 8]).collect()
    }

    fn dimensions(&self) -> Dimensions {
        let width = 512 * self.expansion();
        Dimensions { layers: self.layers(), hidden: width, query_width: 0, vocabulary: CLASSES }
    }

    fn max_positions(&self) -> Option<u64> {
        None
    }

    fn refusals(&self, recipe: &Recipe) -> Vec<Issue> {
        let refused = |field: &str, what: &str| Issue::new(field, IssueKind::NotModelled { what: what.into() });
        let mut issues = Vec::new();
        if recipe.checkpointing != Checkpointing::None {
            issues.push(refused("recipe.checkpointing", "checkpointing in torchvision's ResNet, which has none"));
        }
        if recipe.eval_after {
            issues.push(refused("recipe.eval_after", "evaluation of batch norm"));
        }
        issues
    }

    fn symbols(&self, recipe: &Recipe) -> Vec<(&'static str, u64)> {
        vec![("b", recipe.micro_batch)]
    }

    fn layers(&self) -> u64 {
        self.blocks.iter().sum()
    }

    /// Blocks differ in sizes from stage to stage.
    fn with_layers(&self, _layers: u64) -> Option<Box<dyn Model>> {
        None
    }

    fn counts_tokens(&self) -> bool {
        false
    }

    fn build(&self, tape: &Tape, dtype: Dtype) -> Box<dyn Built> {
        let mut builder = Builder::new(*self, tape, dtype);
        let before = tape.set_scope("stem");
        let stem = builder.unit(Self::stem());
        tape.set_scope("layers");
        let mut blocks = Vec::new();
        // A shortcut is made before its block (`_make_layer`, torchvision/models/resnet.py) and listed after it.
        let mut turned = Vec::new();
        for (i, plan) in (1u32..).zip(self.plans()) {
            tape.set_layer(i);
            let start = builder.all.count();
            let early = plan.shortcut.filter(|_| dtype == Dtype::F32).map(|u| builder.unit(u));
            let middle = builder.all.count();
            let units = plan.units.into_iter().map(|u| builder.unit(u)).collect();
            let late = plan.shortcut.filter(|_| early.is_none()).map(|u| builder.unit(u));
            turned.push((start, middle, builder.all.count()));
            blocks.push(Block { units, shortcut: early.or(late) });
        }
        tape.set_layer(0);
        tape.set_scope("head");
        let head = self.head_shapes().map(|s| builder.parameter(s));
        tape.set_scope(before);
        let mut weights = builder.all.finish();
        for (start, middle, end) in turned {
            weights[start..end].rotate_left(middle - start);
        }
        Box::new(BuiltResNet { stem, blocks, head, dtype, weights })
    }
}

/// A unit's tensors that are converted: its weights, and the running mean and variance.
const TENSORS: usize = 5;

/// Puts parameters and buffers on the tape in registration order. In half precision the model is first built in FP32
/// and then converted (`Module.to`), tensor by tensor: a new one is made before the old one goes.
struct Builder<'a> {
    tape: &'a Tape,
    dtype: Dtype,
    all: Parameters<'a>,
    /// What the conversion replaces, the next one last.
    unconverted: Vec<Tensor>,
    /// The counts of batches, which the conversion leaves alone, the next one last.
    counts: Vec<Tensor>,
}

impl<'a> Builder<'a> {
    fn new(model: ResNet, tape: &'a Tape, dtype: Dtype) -> Self {
        let mut builder =
            Self { tape, dtype, all: Parameters::new(tape, dtype), unconverted: Vec::new(), counts: Vec::new() };
        if dtype != Dtype::F32 {
            builder.unconverted_unit(ResNet::stem());
            for plan in model.plans() {
                let (at, counted) = (builder.unconverted.len(), builder.counts.len());
                let first = usize::from(plan.shortcut.is_some());
                plan.shortcut.into_iter().chain(plan.units).for_each(|unit| builder.unconverted_unit(unit));
                // Converted in the order of registration: the shortcut last.
                builder.unconverted[at..].rotate_left(first * TENSORS);
                builder.counts[counted..].rotate_left(first);
            }
            for shape in model.head_shapes() {
                builder.unconverted.push(tape.empty(shape, Dtype::F32, Part::Weights, "parameter"));
            }
            builder.unconverted.reverse();
            builder.counts.reverse();
        }
        builder
    }

    fn unconverted_unit(&mut self, unit: Unit) {
        let channels = vector(Dim::plain(unit.to));
        for shape in unit.shapes().into_iter().chain([channels, channels]) {
            self.unconverted.push(self.tape.empty(shape, Dtype::F32, Part::Weights, "parameter"));
        }
        self.counts.push(self.count());
    }

    fn count(&self) -> Tensor {
        self.tape.empty(Shape::new(&[]), Dtype::I64, Part::Weights, "buffer")
    }

    fn parameter(&mut self, shape: Shape) -> Tensor {
        let made = self.all.add(shape);
        drop(self.unconverted.pop());
        made
    }

    fn unit(&mut self, plan: Unit) -> BuiltUnit {
        let weights = plan.shapes().map(|s| self.parameter(s));
        let running = [(); 2].map(|()| {
            let made = self.tape.empty(vector(Dim::plain(plan.to)), self.dtype, Part::Weights, "buffer");
            drop(self.unconverted.pop());
            made
        });
        let count = self.counts.pop().unwrap_or_else(|| self.count());
        BuiltUnit { window: plan.window, weights, _running: running, _count: count }
    }
}

struct BuiltUnit {
    window: Window,
    weights: [Tensor; 3],
    /// Mean and variance, updated in place.
    _running: [Tensor; 2],
    _count: Tensor,
}

impl BuiltUnit {
    fn run(&self, t: &Tape, x: &Tensor) -> Tensor {
        let out = t.convolution(x, &self.weights[0], None, self.window);
        t.batch_norm(&out, &self.weights[1], &self.weights[2])
    }
}

struct Block {
    units: Vec<BuiltUnit>,
    shortcut: Option<BuiltUnit>,
}

impl Block {
    fn run(&self, t: &Tape, x: &Tensor) -> Tensor {
        let mut identity = x.clone();
        let mut out = x.clone();
        for (i, unit) in self.units.iter().enumerate() {
            out = unit.run(t, &out);
            if i + 1 < self.units.len() {
                out = t.relu_in_place(&out);
            }
        }
        if let Some(shortcut) = &self.shortcut {
            identity = shortcut.run(t, x);
        }
        out = t.add_in_place(&out, &identity);
        out = t.relu_in_place(&out);
        drop(identity);
        out
    }
}

struct BuiltResNet {
    stem: BuiltUnit,
    blocks: Vec<Block>,
    head: [Tensor; 2],
    dtype: Dtype,
    weights: Vec<Tensor>,
}

impl Built for BuiltResNet {
    fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    fn holds_buffers(&self) -> bool {
        true
    }

    fn batch(&self, run: &Run) -> Vec<Tensor> {
        let side = Dim::plain(IMAGE);
        let sizes = Shape::new(&[run.batch, Dim::plain(3), side, side]);
        let pixels = run.tape.empty(sizes, self.dtype, Part::Activations, "pixels");
        vec![pixels, run.integers(&[run.batch], "labels")]
    }

    fn forward(&self, run: &Run, batch: &[Tensor]) -> (Tensor, Tensor) {
        let (t, pixels, labels) = (&run.tape, &batch[0], &batch[1]);
        let before = t.set_scope("stem");
        let mut x = self.stem.run(t, pixels);
        x = t.relu_in_place(&x);
        x = t.max_pool(&x, Window { size: 3, stride: 2, padding: 1 });
        t.set_scope("layers");
        for (i, block) in (1u32..).zip(&self.blocks) {
            t.set_layer(i);
            x = block.run(t, &x);
        }
        t.set_layer(0);
        t.set_scope("head");
        x = t.mean_of_channels(&x);
        x = t.reshape(&x, &[x.dim(0), x.dim(1)]);
        let logits = t.linear(&x, &self.head[0], Some(&self.head[1]));
        drop(x);
        t.set_scope(before);
        t.enter(Instant::Loss);
        let loss = t.scope("loss", || t.cross_entropy(&logits, labels));
        (loss, logits)
    }
}
