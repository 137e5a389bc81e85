//! The kernels of the package flash-attn by what its autograd functions and `csrc/flash_attn/flash_api.cpp` allocate and keep
//! (read at 2.8.4). Query, key and value are [b, s, heads, d] however they lie: only the last dimension must be dense.

use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::ops::attention::flash_splits;
use crate::step::ops::pointwise::first;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// What heads are padded to a multiple of (`flash_attn_interface.py`).
const HEAD_ALIGNMENT: u64 = 8;
/// What its backward's rows are padded to a multiple of.
const ROWS: u64 = 128;

/// Its head size in scratch: a multiple of 32, above 128 of 64.
const fn rounded_head(d: u64) -> u64 {
    d.next_multiple_of(if d <= 128 { 32 } else { 64 })
}

/// Where packed sequences begin: running sums of their lengths in 32-bit integers, given for queries and keys alike.
pub(crate) struct Sequences {
    /// The running sums.
    pub(crate) starts: Tensor,
    /// How many sequences there are.
    pub(crate) count: u64,
}

impl Tape {
    /// `flash_attn_func` of q [b, s, a, d] over k, v [b, s, g, d], or with `packed` `flash_attn_varlen_func` of q [s, a, d].
    /// Keeps q, k, v, the output, log-sum-exp, the generator's state and where sequences begin.
    pub(crate) fn flash_package(&self, [q, k, v]: [&Tensor; 3], packed: Option<&Sequences>, dropout: f64) -> Tensor {
        let dropout = self.dropped(dropout);
        let r = Recorder::begin(self, &[q, k, v]);
        let (last, head) = (q.shape().rank() - 1, q.dim(q.shape().rank() - 1));
        let padded = head.n.next_multiple_of(HEAD_ALIGNMENT);
        let pads = padded != head.n;
        let widened = |x: &Tensor| if pads { self.pad_raw(x, Dim::plain(padded)) } else { x.clone() };
        let [q, k, v] = [q, k, v].map(widened);
        let (heads, rows) = (q.dim(last - 1), q.dim(last - 2));
        let lse = if packed.is_some() { Shape::new(&[heads, rows]) } else { Shape::new(&[q.dim(0), heads, rows]) };
        let out = self.temp(q.shape().like(), q.dtype(), "attention output");
        let lse = self.temp(lse, Dtype::F32, "log-sum-exp");
        let splits = match packed {
            None if dropout <= 0.0 => flash_splits(self.device(), q.dim(0).n * heads.n, rows.n, k.dim(1).n, padded),
            _ => 1,
        };
        let parts = (splits > 1).then(|| {
            let part = |last: &[Dim]| {
                let dims = [&[Dim::plain(splits), q.dim(0), heads, rows], last].concat();
                self.temp(Shape::new(&dims), Dtype::F32, "attention splits")
            };
            let sums = part(&[]);
            (part(&[Dim::plain(rounded_head(padded))]), sums)
        });
        let state = self.scratch(16, "generator state");
        drop(parts);
        let kept = [&q, &k, &v, &out, &lse].map(|x| r.save(x));
        let starts = packed.map(|packed| r.save(&packed.starts));
        let state = {
            let kept = r.save(&state);
            drop(state);
            kept
        };
        let sequences = packed.map(|packed| packed.count);
        drop((q, k, v, lse));
        let out = if pads { out.alias(out.shape().narrowed(last, head)) } else { out };
        r.finish(out, move |t, g| -> Grads {
            let kept =
                (kept.each_ref().map(|x| x.unpack(t)), starts.as_ref().and_then(|x| x.unpack(t)), state.unpack(t));
            let ([Some(q), Some(k), Some(v), ..], Some(g)) = (&kept.0, first(g)) else { return Grads::default() };
            let grads = [q, k, v].map(|x| t.temp(x.shape().like(), x.dtype(), "grad of attention"));
            let wide = pads.then(|| t.pad_raw(g, Dim::plain(padded)));
            let width = Dim::plain(rounded_head(padded));
            let (sums, dq) = match sequences {
                None => {
                    let rows = Dim::plain(rows.n.next_multiple_of(ROWS));
                    (Shape::new(&[q.dim(0), heads, rows]), Shape::new(&[q.dim(0), rows, heads, width]))
                }
                Some(count) => {
                    let rows = Dim::plain(rows.n.saturating_add(ROWS.saturating_mul(count)));
                    (Shape::new(&[heads, rows]), Shape::new(&[rows, heads, width]))
                }
            };
            let sums = t.temp(sums, Dtype::F32, "flash softmax sum");
            let dq = t.temp(dq, Dtype::F32, "flash query gradient sum");
            let expanded = (k.dim(last - 1).n != heads.n).then(|| {
                let mut dims = k.shape().dims().to_vec();
                dims[last - 1] = heads;
                let part = |op: &'static str| t.temp(Shape::new(&dims), k.dtype(), op);
                let key = part("expanded key gradient");
                (part("expanded value gradient"), key)
            });
            drop(expanded);
            drop(dq);
            drop(sums);
            drop(wide);
            drop(kept);
            grads_of(grads.map(|x| Some(if pads { x.alias(x.shape().narrowed(last, head)) } else { x })))
        })
    }

    /// `torch.nn.functional.pad` of the last dimension, outside the graph: zeros, then the input over them.
    fn pad_raw(&self, x: &Tensor, to: Dim) -> Tensor {
        let last = x.shape().rank() - 1;
        self.temp(x.shape().narrowed(last, to).contiguous(), x.dtype(), "padded head")
    }
}
