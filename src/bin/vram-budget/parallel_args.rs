//! How the job is spread over GPUs, as flags.

use clap::builder::PossibleValuesParser;
use vram_budget::recipe::parallel::{
    DataParallel, Ddp, DeepSpeed, Dp, Fsdp1, Fsdp2, Megatron, MixedPrecision, OffloadDevice, Reshard, ShardingStrategy,
    Wrap,
};
use vram_budget::recipe::{FloatName, Parallel};

use crate::exit::Rejected;
use crate::plan_args::{named, set};

/// The layout over GPUs.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Parallelism")]
pub(crate) struct ParallelArgs {
    /// Ranks in all [default: 1]
    #[arg(long, value_name = "N")]
    world_size: Option<u64>,
    /// What wraps the model over the data-parallel ranks [default: none]
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(KINDS))]
    parallel: Option<String>,
    /// Tensor-parallel ranks [default: 1]
    #[arg(long, value_name = "N")]
    tp: Option<u64>,
    /// Tensor parallelism splits norms and residuals along the sequence
    #[arg(long)]
    sequence_parallel: bool,
    /// Tensor parallelism computes the loss over split logits
    #[arg(long)]
    loss_parallel: bool,
    /// Pipeline stages [default: 1]
    #[arg(long, value_name = "N")]
    pp: Option<u64>,
    /// Context-parallel ranks [default: 1]
    #[arg(long, value_name = "N")]
    cp: Option<u64>,
    /// Expert-parallel ranks [default: 1]
    #[arg(long, value_name = "N")]
    ep: Option<u64>,
    /// GPUs of a node: whose links are used, and whose ranks' host memory is added up [default: 8, or all where fewer]
    #[arg(long, value_name = "N")]
    gpus_per_node: Option<u64>,
    /// GB/s in one direction from a node to the network, for each GPU of it [default: the GPU generation's usual]
    #[arg(long, value_name = "GB/S")]
    network_gbps: Option<f64>,
    /// GB/s in one direction between the GPUs of a node, for each of them [default: the card's own link]
    #[arg(long, value_name = "GB/S")]
    link_gbps: Option<f64>,
    /// nn.DataParallel: the GPU that is looked at, from 0 [default: 0, which holds the most]
    #[arg(long, value_name = "GPU")]
    dp_gpu: Option<u64>,
    /// FSDP: copies of the sharded model [default: 1]
    #[arg(long, value_name = "N")]
    replicas: Option<u64>,
    /// FSDP1: what is sharded [default: FULL_SHARD]
    #[arg(long, value_parser = named::<ShardingStrategy>(
        &["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"]))]
    sharding_strategy: Option<ShardingStrategy>,
    /// FSDP2: whether a layer's gathered parameters are freed after its forward, or to how many ranks they are resharded:
    /// true, false, N [default: true]
    #[arg(long, value_name = "HOW", value_parser = reshard)]
    reshard_after_forward: Option<Reshard>,
    /// FSDP2: which modules are groups of their own [default: layers]
    #[arg(long, value_parser = named::<Wrap>(&["layers", "layers_and_ends", "root"]))]
    wrap: Option<Wrap>,
    /// FSDP: what parameters are gathered and computed in [default: the parameters' own dtype]
    #[arg(long, value_parser = named::<FloatName>(&["bfloat16", "float16", "float32"]))]
    param_dtype: Option<FloatName>,
    /// FSDP: what gradients are reduced in [default: FSDP2: the parameters' own dtype; FSDP1: as they are computed]
    #[arg(long, value_parser = named::<FloatName>(&["bfloat16", "float16", "float32"]))]
    reduce_dtype: Option<FloatName>,
    /// FSDP: layers are wrapped in checkpoint_wrapper before they are sharded
    #[arg(long)]
    checkpoint_wrapper: bool,
    /// DDP, FSDP: gradients are reduced after the last micro-batch alone
    #[arg(long)]
    no_sync: bool,
    /// FSDP: shards, gradients and the optimizer's states lie in host memory (FSDP2: CPUOffloadPolicy; FSDP1: CPUOffload)
    #[arg(long)]
    offload_cpu: bool,
    /// ZeRO: where master weights, gradients and the optimizer's states lie: cpu, nvme (stage 3) [default: none, on the GPU]
    #[arg(long, value_name = "WHERE", value_parser = named::<OffloadDevice>(&["none", "cpu", "nvme"]))]
    offload_optimizer: Option<OffloadDevice>,
    /// ZeRO stage 3: where parameters lie: cpu, nvme [default: none, on the GPU]
    #[arg(long, value_name = "WHERE", value_parser = named::<OffloadDevice>(&["none", "cpu", "nvme"]))]
    offload_param: Option<OffloadDevice>,
    /// FSDP2, ZeRO: what lies in host memory is not pinned
    #[arg(long)]
    no_pin_memory: bool,
    /// DDP: gradients are views into the buckets
    #[arg(long)]
    gradient_as_bucket_view: bool,
    /// DDP: size of a bucket in MiB [default: 25]
    #[arg(long, value_name = "MIB")]
    bucket_cap_mb: Option<u64>,
    /// Megatron-LM: master weights and moments are sharded over the data-parallel ranks
    #[arg(long)]
    distributed_optimizer: bool,
    /// Megatron-LM: model chunks on each pipeline rank [default: 1]
    #[arg(long, value_name = "CHUNKS")]
    virtual_pipeline: Option<u64>,
}

const KINDS: [&str; 10] = ["none", "dp", "ddp", "fsdp1", "fsdp2", "zero0", "zero1", "zero2", "zero3", "megatron"];

fn reshard(text: &str) -> Result<Reshard, String> {
    match text {
        "true" => Ok(Reshard::Always),
        "false" => Ok(Reshard::Never),
        number => number.parse().map(Reshard::To).map_err(|_| format!("`{number}` is not true, false or a number")),
    }
}

impl ParallelArgs {
    /// Changes `parallel` by what the flags say.
    ///
    /// # Errors
    /// A flag of another wrapper than the one chosen.
    pub(crate) fn change(&self, parallel: &mut Parallel) -> anyhow::Result<()> {
        set(&mut parallel.world_size, self.world_size);
        set(&mut parallel.tensor.size, self.tp);
        parallel.tensor.sequence_parallel |= self.sequence_parallel;
        parallel.tensor.loss_parallel |= self.loss_parallel;
        set(&mut parallel.pipeline, self.pp);
        set(&mut parallel.context, self.cp);
        set(&mut parallel.expert, self.ep);
        parallel.gpus_per_node = self.gpus_per_node.or(parallel.gpus_per_node);
        parallel.network_gbps = self.network_gbps.or(parallel.network_gbps);
        parallel.link_gbps = self.link_gbps.or(parallel.link_gbps);
        if let Some(kind) = &self.parallel
            && *kind != flag_of(&parallel.data)
        {
            parallel.data = match kind.as_str() {
                "dp" => DataParallel::Dp(Dp::default()),
                "ddp" => DataParallel::Ddp(Ddp::default()),
                "fsdp1" => DataParallel::Fsdp1(Fsdp1::default()),
                "fsdp2" => DataParallel::Fsdp2(Fsdp2::default()),
                zero if zero.starts_with("zero") => {
                    let stage = zero.trim_start_matches("zero").parse().unwrap_or(0);
                    DataParallel::DeepSpeed(DeepSpeed { stage, ..DeepSpeed::default() })
                }
                "megatron" => DataParallel::Megatron(Megatron::default()),
                _ => DataParallel::None,
            };
        }
        let mut left = self.given();
        let mut taken = |names: &[&str]| left.retain(|name| !names.contains(name));
        match &mut parallel.data {
            DataParallel::Ddp(ddp) => {
                taken(&["no-sync", "gradient-as-bucket-view", "bucket-cap-mb"]);
                ddp.no_sync |= self.no_sync;
                ddp.gradient_as_bucket_view |= self.gradient_as_bucket_view;
                set(&mut ddp.bucket_cap_mb, self.bucket_cap_mb);
            }
            DataParallel::Fsdp1(fsdp) => {
                taken(&[
                    "no-sync",
                    "sharding-strategy",
                    "replicas",
                    "param-dtype",
                    "reduce-dtype",
                    "checkpoint-wrapper",
                    "offload-cpu",
                ]);
                fsdp.offload_cpu |= self.offload_cpu;
                fsdp.no_sync |= self.no_sync;
                set(&mut fsdp.strategy, self.sharding_strategy);
                set(&mut fsdp.replicas, self.replicas);
                fsdp.checkpoint_wrapper |= self.checkpoint_wrapper;
                self.change_dtypes(&mut fsdp.mixed_precision);
            }
            DataParallel::Fsdp2(fsdp) => {
                taken(&["no-sync", "reshard-after-forward", "wrap", "replicas"]);
                taken(&["param-dtype", "reduce-dtype", "checkpoint-wrapper", "offload-cpu", "no-pin-memory"]);
                fsdp.offload_cpu |= self.offload_cpu;
                fsdp.pin_memory &= !self.no_pin_memory;
                fsdp.no_sync |= self.no_sync;
                set(&mut fsdp.reshard_after_forward, self.reshard_after_forward);
                set(&mut fsdp.wrap, self.wrap);
                set(&mut fsdp.replicas, self.replicas);
                fsdp.checkpoint_wrapper |= self.checkpoint_wrapper;
                self.change_dtypes(&mut fsdp.mixed_precision);
            }
            DataParallel::Megatron(megatron) => {
                taken(&["distributed-optimizer", "virtual-pipeline"]);
                megatron.use_distributed_optimizer |= self.distributed_optimizer;
                set(&mut megatron.virtual_pipeline, self.virtual_pipeline);
            }
            DataParallel::Dp(dp) => {
                taken(&["dp-gpu"]);
                set(&mut dp.gpu, self.dp_gpu);
            }
            DataParallel::DeepSpeed(zero) => {
                taken(&["offload-optimizer", "offload-param", "no-pin-memory"]);
                set(&mut zero.offload_optimizer.device, self.offload_optimizer);
                set(&mut zero.offload_param.device, self.offload_param);
                zero.offload_optimizer.pin_memory &= !self.no_pin_memory;
                zero.offload_param.pin_memory &= !self.no_pin_memory;
            }
            DataParallel::None => {}
        }
        match left.first() {
            None => Ok(()),
            Some(flag) => {
                let reason = format!("--{flag} means nothing with --parallel {}", flag_of(&parallel.data));
                Err(Rejected::because("the parallel layout", reason).into())
            }
        }
    }

    /// The flags that some wrappers alone take, of those given.
    fn given(&self) -> Vec<&'static str> {
        let all = [
            ("dp-gpu", self.dp_gpu.is_some()),
            ("replicas", self.replicas.is_some()),
            ("sharding-strategy", self.sharding_strategy.is_some()),
            ("reshard-after-forward", self.reshard_after_forward.is_some()),
            ("wrap", self.wrap.is_some()),
            ("param-dtype", self.param_dtype.is_some()),
            ("reduce-dtype", self.reduce_dtype.is_some()),
            ("checkpoint-wrapper", self.checkpoint_wrapper),
            ("offload-cpu", self.offload_cpu),
            ("offload-optimizer", self.offload_optimizer.is_some()),
            ("offload-param", self.offload_param.is_some()),
            ("no-pin-memory", self.no_pin_memory),
            ("no-sync", self.no_sync),
            ("gradient-as-bucket-view", self.gradient_as_bucket_view),
            ("bucket-cap-mb", self.bucket_cap_mb.is_some()),
            ("distributed-optimizer", self.distributed_optimizer),
            ("virtual-pipeline", self.virtual_pipeline.is_some()),
        ];
        all.into_iter().filter(|(_, given)| *given).map(|(name, _)| name).collect()
    }

    fn change_dtypes(&self, dtypes: &mut MixedPrecision) {
        dtypes.param = self.param_dtype.or(dtypes.param);
        dtypes.reduce = self.reduce_dtype.or(dtypes.reduce);
    }
}

/// The wrapper as `--parallel` names it.
fn flag_of(data: &DataParallel) -> String {
    match data {
        DataParallel::DeepSpeed(zero) => format!("zero{}", zero.stage),
        other => other.name().to_owned(),
    }
}
