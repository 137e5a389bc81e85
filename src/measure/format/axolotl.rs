//! axolotl's line `GPU memory usage after adapters: 25.701GB (+0.079GB cache, +1.045GB misc)`: allocated, what the
//! allocator keeps beyond that, and the rest of the process. GB is 2³⁰. Source: `axolotl/utils/bench.py`.

use crate::measure::format::text::{Cursor, Found, Line, LineReader, Units, squeeze};
use crate::measure::{FormatId, Measurement, ReadingName, Reported, Source};

/// See the module.
#[derive(Default)]
pub(super) struct Axolotl;

impl LineReader for Axolotl {
    fn line(&mut self, line: &Line<'_>, found: &mut Found) {
        let Some((_, said)) = line.text.split_once("memory usage ") else { return };
        let Some((label, figures)) = said.split_once(':') else { return };
        let mut squeezed = String::new();
        squeeze(figures, &mut squeezed);
        let mut cursor = Cursor::new(&squeezed);
        let Some(allocated) = cursor.size(Units::AnyBinary) else { return };
        let mut source = Source::new(FormatId::Axolotl);
        source.rank = line.rank;
        source.label = Some(label.chars().take(200).collect());
        let mut message = Measurement::of(source);
        message.readings.push(allocated.reading(ReadingName::Reported(Reported::Allocated)));
        if !cursor.eat("(") {
            return;
        }
        while cursor.eat("+") {
            let Some(size) = cursor.size(Units::AnyBinary) else { return };
            let name = if cursor.eat("cache") {
                Reported::Unallocated
            } else if cursor.eat("misc") {
                Reported::NonTorch
            } else {
                return;
            };
            message.readings.push(size.reading(ReadingName::Reported(name)));
            cursor.eat(",");
        }
        if cursor.eat(")") {
            found.push((line.number, message));
        }
    }

    fn finish(&mut self, _: &mut Found) {}
}
