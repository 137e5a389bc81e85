//! Linear layers over weights in 4 or 8 bits (bitsandbytes 0.50: `nn/modules.py`, `autograd/_functions.py`,
//! `backends/cuda/ops.py`).

use core::cell::RefCell;

use crate::bill::Part;
use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::ops::fused_4bit::fused_4bit;
use crate::step::ops::matmul::{flat_rows, with_last};
use crate::step::ops::pointwise::first;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// A code for weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// 4 bits in blocks of 64 weights, each with a scale.
    FourBits,
    /// 4 bits whose scales are quantised themselves, in blocks of 256.
    FourBitsNested,
    /// 8 bits, each row with a scale.
    Int8,
}

/// A linear layer's weight in 4 or 8 bits, and what its module holds beside it.
#[derive(Debug)]
pub(crate) struct Quantized {
    pub(crate) code: Code,
    /// Outputs.
    pub(crate) rows: Dim,
    /// Inputs.
    pub(crate) columns: Dim,
    /// The dtype that products run in; 4 bits only.
    pub(crate) compute: Dtype,
    /// The dtype that it was loaded in, which dequantising gives.
    pub(crate) loaded: Dtype,
    /// The codes.
    pub(crate) packed: Tensor,
    /// Scales, and scales and codes of theirs.
    pub(crate) state: Vec<Tensor>,
    /// The bias's memory. The layer's call casts it for good to the dtype of its input.
    pub(crate) bias: RefCell<Option<Tensor>>,
}

/// Weights that share a scale.
pub(crate) const BLOCK: u64 = 64;
/// Scales that share a scale of their own.
pub(crate) const NESTED_BLOCK: u64 = 256;

impl Quantized {
    fn shape(&self) -> Shape {
        Shape::new(&[self.rows, self.columns])
    }

    /// How many scales a 4-bit weight has.
    fn scales(&self) -> Shape {
        let n = self.rows.n.saturating_mul(self.columns.n);
        Shape::new(&[Dim::plain(n.div_ceil(BLOCK))])
    }
}

impl Tape {
    #[inline(never)]
    pub(super) fn linear_quantized(&self, x: &Tensor, q: &std::rc::Rc<Quantized>, bias: bool) -> Tensor {
        if q.code == Code::Int8 {
            self.settle_bias(q, x.dtype());
            return self.linear_8bit(x, q);
        }
        let inner = self.to(x, q.compute);
        self.settle_bias(q, q.compute);
        let r = Recorder::begin(self, &[&inner]);
        let product = self.with_grad(false, || self.gemm_4bit(&inner, q, bias));
        let (code, shape) = (q.clone(), *inner.shape());
        let product = r.finish(product, move |t, g| {
            let Some(g) = first(g) else { return Grads::default() };
            let weight = {
                let dense = t.dequantized(&code);
                if dense.dtype() == g.dtype() { dense } else { t.cast_raw(&dense, g.dtype()) }
            };
            let rows = t.reshape_raw(g, &[flat_rows(g).0, code.rows]);
            let grad = t.product_out(Shape::new(&[rows.dim(0), code.columns]), g, "grad of matmul input");
            drop((rows, weight));
            grads_of([Some(t.reshape_raw(&grad, shape.dims()))])
        });
        let out = self.to(&product, x.dtype());
        drop(product);
        drop(inner);
        out
    }

    /// `bias.data = bias.data.to(x.dtype)`: once, for good.
    fn settle_bias(&self, q: &Quantized, dtype: Dtype) {
        let mut bias = q.bias.borrow_mut();
        if let Some(before) = bias.take() {
            *bias = Some(if before.dtype() == dtype || self.stopped() {
                before
            } else {
                self.empty(*before.shape(), dtype, Part::Weights, "bias")
            });
        }
    }

    /// `bitsandbytes::gemm_4bit`: one fused kernel, or dequantising and `F.linear`.
    fn gemm_4bit(&self, x: &Tensor, q: &Quantized, bias: bool) -> Tensor {
        let (rows, columns) = flat_rows(x);
        let shape = with_last(x, q.rows);
        if fused_4bit(self.device(), x.dtype(), rows.n, q.rows.n, columns.n) {
            return self.temp(shape, x.dtype(), "4-bit matmul");
        }
        let scales = (q.code == Code::FourBitsNested).then(|| {
            let raw = self.temp(q.scales(), Dtype::F32, "scales");
            (self.temp(q.scales(), Dtype::F32, "scales"), raw)
        });
        let dense = self.temp(q.shape(), x.dtype(), "dequantised weight");
        let out = {
            let dense = self.autocast_lower(&dense);
            let x = self.autocast_lower(x);
            let bias = if bias { self.blas_lt_out(shape, &x) } else { self.product_out(shape, &x, "matmul") };
            drop((dense, x));
            bias
        };
        drop(scales);
        drop(dense);
        out
    }

    fn blas_lt_out(&self, shape: Shape, like: &Tensor) -> Tensor {
        let out = self.temp(shape, like.dtype(), "matmul");
        let workspace = self.blas_lt_workspace();
        drop(workspace);
        out
    }

    /// The weight in the dtype that it was loaded in (`dequantize_4bit`, `int8_vectorwise_dequant`).
    fn dequantized(&self, q: &Quantized) -> Tensor {
        if q.code == Code::Int8 {
            // codes × scales × 1/127, each a tensor in FP32.
            let scaled = self.temp(q.shape(), Dtype::F32, "dequantised weight");
            return self.elementwise(&[&scaled], Dtype::F32, "dequantised weight");
        }
        let scales = (q.code == Code::FourBitsNested).then(|| self.temp(q.scales(), Dtype::F32, "scales"));
        let dense = self.temp(q.shape(), q.loaded, "dequantised weight");
        drop(scales);
        dense
    }

    /// A weight as a matrix of numbers: itself, or dequantised.
    #[inline(never)]
    pub(crate) fn dense_weight(&self, weight: &Tensor) -> Tensor {
        match weight.leaf().and_then(|leaf| leaf.quantized.clone()) {
            Some(q) => self.dequantized(&q),
            None => weight.clone(),
        }
    }

    /// `MatMul8bitLt`: the input is quantised row by row, the product is of integers. The function keeps its input as an
    /// attribute, outside the saved-tensor hooks: checkpointing without re-entry does not free it, nor does backward before
    /// the loss goes.
    fn linear_8bit(&self, x: &Tensor, q: &std::rc::Rc<Quantized>) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let (rows, columns) = flat_rows(x);
        let flat = self.reshape_raw(x, &[rows, columns]);
        let out = self.with_grad(false, || {
            let codes = {
                let half = if x.dtype() == Dtype::F16 { flat.clone() } else { self.cast_raw(&flat, Dtype::F16) };
                let scales = self.temp(Shape::new(&[rows]), Dtype::F32, "row scales");
                let codes = self.temp(*flat.shape(), Dtype::U8, "row codes");
                let outliers = {
                    let absolute = self.elementwise(&[&half], Dtype::F16, "absolute values");
                    self.elementwise(&[&absolute], Dtype::Bool, "outliers")
                };
                let any = self.reduced(&outliers, &Shape::new(&[]), "any outlier");
                drop(any);
                drop(outliers);
                drop(half);
                (codes, scales)
            };
            let product = Shape::new(&[rows, q.rows]);
            let whole = self.temp(product, Dtype::I32, "integer matmul");
            let half = self.temp(product, Dtype::F16, "matmul");
            let out = if x.dtype() == Dtype::F16 { half.clone() } else { self.cast_raw(&half, x.dtype()) };
            drop(half);
            drop(whole);
            drop(codes);
            out
        });
        let out = out.alias(with_last(x, q.rows));
        let recorded = r.recorded();
        let held = recorded.then(|| {
            let held = flat.detached();
            self.becomes(&held, Part::Activations);
            self.hold(&held);
            held
        });
        let (code, before, dtype) = (q.clone(), *x.shape(), x.dtype());
        r.finish(out, move |t, g| -> Grads {
            let (Some(g), Some(_)) = (first(g), held.as_ref()) else { return Grads::default() };
            let n = flat_rows(g).0;
            let rows = t.contiguous_raw(&t.reshape_raw(g, &[n, code.rows]));
            let dense = t.temp(code.shape(), dtype, "dequantised weight");
            let scale = t.temp(Shape::new(&[code.rows]), Dtype::F32, "scales");
            drop(scale);
            let rows = if rows.dtype() == dtype { rows } else { t.cast_raw(&rows, dtype) };
            let grad = t.product_out(Shape::new(&[n, code.columns]), &rows, "grad of matmul input");
            drop(rows);
            drop(dense);
            grads_of([Some(t.reshape_raw(&grad, before.dims()))])
        })
    }
}
