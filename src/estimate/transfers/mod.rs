//! What saving a checkpoint and loading the model take on several ranks: on the GPU, in host memory, and on the disk.
//!
//! Read in PyTorch 2.15, transformers 5.24 and DeepSpeed 0.19, and recorded (`tests/data/distributed-steps/transfers.jsonl`).

mod loading;
mod saving;

use serde::Serialize;

use super::offload::moments;
use super::{Job, host};
use crate::issue::{Issue, IssueKind};
use crate::model::Model;
use crate::model::family::Parameter;
use crate::plan::Plan;
use crate::recipe::parallel::DataParallel;
use crate::step::load::layer_of;
use crate::step::readings::Readings;
use crate::step::tensor::Dtype;
use crate::step::train::weights_dtype;
use crate::units::Bytes;

/// How a checkpoint is saved, or the model loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Rank 0 writes what every rank holds (`save_pretrained`, `torch.save`).
    RankZero,
    /// Rank 0 gathers weights and states in host memory: `FULL_STATE_DICT` with `offload_to_cpu` and `rank0_only`,
    /// `StateDictOptions(full_state_dict=True, cpu_offload=True)`.
    FullStateDict,
    /// Each rank writes its shards: `SHARDED_STATE_DICT` with `offload_to_cpu`, `torch.distributed.checkpoint.save`.
    Sharded,
    /// Each rank writes its flat parameters (`LOCAL_STATE_DICT`).
    Local,
    /// DeepSpeed's `save_checkpoint`.
    SaveCheckpoint,
    /// Rank 0 gathers ZeRO-3's weights in the engine's dtype (`stage3_gather_16bit_weights_on_model_save`).
    Gather16Bit,
    /// Every rank reads the whole model into host memory, in the dtype that it trains in, and moves it to its GPU.
    EachRank,
    /// The same of a safetensors file in that dtype, which is mapped: its pages are there once a node.
    EachRankMapped,
    /// The first rank of each node reads it and the others get it from rank 0: FSDP1's `sync_module_states`, FSDP2's
    /// `broadcast_from_rank0`, transformers' `cpu_ram_efficient_loading`.
    Broadcast,
    /// DeepSpeed's `zero.Init`, of which rank 0 loads each module's parameters.
    ZeroInit,
}

/// One way, in tensors' own bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Transfer {
    /// Which.
    pub way: Way,
    /// On a GPU for the time, beside what is there between steps; of loading, all that is on it then.
    pub device: Bytes,
    /// In host memory on the first rank, beside what the job keeps there.
    pub host_first: Bytes,
    /// On each other rank.
    pub host_others: Bytes,
    /// Mapped from a file, once a node.
    pub host_mapped: Bytes,
    /// Written by all ranks together.
    pub written: Bytes,
}

/// Saving and loading of a job, and the host memory of its first node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transfers {
    /// Ranks on a node.
    pub ranks_of_node: u64,
    /// What a rank keeps in host memory all along: what the layout keeps there, and paged states.
    pub held: Bytes,
    /// What a rank keeps there within a step: tensors saved for backward.
    pub in_step: Bytes,
    /// On the GPU between steps, allocated.
    pub between_steps: Bytes,
    /// The most that a step allocates.
    pub step_peak: Bytes,
    /// Ways to save.
    pub saving: Vec<Transfer>,
    /// Ways to load.
    pub loading: Vec<Transfer>,
    /// What is not modelled of them, by name.
    pub refused: Vec<Issue>,
}

impl Transfers {
    /// Host memory of the first node while it saves or loads so, beside what its ranks keep there all along.
    #[must_use]
    pub fn node(&self, of: &Transfer) -> Bytes {
        let others = self.ranks_of_node.saturating_sub(1);
        let each = self.held.get().saturating_mul(self.ranks_of_node);
        let copies = of.host_first.get().saturating_add(of.host_others.get().saturating_mul(others));
        Bytes(each.saturating_add(copies).saturating_add(of.host_mapped.get()))
    }

    /// Host memory of a node within a step.
    #[must_use]
    pub fn node_in_step(&self) -> Bytes {
        Bytes(self.held.get().saturating_add(self.in_step.get()).saturating_mul(self.ranks_of_node))
    }

    /// Whether saving so takes more of the GPU than any step, at most by the rounding of blocks.
    #[must_use]
    pub fn saving_binds(&self, of: &Transfer) -> bool {
        !of.device.is_zero() && self.between_steps.get().saturating_add(of.device.get()) > self.step_peak.get()
    }

    /// Whether loading so takes more of the GPU than any step.
    #[must_use]
    pub fn loading_binds(&self, of: &Transfer) -> bool {
        of.device > self.step_peak
    }
}

/// What of a model saving and loading look at.
struct Facts<'a> {
    plan: &'a Plan,
    model: &'a dyn Model,
    readings: &'a Readings,
    /// The job's data-parallel ranks.
    ranks: u64,
    /// Bytes of a parameter's element.
    element: u64,
    /// States of a parameter's size.
    moments: u64,
    /// Elements, and the module that each belongs to.
    parameters: Vec<One>,
    /// Buffers that lie on the GPU beside the parameters.
    buffers: u64,
}

/// A parameter.
struct One {
    numel: u64,
    rows: u64,
    /// Whether tensor-parallel ranks have parts of its rows.
    by_columns: bool,
    layer: u32,
    /// The name of the module that owns it.
    module: String,
}

impl<'a> Facts<'a> {
    fn of(model: &'a dyn Model, plan: &'a Plan, readings: &'a Readings) -> Option<Self> {
        let element = match &plan.parallel.data {
            DataParallel::DeepSpeed(options) => Dtype::from(options.dtype),
            _ => weights_dtype(plan.recipe.precision?),
        };
        let one = |(p, name): (&Parameter, &String)| One {
            numel: p.shape.numel().unwrap_or(0),
            rows: p.shape.dims().first().map_or(1, |rows| rows.n.max(1)),
            by_columns: ["o_proj.weight", "down_proj.weight"].iter().any(|end| name.ends_with(end)),
            layer: layer_of(name),
            module: name.rsplit_once('.').map_or_else(String::new, |(module, _)| module.into()),
        };
        let parameters = model.parameters().iter().zip(&model.parameter_names()).map(one).collect();
        Some(Self {
            plan,
            model,
            readings,
            ranks: plan.parallel.data_ranks().max(1),
            element: element.bytes(),
            moments: moments(plan),
            parameters,
            buffers: model.buffer_bytes(element).iter().sum(),
        })
    }

    fn bytes(&self, elements: u64) -> u64 {
        elements.saturating_mul(self.element)
    }

    /// The whole model's elements.
    fn whole(&self) -> u64 {
        self.sum(|p| p.numel)
    }

    fn sum(&self, of: impl Fn(&One) -> u64) -> u64 {
        self.parameters.iter().map(of).fold(0, u64::saturating_add)
    }

    fn most(&self, of: impl Fn(&One) -> u64) -> u64 {
        self.parameters.iter().map(of).max().unwrap_or(0)
    }

    /// Whether the output head is the table of words: a state dict that is gathered has it twice.
    fn tied(&self) -> u64 {
        self.model.parameters().first().filter(|words| words.linear).and_then(|words| words.shape.numel()).unwrap_or(0)
    }

    /// Elements of a parameter's part along its first dimension, over so many ranks.
    fn chunk(p: &One, ranks: u64) -> u64 {
        (p.numel / p.rows).saturating_mul(p.rows.div_ceil(ranks.max(1)))
    }

    /// By group of parameters that are gathered together, layers first: elements, and elements of its chunks over `ranks`.
    fn groups(&self, ranks: u64) -> Vec<[u64; 2]> {
        let most = self.parameters.iter().map(|p| p.layer).max().unwrap_or(0);
        let of = |layer: u32| {
            let own = self.parameters.iter().filter(|p| p.layer == layer);
            own.fold([0u64; 2], |[whole, chunks], p| {
                [whole.saturating_add(p.numel), chunks.saturating_add(Self::chunk(p, ranks))]
            })
        };
        (1..=most).chain([0]).map(of).collect()
    }
}

/// How a job of `plan`, whose steps read `readings`, is saved and loaded.
///
/// # Errors
/// Every issue of the plan, one per field.
pub fn transfers(plan: &Plan, readings: &Readings) -> Result<Transfers, Vec<Issue>> {
    let job = Job::of(plan)?;
    // One process drives all GPUs.
    let one = matches!(plan.parallel.data, DataParallel::Dp(_));
    let ranks_of_node = if one { 1 } else { plan.parallel.ranks_of_node() };
    let held = readings.offload.map_or(0, |of| of.held.get()).saturating_add(readings.optimizer_state_host.get());
    let steady = readings.steady().or(readings.first());
    let mut all = Transfers {
        ranks_of_node,
        held: Bytes(held),
        in_step: readings.on_host,
        between_steps: steady.map(|of| of.after_zero_grad).unwrap_or_default(),
        step_peak: readings.max_allocated,
        saving: Vec::new(),
        loading: Vec::new(),
        refused: Vec::new(),
    };
    let mut refuse = |what: &str| {
        all.refused.push(Issue::new("parallel.data", IssueKind::NotModelled { what: what.into() }));
    };
    match Facts::of(job.model.as_ref(), plan, readings) {
        Some(facts) => {
            all.saving = saving::ways(&facts, &mut refuse);
            all.loading = loading::ways(&facts, &mut refuse);
        }
        None => refuse("saving and loading without a precision"),
    }
    Ok(all)
}
