//! A tool that prints JSON, started and read under a time limit.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;

/// The longest answer that is read: a thousandth of it is usual.
const MOST: u64 = 64 << 20;

/// How the reason ends where there is no such program.
pub(super) const NOT_FOUND: &str = ": not found";

/// What `program` prints, or why that is no JSON.
pub(super) fn ask(program: &str, arguments: &[&str], limit: Duration) -> Result<Value, String> {
    let said = |why: &str| {
        let words: Vec<&str> = [program].into_iter().chain(arguments.iter().copied()).collect();
        format!("{}: {why}", words.join(" "))
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // Ctrl-C is for the command that is measured.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{program}{NOT_FOUND}"),
        _ => said(&error.to_string()),
    })?;
    let (send, receive) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        // Left behind where a process of the tool's keeps the pipe open.
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = send.send(out.take(MOST).read_to_end(&mut bytes).map(|_| bytes));
        });
    }
    let answer = receive.recv_timeout(limit);
    end(&mut child);
    let ended = child.wait();
    let Ok(answer) = answer else { return Err(said(&format!("no answer within {} seconds", limit.as_secs()))) };
    let answer = answer.map_err(|error| said(&error.to_string()))?;
    json(&answer).ok_or_else(|| {
        let ended = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
        let text = String::from_utf8_lossy(&answer);
        let line: String = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("").chars().take(120).collect();
        said(&format!("no JSON ({ended}) {line}"))
    })
}

/// Ends the tool and what it has started. What has ended already stays as it ended.
fn end(child: &mut Child) {
    if matches!(child.try_wait(), Ok(Some(_))) {
        return;
    }
    #[cfg(unix)]
    let _ = rustix::process::kill_process_group(rustix::process::Pid::from_child(child), rustix::process::Signal::KILL);
    let _ = child.kill();
}

/// The first JSON value: the tools print warnings before it and may print some behind it.
fn json(answer: &[u8]) -> Option<Value> {
    let begins = |at: &usize| b"[{".contains(&answer[*at]) && (*at == 0 || answer[*at - 1] == b'\n');
    (0..answer.len())
        .filter(begins)
        .find_map(|at| serde_json::Deserializer::from_slice(&answer[at..]).into_iter::<Value>().next()?.ok())
}

#[cfg(all(test, unix))]
mod tests {
    use std::time::Instant;

    use super::*;

    fn shell(script: &str, limit: u64) -> Result<Value, String> {
        ask("sh", &["-c", script], Duration::from_millis(limit))
    }

    #[test]
    fn warnings_around_the_answer_are_no_part_of_it() {
        let script = "echo 'WARNING: [x] no group'; printf '[\\n {\"gpu\": 0}\\n]\\n'; echo bye; exit 2";
        assert_eq!(shell(script, 5000).unwrap(), serde_json::json!([{ "gpu": 0 }]));
    }

    #[test]
    fn what_is_no_answer_is_said() {
        assert_eq!(ask("no-such-tool", &[], Duration::from_secs(1)).unwrap_err(), "no-such-tool: not found");
        let said = shell("echo 'No GPU'; exit 3", 5000).unwrap_err();
        assert!(said.contains("no JSON") && said.contains("No GPU") && said.contains('3'), "{said}");
        assert!(shell("printf '{\"cut\": '", 5000).is_err());
    }

    #[test]
    fn a_tool_that_hangs_is_ended_with_all_that_it_started() {
        let begun = Instant::now();
        let said = shell("sleep 60 & echo '{}'; wait", 300).unwrap_err();
        assert!(said.contains("no answer within"), "{said}");
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}
