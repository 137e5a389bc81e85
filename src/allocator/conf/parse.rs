//! The grammar: comma-separated `key:value`, spaces ignored, `[a:b,c:d,>:e]` lists.

use super::keys::{self, Key, Kind};
use super::{AllocConf, ConfIssue, ConfProblem, INTERVALS, Rules};
use crate::allocator::{LARGE_BUFFER, MIN_LARGE_ALLOC};
use crate::plan::Version;
use crate::units::{MIB, parse_decimal};

/// The largest segment size taken here, in MiB: a TiB, beyond any device.
const MAX_SEGMENT_MIB: u64 = 1 << 20;

#[inline(never)]
pub(super) fn parse(text: &str, version: Version, rules: &Rules) -> Result<AllocConf, Vec<ConfIssue>> {
    let tokens = tokens(text);
    let mut parser = Parser { tokens: &tokens, at: 0, version, rules, conf: AllocConf::default(), issues: Vec::new() };
    while let Some(key) = parser.next() {
        let start = parser.at;
        if let Err(problem) = parser.setting(&key) {
            parser.issues.push(ConfIssue { key, problem });
            parser.at = start;
            parser.skip_setting();
        }
        if let Some(found) = parser.next().filter(|t| t != ",") {
            let problem = ConfProblem::Syntax { expected: "`,`".into(), found: found.clone() };
            parser.issues.push(ConfIssue { key: found, problem });
            parser.skip_setting();
            parser.next();
        }
    }
    if parser.issues.is_empty() { Ok(parser.conf) } else { Err(parser.issues) }
}

/// `,`, `:`, `[`, `]` and the words between them, without spaces.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    for c in text.chars() {
        if matches!(c, ',' | ':' | '[' | ']') {
            if !word.is_empty() {
                tokens.push(core::mem::take(&mut word));
            }
            tokens.push(c.into());
        } else if !c.is_whitespace() {
            word.push(c);
        }
    }
    if !word.is_empty() {
        tokens.push(word);
    }
    tokens
}

struct Parser<'a> {
    tokens: &'a [String],
    at: usize,
    version: Version,
    rules: &'a Rules,
    conf: AllocConf,
    issues: Vec<ConfIssue>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&str> {
        self.tokens.get(self.at).map(String::as_str)
    }

    fn next(&mut self) -> Option<String> {
        let token = self.tokens.get(self.at).cloned();
        self.at += usize::from(token.is_some());
        token
    }

    /// To the comma that ends the present setting, past any list.
    fn skip_setting(&mut self) {
        let mut depth = 0_usize;
        while let Some(token) = self.peek() {
            match token {
                "," if depth == 0 => return,
                "[" => depth += 1,
                "]" => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
        }
    }

    fn expect(&mut self, token: &str) -> Result<(), ConfProblem> {
        if self.peek() == Some(token) {
            self.at += 1;
            return Ok(());
        }
        Err(ConfProblem::Syntax { expected: format!("`{token}`"), found: self.peek().unwrap_or_default().into() })
    }

    /// A value's word, and not punctuation.
    fn word(&mut self, expected: &str) -> Result<String, ConfProblem> {
        match self.peek() {
            Some(token) if !matches!(token, "," | ":" | "[" | "]") => Ok(self.next().unwrap_or_default()),
            other => Err(ConfProblem::Syntax { expected: expected.into(), found: other.unwrap_or_default().into() }),
        }
    }

    fn setting(&mut self, name: &str) -> Result<(), ConfProblem> {
        let Some(key) = keys::find(name) else {
            if let Some((key, _)) = name.split_once('=').filter(|(key, _)| keys::find(key).is_some()) {
                let expected = format!("`:` after `{key}`");
                return Err(ConfProblem::Syntax { expected, found: "=".into() });
            }
            let did_you_mean = keys::nearest(name).map(Into::into);
            return Err(ConfProblem::UnknownKey { did_you_mean });
        };
        self.available(key)?;
        self.expect(":")?;
        match key.kind {
            Kind::MaxSplitSize => {
                // From 2.11 on that of the segments, as far as the text has said by here.
                let least = self.rules.min_max_split_mib.unwrap_or(self.conf.large_segment_size / MIB);
                self.conf.max_split_size = Some(self.number(least, u64::MAX)?.min(u64::MAX / MIB) * MIB);
            }
            Kind::MaxNonSplitRounding => {
                let mib = self.number(LARGE_BUFFER / MIB, u64::MAX)?;
                self.conf.max_non_split_rounding = mib.min(u64::MAX / MIB) * MIB;
            }
            Kind::LargeSegmentSize => {
                let mib = self.number(MIN_LARGE_ALLOC / MIB + 1, MAX_SEGMENT_MIB)?;
                self.conf.large_segment_size = mib * MIB;
            }
            Kind::RoundupDivisions => self.divisions()?,
            Kind::GarbageCollectionThreshold => {
                let share = self.real("a number above 0 and below 1", |t| t > 0.0 && t < 1.0)?;
                self.conf.garbage_collection_threshold = Some(share);
            }
            Kind::ExpandableSegments => self.conf.expandable_segments = self.boolean()?,
            Kind::MemoryFraction => {
                let share = self.real("a number from 0 to 1", |f| (0.0..=1.0).contains(&f))?;
                self.conf.per_process_memory_fraction = Some(share);
            }
            Kind::Backend => match self.word("`native` or `cudaMallocAsync`")?.as_str() {
                "native" => {}
                "cudaMallocAsync" => return Err(ConfProblem::NotModelled),
                found => {
                    let expected = "`native` or `cudaMallocAsync`".into();
                    return Err(ConfProblem::Value { expected, found: found.into() });
                }
            },
            Kind::NoEffectBool => {
                self.boolean()?;
            }
            Kind::NoEffectNumber => {
                self.number(0, u64::MAX)?;
            }
            Kind::FalseOnly => {
                if self.boolean()? {
                    return Err(ConfProblem::NotModelled);
                }
            }
            Kind::NotModelled => return Err(ConfProblem::NotModelled),
        }
        Ok(())
    }

    fn available(&self, key: &Key) -> Result<(), ConfProblem> {
        match key.until {
            _ if self.version < key.since => Err(ConfProblem::NotYet { since: key.since }),
            Some(since) if self.version >= since => Err(ConfProblem::Removed { since }),
            _ => Ok(()),
        }
    }

    /// A whole number; like PyTorch, without regard to what follows its digits in the same word.
    fn number(&mut self, least: u64, most: u64) -> Result<u64, ConfProblem> {
        // Up to 2.8 these were read into 32 bits.
        let most = most.min(if self.rules.reads_32_bit_numbers { i32::MAX as u64 } else { u64::MAX });
        let expected = match most {
            u64::MAX => format!("a whole number from {least}"),
            _ => format!("a whole number from {least} to {most}"),
        };
        let found = self.word(&expected)?;
        match digits(&found, false).parse() {
            Ok(n) if (least..=most).contains(&n) => Ok(n),
            _ => Err(ConfProblem::Value { expected, found }),
        }
    }

    fn real(&mut self, expected: &str, accepted: impl Fn(f64) -> bool) -> Result<f64, ConfProblem> {
        let found = self.word(expected)?;
        match parse_decimal(digits(&found, true)) {
            Some(x) if accepted(x) => Ok(x),
            _ => Err(ConfProblem::Value { expected: expected.into(), found }),
        }
    }

    fn boolean(&mut self) -> Result<bool, ConfProblem> {
        match self.word("`True` or `False`")?.as_str() {
            "True" => Ok(true),
            "False" => Ok(false),
            found => Err(ConfProblem::Value { expected: "`True` or `False`".into(), found: found.into() }),
        }
    }

    fn divisions(&mut self) -> Result<(), ConfProblem> {
        if self.peek() != Some("[") {
            let n = self.power_of_two("divisions that are a power of two", false)?;
            self.conf.roundup_power2_divisions = Some([n; INTERVALS]);
            return Ok(());
        }
        self.expect("[")?;
        let mut last = None;
        while self.peek() != Some("]") {
            let interval = if self.peek() == Some(">") {
                self.expect(">")?;
                None
            } else {
                let mib = self.power_of_two("an interval in MiB that is a power of two, or `>`", false)?;
                Some((mib.ilog2() as usize).min(INTERVALS - 1))
            };
            self.expect(":")?;
            let n = self.power_of_two("divisions that are a power of two, or 0", true)?;
            self.fill(interval, last, n);
            last = interval.or(last);
            if self.peek() != Some("]") {
                self.expect(",")?;
            }
        }
        self.expect("]")
    }

    /// Sets one interval of a list, or with `None` (`>`) all that follow the last listed one. The first listed value
    /// also holds for all smaller intervals; intervals between listed ones keep 0.
    fn fill(&mut self, interval: Option<usize>, last: Option<usize>, n: u32) {
        let all = self.conf.roundup_power2_divisions.get_or_insert([0; INTERVALS]);
        match (interval, last) {
            (Some(i), None) => all[..=i].fill(n),
            (Some(i), Some(_)) => all[i] = n,
            (None, None) => all.fill(n),
            (None, Some(l)) => all[if self.rules.open_interval_overwrites_last { l } else { l + 1 }..].fill(n),
        }
    }

    fn power_of_two(&mut self, expected: &str, zero: bool) -> Result<u32, ConfProblem> {
        let found = self.word(expected)?;
        match digits(&found, false).parse::<u32>() {
            Ok(n) if n.is_power_of_two() || (zero && n == 0) => Ok(n),
            _ => Err(ConfProblem::Value { expected: expected.into(), found }),
        }
    }
}

/// The word's leading digits, with a decimal point or without.
fn digits(word: &str, point: bool) -> &str {
    let end = word.find(|c: char| !(c.is_ascii_digit() || (point && c == '.'))).unwrap_or(word.len());
    &word[..end]
}
