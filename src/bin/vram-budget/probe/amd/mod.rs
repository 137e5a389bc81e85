//! AMD's GPUs, as its tools say: `amd-smi`, or `rocm-smi` where there is none. Both print JSON; [`read`] understands it.

mod ask;
mod read;

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;
use vram_budget::measure::Gpu;
use vram_budget::units::Bytes;

use super::{Driver, Found, MOST_CLOCKS, Sample};
use read::Card;

/// The tool that answers here.
#[derive(Debug)]
pub(crate) struct Amd {
    /// How long a tool may take.
    limit: Duration,
    tool: OnceLock<Tool>,
}

impl Default for Amd {
    fn default() -> Self {
        Self { limit: Duration::from_secs(10), tool: OnceLock::new() }
    }
}

/// A tool, and where it was found.
#[derive(Clone, Copy, Debug)]
enum Tool {
    AmdSmi(&'static str),
    RocmSmi(&'static str),
}

/// On `PATH`; else where ROCm is installed.
const TOOLS: [Tool; 4] = [
    Tool::AmdSmi("amd-smi"),
    Tool::AmdSmi("/opt/rocm/bin/amd-smi"),
    Tool::RocmSmi("rocm-smi"),
    Tool::RocmSmi("/opt/rocm/bin/rocm-smi"),
];

/// Everything that every version of `rocm-smi` knows and we need.
const ROCM_SMI: [&str; 9] = [
    "--showproductname",
    "--showdriverversion",
    "--showmeminfo",
    "vram",
    "--showuse",
    "--showmemuse",
    "--showclocks",
    "--showpids",
    "--json",
];

impl Amd {
    fn ask(&self, program: &str, arguments: &[&str]) -> Result<Value, String> {
        ask::ask(program, arguments, self.limit)
    }

    /// What the tool says of every card; `whole`: what never changes too.
    fn cards(&self, tool: Tool, whole: bool) -> Result<BTreeMap<u32, Card>, String> {
        match tool {
            Tool::AmdSmi(program) => {
                let named = |what: &str, why: String| format!("{program} {what} --json: {why}");
                let mut cards =
                    read::metric(&self.ask(program, &["metric", "--json"])?).map_err(|why| named("metric", why))?;
                // Without processes or names the figures are worth having.
                let processes = self
                    .ask(program, &["process", "--json"])
                    .and_then(|found| read::processes(&found, &mut cards).map_err(|why| named("process", why)));
                if let Err(why) = processes {
                    cards.values_mut().for_each(|card| card.lacks("processes", &why));
                }
                if whole {
                    let facts = self
                        .ask(program, &["static", "--json"])
                        .and_then(|found| read::facts(&found, &mut cards).map_err(|why| named("static", why)));
                    if let Err(why) = facts {
                        cards.values_mut().for_each(|card| card.lacks("name", &why));
                    }
                    if cards.values().all(|card| card.partition.is_none()) {
                        let current = self.ask(program, &["partition", "--current", "--json"]);
                        let current = current.and_then(|found| {
                            read::partitions(&found, &mut cards).map_err(|why| named("partition --current", why))
                        });
                        if let Err(why) = current {
                            cards.values_mut().for_each(|card| card.lacks("partition", &why));
                        }
                    }
                }
                Ok(cards)
            }
            Tool::RocmSmi(program) => {
                read::rocm_smi(&self.ask(program, &ROCM_SMI)?).map_err(|why| format!("{program} --json: {why}"))
            }
        }
    }
}

impl Driver for Amd {
    fn probe(&self) -> Result<Found, Vec<String>> {
        let mut tried: Vec<String> = Vec::new();
        for tool in TOOLS {
            let not_found = tried.last().is_some_and(|why| why.ends_with(ask::NOT_FOUND));
            if tool.program().starts_with('/') && !not_found {
                continue;
            }
            match self.cards(tool, true) {
                Ok(cards) if cards.is_empty() => tried.push(format!("{}: no GPU", tool.program())),
                Ok(cards) => {
                    let _ = self.tool.set(tool);
                    let driver = cards.values().find_map(|card| card.driver.clone());
                    let gpus = cards.into_iter().map(|(index, card)| card.described(index)).collect();
                    return Ok(Found { driver: driver.map(|version| format!("amdgpu {version}")), cuda: None, gpus });
                }
                Err(why) => tried.push(why),
            }
        }
        if tried.iter().all(|why| why.ends_with(ask::NOT_FOUND)) {
            tried = vec!["amd-smi and rocm-smi, on PATH and in /opt/rocm/bin: not found".into()];
        }
        Err(tried)
    }

    fn sample(&self, _: bool) -> Result<Vec<Sample>, String> {
        let tool = self.tool.get().ok_or("no tool answers")?;
        Ok(self.cards(*tool, false)?.into_iter().map(|(index, card)| card.sample(index)).collect())
    }

    /// A look starts two Python programs.
    fn pause(&self) -> Duration {
        Duration::from_secs(5)
    }
}

impl Tool {
    fn program(self) -> &'static str {
        match self {
            Self::AmdSmi(program) | Self::RocmSmi(program) => program,
        }
    }
}

impl Card {
    /// As a GPU of the document.
    fn described(self, index: u32) -> Gpu {
        let mut gpu = Gpu {
            index,
            name: self.name,
            total_bytes: self.total.map(Bytes),
            used_bytes: self.used.map(Bytes),
            free_bytes: self.total.zip(self.used).and_then(|(total, used)| total.checked_sub(used)).map(Bytes),
            partition: self.partition,
            ecc: self.ecc,
            ..Gpu::default()
        };
        for (name, most) in MOST_CLOCKS.into_iter().zip(self.most_clocks) {
            gpu.figures.extend(most.map(|most| (name.to_owned(), most)));
        }
        self.vitals.add_to(&mut gpu);
        let said = |missing: bool, field: &str, gpu: &mut Gpu| {
            if missing {
                gpu.unavailable.entry(field.to_owned()).or_insert_with(|| read::NOT_SAID.into());
            }
        };
        said(gpu.name.is_none(), "name", &mut gpu);
        said(gpu.total_bytes.is_none(), "total_bytes", &mut gpu);
        said(gpu.used_bytes.is_none(), "used_bytes", &mut gpu);
        said(gpu.ecc.is_none(), "ecc", &mut gpu);
        said(gpu.partition.is_none(), "partition", &mut gpu);
        gpu
    }

    /// As a look at it.
    fn sample(self, index: u32) -> Sample {
        Sample { gpu: index, used: self.used, processes: self.processes, vitals: self.vitals, lost: None }
    }
}
