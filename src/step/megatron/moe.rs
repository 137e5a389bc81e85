//! Experts in Megatron-LM: tokens go to the ranks of their experts and come back
//! (`megatron/core/transformer/moe/{router,token_dispatcher,experts,moe_layer}.py`; the all-to-all dispatcher and grouped
//! products). The load is taken to be even: each rank gets as many tokens as it sends.

use crate::model::family::MegatronExperts as Experts;
use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::megatron::context::Cx;
use crate::step::megatron::ops::{Linear, copied, temp};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// Streams of Transformer Engine's grouped products, each with a workspace.
const STREAMS: u64 = 4;

impl Cx {
    /// The MLP of a layer with experts over `x`; `weights` are the router's, the experts' two, and the shared expert's.
    pub(super) fn experts(&self, t: &Tape, x: &Tensor, experts: Experts, weights: &[Tensor]) -> Tensor {
        let [router, up, down, shared @ ..] = weights else { return x.clone() };
        let normed = self.norm(t, x);
        let tokens = normed.dim(0);
        let scores = self.route(t, &normed, router, experts);
        let routed = Dim::plain(tokens.n.saturating_mul(experts.per_token));
        let h = self.gpt.hidden;
        let to = |x: Tensor, rows: Dim, op: &'static str| {
            let out = copied(t, &x, Shape::new(&[rows, Dim::plain(h)]), op);
            drop(x);
            out
        };
        let local = experts.count / self.expert.max(1);
        let mut sent = copied(t, &normed, Shape::new(&[routed, Dim::plain(h)]), "permuted tokens");
        if self.expert > 1 {
            sent = to(sent, routed, "dispatched tokens");
        }
        if local > 1 {
            sent = to(sent, routed, "tokens by expert");
        }
        let wide = self.grouped(t, &sent, up);
        drop(sent);
        let active = self.activation(t, &wide, true);
        drop(wide);
        let mut back = self.grouped(t, &active, down);
        drop(active);
        if local > 1 {
            back = to(back, routed, "tokens by rank");
        }
        if self.expert > 1 {
            back = to(back, routed, "combined tokens");
        }
        let out = to(back, tokens, "unpermuted tokens");
        drop(scores);
        let [shared_up, shared_down, ..] = shared else { return out };
        let engine = self.own_engine();
        let column = Linear { norm: false, gather: self.sequence_parallel, scatter: false, engine };
        let row = Linear { gather: false, scatter: self.sequence_parallel, ..column };
        let wide = self.linear(t, &normed, shared_up, column);
        drop(normed);
        let active = self.activation(t, &wide, false);
        drop(wide);
        let beside = self.linear(t, &active, shared_down, row);
        drop(active);
        t.add(&out, &beside)
    }

    /// The router: logits, probabilities and the choice, each a tensor of tokens × experts.
    fn route(&self, t: &Tape, x: &Tensor, weight: &Tensor, experts: Experts) -> Tensor {
        let r = Recorder::begin(t, &[x, weight]);
        let saved = r.save(x);
        let rows = x.dim(0);
        let of = |dtype: Dtype, op: &'static str| temp(t, rows, experts.count, dtype, op);
        let logits = of(Dtype::Bf16, "router logits");
        drop(t.blas_workspace());
        let wide = of(Dtype::F32, "router logits in FP32");
        drop(logits);
        let mut kept = vec![r.save(&wide)];
        let probabilities = of(Dtype::F32, "router probabilities");
        kept.push(r.save(&probabilities));
        drop((wide, probabilities));
        let map = of(Dtype::Bool, "routing map");
        kept.push(r.save(&map));
        drop(map);
        let out = of(Dtype::F32, "chosen probabilities");
        let shape = *weight.shape();
        let width = x.dim(1).n;
        let cx = self.clone();
        // Its gradient comes with that of the experts' outputs: it is not walked, and its tensors are let go with them.
        r.finish(out, move |t, g| {
            let held: Vec<_> = kept.iter().map(|saved| saved.unpack(t)).collect();
            let x = saved.unpack(t);
            let Some(_) = g.first().and_then(Option::as_ref) else { return Grads::default() };
            let of_input = temp(t, rows, width, Dtype::Bf16, "grad of router input");
            let of_weight = cx.weight_gradient(t, cx.own_engine(), shape);
            drop((held, x));
            grads_of([Some(of_input), of_weight])
        })
    }

    /// One product for each expert of this rank, at once; `weight` [experts, out, in] stands for as many matrices.
    fn grouped(&self, t: &Tape, x: &Tensor, weight: &Tensor) -> Tensor {
        let r = Recorder::begin(t, &[x, weight]);
        let saved = r.save(x);
        let (rows, width, out_width) = (x.dim(0), x.dim(1).n, weight.dim(1).n);
        let bytes = Dim::plain(crate::step::megatron::ops::te_workspace(t.device().sm).saturating_mul(STREAMS));
        drop(self.keep(t, "Transformer Engine workspaces", Shape::new(&[bytes]), Dtype::U8));
        let out = temp(t, rows, out_width, Dtype::Bf16, "grouped matmul");
        let shape = *weight.shape();
        let fused = self.options.gradient_accumulation_fusion;
        let cx = self.clone();
        r.finish(out, move |t, g| {
            let Some(_) = g.first().and_then(Option::as_ref) else { return Grads::default() };
            let held = saved.unpack(t);
            let grad = temp(t, rows, width, Dtype::Bf16, "grad of grouped matmul input");
            let of_weight = if fused {
                // Sizes are those of one expert's matrix.
                let one = Shape::new(&shape.dims()[1..]);
                cx.weight_gradient(t, cx.own_engine(), one)
            } else {
                Some(t.temp(shape, Dtype::Bf16, "grad of weight"))
            };
            drop(held);
            grads_of([Some(grad), of_weight])
        })
    }
}
