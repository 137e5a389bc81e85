//! A measured training step as the reference files write it, one a line: `{"id", "case": {"model", "recipe",
//! "device"}, "result"}`, with a `parallel` beside them where ranks shared the job. The case becomes a plan, strictly: what
//! this program does not model refuses the case. The result becomes readings.

mod layout;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::issue::{Issue, IssueKind};
use crate::machine::{CustomGpu, GpuChoice, Machine};
use crate::measure::{EvalReading, Figure, Reading, ReadingName, StepReading, Which};
use crate::model::ModelSource;
use crate::plan::{Framework, PLAN_VERSION, Plan, Policy, Version};
use crate::recipe::{Optimizer, Parallel, Recipe};
use crate::units::Bytes;

/// A measured case.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Its name in the file.
    pub id: String,
    /// The model's family: its `model_type`, or its architecture where it has none; where ranks shared the job, how.
    pub family: String,
    /// What was run, as a plan; or everything of its model and its recipe that is not modelled.
    pub plan: Result<Plan, Vec<Issue>>,
    /// What was measured. Empty where the run ran out of memory: its figures are no peaks.
    pub readings: Vec<Reading>,
    /// Whether the run ran out of memory.
    pub out_of_memory: bool,
}

#[derive(Deserialize)]
struct RawCase {
    id: String,
    case: RawSetup,
    result: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSetup {
    model: Map<String, Value>,
    recipe: Map<String, Value>,
    /// How ranks shared the job; such cases have defaults of their own.
    #[serde(default)]
    parallel: Option<Map<String, Value>>,
    #[serde(default)]
    device: Option<Map<String, Value>>,
}

impl Case {
    /// Reads one line.
    ///
    /// # Errors
    /// The JSON error, when the line is not a case.
    pub fn read(line: &str) -> Result<Self, serde_json::Error> {
        let raw: RawCase = serde_json::from_str(line)?;
        let out_of_memory = raw.result.get("oom").is_some_and(|oom| !oom.is_null());
        Ok(Self {
            id: raw.id,
            family: raw.case.parallel.as_ref().map_or_else(|| family(&raw.case.model), layout::kind),
            plan: plan(raw.case),
            readings: if out_of_memory { Vec::new() } else { readings(&raw.result) },
            out_of_memory,
        })
    }
}

fn family(model: &Map<String, Value>) -> String {
    let of = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    of(model.get("model_type"))
        .or_else(|| of(model.get("architectures").and_then(|a| a.get(0))))
        .unwrap_or_else(|| "unknown".into())
}

fn plan(setup: RawSetup) -> Result<Plan, Vec<Issue>> {
    let mut issues = crate::model::read_config(&setup.model).err().unwrap_or_default();
    let mut recipe = recipe(setup.recipe, setup.parallel.is_some(), &mut issues);
    let mut raw_device = setup.device.unwrap_or_default();
    let mut parallel = Parallel::default();
    if let Some(raw) = setup.parallel {
        layout::defaults(&mut raw_device);
        parallel.slow_device = raw_device.remove("lazy").is_some_and(|lazy| lazy == 1);
        layout::read(raw, &mut recipe, &mut parallel, &mut issues);
    }
    let (machine, framework) = device(raw_device, &mut issues);
    if !issues.is_empty() {
        return Err(issues);
    }
    Ok(Plan {
        version: PLAN_VERSION,
        model: ModelSource::Config(setup.model),
        recipe,
        parallel,
        machine,
        framework,
        policy: Policy::default(),
        calibration: None,
    })
}

/// Each field on its own, so that every one that is not modelled is named. `null` is the default.
fn recipe(raw: Map<String, Value>, shared: bool, issues: &mut Vec<Issue>) -> Recipe {
    let mut known = Map::new();
    if shared {
        known.insert("precision".into(), "fp32".into());
    }
    for (key, value) in raw {
        match (key.as_str(), value) {
            (_, Value::Null) => {}
            // The first step and a steady one are what a walk shows, however many are run.
            ("steps", Value::Number(n)) if n.as_u64().is_some_and(|n| n >= 2) => {}
            ("optimizer", Value::Object(options)) => {
                known.insert(key, Value::Object(optimizer(options, issues)));
            }
            (_, value) => {
                known.insert(key, value);
            }
        }
    }
    // Field by field: a recipe with one field that reads is a field that is modelled.
    known.retain(|key, value| {
        let one = Map::from_iter([(key.clone(), value.clone())]);
        let modelled = serde_json::from_value::<Recipe>(Value::Object(one)).is_ok();
        if !modelled {
            issues.push(not_modelled("recipe", key, value));
        }
        modelled
    });
    serde_json::from_value(Value::Object(known)).unwrap_or_default()
}

fn optimizer(options: Map<String, Value>, issues: &mut Vec<Issue>) -> Map<String, Value> {
    options
        .into_iter()
        // What scales the update changes nothing in memory.
        .filter(|(key, value)| key != "scale" && !value.is_null())
        .filter(|(key, value)| {
            let one = Map::from_iter([(key.clone(), value.clone())]);
            let modelled = serde_json::from_value::<Optimizer>(Value::Object(one)).is_ok();
            if !modelled {
                issues.push(not_modelled("recipe.optimizer", key, value));
            }
            modelled
        })
        .collect()
}

/// A field, or a field's value, that is not modelled: `lora`, `checkpointing "reentrant"`.
fn not_modelled(parent: &str, key: &str, value: &Value) -> Issue {
    let what = match value {
        Value::String(text) if key == "name" => format!("optimizer {text}"),
        Value::String(text) => format!("{key} {text}"),
        _ => key.to_owned(),
    };
    Issue::new(format!("{parent}.{key}"), IssueKind::NotModelled { what: what.chars().take(80).collect() })
}

fn device(raw: Map<String, Value>, issues: &mut Vec<Issue>) -> (Machine, Framework) {
    let (mut capability, mut memory_bytes) = (None, None);
    // The measured steps ran PyTorch over a device without kernels.
    let mut framework = Framework { idle_experts: true, ..Framework::default() };
    for (key, value) in &raw {
        match (key.as_str(), value) {
            ("sm", Value::Number(sm)) => {
                capability = sm.as_u64().map(|sm| format!("{}.{}", sm / 10, sm % 10));
            }
            ("total_mb", Value::Number(mib)) => {
                memory_bytes = mib.as_u64().and_then(|mib| Bytes::product(&[mib, crate::units::MIB]));
            }
            ("alloc_conf", Value::String(conf)) => framework.alloc_conf = Some(conf.clone()),
            ("workspace_kept", Value::Bool(kept)) => framework.cublas_workspace_kept = Some(*kept),
            (_, Value::Null) => {}
            ("pytorch", Value::String(version)) if let Ok(version) = version.parse::<Version>() => {
                framework.pytorch = version;
            }
            ("transformers", Value::String(version)) if let Ok(version) = version.parse::<Version>() => {
                framework.transformers = version;
            }
            _ => issues.push(not_modelled("device", key, value)),
        }
    }
    let gpu = memory_bytes.map(|memory_bytes| {
        let name = capability.as_ref().map_or_else(|| "device".to_owned(), |c| format!("sm {c}"));
        GpuChoice::Custom(CustomGpu { name, memory_bytes, compute_capability: capability.clone() })
    });
    if gpu.is_none() {
        let expected = "the device's memory in MiB".into();
        issues.push(Issue::new("device.total_mb", IssueKind::Missing { expected }));
    }
    (Machine { gpu, in_use_bytes: Some(Bytes::ZERO), ..Machine::default() }, framework)
}

/// The readings that the result has, and the absolutes that follow from its deltas.
fn readings(result: &Map<String, Value>) -> Vec<Reading> {
    let mut found = Vec::new();
    let mut add = |name: ReadingName, bytes: Option<i64>| {
        if let Some(bytes) = bytes {
            found.push(Reading::new(name, name.tier(), Figure::Bytes(bytes)));
        }
    };
    let whole = |object: &Map<String, Value>, key: &str| object.get(key).and_then(Value::as_i64);
    for name in ReadingName::LOADING {
        let text = name.to_string();
        let bytes = match text.split_once('.') {
            Some((parent, key)) => result.get(parent).and_then(|of| whole(of.as_object()?, key)),
            None => whole(result, &text),
        };
        add(name, bytes);
    }
    for name in [
        ReadingName::Params,
        ReadingName::Base,
        ReadingName::OptimizerState,
        ReadingName::OptimizerStateHost,
        ReadingName::MaxAllocated,
        ReadingName::MaxReserved,
    ] {
        add(name, whole(result, &name.to_string()));
    }
    if let Some(Value::Object(eval)) = result.get("eval") {
        for reading in EvalReading::ALL {
            add(ReadingName::Eval(reading), whole(eval, reading.name()));
        }
    }
    if let Some(Value::Object(phases)) = result.get("phases") {
        for phase in ReadingName::PHASES {
            add(ReadingName::Phase(phase), whole(phases, phase.name()));
        }
    }
    for which in Which::ALL {
        let Some(Value::Object(step)) = result.get(which.name()) else { continue };
        for reading in StepReading::ALL {
            let sum = |a: &str, b: &str| whole(step, a)?.checked_add(whole(step, b)?);
            let bytes = whole(step, reading.name()).or_else(|| match reading {
                StepReading::ForwardEnd => sum("base", "forward_delta"),
                StepReading::BackwardEnd => sum("base", "forward_delta")?.checked_add(whole(step, "backward_delta")?),
                // Peaks are reset between phases: the step's own is the highest of them.
                StepReading::Peak => peak_of(step),
                _ => None,
            });
            add(ReadingName::Step(which, reading), bytes);
        }
    }
    found
}

/// The highest of a step's peaks, over every micro-batch.
fn peak_of(step: &Map<String, Value>) -> Option<i64> {
    let peaks = |object: &Map<String, Value>| {
        ["forward_peak", "backward_peak", "step_peak", "ema_peak"]
            .iter()
            .filter_map(|key| object.get(*key)?.as_i64())
            .max()
    };
    let micro = step.get("micro").and_then(Value::as_array).into_iter().flatten();
    micro.filter_map(|m| peaks(m.as_object()?)).chain(peaks(step)).max()
}
