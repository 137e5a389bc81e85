//! What a recording holds, as it was written: values that refer to each other by number.

use super::error::Problem;

/// The most keys of a dictionary: recordings have twenty.
const MAX_KEYS: usize = 256;

/// A value. Strings, lists and dictionaries are numbers in the [`Store`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// A whole number of more than 64 bits.
    Big,
    Float(f64),
    Text(u32),
    /// A list or a tuple.
    List(u32),
    Dict(u32),
}

/// The words of a recording's schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Other,
    Action,
    Addr,
    DeviceFree,
    Size,
    Stream,
    Frames,
    PoolId,
}

impl Word {
    fn of(text: &[u8]) -> Self {
        match text {
            b"action" => Self::Action,
            b"addr" => Self::Addr,
            b"device_free" => Self::DeviceFree,
            b"size" => Self::Size,
            b"stream" => Self::Stream,
            b"frames" => Self::Frames,
            b"pool_id" => Self::PoolId,
            _ => Self::Other,
        }
    }
}

/// An entry of a trace, which a recording has most of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RawEntry {
    pub(super) action: u32,
    pub(super) addr: Option<i64>,
    pub(super) device_free: Option<i64>,
    pub(super) size: Option<i64>,
    pub(super) stream: Option<i64>,
    pub(super) frames: Option<u32>,
    pub(super) pool_id: Option<u32>,
}

/// What a dictionary holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Dict {
    Pairs(Vec<(u32, Value)>),
    Entry(Box<RawEntry>),
}

#[derive(Clone, Debug)]
struct Container<T> {
    items: T,
    /// It has been put into another one, or used again: nothing is added to it from then on.
    used: bool,
}

/// All strings, lists and dictionaries.
#[derive(Clone, Debug)]
pub(super) struct Store {
    text: Vec<u8>,
    /// Where each string ends.
    ends: Vec<u64>,
    words: Vec<Word>,
    lists: Vec<Container<Vec<Value>>>,
    dicts: Vec<Container<Dict>>,
    /// Bytes that may still be taken.
    left: usize,
}

impl Store {
    pub(super) fn new(most_bytes: usize) -> Self {
        let (text, ends, words, lists, dicts) = Default::default();
        Self { text, ends, words, lists, dicts, left: most_bytes }
    }

    /// Bytes that may still be taken.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Takes `bytes` off what may still be taken.
    #[inline]
    pub(super) fn pay(&mut self, bytes: usize) -> Result<(), Problem> {
        self.left = self.left.checked_sub(bytes).ok_or(Problem::TooLarge)?;
        Ok(())
    }

    pub(super) fn add_text(&mut self, text: &[u8]) -> Result<Value, Problem> {
        self.pay(text.len() + size_of::<(u64, Word)>())?;
        if core::str::from_utf8(text).is_err() {
            return Err(Problem::Text);
        }
        let number = u32::try_from(self.ends.len()).map_err(|_| Problem::TooLarge)?;
        self.text.extend_from_slice(text);
        self.ends.push(self.text.len() as u64);
        self.words.push(Word::of(text));
        Ok(Value::Text(number))
    }

    pub(super) fn add_list(&mut self, items: &[Value]) -> Result<Value, Problem> {
        self.pay(size_of::<Container<Vec<Value>>>())?;
        let number = u32::try_from(self.lists.len()).map_err(|_| Problem::TooLarge)?;
        self.lists.push(Container { items: Vec::new(), used: false });
        self.extend(number, items)?;
        Ok(Value::List(number))
    }

    pub(super) fn add_dict(&mut self) -> Result<Value, Problem> {
        self.pay(size_of::<Container<Dict>>())?;
        let number = u32::try_from(self.dicts.len()).map_err(|_| Problem::TooLarge)?;
        self.dicts.push(Container { items: Dict::Pairs(Vec::new()), used: false });
        Ok(Value::Dict(number))
    }

    /// Marks a container as used: it can hold nothing new, so that none can come to hold itself.
    #[inline]
    pub(super) fn use_up(&mut self, value: Value) {
        match value {
            Value::List(n) => self.lists[n as usize].used = true,
            Value::Dict(n) => self.dicts[n as usize].used = true,
            _ => {}
        }
    }

    /// Adds to a list.
    pub(super) fn extend(&mut self, list: u32, items: &[Value]) -> Result<(), Problem> {
        self.pay(size_of_val(items))?;
        for item in items {
            self.use_up(*item);
        }
        let list = &mut self.lists[list as usize];
        if list.used {
            return Err(Problem::Cyclic);
        }
        if list.items.is_empty() {
            list.items = items.to_vec();
        } else {
            list.items.extend_from_slice(items);
        }
        Ok(())
    }

    /// Adds keys and values, in turn, to a dictionary.
    pub(super) fn set(&mut self, dict: u32, pairs: &[Value]) -> Result<(), Problem> {
        for item in pairs {
            self.use_up(*item);
        }
        if self.dicts[dict as usize].used {
            return Err(Problem::Cyclic);
        }
        let (pairs, []) = pairs.as_chunks::<2>() else {
            return Err(Problem::Malformed("a key has no value"));
        };
        if let Some(entry) = self.entry(pairs)
            && matches!(&self.dicts[dict as usize].items, Dict::Pairs(known) if known.is_empty())
        {
            self.pay(size_of::<RawEntry>())?;
            self.dicts[dict as usize].items = Dict::Entry(Box::new(entry));
            return Ok(());
        }
        self.pay(pairs.len().saturating_mul(size_of::<(u32, Value)>()))?;
        let Dict::Pairs(known) = &mut self.dicts[dict as usize].items else {
            return Err(Problem::Malformed("an entry of a trace is written twice"));
        };
        if known.len() + pairs.len() > MAX_KEYS {
            return Err(Problem::Malformed("a dictionary has more keys than any recording's"));
        }
        known.reserve_exact(pairs.len());
        for [key, value] in pairs {
            // Keys that are no texts name nothing that is looked for.
            if let Value::Text(key) = key {
                known.push((*key, *value));
            }
        }
        Ok(())
    }

    /// The entry of a trace that these are, if they are one.
    fn entry(&self, pairs: &[[Value; 2]]) -> Option<RawEntry> {
        let word = |value: &Value| match value {
            Value::Text(n) => self.words[*n as usize],
            _ => Word::Other,
        };
        let (mut addr, mut device_free, mut size, mut stream) = (None, None, None, None);
        let (mut action, mut frames, mut pool_id) = (None, None, None);
        for [key, value] in pairs {
            match (word(key), *value) {
                (Word::Action, Value::Text(n)) => action = Some(n),
                (Word::Addr, Value::Int(n)) => addr = Some(n),
                (Word::DeviceFree, Value::Int(n)) => device_free = Some(n),
                (Word::Size, Value::Int(n)) => size = Some(n),
                (Word::Stream, Value::Int(n)) => stream = Some(n),
                (Word::Frames, Value::List(n)) => frames = Some(n),
                (Word::PoolId, Value::List(n)) => pool_id = Some(n),
                // A number too large for its field: it stays a dictionary, and is refused where it is looked at.
                (Word::Addr | Word::DeviceFree | Word::Size | Word::Stream, _) => return None,
                _ => {}
            }
        }
        Some(RawEntry { action: action?, addr, device_free, size, stream, frames, pool_id })
    }

    pub(super) fn text(&self, number: u32) -> &str {
        let end = self.ends.get(number as usize).copied().unwrap_or_default();
        let start = (number as usize).checked_sub(1).map_or(0, |before| self.ends[before]);
        let range = usize::try_from(start).unwrap_or_default()..usize::try_from(end).unwrap_or_default();
        self.text.get(range).and_then(|text| core::str::from_utf8(text).ok()).unwrap_or_default()
    }

    pub(super) fn list(&self, number: u32) -> &[Value] {
        self.lists.get(number as usize).map_or(&[], |list| &list.items)
    }

    pub(super) fn dict(&self, number: u32) -> Option<&Dict> {
        self.dicts.get(number as usize).map(|dict| &dict.items)
    }

    /// The value of a key; the last one where it is there more than once.
    pub(super) fn get(&self, dict: u32, key: &str) -> Option<Value> {
        let Dict::Pairs(pairs) = self.dict(dict)? else { return None };
        pairs.iter().rev().find(|(name, _)| self.text(*name) == key).map(|(_, value)| *value)
    }
}
