//! The articles' rules of thumb: what readers know, and what no framework holds. A mode of its own, labelled as what it is,
//! never the default of a decision.
//!
//! GB is 10⁹ bytes here. The rules do not agree with each other or with themselves everywhere (`docs/accuracy.md`).

use crate::bill::{
    Bill, Column, Instant, Kind, Part, PartBytes, Provenance, ProvenanceKind, Sources, Tensors, Tier, Tiers,
};
use crate::estimate::{Estimate, Note, parameter_count};
use crate::model::Model;
use crate::plan::Plan;
use crate::recipe::parallel::{DataParallel, ShardingStrategy};
use crate::recipe::{Parallel, Precision, QuantKind};
use crate::step::adapters::adapter_shapes;
use crate::step::shape::{Dim, MAX_RANK, Shape};
use crate::units::Bytes;

/// What the rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thumb {
    /// Parameters of the model.
    pub parameters: u64,
    /// Parameters of adapters over frozen weights.
    pub adapters: Option<u64>,
    /// Bits of each frozen weight: 16, or 4 or 8 where they are quantised.
    pub bits: u64,
    /// Over how many ranks weights, gradients and states are sharded each.
    pub shards: [u64; 3],
}

/// Over how many ranks a layout shards weights, gradients and states (A4): ZeRO's stages, FSDP as stage 3.
fn shards(parallel: &Parallel) -> [u64; 3] {
    let ranks = parallel.data_ranks().max(1);
    match &parallel.data {
        DataParallel::DeepSpeed(options) => {
            let from = |stage: u64| if options.stage >= stage { ranks } else { 1 };
            [from(3), from(2), from(1)]
        }
        DataParallel::Fsdp1(options) => match options.strategy {
            ShardingStrategy::NoShard => [1; 3],
            ShardingStrategy::ShardGradOp => [1, ranks, ranks],
            ShardingStrategy::HybridShardZero2 => [1, ranks / options.replicas.max(1), ranks / options.replicas.max(1)],
            _ => [ranks / options.replicas.max(1); 3],
        },
        DataParallel::Fsdp2(options) => [ranks / options.replicas.max(1); 3],
        DataParallel::None | DataParallel::Ddp(_) | DataParallel::Dp(_) | DataParallel::Megatron(_) => [1; 3],
    }
}

impl Thumb {
    /// A plan's.
    #[must_use]
    pub fn of(plan: &Plan, model: &dyn Model) -> Self {
        let adapters = |lora| adapter_shapes(model, lora).iter().filter_map(Shape::numel).sum();
        Self {
            parameters: parameter_count(model),
            adapters: plan.recipe.lora.as_ref().map(adapters),
            bits: plan.recipe.quantization.map_or(16, |q| if q.kind == QuantKind::Int8 { 8 } else { 4 }),
            shards: shards(&plan.parallel),
        }
    }

    /// A part's bytes, and how they are counted: 2 B of weights per parameter (4 bits: half a byte), 2 B of gradients and 8 B
    /// of Adam states per trained one.
    fn line(&self, part: Part) -> Option<(Bytes, &'static str, &'static str)> {
        let trained = self.adapters.unwrap_or(self.parameters);
        let frozen = match self.adapters {
            None => 0,
            Some(_) => self.parameters.saturating_mul(self.bits).div_ceil(8),
        };
        let over = |at: usize| self.shards[at].max(1);
        let bytes = |each: u64, at: usize| Bytes(trained.saturating_mul(each).div_ceil(over(at)));
        let adapted = self.adapters.is_some();
        match part {
            Part::Weights => {
                let formula = match (adapted, self.bits) {
                    (false, _) if over(0) > 1 => "2 B × P ÷ N",
                    (false, _) => "2 B × P",
                    (true, 4) => "½ B × P + 2 B × A",
                    (true, 8) => "1 B × P + 2 B × A",
                    (true, _) => "2 B × P + 2 B × A",
                };
                Some((Bytes(bytes(2, 0).get().saturating_add(frozen)), "weights in 16 bits", formula))
            }
            Part::Gradients => {
                let formula = match (adapted, over(1) > 1) {
                    (true, _) => "2 B × A",
                    (false, true) => "2 B × P ÷ N",
                    (false, false) => "2 B × P",
                };
                Some((bytes(2, 1), "gradients in 16 bits", formula))
            }
            Part::States => {
                let formula = match (adapted, over(2) > 1) {
                    (true, _) => "8 B × A",
                    (false, true) => "8 B × P ÷ N",
                    (false, false) => "8 B × P",
                };
                Some((bytes(8, 2), "two FP32 moments", formula))
            }
            Part::Activations | Part::Temporary => None,
        }
    }
}

/// The rule's estimate: parameters × (2 + 2 + 8) bytes, whatever the framework would hold. Activations and buffers are not
/// counted, and nothing is known of what an allocator reserves.
#[must_use]
pub fn rule_of_thumb(thumb: Thumb) -> Estimate {
    let rule = Provenance {
        kind: ProvenanceKind::Assumed,
        source: "rule of thumb: 2 B of weights, 2 B of gradients, 8 B of Adam states per parameter".into(),
    };
    let mut parts = PartBytes::default();
    let (mut kinds, mut tensors) = (Vec::new(), Vec::new());
    for part in Part::ALL {
        let Some((bytes, op, formula)) = thumb.line(part) else { continue };
        parts.0[part as usize] = bytes;
        tensors.push(Tensors { kind: kinds.len(), part, count: 1 });
        let written = Some(Box::new([formula.into(), numbers(formula, &thumb)]));
        kinds.push(Kind { bytes, element: 1, dims: [Dim::plain(1); MAX_RANK], scope: "rule of thumb", op, written });
    }
    let column = |instant| Column { instant, parts, tensors: tensors.clone() };
    let tier = Tier { peak_bytes: parts.total(), provenance: rule.clone() };
    let mut symbols = vec![("P", thumb.parameters)];
    symbols.extend(thumb.adapters.map(|a| ("A", a)));
    let ranks = thumb.shards[2];
    symbols.extend((ranks > 1).then_some(("N", ranks)));
    let columns = Instant::ALL.map(column).into();
    let sources = Sources { weights: rule.clone(), states: rule.clone(), autograd: rule };
    Estimate {
        binding: None,
        bill: Bill { columns, binding: Instant::Step, symbols, kinds, sources },
        tiers: Tiers { requested: tier.clone(), allocated: tier, reserved: None, process: None, host: None },
        timeline: Vec::new(),
        readings: None,
        on_card: None,
        notes: vec![Note::RuleOfThumb],
        parameters: thumb.parameters,
    }
}

fn numbers(formula: &str, thumb: &Thumb) -> String {
    let formula = formula.replace('N', &thumb.shards[2].to_string());
    formula.replace('P', &thumb.parameters.to_string()).replace('A', &thumb.adapters.unwrap_or(0).to_string())
}

/// What frameworks hold per parameter with AdamW, weights + gradients + states: what the rule's 2 + 2 + 8 stands against.
pub const HELD: [(Precision, [u64; 3]); 4] = [
    (Precision::Fp32, [4, 4, 8]),
    (Precision::AmpBf16, [4, 4, 8]),
    (Precision::PureBf16, [2, 2, 4]),
    (Precision::Bf16Master, [2 + 4, 4, 8]),
];

/// The attention matrix of one layer (A5): batch × heads × sequence² × 2 B. Flash attention does not store it.
#[must_use]
pub fn attention_matrix(batch: u64, heads: u64, sequence: u64) -> Option<Bytes> {
    Bytes::product(&[batch, heads, sequence, sequence, 2])
}

/// The feed-forward network's intermediate of one layer (A5): batch × sequence × 4 × hidden × 2 B.
#[must_use]
pub fn intermediate(batch: u64, sequence: u64, hidden: u64) -> Option<Bytes> {
    Bytes::product(&[batch, sequence, 4, hidden, 2])
}

/// What the articles say that a technique does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Said {
    /// Memory with it, by memory without it.
    pub memory: f64,
    /// Time with it, by time without it. `None`: not said.
    pub time: Option<f64>,
}

/// Autocast (A8): activations against FP32's.
pub const AUTOCAST_ACTIVATIONS: Said = Said { memory: 0.6, time: None };
/// Autocast (A8): the total against FP32's, at the least and at the most that is saved.
pub const AUTOCAST_TOTAL: [Said; 2] = [Said { memory: 0.8, time: None }, Said { memory: 0.7, time: None }];
/// Activation checkpointing of a convolutional network (B5).
pub const CHECKPOINTED_CNN: Said = Said { memory: 5.0 / 8.0, time: Some(1.2) };
/// Activation checkpointing of a transformer (B5).
pub const CHECKPOINTED_TRANSFORMER: Said = Said { memory: 9.0 / 16.0, time: Some(1.35) };
/// Several techniques on a ResNet-50 (B8): four times the batch.
pub const COMBINED_RESNET50: Said = Said { memory: 1.3, time: None };

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::recipe::parallel::{DeepSpeed, Fsdp2};

    #[derive(Deserialize)]
    struct Articles {
        per_parameter: Vec<Case>,
        activations: Activations,
        techniques: Vec<Technique>,
    }

    /// In GB, 10⁹ bytes.
    #[derive(Deserialize)]
    struct Case {
        name: String,
        parameters: u64,
        adapters: Option<u64>,
        bits: Option<u64>,
        /// ZeRO's stage and the ranks.
        zero: Option<[u64; 2]>,
        weights: f64,
        gradients: f64,
        states: f64,
        total: [f64; 2],
    }

    #[derive(Deserialize)]
    struct Activations {
        /// Sequence and elements of one head's matrix, in Mi.
        attention: Vec<[u64; 2]>,
        /// Batch, sequence, hidden, bytes.
        intermediate: Vec<[u64; 4]>,
    }

    #[derive(Deserialize)]
    struct Technique {
        rule: String,
        before: f64,
        after: f64,
        time: Option<f64>,
    }

    fn articles() -> Articles {
        serde_json::from_str(include_str!("../tests/data/articles.json")).unwrap()
    }

    #[test]
    fn the_articles_bills_per_parameter() {
        for case in articles().per_parameter {
            let parallel = case.zero.map_or_else(Parallel::default, |[stage, ranks]| Parallel {
                world_size: ranks,
                data: DataParallel::DeepSpeed(DeepSpeed { stage, ..DeepSpeed::default() }),
                ..Parallel::default()
            });
            let thumb = Thumb {
                parameters: case.parameters,
                adapters: case.adapters,
                bits: case.bits.unwrap_or(16),
                shards: shards(&parallel),
            };
            let estimate = rule_of_thumb(thumb);
            let parts = estimate.bill.column(Instant::Step).parts;
            for (part, said) in
                [(Part::Weights, case.weights), (Part::Gradients, case.gradients), (Part::States, case.states)]
            {
                let ours = parts.get(part).as_f64() / 1e9;
                assert!((ours - said).abs() < 1e-9, "{} {part:?}: {ours} GB, said {said}", case.name);
            }
            let total = parts.total().as_f64() / 1e9;
            let [low, high] = case.total;
            assert!((low..=high).contains(&total), "{}: {total} GB", case.name);
        }
    }

    #[test]
    fn fully_sharded_is_as_zeros_third_stage() {
        let ranks = |data| Parallel { world_size: 8, data, ..Parallel::default() };
        let zero = DataParallel::DeepSpeed(DeepSpeed { stage: 3, ..DeepSpeed::default() });
        assert_eq!(shards(&ranks(DataParallel::Fsdp2(Fsdp2::default()))), shards(&ranks(zero)));
    }

    #[test]
    fn the_articles_activations() {
        for [sequence, mebi] in articles().activations.attention {
            assert_eq!(attention_matrix(1, 1, sequence), Some(Bytes(2 * (mebi << 20))));
        }
        for [batch, sequence, hidden, bytes] in articles().activations.intermediate {
            assert_eq!(intermediate(batch, sequence, hidden), Some(Bytes(bytes)));
        }
    }

    #[test]
    fn the_articles_techniques() {
        let [least, most] = AUTOCAST_TOTAL;
        for said in articles().techniques {
            let rule = match said.rule.as_str() {
                "autocast, activations" => AUTOCAST_ACTIVATIONS,
                "autocast, total, least" => least,
                "autocast, total, most" => most,
                "checkpointing, CNN" => CHECKPOINTED_CNN,
                "checkpointing, Transformer" => CHECKPOINTED_TRANSFORMER,
                "combination, ResNet-50" => COMBINED_RESNET50,
                other => panic!("{other}"),
            };
            assert!((said.before * rule.memory - said.after).abs() < 1e-9, "{}", said.rule);
            assert_eq!(rule.time, said.time, "{}", said.rule);
        }
    }

    #[test]
    fn the_formula_says_what_is_counted() {
        let estimate = rule_of_thumb(Thumb { parameters: 1000, adapters: Some(10), bits: 4, shards: [1; 3] });
        let lines = estimate.bill.cell(Part::Weights, Instant::Step).lines;
        assert_eq!(
            (lines[0].formula.as_str(), lines[0].numbers.as_str()),
            ("½ B × P + 2 B × A", "½ B × 1000 + 2 B × 10")
        );
        assert_eq!(lines[0].bytes, Bytes(520));
    }
}
