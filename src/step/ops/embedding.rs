//! Embedding look-ups.

use crate::step::autograd::Recorder;
use crate::step::ops::pointwise::first;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

impl Tape {
    /// `embedding(weight, ids)` for ids of sizes [b, s]. Saves the ids; the weight's gradient is dense.
    #[must_use]
    pub fn embedding(&self, ids: &Tensor, weight: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[weight]);
        let saved = r.save(ids);
        let mut dims: Vec<Dim> = ids.shape().dims().to_vec();
        dims.push(weight.dim(1));
        let out = self.temp(Shape::new(&dims), weight.dtype(), "embedding");
        let (shape, dtype) = (*weight.shape(), weight.dtype());
        r.finish(out, move |t, g| {
            let (Some(_), Some(ids)) = (first(g), saved.unpack(t)) else { return vec![None] };
            let grad = t.temp(shape, dtype, "grad of embedding");
            t.embedding_sort(&ids, shape.dims()[1].n);
            vec![Some(grad)]
        })
    }

    /// Scratch of `embedding_dense_backward`: above 3,072 ids they are sorted first.
    fn embedding_sort(&self, ids: &Tensor, _width: u64) {
        let Some(n) = ids.shape().numel() else { return };
        if n <= 3072 {
            return;
        }
        let flat = Shape::new(&[Dim::plain(n)]);
        let sorted = self.temp(flat, Dtype::I64, "sorted ids");
        let order = self.temp(flat, Dtype::I64, "order of ids");
        drop(order);
        drop(sorted);
    }
}
