//! DeepSpeed's `see_memory_usage`: a line with a label, a line with four figures, a line about the host. It writes GB
//! for 2³⁰ bytes, and the highest reserved as a whole number. Source: `deepspeed/runtime/utils.py`.

use crate::measure::format::text::{Cursor, Found, Line, LineReader, Units, squeeze};
use crate::measure::{FormatId, Measurement, ReadingName, Reported, Source};

/// See the module.
#[derive(Default)]
pub(super) struct DeepSpeed {
    /// The last label, with its line.
    label: Option<(u64, String)>,
}

impl LineReader for DeepSpeed {
    fn line(&mut self, line: &Line<'_>, found: &mut Found) {
        // Cheap first: few lines of a log are of this kind.
        if let Some((_, said)) = line.text.split_once("see_memory_usage]")
            && !said.contains("CPU Virtual Memory")
            && !said.contains("Max_MA")
        {
            self.label = Some((line.number, said.trim().chars().take(200).collect()));
            return;
        }
        if let Some((_, figures)) = line.text.split_once("MA ").filter(|_| line.text.contains("Max_CA")) {
            let mut squeezed = String::from("MA");
            squeeze(figures, &mut squeezed);
            let mut cursor = Cursor::new(&squeezed);
            let mut source = Source::new(FormatId::Deepspeed);
            source.rank = line.rank;
            let (number, label) = self.label.take().map_or((line.number, None), |(at, label)| (at, Some(label)));
            source.label = label.filter(|label| !label.is_empty());
            let mut message = Measurement::of(source);
            let fields = [
                ("MA", ReadingName::Reported(Reported::Allocated)),
                ("Max_MA", ReadingName::MaxAllocated),
                ("CA", ReadingName::Reported(Reported::Reserved)),
                ("Max_CA", ReadingName::MaxReserved),
            ];
            for (label, name) in fields {
                if !cursor.eat(label) {
                    return;
                }
                let Some(size) = cursor.size(Units::AnyBinary) else { return };
                message.readings.push(size.reading(name));
            }
            found.push((number, message));
        } else if let Some((_, used)) = line.text.split_once("CPU Virtual Memory:  used = ")
            && let Some((_, last)) = found.last_mut()
            && last
                .source
                .as_ref()
                .is_some_and(|source| source.format == FormatId::Deepspeed && source.rank == line.rank)
            && !last.readings.iter().any(|reading| reading.name == ReadingName::Reported(Reported::HostUsed))
        {
            let mut squeezed = String::new();
            squeeze(used, &mut squeezed);
            let size = Cursor::new(&squeezed).size(Units::AnyBinary);
            last.readings.extend(size.map(|size| size.reading(ReadingName::Reported(Reported::HostUsed))));
        }
    }

    fn finish(&mut self, _: &mut Found) {}
}
