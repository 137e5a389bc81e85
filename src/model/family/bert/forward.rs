//! The encoder on a tape.

use std::rc::Rc;

use crate::bill::Instant;
use crate::model::family::bert::{Bert, Head, Kind, LAYER, Places};
use crate::model::family::common::{Run, attend_to_all};
use crate::model::family::{Built, Parameters};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

pub(super) struct BuiltBert {
    plan: Rc<Bert>,
    embeddings: Vec<Tensor>,
    places: Places,
    layers: Vec<Rc<Layer>>,
    head: Vec<Tensor>,
    weights: Vec<Tensor>,
}

#[derive(Debug)]
struct Layer([Tensor; LAYER]);

impl BuiltBert {
    pub(super) fn new(plan: &Bert, tape: &Tape, dtype: Dtype) -> Self {
        let mut all = Parameters::new(tape, dtype);
        tape.scope("embedding", || {
            let (shapes, places) = plan.embedding_shapes();
            let embeddings = shapes.into_iter().map(|s| all.add(s)).collect();
            tape.set_scope("layers");
            let layers = (1u32..)
                .take(usize::try_from(plan.layers).unwrap_or(usize::MAX))
                .map(|i| {
                    tape.set_layer(i);
                    Rc::new(Layer(plan.layer_shapes().map(|s| all.add(s))))
                })
                .collect();
            tape.set_layer(0);
            tape.set_scope("head");
            let head = plan.head_shapes().into_iter().map(|s| all.add(s)).collect();
            Self { plan: Rc::new(plan.clone()), embeddings, places, layers, head, weights: all.finish() }
        })
    }
}

impl Built for BuiltBert {
    fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    fn batch(&self, run: &Run) -> Vec<Tensor> {
        let ids = run.integers(&[run.batch, run.seq], "token ids");
        let labels = match self.plan.head {
            Head::MaskedLm => run.integers(&[run.batch, run.seq], "labels"),
            Head::Classifier { .. } => run.integers(&[run.batch], "labels"),
        };
        vec![ids, labels]
    }

    fn forward(&self, run: &Run, batch: &[Tensor]) -> (Tensor, Tensor) {
        let (t, ids, labels) = (&run.tape, &batch[0], &batch[1]);
        let hidden = self.hidden_states(run, ids);
        let logits = t.scope("head", || match self.plan.head {
            Head::MaskedLm => self.words(t, &hidden),
            Head::Classifier { dropout, .. } => self.classes(t, &hidden, dropout),
        });
        t.enter(Instant::Loss);
        let loss = t.scope("loss", || {
            let rank = logits.shape().rank();
            let (rows, classes) = logits.shape().dims().split_at(rank - 1);
            let rows = rows.iter().copied().reduce(Dim::times).unwrap_or(Dim::plain(1));
            let flat = t.reshape(&logits, &[rows, classes[0]]);
            t.cross_entropy(&flat, labels)
        });
        drop(hidden);
        (loss, logits)
    }
}

impl BuiltBert {
    /// Dense, activation, norm, and the product with the look-up table.
    fn words(&self, t: &Tape, hidden: &Tensor) -> Tensor {
        let w = &self.head;
        let (bias, dense) = if self.plan.kind == Kind::DistilBert { (&w[4], &w[..4]) } else { (&w[0], &w[1..]) };
        let mut x = t.linear(hidden, &dense[0], Some(&dense[1]));
        x = self.plan.activation.apply(t, &x);
        x = t.layer_norm(&x, &dense[2], &dense[3]);
        t.linear(&x, &self.embeddings[0], Some(bias))
    }

    /// The first token through a dense layer to classes.
    fn classes(&self, t: &Tape, hidden: &Tensor, dropout: f64) -> Tensor {
        let w = &self.head;
        let mut x = t.select(hidden, 1);
        if self.plan.kind == Kind::Roberta {
            x = t.dropout(&x, dropout);
        }
        x = t.linear(&x, &w[0], Some(&w[1]));
        x = if self.plan.kind == Kind::DistilBert { t.relu(&x) } else { t.tanh(&x) };
        x = t.dropout(&x, dropout);
        t.linear(&x, &w[2], Some(&w[3]))
    }

    fn hidden_states(&self, run: &Run, ids: &Tensor) -> Tensor {
        let t = &run.tape;
        let embedded = t.scope("embedding", || self.embed(run, ids));
        let mut hidden = embedded.clone();
        for (i, layer) in (1u32..).zip(&self.layers) {
            t.set_layer(i);
            let call = Call { plan: self.plan.clone(), layer: layer.clone(), run: run.clone() };
            hidden = run.layer(i, &hidden, move |x| call.run(x));
        }
        t.set_layer(0);
        drop(embedded);
        hidden
    }

    fn embed(&self, run: &Run, ids: &Tensor) -> Tensor {
        let (t, w) = (&run.tape, &self.embeddings);
        let one = Dim::plain(1);
        let line = Shape::new(&[one, run.seq]);
        let positions = match self.plan.kind {
            Kind::Roberta => counted_positions(t, ids),
            Kind::Bert | Kind::DistilBert => t.buffer(line, Dtype::I64),
        };
        let types = self.places.types.map(|at| {
            let gathered = t.temp(*positions.shape(), Dtype::I64, "token types");
            let expanded = gathered.alias(gathered.shape().expanded(0, run.batch));
            (at, gathered, expanded)
        });
        let words = t.embedding(ids, &w[0]);
        let mut sum = words.clone();
        let typed = types.as_ref().map(|(at, _, ids)| {
            let typed = t.embedding(ids, &w[*at]);
            sum = t.add(&sum, &typed);
            typed
        });
        let placed = t.embedding(&positions, &w[self.places.position]);
        sum = t.add(&sum, &placed);
        sum = t.layer_norm(&sum, &w[self.places.norm], &w[self.places.norm + 1]);
        sum = t.dropout(&sum, self.plan.dropout);
        drop((words, typed, placed));
        drop((types, positions));
        sum
    }
}

/// `create_position_ids_from_input_ids`: counts the ids that are not padding.
fn counted_positions(t: &Tape, ids: &Tensor) -> Tensor {
    let of = |dtype: Dtype| t.temp(*ids.shape(), dtype, "positions");
    let mask = {
        let differs = of(Dtype::Bool);
        let mask = of(Dtype::I32);
        drop(differs);
        mask
    };
    let counted = {
        let shifted = {
            let narrow = {
                let sum = of(Dtype::I64);
                drop(of(Dtype::I64));
                let narrow = of(Dtype::I32);
                drop(sum);
                narrow
            };
            let shifted = of(Dtype::I32);
            drop(narrow);
            shifted
        };
        let counted = of(Dtype::I32);
        drop(shifted);
        counted
    };
    let wide = of(Dtype::I64);
    let positions = of(Dtype::I64);
    drop((wide, mask, counted));
    positions
}

/// One layer's call, with everything its recomputation needs.
struct Call {
    plan: Rc<Bert>,
    layer: Rc<Layer>,
    run: Run,
}

impl Call {
    fn run(&self, x: &Tensor) -> Tensor {
        let t = &self.run.tape;
        // The probabilities live in `_` until the layer returns.
        let (attended, probabilities) = t.scope("attention", || self.attention(x));
        let out = t.scope("mlp", || self.mlp(&attended));
        drop(attended);
        drop(probabilities);
        out
    }

    fn linear(&self, x: &Tensor, at: usize) -> Tensor {
        self.run.tape.linear(x, &self.layer.0[at], Some(&self.layer.0[at + 1]))
    }

    /// `LayerNorm(x + residual)`.
    fn joined(&self, x: &Tensor, residual: &Tensor, at: usize) -> Tensor {
        let (t, w) = (&self.run.tape, &self.layer.0);
        let sum = t.add(x, residual);
        t.layer_norm(&sum, &w[at], &w[at + 1])
    }

    fn attention(&self, x: &Tensor) -> (Tensor, Option<Tensor>) {
        let (t, p) = (&self.run.tape, &self.plan);
        let (mut out, probabilities) = {
            let heads = |at: usize| {
                let x = t.reshape(&self.linear(x, at), &[self.run.batch, self.run.seq, p.a(), p.d()]);
                t.transpose(&x, 1, 2)
            };
            let (q, k, v) = (heads(0), heads(2), heads(4));
            let (out, probabilities) = attend_to_all(&self.run, (&q, &k, &v), p.attention_dropout, p.h());
            if p.kind == Kind::DistilBert { (self.linear(&out, 6), probabilities) } else { (out, probabilities) }
        };
        out = if p.kind == Kind::DistilBert {
            self.joined(&out, x, 8)
        } else {
            // The caller holds what goes into the output block.
            let mut inner = self.linear(&out, 6);
            inner = t.dropout(&inner, p.dropout);
            self.joined(&inner, x, 8)
        };
        (out, probabilities)
    }

    fn mlp(&self, x: &Tensor) -> Tensor {
        let (t, p) = (&self.run.tape, &self.plan);
        let mut wide = self.linear(x, 10);
        wide = p.activation.apply(t, &wide);
        let mut out = self.linear(&wide, 12);
        if p.kind == Kind::DistilBert {
            drop(wide);
            out = t.dropout(&out, p.dropout);
            self.joined(&out, x, 14)
        } else {
            out = t.dropout(&out, p.dropout);
            let out = self.joined(&out, x, 14);
            drop(wide);
            out
        }
    }
}
