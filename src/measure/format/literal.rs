//! Values as JSON and Python print them, in one reader: dictionaries, lists, tuples, `OrderedDict(…)`, `None`.

use crate::measure::ImportError;

/// A value. Numbers stay as they are written: a byte count must not pass through a float.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Literal {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Self>),
    /// In the order of the text. Keys that are no texts are kept as they are written.
    Dict(Vec<(String, Self)>),
}

/// The deepest nesting that is read.
const MAX_DEPTH: u32 = 64;

impl Literal {
    /// Reads a text that is one value and nothing else.
    ///
    /// # Errors
    /// Where the text is none, with its place.
    pub(super) fn read(text: &str) -> Result<Self, ImportError> {
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0).and_then(|value| {
            reader.blank();
            if reader.at == text.len() { Ok(value) } else { Err("expected nothing more") }
        });
        value.map_err(|message| malformed(text, reader.at, message))
    }

    /// Reads the value at the start of `text`, and says how long it is.
    pub(super) fn prefix(text: &str) -> Option<(Self, usize)> {
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0).ok()?;
        Some((value, reader.at))
    }

    /// The value of `key`, in a dictionary.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        self.entries().iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// The entries of a dictionary; none for anything else.
    pub(super) fn entries(&self) -> &[(String, Self)] {
        match self {
            Self::Dict(entries) => entries,
            _ => &[],
        }
    }

    /// The items of a list; none for anything else.
    pub(super) fn items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }

    /// A number as it is written, also inside quotes: some loggers format before they write.
    pub(super) fn number(&self) -> Option<&str> {
        match self {
            Self::Number(number) => Some(number),
            Self::Text(text) if text.starts_with(|c: char| c.is_ascii_digit()) => Some(text),
            _ => None,
        }
    }

    /// A whole number.
    pub(super) fn whole(&self) -> Option<i64> {
        match self {
            Self::Number(number) => number.parse().ok(),
            _ => None,
        }
    }

    /// A text.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// The error at byte `at` of `text`.
pub(super) fn malformed(text: &str, at: usize, message: &str) -> ImportError {
    let before = &text[..super::text::floor(text, at)];
    let line = before.bytes().filter(|b| *b == b'\n').count() as u64 + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() as u64 + 1;
    ImportError::Malformed { line, column, message: message.into() }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

type Result_<T> = Result<T, &'static str>;

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blank(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let here = self.peek() == Some(byte);
        self.at += usize::from(here);
        here
    }

    fn value(&mut self, depth: u32) -> Result_<Literal> {
        if depth > MAX_DEPTH {
            return Err("nested too deeply");
        }
        self.blank();
        match self.peek().ok_or("the text ends too early")? {
            b'{' => self.dict(depth),
            b'[' => Ok(Literal::List(self.list(b']', depth)?)),
            b'(' => Ok(Literal::List(self.list(b')', depth)?)),
            b'"' | b'\'' => Ok(Literal::Text(self.string()?)),
            b'-' | b'+' | b'0'..=b'9' | b'.' => Ok(Literal::Number(self.number()?)),
            _ => self.word(depth),
        }
    }

    fn dict(&mut self, depth: u32) -> Result_<Literal> {
        self.at += 1;
        let mut entries = Vec::new();
        loop {
            self.blank();
            if self.eat(b'}') {
                return Ok(Literal::Dict(entries));
            }
            let start = self.at;
            let key = match self.value(depth + 1)? {
                Literal::Text(text) => text,
                _ => self.text[start..self.at].to_owned(),
            };
            self.blank();
            if !self.eat(b':') {
                return Err("expected a colon");
            }
            entries.push((key, self.value(depth + 1)?));
            self.blank();
            if !self.eat(b',') && self.peek() != Some(b'}') {
                return Err("expected a comma or a closing brace");
            }
        }
    }

    fn list(&mut self, close: u8, depth: u32) -> Result_<Vec<Literal>> {
        self.at += 1;
        let mut items = Vec::new();
        loop {
            self.blank();
            if self.eat(close) {
                return Ok(items);
            }
            items.push(self.value(depth + 1)?);
            self.blank();
            if !self.eat(b',') && self.peek() != Some(close) {
                return Err("expected a comma or a closing bracket");
            }
        }
    }

    fn string(&mut self) -> Result_<String> {
        let quote = self.peek().unwrap_or(b'"') as char;
        self.at += 1;
        let mut out = String::new();
        let mut chars = self.text[self.at..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.at += at + 1;
                    return Ok(out);
                }
                '\\' => match chars.next().map(|(_, c)| c) {
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some('r') => out.push('\r'),
                    Some('u') => {
                        let hex: String = chars.by_ref().take(4).map(|(_, c)| c).collect();
                        let code = u32::from_str_radix(&hex, 16).map_err(|_| "expected four hexadecimal digits")?;
                        // Halves of a pair are no characters of their own.
                        out.push(char::from_u32(code).unwrap_or('\u{fffd}'));
                    }
                    Some(c) => out.push(c),
                    None => break,
                },
                c => out.push(c),
            }
        }
        self.at = self.text.len();
        Err("the text ends inside quotes")
    }

    fn number(&mut self) -> Result_<String> {
        let start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b'.' | b'e' | b'E' | b'_')) {
            self.at += 1;
        }
        let written = &self.text[start..self.at];
        if written.contains(|c: char| c.is_ascii_digit()) { Ok(written.to_owned()) } else { Err("expected a number") }
    }

    /// `None`, `true`, or a call such as `OrderedDict(…)`.
    fn word(&mut self, depth: u32) -> Result_<Literal> {
        let start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.')) {
            self.at += 1;
        }
        match &self.text[start..self.at] {
            "null" | "None" | "NaN" | "nan" | "inf" | "Infinity" => Ok(Literal::Null),
            "true" | "True" => Ok(Literal::Bool(true)),
            "false" | "False" => Ok(Literal::Bool(false)),
            "" => Err("expected a value"),
            _ if self.peek() == Some(b'(') => {
                let mut items = self.list(b')', depth + 1)?;
                match items.pop() {
                    // OrderedDict([(key, value), …])
                    Some(Literal::List(pairs)) if items.is_empty() => Ok(of_pairs(pairs)),
                    Some(one) if items.is_empty() => Ok(one),
                    _ => Ok(Literal::Null),
                }
            }
            _ => {
                self.at = start;
                Err("expected a value")
            }
        }
    }
}

/// A list of pairs with texts in front is a dictionary.
fn of_pairs(pairs: Vec<Literal>) -> Literal {
    let is_pair = |pair: &Literal| matches!(pair.items(), [Literal::Text(_), _]);
    if pairs.is_empty() || !pairs.iter().all(is_pair) {
        return Literal::List(pairs);
    }
    Literal::Dict(
        pairs
            .into_iter()
            .filter_map(|pair| match pair {
                Literal::List(pair) => {
                    let mut pair = pair.into_iter();
                    match (pair.next(), pair.next()) {
                        (Some(Literal::Text(key)), Some(value)) => Some((key, value)),
                        _ => None,
                    }
                }
                _ => None,
            })
            .collect(),
    )
}
