//! The estimate as one JSON document.

use std::io::Write;

use serde::Serialize;
use serde_json::{Map, Value, json};
use vram_budget::bill::{Bill, Instant, Part};
use vram_budget::calibration::intervals;
use vram_budget::decide::Decision;
use vram_budget::estimate::{Estimate, PhaseOnCard, RankEstimate, binding_phase, phases as on_card};
use vram_budget::plan::Plan;
use vram_budget::reconcile::Row;
use vram_budget::step::capacity::SmallestCard;
use vram_budget::step::readings::{Holder, Readings};

/// The version of the document.
const VERSION: u32 = 1;

pub(super) fn print(
    plan: &Plan,
    decision: &Decision,
    smallest: Option<&SmallestCard>,
    rows: Option<&[Row]>,
    ranks: &[RankEstimate],
    (tokens, transfers): (Option<u64>, Option<Value>),
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let estimate = &decision.estimate;
    let mut document = json!({
        "format": "vram-budget-estimate",
        "version": VERSION,
        "plan": plan,
        "verdict": decision.verdict.kind,
        "reason": decision.verdict.reason,
        "numbers": decision.verdict.numbers,
        "binding": estimate.peak(),
        "tiers": tiers(estimate)?,
        "phases": estimate.readings.as_ref().map(|of| phases(plan, of)),
        "parts": parts(&estimate.bill),
        "bill": bill(&estimate.bill),
        "parameters": estimate.parameters,
        "readings": estimate.readings,
        "transfers": transfers,
        "on_card": estimate.on_card,
        "smallest_card": smallest,
        "notes": estimate.notes,
        "tree": decision.tree,
        "remedies": decision.remedies,
        "advice": decision.advice,
        "throughput": decision.throughput,
        "caveats": decision.caveats,
    });
    if let (true, Value::Object(document)) = (plan.calibration.is_some(), &mut document) {
        document.insert("intervals".into(), serde_json::to_value(intervals(plan, &estimate.tiers))?);
    }
    if let (false, Value::Object(document)) = (ranks.is_empty(), &mut document) {
        document.insert("ranks".into(), serde_json::to_value(ranks)?);
    }
    if let (Some(rows), Value::Object(document)) = (rows, &mut document) {
        document.insert("measured".into(), serde_json::to_value(rows)?);
    }
    let budget = decision.throughput.as_ref().zip(tokens).map(|(speed, tokens)| speed.budget(tokens));
    if let (Some(budget), Value::Object(document)) = (budget, &mut document) {
        document.insert("budget".into(), serde_json::to_value(budget)?);
    }
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)?;
    Ok(())
}

/// Each phase with its peaks and what holds memory in it; which one binds.
fn phases(plan: &Plan, readings: &Readings) -> Value {
    let all = on_card(plan, readings);
    let one = |on_card: &PhaseOnCard| {
        let of = &on_card.readings;
        let held = Holder::ALL.iter().zip(of.held).map(|(holder, bytes)| (name(holder), json!(bytes)));
        json!({
            "phase": of.phase,
            "allocated_bytes": of.allocated,
            "reserved_bytes": of.reserved,
            "beside_bytes": on_card.beside,
            "held": held.collect::<Map<_, _>>(),
        })
    };
    json!({ "binding": binding_phase(&all).map(|of| of.readings.phase), "list": all.iter().map(one).collect::<Value>() })
}

/// The tiers; the host's is never missing without a reason.
fn tiers(estimate: &Estimate) -> serde_json::Result<Value> {
    let mut tiers = serde_json::to_value(&estimate.tiers)?;
    if estimate.tiers.host.is_none() {
        tiers["host"] = json!({ "unavailable": "a rule of thumb keeps nothing in host memory that it knows of" });
    }
    Ok(tiers)
}

/// Bytes by part, then by instant.
fn parts(bill: &Bill) -> Map<String, Value> {
    let of = |part: Part| {
        Instant::ALL.into_iter().map(|i| (name(&i), json!(bill.column(i).parts.get(part)))).collect::<Map<_, _>>()
    };
    Part::ALL.into_iter().map(|part| (name(&part), Value::Object(of(part)))).collect()
}

/// The bill with every cell opened.
fn bill(bill: &Bill) -> Value {
    let columns = bill.columns.iter().map(|column| {
        let cells = Part::ALL.map(|part| bill.cell(part, column.instant));
        json!({ "instant": column.instant, "parts": column.parts, "cells": cells })
    });
    json!({ "columns": columns.collect::<Value>(), "binding": bill.binding, "symbols": bill.symbols })
}

/// An enum's name in documents.
fn name(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}
