//! The ranges within which a recipe is walked, and the checks that need no model.

use crate::issue::{Issue, IssueKind};
use crate::recipe::{Checkpointing, Ema, LinearCrossEntropy, Loss, MAX_LORA_RANK, OptimizerName, Precision, Recipe};
use crate::step::ops::FLOAT8_MULTIPLE;

/// The most sequences per micro-batch.
pub const MAX_MICRO_BATCH: u64 = 1 << 20;
/// The longest sequence.
pub const MAX_SEQ_LEN: u64 = 1 << 24;
/// The most micro-batches per step.
pub const MAX_GRAD_ACCUM: u64 = 1 << 20;
/// The most pieces that the loss is computed in.
pub const MAX_LOSS_CHUNKS: u64 = 1024;
/// The most that the pieces of `linear_cross_entropy` are made smaller by.
const MAX_ASPECT_RATIO: u64 = 64;

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
        if let Some(lengths) = &self.lengths {
            issues.extend(lengths.issues(self.micro_batch.checked_mul(self.grad_accum)));
        }
        if self.checkpointing == Checkpointing::Every(0) {
            let kind = IssueKind::OutOfRange { min: 1, max: MAX_SEQ_LEN, found: "0".into() };
            issues.push(Issue::new("recipe.checkpointing", kind));
        }
        let (pieces, max) = match self.loss {
            Loss::Hf => (1, 1),
            // Each piece is walked.
            Loss::LinearCrossEntropy(LinearCrossEntropy { batch_chunk_size: Some(rows), .. }) => {
                let pieces = self.micro_batch.saturating_mul(self.seq_len).checked_div(rows);
                (pieces.map_or(0, |pieces| pieces.max(1)), MAX_LOSS_CHUNKS)
            }
            Loss::LinearCrossEntropy(options) => (options.aspect_ratio.unwrap_or(1), MAX_ASPECT_RATIO),
            Loss::Chunked(n) | Loss::ChunkedOutputs(n) => (n, MAX_LOSS_CHUNKS),
            Loss::LogitsToKeep(n) => (n, self.seq_len),
        };
        if !(1..=max).contains(&pieces) {
            issues.push(Issue::new("recipe.loss", IssueKind::OutOfRange { min: 1, max, found: pieces.to_string() }));
        }
        if let Loss::LinearCrossEntropy(LinearCrossEntropy {
            batch_chunk_size: Some(rows),
            aspect_ratio: Some(_),
            ..
        }) = self.loss
        {
            let expected = "batch_chunk_size or aspect_ratio: PyTorch takes one of them".into();
            issues.push(Issue::new("recipe.loss", IssueKind::NotA { expected, found: format!("both, {rows} rows") }));
        }
        if !self.packed.is_empty() {
            let sum = self.packed.iter().fold(0_u64, |all, n| all.saturating_add(*n));
            if sum != self.seq_len || self.packed.contains(&0) {
                let expected = format!("lengths above 0 that add up to {} tokens", self.seq_len);
                issues.push(Issue::new("recipe.packed", IssueKind::NotA { expected, found: sum.to_string() }));
            }
            if self.micro_batch != 1 {
                let expected = "one row of packed sequences".into();
                let found = self.micro_batch.to_string();
                issues.push(Issue::new("recipe.micro_batch", IssueKind::NotA { expected, found }));
            }
        }
        if let Some(lora) = &self.lora {
            if !(1..=MAX_LORA_RANK).contains(&lora.r) {
                let kind = IssueKind::OutOfRange { min: 1, max: MAX_LORA_RANK, found: lora.r.to_string() };
                issues.push(Issue::new("recipe.lora.r", kind));
            }
            if lora.targets.is_empty() && lora.target_parameters.is_empty() {
                let expected = "names of linear layers".into();
                issues.push(Issue::new("recipe.lora.targets", IssueKind::Missing { expected }));
            }
            if !(0.0..1.0).contains(&lora.dropout) {
                let expected = "a share from 0 to below 1".into();
                let kind = IssueKind::NotA { expected, found: lora.dropout.to_string() };
                issues.push(Issue::new("recipe.lora.dropout", kind));
            }
            if self.precision == Some(Precision::Bf16Master) {
                let what = "adapters with FP32 master weights".into();
                issues.push(Issue::new("recipe.lora", IssueKind::NotModelled { what }));
            }
        }
        if let Some(norm) = self.clip_grad
            && !(norm.is_finite() && norm > 0.0)
        {
            let expected = "a number above 0".into();
            issues.push(Issue::new("recipe.clip_grad", IssueKind::NotA { expected, found: norm.to_string() }));
        }
        if self.float8 {
            let what = if self.lora.is_some() || self.quantization.is_some() {
                Some("FP8 products beside adapters or quantised weights")
            } else {
                None
            };
            issues.extend(what.map(|what| Issue::new("recipe.float8", IssueKind::NotModelled { what: what.into() })));
            if !self.micro_batch.saturating_mul(self.seq_len).is_multiple_of(FLOAT8_MULTIPLE) {
                let expected = format!("a multiple of {FLOAT8_MULTIPLE} tokens in a micro-batch with FP8 products");
                let found = self.micro_batch.saturating_mul(self.seq_len).to_string();
                issues.push(Issue::new("recipe.seq_len", IssueKind::NotA { expected, found }));
            }
        }
        if self.ema == Some(Ema::Same) && self.quantization.is_some() {
            let what = "a copy of quantised weights".into();
            issues.push(Issue::new("recipe.ema", IssueKind::NotModelled { what }));
        }
        issues.extend(self.optimizer_issues());
        issues
    }

    /// What is wrong with the optimizer, and with it in this recipe.
    fn optimizer_issues(&self) -> Vec<Issue> {
        let optimizer = &self.optimizer;
        let mut issues = Vec::new();
        let mut add = |field: &str, kind: IssueKind| issues.push(Issue::new(format!("recipe.optimizer.{field}"), kind));
        let not_modelled = |what: &str| IssueKind::NotModelled { what: what.into() };
        if !optimizer.momentum.is_finite() || optimizer.momentum < 0.0 {
            let expected = "a number that is not negative".into();
            add("momentum", IssueKind::NotA { expected, found: optimizer.momentum.to_string() });
        }
        if optimizer.nesterov && optimizer.name == OptimizerName::Sgd && optimizer.momentum == 0.0 {
            let expected = "a momentum above 0 with Nesterov".into();
            add("momentum", IssueKind::NotA { expected, found: "0".into() });
        }
        if let Some(rank) = optimizer.rank
            && !(1..=MAX_LORA_RANK).contains(&rank)
        {
            add("rank", IssueKind::OutOfRange { min: 1, max: MAX_LORA_RANK, found: rank.to_string() });
        }
        let offered = optimizer.name.implementations();
        if optimizer.implementation.is_some_and(|chosen| !offered.is_empty() && !offered.contains(&chosen)) {
            let expected = format!("foreach or forloop: {} has no fused implementation", optimizer.name.name());
            add("impl", IssueKind::NotA { expected, found: "fused".into() });
        }
        let split = optimizer.name == OptimizerName::Muon || optimizer.name.projects();
        if optimizer.in_backward {
            if split {
                add("in_backward", not_modelled("an optimizer of its own for each weight with Muon, GaLore or APOLLO"));
            }
            if self.clip_grad.is_some() {
                add("in_backward", not_modelled("clipping with the optimizer in backward: no gradients are left"));
            }
            if self.grad_accum > 1 {
                add("in_backward", not_modelled("accumulation with the optimizer in backward"));
            }
            if self.precision == Some(Precision::AmpFp16) {
                add("in_backward", not_modelled("a gradient scaler with the optimizer in backward"));
            }
        }
        if self.precision == Some(Precision::Bf16Master)
            && (optimizer.in_backward
                || split
                || optimizer.embeddings_32bit
                || optimizer.name == OptimizerName::AdamMini)
        {
            add("name", not_modelled("this optimizer over FP32 master weights"));
        }
        if self.precision == Some(Precision::AmpFp16) && optimizer.name == OptimizerName::Muon {
            add("name", not_modelled("Muon with a gradient scaler"));
        }
        issues
    }
}
