//! What people measured: our versioned document, and every text that is read as one. One file per format.

mod case;
mod document;
mod error;
pub mod explain;
pub mod format;
mod reading;
mod report;
mod reported;
mod run;
mod runs;
mod tracked;

pub use case::Case;
pub use document::{Environment, Gpu, MEASUREMENT_VERSION, Measurement, Producer};
pub use error::ImportError;
pub use format::{FormatId, Imported, MAX_TEXT, Options, Reader, decoded, import, import_in, masked_crc, understand};
pub use reading::{EvalReading, Figure, Reading, ReadingName, Scope, StepReading, TierName, Unit, Which};
pub use report::{Backend, Buffer, Failure, FailureKind, Process, Series, Source};
pub use reported::{Reported, Stat};
pub use run::{Ended, EndedHow, RankPart, Run};
pub use runs::average;
pub use tracked::{Stage, Tracked};
