//! The machine's own memory ran out: PyTorch's allocator for the CPU, the kernel's killer, launchers that say which signal
//! ended a process.

use crate::measure::format::messages::Kind;
use crate::measure::{Failure, FailureKind, FormatId, Measurement, Source};

pub(super) const KIND: Kind = Kind {
    id: FormatId::HostOom,
    marks: &[
        // c10/core/impl/alloc_cpu.cpp: on Linux, and on Windows.
        "DefaultCPUAllocator:can'tallocatememory:",
        "DefaultCPUAllocator:notenoughmemory:",
        // mm/oom_kill.c
        "utofmemory:Killedprocess",
        // torch/utils/data/_utils/signal_handling.py
        "iskilledbysignal:Killed",
        // torch/distributed/elastic/multiprocessing/api.py
        "(exitcode:-9)",
        "exitcode:-9(pid:",
        "Signal9(SIGKILL)receivedbyPID",
    ],
    read,
};

/// How much was asked for is of the host's memory, which no tier here is.
fn read(_: &str, at: usize) -> Option<(Measurement, usize)> {
    let mut message = Measurement::of(Source::new(FormatId::HostOom));
    message.failure = Some(Failure::new(FailureKind::Host));
    Some((message, at + 1))
}
