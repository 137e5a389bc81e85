//! The command: started with this terminal, given every signal, waited for.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use vram_budget::measure::{Ended, EndedHow};

/// Runs the command to its end. `stdout_is_ours`: what it prints goes to stderr.
///
/// # Errors
/// The command cannot be started.
pub(super) fn run(command: &[OsString], directory: &Path, stdout_is_ours: bool) -> io::Result<Ended> {
    let mut to_run = Command::new(&command[0]);
    to_run.args(&command[1..]).envs(super::hook::environment(directory));
    if stdout_is_ours {
        to_run.stdout(Stdio::from(io::stderr()));
    }
    wait(to_run)
}

#[cfg(not(unix))]
fn wait(mut command: Command) -> io::Result<Ended> {
    let status = command.status()?;
    Ok(Ended { how: EndedHow::Exited, code: status.code(), ..Ended::default() })
}

#[cfg(unix)]
fn wait(mut command: Command) -> io::Result<Ended> {
    use std::os::unix::process::ExitStatusExt;

    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
    use signal_hook::iterator::Signals;

    // Before the command starts: from here on no signal ends this program before the command has ended.
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2])?;
    let handle = signals.handle();
    let mut child: Child = command.spawn()?;
    let pid = child.id();
    let forward = std::thread::spawn(move || {
        let mut interrupts = 0;
        for signal in signals.forever() {
            interrupts += u32::from(signal == SIGINT);
            if interrupts > 2 {
                send(pid, signal_hook::consts::SIGKILL);
            } else if !(matches!(signal, SIGINT | SIGQUIT) && in_foreground()) {
                send(pid, signal);
            }
        }
    });
    let status = child.wait();
    handle.close();
    let _ = forward.join();
    let status = status?;
    Ok(match status.signal() {
        Some(signal) => Ended { how: EndedHow::Signalled, signal: Some(signal), ..Ended::default() },
        None => Ended { how: EndedHow::Exited, code: status.code(), ..Ended::default() },
    })
}

/// A key pressed in the terminal has reached the command already: both are in its foreground.
#[cfg(unix)]
fn in_foreground() -> bool {
    rustix::termios::tcgetpgrp(io::stdin()).is_ok_and(|group| group == rustix::process::getpgrp())
}

#[cfg(unix)]
fn send(pid: u32, signal: i32) {
    use rustix::process::{Pid, Signal, kill_process};
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
        // The command may have ended by now.
        let _ = kill_process(pid, signal);
    }
}
