//! What brings the inside view into the training process: a directory first on `PYTHONPATH`, with a `sitecustomize` that
//! chains to the user's own. Nothing is written into anyone's packages, and no code is changed.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use super::Args;

const HOOK: &str = include_str!("hook.py");
const JOB: &str = include_str!("job.py");

/// Writes the hook and its options into the run's directory.
pub(super) fn install(directory: &Path, args: &Args) -> io::Result<()> {
    fs::write(directory.join("sitecustomize.py"), HOOK)?;
    fs::write(directory.join("job.py"), JOB)?;
    let command: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    let options = serde_json::json!({
        "steps": args.steps, "warmup": args.warmup, "stop_after": args.stop_after, "snapshot": args.snapshot,
        "command": command, "variables": super::launcher::variables().collect::<Vec<_>>(),
    });
    fs::write(directory.join("options.json"), options.to_string())
}

/// The environment that the command gets beside its own.
#[expect(clippy::disallowed_methods, reason = "the command keeps what the user's PYTHONPATH says")]
pub(super) fn environment(directory: &Path) -> Vec<(&'static str, OsString)> {
    let mut path = directory.as_os_str().to_owned();
    if let Some(theirs) = std::env::var_os("PYTHONPATH").filter(|theirs| !theirs.is_empty()) {
        path.push(":");
        path.push(theirs);
    }
    vec![("PYTHONPATH", path), ("VRAM_BUDGET_RECORD_DIR", directory.as_os_str().to_owned())]
}
