//! FP8 products of Transformer Engine's `te.Linear` under its `fp8_autocast`, as accelerate's `convert_model` puts them into a model.
//! Read and never run: Transformer Engine 2.19 (pytorch/module/linear.py and base.py, pytorch/csrc/quantizer.cpp,
//! pytorch/cpp_extensions/gemm.py, pytorch/quantization.py) and accelerate 1.15 (utils/transformer_engine.py, accelerator.py).
//!
//! Each layer quantises its input and its weight anew in every forward (`is_first_microbatch` is not given, so nothing is cached),
//! keeps both for backward, and leaves the weight in its own precision.

use crate::bill::Part;
use crate::issue::{Issue, IssueKind};
use crate::machine::Capability;
use crate::model::family::Model;
use crate::plan::Plan;
use crate::recipe::parallel::DataParallel;
use crate::recipe::{Checkpointing, Ema, Float8Scaling, Loss, Precision};
use crate::step::autograd::{Grads, Recorder};
use crate::step::checkpoint::Saved;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Table, Tensor};
use crate::step::train::tables;

/// What `convert_model` wants the sides of a weight to be multiples of; it leaves another layer, and those after it in its module,
/// as they are.
const SIDES: u64 = 16;
/// Tokens that a product's rows must be a multiple of (`assert_dim_for_fp8_exec`).
const ROWS: u64 = 8;
/// Elements that share a scale in MXFP8, of which sides must be multiples (`MXFP8_BLOCK_SIZE`).
const BLOCK: u64 = 32;
/// Steps of largest values that delayed scaling remembers (`amax_history_len`).
const HISTORY: u64 = 1024;
/// Tensors of a layer that it remembers them of, in forward (input, weight, output) and in backward (gradients of output and input).
const REMEMBERED: [u64; 2] = [3, 2];
/// Families whose matrices are all weights of `nn.Linear` without what else `convert_model` converts (`nn.LayerNorm`).
const FAMILIES: [&str; 7] = ["llama", "mistral", "qwen2", "qwen3", "gemma", "olmo2", "phi3"];

/// Sides in multiples of which a weight is converted and quantised.
const fn multiple(scaling: Float8Scaling) -> u64 {
    if matches!(scaling, Float8Scaling::Mxfp8) { BLOCK } else { SIDES }
}

/// A tensor in FP8: its data, and what scales it.
struct Quantized {
    /// As rows lie.
    rows: Vec<Tensor>,
    /// As columns lie: a transposed copy, or one with scales of its own.
    columns: Vec<Tensor>,
    /// The scale of the whole tensor, where there is one.
    scale: Option<Tensor>,
}

impl Tape {
    /// How Transformer Engine quantises for the product with `weight`; none where the layer was not converted.
    pub(super) fn converted(&self, weight: &Tensor) -> Option<Float8Scaling> {
        let scaling = self.transformer_engine()?;
        let leaf = weight.leaf()?;
        let fits = weight.shape().dims().iter().all(|d| d.n.is_multiple_of(SIDES));
        (leaf.table.get() != Table::Embedding && fits).then_some(scaling)
    }

    /// `te.Linear` without a bias (`_linear_forward_impl`, `_linear_backward`).
    #[inline(never)]
    pub(super) fn te_linear(&self, x: &Tensor, weight: &Tensor, scaling: Float8Scaling) -> Tensor {
        let r = Recorder::begin(self, &[weight, x]);
        let recorded = r.recorded();
        let (needs_w, needs_x) = (recorded && weight.requires_grad(), recorded && x.requires_grad());
        // `torch.get_autocast_gpu_dtype()`, or the input's own; the input itself is quantised as it comes.
        let activation = self.autocast().unwrap_or(x.dtype());
        let dense = self.contiguous_raw(x);
        let dims = dense.shape().dims();
        let (last, lead) = dims.split_last().map_or((Dim::plain(1), dims), |(last, lead)| (*last, lead));
        let rows = lead.iter().fold(Dim::plain(1), |all, d| all.times(*d));
        let features = weight.dim(0);
        let mut input8 = self.quantized([rows, last], [true, needs_w], scaling);
        let weight8 = self.quantized([features, last], [true, needs_x], scaling);
        let mut sizes = lead.to_vec();
        sizes.push(features);
        let out = self.temp(Shape::new(&sizes), activation, "matmul in FP8");
        // Of the input only what the weight's gradient needs is kept; of the weight, both.
        if needs_w && !(input8.columns.is_empty()) {
            input8.rows.clear();
        }
        let save = |of: &Quantized, kept: bool| -> Vec<Saved> {
            let all = of.rows.iter().chain(&of.columns).chain(&of.scale);
            all.filter(|_| kept).map(|tensor| r.save(tensor)).collect()
        };
        let mut saved_input = save(&input8, needs_w);
        let saved_weight = save(&weight8, recorded);
        drop((weight8, input8, dense));
        let (before, wshape) = (*x.shape(), *weight.shape());
        r.finish(out, move |t, g| {
            let mut grads = Grads::default();
            let Some(g) = g.first().and_then(Option::as_ref) else { return grads };
            let weight8: Vec<_> = saved_weight.iter().map(|saved| saved.unpack(t)).collect();
            let flat = t.contiguous_raw(&t.reshape_raw(g, &[rows, features]));
            let grad8 = t.quantized([rows, features], [true, needs_w], scaling);
            if needs_x {
                let grad = t.temp(Shape::new(&[rows, last]), activation, "grad of matmul input");
                grads[1] = Some(t.reshape_raw(&grad, before.dims()));
            }
            if needs_w {
                grads[0] = Some(t.temp(wshape.contiguous(), activation, "grad of weight"));
                // `clear_tensor_data(inputmat_total)`: before the function returns.
                saved_input.clear();
            }
            drop((grad8, flat, weight8));
            grads
        })
    }

    /// What `Quantizer.create_tensor` allocates for a matrix, of which rows and columns are wanted or not.
    fn quantized(&self, sides: [Dim; 2], [by_rows, by_columns]: [bool; 2], scaling: Float8Scaling) -> Quantized {
        let data = |op: &'static str| self.temp(Shape::new(&sides), Dtype::U8, op);
        let scales = |n: [u64; 2]| self.scratch(n[0].saturating_mul(n[1]), "scales of FP8 blocks");
        let [n, k] = sides.map(|d| d.n);
        if scaling == Float8Scaling::Mxfp8 {
            // Each way of lying has scales of its own (`MXFP8Quantizer::get_scale_shape`).
            let blocks = |n: u64| (n / BLOCK).next_multiple_of(4);
            let rows = [n.next_multiple_of(128), blocks(k)];
            let columns = [blocks(n), k.next_multiple_of(128)];
            let of = |wanted: bool, op: &'static str, of: [u64; 2]| {
                if wanted { vec![data(op), scales(of)] } else { Vec::new() }
            };
            let rows = of(by_rows, "FP8 copy", rows);
            return Quantized { rows, columns: of(by_columns, "FP8 copy by columns", columns), scale: None };
        }
        let scalar = || self.scalar(Dtype::F32, "inverse scale");
        let scale = (scaling == Float8Scaling::Delayed).then(scalar);
        // Where cuBLASLt multiplies FP8 in any layout, columns are read off the rows' copy.
        let any_layout = multiplies_in_any_layout(self.device().sm);
        let rows = (by_rows || any_layout).then(|| data("FP8 copy")).into_iter().collect();
        let columns = (by_columns && !any_layout).then(|| data("FP8 copy, transposed")).into_iter().collect();
        let scale = scale.unwrap_or_else(scalar);
        if scaling == Float8Scaling::Current {
            drop(self.scratch(8, "largest value and scale"));
        }
        Quantized { rows, columns, scale: Some(scale) }
    }

    /// What its layers hold beside their weights: cuBLAS's workspace, one for all, and what delayed scaling remembers of each. It is
    /// made in the first forward; here it is there from the start.
    #[inline(never)]
    pub(super) fn te_state(&self, weights: &[Tensor]) -> Vec<Tensor> {
        let Some(scaling) = self.transformer_engine() else { return Vec::new() };
        // `get_cublas_workspace_size_bytes`.
        let workspace = if self.device().sm >= 90 { (32 << 20) + 1024 } else { 4 << 20 };
        let mut state = vec![self.scratch(workspace, "Transformer Engine's cuBLAS workspace")];
        if scaling == Float8Scaling::Delayed {
            for w in weights.iter().filter(|w| w.shape().rank() == 2 && self.converted(w).is_some()) {
                w.enter_layer(self);
                for n in REMEMBERED {
                    let floats = |n: u64, op| self.empty(Shape::new(&[Dim::plain(n)]), Dtype::F32, Part::Temporary, op);
                    state.extend([floats(n, "FP8 scales"), floats(n * HISTORY, "FP8 history of largest values")]);
                }
            }
            self.set_layer(0);
        }
        state
    }
}

/// `nvte_is_non_tn_fp8_gemm_supported` (common/transformer_engine.cpp).
const fn multiplies_in_any_layout(sm: u32) -> bool {
    matches!(sm, 100..120 | 130..)
}

/// What Transformer Engine does not take, and what of it is not modelled.
#[inline(never)]
pub(crate) fn issues(model: &dyn Model, plan: &Plan, capability: Option<Capability>) -> Vec<Issue> {
    const FIELD: &str = "recipe.float8_te";
    let recipe = &plan.recipe;
    let Some(scaling) = recipe.float8_te else { return Vec::new() };
    let parameters = model.parameters();
    let odd = |n: u64| !n.is_multiple_of(multiple(scaling));
    // The table of words that is the head too becomes two where the head is converted.
    let tied = parameters.first().is_some_and(|words| words.linear);
    let sides = |table: Table| {
        let of = parameters.iter().zip(tables(&parameters)).filter(move |(p, of)| *of == table && p.shape.rank() == 2);
        of.flat_map(|(p, _)| p.shape.dims().iter().map(|d| d.n)).collect::<Vec<u64>>()
    };
    let head = sides(Table::Head);
    // A head that is no multiple of 16 stays as it is; one that is, MXFP8 takes only by its own.
    let head_is_refused = head.iter().all(|n| n.is_multiple_of(SIDES)) && head.iter().any(|n| odd(*n));
    let biased = model.parameter_names().iter().any(|name| name.ends_with(".bias"));
    let family = !FAMILIES.contains(&model.family());
    let primary = scaling == Float8Scaling::PrimaryWeights;
    let not_modelled = [
        (primary, "weights that are FP8 themselves (fp8_model_init)"),
        (recipe.float8, "torchao's FP8 products beside Transformer Engine's"),
        (
            recipe.lora.is_some() || recipe.quantization.is_some(),
            "its FP8 products beside adapters or quantised weights",
        ),
        (
            !matches!(recipe.precision, Some(Precision::AmpBf16 | Precision::PureBf16)),
            "its FP8 products in other precisions than BF16",
        ),
        (family, "its FP8 products in this family"),
        (biased, "its FP8 products of layers with a bias, whose kernels take a workspace that is not known"),
        (tied, "a head that shares the embedding's weight, which convert_model takes apart"),
        (
            sides(Table::No).into_iter().any(odd) || head_is_refused,
            "its FP8 products of matrices whose sides are no multiples of 16 (MXFP8: 32)",
        ),
        (
            recipe.checkpointing != Checkpointing::None,
            "layers that run again outside of fp8_autocast (Transformer Engine has a checkpoint of its own)",
        ),
        (recipe.eval_after, "an evaluation of its layers, which runs outside of fp8_autocast"),
        (recipe.ema == Some(Ema::Same), "a copy of its layers (AveragedModel)"),
        (
            recipe.loss != Loss::Hf || !recipe.liger.is_empty() || recipe.method.is_some(),
            "its FP8 products beside another loss, Liger's kernels or preferences and rewards",
        ),
        (plan.parallel.data != DataParallel::None || plan.parallel.tensor.size > 1, "its FP8 products on several GPUs"),
    ];
    let mut issues: Vec<Issue> = not_modelled
        .into_iter()
        .filter(|(is, _)| *is)
        .map(|(_, what)| Issue::new(FIELD, IssueKind::NotModelled { what: what.into() }))
        .collect();
    let tokens = recipe.micro_batch.saturating_mul(recipe.seq_len);
    let rows = if scaling == Float8Scaling::Mxfp8 { BLOCK } else { ROWS };
    if !tokens.is_multiple_of(rows) {
        let expected = format!("a multiple of {rows} tokens in a micro-batch with FP8 products");
        issues.push(Issue::new("recipe.seq_len", IssueKind::NotA { expected, found: tokens.to_string() }));
    }
    let supported = |c: Capability| match scaling {
        Float8Scaling::Mxfp8 => (Capability(10, 0)..Capability(12, 0)).contains(&c),
        _ => c >= Capability(8, 9),
    };
    if capability.is_some_and(|c| !supported(c)) {
        let what = match scaling {
            Float8Scaling::Mxfp8 => "MXFP8: Transformer Engine has it on compute capability 10 and 11",
            _ => "FP8 products: they need compute capability 8.9",
        };
        issues.push(Issue::new(FIELD, IssueKind::NotSupportedByHardware { what: what.into() }));
    }
    issues
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::log::Event;
    use crate::step::tape::Device;

    /// What lives after a forward of 64 rows through a weight [48, 32], beside what goes in and comes out.
    fn kept(sm: u32, scaling: Float8Scaling) -> Vec<u64> {
        let t = Tape::new(Device { sm, multiprocessors: 132, workspace_kept: false });
        t.convert_to_te(Some(scaling));
        let [rows, out, last] = [64, 48, 32].map(Dim::plain);
        let weight = Tensor::parameter(&t, 0, Shape::new(&[out, last]), Dtype::Bf16);
        let x = Tensor::parameter(&t, 1, Shape::new(&[rows, last]), Dtype::Bf16);
        let y = t.te_linear(&x, &weight, scaling);
        let (events, tensors) = t.0.log.take();
        let mut alive = Vec::new();
        for event in events {
            match event {
                Event::Alloc(id) => alive.push(id),
                Event::Free(id) => alive.retain(|other| *other != id),
                _ => {}
            }
        }
        drop(y);
        // The two parameters come first, the output last.
        let bytes = alive.iter().map(|id| tensors[*id as usize].bytes.get());
        let mut bytes: Vec<u64> = bytes.filter(|n| ![3072, 4096, 6144].contains(n)).collect();
        bytes.sort_unstable();
        bytes
    }

    /// Of the input one copy, of the weight two, and a scale each; where products take any layout, one; MXFP8 has scales for each
    /// way a copy lies: of the input's columns 4 × 128 (padded), of the weight 128 × 4 and 4 × 128.
    #[test]
    fn what_is_kept_for_backward() {
        let (input, weight) = (64 * 32, 48 * 32);
        for scaling in [Float8Scaling::Delayed, Float8Scaling::Current] {
            for sm in [89, 90, 120] {
                assert_eq!(kept(sm, scaling), [4, 4, weight, weight, input], "{sm}");
            }
            assert_eq!(kept(100, scaling), [4, 4, weight, input]);
        }
        assert_eq!(kept(100, Float8Scaling::Mxfp8), [512, 512, 512, weight, weight, input]);
    }
}
