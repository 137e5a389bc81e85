//! Saving, loading, and the host memory of a node, as text and as JSON.

use std::io::{self, Write};

use serde_json::{Value, json};
use vram_budget::estimate::{Transfer, Transfers, Way};
use vram_budget::issue::Issue;
use vram_budget::text::Locale;
use vram_budget::units::Bytes;

/// What of `all` the JSON document says.
pub(super) fn document(all: &Transfers) -> serde_json::Result<Value> {
    let one = |of: &Transfer, binds: bool| {
        let mut document = serde_json::to_value(of)?;
        document["host_node"] = json!(all.node(of));
        document["binds"] = json!(binds);
        Ok(document)
    };
    let saving = all.saving.iter().map(|of| one(of, all.saving_binds(of)));
    let loading = all.loading.iter().map(|of| one(of, all.loading_binds(of)));
    let mut document = serde_json::to_value(all)?;
    document["saving"] = Value::Array(saving.collect::<serde_json::Result<_>>()?);
    document["loading"] = Value::Array(loading.collect::<serde_json::Result<_>>()?);
    document["host_node_in_step"] = json!(all.node_in_step());
    Ok(document)
}

/// The tables of ways, in GiB.
pub(super) fn print(all: &Transfers, out: &mut dyn Write) -> io::Result<()> {
    let ranks = all.ranks_of_node;
    let each = format!("{ranks} ranks, each {} all along and {} in a step", gib(all.held), gib(all.in_step));
    writeln!(out, "\n{:<18} {:>15}  {each}", "Host of a node", gib(all.node_in_step()))?;
    let heads = ["GPU, GiB", "rank 0's host", "another's", "node's", "written"];
    for (title, ways, saves) in [("Saving", &all.saving, true), ("Loading", &all.loading, false)] {
        if ways.is_empty() {
            continue;
        }
        let [gpu, first, others, node, written] = heads;
        writeln!(out, "{title:<38} {gpu:>10} {first:>14} {others:>10} {node:>10} {written:>10}")?;
        for of in ways {
            let binds = if saves { all.saving_binds(of) } else { all.loading_binds(of) };
            let [gpu, first, others, node, written] =
                [of.device, of.host_first, of.host_others, all.node(of), of.written].map(gib);
            let written = if saves { written } else { String::new() };
            let mark = if binds { "*" } else { " " };
            let words = words(of.way);
            writeln!(out, "{mark} {words:<36} {gpu:>10} {first:>14} {others:>10} {node:>10} {written:>10}")?;
        }
    }
    if all.saving.iter().any(|of| all.saving_binds(of)) || all.loading.iter().any(|of| all.loading_binds(of)) {
        writeln!(out, "* needs more of the GPU than the training step, which the verdict is about")?;
    }
    for Issue { kind, .. } in &all.refused {
        writeln!(out, "  {}", Locale::En.text().issue(kind))?;
    }
    Ok(())
}

fn gib(bytes: Bytes) -> String {
    format!("{:.2}", bytes.as_gib())
}

const fn words(way: Way) -> &'static str {
    match way {
        Way::RankZero => "rank 0 writes",
        Way::FullStateDict => "full state dict on rank 0",
        Way::Sharded => "shards (DCP)",
        Way::Local => "flat shards (LOCAL_STATE_DICT)",
        Way::SaveCheckpoint => "save_checkpoint",
        Way::Gather16Bit => "16-bit weights gathered on rank 0",
        Way::EachRank => "each rank reads all",
        Way::EachRankMapped => "the same, safetensors in its dtype",
        Way::Broadcast => "a node's first rank reads, broadcast",
        Way::ZeroInit => "zero.Init, rank 0 reads",
    }
}
