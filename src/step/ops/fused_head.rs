//! TRL's fused head: log-probabilities of the tokens that are scored, without their logits (TRL 1.16,
//! `kernels/chunked_logprob.py` and `add_fused_lm_head` in `trainer/utils.py`; recorded with PyTorch 2.15).

use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::ops::pointwise::first;
use crate::step::ops::sort::{bits, radix_sort_scratch, scan_scratch};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{AS_LINEAR, Dtype, Tensor};

/// Rows per tile (`TOKEN_CHUNK_SIZE`).
const ROWS: u64 = 4096;
/// Columns per tile, however small the vocabulary (`_CHUNKED_LOGPROB_CHUNK_SIZE`).
const COLUMNS: u64 = 32_768;
/// Statistics of a row that are gathered over the tiles.
const STATISTICS: usize = 7;

/// What beside the log-probabilities is returned for each token.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extras {
    /// Its entropy.
    pub(crate) entropy: bool,
    /// The mean logit, and whether it is the likeliest: what DPO reports.
    pub(crate) metrics: bool,
}

impl Tape {
    /// The log-probabilities [b, s − 1] of `labels` [b, s] after `hidden` [b, s, h], of which `scored` tokens of each
    /// sequence are computed; and the extras. The head's weight is [V, h].
    pub(crate) fn fused_log_probs(
        &self,
        hidden: &Tensor,
        labels: &Tensor,
        weight: &Tensor,
        scored: u64,
        extras: Extras,
    ) -> Vec<Tensor> {
        let b = hidden.dim(0);
        let rest = Dim::plain(hidden.dim(1).n.saturating_sub(1));
        let shifted = self.slice(hidden, 1, rest);
        let mask = self.temp(Shape::new(&[b, rest]), Dtype::Bool, "scored tokens");
        let rows = b.times(Dim::plain(scored));
        let selected = self.select_rows(&shifted, &mask, rows);
        let targets = self.masked(labels, &mask, rows);
        let lines = self.chunked_log_probs(&selected, &targets, &weight.in_use(AS_LINEAR), extras);
        drop((selected, targets));
        let mut out: Vec<Tensor> = lines.into_iter().map(|line| self.scattered(line, &mask)).collect();
        // The output's own loss, and the count it is divided by.
        out.extend([self.scalar(Dtype::F32, "loss"), self.scalar(Dtype::I64, "count")]);
        drop(shifted);
        out
    }

    /// `x[mask]` for [b, s, h], `rows` of which are set; backward writes into zeros by index, sorted.
    fn select_rows(&self, x: &Tensor, mask: &Tensor, rows: Dim) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let saved = r.save(mask);
        let places = self.places(mask, rows);
        let out = self.temp(Shape::new(&[rows, x.dim(2)]), x.dtype(), "scored rows");
        drop(places);
        let before = x.shape().contiguous();
        r.finish(out, move |t, g| {
            let (Some(g), Some(mask)) = (first(g), saved.unpack(t)) else { return Grads::default() };
            let grad = t.temp(before, g.dtype(), "grad of scored rows");
            let line = |op: &'static str| t.temp(Shape::new(&[rows]), Dtype::I64, op);
            let linear = {
                let places = t.places(&mask, rows);
                let by_sequence = line("linear indices");
                let by_token = line("linear indices");
                drop(by_sequence);
                let linear = line("linear indices");
                drop(by_token);
                drop(places);
                linear
            };
            let (sorted, order, range) = (line("sorted indices"), line("order of indices"), line("range"));
            let count = before.dims()[0].n.saturating_mul(before.dims()[1].n);
            let scratch = radix_sort_scratch(t.device().sm, rows.n, bits(count.saturating_sub(1)));
            drop(t.scratch(scratch, "sort scratch"));
            drop((range, order, sorted, linear, mask));
            grads_of([Some(grad)])
        })
    }

    /// `x[mask]` for what needs no gradient.
    fn masked(&self, x: &Tensor, mask: &Tensor, rows: Dim) -> Tensor {
        let places = self.places(mask, rows);
        let out = self.temp(Shape::new(&[rows]), x.dtype(), "scored labels");
        drop(places);
        out
    }

    /// `nonzero`: where `mask` is set, as indices by dimension.
    fn places(&self, mask: &Tensor, rows: Dim) -> Tensor {
        let count = self.scalar(Dtype::I32, "count");
        let places = self.temp(Shape::new(&[Dim::plain(mask.shape().rank() as u64), rows]), Dtype::I64, "places");
        drop(count);
        places
    }

    /// `zeros.masked_scatter(mask, line)`; backward selects.
    fn scattered(&self, line: Tensor, mask: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[&line]);
        let saved = r.save(mask);
        let zeros = self.temp(*mask.shape(), line.dtype(), "zeros");
        let out = self.temp(*mask.shape(), line.dtype(), "token scores");
        let all = mask.shape().numel().unwrap_or(0);
        let before = self.temp(*mask.shape(), Dtype::I64, "places before");
        drop(self.scratch(scan_scratch(all), "scan scratch"));
        drop(before);
        drop(zeros);
        let rows = line.dim(0);
        let dtype = line.dtype();
        let out = r.finish(out, move |t, g| {
            let (Some(_), Some(mask)) = (first(g), saved.unpack(t)) else { return Grads::default() };
            let places = t.places(&mask, rows);
            let grad = t.temp(Shape::new(&[rows]), dtype, "grad of token scores");
            drop(places);
            grads_of([Some(grad)])
        });
        drop(line);
        out
    }

    /// `ChunkedLogProbFunction`: log-probability, and extras, of each row.
    fn chunked_log_probs(&self, hidden: &Tensor, targets: &Tensor, weight: &Tensor, extras: Extras) -> Vec<Tensor> {
        let r = Recorder::begin(self, &[hidden, weight]);
        let rows = hidden.dim(0);
        let compute = self.autocast().unwrap_or(hidden.dtype());
        let line = |dtype: Dtype, op: &'static str| self.temp(Shape::new(&[rows]), dtype, op);
        let statistics: Vec<Tensor> = (0..STATISTICS).map(|_| line(Dtype::F32, "row statistics")).collect();
        let locals = self.over_tiles(hidden, weight, compute, None);
        let log_z = {
            let log = line(Dtype::F32, "log of sums");
            let log_z = line(Dtype::F32, "log of partition");
            drop(log);
            log_z
        };
        let mut outs = vec![line(Dtype::F32, "log-probabilities")];
        if extras.entropy || extras.metrics {
            let mean = line(Dtype::F32, "mean logit");
            outs.push(line(Dtype::F32, "entropy"));
            drop(mean);
        }
        if extras.metrics {
            outs.push(line(Dtype::F32, "mean logits"));
            let parts = [line(Dtype::Bool, "likeliest"), line(Dtype::Bool, "likeliest")];
            outs.push(line(Dtype::Bool, "likeliest"));
            drop(parts);
        }
        let (sh, sw, st, sz) = (r.save(hidden), r.save(weight), r.save(targets), r.save(&log_z));
        // The entropy is kept for its own gradient, which does not come.
        let se = r.save(outs.get(1).unwrap_or(&log_z));
        let (needs_hidden, needs_weight) = (hidden.requires_grad(), weight.requires_grad());
        drop(log_z);
        drop(statistics);
        drop(locals);
        r.finish_many(outs, move |t, g| {
            let mut grads = Grads::default();
            let (Some(_), Some(hidden), Some(weight)) = (first(g), sh.unpack(t), sw.unpack(t)) else { return grads };
            let kept = (st.unpack(t), sz.unpack(t), se.unpack(t));
            let zeros = |needed: bool, of: &Tensor, op: &'static str| {
                needed.then(|| t.temp(of.shape().contiguous(), Dtype::F32, op))
            };
            let grad_hidden = zeros(needs_hidden, &hidden, "grad of scored rows");
            let grad_weight = zeros(needs_weight, &weight, "grad of weight");
            // Each tile's products are added to the FP32 sums by cuBLAS.
            let further = usize::from(needs_hidden) + usize::from(needs_weight);
            let locals = t.over_tiles(&hidden, &weight, compute, Some(further));
            let cast = |grad: Option<Tensor>, dtype: Dtype| {
                grad.map(|grad| if grad.dtype() == dtype { grad } else { t.cast_raw(&grad, dtype) })
            };
            grads[0] = cast(grad_hidden.clone(), hidden.dtype());
            grads[1] = cast(grad_weight.clone(), weight.dtype());
            drop((grad_hidden, grad_weight, locals, kept));
            grads
        })
    }

    /// The head's products, tile by tile; in backward each is followed by some more, and the weight's part is a
    /// variable. Returns the function's variables, which live until it returns.
    fn over_tiles(
        &self,
        hidden: &Tensor,
        weight: &Tensor,
        compute: Dtype,
        backward: Option<usize>,
    ) -> [Option<Tensor>; 3] {
        let (rows, width, vocabulary) = (hidden.dim(0).n, hidden.dim(1), weight.dim(0).n);
        let part_of = |n: u64, of: &Tensor, op: &'static str| {
            let shape = Shape::new(&[Dim::plain(n), width]);
            if of.dtype() == compute { of.alias(shape) } else { self.temp(shape, compute, op) }
        };
        let sides = Shape::new(&[Dim::plain(rows.min(ROWS)), Dim::plain(COLUMNS)]);
        let tile = self.temp(sides, compute, "tile of logits");
        let mut chunk: Option<Tensor> = None;
        let mut part: Option<Tensor> = None;
        for from in (0..rows.div_ceil(ROWS)).map(|i| i * ROWS) {
            chunk = Some(part_of(ROWS.min(rows - from), hidden, "rows in half precision"));
            for start in (0..vocabulary.div_ceil(COLUMNS)).map(|i| i * COLUMNS) {
                part = Some(part_of(COLUMNS.min(vocabulary - start), weight, "weight in half precision"));
                for _ in 0..=backward.unwrap_or(0) {
                    drop(self.blas_workspace());
                }
                part = part.filter(|_| backward.is_some());
            }
        }
        [chunk, part, Some(tile)]
    }
}

impl Tape {
    /// `scores[:, -n:].sum(dim=1)`: one number a sequence.
    pub(crate) fn sums_of_scores(&self, scores: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[scores]);
        let whole = *scores.shape();
        let out = self.temp(Shape::new(&[scores.dim(0)]), scores.dtype(), "sums of scores");
        r.finish(out, move |t, g| grads_of([first(g).map(|g| t.temp(whole, g.dtype(), "grad of token scores"))]))
    }

    /// A loss of one number a sequence, in operations over as many.
    pub(crate) fn loss_of_sums(&self, sums: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[sums]);
        let like = *sums.shape();
        let out = self.scalar(sums.dtype(), "loss");
        r.finish(out, move |t, g| grads_of([first(g).map(|g| t.temp(like, g.dtype(), "grad of sums"))]))
    }

    /// `cat([scores[:, -n:]])`: a copy of the last `n`, whose backward writes into zeros of the whole.
    pub(crate) fn last_of(&self, scores: &Tensor, n: Dim) -> Tensor {
        let r = Recorder::begin(self, &[scores]);
        let whole = *scores.shape();
        let out = self.temp(scores.shape().narrowed(1, n).contiguous(), scores.dtype(), "scores");
        r.finish(out, move |t, g| grads_of([first(g).map(|g| t.temp(whole, g.dtype(), "grad of token scores"))]))
    }

    /// GRPO's loss of scores [b, n]: the clipped ratio of probabilities, and the divergence from a reference. Operations on
    /// one number a token.
    pub(crate) fn clipped_loss(&self, scores: &Tensor, referred: bool) -> Tensor {
        /// Numbers a token that backward needs: ratio, clipped ratio, two losses, the sum's factor; with a reference the
        /// difference and its exponential.
        const KEPT: usize = 5;
        const KEPT_WITH_REFERENCE: usize = 7;
        let r = Recorder::begin(self, &[scores]);
        let line = |op: &'static str| self.temp(*scores.shape(), scores.dtype(), op);
        let kept = if referred { KEPT_WITH_REFERENCE } else { KEPT };
        let saved: Vec<_> = (0..kept).map(|_| r.save(&line("ratios"))).collect();
        let out = self.scalar(scores.dtype(), "loss");
        let like = *scores.shape();
        r.finish(out, move |t, g| {
            let held: Vec<_> = saved.iter().map(|s| s.unpack(t)).collect();
            let grad = first(g).map(|g| t.temp(like, g.dtype(), "grad of scores"));
            drop(held);
            grads_of([grad])
        })
    }

    /// The scores [b, s, 1] at each sequence's last token (`GenericForSequenceClassification`).
    pub(crate) fn last_scores(&self, scores: &Tensor, ids: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[scores]);
        let whole = *scores.shape();
        let b = ids.dim(0);
        let kept = {
            let other = self.temp(*ids.shape(), Dtype::Bool, "tokens");
            let kept = self.temp(*ids.shape(), Dtype::I32, "tokens");
            drop(other);
            kept
        };
        let range = self.temp(Shape::new(&[ids.dim(1)]), Dtype::I32, "range");
        let last = {
            let places = self.temp(*ids.shape(), Dtype::I32, "places");
            let last = self.temp(Shape::new(&[b]), Dtype::I64, "last tokens");
            drop(places);
            last
        };
        let saved = r.save(&last);
        let sequences = self.temp(Shape::new(&[b]), Dtype::I64, "sequences");
        let saved_sequences = r.save(&sequences);
        let out = self.temp(Shape::new(&[b, Dim::plain(1)]), scores.dtype(), "last scores");
        drop((sequences, last, range, kept));
        r.finish(out, move |t, g| {
            let (Some(g), Some(_), Some(_)) = (first(g), saved.unpack(t), saved_sequences.unpack(t)) else {
                return Grads::default();
            };
            grads_of([Some(t.temp(whole.contiguous(), g.dtype(), "grad of last scores"))])
        })
    }
}
