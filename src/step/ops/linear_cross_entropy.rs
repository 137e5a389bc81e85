//! PyTorch's own fused head and loss, `torch.nn.functional.linear_cross_entropy` with `LinearCrossEntropyOptions`
//! (torch/nn/modules/linear_cross_entropy.py and linear_cross_entropy_options.py, read and recorded at 2.15): loss and
//! gradients are worked out in forward over pieces of the rows; backward scales the gradients in place.

use crate::recipe::LinearCrossEntropy;
use crate::step::autograd::{Recorder, grads_of};
use crate::step::ops::reduce::keepdim;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{AS_LINEAR, Dtype, Tensor};

/// Where `acc_policy="auto"` accumulates half precision in FP32 (`_resolve_auto_acc_dtype`).
const fn multiplies_into_f32(dtype: Dtype, sm: u32) -> bool {
    matches!((dtype, sm), (Dtype::Bf16, 80..) | (Dtype::F16, 70..))
}

impl Tape {
    /// `linear_cross_entropy(x, weight, labels, linear_bias=bias, options=LinearCrossEntropyOptions(…))` of rows [n, h], of the
    /// head's weight [V, h] and of class numbers: the mean over the rows.
    #[must_use]
    pub(crate) fn linear_cross_entropy(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        labels: &Tensor,
        options: &LinearCrossEntropy,
    ) -> Tensor {
        let weight = &weight.in_use(AS_LINEAR);
        let bias = &bias.map(|bias| bias.in_use(AS_LINEAR));
        let mut inputs = vec![x, weight];
        inputs.extend(bias);
        let r = Recorder::begin(self, &inputs);
        let needs = |of: &Tensor| r.recorded() && of.requires_grad();
        let (needs_x, needs_w, needs_b) = (needs(x), needs(weight), bias.as_ref().is_some_and(needs));
        let (dtype, h, v) = (x.dtype(), x.dim(1), weight.dim(0));
        let wide = dtype.is_half()
            && (options.acc_float32 || options.resolves_accumulator() && multiplies_into_f32(dtype, self.device().sm));
        let acc = if wide { Dtype::F32 } else { dtype };
        let compact = options.is_compact();
        let of_logits = if compact && dtype == Dtype::F16 { dtype } else { acc };
        let of_grad = if compact { dtype } else { acc };
        let rows = options.rows(x.dim(0).n, h.n, v.n);
        let line = |n: u64, dtype: Dtype, op: &'static str| self.temp(Shape::new(&[Dim::plain(n)]), dtype, op);
        let table = Shape::new(&[v, h]);

        let logits = self.temp(Shape::new(&[Dim::plain(rows), v]), of_logits, "logits");
        let row_numbers = line(rows, of_logits, "number per row");
        let output = self.scalar(if dtype == Dtype::F16 { acc } else { dtype }, "loss");
        let grad_x = needs_x.then(|| self.temp(x.shape().contiguous(), of_grad, "grad of hidden states"));
        let mut grad_w = needs_w.then(|| self.temp(table, dtype, "grad of weight"));
        let mut grad_b = needs_b.then(|| line(v.n, dtype, "grad of bias"));
        // The kept sum of one piece; `compact` adds each product to the gradient itself.
        let piece_w = (needs_w && !compact).then(|| self.temp(table, acc, "grad of weight, one piece"));
        let high_w = (needs_x && of_grad == of_logits && of_logits != dtype)
            .then(|| self.temp(table, of_logits, "weight in high precision"));

        let corrected = self.where_counted(labels);
        let high_x =
            (wide && needs_w).then(|| self.temp(Shape::new(&[Dim::plain(rows), h]), acc, "rows in high precision"));
        let mut weights: Option<[Tensor; 2]> = None;
        let [mut high_bias, mut piece_b]: [Option<Tensor>; 2] = Default::default();
        // Names that hold a tensor until the next piece's takes its place.
        let [mut sums, mut low, mut scattered]: [Option<Tensor>; 3] = Default::default();
        let mut done = 0;
        while done < x.dim(0).n {
            let part = rows.min(x.dim(0).n - done);
            done += part;
            let of_part = Shape::new(&[Dim::plain(part), v]);
            if !needs_x {
                // Its piece's alone.
                low = None;
            }
            drop(self.blas_workspace());
            if let Some(bias) = bias.as_ref().filter(|bias| bias.dtype() != of_logits) {
                high_bias.get_or_insert_with(|| self.cast_raw(bias, of_logits));
            }
            self.reduce_into(&of_part, &keepdim(&of_part, 1), of_logits);
            weights.get_or_insert_with(|| self.weights_of_rows(labels, acc));
            // The weighted sum of the labels' logits, then of the logarithms of the softmax's denominators.
            let chosen = {
                let chosen = line(part, of_logits, "logits of labels");
                if of_logits == acc { chosen } else { self.cast_raw(&chosen, acc) }
            };
            drop(self.dot(acc));
            drop(chosen);
            let of_sums = if dtype == Dtype::F16 { Dtype::F32 } else { acc };
            sums.replace(self.reduced_as(&of_part, &keepdim(&of_part, 1), of_sums, "sum of exponentials"));
            let cast = (of_sums != acc).then(|| line(part, of_sums, "weights of rows"));
            drop(self.dot(of_sums));
            drop(cast);

            if needs_b {
                if wide {
                    piece_b.get_or_insert_with(|| line(v.n, acc, "grad of bias, one piece"));
                }
                drop(self.reduced_as(&of_part, &keepdim(&of_part, 0), acc, "sum of logits"));
            }
            let rows_of = |dtype: Dtype, op: &'static str| self.temp(Shape::new(&[Dim::plain(part), h]), dtype, op);
            let lowered = || self.temp(of_part, dtype, "logits in low precision");
            if needs_x {
                if of_logits != of_grad {
                    low.replace(lowered());
                }
                let selected = rows_of(if high_w.is_some() { of_logits } else { dtype }, "rows of weight");
                let cast = (acc != of_grad).then(|| line(part, of_grad, "weights of rows"));
                drop(selected);
                drop(cast);
                drop(self.blas_workspace());
            }
            if needs_w {
                if compact && of_logits != dtype && low.is_none() {
                    low = Some(lowered());
                }
                drop(self.blas_workspace());
                // What is added at the labels' rows takes the place of logits where it has room there.
                let place = if wide { v.n * of_logits.bytes() >= h.n * dtype.bytes() || !compact } else { v.n >= h.n };
                if !place {
                    scattered.replace(rows_of(dtype, "weighted rows"));
                }
            }
            if needs_b && wide {
                drop(line(v.n, dtype, "grad of bias"));
            }
        }
        let loss = if output.dtype() == dtype { output } else { self.cast_raw(&output, dtype) };
        let mut grad_x = grad_x.map(|grad| if grad.dtype() == dtype { grad } else { self.cast_raw(&grad, dtype) });
        drop((scattered, low, sums, piece_b, high_bias, weights, high_x, corrected));
        drop((high_w, piece_w, row_numbers, logits));
        r.finish(loss, move |_, _| grads_of([grad_x.take(), grad_w.take(), grad_b.take()]))
    }

    /// `torch.where(labels == ignore_index, 0, labels)`.
    fn where_counted(&self, labels: &Tensor) -> Tensor {
        let ignored = self.temp(labels.shape().contiguous(), Dtype::Bool, "labels that do not count");
        let zero = self.scalar(Dtype::I64, "zero");
        let corrected = self.temp(labels.shape().contiguous(), Dtype::I64, "labels");
        drop(zero);
        drop(ignored);
        corrected
    }

    /// `_neg_weight_target`: each row's weight in the mean, and which rows are left out.
    fn weights_of_rows(&self, labels: &Tensor, dtype: Dtype) -> [Tensor; 2] {
        let shape = labels.shape().contiguous();
        let ignored = self.temp(shape, Dtype::Bool, "labels that do not count");
        let counted = self.temp(shape, Dtype::Bool, "labels that count");
        let weights = self.temp(shape, dtype, "weights of rows");
        drop(counted);
        let total = self.reduced_as(&shape, &Shape::new(&[]), dtype, "sum of weights");
        let none = self.scalar(Dtype::Bool, "is zero");
        let negated = self.scalar(dtype, "negated sum");
        let nan = self.scalar(dtype, "nan");
        let divisor = self.scalar(dtype, "divisor");
        drop((nan, none, negated, divisor, total));
        [weights, ignored]
    }

    /// `dot` of two vectors, through cuBLAS.
    fn dot(&self, dtype: Dtype) -> Tensor {
        let out = self.scalar(dtype, "dot");
        drop(self.blas_workspace());
        out
    }
}
