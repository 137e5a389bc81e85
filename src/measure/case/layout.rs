//! How ranks shared a measured job: the cases' `parallel`, as a layout of a plan.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::not_modelled;
use crate::issue::Issue;
use crate::recipe::parallel::{
    DataParallel, Ddp, DeepSpeed, Dp, Fsdp1, Fsdp2, InitDevice, MixedPrecision, Prefetch, Reshard, TensorParallel, Wrap,
};
use crate::recipe::{Checkpointing, FloatName, Parallel, Recipe};

/// What kind of layout a case has, in a word.
pub(super) fn kind(raw: &Map<String, Value>) -> String {
    let kind = raw.get("kind").and_then(Value::as_str).unwrap_or("unknown");
    let several = |field: &str| raw.get(field).and_then(Value::as_u64).is_some_and(|n| n > 1);
    match kind {
        "fsdp2" if several("replicas") => "hsdp".into(),
        "tp" if several("dp") => "tp+fsdp2".into(),
        "deepspeed" => format!("zero{}", raw.get("stage").and_then(Value::as_u64).unwrap_or(0)),
        kind => kind.into(),
    }
}

/// A device that a case does not describe: compute capability 8.0, with memory enough.
pub(super) fn defaults(device: &mut Map<String, Value>) {
    device.entry("sm").or_insert_with(|| 80.into());
    device.entry("total_mb").or_insert_with(|| (1 << 20).into());
}

/// A case's fields, each taken once.
struct Fields<'a> {
    raw: Map<String, Value>,
    issues: &'a mut Vec<Issue>,
}

impl Fields<'_> {
    fn take(&mut self, key: &str) -> Option<Value> {
        self.raw.remove(key).filter(|value| !value.is_null())
    }

    /// The field, by its name in documents.
    fn get<T: DeserializeOwned>(&mut self, key: &str) -> Option<T> {
        let value = self.take(key)?;
        let read = serde_json::from_value(value.clone()).ok();
        if read.is_none() {
            self.issues.push(not_modelled("parallel", key, &value));
        }
        read
    }

    fn flag(&mut self, key: &str, default: bool) -> bool {
        self.get(key).unwrap_or(default)
    }

    fn number(&mut self, key: &str, default: u64) -> u64 {
        self.get(key).unwrap_or(default)
    }

    /// `{"param", "reduce", "output" or "buffer"}`, each `bf16`, `fp16`, `fp32` or none.
    fn mixed_precision(&mut self) -> MixedPrecision {
        let Some(Value::Object(raw)) = self.take("mp") else { return MixedPrecision::default() };
        let of = |key: &str| raw.get(key).and_then(Value::as_str).and_then(float);
        MixedPrecision { param: of("param"), reduce: of("reduce"), output: of("output").or_else(|| of("buffer")) }
    }

    /// Whether layers are checkpointed by a wrapper around them.
    fn checkpointing(&mut self, recipe: &mut Recipe) -> bool {
        let how = self.take("ac");
        if how.is_some() {
            recipe.checkpointing = Checkpointing::Full;
        }
        how.is_some_and(|how| how == "wrapper")
    }

    fn init(&mut self, default: InitDevice) -> InitDevice {
        self.get("init").unwrap_or(default)
    }
}

fn float(name: &str) -> Option<FloatName> {
    match name {
        "bf16" => Some(FloatName::Bfloat16),
        "fp16" => Some(FloatName::Float16),
        "fp32" => Some(FloatName::Float32),
        _ => None,
    }
}

/// Reads a case's layout. What is not modelled becomes an issue.
pub(super) fn read(raw: Map<String, Value>, recipe: &mut Recipe, to: &mut Parallel, issues: &mut Vec<Issue>) {
    let mut f = Fields { raw, issues };
    let kind: String = f.get("kind").unwrap_or_default();
    // Here alone `null` is a choice and not the default (`backward_prefetch=None`).
    let unset = if f.raw.contains_key("backward_prefetch") { Prefetch::None } else { Prefetch::BackwardPre };
    let prefetch = f.get("backward_prefetch").unwrap_or(unset);
    to.world_size = f.number("world", 1);
    to.data = match kind.as_str() {
        "none" => {
            f.take("init");
            DataParallel::None
        }
        "ddp" => {
            f.take("init");
            let default = Ddp::default();
            DataParallel::Ddp(Ddp {
                gradient_as_bucket_view: f.flag("gradient_as_bucket_view", false),
                bucket_cap_mb: f.number("bucket_cap_mb", default.bucket_cap_mb),
                static_graph: f.flag("static_graph", false),
                find_unused_parameters: f.flag("find_unused", false),
                no_sync: f.flag("no_sync", false),
                bf16_compress: f.take("comm_hook").is_some_and(|hook| hook == "bf16"),
            })
        }
        "dp" => DataParallel::Dp(Dp { gpu: f.number("gpu", 0) }),
        "fsdp1" => DataParallel::Fsdp1(Fsdp1 {
            strategy: f.get("strategy").unwrap_or_default(),
            replicas: f.number("replicas", 1),
            mixed_precision: f.mixed_precision(),
            use_orig_params: f.flag("use_orig_params", true),
            limit_all_gathers: f.flag("limit_all_gathers", true),
            backward_prefetch: prefetch,
            forward_prefetch: f.flag("forward_prefetch", false),
            no_sync: f.flag("no_sync", false),
            checkpoint_wrapper: f.checkpointing(recipe),
            init: f.init(InitDevice::Meta),
            offload_cpu: f.flag("offload_cpu", false),
        }),
        "fsdp2" => DataParallel::Fsdp2(fsdp2(&mut f, recipe)),
        "tp" => {
            let ranks = f.number("dp", 1);
            to.tensor = TensorParallel {
                size: to.world_size / ranks.max(1),
                sequence_parallel: f.flag("sequence_parallel", false),
                loss_parallel: f.flag("loss_parallel", false),
            };
            if ranks > 1 { DataParallel::Fsdp2(fsdp2(&mut f, recipe)) } else { DataParallel::None }
        }
        "deepspeed" => DataParallel::DeepSpeed(deepspeed(&mut f, recipe)),
        _ => {
            f.issues.push(not_modelled("parallel", "kind", &Value::String(kind)));
            DataParallel::None
        }
    };
    let Fields { raw, issues } = f;
    issues.extend(raw.iter().filter(|(_, value)| !value.is_null()).map(|(k, v)| not_modelled("parallel", k, v)));
}

fn fsdp2(f: &mut Fields<'_>, recipe: &mut Recipe) -> Fsdp2 {
    let reshard_after_forward = match f.take("reshard") {
        Some(Value::Bool(false)) => Reshard::Never,
        Some(Value::Number(n)) => n.as_u64().map_or(Reshard::Always, Reshard::To),
        _ => Reshard::Always,
    };
    let ends = f.flag("split_head", false);
    let root = f.take("wrap").is_some_and(|wrap| wrap == "root");
    Fsdp2 {
        replicas: f.number("replicas", 1),
        reshard_after_forward,
        root_reshard_after_forward: f.get("root_reshard"),
        reshard_after_backward: f.flag("reshard_after_backward", true),
        mixed_precision: f.mixed_precision(),
        wrap: match (root, ends) {
            (true, _) => Wrap::Root,
            (false, true) => Wrap::LayersAndEnds,
            (false, false) => Wrap::Layers,
        },
        no_sync: f.flag("no_sync", false),
        checkpoint_wrapper: f.checkpointing(recipe),
        init: f.init(InitDevice::Meta),
        offload_cpu: f.flag("offload_cpu", false),
        pin_memory: f.flag("pin_memory", false),
    }
}

fn deepspeed(f: &mut Fields<'_>, recipe: &mut Recipe) -> DeepSpeed {
    let stage = f.number("stage", 0);
    let dtype = f.take("dtype").as_ref().and_then(Value::as_str).and_then(float).unwrap_or(FloatName::Float32);
    recipe.clip_grad = f.get::<f64>("clip").filter(|norm| *norm > 0.0);
    let zero_init = f.take("init").is_some_and(|init| init == "zero");
    let zero: DeepSpeed = f.get("zero").unwrap_or_default();
    let options = DeepSpeed { stage, dtype, zero_init, ..zero };
    recipe.precision = Some(options.precision());
    options
}
