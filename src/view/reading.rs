//! A file that is read in pieces, away from the page: recognised by its content, and what was found in it.

use serde::{Deserialize, Serialize};

use crate::measure::{self, ImportError, Imported, Measurement, Options};
use crate::snapshot;
use crate::text::Locale;
use crate::view::compare::CompareTable;
use crate::view::lengths::LengthsTable;
use crate::view::ranks::RankTable;
use crate::view::recording::Recording;
use crate::view::search::SearchTable;

/// The longest text that is taken from the clipboard: 32 MiB.
pub const MAX_CLIPBOARD: usize = measure::MAX_TEXT;
/// The longest file that is read: 2 GiB.
pub const MAX_FILE: u64 = 2 << 30;
/// The most memory that reading a recording takes: what a browser gives to a page.
const MOST_BYTES: usize = 2 << 30;
/// The longest recording as JSON, which is kept whole.
const MOST_JSON: usize = 512 << 20;
/// How much of a file's beginning tells that it is one.
const JSON_HEAD: usize = 1024;
/// The most measurements of one file that are kept: the last ones.
const MOST: usize = 200;

/// What a file is read for, as far as it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The file's name; `None`: a text.
    pub name: Option<String>,
    /// How many bytes have been read.
    pub read: u64,
    /// How many there are; `None`: not known before it is unpacked.
    pub total: Option<u64>,
}

/// What was found in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// Measurements, the last ones of a log that has very many.
    Measurements(Vec<Measurement>),
    /// A recording of the allocator.
    Recording(Box<Recording>),
    /// What became of a run over many lengths that was asked for.
    Lengths(Box<LengthsTable>),
    /// What a search that was asked for found.
    Search(Box<SearchTable>),
    /// What every rank holds, which was asked for.
    Ranks(Box<RankTable>),
    /// What became of a comparison that was asked for.
    Compared(Box<CompareTable>),
    /// It was not understood.
    Refused(ImportError),
}

/// A file that comes in pieces.
#[derive(Debug, Default)]
pub struct Incoming(Kind);

#[derive(Debug, Default)]
enum Kind {
    /// Nothing has come.
    #[default]
    Nothing,
    Recording(Box<snapshot::Reader>),
    /// A recording that was dumped as JSON: it is read once it is whole.
    Json(Vec<u8>),
    Text(Box<measure::Reader>),
    Broken(snapshot::SnapshotError),
}

/// Whether bytes that begin so are a recording of the allocator: a pickle, or the same as JSON.
#[must_use]
pub fn is_recording(head: &[u8]) -> bool {
    is_pickle(head) || is_json(head)
}

/// Protocol 2 or newer, or an older one of a dictionary or a list.
fn is_pickle(head: &[u8]) -> bool {
    matches!(head, [0x80, 2..=5, ..]) || [&b"(dp"[..], b"(lp", b"}q", b"]q"].iter().any(|mark| head.starts_with(mark))
}

/// By its first names: a snapshot's, or a segment's in the list that PyTorch 1 makes.
fn is_json(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(&head[..head.len().min(JSON_HEAD)]);
    let head = head.trim_start_matches('\u{feff}').trim_start();
    let first = |rest: &str, names: &[&str]| {
        let name = rest.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next());
        name.is_some_and(|name| names.contains(&name))
    };
    if let Some(rest) = head.strip_prefix('{') {
        return first(rest, &["segments", "device_traces", "allocator_settings", "external_annotations"]);
    }
    let segment = head.strip_prefix('[').and_then(|rest| rest.trim_start().strip_prefix('{'));
    segment.is_some_and(|rest| first(rest, &["device", "address", "total_size"]) && rest.contains("\"total_size\""))
}

impl Incoming {
    /// Takes the next bytes; the first ones tell what it is, so they should be four at least.
    pub fn push(&mut self, bytes: &[u8]) {
        if matches!(self.0, Kind::Nothing) {
            self.0 = if is_json(bytes) {
                Kind::Json(Vec::new())
            } else if is_pickle(bytes) {
                Kind::Recording(Box::new(snapshot::Reader::new(None, MOST_BYTES)))
            } else {
                Kind::Text(Box::new(measure::Reader::new(&Options::default())))
            };
        }
        match &mut self.0 {
            Kind::Text(reader) => reader.push(bytes),
            // What is past the limit tells that it is too long.
            Kind::Json(text) if text.len() > MOST_JSON => {}
            Kind::Json(text) => text.extend_from_slice(bytes),
            Kind::Recording(reader) => {
                if let Err(error) = reader.push(bytes) {
                    self.0 = Kind::Broken(error);
                }
            }
            Kind::Nothing | Kind::Broken(_) => {}
        }
    }

    /// The bytes have ended.
    #[must_use]
    pub fn finish(self, locale: Locale) -> Found {
        let refused = |error: &snapshot::SnapshotError| {
            Found::Refused(ImportError::NotRead {
                what: format!("a pickle that is no recording of the allocator: {error}"),
            })
        };
        match self.0 {
            Kind::Nothing => {
                Found::Refused(ImportError::NotThisFormat { expected: vec!["a file with something in it".into()] })
            }
            Kind::Broken(error) => refused(&error),
            Kind::Json(text) if text.len() > MOST_JSON => {
                Found::Refused(ImportError::TooLarge { bytes: text.len() as u64, limit: MOST_JSON as u64 })
            }
            Kind::Json(text) => match snapshot::read_json(measure::decoded(&text).trim_start_matches('\u{feff}')) {
                Ok(snapshot) => Found::Recording(Box::new(Recording::of(&snapshot, locale))),
                Err(error) => Found::Refused(ImportError::NotRead {
                    what: format!("JSON that begins as a recording of the allocator does and is none: {error}"),
                }),
            },
            Kind::Recording(reader) => match reader.finish() {
                Ok(snapshot) => Found::Recording(Box::new(Recording::of(&snapshot, locale))),
                Err(error) => refused(&error),
            },
            Kind::Text(reader) => match reader.finish() {
                Ok(found) => {
                    let all = found.into_iter().filter_map(|one| match one {
                        Imported::Measurement { measurement, .. } => Some(*measurement),
                        // Only a short text leaves its unit open.
                        Imported::WhichUnit { .. } => None,
                    });
                    let mut all: Vec<Measurement> = all.collect();
                    let skip = all.len().saturating_sub(MOST);
                    Found::Measurements(all.split_off(skip))
                }
                Err(error) => Found::Refused(error),
            },
        }
    }
}
