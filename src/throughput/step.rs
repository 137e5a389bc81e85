//! Seconds of a training step, part by part.

use serde::{Deserialize, Serialize};

use super::card::{Card, Compute, Stack, figure};
use super::kernel::{Sizes, Units, moved, product};
use super::layout::{Layout, Shard};
use super::link::Group;
use super::net::{Net, Product};

/// What of a layer's forward is run again in backward, as shares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Again {
    /// Of the matrix products.
    pub products: f64,
    /// Of attention's own products.
    pub attention: f64,
    /// Of what only moves bytes.
    pub pointwise: f64,
}

impl Again {
    /// A share of the layers, whole.
    #[must_use]
    pub const fn layers(share: f64) -> Self {
        Self { products: share, attention: share, pointwise: share }
    }
}

/// What is trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trained {
    /// A share of the weights; the others have no gradients.
    Share(f64),
    /// Adapters over frozen weights.
    Adapters {
        /// Their parameters.
        parameters: f64,
        /// The inputs of the layers they are on, added up.
        inputs: f64,
        /// The outputs.
        outputs: f64,
        /// Whether the head and the embedding are trained beside them.
        ends: bool,
    },
}

/// How a step runs on one rank.
#[derive(Clone, Debug)]
pub struct Run {
    /// The products' dtype.
    pub compute: Compute,
    /// Whether the layers' products run in FP8; with a scale per row or block rather than per tensor.
    pub float8: Option<bool>,
    /// The stack of kernels.
    pub stack: Stack,
    /// Whether attention's scores are never whole.
    pub flash: bool,
    /// What is run again.
    pub again: Again,
    /// Sequences of a micro-batch.
    pub micro_batch: f64,
    /// Tokens of a sequence.
    pub seq_len: f64,
    /// Micro-batches of a step.
    pub accumulation: f64,
    /// What is trained.
    pub trained: Trained,
    /// Bytes that making a quantised weight whole moves, each pass. 0: they are not quantised.
    pub dequantize: f64,
    /// Bytes a parameter that each micro-batch moves to cast weights and gradients (autocast).
    pub cast: f64,
    /// Bytes a trained parameter that adding up gradients moves in each micro-batch but the first.
    pub accumulate: f64,
    /// Bytes a trained parameter that the optimizer moves.
    pub optimizer: f64,
    /// Bytes a token and layer that go to host memory in forward and come back in backward.
    pub offloaded: f64,
}

/// The parts of a step's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// Matrix products of the layers.
    Products,
    /// Attention's products and scores.
    Attention,
    /// Norms, activations, residuals: what only moves bytes.
    Pointwise,
    /// The head and the loss.
    Vocabulary,
    /// What is run again.
    Again,
    /// Adapters' own products and sums.
    Adapters,
    /// Making quantised weights whole.
    Dequantize,
    /// Casting weights and adding up gradients.
    Gradients,
    /// Waiting for the host to launch kernels.
    Launch,
    /// Tensor parallelism's communication.
    Tensor,
    /// Context parallelism's.
    Context,
    /// Routing tokens to experts on other ranks.
    Expert,
    /// The pipeline's bubble and its sends.
    Pipeline,
    /// Data parallelism's communication that nothing hides.
    Data,
    /// Copies to and from host memory that nothing hides.
    Transfer,
    /// The optimizer's step.
    Optimizer,
}

impl Share {
    /// Every part, in the order of a step.
    pub const ALL: [Self; 16] = [
        Self::Products,
        Self::Attention,
        Self::Pointwise,
        Self::Vocabulary,
        Self::Again,
        Self::Adapters,
        Self::Dequantize,
        Self::Gradients,
        Self::Launch,
        Self::Tensor,
        Self::Context,
        Self::Expert,
        Self::Pipeline,
        Self::Data,
        Self::Transfer,
        Self::Optimizer,
    ];
}

/// Seconds of a step by part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times([f64; Share::ALL.len()]);

impl Times {
    /// Seconds of a part.
    #[must_use]
    pub fn get(&self, share: Share) -> f64 {
        self.0[share as usize]
    }

    /// Seconds of the step.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    fn add(&mut self, share: Share, seconds: f64) {
        self.0[share as usize] += seconds;
    }
}

/// Forward and backward of something, seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Both {
    forward: f64,
    backward: f64,
}

impl Both {
    fn sum(self) -> f64 {
        self.forward + self.backward
    }

    fn plus(self, other: Self) -> Self {
        Self { forward: self.forward + other.forward, backward: self.backward + other.backward }
    }
}

/// The time of one optimizer step.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts of ranks")]
pub fn time(net: &Net, run: &Run, layout: &Layout, card: &Card) -> Times {
    let step = Step {
        net,
        run,
        layout,
        card,
        tensor: layout.tensor as f64,
        // Tokens that one rank computes over.
        tokens: (run.micro_batch * run.seq_len / layout.context as f64).max(1.0),
        scale: run.compute.width() / 2.0,
    };
    step.times()
}

struct Step<'a> {
    net: &'a Net,
    run: &'a Run,
    layout: &'a Layout,
    card: &'a Card,
    tensor: f64,
    tokens: f64,
    /// Bytes of an element over two.
    scale: f64,
}

impl Step<'_> {
    #[expect(clippy::cast_precision_loss, reason = "counts of ranks")]
    fn times(&self) -> Times {
        let Self { net, run, layout, card, .. } = *self;
        let mut of = Times::default();
        let stages = layout.pipeline as f64;
        let products = self.products();
        let attention = self.attention();
        let pointwise = self.pointwise();
        let experts = self.route();
        let again = run.again.products * products.forward
            + run.again.attention * attention.forward
            + run.again.pointwise * (pointwise.forward + experts.forward);
        let (head, loss) = self.head();
        let adapters = self.adapters();
        let passes = 2.0 + run.again.products;
        let local = self.local_parameters();
        let dequantize = moved(card, run.dequantize * passes * local.layers);
        let tensor = self.tensor_parallel();
        let context = self.context_parallel();

        // One micro-batch of the layers, then of one stage of them.
        let layers = products.plus(attention).plus(pointwise);
        let middle = (layers.sum() + again + adapters + dequantize + tensor + context + experts.sum()) / stages;
        let last = middle + head.sum() + loss;
        let floor = self.launch() / stages;
        let micro = run.accumulation;
        of.add(Share::Products, micro * products.sum() / stages);
        of.add(Share::Attention, micro * attention.sum() / stages);
        of.add(Share::Pointwise, micro * pointwise.sum() / stages);
        of.add(Share::Vocabulary, micro * (head.sum() + loss));
        of.add(Share::Again, micro * again / stages);
        of.add(Share::Adapters, micro * adapters / stages);
        of.add(Share::Dequantize, micro * dequantize / stages);
        of.add(Share::Tensor, micro * tensor / stages);
        of.add(Share::Context, micro * context / stages);
        of.add(Share::Expert, micro * experts.sum() / stages);
        // Host and device wait for each other at every synchronisation: where they are near each other, a step takes longer
        // than the slower of them. A mean of fourth powers, which is a judgement.
        let together = |device: f64| (device.powi(4) + floor.powi(4)).sqrt().sqrt();
        of.add(Share::Launch, micro * (together(last) - last));
        if layout.pipeline > 1 {
            let bubble = (stages - 1.0) / layout.chunks as f64 * together(middle);
            let ends = Group::of(layout, layout.pipeline, layout.tensor * layout.context * layout.data);
            let bytes = 2.0 * self.scale * self.tokens * net.hidden / self.tensor;
            let sends = 2.0 * (micro + stages) * layout.chunks as f64 * ends.send(card, layout, bytes);
            // A stage sends while it computes on the next micro-batch; a third of it shows.
            of.add(Share::Pipeline, bubble + sends / 3.0);
        }

        let held = local.all();
        let whole = matches!(layout.shard, Shard::Kept | Shard::Everything);
        let trained = match run.trained {
            Trained::Share(share) => share * held,
            Trained::Adapters { parameters, ends, .. } => {
                parameters / self.tensor + if ends { local.ends } else { 0.0 }
            }
        };
        let forward = (layers.forward + experts.forward) / stages + head.forward;
        let backward = (layers.backward + experts.backward + again) / stages + head.backward + loss;
        of.add(Share::Data, self.data_parallel(held, trained, forward, backward));
        if whole && layout.data > 1 {
            // Its kernels take processors from the others'.
            let slowed = (card.busy - 1.0) * micro * last;
            of.add(Share::Data, slowed);
        }
        let nodes = (layout.world as f64 / layout.gpus_per_node as f64).max(1.0);
        of.add(Share::Data, card.straggling * nodes.log2() * of.total());
        let shared = if layout.shard == Shard::Nothing { 1.0 } else { layout.shard_ranks as f64 };
        let cast = if whole { run.cast / shared } else { run.cast };
        let added = if whole { 0.0 } else { (micro - 1.0) * run.accumulate };
        of.add(Share::Gradients, moved(card, micro * cast * held + added * trained));

        let stepped = trained / shared;
        if layout.optimizer_on_host {
            // Gradients down, weights up, and the host's own step over all that the node holds.
            of.add(Share::Transfer, 2.0 * 2.0 * self.scale * stepped / card.host);
            let node = stepped * layout.gpus_per_node.min(layout.world) as f64;
            of.add(Share::Optimizer, node / card.host_parameters);
        } else {
            of.add(Share::Optimizer, moved(card, run.optimizer * stepped));
        }
        let up = if layout.parameters_on_host { 2.0 * self.scale * held / shared } else { 0.0 };
        let copied = run.offloaded * self.tokens * net.layers / stages;
        for (bytes, hidden_by) in [(up + copied, forward), (up + copied, backward)] {
            of.add(Share::Transfer, micro * (bytes / card.host - hidden_by).max(0.0));
        }
        of
    }

    fn units(&self) -> Units {
        match self.run.float8 {
            None => Units::Plain,
            Some(false) => Units::Float8,
            Some(true) => Units::Rowwise,
        }
    }

    /// Share of the weights that have gradients.
    fn with_gradients(&self) -> f64 {
        match self.run.trained {
            Trained::Share(share) => share,
            Trained::Adapters { .. } => 0.0,
        }
    }

    /// Forward, the gradients of the inputs, and those of the weights where they are trained.
    fn three(&self, m: f64, outputs: f64, inputs: f64, units: Units, with_gradients: f64) -> Both {
        let of = |m, n, k| product(self.card, Sizes { m, n, k }, units);
        Both {
            forward: of(m, outputs, inputs),
            backward: of(m, inputs, outputs) + with_gradients * of(outputs, inputs, m),
        }
    }

    /// A product's sizes on one of the ranks that share it: onto the hidden width its inputs are split, else its outputs.
    fn split(&self, p: &Product) -> (f64, f64) {
        let onto = p.outputs == self.net.hidden && p.inputs != self.net.hidden;
        if onto {
            (p.outputs, (p.inputs / self.tensor).max(1.0))
        } else {
            ((p.outputs / self.tensor).max(1.0), p.inputs)
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of ranks")]
    fn products(&self) -> Both {
        let mut sum = Both::default();
        for p in &self.net.products {
            let (m, outputs, inputs, times) = match (p.expert, self.net.experts) {
                (true, Some(e)) => {
                    // Tokens spread evenly; an expert's matrices are whole on the rank that holds it.
                    let m = (self.tokens * e.per_token / e.count * self.layout.expert as f64).max(1.0);
                    (m, p.outputs, p.inputs, p.times / self.layout.expert as f64)
                }
                _ => {
                    let (outputs, inputs) = self.split(p);
                    (self.tokens, outputs, inputs, p.times)
                }
            };
            let one = self.three(m, outputs, inputs, self.units(), self.with_gradients());
            sum = sum.plus(Both { forward: one.forward * times, backward: one.backward * times });
        }
        sum
    }

    fn attention(&self) -> Both {
        let Self { net, run, card, .. } = *self;
        let flops = 2.0 * (net.query + net.value) * run.seq_len * self.tokens * net.layers / self.tensor;
        if run.flash {
            // Backward has five products for forward's two.
            let causal = if net.causal { 0.5 } else { 1.0 };
            let slower = if run.stack.flash > 1.0 || card.newest_attention { run.stack.flash } else { 1.0 };
            let [forward, backward] = card.attention.map(|share| causal * flops * slower / (card.peak * share));
            return Both { forward, backward: 2.5 * backward };
        }
        let size = net.query / net.heads.max(1.0);
        let rate = card.rate(Units::Plain) * size / (size + 64.0);
        let scores = net.heads * run.seq_len * self.tokens * net.layers * 2.0 * self.scale / self.tensor;
        let [forward, backward] = run.stack.scores.map(|passes| moved(card, passes * scores));
        Both { forward: flops / rate + forward, backward: 2.0 * flops / rate + backward }
    }

    /// What only moves bytes. Sequence parallelism splits what tensor parallelism does not.
    fn pointwise(&self) -> Both {
        let Self { net, run, card, .. } = *self;
        let of = |way: usize| {
            let layers = run.stack.hidden[way] * net.hidden + run.stack.heads[way] * (net.query + net.keys);
            moved(
                card,
                (layers * net.layers + run.stack.inner[way] * net.inner) * self.tokens * self.scale / self.tensor,
            )
        };
        Both { forward: of(0), backward: of(1) }
    }

    /// Sorting tokens by expert, and sending them to the ranks that hold it.
    #[expect(clippy::cast_precision_loss, reason = "counts of ranks")]
    fn route(&self) -> Both {
        let Some(experts) = self.net.experts else { return Both::default() };
        let sent = self.tokens * experts.per_token * self.net.hidden * experts.layers;
        let ranks = self.layout.expert;
        let group = Group::of(self.layout, ranks, self.layout.tensor);
        let others = (ranks as f64 - 1.0) / ranks as f64;
        let exchange = if ranks > 1 { 2.0 * group.send(self.card, self.layout, 2.0 * sent * others) } else { 0.0 };
        Both { forward: moved(self.card, 12.0 * sent) + exchange, backward: moved(self.card, 16.0 * sent) + exchange }
    }

    fn head(&self) -> (Both, f64) {
        let Self { net, run, card, .. } = *self;
        if net.vocabulary == 0.0 {
            return (Both::default(), 0.0);
        }
        let tokens = if net.head_per_sequence { run.micro_batch } else { self.tokens };
        let trained = match run.trained {
            Trained::Share(share) => share,
            Trained::Adapters { ends, .. } => f64::from(u8::from(ends)),
        };
        let vocabulary = net.vocabulary / self.tensor;
        let products = self.three(tokens, vocabulary, net.head_inputs, Units::Plain, trained);
        (products, moved(card, run.stack.vocabulary * vocabulary * tokens))
    }

    /// Casts to the adapters' FP32 and back, two thin products and a sum beside each adapted layer, all bound by memory.
    fn adapters(&self) -> f64 {
        let Trained::Adapters { parameters, inputs, outputs, .. } = self.run.trained else { return 0.0 };
        let bytes = (15.0 * inputs + 45.0 * outputs) / self.tensor * self.tokens * 0.5;
        let flops = 6.0 * parameters * self.tokens / self.tensor;
        moved(self.card, bytes) + flops / (0.5 * self.card.rate(Units::Plain))
    }

    fn launch(&self) -> f64 {
        let Self { net, run, layout, .. } = *self;
        let [forward, backward] = run.stack.launch;
        let plain = forward * (1.0 + run.again.pointwise) + backward;
        let routed = net.experts.map_or(0.0, |e| e.layers);
        let layers = (net.layers - routed) + routed * figure("experts", "launch");
        let adapted = if matches!(run.trained, Trained::Adapters { .. }) { figure("adapters", "launch") } else { 1.0 };
        let hooks = if layout.hooks { figure("zero3", "launch") } else { 1.0 };
        plain * layers * adapted * hooks
    }

    /// Two collectives a layer and pass, and again where layers are run again; with sequence parallelism backward gathers
    /// inputs once more.
    fn tensor_parallel(&self) -> f64 {
        let Self { net, run, layout, card, .. } = *self;
        if layout.tensor < 2 {
            return 0.0;
        }
        let group = Group::of(layout, layout.tensor, 1);
        let bytes = 2.0 * self.scale * self.tokens * net.hidden;
        let times = 5.0 + 2.0 * run.again.products;
        let shown = if layout.async_tensor { 0.5 } else { 1.0 };
        shown * net.layers * times * group.reduce(card, layout, bytes)
    }

    /// Keys and values go around, mostly behind attention's products.
    fn context_parallel(&self) -> f64 {
        let Self { net, layout, card, .. } = *self;
        if layout.context < 2 {
            return 0.0;
        }
        let group = Group::of(layout, layout.context, layout.tensor);
        let bytes = 2.0 * self.scale * self.tokens * (net.query + 2.0 * net.keys) / self.tensor;
        0.3 * 3.0 * net.layers * 2.0 * group.send(card, layout, bytes)
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of ranks")]
    fn local_parameters(&self) -> Local {
        let stages = self.layout.pipeline as f64;
        let of = |p: &Product| p.parameters() / if p.expert { self.layout.expert as f64 } else { self.tensor };
        Local {
            layers: self.net.products.iter().map(of).sum(),
            stages,
            ends: (self.net.head() + if stages > 1.0 { 0.0 } else { self.net.looked_up }) / self.tensor,
        }
    }

    /// What data-parallel ranks tell each other that nothing hides.
    #[expect(clippy::cast_precision_loss, reason = "counts of ranks")]
    fn data_parallel(&self, held: f64, trained: f64, forward: f64, backward: f64) -> f64 {
        let Self { net, run, layout, card, .. } = *self;
        let ranks = layout.data * layout.context;
        if ranks < 2 {
            return 0.0;
        }
        let stride = layout.tensor;
        let group = Group::of(layout, layout.shard_ranks.max(1) * layout.context, stride);
        let all = Group::of(layout, ranks, stride);
        let width = run.compute.width();
        let reduced = layout.reduce_width.unwrap_or(width) * trained;
        let copies = layout.data / layout.shard_ranks.max(1);
        let between = Group::of(layout, copies, stride * layout.shard_ranks.max(1));
        let over = |seconds: f64, hidden_by: f64| (seconds - hidden_by).max(0.0);
        match layout.shard {
            Shard::Nothing | Shard::Optimizer => {
                let scatter = all.gather(card, layout, reduced);
                let gather = if layout.shard == Shard::Nothing {
                    scatter
                } else {
                    group.gather(card, layout, width.min(2.0) * trained)
                };
                let hidden = if layout.overlaps { 0.7 * backward } else { 0.0 };
                // The last bucket has nothing left to hide behind.
                over(scatter + gather, hidden) + (scatter + gather) / net.layers
            }
            Shard::Gradients => {
                let scatter = group.gather(card, layout, reduced);
                let hidden = if layout.overlaps { 0.7 * backward } else { 0.0 };
                run.accumulation * (over(scatter, hidden) + scatter / net.layers)
                    + group.gather(card, layout, width.min(2.0) * trained)
            }
            Shard::Kept | Shard::Everything => {
                let gather = group.gather(card, layout, width.min(2.0) * held);
                let scatter = group.gather(card, layout, reduced)
                    + if copies > 1 { between.reduce(card, layout, reduced / layout.shard_ranks as f64) } else { 0.0 };
                let again = if layout.shard == Shard::Everything { gather } else { 0.0 };
                // The first layer's gather and the last one's scatter have nothing to hide behind.
                let ends = (gather + scatter) / net.layers;
                run.accumulation * (over(gather, forward) + over(again + scatter, backward) + ends)
            }
        }
    }
}

/// Parameters that a rank computes with: of its stage's layers, and of the ends.
struct Local {
    layers: f64,
    stages: f64,
    ends: f64,
}

impl Local {
    fn all(&self) -> f64 {
        self.layers / self.stages + self.ends
    }
}
