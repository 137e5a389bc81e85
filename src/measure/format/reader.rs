//! The one entry to everything that is read: bytes in, measurements out, recognised by content alone.

use crate::measure::format::amd_smi::AmdSmi;
use crate::measure::format::axolotl::Axolotl;
use crate::measure::format::csv::Csv;
use crate::measure::format::deepspeed::DeepSpeed;
use crate::measure::format::literal::Literal;
use crate::measure::format::memory_summary::MemorySummary;
use crate::measure::format::messages::Messages;
use crate::measure::format::rocm_smi::RocmSmi;
use crate::measure::format::series_lines::SeriesLines;
use crate::measure::format::smi_q::SmiQ;
use crate::measure::format::smi_table::SmiTable;
use crate::measure::format::tensorboard::{self, Events};
use crate::measure::format::text::{Found, Line, LineReader, without_colours, without_prefixes};
use crate::measure::format::tracker::{self, Figures, Tracker};
use crate::measure::format::{
    EXPECTED, FormatId, Imported, MAX_TEXT, amd_smi, document, jax_stats, memory_stats, rocm_smi, script, smi_xml,
    snapshot, trainer_state,
};
use crate::measure::{ImportError, Measurement, Unit};

/// The longest line that is looked at in one piece; a longer one is looked at in several.
const LONGEST_LINE: usize = 1 << 20;
/// The most measurements of one text: of a log that repeats a table, the last ones.
const MOST: usize = 1024;

/// What a text leaves open.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The unit of figures that name none.
    pub unit: Option<Unit>,
    /// The fields of `nvidia-smi --query-gpu=…` whose output has no header, joined by commas.
    pub columns: Option<String>,
}

/// Reads whatever `bytes` are: one text may hold several measurements.
///
/// # Errors
/// [`ImportError`]: what was expected, and where the text departs from it.
pub fn understand(bytes: &[u8], options: &Options) -> Result<Vec<Imported>, ImportError> {
    let mut reader = Reader::new(options);
    reader.push(bytes);
    reader.finish()
}

/// [`understand`] for a file that comes in pieces. However long it is, it takes a bounded amount of memory: up to
/// [`MAX_TEXT`] bytes are kept, since a document is read whole; past that it is a log, read line by line.
pub struct Reader {
    options: Options,
    state: State,
}

enum State {
    /// Kept until it is known what it is.
    Whole(Vec<u8>),
    Lines(Box<Lines>),
    Events(Box<Events>),
}

impl core::fmt::Debug for Reader {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Reader")
    }
}

impl Reader {
    /// A reader that has seen nothing yet.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        Self { options: options.clone(), state: State::Whole(Vec::new()) }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        match &mut self.state {
            State::Events(events) => events.push(bytes),
            State::Lines(lines) => lines.push(bytes),
            State::Whole(whole) => {
                whole.extend_from_slice(bytes);
                if whole.len() >= 12 && tensorboard::recognises(whole) {
                    let mut events = Events::new(self.options.unit);
                    events.push(whole);
                    self.state = State::Events(Box::new(events));
                } else if whole.len() > MAX_TEXT {
                    let mut lines = Lines::new(&self.options);
                    lines.push(whole);
                    self.state = State::Lines(Box::new(lines));
                }
            }
        }
    }

    /// The bytes have ended.
    ///
    /// # Errors
    /// As for [`understand`].
    pub fn finish(self) -> Result<Vec<Imported>, ImportError> {
        match self.state {
            State::Events(events) => match events.finish()? {
                Some(measurement) => Ok(vec![imported(measurement)]),
                None => Err(ImportError::NotThisFormat {
                    expected: vec!["an event file of TensorBoard with figures of memory".into()],
                }),
            },
            State::Lines(lines) => lines.finish(),
            State::Whole(whole) => {
                if let Some(what) = snapshot::named(&whole) {
                    return Err(ImportError::NotRead { what: what.into() });
                }
                let text = decoded(&whole);
                match of_document(&text, &self.options) {
                    Some(Ok(found)) => Ok(found),
                    // What looks like a document and is none may still be a log.
                    other => {
                        let mut lines = Lines::new(&self.options);
                        lines.push(text.as_bytes());
                        lines.finish().map_err(|error| match other {
                            Some(Err(document)) => document,
                            _ if has_no_header(&text) => ImportError::Malformed {
                                line: 1,
                                column: 0,
                                message: "rows of nvidia-smi without a header: say which fields they are".into(),
                            },
                            _ => error,
                        })
                    }
                }
            }
        }
    }
}

fn imported(measurement: Measurement) -> Imported {
    let format = measurement.source.as_ref().map_or(FormatId::Document, |source| source.format);
    Imported::Measurement { format, measurement: Box::new(measurement) }
}

/// The text of a file: UTF-8, or UTF-16 as PowerShell writes it. What is neither becomes U+FFFD.
#[must_use]
pub fn decoded(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    let wide = |decode: fn([u8; 2]) -> u16| {
        let units = bytes[2..].chunks_exact(2).map(|pair| decode([pair[0], pair[1]]));
        char::decode_utf16(units).map(|c| c.unwrap_or('\u{fffd}')).collect::<String>().into()
    };
    match bytes {
        [0xff, 0xfe, ..] => wide(u16::from_le_bytes),
        [0xfe, 0xff, ..] => wide(u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => String::from_utf8_lossy(rest),
        _ => String::from_utf8_lossy(bytes),
    }
}

/// Whether the text is rows of `nvidia-smi --query-gpu --format=csv,noheader`, by what only that tool prints.
fn has_no_header(text: &str) -> bool {
    let marks = [" MiB,", "[N/A]", "[Not Supported]"];
    text.lines().next().is_some_and(|line| line.contains(',') && marks.iter().any(|mark| line.contains(mark)))
}

/// Reads a text that is one document; `None` where it is none that is known.
fn of_document(text: &str, options: &Options) -> Option<Result<Vec<Imported>, ImportError>> {
    let start = text.trim_start();
    if smi_xml::recognises(text) && start.starts_with('<') {
        return Some(smi_xml::read(text).map(|log| vec![imported(log)]));
    }
    // A prompt in front of what Python printed.
    let start = match start.strip_prefix(">>> ") {
        Some(rest) => rest.split_once('\n')?.1.trim_start(),
        None => start,
    };
    if !(start.starts_with(['{', '[']) || start.starts_with("OrderedDict(")) {
        return None;
    }
    // Our own documents first: their reader says more when something is wrong.
    for format in [document::FORMAT, script::FORMAT] {
        if (format.recognises)(start) {
            let mut found = Vec::new();
            for text in documents(start) {
                match format.imported(text, options.unit) {
                    Ok(one) => found.push(one),
                    Err(error) => return Some(Err(error)),
                }
            }
            return Some(Ok(found));
        }
    }
    let value = match Literal::read(start.trim_end()) {
        Ok(value) => value,
        // JSON lines are no document.
        Err(error) => return of_damaged(start, error).map(Err),
    };
    if let Some(what) = snapshot::named_json(&value) {
        return Some(Err(ImportError::NotRead { what: what.into() }));
    }
    let devices = jax_stats::devices(&value);
    if !devices.is_empty() {
        let read = devices.into_iter().map(|(device, value)| jax_stats::read(value, device).map(imported));
        return Some(read.collect());
    }
    let mut memory = Figures::default();
    memory.dictionary(&value);
    if let Some(measurement) = tracker::measurement(&memory, None) {
        return Some(Ok(vec![imported(measurement)]));
    }
    let read = if memory_stats::recognises(&value) {
        memory_stats::read(&value)
    } else if trainer_state::recognises(&value) {
        trainer_state::read(&value, options.unit)
    } else if rocm_smi::recognises(&value) {
        Ok(rocm_smi::read(&value))
    } else if amd_smi::recognises(&value) {
        Ok(amd_smi::read(&value))
    } else {
        return None;
    };
    Some(read.map(|measurement| vec![imported(measurement)]))
}

/// The error of a document that has the marks of a known one and does not parse.
fn of_damaged(text: &str, error: ImportError) -> Option<ImportError> {
    let known =
        ["allocated_bytes.all.current", "peak_bytes_in_use", "\"log_history\"", rocm_smi::TOTAL, "\"total_vram\""];
    let lines = text.lines().nth(1).is_some_and(|line| line.starts_with('{'));
    (!lines && known.iter().any(|mark| text.contains(mark))).then_some(error)
}

/// The documents of a text: one over several lines, or one a line.
fn documents(text: &str) -> Vec<&str> {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    if lines().all(|line| line.starts_with('{') && line.ends_with('}')) { lines().collect() } else { vec![text] }
}

/// Every reader of lines, side by side.
struct Lines {
    readers: Vec<Box<dyn LineReader>>,
    found: Found,
    rest: Vec<u8>,
    number: u64,
}

impl Lines {
    fn new(options: &Options) -> Self {
        Self {
            readers: vec![
                Box::<Messages>::default(),
                Box::<DeepSpeed>::default(),
                Box::<Axolotl>::default(),
                Box::<SmiTable>::default(),
                Box::<SmiQ>::default(),
                Box::<RocmSmi>::default(),
                Box::<AmdSmi>::default(),
                Box::<MemorySummary>::default(),
                Box::<Tracker>::default(),
                Box::new(Csv::new(options.unit, options.columns.as_deref())),
                Box::new(SeriesLines::new(options.unit)),
            ],
            found: Vec::new(),
            rest: Vec::new(),
            number: 0,
        }
    }

    fn push(&mut self, mut bytes: &[u8]) {
        // A progress bar returns to the start of its line.
        while let Some(at) = bytes.iter().position(|b| matches!(b, b'\n' | b'\r')) {
            let (line, after) = bytes.split_at(at);
            self.take(line);
            // The number counts what an editor counts.
            self.number += u64::from(after[0] == b'\n');
            bytes = &after[1..];
        }
        self.rest.extend_from_slice(bytes);
        if self.rest.len() > LONGEST_LINE {
            self.take(&[]);
        }
    }

    /// Takes what is left over and `line` as one line.
    fn take(&mut self, line: &[u8]) {
        let mut rest = core::mem::take(&mut self.rest);
        let whole = if rest.is_empty() {
            line
        } else {
            rest.extend_from_slice(line);
            &rest
        };
        for piece in whole.chunks(LONGEST_LINE) {
            let text = String::from_utf8_lossy(piece);
            let text = without_colours(&text);
            // As a mail or a thread quotes it.
            let mut text = &*text;
            while let Some(quoted) = text.strip_prefix("> ") {
                text = quoted;
            }
            let (rank, process, rest) = without_prefixes(text);
            let line = Line { number: self.number + 1, text, rest, rank, process };
            for reader in &mut self.readers {
                reader.line(&line, &mut self.found);
            }
        }
        if self.found.len() > 2 * MOST {
            self.found.drain(..self.found.len() - MOST);
        }
        rest.clear();
        self.rest = rest;
    }

    fn finish(mut self) -> Result<Vec<Imported>, ImportError> {
        if !self.rest.is_empty() {
            self.take(&[]);
        }
        for mut reader in self.readers {
            reader.finish(&mut self.found);
        }
        if self.found.is_empty() {
            return Err(ImportError::NotThisFormat { expected: EXPECTED.map(str::to_owned).to_vec() });
        }
        self.found.sort_by_key(|(line, _)| *line);
        let skip = self.found.len().saturating_sub(MOST);
        Ok(self.found.into_iter().skip(skip).map(|(_, measurement)| imported(measurement)).collect())
    }
}
