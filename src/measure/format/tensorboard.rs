//! TensorBoard's event files: records with their length and checksums, in each a protocol buffer of which a handful of
//! fields is read by hand. Sources: `tensorboard/compat/proto/{event,summary,tensor}.proto`, TensorFlow's
//! `core/lib/io/record_writer.h`.

use crate::measure::format::series::{SeriesSet, meaning};
use crate::measure::{FormatId, ImportError, Measurement, Unit};

/// The longest record that is kept; longer ones (pictures, graphs) are passed over.
const LONGEST: u64 = 4 << 20;
/// Length and its checksum.
const HEADER: usize = 12;

/// Reads an event file as it comes.
pub(super) struct Events {
    set: SeriesSet,
    buffer: Vec<u8>,
    /// Bytes of a record that is passed over.
    skip: u64,
    record: u64,
    error: Option<ImportError>,
}

/// Whether a file that begins with these bytes is one: the checksum of its first length says so.
pub(super) fn recognises(head: &[u8]) -> bool {
    header(head).is_some_and(|(_, valid)| valid)
}

/// The length of the record that begins here, and whether its checksum is right.
fn header(bytes: &[u8]) -> Option<(u64, bool)> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let (sum, _) = rest.split_first_chunk::<4>()?;
    Some((u64::from_le_bytes(*length), u32::from_le_bytes(*sum) == masked_crc(length)))
}

impl Events {
    pub(super) const fn new(asked: Option<Unit>) -> Self {
        Self { set: SeriesSet::new(asked), buffer: Vec::new(), skip: 0, record: 0, error: None }
    }

    /// Takes the next bytes of the file.
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.error.is_none() {
            if self.skip > 0 {
                let passed = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
                self.skip -= passed as u64;
                bytes = &bytes[passed..];
                continue;
            }
            // Never more than one record and its frame is kept.
            let wanted = match header(&self.buffer) {
                None => HEADER,
                Some((_, false)) => {
                    self.error = Some(malformed(self.record, "its length has a wrong checksum"));
                    return;
                }
                Some((length, true)) if length > LONGEST => {
                    self.skip = length.saturating_add(4);
                    self.buffer.clear();
                    self.record += 1;
                    continue;
                }
                // At most `LONGEST`.
                Some((length, true)) => HEADER + usize::try_from(length).unwrap_or(0) + 4,
            };
            let missing = wanted.saturating_sub(self.buffer.len()).min(bytes.len());
            self.buffer.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            if wanted > HEADER && self.buffer.len() == wanted {
                self.take();
            }
        }
    }

    fn take(&mut self) {
        let buffer = core::mem::take(&mut self.buffer);
        let (data, sum) = buffer[HEADER..].split_at(buffer.len() - HEADER - 4);
        if sum != masked_crc(data).to_le_bytes() {
            self.error = Some(malformed(self.record, "its data has a wrong checksum"));
        } else if self.event(data).is_none() {
            self.error = Some(malformed(self.record, "it is no event"));
        }
        self.record += 1;
    }

    /// Takes an event: its step and its summary. `None` where it is no protocol buffer.
    fn event(&mut self, data: &[u8]) -> Option<()> {
        let (mut step, mut summary): (i64, &[u8]) = (0, &[]);
        let mut fields = Fields(data);
        while let Some((number, field)) = fields.next()? {
            match (number, field) {
                // A negative step is written as a large one.
                (2, Field::Varint(at)) => step = i64::try_from(at).unwrap_or(-1),
                (5, Field::Bytes(bytes)) => summary = bytes,
                _ => {}
            }
        }
        let mut fields = Fields(summary);
        while let Some((number, field)) = fields.next()? {
            if let (1, Field::Bytes(value)) = (number, field) {
                self.value(value, step)?;
            }
        }
        Some(())
    }

    fn value(&mut self, data: &[u8], step: i64) -> Option<()> {
        let (mut tag, mut value) = ("", None);
        let mut fields = Fields(data);
        while let Some((number, field)) = fields.next()? {
            match (number, field) {
                (1, Field::Bytes(bytes)) => tag = core::str::from_utf8(bytes).ok()?,
                (2, Field::Fixed32(bits)) => value = Some(Scalar::Single(f32::from_bits(bits))),
                (8, Field::Bytes(tensor)) => value = scalar(tensor)?,
                _ => {}
            }
        }
        let (Some(value), Some(meaning)) = (value, meaning(tag)) else { return Some(()) };
        let (written, within) = value.written()?;
        self.set.add_within(tag, meaning, step, &written, within);
        Some(())
    }

    /// The file has ended. A record that is cut off is one that is being written.
    pub(super) fn finish(self) -> Result<Option<Measurement>, ImportError> {
        let unclear = self.set.unclear;
        match (self.error, self.set.measurement(FormatId::Tensorboard, None)) {
            (Some(error), _) => Err(error),
            (None, None) if unclear => Err(ImportError::Malformed {
                line: 1,
                column: 0,
                message: "its figures of memory name no unit: say which".into(),
            }),
            (None, measurement) => Ok(measurement),
        }
    }
}

fn malformed(record: u64, what: &str) -> ImportError {
    // A file of records has no lines: they are counted instead.
    ImportError::Malformed { line: record + 1, column: 0, message: format!("record {}: {what}", record + 1) }
}

#[derive(Clone, Copy)]
enum Scalar {
    Single(f32),
    Double(f64),
}

impl Scalar {
    /// The number as text, and how many bytes a float of this size may be off where it counts bytes.
    fn written(self) -> Option<(String, i64)> {
        let (wide, text, bits) = match self {
            Self::Single(value) => (f64::from(value), value.to_string(), 24),
            Self::Double(value) => (value, value.to_string(), 53),
        };
        if !wide.is_finite() || !(0.0..9e15).contains(&wide) {
            return Some((String::new(), 0));
        }
        #[expect(clippy::cast_possible_truncation, reason = "below 2⁵³, checked above")]
        let whole = wide as i64;
        let within = (whole >> bits) / 2 + i64::from(whole >> bits > 0);
        Some((if wide.fract() == 0.0 { whole.to_string() } else { text }, within))
    }
}

/// The number in a tensor of one.
fn scalar(tensor: &[u8]) -> Option<Option<Scalar>> {
    let (mut kind, mut value) = (0, None);
    let mut content: &[u8] = &[];
    let mut fields = Fields(tensor);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (1, Field::Varint(of)) => kind = of,
            (4, Field::Bytes(bytes)) => content = bytes,
            (5, Field::Fixed32(bits)) => value = Some(Scalar::Single(f32::from_bits(bits))),
            (5, Field::Bytes(packed)) => {
                value = packed.first_chunk().map(|bits| Scalar::Single(f32::from_bits(u32::from_le_bytes(*bits))));
            }
            (6, Field::Fixed64(bits)) => value = Some(Scalar::Double(f64::from_bits(bits))),
            (6, Field::Bytes(packed)) => {
                value = packed.first_chunk().map(|bits| Scalar::Double(f64::from_bits(u64::from_le_bytes(*bits))));
            }
            _ => {}
        }
    }
    // DT_FLOAT and DT_DOUBLE as they lie in memory.
    Some(value.or_else(|| match (kind, content.len()) {
        (1, 4) => content.first_chunk().map(|bits| Scalar::Single(f32::from_bits(u32::from_le_bytes(*bits)))),
        (2, 8) => content.first_chunk().map(|bits| Scalar::Double(f64::from_bits(u64::from_le_bytes(*bits)))),
        _ => None,
    }))
}

/// The fields of a protocol buffer, one after another.
struct Fields<'a>(&'a [u8]);

enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

impl<'a> Fields<'a> {
    /// The next field and its number; `Some(None)` at the end, `None` where the bytes are none.
    fn next(&mut self) -> Option<Option<(u64, Field<'a>)>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Varint(self.varint()?),
            1 => {
                let (bits, rest) = self.0.split_first_chunk::<8>()?;
                self.0 = rest;
                Field::Fixed64(u64::from_le_bytes(*bits))
            }
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                Field::Bytes(bytes)
            }
            5 => {
                let (bits, rest) = self.0.split_first_chunk::<4>()?;
                self.0 = rest;
                Field::Fixed32(u32::from_le_bytes(*bits))
            }
            _ => return None,
        };
        Some(Some((key >> 3, field)))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

/// CRC-32C, turned as TensorFlow's records have it.
#[must_use]
pub fn masked_crc(bytes: &[u8]) -> u32 {
    let crc = !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    });
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}
