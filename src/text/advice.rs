//! What is said of what to run: the recommendation and other ways, what remedies cost and need, the findings of a search. A
//! catalogue of its own: the page's first program has no use for it.

use crate::bill::Instant;
use crate::decide::{Advice, Decision, Declined, Effect, Outcome, PricedRemedy, RemedyId, Way};
use crate::estimate::Peak;
use crate::plan::Plan;
use crate::recipe::parallel::DataParallel;
use crate::text::{Catalogue, Locale};
use crate::throughput::{Range, Throughput};
use crate::units::{Bytes, grouped, three_digits};

/// A heading or a remark about what to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advised {
    /// Above the recommendation.
    Recommended,
    /// Until it is there.
    Looking,
    /// Above the other ways.
    OtherWays,
    /// Above what is not recommended.
    WhyNot,
    /// Above what remedies change and need.
    WhatTheyNeed,
    /// On the button that takes a way.
    TakeAll,
    /// Above the remedies that are not shown at first.
    MoreRemedies,
    /// How to find a micro-batch (B2).
    MicroBatch,
    /// How to feed the GPU (B3).
    DataLoader,
}

/// A line of what a search found, and of verdicts against the truth.
#[derive(Clone, Copy, Debug)]
pub enum Searched<'a> {
    /// How much was looked at.
    Looked {
        /// Plans that were walked.
        plans: usize,
        /// Plans that were replayed.
        replayed: usize,
    },
    /// Above the plans that no other beats.
    Front {
        /// The GPU.
        gpu: &'a str,
    },
    /// Above the fastest.
    Fastest,
    /// Above the largest micro-batch.
    LargestMicroBatch,
    /// Above the longest sequence.
    LongestSequence,
    /// After one of these: there is none.
    None,
    /// The smallest GPU. `None`: none does it.
    SmallestGpu {
        /// Which.
        gpu: Option<&'a str>,
    },
    /// Above what halving the micro-batch tried.
    Halved,
    /// A speed that is not known.
    SpeedNotKnown,
    /// A speed, in tokens per second.
    Speed(Range),
    /// What varies in a plan that was found.
    Plan(&'a Plan),
    /// A machine without a GPU.
    NoGpu,
    /// Above all of it, on the page.
    Ask,
    /// What is tried.
    Hint,
    /// On the button that begins.
    Start,
    /// On the button that ends it.
    Stop,
    /// While it goes on.
    Going,
    /// The plans are around earlier inputs.
    Earlier,
    /// Above the table of verdicts.
    Verdicts {
        /// Cases.
        cases: u64,
        /// Refused ones.
        refused: u64,
    },
    /// The column of cards.
    Card,
    /// The column of what the step did.
    TheStep,
    /// It ran out of memory.
    RunsOut,
    /// It completed.
    Completes,
}

/// What one language says. Every method is one idea; none has a default.
pub trait AdviceCatalogue: Sync {
    /// What to run and why, in one or two sentences.
    fn recommendation(&self, decision: &Decision, advice: &Advice) -> String;
    /// A way: its remedies, in one line.
    fn way(&self, way: &Way) -> String;
    /// What a way comes to: memory, speed, and what else it changes.
    fn comes_to(&self, way: &Way) -> String;
    /// What a remedy does to a token's time.
    fn time(&self, time: Option<f64>) -> String;
    /// What a remedy saves at each instant, and which binds then.
    fn saved_at(&self, remedy: &PricedRemedy) -> String;
    /// What a remedy asks for, and what it changes, with the source.
    fn needs(&self, id: RemedyId) -> &'static str;
    /// Why a remedy is not what is recommended.
    fn declined(&self, why: Declined, binding: Peak) -> String;
    /// A heading or a remark.
    fn advised(&self, what: Advised) -> &'static str;
    /// A line about a search.
    fn searched(&self, what: &Searched<'_>) -> String;
}

impl Locale {
    /// Its words for what to run.
    #[must_use]
    pub fn advice(self) -> &'static dyn AdviceCatalogue {
        match self {
            Self::En => &English,
        }
    }
}

struct English;

fn text() -> &'static dyn Catalogue {
    Locale::En.text()
}

/// A speed with two digits: more would be a lie.
fn rounded(value: f64) -> String {
    if !value.is_finite() || value < 100.0 {
        return three_digits(value.max(0.0));
    }
    let unit = 10_f64.powf(value.log10().floor() - 1.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "finite and positive; saturates")]
    grouped(((value / unit).round() * unit).round() as u64)
}

fn speed(of: &Throughput) -> String {
    let range = of.tokens_per_second;
    format!("about {} to {} tokens/s", rounded(range.low), rounded(range.high))
}

impl AdviceCatalogue for English {
    fn recommendation(&self, decision: &Decision, advice: &Advice) -> String {
        let best = advice.ways.first().map(|best| format!("{}: {}.", self.way(best), self.comes_to(best)));
        let reason = match (advice.outcome, advice.ways.first()) {
            (Outcome::Find(fact), _) => {
                return format!("Find out {} first: it decides.", text().fact(fact));
            }
            (Outcome::Keep, _) => {
                return "Keep the plan as it is: it fits, and no change that leaves the training the same makes it faster by more than 3 %. Measure it."
                    .into();
            }
            (Outcome::Nothing, _) => {
                let most = decision.remedies.iter().max_by_key(|r| r.saved_bytes).filter(|r| r.saved_bytes > 0);
                let most = most.map_or(String::new(), |r| {
                    format!(
                        " What saves most is {}: {} of tensors are left at the peak.",
                        text().remedy(r),
                        r.peak_bytes
                    )
                });
                return format!("No change that is modelled makes it fit with the margin.{most}");
            }
            (Outcome::Faster, Some(Way { throughput, .. })) => {
                let gain = throughput.as_ref().zip(decision.throughput.as_ref());
                let gain = gain.map_or(0.0, |(then, now)| then.per_token() / now.per_token() - 1.0);
                format!("It fits; this way {}.", self.time(Some(gain)))
            }
            (_, Some(Way { effect: Effect::SameTraining, .. })) => {
                "It leaves the training as it is, and is the fastest of the ways that were tried and do.".into()
            }
            (_, Some(Way { effect: Effect::ChangesTraining, .. })) => {
                let rigid = decision.tree.first().and_then(|step| step.figure.value.zip(step.figure.threshold));
                match rigid {
                    Some((share, rule)) if share > rule => format!(
                        "Weights, gradients and states take {} % of the card, over {} %: nothing that leaves the training as it is makes it fit.",
                        three_digits(share * 100.0),
                        three_digits(rule * 100.0)
                    ),
                    _ => "Nothing that leaves the training as it is makes it fit.".into(),
                }
            }
            (_, _) => "Nothing on this hardware makes it fit.".into(),
        };
        format!("{} {reason}", best.unwrap_or_default())
    }

    fn way(&self, way: &Way) -> String {
        way.steps.iter().map(|step| text().remedy(step)).collect::<Vec<_>>().join(" + ")
    }

    fn comes_to(&self, way: &Way) -> String {
        let numbers = &way.verdict.numbers;
        let held = numbers.process.unwrap_or(numbers.allocated);
        let mut said = vec![match numbers.capacity {
            Some(card) => {
                let taken = Bytes(held.get().saturating_add(numbers.in_use.unwrap_or_default().get()));
                format!("{held} of {card}, {} free", card.saturating_sub(taken))
            }
            None => held.to_string(),
        }];
        said.extend(way.throughput.as_ref().map(speed));
        said.push(text().effect(way.effect).into());
        said.join("; ")
    }

    fn time(&self, time: Option<f64>) -> String {
        match time {
            None => "time not known".into(),
            Some(time) if time.abs() < 0.005 => "takes as long".into(),
            Some(time) if time > 9.95 => format!("takes {} times as long", rounded(time + 1.0)),
            Some(time) if time > 0.0 => format!("takes {} % longer", whole_percent(time)),
            Some(time) => format!("takes {} % less time", whole_percent(time)),
        }
    }

    fn saved_at(&self, remedy: &PricedRemedy) -> String {
        let at = |(instant, saved): (Instant, i64)| {
            let sign = match saved {
                0 => "",
                1.. => "−",
                _ => "+",
            };
            format!("{} {sign}{}", text().instant(instant).to_ascii_lowercase(), Bytes(saved.unsigned_abs()))
        };
        let all = Instant::ALL.into_iter().zip(remedy.saved_at).map(at).collect::<Vec<_>>().join(", ");
        format!("{all}; then the peak is {}", remedy.binding.said(text()))
    }

    fn needs(&self, id: RemedyId) -> &'static str {
        match id {
            RemedyId::FusedOptimizer => {
                "Needs floating-point parameters on the GPU. The same update up to rounding (torch/optim/adamw.py, fused)."
            }
            RemedyId::ForloopOptimizer => {
                "One kernel after another: slower with many small tensors (torch/optim/optimizer.py, foreach=False)."
            }
            RemedyId::SdpaAttention => {
                "The same function, another order of sums. Returns no attention weights (transformers, sdpa_attention.py)."
            }
            RemedyId::Checkpointing => {
                "Runs each layer’s forward again in backward, under the same autocast; keep functions that are not deterministic out of it (A5, A10; torch/utils/checkpoint.py)."
            }
            RemedyId::SelectiveCheckpointing => {
                "Keeps the outputs of products and attention, runs the rest again. Needs PyTorch 2.4 (create_selective_checkpoint_contexts)."
            }
            RemedyId::HalfCheckpointing => "As checkpointing, on every other layer: wrap those alone.",
            RemedyId::OffloadActivations => {
                "Needs pinned host memory of that size and a fast link; every copy waits where nothing overlaps it (torch/autograd/graph.py, save_on_cpu)."
            }
            RemedyId::FusedLoss => {
                "Needs Liger. The same loss up to rounding; the model returns no logits in training (liger_kernel/ops/fused_linear_cross_entropy.py)."
            }
            RemedyId::LigerKernels => {
                "Needs Liger and a family that it patches. The same functions up to rounding; no logits in training."
            }
            RemedyId::ChunkedLoss => {
                "Runs the head twice. The same loss; needs a loop that takes hidden states and calls the head itself."
            }
            RemedyId::GradientBuckets => {
                "Gradients cannot be detached in place; the optimizer must free them with set_to_none (torch/nn/parallel/distributed.py)."
            }
            RemedyId::ShardMore => {
                "The same updates; more communication, and checkpoints that are written in shards (A4; ZeRO, arXiv 1910.02054)."
            }
            RemedyId::SequenceParallel => {
                "Needs a sequence that the ranks divide. As much communication as tensor parallelism alone (arXiv 2205.05198)."
            }
            RemedyId::TensorParallel => {
                "Needs heads and widths that the GPUs divide and a link such as NVLink: ranks speak twice in every layer and pass. The same batch (arXiv 1909.08053)."
            }
            RemedyId::MoreGpus => {
                "Where neither accumulation nor the micro-batch can shrink by as much, the global batch grows: then look at the learning rate."
            }
            RemedyId::SmallerMicroBatch => {
                "Divide the loss by the accumulation. Batch norm sees the micro-batch alone. Losses per token must be averaged over the whole step (B2)."
            }
            RemedyId::LargerMicroBatch => {
                "The same tokens a step in fewer, larger kernels. Batch norm sees more sequences at once (A9, B2)."
            }
            RemedyId::FreeGradients => {
                "What reads .grad between steps finds None (torch/optim/optimizer.py, zero_grad)."
            }
            RemedyId::DropOutputs => "Keep loss.detach() alone, and delete the outputs before backward ends (B1).",
            RemedyId::ExpandableSegments => {
                "Set before the process starts; not on Windows. Took fragmentation from 20 % to under 5 % in the articles’ runs (A6)."
            }
            RemedyId::OptimizerInBackward => {
                "Rules out clipping by norm, accumulation and a gradient scaler, which need all gradients (register_post_accumulate_grad_hook)."
            }
            RemedyId::PagedOptimizer | RemedyId::PagedEightBit => {
                "Needs bitsandbytes and host memory. The driver moves pages where the card is full: then a step is slower, by what the link takes."
            }
            RemedyId::PrecomputeReference => {
                "One pass over the data set before training; the scores are kept with it (TRL)."
            }
            RemedyId::EightBitOptimizer => {
                "Needs bitsandbytes. States are quantised in blocks of 256; results were shown to match 32 bits (arXiv 2110.02861)."
            }
            RemedyId::LionEightBit => {
                "Another optimizer: sign of the momentum. Its authors use a learning rate 3 to 10 times smaller and more weight decay (arXiv 2302.06675)."
            }
            RemedyId::Adafactor => {
                "Another optimizer: no first moment, factored second ones. The learning rate has to be found again (A4; arXiv 1804.04235)."
            }
            RemedyId::NarrowAverage => {
                "Small updates of the average are lost to BF16’s 8 bits where its decay is near 1."
            }
            RemedyId::NoCheckpointing => "Needs the room: measure the first steps with your longest sequences.",
            RemedyId::Autocast => {
                "BF16 needs Ampere or newer; FP16 a gradient scaler. Norms and softmax stay FP32 (A8, B4)."
            }
            RemedyId::PureBf16 => {
                "BF16 needs Ampere or newer. Updates smaller than 1/256 of a weight are lost: use a larger learning rate late, or stochastic rounding."
            }
            RemedyId::FreezeEmbedding => "Tokens that are new to the model do not learn their vectors.",
            RemedyId::Lora => {
                "Trains 0.1 to 1 % of the parameters; needs a learning rate about ten times larger, and merging or the adapter at inference (A4, A11; arXiv 2106.09685)."
            }
            RemedyId::Qlora => {
                "Needs bitsandbytes. As LoRA over weights in 4 bits, which every product makes whole again (A11; arXiv 2305.14314)."
            }
            RemedyId::Fp16 => "Needs a gradient scaler; can overflow where BF16 does not (A8, B4).",
            RemedyId::Float8 => {
                "Needs Ada, Hopper or newer (compute capability 8.9) and torchao. Products lose precision: watch the loss against BF16."
            }
            RemedyId::ShorterSequence => "Longer examples are cut: the model never sees what depends on more.",
            RemedyId::LargerGpu => "The same job on another card; memory that others hold stays on this one.",
        }
    }

    fn declined(&self, why: Declined, binding: Peak) -> String {
        match why {
            Declined::SavesNothing => format!("saves nothing {}, which binds", binding.said(text())),
            Declined::NotEnough => "not enough alone".into(),
            Declined::Slower => "fits, and is slower".into(),
            Declined::NoBetter => "fits, and is no faster".into(),
            Declined::ChangesTraining => "fits, and changes the training without need".into(),
            Declined::OtherHardware => "fits, on other hardware without need".into(),
        }
    }

    fn advised(&self, what: Advised) -> &'static str {
        match what {
            Advised::Recommended => "Recommended",
            Advised::Looking => "Looking for the best way…",
            Advised::OtherWays => "Other ways",
            Advised::WhyNot => "Why not the others",
            Advised::WhatTheyNeed => "What each saves, costs and needs",
            Advised::TakeAll => "Take it",
            Advised::MoreRemedies => "More that helps",
            Advised::MicroBatch => {
                "Micro-batch: activations are linear in it. Start from the largest that fits and halve until it does; make up for it with accumulation, with the loss divided by its steps. Batch norm sees the micro-batch alone, and the learning rate follows the global batch, which stays. Evaluate by optimizer steps, not by micro-batches."
            }
            Advised::DataLoader => {
                "Data loader: num_workers of 50 to 75 % of the CPU’s cores, pin_memory, so that copies overlap, and persistent_workers, so that they are not started anew each epoch. A GPU that waits for data makes every figure of speed here too high."
            }
        }
    }

    fn searched(&self, what: &Searched<'_>) -> String {
        match what {
            Searched::Looked { plans, replayed } => format!("{plans} plans walked, {replayed} of them replayed"),
            Searched::Front { gpu } => format!("{gpu}: the plans that no other beats in both memory and speed"),
            Searched::Fastest => "fastest that fits".into(),
            Searched::LargestMicroBatch => "largest micro-batch that fits".into(),
            Searched::LongestSequence => "longest sequence that fits, of those tried".into(),
            Searched::None => ": none".into(),
            Searched::SmallestGpu { gpu } => format!("smallest GPU that does it: {}", gpu.unwrap_or("none")),
            Searched::Halved => "the plan as it is, its micro-batch halved until it fits".into(),
            Searched::SpeedNotKnown => "speed not known".into(),
            Searched::Speed(Range { low, high }) => format!("{low:.0}–{high:.0} tokens/s"),
            Searched::Plan(plan) => varied(plan),
            Searched::NoGpu => "no GPU".into(),
            Searched::Ask => "Search the plans around this one".into(),
            Searched::Hint => {
                "For the same sequences a step: every micro-batch and accumulation, three levels of checkpointing, the optimizer’s implementations, on this card and on others; then longer sequences. Every answer is replayed, none is a guess.".into()
            }
            Searched::Start => "Search".into(),
            Searched::Stop => "Stop".into(),
            Searched::Going => "Searching…".into(),
            Searched::Earlier => "These are the plans around earlier inputs.".into(),
            Searched::Verdicts { cases, refused } => format!(
                "verdicts at margin 0, cards as shares of the smallest that suffices: {cases} cases, {refused} refused"
            ),
            Searched::Card => "card".into(),
            Searched::TheStep => "the step".into(),
            Searched::RunsOut => "runs out".into(),
            Searched::Completes => "completes".into(),
        }
    }
}

/// What a search varies, of one plan.
fn varied(plan: &Plan) -> String {
    let Plan { recipe, parallel, .. } = plan;
    let layout = if parallel.is_single() {
        String::new()
    } else {
        format!(", {} on {} GPUs", parallel.data.name(), parallel.world_size)
    };
    let implementation = match parallel.data {
        DataParallel::Megatron(_) => text().megatron_implementation(),
        _ => text().implementation(recipe.optimizer.implementation()),
    };
    let name = text().optimizer(recipe.optimizer.name);
    let optimizer = match recipe.optimizer.name.implementations() {
        [] => name.to_owned(),
        _ => format!("{name} ({implementation})"),
    };
    format!(
        "micro-batch {} × {} accumulated × {} tokens, checkpointing {}, {optimizer}{layout}",
        recipe.micro_batch,
        recipe.grad_accum,
        recipe.seq_len,
        text().checkpointing(recipe.checkpointing),
    )
}

/// A share in whole percents, without its sign.
fn whole_percent(share: f64) -> String {
    format!("{:.0}", (share * 100.0).abs())
}
