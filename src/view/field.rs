//! The fields that a person types into: how each reads its text into the plan and writes the plan's value back.

use crate::issue::IssueKind;
use crate::machine::GpuChoice;
use crate::plan::{Plan, Version};
use crate::recipe::{Distribution, Lengths, Method, Parallel};
use crate::text::Label;
use crate::units::{Bytes, parse_bytes, parse_decimal, three_digits};
use crate::view::job::has_momentum;

/// A text field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// Sequences per micro-batch.
    MicroBatch,
    /// Tokens per sequence.
    SeqLen,
    /// Micro-batches per step.
    GradAccum,
    /// SGD's momentum.
    Momentum,
    /// Rank of the adapters.
    LoraRank,
    /// The name of the user's own card.
    GpuName,
    /// Its memory.
    GpuMemory,
    /// Its compute capability; empty: not known.
    GpuCapability,
    /// Memory in use by others; empty: not known.
    InUse,
    /// A MIG slice; empty: the whole card.
    MigSlice,
    /// The CUDA context; empty: the catalogue's assumption.
    Context,
    /// PyTorch's version.
    Pytorch,
    /// transformers' version.
    Transformers,
    /// The allocator's settings; empty: unset.
    AllocConf,
    /// Threshold of the rigid cost, in percent.
    RigidShare,
    /// Threshold of the activations, in percent.
    ActivationShare,
    /// The smallest margin, in percent.
    MarginLow,
    /// The comfortable margin, in percent.
    MarginHigh,
    /// GPUs, one rank each.
    WorldSize,
    /// Tensor-parallel ranks.
    TensorSize,
    /// Pipeline stages.
    Pipeline,
    /// Context-parallel ranks.
    ContextRanks,
    /// Expert-parallel ranks.
    ExpertRanks,
    /// GPUs of a node; empty: eight.
    GpusPerNode,
    /// A GPU's share of what its node sends to the network; empty: the generation's usual.
    NetworkGbps,
    /// The link between the GPUs of a node; empty: the card's own.
    LinkGbps,
    /// Tokens that are generated for each prompt.
    Completion,
    /// The largest norm of the gradients; empty: they are not clipped.
    ClipGrad,
    /// Lengths of the sequences in a row; empty: one sequence a row.
    Packed,
    /// Beginnings of names of what is not trained; empty: all is trained.
    Freeze,
    /// Where a run's lengths come from; empty: all are as long as the sequence.
    Lengths,
    /// Steps of that run.
    LengthSteps,
}

impl Field {
    /// Every field.
    pub const ALL: [Self; 32] = [
        Self::MicroBatch,
        Self::SeqLen,
        Self::GradAccum,
        Self::Momentum,
        Self::LoraRank,
        Self::GpuName,
        Self::GpuMemory,
        Self::GpuCapability,
        Self::InUse,
        Self::MigSlice,
        Self::Context,
        Self::Pytorch,
        Self::Transformers,
        Self::AllocConf,
        Self::RigidShare,
        Self::ActivationShare,
        Self::MarginLow,
        Self::MarginHigh,
        Self::WorldSize,
        Self::TensorSize,
        Self::Pipeline,
        Self::ContextRanks,
        Self::ExpertRanks,
        Self::GpusPerNode,
        Self::NetworkGbps,
        Self::LinkGbps,
        Self::Completion,
        Self::ClipGrad,
        Self::Packed,
        Self::Freeze,
        Self::Lengths,
        Self::LengthSteps,
    ];

    /// The `id` of its control.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::MicroBatch => "micro-batch",
            Self::SeqLen => "seq-len",
            Self::GradAccum => "grad-accum",
            Self::Momentum => "momentum",
            Self::LoraRank => "lora-rank",
            Self::GpuName => "gpu-name",
            Self::GpuMemory => "gpu-memory",
            Self::GpuCapability => "gpu-capability",
            Self::InUse => "in-use",
            Self::MigSlice => "mig-slice",
            Self::Context => "context",
            Self::Pytorch => "pytorch",
            Self::Transformers => "transformers",
            Self::AllocConf => "alloc-conf",
            Self::RigidShare => "rigid-share",
            Self::ActivationShare => "activation-share",
            Self::MarginLow => "margin-low",
            Self::MarginHigh => "margin-high",
            Self::WorldSize => "world-size",
            Self::TensorSize => "tensor-size",
            Self::Pipeline => "pipeline",
            Self::ContextRanks => "context-ranks",
            Self::ExpertRanks => "expert-ranks",
            Self::GpusPerNode => "gpus-per-node",
            Self::NetworkGbps => "network-gbps",
            Self::LinkGbps => "link-gbps",
            Self::Completion => "completion",
            Self::ClipGrad => "clip-grad",
            Self::Packed => "packed",
            Self::Freeze => "freeze",
            Self::Lengths => "lengths",
            Self::LengthSteps => "length-steps",
        }
    }

    /// The path of its value in the plan, by which issues name it.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::MicroBatch => "recipe.micro_batch",
            Self::SeqLen => "recipe.seq_len",
            Self::GradAccum => "recipe.grad_accum",
            Self::Momentum => "recipe.optimizer.momentum",
            Self::LoraRank => "recipe.lora.r",
            Self::GpuName => "machine.gpu.custom.name",
            Self::GpuMemory => "machine.gpu.custom.memory_bytes",
            Self::GpuCapability => "machine.gpu.custom.compute_capability",
            Self::InUse => "machine.in_use_bytes",
            Self::MigSlice => "machine.mig_slice_bytes",
            Self::Context => "machine.context_bytes",
            Self::Pytorch => "framework.pytorch",
            Self::Transformers => "framework.transformers",
            Self::AllocConf => "framework.alloc_conf",
            Self::RigidShare => "policy.rigid_share",
            Self::ActivationShare => "policy.activation_share",
            Self::MarginLow => "policy.margin_low",
            Self::MarginHigh => "policy.margin_high",
            Self::WorldSize => "parallel.world_size",
            Self::TensorSize => "parallel.tensor.size",
            Self::Pipeline => "parallel.pipeline",
            Self::ContextRanks => "parallel.context",
            Self::ExpertRanks => "parallel.expert",
            Self::GpusPerNode => "parallel.gpus_per_node",
            Self::NetworkGbps => "parallel.network_gbps",
            Self::LinkGbps => "parallel.link_gbps",
            Self::Completion => "recipe.method.completion",
            Self::ClipGrad => "recipe.clip_grad",
            Self::Packed => "recipe.packed",
            Self::Freeze => "recipe.freeze",
            Self::Lengths => "recipe.lengths.of",
            Self::LengthSteps => "recipe.lengths.steps",
        }
    }

    /// Its label.
    #[must_use]
    pub const fn label(self) -> Label {
        match self {
            Self::MicroBatch => Label::MicroBatch,
            Self::SeqLen => Label::SeqLen,
            Self::GradAccum => Label::GradAccum,
            Self::Momentum => Label::Momentum,
            Self::LoraRank => Label::LoraRank,
            Self::GpuName => Label::GpuOwnName,
            Self::GpuMemory => Label::GpuOwnMemory,
            Self::GpuCapability => Label::GpuOwnCapability,
            Self::InUse => Label::InUse,
            Self::MigSlice => Label::MigSlice,
            Self::Context => Label::Context,
            Self::Pytorch => Label::Pytorch,
            Self::Transformers => Label::Transformers,
            Self::AllocConf => Label::AllocConf,
            Self::RigidShare | Self::ActivationShare => Label::RuleAtMost,
            Self::MarginLow => Label::RuleAtLeast,
            Self::MarginHigh => Label::Comfortable,
            Self::WorldSize => Label::Gpus,
            Self::TensorSize => Label::TensorSize,
            Self::Pipeline => Label::Pipeline,
            Self::ContextRanks => Label::ContextRanks,
            Self::ExpertRanks => Label::ExpertRanks,
            Self::GpusPerNode => Label::GpusPerNode,
            Self::NetworkGbps => Label::NetworkGbps,
            Self::LinkGbps => Label::LinkGbps,
            Self::Completion => Label::Completion,
            Self::ClipGrad => Label::ClipGrad,
            Self::Packed => Label::Packed,
            Self::Freeze => Label::Freeze,
            Self::Lengths => Label::Lengths,
            Self::LengthSteps => Label::LengthSteps,
        }
    }

    /// Puts what `text` says into `plan`.
    ///
    /// # Errors
    /// What is wrong with the text; the plan is then as it was.
    pub fn read(self, text: &str, plan: &mut Plan) -> Result<(), IssueKind> {
        let text = text.trim();
        let size = || parse_bytes(text).map_err(|_| not_a("a size with its unit, such as 24 GiB", text));
        let optional_size = || if text.is_empty() { Ok(None) } else { size().map(Some) };
        match self {
            Self::MicroBatch => plan.recipe.micro_batch = whole(text)?,
            Self::SeqLen => plan.recipe.seq_len = whole(text)?,
            Self::GradAccum => plan.recipe.grad_accum = whole(text)?,
            // Only some have one; what is typed for it waits until one of them is chosen again.
            Self::Momentum if !has_momentum(&plan.recipe) => plan.recipe.optimizer.momentum = 0.0,
            Self::Momentum => {
                plan.recipe.optimizer.momentum = parse_decimal(text)
                    .filter(|m| (0.0..1.0).contains(m))
                    .ok_or_else(|| not_a("a number from 0 to below 1, such as 0.9", text))?;
            }
            Self::LoraRank => {
                // Without adapters there is nothing to fill in.
                let Some(lora) = &mut plan.recipe.lora else { return Ok(()) };
                lora.r = whole(text)?;
            }
            Self::InUse => plan.machine.in_use_bytes = optional_size()?,
            Self::MigSlice => plan.machine.mig_slice_bytes = optional_size()?,
            Self::Context => plan.machine.context_bytes = optional_size()?,
            Self::GpuName | Self::GpuMemory | Self::GpuCapability => {
                // Without a card of one's own there is nothing to fill in.
                let Some(GpuChoice::Custom(gpu)) = &mut plan.machine.gpu else { return Ok(()) };
                match self {
                    Self::GpuMemory => gpu.memory_bytes = size()?,
                    Self::GpuName => gpu.name = text.chars().take(80).collect(),
                    _ => gpu.compute_capability = (!text.is_empty()).then(|| text.to_owned()),
                }
            }
            Self::Pytorch | Self::Transformers => {
                let version = text.parse::<Version>().map_err(|_| not_a("a version, such as 2.15", text))?;
                let framework = &mut plan.framework;
                *(if self == Self::Pytorch { &mut framework.pytorch } else { &mut framework.transformers }) = version;
            }
            Self::AllocConf => plan.framework.alloc_conf = (!text.is_empty()).then(|| text.to_owned()),
            Self::RigidShare => plan.policy.rigid_share = share(text)?,
            Self::ActivationShare => plan.policy.activation_share = share(text)?,
            Self::MarginLow => plan.policy.margin_low = share(text)?,
            Self::MarginHigh => plan.policy.margin_high = share(text)?,
            Self::WorldSize => plan.parallel.world_size = whole(text)?,
            Self::TensorSize
            | Self::Pipeline
            | Self::ContextRanks
            | Self::ExpertRanks
            | Self::GpusPerNode
            | Self::NetworkGbps
            | Self::LinkGbps
            | Self::Completion
            | Self::ClipGrad
            | Self::Packed
            | Self::Freeze
            | Self::Lengths
            | Self::LengthSteps => {
                return self.read_rare(text, plan);
            }
        }
        Ok(())
    }

    /// The text for the plan's value, which [`Field::read`] reads back as that value.
    #[must_use]
    pub fn write(self, plan: &Plan) -> String {
        let optional = |bytes: Option<Bytes>| bytes.map_or(String::new(), size_text);
        let own = match &plan.machine.gpu {
            Some(GpuChoice::Custom(gpu)) => Some(gpu),
            _ => None,
        };
        match self {
            Self::MicroBatch => plan.recipe.micro_batch.to_string(),
            Self::SeqLen => plan.recipe.seq_len.to_string(),
            Self::GradAccum => plan.recipe.grad_accum.to_string(),
            Self::Momentum => plan.recipe.optimizer.momentum.to_string(),
            Self::LoraRank => plan.recipe.lora.as_ref().map_or(16, |lora| lora.r).to_string(),
            Self::GpuName => own.map_or(String::new(), |gpu| gpu.name.clone()),
            Self::GpuMemory => own.map_or(String::new(), |gpu| size_text(gpu.memory_bytes)),
            Self::GpuCapability => own.and_then(|gpu| gpu.compute_capability.clone()).unwrap_or_default(),
            Self::InUse => optional(plan.machine.in_use_bytes),
            Self::MigSlice => optional(plan.machine.mig_slice_bytes),
            Self::Context => optional(plan.machine.context_bytes),
            Self::Pytorch => plan.framework.pytorch.to_string(),
            Self::Transformers => plan.framework.transformers.to_string(),
            Self::AllocConf => plan.framework.alloc_conf.clone().unwrap_or_default(),
            Self::RigidShare => share_text(plan.policy.rigid_share),
            Self::ActivationShare => share_text(plan.policy.activation_share),
            Self::MarginLow => share_text(plan.policy.margin_low),
            Self::MarginHigh => share_text(plan.policy.margin_high),
            Self::WorldSize => plan.parallel.world_size.to_string(),
            Self::TensorSize
            | Self::Pipeline
            | Self::ContextRanks
            | Self::ExpertRanks
            | Self::GpusPerNode
            | Self::NetworkGbps
            | Self::LinkGbps
            | Self::Completion
            | Self::ClipGrad
            | Self::Packed
            | Self::Freeze
            | Self::Lengths
            | Self::LengthSteps => self.write_rare(plan),
        }
    }
}

/// What most people leave empty, in functions of its own: the page reads them only where something stands in the field.
impl Field {
    fn read_rare(self, text: &str, plan: &mut Plan) -> Result<(), IssueKind> {
        let listed = || text.split([',', ';', ' ']).map(str::trim).filter(|part| !part.is_empty());
        match self {
            Self::TensorSize | Self::Pipeline | Self::ContextRanks | Self::ExpertRanks => {
                if let Some(ranks) = self.ranks(&mut plan.parallel) {
                    *ranks = if text.is_empty() { 1 } else { whole(text)? };
                }
            }
            Self::GpusPerNode => plan.parallel.gpus_per_node = if text.is_empty() { None } else { Some(whole(text)?) },
            Self::NetworkGbps | Self::LinkGbps => {
                let rate = || parse_decimal(text).ok_or_else(|| not_a("a number of GB/s, such as 50", text));
                let rate = if text.is_empty() { None } else { Some(rate()?) };
                let of = &mut plan.parallel;
                *(if self == Self::LinkGbps { &mut of.link_gbps } else { &mut of.network_gbps }) = rate;
            }
            // What is typed for it waits until completions are generated again.
            Self::Completion => {
                if let Some(completion) = plan.recipe.method.as_mut().and_then(Method::generated_mut) {
                    *completion = whole(text)?;
                }
            }
            Self::ClipGrad if text.is_empty() => plan.recipe.clip_grad = None,
            Self::ClipGrad => {
                let norm = parse_decimal(text).filter(|norm| *norm > 0.0);
                plan.recipe.clip_grad = Some(norm.ok_or_else(|| not_a("a number above 0, such as 1.0", text))?);
            }
            Self::Packed => plan.recipe.packed = listed().map(whole).collect::<Result<_, _>>()?,
            Self::Freeze => plan.recipe.freeze = listed().map(str::to_owned).collect(),
            Self::Lengths if text.is_empty() => plan.recipe.lengths = None,
            Self::Lengths => {
                let of = Distribution::parse(text)
                    .ok_or_else(|| not_a("uniform=64..2048, log-normal=512,0.7, or lengths such as 307, 1237", text))?;
                let before = plan.recipe.lengths.take();
                plan.recipe.lengths = Some(Lengths { of: of.clone(), ..before.unwrap_or_else(|| Lengths::new(of)) });
            }
            // What is typed for it waits until there are lengths.
            _ => {
                if let Some(lengths) = &mut plan.recipe.lengths {
                    lengths.steps = whole(text)?;
                }
            }
        }
        Ok(())
    }

    /// A way to split the model, by its ranks.
    fn ranks(self, parallel: &mut Parallel) -> Option<&mut u64> {
        Some(match self {
            Self::TensorSize => &mut parallel.tensor.size,
            Self::Pipeline => &mut parallel.pipeline,
            Self::ContextRanks => &mut parallel.context,
            Self::ExpertRanks => &mut parallel.expert,
            _ => return None,
        })
    }

    fn write_rare(self, plan: &Plan) -> String {
        let recipe = &plan.recipe;
        match self {
            Self::TensorSize | Self::Pipeline | Self::ContextRanks | Self::ExpertRanks => {
                let ranks = self.ranks(&mut plan.parallel.clone()).map_or(1, |ranks| *ranks);
                if ranks == 1 { String::new() } else { ranks.to_string() }
            }
            Self::GpusPerNode => plan.parallel.gpus_per_node.map_or(String::new(), |gpus| gpus.to_string()),
            Self::NetworkGbps => plan.parallel.network_gbps.map_or(String::new(), |rate| rate.to_string()),
            Self::LinkGbps => plan.parallel.link_gbps.map_or(String::new(), |rate| rate.to_string()),
            Self::Completion => {
                recipe.method.as_ref().and_then(Method::rollout).map_or(256, |of| of.completion).to_string()
            }
            Self::ClipGrad => recipe.clip_grad.map_or(String::new(), |norm| norm.to_string()),
            Self::Packed => recipe.packed.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
            Self::Freeze => recipe.freeze.join(", "),
            Self::Lengths => recipe.lengths.as_ref().map_or(String::new(), |lengths| lengths.of.to_string()),
            _ => recipe.lengths.as_ref().map_or(300, |lengths| lengths.steps).to_string(),
        }
    }
}

fn not_a(expected: &str, found: &str) -> IssueKind {
    if found.is_empty() {
        return IssueKind::Missing { expected: expected.into() };
    }
    let found: String = found.chars().take(40).collect();
    IssueKind::NotA { expected: expected.into(), found: format!("`{found}`") }
}

/// A whole number, with spaces or underscores between its digits. Whether it is in range is the engine's to say.
fn whole(text: &str) -> Result<u64, IssueKind> {
    let digits: String = text.chars().filter(|c| !c.is_whitespace() && *c != '_').collect();
    if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_digit()) {
        return Err(not_a("a whole number", text));
    }
    // So many digits that they do not fit are out of every range.
    Ok(digits.parse().unwrap_or(u64::MAX))
}

/// A percentage as a share.
fn share(text: &str) -> Result<f64, IssueKind> {
    parse_decimal(text.trim_end_matches('%').trim_end())
        .filter(|percent| (0.0..=100.0).contains(percent))
        .map(|percent| percent / 100.0)
        .ok_or_else(|| not_a("a percentage from 0 to 100", text))
}

fn share_text(share: f64) -> String {
    let percent = share * 100.0;
    // 0.07 × 100 is 7.000000000000001.
    let rounded = (percent * 1e9).round() / 1e9;
    if rounded / 100.0 == share { rounded.to_string() } else { percent.to_string() }
}

/// A byte count in the largest binary unit that writes it exactly with at most three digits or none after the point.
fn size_text(bytes: Bytes) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, scale) in UNITS {
        if bytes.get() >= scale && bytes.get().is_multiple_of(scale) {
            return format!("{} {unit}", bytes.get() / scale);
        }
    }
    let short = format!("{} GiB", three_digits(bytes.as_gib()));
    if parse_bytes(&short) == Ok(bytes) { short } else { format!("{} B", bytes.get()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::machine::CustomGpu;
    use crate::recipe::OptimizerName;
    use crate::view::example;

    fn read(field: Field, text: &str) -> Result<Plan, IssueKind> {
        let mut plan = example();
        plan.recipe.optimizer.name = OptimizerName::Sgd;
        field.read(text, &mut plan).map(|()| plan)
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        let mut own = example();
        own.machine.gpu = Some(GpuChoice::Custom(CustomGpu {
            name: "mine".into(),
            memory_bytes: Bytes(25_383_256_719),
            compute_capability: Some("8.9".into()),
        }));
        own.machine.in_use_bytes = Some(Bytes(600 << 20));
        own.policy.margin_low = 0.07;
        for plan in [example(), own] {
            let mut read_back = plan.clone();
            for field in Field::ALL {
                field.read(&field.write(&plan), &mut read_back).unwrap();
            }
            assert_eq!(read_back, plan);
        }
    }

    #[test]
    fn an_empty_optional_field_means_not_known() {
        assert_eq!(read(Field::InUse, " ").unwrap().machine.in_use_bytes, None);
        assert_eq!(read(Field::InUse, "0 GiB").unwrap().machine.in_use_bytes, Some(Bytes(0)));
        assert_eq!(read(Field::MigSlice, "").unwrap().machine.mig_slice_bytes, None);
    }

    #[test]
    fn people_write_numbers_in_several_ways() {
        for text in ["16384", " 16384 ", "16 384", "16_384", "16\u{202f}384"] {
            assert_eq!(read(Field::SeqLen, text).unwrap().recipe.seq_len, 16384, "{text}");
        }
        assert_eq!(read(Field::MicroBatch, "99999999999999999999999").unwrap().recipe.micro_batch, u64::MAX);
        assert_eq!(read(Field::RigidShare, "75 %").unwrap().policy.rigid_share, 0.75);
    }

    #[test]
    fn what_is_no_number_is_refused_with_what_was_expected() {
        for (field, texts) in [
            (Field::MicroBatch, &["", "-1", "1.5", "1e3", "two", "0x10", "१"][..]),
            (Field::Momentum, &["", "1", "-0.1", "nan", "inf", "1e-1"]),
            (Field::MarginLow, &["", "101", "-1", "ten", "NaN"]),
            (Field::InUse, &["much", "-1 GiB", "5 apples", "1e9"]),
            (Field::Pytorch, &["", "two", "2"]),
        ] {
            for text in texts {
                let error = read(field, text).unwrap_err();
                assert!(matches!(error, IssueKind::NotA { .. } | IssueKind::Missing { .. }), "{text}: {error:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,60}", at in 0usize..Field::ALL.len()) {
            let _ = read(Field::ALL[at], &text);
        }

        #[test]
        fn any_size_reads_back(bytes in 0u64..(1 << 50)) {
            prop_assert_eq!(parse_bytes(&size_text(Bytes(bytes))), Ok(Bytes(bytes)));
        }

        #[test]
        fn any_percentage_reads_back(hundredths in 0u32..=10_000) {
            let percent = f64::from(hundredths) / 100.0;
            let share = share(&percent.to_string()).unwrap();
            prop_assert_eq!(share_text(share), percent.to_string());
        }
    }
}
