//! Training-side GPU memory: what every byte is for, which instant of the step is the peak, and whether it fits.
//!
//! One engine, compiled natively for the `vram-budget` command and to WebAssembly for the page.
//!
//! ```text
//! model ─┐                                                     ┌─► bill (five parts × instants, binding instant)
//! recipe ├─► step: [alloc/free, bytes, part, phase, op, stream]├─► allocator replay ─► reserved, fragmentation
//! machine┘                                                     └─► throughput (FLOPs, bytes moved)
//!                                                              │
//! measure (any paste) ─► reconcile ────────────────────────────┴─► decide ─► verdict, remedies
//! ```
//!
//! A training step is a list of tensor lifetimes. [`step`] walks it in the order the framework would; everything else
//! is read off that list. The engine (everything outside `src/bin/`) knows no clock, files, environment, locale or
//! output stream, and never rounds a quantity that it passes on: [`units`] formats one quantity, [`text`] says
//! sentences, the two programs lay them out.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod allocator;
pub mod bill;
pub mod calibration;
mod data;
pub mod decide;
pub mod estimate;
pub mod fragmentation;
pub mod issue;
pub mod machine;
pub mod measure;
pub mod model;
mod names;
mod order;
pub mod plan;
pub mod recipe;
pub mod reconcile;
pub mod rule_of_thumb;
pub mod snapshot;
pub mod step;
pub mod text;
pub mod throughput;
pub mod units;
pub mod versions;
pub mod view;
