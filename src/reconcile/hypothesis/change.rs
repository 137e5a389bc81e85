//! What may differ between a plan and the run that was measured: one change at a time, as data.

use serde::Serialize;

use crate::allocator;
use crate::estimate::read_model;
use crate::plan::{Framework, Plan, Version};
use crate::recipe::{
    ALL_LINEAR, Attention, Checkpointing, LigerKernel, Lora, Loss, OptimizerImpl, OptimizerName, Precision,
    SdpaBackend, ZeroGrad,
};
use crate::versions::Rules;

/// One field of a plan and another value for it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The precision recipe.
    Precision(Precision),
    /// The attention implementation.
    Attention(Attention),
    /// The backend of `sdpa`; `None`: as PyTorch chooses.
    SdpaBackend(Option<SdpaBackend>),
    /// Activation checkpointing.
    Checkpointing(Checkpointing),
    /// The optimizer.
    Optimizer {
        /// Which.
        name: OptimizerName,
        /// Its implementation. `None`: its default.
        implementation: Option<OptimizerImpl>,
        /// Momentum of SGD and RMSprop.
        momentum: f64,
    },
    /// Momentum of SGD and RMSprop.
    Momentum(f64),
    /// The optimizer's implementation.
    Implementation(OptimizerImpl),
    /// Whether the optimizer steps inside of backward.
    InBackward(bool),
    /// Whether gradients are clipped by norm.
    Clip(bool),
    /// What `zero_grad` does.
    ZeroGrad(ZeroGrad),
    /// Micro-batches per step.
    GradAccum(u64),
    /// How the loss is computed: how many copies of the logits there are.
    Loss(Loss),
    /// Whether Liger's default kernels run.
    Liger(bool),
    /// Whether the model's outputs stay alive through backward.
    KeepOutputs(bool),
    /// Sequences per micro-batch.
    MicroBatch(u64),
    /// Tokens per sequence.
    SeqLen(u64),
    /// Whether adapters are trained, and of which rank; `None`: every weight is trained.
    LoraRank(Option<u64>),
    /// Whether adapters sit on every linear layer instead of those named.
    LoraEverywhere,
    /// Whether cuBLAS workspaces outlive their calls.
    WorkspaceKept(bool),
    /// PyTorch's version.
    Pytorch(Version),
    /// transformers' version.
    Transformers(Version),
    /// Whether expandable segments are on.
    ExpandableSegments(bool),
}

/// Adapters of a rank that one who trains all weights may in truth be training.
const USUAL_RANKS: [u64; 3] = [16, 8, 64];
/// Momentum as everyone has it.
const USUAL_MOMENTUM: f64 = 0.9;

/// A version between any two changes of PyTorch's rules, the newest first.
const PYTORCH: [Version; 13] = [
    Version(2, 15),
    Version(2, 14),
    Version(2, 13),
    Version(2, 12),
    Version(2, 11),
    Version(2, 10),
    Version(2, 8),
    Version(2, 7),
    Version(2, 6),
    Version(2, 4),
    Version(2, 0),
    Version(1, 13),
    Version(1, 10),
];
/// The same of transformers.
const TRANSFORMERS: [Version; 13] = [
    Version(5, 24),
    Version(5, 10),
    Version(5, 3),
    Version(4, 57),
    Version(4, 55),
    Version(4, 53),
    Version(4, 51),
    Version(4, 50),
    Version(4, 49),
    Version(4, 48),
    Version(4, 47),
    Version(4, 46),
    Version(4, 45),
];

/// The versions whose rules for models of `family` differ from the plan's and from each other's.
fn versions(plan: &Plan, family: &str, change: impl Fn(&mut Framework, Version), all: &[Version]) -> Vec<Version> {
    // Of the allocator's rules the order of equal blocks alone matters whatever the settings are.
    let ties = |version| allocator::rules::Rules::of(version).ties_by_record;
    let rules = |of: &Framework| (Rules::of(of, family), of.workspace_kept(), ties(of.pytorch));
    let mut seen = vec![rules(&plan.framework)];
    let mut differ = |version: &Version| {
        let mut framework = plan.framework.clone();
        change(&mut framework, *version);
        let of_version = rules(&framework);
        let new = !seen.contains(&of_version);
        seen.push(of_version);
        new
    };
    all.iter().copied().filter(|version| differ(version)).collect()
}

/// Every candidate for `plan`, the commonest mistakes first: of several that predict the same readings, the first is named
/// first.
#[must_use]
pub fn candidates(plan: &Plan) -> Vec<Change> {
    let recipe = &plan.recipe;
    let guessed = |p: &Precision| !matches!(p, Precision::RuleOfThumb | Precision::PureFp16 | Precision::Bf16Autocast);
    let mut all: Vec<Change> = Precision::ALL.into_iter().filter(guessed).map(Change::Precision).collect();
    all.push(Change::Precision(Precision::PureFp16));
    all.extend([Attention::Sdpa, Attention::FlashAttention2, Attention::Eager].map(Change::Attention));
    let checkpointing = Checkpointing::NAMED.into_iter().chain([2, 3].map(Checkpointing::Every));
    all.extend(checkpointing.map(Change::Checkpointing));
    let implementations = recipe.optimizer.name.implementations();
    all.extend(implementations.iter().copied().map(Change::Implementation));
    for name in OptimizerName::ALL {
        // An implementation that the plan names is kept where the other optimizer has it, as its own default otherwise.
        let own = recipe.optimizer.implementation.filter(|one| name.implementations().contains(one));
        all.push(Change::Optimizer { name, implementation: own, momentum: 0.0 });
        let others = name.implementations().iter().map(|one| Some(*one));
        all.extend(others.filter(|one| *one != own).map(|one| Change::Optimizer {
            name,
            implementation: one,
            momentum: 0.0,
        }));
    }
    all.push(Change::Optimizer { name: OptimizerName::Sgd, implementation: None, momentum: USUAL_MOMENTUM });
    all.extend([0.0, USUAL_MOMENTUM].map(Change::Momentum));
    all.extend([true, false].map(Change::WorkspaceKept));
    all.extend([ZeroGrad::None, ZeroGrad::Zero].map(Change::ZeroGrad));
    all.extend([1, 2, 4].map(Change::GradAccum));
    all.extend([false, true].map(Change::KeepOutputs));
    all.extend([Loss::Hf, Loss::Chunked(8), Loss::Chunked(16)].map(Change::Loss));
    all.extend([false, true].map(Change::Liger));
    all.extend([false, true].map(Change::InBackward));
    all.extend([true, false].map(Change::Clip));
    all.extend([2, 1].map(|half| Change::MicroBatch(recipe.micro_batch * 2 / half / half)));
    all.extend([1, 2, 4, 8].map(Change::MicroBatch));
    all.extend([recipe.seq_len / 2, recipe.seq_len.saturating_mul(2)].map(Change::SeqLen));
    all.extend([512, 1024, 2048, 4096].map(Change::SeqLen));
    all.push(Change::LoraRank(None));
    all.extend(USUAL_RANKS.map(|rank| Change::LoraRank(Some(rank))));
    all.push(Change::LoraEverywhere);
    let backends = [
        None,
        Some(SdpaBackend::FlashAttention),
        Some(SdpaBackend::EfficientAttention),
        Some(SdpaBackend::Math),
        Some(SdpaBackend::CudnnAttention),
    ];
    all.extend(backends.map(Change::SdpaBackend));
    if let Ok(read) = read_model(&plan.model) {
        let family = read.model.family();
        let pytorch = versions(plan, family, |framework, version| framework.pytorch = version, &PYTORCH);
        all.extend(pytorch.into_iter().map(Change::Pytorch));
        let others = versions(plan, family, |framework, version| framework.transformers = version, &TRANSFORMERS);
        all.extend(others.into_iter().map(Change::Transformers));
    }
    all.extend([true, false].map(Change::ExpandableSegments));
    let mut distinct: Vec<Change> = Vec::new();
    for change in all {
        if !distinct.contains(&change) {
            distinct.push(change);
        }
    }
    distinct.retain(|change| change.apply(plan).is_some());
    distinct
}

impl Change {
    /// `plan` with the change; `None` where it changes nothing or has no meaning there.
    #[must_use]
    pub fn apply(self, plan: &Plan) -> Option<Plan> {
        let mut changed = plan.clone();
        let recipe = &mut changed.recipe;
        let framework = &mut changed.framework;
        let of_sdpa = matches!(recipe.attention, None | Some(Attention::Sdpa));
        match self {
            Self::Precision(precision) => recipe.precision = Some(precision),
            // What is chosen by default is no other choice.
            Self::Attention(Attention::Sdpa) if recipe.attention.is_none() => {}
            Self::Attention(attention) => {
                recipe.attention = Some(attention);
                recipe.sdpa_backend = recipe.sdpa_backend.filter(|_| attention == Attention::Sdpa);
            }
            Self::SdpaBackend(backend) if of_sdpa => recipe.sdpa_backend = backend,
            Self::SdpaBackend(_) => {}
            Self::Checkpointing(checkpointing) => recipe.checkpointing = checkpointing,
            Self::Optimizer { name, .. } if name == recipe.optimizer.name => {}
            Self::Optimizer { name, implementation, momentum } => {
                let optimizer = &mut recipe.optimizer;
                (optimizer.name, optimizer.implementation, optimizer.momentum) = (name, implementation, momentum);
            }
            Self::Momentum(momentum) if recipe.optimizer.name == OptimizerName::Sgd => {
                recipe.optimizer.momentum = momentum;
            }
            Self::Momentum(_) => {}
            Self::Implementation(one) if recipe.optimizer.implementation() == one => {}
            Self::Implementation(one) => recipe.optimizer.implementation = Some(one),
            Self::InBackward(yes) => recipe.optimizer.in_backward = yes,
            Self::Clip(yes) if yes == recipe.clip_grad.is_some() => {}
            Self::Clip(yes) => recipe.clip_grad = yes.then_some(1.0),
            Self::ZeroGrad(way) if way == recipe.zero_grad.unwrap_or_default() => {}
            Self::ZeroGrad(way) => recipe.zero_grad = Some(way),
            Self::GradAccum(n) => recipe.grad_accum = n,
            Self::Loss(loss) => recipe.loss = loss,
            Self::Liger(yes) if yes != recipe.liger.is_empty() => {}
            Self::Liger(yes) => recipe.liger = if yes { LigerKernel::DEFAULT.to_vec() } else { Vec::new() },
            Self::KeepOutputs(yes) => recipe.keep_outputs = yes,
            Self::MicroBatch(0) | Self::SeqLen(0) => return None,
            Self::MicroBatch(n) => recipe.micro_batch = n,
            Self::SeqLen(_) if !recipe.packed.is_empty() => {}
            Self::SeqLen(n) => recipe.seq_len = n,
            // Quantised weights are not trained themselves.
            Self::LoraRank(None) if recipe.quantization.is_some() => {}
            Self::LoraRank(None) => recipe.lora = None,
            Self::LoraRank(Some(rank)) => match &mut recipe.lora {
                Some(lora) => lora.r = rank,
                None => recipe.lora = Some(Lora::new(rank, vec![ALL_LINEAR.into()])),
            },
            Self::LoraEverywhere => recipe.lora.as_mut()?.targets = vec![ALL_LINEAR.into()],
            Self::WorkspaceKept(yes) if yes == framework.workspace_kept() => {}
            Self::WorkspaceKept(yes) => framework.cublas_workspace_kept = Some(yes),
            Self::Pytorch(version) => framework.pytorch = version,
            Self::Transformers(version) => framework.transformers = version,
            Self::ExpandableSegments(yes) if yes == expands(plan) => {}
            Self::ExpandableSegments(yes) => framework.alloc_conf = yes.then(|| EXPANDABLE.into()),
        }
        (changed != *plan).then_some(changed)
    }

    /// The same field with the plan's own value; `None` where that has no name here.
    #[must_use]
    pub fn in_plan(self, plan: &Plan) -> Option<Self> {
        let recipe = &plan.recipe;
        let framework = &plan.framework;
        Some(match self {
            Self::Precision(_) => Self::Precision(recipe.precision?),
            Self::Attention(_) => Self::Attention(recipe.attention.unwrap_or(Attention::Sdpa)),
            Self::SdpaBackend(_) => Self::SdpaBackend(recipe.sdpa_backend),
            Self::Checkpointing(_) => Self::Checkpointing(recipe.checkpointing),
            Self::Optimizer { .. } => {
                let optimizer = &recipe.optimizer;
                Self::Optimizer {
                    name: optimizer.name,
                    implementation: optimizer.implementation,
                    momentum: optimizer.momentum,
                }
            }
            Self::Momentum(_) => Self::Momentum(recipe.optimizer.momentum),
            Self::Implementation(_) => Self::Implementation(recipe.optimizer.implementation()),
            Self::InBackward(_) => Self::InBackward(recipe.optimizer.in_backward),
            Self::Clip(_) => Self::Clip(recipe.clip_grad.is_some()),
            Self::ZeroGrad(_) => Self::ZeroGrad(recipe.zero_grad.unwrap_or_default()),
            Self::GradAccum(_) => Self::GradAccum(recipe.grad_accum),
            Self::Loss(_) => Self::Loss(recipe.loss),
            Self::Liger(_) => Self::Liger(!recipe.liger.is_empty()),
            Self::KeepOutputs(_) => Self::KeepOutputs(recipe.keep_outputs),
            Self::MicroBatch(_) => Self::MicroBatch(recipe.micro_batch),
            Self::SeqLen(_) => Self::SeqLen(recipe.seq_len),
            Self::LoraRank(_) => Self::LoraRank(recipe.lora.as_ref().map(|lora| lora.r)),
            Self::LoraEverywhere => return None,
            Self::WorkspaceKept(_) => Self::WorkspaceKept(framework.workspace_kept()),
            Self::Pytorch(_) => Self::Pytorch(framework.pytorch),
            Self::Transformers(_) => Self::Transformers(framework.transformers),
            Self::ExpandableSegments(_) => Self::ExpandableSegments(expands(plan)),
        })
    }
}

const EXPANDABLE: &str = "expandable_segments:True";

/// Whether the plan asks for expandable segments.
pub(super) fn expands(plan: &Plan) -> bool {
    plan.framework.alloc_conf.as_deref().is_some_and(|conf| conf.contains(EXPANDABLE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::versions::{Library, ROWS};

    /// Between two changes of the rules lies a version that is tried.
    #[test]
    fn every_range_of_versions_has_a_candidate() {
        for (library, tried) in [(Library::Pytorch, &PYTORCH[..]), (Library::Transformers, &TRANSFORMERS[..])] {
            let mut turns: Vec<Version> = ROWS.iter().filter(|row| row.of == library).map(|row| row.until).collect();
            turns.push(library.oldest());
            turns.retain(|turn| *turn >= library.oldest());
            turns.sort_unstable();
            turns.dedup();
            for (at, from) in turns.iter().enumerate() {
                let until = turns.get(at + 1).copied().unwrap_or(Version(99, 0));
                let within = |version: &&Version| **version >= *from && **version < until;
                assert!(tried.iter().any(|v| within(&v)), "{}: none from {from} to {until}", library.name());
            }
        }
    }
}
