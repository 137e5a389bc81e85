//! What a reader of the decision should know beside it: advice as data.

use serde::{Deserialize, Serialize};

use crate::bill::Provenance;
use crate::units::Bytes;

/// Something that was assumed or that the numbers do not say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Caveat {
    /// The hardware has no BF16: PyTorch emulates it, slowly (A8). FP16 is what it has.
    Bf16Emulated {
        /// The GPU.
        gpu: String,
    },
    /// Memory held by others was not given and is taken as none.
    InUseNotGiven,
    /// The capacity is an assumption.
    CapacityAssumed {
        /// What was taken.
        bytes: Bytes,
        /// From what.
        provenance: Provenance,
    },
    /// The context is an assumption.
    ContextAssumed {
        /// What was taken.
        bytes: Bytes,
        /// From what.
        provenance: Provenance,
    },
    /// What NCCL's communicators take is an assumption.
    CommunicatorsAssumed {
        /// What was taken.
        bytes: Bytes,
        /// From what.
        provenance: Provenance,
    },
    /// The figures are the articles' rule of thumb, which is not what a framework holds.
    RuleOfThumb {
        /// Parameters that are trained.
        trained: u64,
        /// The rule's attention matrix of one layer.
        attention: Option<Bytes>,
        /// The rule's feed-forward intermediate of one layer.
        intermediate: Option<Bytes>,
    },
    /// The quantiser leaves a mixture's experts: it takes linear layers alone, and they are stacked parameters since
    /// transformers 5.
    ExpertsNotQuantized {
        /// What they hold while the model is trained.
        bytes: Bytes,
        /// In how many bits each number.
        bits: u64,
        /// Whether preparation has made that of half as many.
        prepared: bool,
    },
    /// The precision recipe was not given: the figures are the dearest candidate's.
    PrecisionNotGiven {
        /// Every candidate.
        candidates: Vec<super::Candidate>,
    },
}
