//! Matrix products and the scratch that cuBLAS asks for.

use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::ops::pointwise::first;
use crate::step::parallel;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{AS_LINEAR, Tensor};

/// How a weight matrix lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightLayout {
    /// `nn.Linear`: [out, in].
    OutIn,
    /// GPT-2's `Conv1D`: [in, out].
    InOut,
}

/// What a product of two matrices is called.
const MM: &str = "matmul";

impl Tape {
    /// A product's output and, for the time of the call, cuBLAS's workspace.
    pub(crate) fn product_out(&self, shape: Shape, like: &Tensor, op: &'static str) -> Tensor {
        let out = self.temp(shape, like.dtype(), op);
        let workspace = self.blas_workspace();
        drop(workspace);
        out
    }

    /// A product of the forward.
    pub(crate) fn product(&self, shape: Shape, like: &Tensor, op: &'static str) -> Tensor {
        self.one_computed(op == MM, &|| self.product_out(shape, like, op))
    }

    /// `mm`: whether it is `aten::mm`, of which a policy may keep every second.
    fn one_computed(&self, mm: bool, compute: &dyn Fn() -> Tensor) -> Tensor {
        self.computed(mm, &|| vec![compute()]).pop().unwrap_or_else(compute)
    }

    /// `nn.Linear`: weight [out, in].
    #[must_use]
    pub fn linear(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        parallel::module(self, x, &[Some(weight), bias], &|x| {
            if let Some(out) = parallel::own_linear(self, x, weight, bias) {
                return out;
            }
            if let Some(scaling) = self.converted(weight) {
                return self.te_linear(x, weight, scaling);
            }
            if self.is_float8(weight) {
                return self.float8_linear(x, weight, bias);
            }
            let Some(split) = weight.leaf().and_then(|leaf| leaf.split.get()) else {
                return self.adaptable(x, weight, bias, WeightLayout::OutIn);
            };
            let x = self.split_input(x, split);
            let out = self.adaptable(&x, weight, bias, WeightLayout::OutIn);
            drop(x);
            self.split_output(out, split)
        })
    }

    /// GPT-2's `Conv1D`: weight [in, out], always with a bias.
    #[must_use]
    pub fn conv1d(&self, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Tensor {
        parallel::module(self, x, &[Some(weight), Some(bias)], &|x| {
            self.adaptable(x, weight, Some(bias), WeightLayout::InOut)
        })
    }

    fn adaptable(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, layout: WeightLayout) -> Tensor {
        let quantized = weight.leaf().and_then(|leaf| leaf.quantized.clone());
        let in_use = weight.in_use(AS_LINEAR);
        let bias = &bias.map(|bias| bias.in_use(AS_LINEAR));
        let result = match (quantized, bias) {
            (Some(quantized), _) => self.linear_quantized(x, &quantized, bias.is_some()),
            (None, None) => self.linear_plain(x, &in_use),
            // Only what is contiguous goes through `addmm` (`at::linear`, ATen/native/Linear.cpp).
            (None, Some(bias)) if x.shape().rank() > 2 && !self.is_contiguous_below_autocast(x) => {
                let product = self.linear_plain(x, &in_use);
                self.add_in_place(&product, bias)
            }
            (None, Some(bias)) => self.linear_bias(x, &in_use, bias, layout),
        };
        self.adapted(x, weight, bias.as_ref(), layout, result)
    }

    /// Without a bias: `mm` over the rows. Autocast casts the arguments from the last to the first.
    pub(super) fn linear_plain(&self, x: &Tensor, weight: &Tensor) -> Tensor {
        let weight = &self.autocast_lower(weight);
        let x = &self.autocast_lower(x);
        let whole = x;
        let (rows, last) = flat_rows(x);
        let x = &if x.shape().viewed(&[rows, last]).is_some() {
            x.clone()
        } else if weight.requires_grad() || x.shape().rank() != 3 {
            // Flattened by a copy (`should_fold`, ATen/native/LinearAlgebra.cpp).
            self.reshape(x, &[rows, last])
        } else {
            return self.linear_batched(x, weight);
        };
        let r = Recorder::begin(self, &[x, weight]);
        let sw = r.save_if(x.requires_grad(), weight);
        let sx = r.save_if(weight.requires_grad(), x);
        let features = weight.dim(0);
        let out = self.product(Shape::new(&[rows, features]), x, MM);
        let (before, wshape) = (*x.shape(), *weight.shape());
        let out = r.finish(out, move |t, g| {
            let mut out = Grads::default();
            let Some(g) = first(g) else { return out };
            let (w, x) = (sw.unpack(t), sx.unpack(t));
            if x.is_some() {
                // The gradient of the transposed weight, transposed back: a view.
                let grad = t.product_out(wshape, g, "grad of weight");
                out[1] = Some(grad.alias(wshape));
            }
            if w.is_some() {
                let grad = t.product_out(Shape::new(&[rows, last]), g, "grad of matmul input");
                out[0] = Some(t.reshape_raw(&grad, before.dims()));
            }
            out
        });
        self.unflatten(out, whole)
    }

    /// Without a bias, a frozen weight and rows that cannot be flattened: one product a sequence.
    #[inline(never)]
    fn linear_batched(&self, x: &Tensor, weight: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let sw = r.save_if(x.requires_grad(), weight);
        let out = self.one_computed(false, &|| self.product_out(with_last(x, weight.dim(0)), x, MM));
        let shape = x.shape().contiguous();
        r.finish(out, move |t, g| {
            let (Some(g), Some(weight)) = (first(g), sw.unpack(t)) else { return Grads::default() };
            let grad = t.product_out(shape, g, "grad of matmul input");
            drop(weight);
            grads_of([Some(grad)])
        })
    }

    /// Whether an operand is contiguous as autocast gives it to a product: a cast is a dense copy.
    fn is_contiguous_below_autocast(&self, x: &Tensor) -> bool {
        x.shape().is_contiguous() || self.autocast().is_some_and(|dtype| dtype != x.dtype())
    }

    /// The product over flattened rows seen with `x`'s leading sizes: a view with a node of its own, which copies a
    /// gradient that does not lie so and lets the original go.
    fn unflatten(&self, out: Tensor, x: &Tensor) -> Tensor {
        if x.shape().rank() == 2 { out } else { self.reshape(&out, with_last(x, out.dim(1)).dims()) }
    }

    /// With a bias: `addmm` over the rows, through cuBLASLt.
    #[inline(never)]
    fn linear_bias(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, layout: WeightLayout) -> Tensor {
        let casts = match layout {
            // F.linear(input, weight, bias): casts bias, weight, input.
            WeightLayout::OutIn => {
                let bias = self.autocast_lower(bias);
                let weight = self.autocast_lower(weight);
                (weight, self.autocast_lower(x), bias)
            }
            // addmm(bias, input, weight): casts weight, input, bias.
            WeightLayout::InOut => {
                let weight = self.autocast_lower(weight);
                let x = self.autocast_lower(x);
                (weight, x, self.autocast_lower(bias))
            }
        };
        let (weight, x, bias) = (&casts.0, &casts.1, &casts.2);
        let r = Recorder::begin(self, &[bias, x, weight]);
        let sx = r.save_if(weight.requires_grad(), x);
        let sw = r.save_if(x.requires_grad(), weight);
        let (rows, last) = flat_rows(x);
        let features = bias.dim(0);
        let out = self.one_computed(false, &|| {
            let out = self.temp(Shape::new(&[rows, features]), x.dtype(), "matmul");
            let workspace = self.blas_lt_workspace();
            drop(workspace);
            out
        });
        let (before, wshape, needs_bias) = (*x.shape(), *weight.shape(), bias.requires_grad());
        let out = r.finish(out, move |t, g| {
            let mut out = Grads::default();
            let Some(g) = first(g) else { return out };
            let (x, w) = (sx.unpack(t), sw.unpack(t));
            if w.is_some() {
                let grad = t.product_out(Shape::new(&[rows, last]), g, "grad of matmul input");
                out[1] = Some(t.reshape_raw(&grad, before.dims()));
            }
            if x.is_some() {
                let grad = t.product_out(wshape, g, "grad of weight");
                // `nn.Linear`'s comes through the transposed weight, as a view.
                out[2] = Some(if layout == WeightLayout::OutIn { grad.alias(wshape) } else { grad });
            }
            if needs_bias {
                // Summed over the rows when the engine checks the gradient's sizes.
                out[0] = Some(g.clone());
            }
            out
        });
        let out = self.unflatten(out, x);
        // Arguments are let go against the order in which they were cast.
        let (weight, x, bias) = casts;
        match layout {
            WeightLayout::OutIn => drop((x, weight, bias)),
            WeightLayout::InOut => drop((bias, x, weight)),
        }
        out
    }

    /// `torch.matmul` of two 4-D tensors [b, n, r, k] × [b, n or 1, k, c]: `bmm` over b × n, operands copied where they
    /// cannot be viewed flat.
    #[must_use]
    pub fn matmul4(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let b = &self.autocast_lower(b);
        let a = &self.autocast_lower(a);
        let b = &if b.dim(1).n == a.dim(1).n { b.clone() } else { self.expand(b, 1, a.dim(1)) };
        let batch = a.dim(0).times(a.dim(1));
        let a3 = self.reshape(a, &[batch, a.dim(2), a.dim(3)]);
        let b3 = self.reshape(b, &[batch, b.dim(2), b.dim(3)]);
        let out = self.bmm(&a3, &b3);
        self.reshape(&out, &[a.dim(0), a.dim(1), a.dim(2), b.dim(3)])
    }

    /// `input.baddbmm(a, b, beta=1, alpha=…)` for an input without a gradient. Backward scales each product.
    #[must_use]
    pub fn baddbmm(&self, input: &Tensor, a: &Tensor, b: &Tensor) -> Tensor {
        let b = &self.autocast_lower(b);
        let a = &self.autocast_lower(a);
        let input = self.autocast_lower(input);
        let r = Recorder::begin(self, &[a, b]);
        let sb = r.save_if(a.requires_grad(), b);
        let sa = r.save_if(b.requires_grad(), a);
        let out = self.product(Shape::new(&[a.dim(0), a.dim(1), b.dim(2)]), a, "batched matmul");
        drop(input);
        let (ashape, bshape) = (*a.shape(), *b.shape());
        r.finish(out, move |t, g| {
            let mut out = Grads::default();
            let Some(g) = first(g) else { return out };
            let (b, a) = (sb.unpack(t), sa.unpack(t));
            let scaled = |shape: Shape| {
                let product = t.product_out(shape.contiguous(), g, "grad of batched matmul");
                t.elementwise(&[&product], g.dtype(), "grad of batched matmul")
            };
            if b.is_some() {
                out[0] = Some(scaled(ashape));
            }
            if a.is_some() {
                out[1] = Some(scaled(bshape));
            }
            out
        })
    }

    /// `bmm`: [n, r, k] × [n, k, c].
    pub(crate) fn bmm(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let b = &self.autocast_lower(b);
        let a = &self.autocast_lower(a);
        let r = Recorder::begin(self, &[a, b]);
        let sb = r.save_if(a.requires_grad(), b);
        let sa = r.save_if(b.requires_grad(), a);
        let out = self.product(Shape::new(&[a.dim(0), a.dim(1), b.dim(2)]), a, "batched matmul");
        let (ashape, bshape) = (*a.shape(), *b.shape());
        r.finish(out, move |t, g| {
            let mut out = Grads::default();
            let Some(g) = first(g) else { return out };
            let (b, a) = (sb.unpack(t), sa.unpack(t));
            if a.is_some() {
                out[1] = Some(t.product_out(bshape.contiguous(), g, "grad of batched matmul"));
            }
            if b.is_some() {
                out[0] = Some(t.product_out(ashape.contiguous(), g, "grad of batched matmul"));
            }
            out
        })
    }
}

/// The rows of `x` flattened, and its last dimension.
pub(super) fn flat_rows(x: &Tensor) -> (Dim, Dim) {
    let dims = x.shape().dims();
    let (last, lead) = dims.split_last().map_or((Dim::plain(1), dims), |(l, rest)| (*l, rest));
    (lead.iter().copied().reduce(Dim::times).unwrap_or(Dim::plain(1)), last)
}

/// `x`'s sizes with another last dimension, contiguous.
pub(super) fn with_last(x: &Tensor, last: Dim) -> Shape {
    x.shape().narrowed(x.shape().rank() - 1, last).contiguous()
}
