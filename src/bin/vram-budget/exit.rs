//! How the command ends.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use vram_budget::issue::Issue;
use vram_budget::measure::ImportError;
use vram_budget::text::{Locale, issue_line};

/// There is no GPU or no driver.
pub(crate) const NO_GPU: u8 = 3;
/// The input was rejected.
pub(crate) const REJECTED: u8 = 4;

/// An input that was rejected: what it is, and every reason.
#[derive(Debug)]
pub(crate) struct Rejected {
    what: String,
    reasons: Vec<String>,
}

impl Rejected {
    /// `what` is rejected for one reason.
    pub(crate) fn because(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { what: what.into(), reasons: vec![reason.into()] }
    }

    /// `what` is rejected for several reasons.
    pub(crate) fn several(what: impl Into<String>, reasons: Vec<String>) -> Self {
        Self { what: what.into(), reasons }
    }

    /// `what` is rejected for its fields.
    pub(crate) fn fields(what: impl Into<String>, issues: &[Issue]) -> Self {
        let text = Locale::En.text();
        Self { what: what.into(), reasons: issues.iter().map(|issue| issue_line(text, issue)).collect() }
    }

    /// `what` is no measurement.
    pub(crate) fn import(what: impl Into<String>, error: &ImportError) -> Self {
        match error {
            ImportError::Fields(issues) => Self::fields(what, issues),
            error => Self::because(what, error.to_string()),
        }
    }
}

impl std::fmt::Display for Rejected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.what)?;
        match &self.reasons[..] {
            [one] => write!(f, ": {one}"),
            several => several.iter().try_for_each(|reason| write!(f, "\n  {reason}")),
        }
    }
}

impl std::error::Error for Rejected {}

/// Says what went wrong on stderr. A reader that closed the pipe has what it wanted: that is success.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if error.chain().any(is_broken_pipe) {
        return ExitCode::SUCCESS;
    }
    let mut stderr = io::stderr().lock();
    // Nothing is left to do where even stderr is closed.
    let _ = writeln!(stderr, "error: {error}");
    for cause in error.chain().skip(1) {
        let _ = writeln!(stderr, "caused by: {cause}");
    }
    if error.is::<Rejected>() { ExitCode::from(REJECTED) } else { ExitCode::FAILURE }
}

/// Whether the error is a closed pipe, also one that the JSON writer met.
fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    let of_io = error.downcast_ref::<io::Error>().map(io::Error::kind);
    let of_json = error.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
    of_io.or(of_json) == Some(ErrorKind::BrokenPipe)
}
