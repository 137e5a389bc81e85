//! Finds error messages in a log of any length, with bounded memory: the last one of each process.
//!
//! Consoles wrap messages in the middle of a word, launchers put marks in front of each line, several processes write
//! at the same time. So the text of each process is looked at on its own and without any white space.

use crate::bill::Instant;
use crate::measure::format::text::{Found, Line, LineReader, floor, squeeze};
use crate::measure::format::{async_oom, cuda_error, host, library, mps, nccl, oom, recompute, tensorflow, vllm, xla};
use crate::measure::{FormatId, Measurement, Reading};

/// A kind of message.
pub(super) struct Kind {
    pub(super) id: FormatId,
    /// What the message has, without white space, where reading begins.
    pub(super) marks: &'static [&'static str],
    /// Reads the message whose mark stands at a place of the text: what it says, and where it ends.
    pub(super) read: fn(&str, usize) -> Option<(Measurement, usize)>,
}

/// Every kind, the more particular first.
const KINDS: [Kind; 11] = [
    async_oom::KIND,
    mps::KIND,
    oom::KIND,
    nccl::KIND,
    xla::KIND,
    tensorflow::KIND,
    vllm::KIND,
    library::KIND,
    cuda_error::KIND,
    host::KIND,
    recompute::KIND,
];

/// What opens a message: one of these stands in or before every text that [`KINDS`] read.
const OPENERS: [&str; 13] = [
    "utofmemory",
    "utOfMemory",
    "OUT_OF_MEMORY",
    "RESOURCE_EXHAUSTED",
    "_STATUS_ALLOC_FAILED",
    "_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "OOMwhenallocating",
    "withOOMondevice",
    "Triedtoallocate",
    "Stats:Limit:",
    "total_gpu_memory",
    "Freememoryondevice",
];
const MORE_OPENERS: [&str; 15] = [
    "Noavailablememoryforthecacheblocks",
    "Failedtoallocaterequestfor",
    "failedtoallocatememory[Op:",
    "Toserveatleastonerequestwiththemodel",
    "tokensthatcanbestoredinKVcache(",
    "Modelloadingtook",
    "AvailableKVcachememory:",
    "preemptivelyrejected",
    "can'tallocatememory",
    "notenoughmemory",
    "iskilledbysignal",
    "exitcode:-9",
    "Signal9(SIGKILL)",
    "havedifferentmetadata",
    "Adifferentnumberoftensors",
];

/// What a line of a traceback says about where it goes through: the innermost that is known counts. Layers that checkpointing
/// runs again belong to the backward that they are run in.
const FRAMES: [(&str, Instant); 6] = [
    ("/torch/autograd/", Instant::Backward),
    (".backward(", Instant::Backward),
    ("/torch/optim/", Instant::Step),
    ("/bitsandbytes/optim/", Instant::Step),
    ("optimizer.step(", Instant::Step),
    ("/torch/nn/modules/module.py", Instant::Forward),
];

/// The longest message with what belongs to it.
const LONGEST: usize = 16 << 10;
/// The most lines of one.
const MOST_LINES: u32 = 200;
/// The narrowest console that wraps.
const CONSOLE: usize = 79;
/// What is looked at in front of an opener: the device's name, the file of the warning.
const BEFORE: usize = 200;
/// The most processes that are told apart.
const MOST_PROCESSES: usize = 4096;

/// The text of one process that is being looked at.
struct Stream {
    process: String,
    rank: Option<u32>,
    /// White space left out. Without an open message: the end of what was read.
    text: String,
    /// Where the open message starts: its line, and how many lines it has.
    open: Option<(u64, u32)>,
    /// Where the last traceback goes through.
    at: Option<Instant>,
}

/// What messages belong together: the kind, the launcher's mark, and the GPU where there is no mark.
#[derive(PartialEq)]
struct Key(FormatId, String, Option<u32>);

/// See the module.
#[derive(Default)]
pub(super) struct Messages {
    streams: Vec<Stream>,
    last: usize,
    /// How long the line before was.
    before: usize,
    /// The last message of each process and kind, with its line.
    messages: Vec<(u64, Key, Measurement)>,
}

impl Stream {
    /// Follows a traceback, until a message has begun.
    fn frame(&mut self, line: &str) {
        if self.open.is_some() {
            return;
        }
        if line.starts_with("Traceback (most recent call last)") {
            self.at = None;
        }
        let frame = FRAMES.iter().find(|(mark, _)| line.contains(mark));
        if let Some((_, at)) = frame.filter(|_| self.at != Some(Instant::Backward)) {
            self.at = Some(*at);
        }
    }
}

impl LineReader for Messages {
    fn line(&mut self, line: &Line<'_>, _: &mut Found) {
        let at = self.stream(line);
        self.before = line.text.len();
        let stream = &mut self.streams[at];
        let seen = stream.text.len();
        stream.frame(line.rest);
        squeeze(line.rest, &mut stream.text);
        if stream.open.is_none() {
            let from = floor(&stream.text, seen.saturating_sub(40));
            if opens(&stream.text[from..]) {
                stream.open = Some((line.number, 0));
            } else if stream.text.len() > BEFORE {
                let cut = floor(&stream.text, stream.text.len() - BEFORE);
                stream.text.drain(..cut);
            }
        }
        let Some((first, lines)) = &mut stream.open else { return };
        *lines += 1;
        if stream.text.len() > LONGEST || *lines > MOST_LINES {
            let first = *first;
            let mut text = core::mem::take(&mut stream.text);
            // A message that begins near the end goes on in the next lines.
            let tail = floor(&text, text.len().saturating_sub(LONGEST / 4));
            let goes_on = OPENERS.iter().filter_map(|opener| text[tail..].find(opener)).min();
            let rest =
                text.split_off(goes_on.map_or(text.len(), |at| floor(&text, (tail + at).saturating_sub(BEFORE))));
            stream.open = goes_on.map(|_| (line.number, 0));
            stream.text = rest;
            let (process, rank, phase) = (stream.process.clone(), stream.rank, stream.at);
            self.read(&text, first, &process, rank, phase);
        }
    }

    fn finish(&mut self, found: &mut Found) {
        for stream in core::mem::take(&mut self.streams) {
            if let Some((first, _)) = stream.open {
                self.read(&stream.text, first, &stream.process, stream.rank, stream.at);
            }
        }
        found.extend(core::mem::take(&mut self.messages).into_iter().map(|(line, _, message)| (line, message)));
    }
}

fn opens(text: &str) -> bool {
    OPENERS.iter().chain(&MORE_OPENERS).any(|opener| text.contains(opener))
}

impl Messages {
    /// The stream of the line's process.
    fn stream(&mut self, line: &Line<'_>) -> usize {
        // Launchers differ in how they write a rank, and most lines come from the process that wrote the line before.
        let unmarked = line.rank.is_none() && line.process.is_empty();
        // A console wrapped the message of a marked line: what follows has no mark.
        if unmarked && self.before >= CONSOLE && self.streams.get(self.last).is_some_and(|stream| stream.open.is_some())
        {
            return self.last;
        }
        let is = |stream: &Stream| stream.rank == line.rank && (line.rank.is_some() || stream.process == line.process);
        if !self.streams.get(self.last).is_some_and(is) {
            self.last = match self.streams.iter().position(is) {
                Some(at) => at,
                None if self.streams.len() < MOST_PROCESSES => {
                    let process = line.rank.map_or_else(|| line.process.to_owned(), |rank| format!("rank {rank}"));
                    self.streams.push(Stream { process, rank: line.rank, text: String::new(), open: None, at: None });
                    self.streams.len() - 1
                }
                None => 0,
            };
        }
        self.last
    }

    /// Reads every message of `text`.
    fn read(&mut self, text: &str, line: u64, process: &str, rank: Option<u32>, phase: Option<Instant>) {
        // Every mark once, in the order of the text; of those at one place the first kind.
        let mut marks: Vec<(usize, usize, usize)> = Vec::new();
        for (kind, Kind { marks: of_kind, .. }) in KINDS.iter().enumerate() {
            for mark in *of_kind {
                marks.extend(text.match_indices(mark).map(|(at, mark)| (at, kind, mark.len())));
            }
        }
        marks.sort_unstable();
        let mut from = 0;
        for (at, kind, len) in marks {
            if at < from {
                continue;
            }
            match (KINDS[kind].read)(text, at) {
                Some((mut message, end)) => {
                    if let Some(failure) = &mut message.failure {
                        failure.at = phase;
                    }
                    from = end.max(at + len);
                    self.keep(message, KINDS[kind].id, line, process, rank);
                }
                // Another kind may know the same place.
                None => from = at,
            }
        }
    }

    /// Keeps the last message of each process and kind: where no launcher marks the lines, of each GPU.
    fn keep(&mut self, mut message: Measurement, kind: FormatId, line: u64, process: &str, rank: Option<u32>) {
        let Some(source) = &mut message.source else { return };
        source.rank = rank;
        let key = Key(kind, process.to_owned(), source.device.filter(|_| process.is_empty()));
        // A part of a message need not name the GPU again.
        let part = has_parts(kind) && key.2.is_none();
        let same = |known: &Key| *known == key || (part && known.0 == kind && known.1 == process);
        match self.messages.iter().rposition(|(_, known, _)| same(known)) {
            Some(at) => {
                self.messages[at].0 = line;
                self.messages[at].2 = merge(&self.messages[at].2, message, kind);
            }
            None if self.messages.len() < MOST_PROCESSES => self.messages.push((line, key, message)),
            None => {}
        }
    }
}

/// Whether one failure of this kind, or one profile, is written in several messages.
const fn has_parts(kind: FormatId) -> bool {
    matches!(kind, FormatId::NcclOom | FormatId::TensorflowOom | FormatId::Vllm | FormatId::XlaOom)
}

/// The message that is kept of two of one process: the later, or both where they are parts of one.
fn merge(known: &Measurement, new: Measurement, kind: FormatId) -> Measurement {
    let of_known = |new: &Reading| known.readings.iter().find(|known| known.name == new.name);
    // Another figure of the same name: another failure.
    let again = new.readings.iter().any(|new| of_known(new).is_some_and(|known| known.figure != new.figure));
    if !has_parts(kind) || again {
        return if new.readings.is_empty() && !known.readings.is_empty() { known.clone() } else { new };
    }
    let mut merged = known.clone();
    merged.readings.extend(new.readings.into_iter().filter(|new| of_known(new).is_none()));
    merged.counts.extend(new.counts);
    if merged.buffers.is_empty() {
        merged.buffers = new.buffers;
    }
    merged
}
