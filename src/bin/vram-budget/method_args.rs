//! Preferences, rewards and reinforcement learning as flags.

use clap::builder::PossibleValuesParser;
use vram_budget::recipe::{Dpo, Method, Pairs, Ppo, Recipe, Reference, Rollout, Vllm};

const NAMES: [&str; 4] = ["dpo", "reward", "grpo", "ppo"];

/// What is trained for beside the next token.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Preferences and reinforcement learning")]
pub(crate) struct MethodArgs {
    /// Trains on preferences (dpo), a reward model (reward), or by reinforcement (grpo, ppo), as TRL does
    #[arg(long, value_name = "METHOD", value_parser = PossibleValuesParser::new(NAMES))]
    method: Option<String>,
    /// Tokens of each sequence that are the answer, generated or scored [default: all; grpo: 256; ppo: 53]
    #[arg(long, value_name = "N")]
    completion: Option<u64>,
    /// The reference's log-probabilities are computed before training: no second model (dpo)
    #[arg(long)]
    precompute_reference: bool,
    /// A reference holds the policy back, as with beta above 0 (grpo)
    #[arg(long)]
    reference: bool,
    /// A model of the policy's size scores completions, rather than a function (grpo)
    #[arg(long)]
    reward_model: bool,
    /// The policy scores its completions before it changes (grpo)
    #[arg(long)]
    old_log_probs: bool,
    /// Micro-batches for which completions are generated at once [default: as many as are accumulated]
    #[arg(long, value_name = "N")]
    steps_per_generation: Option<u64>,
    /// Sequences that are generated and scored at once, without gradients (ppo) [default: 64]
    #[arg(long, value_name = "N")]
    forward_batch: Option<u64>,
    /// vLLM generates on the same GPU and takes this share of it [default: transformers generates]
    #[arg(long, value_name = "SHARE")]
    vllm: Option<f64>,
    /// vLLM gives its memory back while the policy is updated
    #[arg(long, requires = "vllm")]
    vllm_sleep: bool,
    /// All sequences of a batch are of one length: attention takes no mask
    #[arg(long)]
    unpadded: bool,
}

impl MethodArgs {
    /// Changes what was given.
    pub(crate) fn change(&self, recipe: &mut Recipe) {
        if let Some(name) = &self.method
            && recipe.method.is_none_or(|m| m.name() != name)
        {
            recipe.method = Some(match name.as_str() {
                "dpo" => Method::Dpo(Dpo::default()),
                "reward" => Method::Reward(Pairs::default()),
                "grpo" => Method::Grpo(Rollout::default()),
                _ => Method::Ppo(Ppo::default()),
            });
        }
        match &mut recipe.method {
            None => {}
            Some(Method::Reward(of)) => of.padded &= !self.unpadded,
            Some(Method::Dpo(of)) => {
                of.padded &= !self.unpadded;
                of.completion = self.completion.or(of.completion);
                if self.precompute_reference {
                    of.reference = Reference::Precomputed;
                }
            }
            Some(Method::Ppo(of)) => {
                of.padded &= !self.unpadded;
                of.completion = self.completion.unwrap_or(of.completion);
                of.forward_batch = self.forward_batch.unwrap_or(of.forward_batch);
            }
            Some(Method::Grpo(of)) => {
                of.padded &= !self.unpadded;
                of.completion = self.completion.unwrap_or(of.completion);
                of.steps_per_generation = self.steps_per_generation.or(of.steps_per_generation);
                of.reference |= self.reference;
                of.reward_model |= self.reward_model;
                of.old_log_probs |= self.old_log_probs;
                if let Some(memory_utilization) = self.vllm {
                    of.vllm = Some(Vllm { memory_utilization, sleep: self.vllm_sleep });
                }
            }
        }
    }
}
