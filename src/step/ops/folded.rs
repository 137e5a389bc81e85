//! Adapters on parameters rather than on layers: the pair is folded into the parameter for the time of its module's
//! forward (`lora.ParamWrapper`, peft 0.21, `tuners/lora/layer.py`; `torch.nn.utils.parametrize`, PyTorch 2.15).
//!
//! Of a stack of experts, one `baddbmm` makes the whole stack anew with what the pairs add; of a matrix, what they add is
//! made first. Each is made twice: registering a parametrization makes it once to check its type.

use crate::step::autograd::{Grads, Recorder};
use crate::step::ops::pointwise::first;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Adapter, Tensor};

/// What a parameter's wrapper holds while its module runs.
#[derive(Debug)]
pub(crate) struct Fold {
    weight: Tensor,
    adds: Adds,
}

#[derive(Debug)]
enum Adds {
    Nothing,
    /// The factors of what is added to each expert's matrix (`_LoraFactorsProxy`).
    Factors([Tensor; 2]),
    /// What is added (`_LoraParameterProxy`).
    Delta(Tensor),
}

impl Fold {
    /// Whether a pair is folded in.
    fn is_folded(&self) -> bool {
        !matches!(self.adds, Adds::Nothing)
    }
}

impl Tape {
    /// Enters the wrapper of `weight`, where it has a pair that runs. `transposed`: experts' matrices lie [in, out].
    pub(crate) fn fold(&self, weight: &Tensor, transposed: bool) -> Fold {
        let pair = weight.leaf().filter(|_| self.adapters_run()).and_then(|leaf| leaf.adapter.borrow().clone());
        let adds = match pair {
            None => Adds::Nothing,
            Some(pair) if weight.shape().rank() == 3 => Adds::Factors(self.factors(weight, &pair, transposed)),
            Some(pair) => Adds::Delta(self.delta(weight, &pair)),
        };
        let fold = Fold { weight: weight.clone(), adds };
        if fold.is_folded() {
            drop(self.folded(&fold));
        }
        fold
    }

    /// The parameter as its module sees it.
    pub(crate) fn folded(&self, fold: &Fold) -> Tensor {
        match &fold.adds {
            Adds::Nothing => fold.weight.clone(),
            Adds::Factors([left, right]) => self.with_autocast_off(|| self.add_products(&fold.weight, left, right)),
            Adds::Delta(delta) => self.add(&fold.weight, delta),
        }
    }

    /// `get_delta_factors`: views of the pair, in the parameter's dtype.
    fn factors(&self, weight: &Tensor, pair: &Adapter, transposed: bool) -> [Tensor; 2] {
        let experts = weight.dim(0);
        let rank = Dim::plain(pair.a.dim(0).n / experts.n.max(1));
        let a = self.reshape(&pair.a, &[experts, rank, pair.a.dim(1)]);
        let b = self.transpose(&self.reshape(&pair.b, &[pair.b.dim(0), rank, experts]), 0, 2);
        // `b` is [experts, rank, out] here.
        let (left, right) = if transposed { (self.transpose(&a, 1, 2), b) } else { (self.transpose(&b, 1, 2), a) };
        [left, right].map(|factor| self.to(&factor, weight.dtype()))
    }

    /// `get_delta_weight` of a matrix: the pair's product, scaled, in the parameter's dtype.
    fn delta(&self, weight: &Tensor, pair: &Adapter) -> Tensor {
        let scaled = {
            let product = self.product_of(&pair.b, &pair.a);
            self.mul_scalar(&product)
        };
        self.to(&scaled, weight.dtype())
    }

    /// `b @ a` of two matrices, both trained.
    fn product_of(&self, b: &Tensor, a: &Tensor) -> Tensor {
        let a = &self.autocast_lower(a);
        let b = &self.autocast_lower(b);
        let r = Recorder::begin(self, &[b, a]);
        let (sb, sa) = (r.save(b), r.save(a));
        let (bshape, ashape) = (*b.shape(), *a.shape());
        let out = self.product(Shape::new(&[b.dim(0), a.dim(1)]), b, "low-rank product");
        r.finish(out, move |t, g| {
            let mut out = Grads::default();
            let Some(g) = first(g) else { return out };
            let (b, a) = (sb.unpack(t), sa.unpack(t));
            out[1] = Some(t.product_out(ashape, g, "grad of low-rank pair"));
            out[0] = Some(t.product_out(bshape, g, "grad of low-rank pair"));
            drop((b, a));
            out
        })
    }

    /// `baddbmm(weight, left, right, alpha=scaling)` over a frozen stack of matrices.
    fn add_products(&self, weight: &Tensor, left: &Tensor, right: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[left, right]);
        let (sr, sl) = (r.save(right), r.save(left));
        let whole = weight.shape().contiguous();
        let out = self.stack_product(whole, &[left, right], "experts with their pairs");
        r.finish(out, move |t, g| {
            let mut out = Grads::default();
            let Some(g) = first(g) else { return out };
            let (right, left) = (sr.unpack(t), sl.unpack(t));
            let (Some(right), Some(left)) = (right, left) else { return out };
            let grad = |of: &Tensor, operands: &[&Tensor]| {
                let product = t.stack_product(of.shape().contiguous(), operands, "grad of pairs");
                t.elementwise(&[&product], g.dtype(), "grad of pairs")
            };
            out[0] = Some(grad(&left, &[g, &right]));
            out[1] = Some(grad(&right, &[&left, g]));
            out
        })
    }

    /// A batched product. cuBLAS takes matrices that lie densely along one of their sides; others are copied for it
    /// (`prepare_batch_matrix_for_cublas`, ATen/native/cuda/Blas.cpp).
    fn stack_product(&self, shape: Shape, operands: &[&Tensor], op: &'static str) -> Tensor {
        let out = self.temp(shape, operands[0].dtype(), op);
        let copies: Vec<Tensor> = operands
            .iter()
            .filter(|x| !x.shape().strides()[1..].contains(&1))
            .map(|x| self.temp(x.shape().contiguous(), x.dtype(), "operand laid out"))
            .collect();
        let workspace = self.blas_workspace();
        drop(workspace);
        drop(copies);
        out
    }
}
