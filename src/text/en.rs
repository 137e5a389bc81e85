//! English.

use super::{Catalogue, TierName};
use crate::bill::{Instant, Part, ProvenanceKind};
use crate::issue::IssueKind;
use crate::recipe::{Attention, Checkpointing, OptimizerImpl, OptimizerName, Precision, SdpaBackend};
use crate::units::grouped;

/// English.
pub(super) struct English;

impl Catalogue for English {
    fn part(&self, part: Part) -> &'static str {
        match part {
            Part::Weights => "Weights",
            Part::States => "Optimizer states",
            Part::Gradients => "Gradients",
            Part::Activations => "Activations",
            Part::Temporary => "Temporary",
        }
    }

    fn instant(&self, instant: Instant) -> &'static str {
        match instant {
            Instant::Forward => "Forward",
            Instant::Loss => "Loss",
            Instant::Backward => "Backward",
            Instant::Step => "Optimizer step",
        }
    }

    fn at_instant(&self, instant: Instant) -> &'static str {
        match instant {
            Instant::Forward => "at the end of forward",
            Instant::Loss => "at the loss",
            Instant::Backward => "in backward",
            Instant::Step => "at the optimizer step",
        }
    }

    fn provenance(&self, kind: ProvenanceKind) -> &'static str {
        match kind {
            ProvenanceKind::Exact => "exact",
            ProvenanceKind::Modelled => "modelled",
            ProvenanceKind::Measured => "measured",
            ProvenanceKind::Assumed => "assumed",
        }
    }

    fn provenance_meaning(&self, kind: ProvenanceKind) -> &'static str {
        match kind {
            ProvenanceKind::Exact => "Arithmetic from the configuration.",
            ProvenanceKind::Modelled => "Follows the rules of a framework version.",
            ProvenanceKind::Measured => "Read from a run.",
            ProvenanceKind::Assumed => "A constant that you can change.",
        }
    }

    fn tier(&self, tier: TierName) -> &'static str {
        match tier {
            TierName::Requested => "Requested",
            TierName::Allocated => "Allocated",
            TierName::Reserved => "Reserved",
            TierName::Process => "Process",
        }
    }

    fn tier_meaning(&self, tier: TierName) -> &'static str {
        match tier {
            TierName::Requested => "The bytes of the tensors themselves.",
            TierName::Allocated => "What memory_allocated() shows: blocks, with rounding.",
            TierName::Reserved => "What PyTorch’s caching allocator takes from the driver.",
            TierName::Process => "Reserved and the CUDA context: what nvidia-smi shows.",
        }
    }

    fn precision(&self, precision: Precision) -> &'static str {
        match precision {
            Precision::Fp32 => "FP32",
            Precision::AmpBf16 => "AMP, autocast to BF16",
            Precision::AmpFp16 => "AMP, autocast to FP16",
            Precision::PureBf16 => "Pure BF16, as loaded",
            Precision::Bf16Master => "BF16 with FP32 master weights",
            Precision::RuleOfThumb => "Rule of thumb, 12 bytes per parameter",
        }
    }

    fn precision_meaning(&self, precision: Precision) -> &'static str {
        match precision {
            Precision::Fp32 => "Weights, gradients and states in FP32: 4 + 4 + 8 bytes per parameter with AdamW.",
            Precision::AmpBf16 => {
                "FP32 weights under torch.autocast: 4 + 4 + 8 bytes per parameter with AdamW, and BF16 copies of the linear weights through backward."
            }
            Precision::AmpFp16 => {
                "FP32 weights under torch.autocast with a gradient scaler: 4 + 4 + 8 bytes per parameter with AdamW, and FP16 copies of the linear weights through backward."
            }
            Precision::PureBf16 => "Weights, gradients and states in BF16: 2 + 2 + 4 bytes per parameter with AdamW.",
            Precision::Bf16Master => {
                "BF16 weights, FP32 main gradients and FP32 master weights, as Megatron-LM: 2 + 4 + 4 + 8 bytes per parameter with AdamW."
            }
            Precision::RuleOfThumb => {
                "Parameters × (2 + 2 + 8): what readers know. No framework holds exactly this; do not decide by it."
            }
        }
    }

    fn optimizer(&self, name: OptimizerName) -> &'static str {
        match name {
            OptimizerName::AdamW => "AdamW",
            OptimizerName::Adam => "Adam",
            OptimizerName::Sgd => "SGD",
        }
    }

    fn implementation(&self, implementation: OptimizerImpl) -> &'static str {
        match implementation {
            OptimizerImpl::Foreach => "foreach",
            OptimizerImpl::Fused => "fused",
            OptimizerImpl::Forloop => "for-loop",
        }
    }

    fn attention(&self, attention: Attention) -> &'static str {
        match attention {
            Attention::Sdpa => "SDPA (flash)",
            Attention::Eager => "eager",
        }
    }

    fn sdpa_backend(&self, backend: SdpaBackend) -> &'static str {
        match backend {
            SdpaBackend::FlashAttention => "flash",
            SdpaBackend::EfficientAttention => "memory-efficient",
            SdpaBackend::CudnnAttention => "cuDNN",
            SdpaBackend::Math => "math",
        }
    }

    fn checkpointing(&self, checkpointing: Checkpointing) -> &'static str {
        match checkpointing {
            Checkpointing::None => "none",
            Checkpointing::Full => "every layer",
        }
    }

    fn issue(&self, kind: &IssueKind) -> String {
        match kind {
            IssueKind::Missing { expected } => format!("missing: expected {expected}"),
            IssueKind::NotA { expected, found } => format!("expected {expected}, found {found}"),
            IssueKind::OutOfRange { min, max, found } => {
                format!("expected {} to {}, found {found}", grouped(*min), grouped(*max))
            }
            IssueKind::NotDivisible { value, by_field, by } => {
                format!("{} is not divisible by {by_field} = {}", grouped(*value), grouped(*by))
            }
            IssueKind::UnknownArchitecture { found, known } => {
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                format!("`{found}` is not modelled here; known architectures: {}", self.list(&known))
            }
            IssueKind::UnknownName { found, did_you_mean } => {
                let near: Vec<&str> = did_you_mean.iter().map(String::as_str).collect();
                match near.as_slice() {
                    [] => format!("`{found}` is not in the catalogue"),
                    near => format!("`{found}` is not in the catalogue; did you mean {}?", self.list_or(near)),
                }
            }
            IssueKind::NotModelled { what } => format!("{what}: not modelled here, so no figure is given"),
            IssueKind::NotSupportedByHardware { what } => format!("this GPU has no {what}"),
            IssueKind::TooLarge => {
                "the step's tensors come to more than 8 PiB, which is past what is computed here".into()
            }
        }
    }

    fn list(&self, items: &[&str]) -> String {
        joined(items, "and")
    }
}

impl English {
    fn list_or(&self, items: &[&str]) -> String {
        joined(items, "or")
    }
}

fn joined(items: &[&str], last: &str) -> String {
    match items {
        [] => String::new(),
        [one] => (*one).into(),
        [head @ .., tail] => format!("{} {last} {tail}", head.join(", ")),
    }
}
