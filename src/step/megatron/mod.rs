//! Megatron-LM core: the step of one pipeline rank, walked micro-batch by micro-batch in its schedule's order.
//!
//! Layers are Transformer Engine's or Megatron-LM's own; each operation says what it keeps and allocates, and autograd
//! ([`crate::step::autograd`]) does the rest. Read at Megatron-LM d98e8a64 and Transformer Engine d0067d0d (August 2026);
//! nothing of it has been measured here, and no verdict without a margin rests on it.

mod attention;
mod context;
mod ends;
mod moe;
mod ops;
mod refusals;
mod schedule;
mod states;

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::bill::Instant;
use crate::model::family::{Gpt, Model};
use crate::plan::Plan;
use crate::recipe::parallel::{DataParallel, Megatron, MegatronRecompute};
use crate::step::autograd::{Edge, Gradient, Recorder, backward_all};
use crate::step::checkpoint::{Layer, reentrant};
use crate::step::log::{Event, Mark};
use crate::step::tape::{Device, Tape};
use crate::step::tensor::{Dtype, Tensor};
use crate::step::train::{Steps, TooLarge, Walk};
use crate::units::Bytes;
use crate::versions::Rules;

pub(crate) use refusals::refusals;

use context::{Cx, Inner};
use ops::{Linear, temp};
use schedule::Act;
use states::{Chunk, Replicas};

/// How many rounds of micro-batches are walked where schedules interleave: up to two are in flight.
const WALKED_ROUNDS: u64 = 3;
/// How many micro-batches are walked beyond those in flight.
const WALKED_BEYOND: u64 = 2;

/// Walks the rank of `plan` that holds the most, or the one it names.
///
/// # Errors
/// [`TooLarge`] when a size passes 2⁵³ bytes.
pub(crate) fn walk(
    model: &dyn Model,
    plan: &Plan,
    options: &Megatron,
    device: Device,
    steps: Steps,
) -> Result<Walk, TooLarge> {
    let Some(gpt) = model.megatron() else { return Err(TooLarge) };
    let last = plan.parallel.pipeline.saturating_sub(1);
    if let Some(rank) = options.rank {
        return walk_rank(&gpt, plan, options, device, steps, rank.min(last));
    }
    // Of ranks with the same kinds of layers the first has the most micro-batches in flight; the last has the logits.
    let kinds = |rank: u64| {
        let dealt = schedule::layers(options, gpt.layers, plan.parallel.pipeline, rank).unwrap_or_default();
        let experts = dealt.iter().flat_map(|&(first, count)| first..first + count);
        let experts = experts.filter(|at| gpt.has_experts(*at).is_some()).count();
        (dealt.iter().map(|(_, count)| count).sum::<u64>(), experts)
    };
    let differs = |rank: &u64| *rank <= 1 || *rank == last || kinds(*rank) != kinds(*rank - 1);
    let candidates = (0..=last).filter(differs);
    let mut most: Option<(u64, u64)> = None;
    for rank in candidates {
        let peak = peak(&walk_rank(&gpt, plan, options, device, Steps::Steady, rank)?);
        if most.is_none_or(|(_, highest)| peak > highest) {
            most = Some((rank, peak));
        }
    }
    walk_rank(&gpt, plan, options, device, steps, most.map_or(0, |(rank, _)| rank))
}

/// How many layers pipeline rank `rank` of `plan` has, and how many micro-batches are in flight on it.
pub(crate) fn stage(gpt: &Gpt, plan: &Plan, rank: u64) -> (u64, u64) {
    let DataParallel::Megatron(options) = &plan.parallel.data else { return (gpt.layers, 1) };
    let stages = plan.parallel.pipeline;
    let dealt = schedule::layers(options, gpt.layers, stages, rank).unwrap_or_default();
    let order = schedule::schedule(rank, stages, micros(plan, options, rank), dealt.len() as u64);
    (dealt.iter().map(|(_, count)| count).sum(), schedule::in_flight(&order))
}

/// How many micro-batches are walked: beyond those that are in flight at once, one is as the other.
fn micros(plan: &Plan, options: &Megatron, rank: u64) -> u64 {
    let stages = plan.parallel.pipeline;
    let enough = if options.virtual_pipeline > 1 {
        stages.saturating_mul(WALKED_ROUNDS)
    } else {
        stages.saturating_sub(rank).saturating_add(WALKED_BEYOND)
    };
    plan.recipe.grad_accum.min(enough)
}

/// The most that lives at once.
fn peak(walk: &Walk) -> u64 {
    let bytes = |id: u32| walk.tensors.get(id as usize).map_or(0, |info| info.bytes.get());
    let (mut now, mut most) = (0_u64, 0);
    for event in &walk.events {
        match *event {
            Event::Alloc(id) => now = now.saturating_add(bytes(id)),
            Event::Free(id) => now = now.saturating_sub(bytes(id)),
            _ => {}
        }
        most = most.max(now);
    }
    most
}

/// Walks one pipeline rank.
fn walk_rank(
    gpt: &Gpt,
    plan: &Plan,
    options: &Megatron,
    device: Device,
    steps: Steps,
    rank: u64,
) -> Result<Walk, TooLarge> {
    let (parallel, recipe, framework) = (&plan.parallel, &plan.recipe, &plan.framework);
    let rules = Rules::of(framework, "megatron");
    let t = &Tape::under(Device { workspace_kept: framework.workspace_kept(), ..device }, rules);
    let tensor = parallel.tensor.size;
    let cx = Cx::new(Inner {
        gpt: gpt.clone(),
        options: options.clone(),
        tensor,
        sequence_parallel: parallel.tensor.sequence_parallel && tensor > 1,
        context: parallel.context,
        expert: parallel.expert,
        expert_tensor: 1,
        batch: recipe.micro_batch,
        seq: recipe.seq_len / parallel.context.max(1),
        vocab: gpt.padded_vocab(options.make_vocab_size_divisible_by, tensor),
    });
    let stages = parallel.pipeline;
    let ranks = parallel.world_size / stages.max(1);
    let replicas = Replicas { dense: ranks / tensor.max(1), expert: ranks / parallel.expert.max(1) };
    let dealt = schedule::layers(options, gpt.layers, stages, rank).unwrap_or_default();
    let chunks: Vec<Part> = (0_u64..)
        .zip(&dealt)
        .map(|(chunk, &(first, count))| {
            let starts = rank == 0 && chunk == 0;
            let ends = rank + 1 == stages && chunk + 1 == dealt.len() as u64;
            Part::new(t, &cx, first, count, [starts, ends], stages > 1, replicas)
        })
        .collect();
    let mut job = Job { t, cx: &cx, chunks: &chunks, flying: BTreeMap::new() };
    t.empty_cache();
    t.mark(Mark::Base);
    let order = schedule::schedule(rank, stages, micros(plan, options, rank), dealt.len() as u64);
    if steps == Steps::FirstAndSteady {
        job.step(&order);
    }
    job.step(&order);
    drop(job);
    for chunk in &chunks {
        chunk.held.remove_hooks();
    }
    if t.0.log.overflowed() {
        return Err(TooLarge);
    }
    let (events, tensors) = t.0.log.take();
    drop(chunks);
    cx.forget();
    t.drop_workspaces();
    Ok(Walk { events, tensors, repeats: 0, middle: 0, on_host: Bytes::ZERO })
}

/// A model chunk of this rank.
struct Part {
    held: Chunk,
    /// Its layers' parameters, as ranges of what is held.
    layers: Vec<OneLayer>,
    /// The tables before the layers, and the head after them.
    before: Vec<Tensor>,
    dense: Option<Tensor>,
    head: Option<Tensor>,
}

#[derive(Clone)]
struct OneLayer {
    number: u32,
    matrices: Vec<Tensor>,
}

impl Part {
    fn new(
        t: &Tape,
        cx: &Cx,
        first: u64,
        count: u64,
        [starts, ends]: [bool; 2],
        piped: bool,
        replicas: Replicas,
    ) -> Self {
        let gpt = &cx.gpt;
        let mut all = Vec::new();
        let mut bounds = vec![0];
        if starts {
            all.extend(gpt.before(cx.vocab).into_iter().map(|weight| (0, weight)));
        }
        bounds.push(all.len());
        for at in first..first + count {
            let number = u32::try_from(at + 1).unwrap_or(u32::MAX);
            all.extend(gpt.layer(at).into_iter().map(|weight| (number, weight)));
            bounds.push(all.len());
        }
        if ends {
            // A tied head is a copy where the table of words is on another stage.
            let own = !gpt.tied || (piped && !starts);
            all.extend(gpt.after(cx.vocab, own).into_iter().map(|weight| (0, weight)));
        }
        let held = states::chunk(t, cx, &all, replicas);
        let matrices = |from: usize, to: usize| -> Vec<Tensor> {
            let there = held.weights.get(from..to).unwrap_or_default().iter().flatten();
            there.filter(|weight| weight.shape().rank() > 1).cloned().collect()
        };
        let before = matrices(0, bounds[1]);
        let layers = bounds
            .windows(2)
            .skip(1)
            .zip(first..)
            .map(|(ends, at)| OneLayer {
                number: u32::try_from(at + 1).unwrap_or(u32::MAX),
                matrices: matrices(ends[0], ends[1]),
            })
            .collect();
        let after = if ends { matrices(bounds[bounds.len() - 1], all.len()) } else { Vec::new() };
        let dense = after.first().filter(|_| gpt.bert).cloned();
        let own = !gpt.tied || (piped && !starts);
        let head = if own { after.last().cloned() } else { before.first().cloned() };
        Self { held, layers, before, dense, head: head.filter(|_| ends) }
    }
}

/// A micro-batch between its forward and its backward on a chunk.
struct Flying {
    /// Where backward begins, and the gradient's sizes.
    root: Option<Edge>,
    out: crate::step::shape::Shape,
    dtype: Dtype,
    /// Where the gradient for the stage before gathers, and its input.
    input: Option<(Tensor, Rc<Gradient>)>,
    _batch: Vec<Tensor>,
}

struct Job<'a> {
    t: &'a Tape,
    cx: &'a Cx,
    chunks: &'a [Part],
    flying: BTreeMap<(u64, u64), Flying>,
}

impl Job<'_> {
    fn step(&mut self, order: &[Act]) {
        let t = self.t;
        t.mark(Mark::Step);
        t.enter(Instant::Forward);
        t.mark(Mark::MicroBatch);
        t.mark(Mark::Inputs);
        let mut first = true;
        for act in order {
            match *act {
                Act::Forward { micro, chunk } => self.forward(micro, chunk),
                Act::Backward { micro, chunk } => {
                    if core::mem::replace(&mut first, false) {
                        t.mark(Mark::ForwardEnd);
                    }
                    self.backward(micro, chunk);
                }
            }
        }
        t.set_layer(0);
        t.mark(Mark::BackwardEnd);
        t.enter(Instant::Step);
        // Norm, clipping and Adam's step work in place over what is held (`multi_tensor_*`).
        t.scope("optimizer", || drop(t.scalar(Dtype::F32, "gradient norm")));
        t.mark(Mark::StepEnd);
        t.mark(Mark::ZeroGradEnd);
    }

    fn forward(&mut self, micro: u64, chunk: u64) {
        let (t, cx) = (self.t, self.cx);
        let Some(part) = usize::try_from(chunk).ok().and_then(|at| self.chunks.get(at)) else { return };
        t.enter(Instant::Forward);
        let starts = !part.before.is_empty();
        let ends = part.head.is_some();
        let batch = if starts || ends { t.scope("batch", || cx.batch(t)) } else { Vec::new() };
        let (mut x, input) = if starts {
            (t.scope("embedding", || cx.embedding(t, &part.before)), None)
        } else {
            let received = temp(t, cx.kept_rows(), cx.gpt.hidden, Dtype::Bf16, "received hidden states");
            let (leaf, gradient) = Recorder::force(&received);
            (leaf, Some((received, gradient)))
        };
        x = self.layers(part, x);
        if let Some(head) = &part.head {
            let logits = t.scope("head", || cx.logits(t, &x, part.dense.as_ref(), head));
            t.enter(Instant::Loss);
            x = t.scope("loss", || cx.cross_entropy(t, logits));
        }
        t.set_layer(0);
        // What was sent on is let go (`deallocate_pipeline_outputs`).
        let (root, out, dtype) = (x.edge(), *x.shape(), x.dtype());
        drop(x);
        self.flying.insert((micro, chunk), Flying { root, out, dtype, input, _batch: batch });
    }

    fn layers(&self, part: &Part, mut x: Tensor) -> Tensor {
        let t = self.t;
        let (again, at_once) = match self.cx.options.recompute {
            MegatronRecompute::Block(n) => (n, 1),
            MegatronRecompute::Uniform(n) => (u64::MAX, n.max(1)),
            _ => (0, 1),
        };
        let mut rest: &[OneLayer] = &part.layers;
        let mut done = 0;
        while !rest.is_empty() {
            let n = usize::try_from(at_once).unwrap_or(usize::MAX).min(rest.len());
            let (group, further) = rest.split_at(n);
            rest = further;
            let (cx, group) = (self.cx.clone(), group.to_vec());
            let run = move |t: &Tape, x: &Tensor| {
                let mut x = x.clone();
                for one in &group {
                    t.set_layer(one.number);
                    x = layer(t, &cx, &x, u64::from(one.number).saturating_sub(1), &one.matrices);
                }
                x
            };
            if done < again {
                let run: Layer = Rc::new(move |t, x| x.first().map(|x| run(t, x)).into_iter().collect());
                let out = reentrant(t, core::slice::from_ref(&x), run).pop();
                x = out.unwrap_or(x);
                // What the function itself holds goes with its backward.
                drop(t.take_pinned());
            } else {
                x = run(t, &x);
            }
            done += 1;
        }
        x
    }

    fn backward(&mut self, micro: u64, chunk: u64) {
        let t = self.t;
        let Some(flying) = self.flying.remove(&(micro, chunk)) else { return };
        let ends = usize::try_from(chunk).ok().and_then(|at| self.chunks.get(at)).is_some_and(|c| c.head.is_some());
        t.enter(if ends { Instant::Loss } else { Instant::Backward });
        // The loss's gradient, or what the next stage sends back.
        let gradient = t.temp(flying.out.contiguous(), flying.dtype, "received gradient");
        if let Some(root) = flying.root {
            backward_all(t, vec![(root, gradient)]);
        }
        t.set_layer(0);
        drop(flying.input);
    }
}

/// One layer.
fn layer(t: &Tape, cx: &Cx, x: &Tensor, at: u64, matrices: &[Tensor]) -> Tensor {
    let row = Linear { norm: false, gather: false, scatter: cx.sequence_parallel, engine: cx.own_engine() };
    let column = Linear { norm: true, gather: cx.sequence_parallel, scatter: false, engine: cx.own_engine() };
    let own =
        if cx.gpt.latent.is_some_and(|latent| latent.query.is_some()) { 4 } else { cx.gpt.latent.map_or(1, |_| 3) };
    let (attention, rest) = matrices.split_at(own.min(matrices.len()));
    let [out, mlp @ ..] = rest else { return x.clone() };
    let before = t.set_scope("attention");
    let context = cx.attention(t, x, attention);
    let projected = cx.linear(t, &context, out, row);
    drop(context);
    let hidden = cx.add_dropped(t, projected, x, cx.gpt.bias);
    t.set_scope("mlp");
    let result = match cx.gpt.has_experts(at) {
        Some(experts) => {
            let out = cx.experts(t, &hidden, experts, mlp);
            cx.add_dropped(t, out, &hidden, false)
        }
        None => match mlp {
            [up, down, ..] => {
                let wide = cx.linear(t, &hidden, up, column);
                let active = cx.activation(t, &wide, false);
                drop(wide);
                let narrow = cx.linear(t, &active, down, row);
                drop(active);
                cx.add_dropped(t, narrow, &hidden, cx.gpt.bias)
            }
            _ => hidden.clone(),
        },
    };
    t.set_scope(before);
    result
}
