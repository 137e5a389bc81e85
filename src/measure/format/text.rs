//! What every reader of pasted text needs: lines without the marks that consoles and launchers put on them, text
//! without white space, and sizes as the tools print them.

use crate::measure::{Figure, Reading, ReadingName, Reported, Scope};
use crate::units::{GIB, MAX_DOCUMENT_BYTES, MIB};

/// A line of a log.
pub(super) struct Line<'a> {
    /// Its number, from 1.
    pub(super) number: u64,
    /// Without terminal colours.
    pub(super) text: &'a str,
    /// What is left of it without the prefixes of launchers and loggers.
    pub(super) rest: &'a str,
    /// The rank that a launcher put in front.
    pub(super) rank: Option<u32>,
    /// The launcher's mark by which lines of one process belong together.
    pub(super) process: &'a str,
}

/// What reads a text line by line.
pub(super) trait LineReader {
    /// Takes the next line; what is understood goes to `found` with the number of its first line.
    fn line(&mut self, line: &Line<'_>, found: &mut Found);
    /// The text has ended.
    fn finish(&mut self, found: &mut Found);
}

/// What was understood, with the line where it starts.
pub(super) type Found = Vec<(u64, crate::measure::Measurement)>;

/// Without the control sequences that set colours and move the cursor.
pub(super) fn without_colours(text: &str) -> std::borrow::Cow<'_, str> {
    if !text.contains('\u{1b}') {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            out.push(c);
        } else if chars.as_str().starts_with('[') {
            // CSI: ends with a letter or one of a few signs.
            chars.next();
            for c in chars.by_ref() {
                if ('@'..='~').contains(&c) {
                    break;
                }
            }
        }
    }
    out.into()
}

/// The prefixes of a line: the rank and the process that they name, and what is left.
pub(super) fn without_prefixes(text: &str) -> (Option<u32>, &str, &str) {
    let (mut rank, mut process) = (None, "");
    let mut rest = text.trim_start();
    // A launcher, a shell, a logger: a handful at most.
    for _ in 0..8 {
        let Some((named, len)) = prefix(rest, rank.is_none()) else { break };
        match named {
            Prefix::Rank(of) => {
                rank = rank.or(Some(of));
                process = &rest[..len];
            }
            Prefix::Process if process.is_empty() => process = &rest[..len],
            Prefix::Process | Prefix::Logger => {}
        }
        rest = rest[len..].trim_start();
    }
    (rank, process, rest)
}

enum Prefix {
    Rank(u32),
    Process,
    Logger,
}

/// A prefix at the start of `text`, and its length.
fn prefix(text: &str, first: bool) -> Option<(Prefix, usize)> {
    let bytes = text.as_bytes();
    let digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
    match bytes.first()? {
        b'[' => {
            let end = text[..text.len().min(floor(text, 160))].find(']')?;
            let inside = &text[1..end];
            let colon = usize::from(bytes.get(end + 1) == Some(&b':'));
            // mpirun --tag-output: [job,rank]<stderr>:
            if let Some((_, of)) = inside.split_once(',')
                && let Some(stream) = ["<stderr>:", "<stdout>:"].into_iter().find(|s| text[end + 1..].starts_with(s))
                && let Ok(of) = of.parse()
            {
                return Some((Prefix::Rank(of), end + 1 + stream.len()));
            }
            let word = inside.trim_end_matches(|c: char| c.is_ascii_digit());
            if let Ok(of) = inside[word.len()..].parse::<u32>()
                && ["rank", "default", "rank:"].iter().any(|w| word.trim_end().eq_ignore_ascii_case(w))
            {
                return Some((Prefix::Rank(of), end + 1 + colon));
            }
            let logger = is_level(inside)
                || inside.starts_with("PID:")
                || inside == "titan"
                || (inside.contains(':') && inside.contains(|c: char| c.is_ascii_digit()) && !inside.contains("//"));
            logger.then_some((Prefix::Logger, end + 1 + colon))
        }
        b'(' => {
            let end = text[..text.len().min(floor(text, 160))].find(')')?;
            text[..end].contains("pid=").then_some((Prefix::Process, end + 1))
        }
        // srun --label
        b'0'..=b'9'
            if first && digits <= 6 && bytes.get(digits) == Some(&b':') && bytes.get(digits + 1) == Some(&b' ') =>
        {
            Some((Prefix::Rank(text[..digits].parse().ok()?), digits + 1))
        }
        b'0'..=b'9' => {
            let word = text.split([' ', '\t']).next()?;
            is_date_or_time(word).then_some((Prefix::Logger, word.len()))
        }
        _ => {
            let word = text.split([' ', '\t']).next()?;
            is_level(word.trim_end_matches(':')).then_some((Prefix::Logger, word.len()))
        }
    }
}

fn is_level(word: &str) -> bool {
    ["INFO", "ERROR", "WARNING", "WARN", "DEBUG", "CRITICAL", "FATAL"].contains(&word)
}

/// `2025-11-12T11:25:13.4Z`, `06-30`, `13:53:19,053`: two or more groups of digits and nothing else of note.
fn is_date_or_time(word: &str) -> bool {
    let word = word.trim_end_matches([',', ':', '-', 'Z']);
    let groups = word.split(['-', ':', 'T', '.', ',', '/', '+']);
    word.contains(['-', ':'])
        && groups.clone().count() >= 2
        && groups.clone().all(|g| !g.is_empty() && g.len() <= 9 && g.bytes().all(|b| b.is_ascii_digit()))
}

/// The largest character boundary that is at most `at`.
pub(super) fn floor(text: &str, at: usize) -> usize {
    if at >= text.len() {
        return text.len();
    }
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Adds `text` to `out` without anything that a console may put between the parts of a sentence: white space, frames,
/// and the escapes of texts inside JSON.
pub(super) fn squeeze(text: &str, out: &mut String) {
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if matches!(chars.peek(), Some('n' | 't' | 'r' | '"')) => {
                chars.next();
            }
            '│' | '┃' | '║' | '|' | '\u{200b}' => {}
            c if c.is_whitespace() => {}
            c => out.push(c),
        }
    }
}

/// A place in a text without white space.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    pub(super) rest: &'a str,
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(rest: &'a str) -> Self {
        Self { rest }
    }

    /// Steps over `literal`, where it stands here.
    pub(super) fn eat(&mut self, literal: &str) -> bool {
        match self.rest.strip_prefix(literal) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Steps over a whole number.
    pub(super) fn number(&mut self) -> Option<u64> {
        let len = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        let number = self.rest[..len].parse().ok()?;
        self.rest = &self.rest[len..];
        Some(number)
    }

    /// Steps over a whole number of bytes; none where it is more than a document carries.
    pub(super) fn bytes(&mut self) -> Option<i64> {
        let bytes = self.number().filter(|bytes| *bytes <= MAX_DOCUMENT_BYTES)?;
        i64::try_from(bytes).ok()
    }

    /// Steps over a size, `1.25GiB`, and nothing where there is none.
    pub(super) fn size(&mut self, units: Units) -> Option<Size> {
        let len = number_len(self.rest)?;
        let (number, rest) = self.rest.split_at(len);
        let (unit, symbol) = units.symbols().iter().find(|(_, symbol)| rest.starts_with(symbol))?;
        let size = Size::of(number, *unit)?;
        self.rest = &rest[symbol.len()..];
        Some(size)
    }

    /// The text up to `mark`, and steps over both.
    pub(super) fn up_to(&mut self, mark: &str) -> Option<&'a str> {
        let (text, rest) = self.rest.split_once(mark)?;
        self.rest = rest;
        Some(text)
    }
}

/// The length of the decimal number at the start.
fn number_len(text: &str) -> Option<usize> {
    let whole = text.bytes().take_while(u8::is_ascii_digit).count();
    if whole == 0 {
        return None;
    }
    let fraction = match text[whole..].strip_prefix('.') {
        Some(rest) => match rest.bytes().take_while(u8::is_ascii_digit).count() {
            0 => 0,
            digits => digits + 1,
        },
        None => 0,
    };
    Some(whole + fraction)
}

/// How a tool writes units.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Units {
    /// `bytes`, KiB, MiB, GiB.
    Binary,
    /// The same, and KB, MB, GB for powers of two.
    AnyBinary,
}

const KIB: u64 = 1 << 10;

impl Units {
    const fn symbols(self) -> &'static [(u64, &'static str)] {
        const ALL: [(u64, &str); 12] = [
            (1, "bytes"),
            (KIB, "KiB"),
            (MIB, "MiB"),
            (GIB, "GiB"),
            (1 << 40, "TiB"),
            (1 << 50, "PiB"),
            (KIB, "KB"),
            (MIB, "MB"),
            (GIB, "GB"),
            (1 << 40, "TB"),
            (1 << 50, "PB"),
            (1, "B"),
        ];
        match self {
            Self::Binary => ALL.split_at(6).0,
            Self::AnyBinary => &ALL,
        }
    }
}

/// A printed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// Bytes, and half of the last printed digit.
    Known(i64, i64),
    /// More than any machine has: what tools print where a figure is not available.
    NotAvailable,
}

impl Size {
    /// `number` of units of `unit` bytes, to the nearest byte. `None` where it is no number.
    pub(super) fn of(number: &str, unit: u64) -> Option<Self> {
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.len() > 12 || whole.len() > 20 {
            return None;
        }
        let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
        let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
        let (unit, half) = (u128::from(unit), scale / 2);
        let bytes = (digits * unit + half) / scale;
        let within = if unit == 1 { 0 } else { unit.div_ceil(2 * scale) };
        let Ok(bytes) = i64::try_from(bytes) else { return Some(Self::NotAvailable) };
        if bytes.unsigned_abs() > MAX_DOCUMENT_BYTES {
            return Some(Self::NotAvailable);
        }
        Some(Self::Known(bytes, i64::try_from(within).ok()?))
    }

    /// The bytes, where they are known.
    pub(super) const fn bytes(self) -> Option<i64> {
        match self {
            Self::Known(bytes, _) => Some(bytes),
            Self::NotAvailable => None,
        }
    }

    /// A reading of this size.
    pub(super) fn reading(self, name: ReadingName) -> Reading {
        match self {
            Self::Known(bytes, within) => {
                let mut reading = Reading::new(name, name.tier(), Figure::Bytes(bytes));
                reading.scope = scope(name);
                if within > 0 {
                    reading.range = Some([(bytes - within).max(0), bytes + within]);
                }
                reading
            }
            Self::NotAvailable => unavailable(name, "the text prints a figure that stands for not available"),
        }
    }
}

/// A reading that the text does not have, and why.
pub(super) fn unavailable(name: ReadingName, why: &str) -> Reading {
    let mut reading = Reading::new(name, name.tier(), Figure::Unavailable(why.into()));
    reading.scope = scope(name);
    reading
}

const fn scope(name: ReadingName) -> Scope {
    match name {
        ReadingName::Reported(Reported::Total | Reported::Free | Reported::Used) => Scope::Device,
        ReadingName::Reported(Reported::HostUsed) => Scope::Host,
        ReadingName::Tracked(tracked) if tracked.host() => Scope::Host,
        _ => Scope::Process,
    }
}

/// A reading of a figure that stands for anything between two.
pub(super) fn reading(name: ReadingName, [least, most]: [i64; 2]) -> Reading {
    let mut reading = exact(name, least);
    reading.range = (least < most).then_some([least, most]);
    reading
}

/// An exact reading.
pub(super) fn exact(name: ReadingName, bytes: i64) -> Reading {
    Size::Known(bytes, 0).reading(name)
}
