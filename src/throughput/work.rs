//! The floating-point operations of a token.

use crate::estimate::read_model;
use crate::plan::Plan;
use crate::recipe::{Attention, Checkpointing, Recipe};

/// What a decoder's operations depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// All parameters: what the optimizer updates.
    pub parameters: u64,
    /// Parameters in matrix products: all but an embedding table that is only looked up.
    pub product_parameters: u64,
    /// Decoder layers.
    pub layers: u64,
    /// Width of the queries: heads × head size.
    pub query_width: u64,
}

impl Work {
    /// The work of a plan's model.
    #[must_use]
    pub fn of(plan: &Plan) -> Option<Self> {
        let read = read_model(&plan.model).ok()?;
        if !read.model.counts_tokens() {
            return None;
        }
        let dimensions = read.model.dimensions();
        let parameters = read.model.parameters();
        let count =
            |all: bool| parameters.iter().filter(|p| all || !p.lookup_only).filter_map(|p| p.shape.numel()).sum();
        Some(Self {
            parameters: count(true),
            product_parameters: count(false),
            layers: dimensions.layers,
            query_width: dimensions.query_width,
        })
    }

    /// The formula, its value, and the formula with the numbers in it.
    ///
    /// Forward 2N and backward 4N, and as much again of the forward where layers are run again. Attention's two
    /// products cost 4 q s a token and layer in forward; a causal kernel does half of it, eager attention all.
    #[expect(clippy::cast_precision_loss, reason = "a rough figure")]
    pub(super) fn flops_per_token(&self, recipe: &Recipe) -> (&'static str, f64, String) {
        let recomputes = recipe.checkpointing == Checkpointing::Full;
        let eager = recipe.attention == Some(Attention::Eager);
        let (formula, of_parameters, of_attention) = match (recomputes, eager) {
            (false, false) => ("6 N + 6 L q s", 6.0, 6.0),
            (false, true) => ("6 N + 12 L q s", 6.0, 12.0),
            (true, false) => ("8 N + 8 L q s", 8.0, 8.0),
            (true, true) => ("8 N + 16 L q s", 8.0, 16.0),
        };
        let (n, l, q, s) = (self.product_parameters, self.layers, self.query_width, recipe.seq_len);
        let value = of_parameters * n as f64 + of_attention * l as f64 * q as f64 * s as f64;
        (formula, value, format!("{of_parameters} × {n} + {of_attention} × {l} × {q} × {s}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama-2-7B at 2,048 tokens, by hand: 6 × 6,607,343,616 + 12 × 32 × 4096 × 2048 with all of attention counted.
    #[test]
    fn flops_of_a_token() {
        let work = Work { parameters: 6_738_415_616, product_parameters: 6_607_343_616, layers: 32, query_width: 4096 };
        let mut recipe = Recipe { seq_len: 2048, attention: Some(Attention::Eager), ..Recipe::default() };
        assert_eq!(work.flops_per_token(&recipe).1, 39_644_061_696.0 + 3_221_225_472.0);
        recipe.attention = None;
        assert_eq!(work.flops_per_token(&recipe).1, 39_644_061_696.0 + 1_610_612_736.0);
        recipe.checkpointing = Checkpointing::Full;
        assert_eq!(work.flops_per_token(&recipe).1, 8.0 * 6_607_343_616.0 + 8.0 * 32.0 * 4096.0 * 2048.0);
    }
}
