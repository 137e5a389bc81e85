//! Scalars by step as a TensorBoard event file: records with their length and masked CRC-32C, in each a protocol buffer
//! `Event` (`tensorboard/compat/proto/event.proto`, `summary.proto`).

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use vram_budget::measure::masked_crc;

/// An event file that is being written.
pub(super) struct Events(File);

impl Events {
    /// Makes the directory and a file in it that TensorBoard finds.
    pub(super) fn create(directory: &Path, seconds: f64, host: &str, pid: u32) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let file = File::create(directory.join(format!("events.out.tfevents.{seconds:.0}.{host}.{pid}.0")))?;
        let mut events = Self(file);
        let mut version = seconds_field(seconds);
        bytes_field(&mut version, 3, b"brain.Event:2");
        events.record(&version)?;
        Ok(events)
    }

    /// Writes a step's scalars, by their tags.
    pub(super) fn step(&mut self, seconds: f64, step: u64, scalars: &[(&str, f64)]) -> io::Result<()> {
        let mut summary = Vec::new();
        for (tag, value) in scalars {
            let mut of = Vec::new();
            bytes_field(&mut of, 1, tag.as_bytes());
            of.push(2 << 3 | 5);
            #[expect(clippy::cast_possible_truncation, reason = "the format's floats are of 32 bits")]
            of.extend((*value as f32).to_le_bytes());
            bytes_field(&mut summary, 1, &of);
        }
        let mut event = seconds_field(seconds);
        event.push(2 << 3);
        varint(&mut event, step);
        bytes_field(&mut event, 5, &summary);
        self.record(&event)
    }

    /// One write a record, so that a reader never meets half of one for long.
    fn record(&mut self, data: &[u8]) -> io::Result<()> {
        let length = (data.len() as u64).to_le_bytes();
        let mut out = length.to_vec();
        out.extend(masked_crc(&length).to_le_bytes());
        out.extend(data);
        out.extend(masked_crc(data).to_le_bytes());
        self.0.write_all(&out)
    }
}

fn seconds_field(seconds: f64) -> Vec<u8> {
    let mut out = vec![1 << 3 | 1];
    out.extend(seconds.to_le_bytes());
    out
}

fn bytes_field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push(number << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend(bytes);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        // The lowest seven bits, and whether more follow.
        out.push(if value == 0 { low } else { low | 0x80 });
        if value == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use vram_budget::measure::{Imported, Options, understand};

    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let folder = std::env::temp_dir().join(format!("vram-budget-events-{}", std::process::id()));
        let mut events = Events::create(&folder, 1.0, "machine", 7).unwrap();
        for step in 1..=300 {
            let gib = if step == 200 { 3.5 } else { 2.25 };
            events.step(2.0, step, &[("memory/max_allocated (GiB)", gib)]).unwrap();
        }
        let path = folder.join("events.out.tfevents.1.machine.7.0");
        let found = understand(&std::fs::read(&path).unwrap(), &Options::default()).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let [Imported::Measurement { measurement, .. }] = found.as_slice() else { panic!("{found:?}") };
        let points = &measurement.series[0].points;
        assert_eq!((points.len(), points[199]), (300, [200, 3_758_096_384]));
    }
}
