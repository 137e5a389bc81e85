//! The walk itself: what is allocated, freed and read, in the framework's order.

use std::io::Write;

use vram_budget::bill::{Instant, Part};
use vram_budget::estimate::Job;
use vram_budget::issue::{Issue, IssueKind};
use vram_budget::plan::Plan;
use vram_budget::recipe::Precision;
use vram_budget::step::log::{Event, TensorInfo};

use crate::exit::Rejected;

const WHAT: &str = "the plan cannot be walked";

/// Prints two steps: the first, in which the optimizer makes its states, and a steady one. Tab-separated: event,
/// tensor, bytes, part, instant, operation, sizes, and the bytes alive after it.
pub(super) fn print(plan: &Plan, out: &mut dyn Write) -> anyhow::Result<()> {
    let job = Job::of(plan).map_err(|issues| Rejected::fields(WHAT, &issues))?;
    let precision = precision(plan).map_err(|issue| Rejected::fields(WHAT, &[issue]))?;
    let walk = job.walk(plan, precision).map_err(|issues| Rejected::fields(WHAT, &issues))?;
    let mut parts: Vec<Part> = walk.tensors.iter().map(|t| t.part).collect();
    let (mut instant, mut alive) = (Instant::Forward, 0_u64);
    writeln!(out, "# event\ttensor\tbytes\tpart\tinstant\toperation\tsizes\talive")?;
    for event in &walk.events {
        let (what, id) = match *event {
            Event::Alloc(id) => {
                alive += walk.tensors[id as usize].bytes.get();
                ("alloc", id)
            }
            Event::Free(id) => {
                alive -= walk.tensors[id as usize].bytes.get();
                ("free", id)
            }
            Event::Becomes(id, part) => {
                parts[id as usize] = part;
                ("becomes", id)
            }
            Event::Enter(entered) => {
                instant = entered;
                continue;
            }
            // Each tensor carries its own layer.
            Event::Layer(_) => continue,
            Event::Mark(mark) => {
                writeln!(out, "mark\t\t\t\t{}\t{mark:?}\t\t{alive}", name(instant))?;
                continue;
            }
            Event::Uses(id, stream) => {
                writeln!(out, "uses\t{id}\t\t\t{}\t{stream:?}\t\t{alive}", name(instant))?;
                continue;
            }
            Event::Sync(_) => continue,
            Event::EmptyCache => {
                writeln!(out, "empty_cache\t\t\t\t{}\t\t\t{alive}", name(instant))?;
                continue;
            }
        };
        let tensor = &walk.tensors[id as usize];
        writeln!(
            out,
            "{what}\t{id}\t{}\t{}\t{}\t{}\t{}\t{alive}",
            tensor.bytes.get(),
            name(parts[id as usize]),
            name(instant),
            operation(tensor),
            sizes(tensor)
        )?;
    }
    Ok(())
}

/// A walk is of one recipe that a framework runs.
fn precision(plan: &Plan) -> Result<Precision, Issue> {
    let field = "recipe.precision";
    match plan.recipe.precision {
        Some(Precision::RuleOfThumb) => {
            Err(Issue::new(field, IssueKind::NotModelled { what: "a walk of the rule of thumb".into() }))
        }
        Some(precision) => Ok(precision),
        None => Err(Issue::new(field, IssueKind::Missing { expected: "one recipe to walk".into() })),
    }
}

fn operation(tensor: &TensorInfo) -> String {
    let layer = if tensor.layer == 0 { String::new() } else { format!("layer {} ", tensor.layer) };
    if tensor.scope.is_empty() { tensor.op.to_owned() } else { format!("{layer}{}: {}", tensor.scope, tensor.op) }
}

/// The sizes in elements, and the bytes of one: `2 × 512 × 768 × 4 B`.
fn sizes(tensor: &TensorInfo) -> String {
    let dims: Vec<String> = tensor.dims.iter().map(|d| d.n).filter(|n| *n != 1).map(|n| n.to_string()).collect();
    let count = if dims.is_empty() { "1".to_owned() } else { dims.join(" × ") };
    format!("{count} × {} B", tensor.element)
}

/// An enum's name in documents.
fn name(value: impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}
