//! `vram-budget completions` and `vram-budget man`: what a shell and `man` read, made of the arguments themselves.

use std::io::{self, Write};
use std::process::ExitCode;

/// Which shell.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: clap_complete::Shell,
}

/// Prints the script that completes the arguments.
pub(crate) fn completions(args: &Args, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    let mut out = Vec::new();
    clap_complete::generate(args.shell, &mut command, "vram-budget", &mut out);
    io::stdout().lock().write_all(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the manual page: the command's, then each subcommand's.
pub(crate) fn man(mut command: clap::Command) -> anyhow::Result<ExitCode> {
    command.build();
    let mut out = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut out)?;
    for one in command.get_subcommands().filter(|one| one.get_name() != "help") {
        let page = clap_mangen::Man::new(one.clone());
        page.render_synopsis_section(&mut out)?;
        page.render_description_section(&mut out)?;
        page.render_options_section(&mut out)?;
    }
    io::stdout().lock().write_all(&out)?;
    Ok(ExitCode::SUCCESS)
}
