//! What the page shows, as plain data: its state and the actions on it, and the view models that the components draw.
//!
//! Nothing here knows a browser, so all of it is tested natively. State changes in one place, [`State::reduce`];
//! everything else on screen is derived from the state.

pub mod advice;
pub mod answer;
pub mod bill;
pub mod compare;
mod draft;
mod field;
mod intake;
pub mod job;
pub mod lengths;
pub mod link;
pub mod measured;
pub mod number;
pub mod phases;
mod pick;
pub mod ranks;
mod reading;
pub mod recording;
pub mod remedy;
pub mod run;
pub mod search;
mod state;
pub mod steps;
pub mod study;
pub mod timeline;

pub use draft::{CONFIG_PATH, Draft, GpuPick, Trained};
pub use field::Field;
pub use intake::{Intake, MAX_READ, read, recognise};
pub use pick::{Alternative, Pick};
pub use reading::{Found, Incoming, MAX_CLIPBOARD, MAX_FILE, Reading, is_recording};
pub use state::{Action, Kept, Measured, Notice, Outcome, Panel, Section, Shown, State, Theme, Undo, Work};

use crate::machine::{GpuChoice, Machine};
use crate::model::ModelSource;
use crate::plan::{Framework, PLAN_VERSION, Plan, Policy};
use crate::recipe::{Precision, Recipe};

/// The job that the page shows at first: an 8B model on a 24 GB card, the question that most people come with.
#[must_use]
pub fn example() -> Plan {
    Plan {
        version: PLAN_VERSION,
        model: ModelSource::Preset("llama-3.1-8b".into()),
        recipe: Recipe { precision: Some(Precision::PureBf16), micro_batch: 1, seq_len: 2048, ..Recipe::default() },
        parallel: Default::default(),
        machine: Machine { gpu: Some(GpuChoice::Catalogue("RTX 4090 24GB".into())), ..Machine::default() },
        framework: Framework::default(),
        policy: Policy::default(),
        calibration: None,
    }
}
