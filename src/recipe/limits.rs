//! The ranges within which a recipe is walked, and the checks that need no model.

use crate::issue::{Issue, IssueKind};
use crate::recipe::{MAX_LORA_RANK, OptimizerImpl, OptimizerName, Precision, Recipe};

/// The most sequences per micro-batch.
pub const MAX_MICRO_BATCH: u64 = 1 << 20;
/// The longest sequence.
pub const MAX_SEQ_LEN: u64 = 1 << 24;
/// The most micro-batches per step.
pub const MAX_GRAD_ACCUM: u64 = 1 << 20;

impl Recipe {
    /// Everything that is wrong with the recipe by itself.
    #[must_use]
    pub fn issues(&self) -> Vec<Issue> {
        let mut issues = Vec::new();
        for (field, found, max) in [
            ("recipe.micro_batch", self.micro_batch, MAX_MICRO_BATCH),
            ("recipe.seq_len", self.seq_len, MAX_SEQ_LEN),
            ("recipe.dec_seq", self.dec_seq.unwrap_or(1), MAX_SEQ_LEN),
            ("recipe.grad_accum", self.grad_accum, MAX_GRAD_ACCUM),
        ] {
            if !(1..=max).contains(&found) {
                issues.push(Issue::new(field, IssueKind::OutOfRange { min: 1, max, found: found.to_string() }));
            }
        }
        if let Some(lora) = &self.lora {
            if !(1..=MAX_LORA_RANK).contains(&lora.r) {
                let kind = IssueKind::OutOfRange { min: 1, max: MAX_LORA_RANK, found: lora.r.to_string() };
                issues.push(Issue::new("recipe.lora.r", kind));
            }
            if lora.targets.is_empty() {
                let expected = "names of linear layers".into();
                issues.push(Issue::new("recipe.lora.targets", IssueKind::Missing { expected }));
            }
            if self.precision == Some(Precision::Bf16Master) {
                let what = "adapters with FP32 master weights".into();
                issues.push(Issue::new("recipe.lora", IssueKind::NotModelled { what }));
            }
        }
        if !self.optimizer.momentum.is_finite() || self.optimizer.momentum < 0.0 {
            let expected = "a number that is not negative".into();
            let found = self.optimizer.momentum.to_string();
            issues.push(Issue::new("recipe.optimizer.momentum", IssueKind::NotA { expected, found }));
        }
        if let Some(norm) = self.clip_grad
            && !(norm.is_finite() && norm > 0.0)
        {
            let expected = "a number above 0".into();
            issues.push(Issue::new("recipe.clip_grad", IssueKind::NotA { expected, found: norm.to_string() }));
        }
        let fused_sgd =
            self.optimizer.name == OptimizerName::Sgd && self.optimizer.implementation == Some(OptimizerImpl::Fused);
        if fused_sgd {
            issues.push(Issue::new("recipe.optimizer.impl", IssueKind::NotModelled { what: "the fused SGD".into() }));
        }
        if self.optimizer.name == OptimizerName::Adafactor
            && self.optimizer.implementation == Some(OptimizerImpl::Fused)
        {
            let expected = "foreach or forloop: torch.optim.Adafactor has no fused implementation".into();
            let kind = IssueKind::NotA { expected, found: "fused".into() };
            issues.push(Issue::new("recipe.optimizer.impl", kind));
        }
        if self.precision == Some(Precision::Bf16Master) && self.clip_grad.is_some() {
            let what = "clipping of FP32 main gradients".to_owned();
            issues.push(Issue::new("recipe.clip_grad", IssueKind::NotModelled { what }));
        }
        issues
    }
}
