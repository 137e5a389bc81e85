//! What a step trains for beside the next token: preferences, rewards, and reinforcement learning, as TRL 1.16 does it.

use serde::{Deserialize, Serialize};

use crate::recipe::Recipe;

/// A way to train that runs more than one model or more than one phase. Absent: the plain step on next tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Direct preference optimisation: a chosen and a rejected answer each, in one forward, against a reference
    /// (`DPOTrainer`).
    Dpo(Dpo),
    /// A reward model: a score per sequence, pairs of a chosen and a rejected answer (`RewardTrainer`).
    Reward(Pairs),
    /// Group relative policy optimisation: completions are generated, scored and learnt from (`GRPOTrainer`).
    Grpo(Rollout),
    /// Proximal policy optimisation: completions are generated, scored by the policy, a reference, a critic and a reward model,
    /// and learnt from by policy and critic together (`PPOTrainer` of TRL 1.10, which later versions no longer have).
    Ppo(Ppo),
}

/// Pairs of sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Pairs {
    /// Whether some sequence of a batch is shorter than the longest, so that attention takes a mask.
    pub padded: bool,
}

impl Default for Pairs {
    fn default() -> Self {
        Self { padded: true }
    }
}

/// What DPO runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Dpo {
    /// Tokens of a sequence that are scored, the answer's. `None`: all but the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion: Option<u64>,
    /// Where the reference's log-probabilities come from.
    pub reference: Reference,
    /// Whether some sequence of a batch is shorter than the longest, so that attention takes a mask.
    pub padded: bool,
}

impl Default for Dpo {
    fn default() -> Self {
        Self { completion: None, reference: Reference::Model, padded: true }
    }
}

/// Where the reference's log-probabilities come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reference {
    /// A forward in each step: through a second model; with adapters through the policy with them off.
    #[default]
    Model,
    /// Computed before training (`precompute_ref_log_probs`): no second model.
    Precomputed,
}

/// What a step of reinforcement learning runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Rollout {
    /// Tokens that are generated for each prompt; the rest of a sequence is the prompt.
    pub completion: u64,
    /// Micro-batches for which completions are generated at once. `None`: as many as a step accumulates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_per_generation: Option<u64>,
    /// Whether the policy is held to a reference (`beta` above 0).
    pub reference: bool,
    /// Whether the policy that generated scores its completions before it changes.
    pub old_log_probs: bool,
    /// Whether a model of the policy's size scores the completions, rather than a function.
    pub reward_model: bool,
    /// vLLM on the same GPU generates. `None`: transformers' own `generate` does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vllm: Option<Vllm>,
    /// Whether some sequence of a batch is shorter than the longest, so that attention takes a mask.
    pub padded: bool,
}

impl Default for Rollout {
    /// TRL's defaults: 256 tokens (`max_completion_length`), no reference, a function that rewards.
    fn default() -> Self {
        Self {
            completion: 256,
            steps_per_generation: None,
            reference: false,
            old_log_probs: false,
            reward_model: false,
            vllm: None,
            padded: true,
        }
    }
}

/// What a step of PPO runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Ppo {
    /// Tokens that are generated for each prompt (`response_length`); the rest of a sequence is the prompt.
    pub completion: u64,
    /// Sequences that are generated and scored at once, without gradients (`local_rollout_forward_batch_size`).
    pub forward_batch: u64,
    /// Whether some sequence of a batch is shorter than the longest, so that attention takes a mask.
    pub padded: bool,
}

impl Default for Ppo {
    /// TRL's defaults.
    fn default() -> Self {
        Self { completion: 53, forward_batch: 64, padded: true }
    }
}

/// vLLM beside the trainer (`vllm_mode="colocate"`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Vllm {
    /// Share of the GPU that it takes (`vllm_gpu_memory_utilization`).
    pub memory_utilization: f64,
    /// Whether it gives its memory back while the policy is updated (`vllm_enable_sleep_mode`).
    pub sleep: bool,
}

impl Default for Vllm {
    fn default() -> Self {
        Self { memory_utilization: 0.3, sleep: false }
    }
}

impl Method {
    /// The name in documents.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Dpo(_) => "dpo",
            Self::Reward(_) => "reward",
            Self::Grpo(_) => "grpo",
            Self::Ppo(_) => "ppo",
        }
    }

    /// Sequences that a micro-batch holds for each that the recipe counts: pairs are two.
    #[must_use]
    pub const fn sequences(&self) -> u64 {
        match self {
            Self::Dpo(_) | Self::Reward(_) => 2,
            Self::Grpo(_) | Self::Ppo(_) => 1,
        }
    }

    /// Whether attention takes a mask of the padding.
    #[must_use]
    pub const fn padded(&self) -> bool {
        match self {
            Self::Dpo(of) => of.padded,
            Self::Reward(of) => of.padded,
            Self::Grpo(of) => of.padded,
            Self::Ppo(of) => of.padded,
        }
    }

    /// What GRPO runs.
    #[must_use]
    pub const fn rollout(&self) -> Option<&Rollout> {
        match self {
            Self::Grpo(of) => Some(of),
            Self::Dpo(_) | Self::Reward(_) | Self::Ppo(_) => None,
        }
    }

    /// Tokens that are generated, to change them.
    pub(crate) const fn generated_mut(&mut self) -> Option<&mut u64> {
        match self {
            Self::Grpo(of) => Some(&mut of.completion),
            Self::Ppo(of) => Some(&mut of.completion),
            Self::Dpo(_) | Self::Reward(_) => None,
        }
    }

    /// Whether completions are generated.
    #[must_use]
    pub const fn generates(&self) -> bool {
        matches!(self, Self::Grpo(_) | Self::Ppo(_))
    }
}

impl Recipe {
    /// Sequences that a micro-batch's forward runs over.
    #[must_use]
    pub fn sequences(&self) -> u64 {
        self.micro_batch.saturating_mul(self.method.map_or(1, |method| method.sequences()))
    }

    /// Tokens of a sequence that are scored by the head, where not all are.
    #[must_use]
    pub fn scored(&self) -> u64 {
        let all = self.seq_len.saturating_sub(1);
        match &self.method {
            Some(Method::Dpo(of)) => of.completion.unwrap_or(all),
            Some(Method::Grpo(of)) => of.completion,
            Some(Method::Ppo(of)) => of.completion,
            Some(Method::Reward(_)) | None => all,
        }
    }
}
