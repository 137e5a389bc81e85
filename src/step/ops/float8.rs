//! torchao's `Float8Linear` with dynamic scaling of whole tensors, run eagerly (torchao/float8/float8_linear.py,
//! float8_training_tensor.py, float8_utils.py and float8_ops.py, read at 0.18): input and weight are kept in high
//! precision for backward and cast to one byte per element for each product. `torch.compile` would fuse what casts.

use crate::step::autograd::{Grads, Recorder};
use crate::step::ops::pointwise::first;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Table, Tensor};

/// What sizes of a product must be multiples of (`torch._scaled_mm`).
pub const FLOAT8_MULTIPLE: u64 = 16;

impl Tape {
    /// Whether `weight` is of a converted layer: of those inside the model, not of the head.
    pub(super) fn is_float8(&self, weight: &Tensor) -> bool {
        self.converts_to_float8() && weight.leaf().is_some_and(|leaf| leaf.table.get() == Table::No)
    }

    /// `x @ weight.t()` in FP8, and the bias added to it.
    #[inline(never)]
    pub(super) fn float8_linear(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let x = &match self.autocast() {
            Some(dtype) => self.to(x, dtype),
            None => x.clone(),
        };
        let out = self.float8_product(x, weight);
        match bias {
            None => out,
            Some(bias) => {
                let bias = self.to(bias, out.dtype());
                self.add(&out, &bias)
            }
        }
    }

    fn float8_product(&self, x: &Tensor, weight: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x, weight]);
        let (sx, sw) = (r.save(x), r.save(weight));
        let dims = x.shape().dims();
        let last = dims[dims.len() - 1];
        let rows = dims[..dims.len() - 1].iter().fold(Dim::plain(1), |all, d| all.times(*d));
        let features = weight.dim(0);
        let input8 = self.to_float8(x, false);
        let weight8 = self.to_float8(weight, true);
        let out = self.float8_mm(Shape::new(&[rows, features]), x.dtype(), [None, None]);
        drop(weight8);
        drop(input8);
        let mut sizes = dims.to_vec();
        if let Some(size) = sizes.last_mut() {
            *size = features;
        }
        let out = out.alias(Shape::new(&sizes));
        let (before, wshape) = (*x.shape(), *weight.shape());
        r.finish(out, move |t, g| {
            let mut out = Grads::default();
            let Some(g) = first(g) else { return out };
            let (Some(x), Some(w)) = (sx.unpack(t), sw.unpack(t)) else { return out };
            let flat = t.reshape_raw(g, &[rows, features]);
            let grad8 = t.to_float8(&flat, false);
            let weight8 = t.to_float8(&w, true);
            // The second operand must lie by columns, the first by rows: else it is copied.
            let of_input = t.float8_mm(Shape::new(&[rows, last]), flat.dtype(), [None, Some(wshape)]);
            let again = t.to_float8(&flat, false);
            let input8 = t.to_float8(&x, false);
            let turned = [Some(Shape::new(&[features, rows])), Some(Shape::new(&[last, rows]))];
            let of_weight = t.float8_mm(wshape, flat.dtype(), turned);
            out[0] = Some(t.reshape_raw(&of_input, before.dims()));
            // Transposed twice: a view.
            out[1] = Some(of_weight.alias(wshape));
            drop((grad8, weight8, again, input8));
            out
        })
    }

    /// `x` in one byte per element, and its scale; `turned`: it is seen transposed, so that its largest value is looked
    /// for in a copy.
    fn to_float8(&self, x: &Tensor, turned: bool) -> [Tensor; 2] {
        let shape = x.shape().contiguous();
        let absolute = self.temp(shape, x.dtype(), "absolute values");
        let copy = turned.then(|| self.temp(shape, x.dtype(), "absolute values"));
        let largest = self.largest(&shape, x.dtype());
        drop(copy);
        drop(absolute);
        let double = || self.scratch(8, "scale in FP64");
        let wide = double();
        let clamped = double();
        let reciprocal = double();
        let quotient = double();
        drop(reciprocal);
        drop(clamped);
        let scale = self.scalar(Dtype::F32, "scale");
        drop(quotient);
        drop(wide);
        drop(largest);
        let full = |op: &'static str| self.temp(shape, Dtype::F32, op);
        let single = (x.dtype() != Dtype::F32).then(|| full("FP32 copy"));
        let scaled = full("scaled in FP32");
        drop(single);
        let saturated = full("saturated in FP32");
        let cast = self.temp(shape, Dtype::U8, "FP8 copy");
        drop(saturated);
        drop(scaled);
        [cast, scale]
    }

    /// A product of FP8 operands, of which those given are copied first.
    fn float8_mm(&self, out: Shape, dtype: Dtype, copied: [Option<Shape>; 2]) -> Tensor {
        let copies = copied.map(|shape| shape.map(|shape| self.temp(shape, Dtype::U8, "FP8 copy by rows or columns")));
        let inverse = [(); 2].map(|()| self.scalar(Dtype::F32, "inverse scale"));
        let out = self.temp(out, dtype, "matmul in FP8");
        let workspace = self.blas_lt_workspace();
        drop(workspace);
        drop(inverse);
        drop(copies);
        out
    }
}
