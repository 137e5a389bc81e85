//! Where a step's time goes, and what training over many tokens takes.

use std::io::{self, Write};

use vram_budget::throughput::{Budget, Range, Share, Throughput};
use vram_budget::units::three_digits;

/// A part in a word or two.
const fn word(part: Share) -> &'static str {
    match part {
        Share::Products => "matrix products",
        Share::Attention => "attention",
        Share::Pointwise => "norms and activations",
        Share::Vocabulary => "head and loss",
        Share::Again => "run again",
        Share::Adapters => "adapters",
        Share::Dequantize => "dequantising",
        Share::Gradients => "casts and accumulation",
        Share::Launch => "waiting for the host",
        Share::Tensor => "tensor parallel",
        Share::Context => "context parallel",
        Share::Expert => "routing to experts",
        Share::Pipeline => "pipeline bubble",
        Share::Data => "data parallel",
        Share::Transfer => "copies to the host",
        Share::Optimizer => "optimizer",
    }
}

fn range(range: Range) -> String {
    let (low, high) = (three_digits(range.low), three_digits(range.high));
    if low == high { low } else { format!("{low} to {high}") }
}

fn percent(of: Range) -> String {
    format!("{} %", range(Range { low: of.low * 100.0, high: of.high * 100.0 }))
}

pub(super) fn print(throughput: &Throughput, tokens: Option<u64>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nTime of a step     most likely {} s", three_digits(throughput.likely_seconds.0))?;
    for part in &throughput.parts {
        let share = part.seconds / throughput.likely_seconds.0;
        // What rounds to nothing is left to the JSON document.
        if share >= 0.005 {
            writeln!(out, "  {:<24} {:>8} s {:>4.0} %", word(part.part), three_digits(part.seconds), share * 100.0)?;
        }
    }
    writeln!(
        out,
        "  MFU {} (attention counted in full), HFU {} (what is computed, recomputation included)",
        percent(throughput.mfu),
        percent(throughput.efficiency)
    )?;
    if let Some(tokens) = tokens {
        let Budget { steps, days, gpu_hours, .. } = throughput.budget(tokens);
        writeln!(
            out,
            "  {tokens} tokens: {steps} steps, {} days, {} GPU-hours at full speed throughout",
            range(days),
            range(gpu_hours)
        )?;
    }
    Ok(())
}
