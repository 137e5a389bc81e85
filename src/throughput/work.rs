//! The floating-point operations of a token.

use crate::estimate::read_model;
use crate::model::family::{Model, Parameter};
use crate::plan::Plan;
use crate::recipe::parallel::{DataParallel, Megatron};
use crate::recipe::{Attention, Checkpointing, Recipe};
use crate::step::adapters::trained_shapes;
use crate::step::shape::Shape;
use crate::step::train::over_treated;
use crate::throughput::{Again, Layout, Net};

/// What a stack of layers' operations depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// What the optimizer updates: all parameters, or the adapters'.
    pub trained: u64,
    /// Parameters in the matrix products of one token: all but an embedding table that is only looked up; of routed experts,
    /// those that a token goes to. The head is a product.
    pub product_parameters: u64,
    /// Parameters of adapters, over weights that are frozen.
    pub adapters: Option<u64>,
    /// Layers.
    pub layers: u64,
    /// Width of the queries: heads × head size.
    pub query_width: u64,
    /// Whether a token attends to those before it alone.
    pub causal: bool,
    /// Inputs and outputs of the layers that adapters are on, added up.
    pub adapted: [u64; 2],
    /// The products and widths.
    pub net: Net,
    /// How ranks share the step.
    pub layout: Layout,
    /// Megatron-LM's options, which say in the recipe's place which kernels run and what is run again.
    pub megatron: Option<Megatron>,
}

impl Work {
    /// The work of a plan's model.
    #[must_use]
    pub fn of(plan: &Plan) -> Option<Self> {
        let model = read_model(&plan.model).ok()?.model;
        if !model.counts_tokens() {
            return None;
        }
        let dimensions = model.dimensions();
        let routed = model.routed_experts();
        let in_products = |p: &Parameter| {
            let n = p.shape.numel()?;
            Some(match routed {
                Some((per_token, experts)) if p.shape.rank() == 3 => n / experts.max(1) * per_token,
                _ if p.lookup_only => 0,
                _ => n,
            })
        };
        let rank = plan.recipe.lora.as_ref().map(|lora| lora.r);
        let sums = |model: &dyn Model| {
            let trained = trained_shapes(model, &plan.recipe);
            // An adapter's two matrices: rank × inputs, outputs × rank.
            let side = |at: usize| {
                let of = |shape: &Shape| match shape.dims() {
                    dims @ [_, _] if Some(dims[at].n) == rank => dims[1 - at].n,
                    _ => 0,
                };
                trained.iter().map(of).sum()
            };
            let products = model.parameters().iter().filter_map(in_products).sum();
            [trained.iter().filter_map(Shape::numel).sum(), products, side(0), side(1)]
        };
        let [trained, product_parameters, inputs, outputs] = over_treated(model.as_ref(), &plan.recipe, &sums);
        // A kernel under an explicit mask skips nothing.
        let causal = !model.attends_both_ways() && plan.recipe.packed.is_empty();
        Some(Self {
            trained,
            product_parameters,
            adapters: plan.recipe.lora.as_ref().map(|_| trained),
            layers: dimensions.layers,
            query_width: dimensions.query_width,
            causal,
            adapted: [inputs, outputs],
            net: Net::of(model.as_ref(), causal),
            layout: Layout::of(&plan.parallel),
            megatron: match &plan.parallel.data {
                DataParallel::Megatron(options) => Some(options.clone()),
                _ => None,
            },
        })
    }

    /// The formula, its value, and the formula with the numbers in it.
    ///
    /// Of parameters: forward 2N, backward 2N for the gradients of inputs and 2N for those of weights, which frozen weights
    /// have not; and the forward of every layer that is run again once more. Attention's two products cost 4 q s a token and
    /// layer in forward, and twice that in backward; a causal kernel does half of it, eager attention and an encoder all.
    #[expect(clippy::cast_precision_loss, reason = "a rough figure")]
    pub(super) fn flops_per_token(&self, recipe: &Recipe, again: Again) -> (String, f64, String) {
        let whole = !self.causal || recipe.attention == Some(Attention::Eager);
        let of_parameters = 2.0 * (3.0 + again.products);
        let of_attention = 2.0 * (3.0 + again.attention) * if whole { 2.0 } else { 1.0 };
        let (n, l, q, s) = (self.product_parameters, self.layers, self.query_width, recipe.seq_len);
        let attention = of_attention * l as f64 * q as f64 * s as f64;
        let [c, d, frozen] = [of_parameters, of_attention, of_parameters - 2.0].map(|x| (x * 100.0).round() / 100.0);
        let tail = (format!("{d} L q s"), format!("{d} × {l} × {q} × {s}"));
        match self.adapters {
            None => {
                (format!("{c} N + {}", tail.0), of_parameters * n as f64 + attention, format!("{c} × {n} + {}", tail.1))
            }
            Some(a) => (
                format!("{frozen} N + {c} A + {}", tail.0),
                (of_parameters - 2.0) * n as f64 + of_parameters * a as f64 + attention,
                format!("{frozen} × {n} + {c} × {a} + {}", tail.1),
            ),
        }
    }
}

/// What a mode of checkpointing runs again. The selective one keeps the outputs of products and of attention.
pub(super) const fn again(checkpointing: Checkpointing) -> Again {
    match (checkpointing, checkpointing.recomputes_one_in()) {
        (Checkpointing::Selective, _) => Again { products: 0.0, attention: 0.0, pointwise: 1.0 },
        // Every second product is run again; attention's outputs are kept.
        (Checkpointing::SelectiveHalf, _) => Again { products: 0.5, attention: 0.0, pointwise: 1.0 },
        #[expect(clippy::cast_precision_loss, reason = "a count of layers")]
        (_, Some(k)) => Again::layers(1.0 / if k == 0 { 1.0 } else { k as f64 }),
        (_, None) => Again::layers(0.0),
    }
}

impl Work {
    /// Model FLOPs of a token: what has to be computed, without what is run again, attention counted in full as PaLM's
    /// appendix B does.
    #[expect(clippy::cast_precision_loss, reason = "a rough figure")]
    pub(super) fn model_flops_per_token(&self, seq_len: u64) -> f64 {
        let attention = 12.0 * self.layers as f64 * self.query_width as f64 * seq_len as f64;
        let of_weights = if self.adapters.is_some() { 4.0 } else { 6.0 };
        of_weights * self.product_parameters as f64 + 6.0 * self.adapters.unwrap_or_default() as f64 + attention
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama-2-7B at 2,048 tokens, by hand: 6 × 6,607,343,616 + 12 × 32 × 4096 × 2048 with all of attention counted.
    #[test]
    fn flops_of_a_token() {
        let mut work = of("llama-2-7b");
        assert_eq!((work.trained, work.product_parameters), (6_738_415_616, 6_607_343_616));
        let mut recipe = Recipe { seq_len: 2048, attention: Some(Attention::Eager), ..Recipe::default() };
        assert_eq!(flops(&work, &recipe).1, 39_644_061_696.0 + 3_221_225_472.0);
        recipe.attention = None;
        assert_eq!(flops(&work, &recipe).1, 39_644_061_696.0 + 1_610_612_736.0);
        recipe.checkpointing = Checkpointing::Every(2);
        assert_eq!(flops(&work, &recipe).1, 7.0 * 6_607_343_616.0 + 7.0 * 32.0 * 4096.0 * 2048.0);
        recipe.checkpointing = Checkpointing::Selective;
        assert_eq!(flops(&work, &recipe).1, 39_644_061_696.0 + 1_610_612_736.0, "no product is run again");
        recipe.checkpointing = Checkpointing::Full;
        assert_eq!(flops(&work, &recipe).1, 8.0 * 6_607_343_616.0 + 8.0 * 32.0 * 4096.0 * 2048.0);
        // Frozen weights have no gradients: 6N with layers run again, and the adapters' own products in full.
        work.adapters = Some(1_000_000);
        let (formula, value, _) = flops(&work, &recipe);
        assert_eq!(formula, "6 N + 8 A + 8 L q s");
        assert_eq!(value, 6.0 * 6_607_343_616.0 + 8e6 + 8.0 * 32.0 * 4096.0 * 2048.0);
        work.causal = false;
        assert_eq!(flops(&work, &recipe).0, "6 N + 8 A + 16 L q s");
    }

    fn flops(work: &Work, recipe: &Recipe) -> (String, f64, String) {
        work.flops_per_token(recipe, again(recipe.checkpointing))
    }

    fn of(preset: &str) -> Work {
        let mut plan = crate::view::example();
        plan.model = crate::model::ModelSource::Preset(preset.into());
        Work::of(&plan).unwrap()
    }

    /// All and active parameters of the two models (transformers' classes, counted), less the embedding table, which is only
    /// looked up.
    #[test]
    fn a_token_goes_to_few_experts() {
        for (preset, trained, active, embedding) in [
            ("mixtral-8x7b", 46_702_792_704, 12_879_925_248, 32_000 * 4096),
            ("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704, 151_936 * 2048),
        ] {
            let work = of(preset);
            assert_eq!((work.trained, work.product_parameters), (trained, active - embedding), "{preset}");
            // Norms are in no product.
            let rest = work.product_parameters as f64 - work.net.active();
            assert!((0.0..2e6).contains(&rest), "{preset}: {rest}");
        }
    }

    /// As their model cards say: 37 billion of DeepSeek-V3, 3.61 of gpt-oss-20b and 5.13 of gpt-oss-120b, whose embedding
    /// is not counted.
    #[test]
    fn model_cards_count_the_same() {
        for (preset, billions) in [("deepseek-v3", 37.0), ("gpt-oss-20b", 3.61), ("gpt-oss-120b", 5.13)] {
            let active = of(preset).product_parameters as f64 / 1e9;
            assert!((active / billions - 1.0).abs() < 0.02, "{preset}: {active}");
        }
    }

    #[test]
    fn an_encoder_attends_both_ways() {
        assert!(!of("bert-base-uncased").causal);
        assert!(of("llama-3.1-8b").causal);
    }
}
