//! Embedding look-ups.

use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::ops::pointwise::first;
use crate::step::ops::sort::{bits, radix_sort_scratch, scan_scratch, selection_scratch};
use crate::step::parallel::{EMBEDDING, after_forward, before_forward, module};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{AS_TABLE, Dtype, Tensor};

impl Tape {
    /// `nn.Embedding` of a model: the look-up, as the model's input where it is that.
    #[must_use]
    pub fn embedding(&self, ids: &Tensor, weight: &Tensor) -> Tensor {
        module(self, ids, &[Some(weight)], &|ids| {
            if weight.leaf().is_none_or(|leaf| leaf.id != 0) {
                return self.look_up(ids, &weight.in_use(AS_TABLE));
            }
            before_forward(self, EMBEDDING, &mut []);
            let mut out = [self.split_look_up(ids, &weight.in_use(AS_TABLE))];
            after_forward(self, EMBEDDING, &mut out);
            let [out] = out;
            self.as_input(out, weight)
        })
    }

    /// `out`, the output of the embedding module with this weight, as the model's input where it is that. The input
    /// embedding is a model's first parameter.
    #[must_use]
    pub fn as_input(&self, out: Tensor, weight: &Tensor) -> Tensor {
        if weight.leaf().is_some_and(|leaf| leaf.id == 0) { self.input(out) } else { out }
    }

    /// The model's input, which adapters under checkpointing make a leaf that needs a gradient
    /// (`enable_input_require_grads`).
    #[must_use]
    pub fn input(&self, out: Tensor) -> Tensor {
        if !self.inputs_need_grad() || !self.grad_enabled() || out.requires_grad() {
            return out;
        }
        let (leaf, gradient) = Recorder::force(&out);
        self.pin((leaf.clone(), gradient));
        leaf
    }

    /// `embedding(weight, ids)` for ids of sizes [b, s]. Saves the ids; the weight's gradient is dense.
    #[must_use]
    pub fn look_up(&self, ids: &Tensor, weight: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[weight]);
        let saved = r.save(ids);
        let mut dims: Vec<Dim> = ids.shape().dims().to_vec();
        dims.push(weight.dim(1));
        let flat = self.flat_ids(ids);
        let out = self.temp(Shape::new(&dims), weight.dtype(), "embedding");
        drop(flat);
        let (shape, dtype) = (*weight.shape(), weight.dtype());
        r.finish(out, move |t, g| {
            let (Some(g), Some(ids)) = (first(g), saved.unpack(t)) else { return Grads::default() };
            let dense = t.contiguous_raw(g);
            let ids = t.flat_ids(&ids);
            let grad = t.embedding_grad(&ids, shape, dtype);
            drop(dense);
            grads_of([Some(grad)])
        })
    }

    /// The ids in a row, as `index_select` reads them: a copy where one row is expanded over the batch.
    fn flat_ids(&self, ids: &Tensor) -> Tensor {
        let n = ids.shape().dims().iter().copied().reduce(Dim::times).unwrap_or(Dim::plain(1));
        self.reshape_raw(ids, &[n])
    }

    /// `embedding_dense_backward`: a dense gradient. Above 3,072 ids they are sorted first and summed in segments
    /// (ATen/native/cuda/Embedding.cu and EmbeddingBackwardKernel.cu; which of two ways, recorded with PyTorch 2.15 over
    /// tables of 1 to 256,000 rows).
    pub(crate) fn embedding_grad(&self, ids: &Tensor, shape: Shape, dtype: Dtype) -> Tensor {
        const SORT_ABOVE: u64 = 3072;
        /// `NROWS_PER_THREAD`.
        const ROWS_PER_PART: u64 = 10;
        let n = ids.shape().numel().unwrap_or(0);
        if n <= SORT_ABOVE {
            return self.temp(shape, dtype, "grad of embedding");
        }
        let (rows, columns) = (shape.dims()[0], shape.dims()[1]);
        let line = |n: u64, op: &'static str| self.temp(Shape::new(&[Dim::plain(n)]), Dtype::I64, op);
        let sorted = line(n, "sorted ids");
        let order = line(n, "order of ids");
        {
            let range = line(n, "range");
            let sort = self.scratch(radix_sort_scratch(self.device().sm, n, bits(rows.n)), "sort scratch");
            drop(sort);
            drop(range);
        }
        let grad = self.temp(shape, dtype, "grad of embedding");
        let segments = n.min(rows.n);
        let starts = line(n, "segment starts");
        let count = line(1, "segment count");
        {
            let unused = line(n, "segment scratch");
            let select = self.scratch(selection_scratch(self.device().sm, n), "selection scratch");
            drop(select);
            drop(unused);
        }
        let parts_each = line(segments, "parts per segment");
        let parts_start = line(segments, "part offsets");
        {
            let scan = self.scratch(scan_scratch(segments), "scan scratch");
            drop(scan);
        }
        let parts_count = line(1, "part count");
        let parts = n / ROWS_PER_PART + segments;
        let part_starts = line(parts, "part starts");
        // Few rows that would not fill the card, each with many parts: parts are added into an FP32 gradient.
        let few = rows.n < 4 * self.device().multiprocessors && parts > 4 * segments && columns.n <= 1024;
        let sums = if few {
            let segment_of = line(parts, "segments of parts");
            let wide = (dtype != Dtype::F32).then(|| self.temp(shape, Dtype::F32, "embedding gradient in FP32"));
            (segment_of, wide)
        } else {
            let partial = Shape::new(&[Dim::plain(parts), columns]);
            (self.temp(partial, Dtype::F32, "partial sums of embedding gradient"), None)
        };
        drop(sums.1);
        drop(sums.0);
        drop((part_starts, parts_count, parts_start, parts_each, count, starts, order, sorted));
        grad
    }
}
