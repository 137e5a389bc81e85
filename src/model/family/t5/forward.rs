//! T5's two stacks on a tape.

use core::cell::RefCell;
use std::rc::Rc;

use crate::bill::Instant;
use crate::issue::{Issue, IssueKind};
use crate::model::family::common::{Cache, Run, eager_mask, refuse_checkpointing};
use crate::model::family::t5::attention::{Attended, Attention, Over};
use crate::model::family::t5::{LayerShapes, T5};
use crate::model::family::{Built, Parameters, matrix, vector};
use crate::recipe::{Attention as Implementation, Checkpointing, Recipe, SdpaBackend};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// Forced backends that cannot take a bias, and `math`.
pub(super) fn refusals(recipe: &Recipe) -> Vec<Issue> {
    use Checkpointing as C;
    let checkpointing = refuse_checkpointing(recipe, &[C::Reentrant, C::Offload, C::FullOffload]);
    if !checkpointing.is_empty() {
        return checkpointing;
    }
    let eager = recipe.attention == Some(Implementation::Eager);
    match recipe.sdpa_backend {
        None | Some(SdpaBackend::EfficientAttention) => Vec::new(),
        _ if eager => Vec::new(),
        Some(_) => {
            let what = "a backend of sdpa that learned biases are not modelled with".into();
            vec![Issue::new("recipe.sdpa_backend", IssueKind::NotModelled { what })]
        }
    }
}

pub(super) struct BuiltT5 {
    plan: Rc<T5>,
    words: Tensor,
    encoder: Stack,
    decoder: Stack,
    weights: Vec<Tensor>,
    /// What the model's outputs hold beside the logits: the encoder's states, the decoder's keys and values.
    kept: RefCell<Vec<Tensor>>,
}

struct Stack {
    layers: Vec<Rc<Layer>>,
    norm: Tensor,
}

#[derive(Debug)]
struct Layer {
    own: Attention,
    cross: Option<Attention>,
    mlp: Vec<Tensor>,
    mlp_norm: Tensor,
}

impl Layer {
    fn new(shapes: &LayerShapes, all: &mut Parameters<'_>) -> Self {
        let attention = |relative: Option<Shape>, all: &mut Parameters<'_>| {
            let projections = shapes.projections.map(|s| all.add(s));
            let relative = relative.map(|s| all.add(s));
            Attention { projections, relative, norm: all.add(shapes.norm) }
        };
        let own = attention(shapes.relative, all);
        let cross = shapes.cross.then(|| attention(None, all));
        let mlp = shapes.mlp.iter().map(|s| all.add(*s)).collect();
        Self { own, cross, mlp, mlp_norm: all.add(shapes.norm) }
    }
}

impl BuiltT5 {
    pub(super) fn new(plan: &T5, tape: &Tape, dtype: Dtype) -> Self {
        let mut all = Parameters::new(tape, dtype);
        let words = tape.scope("embedding", || all.add(matrix(plan.v(), plan.h())));
        let mut stack = |from: u64, layers: u64, cross: bool| {
            tape.scope("layers", || {
                let layers = (0..layers)
                    .map(|i| {
                        tape.set_layer(u32::try_from(from + i + 1).unwrap_or(u32::MAX));
                        Rc::new(Layer::new(&plan.layer_shapes(i == 0, cross), &mut all))
                    })
                    .collect();
                tape.set_layer(0);
                tape.set_scope("final norm");
                Stack { layers, norm: all.add(vector(plan.h())) }
            })
        };
        let encoder = stack(0, plan.encoder_layers, false);
        let decoder = stack(plan.encoder_layers, plan.decoder_layers, true);
        let kept = RefCell::default();
        Self { plan: Rc::new(plan.clone()), words, encoder, decoder, weights: all.finish(), kept }
    }
}

impl Built for BuiltT5 {
    fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    fn batch(&self, run: &Run) -> Vec<Tensor> {
        let ids = run.integers(&[run.batch, run.seq], "token ids");
        vec![ids, run.integers(&[run.batch, run.decoder_seq], "labels")]
    }

    fn forward(&self, run: &Run, batch: &[Tensor]) -> (Tensor, Tensor) {
        let (t, ids, labels) = (&run.tape, &batch[0], &batch[1]);
        let encoded = self.stack(run, ids, None);
        let decoder_ids = t.scope("embedding", || shifted_right(run));
        // The decoder's own config leaves its cache on, save under checkpointing; the model's outputs hold it.
        let cache = (!run.checkpointed()).then(|| Rc::new(Cache::of_whole(run.decoder_seq.n)));
        // The decoder's outputs hold it beside what the head makes of it.
        let decoded = self.stack(&Run { cache: cache.clone(), ..run.clone() }, &decoder_ids, Some(&encoded));
        let before = t.set_scope("head");
        let out = if self.plan.scaled { t.mul_scalar(&decoded) } else { decoded.clone() };
        let logits = t.linear(&out, &self.words, None);
        t.set_scope(before);
        t.enter(Instant::Loss);
        let loss = t.scope("loss", || {
            let flat = t.reshape(&logits, &[run.batch.times(run.decoder_seq), self.plan.v()]);
            t.cross_entropy(&flat, labels)
        });
        drop((out, decoded, decoder_ids));
        let mut kept = vec![encoded];
        kept.extend(cache.into_iter().flat_map(|cache| cache.held()));
        *self.kept.borrow_mut() = kept;
        (loss, logits)
    }

    fn take_outputs(&self) -> Vec<Tensor> {
        self.kept.take()
    }
}

/// `_shift_right`: the labels one place on, as the decoder's ids.
fn shifted_right(run: &Run) -> Tensor {
    let t = &run.tape;
    let ids = t.temp(Shape::new(&[run.batch, run.decoder_seq]), Dtype::I64, "decoder ids");
    let fewer = Dim::plain(run.decoder_seq.n.saturating_sub(1));
    drop(t.temp(Shape::new(&[run.batch, fewer]), Dtype::I64, "decoder ids"));
    drop(t.temp(*ids.shape(), Dtype::Bool, "padding labels"));
    ids
}

impl BuiltT5 {
    /// A stack's output.
    fn stack(&self, run: &Run, ids: &Tensor, encoder: Option<&Tensor>) -> Tensor {
        let t = &run.tape;
        let (stack, from) = match encoder {
            None => (&self.encoder, 0),
            Some(_) => (&self.decoder, self.encoder.layers.len()),
        };
        let embedded = t.scope("embedding", || t.embedding(ids, &self.words));
        let mask = encoder.and_then(|_| {
            let own = Run { seq: run.decoder_seq, cache: None, ..run.clone() };
            t.scope("mask", || eager_mask(&own, embedded.dtype(), false))
        });
        let mut hidden = t.scope("embedding", || t.dropout(&embedded, self.plan.dropout));
        let (mut bias, mut cross_bias) = (None, None);
        for (i, layer) in stack.layers.iter().enumerate() {
            t.set_layer(u32::try_from(from + i + 1).unwrap_or(u32::MAX));
            let call = Call {
                plan: self.plan.clone(),
                layer: layer.clone(),
                run: run.clone(),
                encoder: encoder.cloned(),
                mask: mask.clone(),
                bias: bias.clone(),
                cross_bias: cross_bias.clone(),
            };
            let number = u32::try_from(from + i + 1).unwrap_or(u32::MAX);
            let mut out = run.layer_many(
                number,
                core::slice::from_ref(&hidden),
                Rc::new(move |_, x| x.first().map(|x| call.run(x)).unwrap_or_default()),
            );
            // Hidden states, the bias, and in a decoder that of cross-attention.
            cross_bias = if out.len() > 2 { out.pop() } else { None };
            bias = out.pop();
            if let Some(next) = out.pop() {
                hidden = next;
            }
        }
        t.set_layer(0);
        hidden = t.scope("final norm", || norm(t, &hidden, &stack.norm));
        hidden = t.dropout(&hidden, self.plan.dropout);
        drop((bias, cross_bias, mask, embedded));
        hidden
    }
}

/// One block's call, with everything its recomputation needs.
struct Call {
    plan: Rc<T5>,
    layer: Rc<Layer>,
    run: Run,
    encoder: Option<Tensor>,
    mask: Option<Tensor>,
    bias: Option<Tensor>,
    cross_bias: Option<Tensor>,
}

impl Call {
    fn run(&self, x: &Tensor) -> Vec<Tensor> {
        let (t, w) = (&self.run.tape, &self.layer);
        let decoder = self.encoder.is_some();
        let over = Over { encoder: None, bias: self.bias.clone(), mask: self.mask.as_ref(), decoder };
        let (mut hidden, bias, mut probabilities) = t.scope("attention", || self.attention(&w.own, x, over));
        let mut most;
        (hidden, most) = finite(t, hidden);
        let mut cross_bias = None;
        if let (Some(cross), Some(encoder)) = (&w.cross, &self.encoder) {
            let over = Over { encoder: Some(encoder), bias: self.cross_bias.clone(), mask: None, decoder };
            let attended = t.scope("cross-attention", || self.attention(cross, &hidden, over));
            (hidden, most) = finite(t, attended.0);
            cross_bias = Some(attended.1);
            probabilities = attended.2;
        }
        hidden = t.scope("mlp", || self.mlp(&hidden));
        let last;
        (hidden, last) = finite(t, hidden);
        drop((most, last));
        drop(probabilities);
        let mut out = vec![hidden, bias];
        out.extend(cross_bias);
        out
    }

    fn attention(&self, w: &Attention, x: &Tensor, over: Over<'_>) -> (Tensor, Tensor, Option<Tensor>) {
        let t = &self.run.tape;
        let normed = norm(t, x, &w.norm);
        let Attended { out, bias, probabilities } = w.run(&self.run, &self.plan, &normed, over);
        let sum = {
            let dropped = t.dropout(&out, self.plan.dropout);
            t.add(x, &dropped)
        };
        drop(out);
        drop(normed);
        (sum, bias, probabilities)
    }

    fn mlp(&self, x: &Tensor) -> Tensor {
        let (t, dropout) = (&self.run.tape, self.plan.dropout);
        let mut out = norm(t, x, &self.layer.mlp_norm);
        out = self.dense(&out);
        let dropped = t.dropout(&out, dropout);
        t.add(x, &dropped)
    }

    fn dense(&self, x: &Tensor) -> Tensor {
        let (t, p, w) = (&self.run.tape, &self.plan, &self.layer.mlp);
        let (Some(narrow), Some(wide)) = (w.last(), w.first()) else { return x.clone() };
        let mut hidden = t.linear(x, wide, None);
        hidden = p.activation.apply(t, &hidden);
        let mut gates = None;
        if p.gated {
            let linear = t.linear(x, &w[1], None);
            let product = t.mul(&hidden, &linear);
            gates = Some((hidden, linear));
            hidden = product;
        }
        hidden = t.dropout(&hidden, p.dropout);
        hidden = t.to(&hidden, narrow.dtype());
        let out = t.linear(&hidden, narrow, None);
        drop(hidden);
        drop(gates);
        out
    }
}

/// What `T5Block` makes of FP16 states ("clamp inf values to enable fp16 training"): those that are infinite are looked for, and
/// all are clamped. With the bound, which is a variable until the next takes its name.
#[inline(never)]
fn finite(t: &Tape, x: Tensor) -> (Tensor, Option<Tensor>) {
    if x.dtype() != Dtype::F16 {
        return (x, None);
    }
    let most = t.with_grad(false, || {
        let infinite = {
            let absolute = t.elementwise(&[&x], Dtype::F16, "absolute values");
            t.elementwise(&[&absolute], Dtype::Bool, "infinite values")
        };
        let any = t.reduced(&infinite, &Shape::new(&[]), "any infinite value");
        drop(infinite);
        let [less, most] = [(); 2].map(|()| t.scalar(Dtype::F32, "clamp value"));
        let chosen = t.scalar(Dtype::F32, "clamp value");
        drop((less, most, any));
        chosen
    });
    let least = t.scalar(Dtype::F32, "clamp value");
    (t.clamp_between(&x, [&least, &most]), Some(most))
}

/// `T5LayerNorm`: the mean square in FP32, the product in the wider dtype, cast where the weight is in half precision.
fn norm(t: &Tape, x: &Tensor, weight: &Tensor) -> Tensor {
    let variance = {
        let square = {
            let wide = t.to(x, Dtype::F32);
            t.pow(&wide)
        };
        t.mean_last(&square)
    };
    let mut hidden = {
        let rstd = {
            let shifted = t.add_scalar(&variance);
            t.rsqrt(&shifted)
        };
        t.mul(x, &rstd)
    };
    if weight.dtype().is_half() {
        hidden = t.to(&hidden, weight.dtype());
    }
    let out = t.mul(weight, &hidden);
    drop(hidden);
    drop(variance);
    out
}
