//! Reads pickles of plain data: dictionaries, lists, tuples, texts and numbers, and nothing that runs.
//!
//! The machine takes the file in pieces of any size, goes on without recursion, and holds no more than its limit: what an
//! opcode announces is believed only once it is there.

use super::error::{Problem, SnapshotError};
use super::store::{Store, Value};

/// Containers within containers: recordings have seven.
const MAX_MARKS: usize = 64;
/// The longest text or number; recordings have texts of some kilobytes.
const MAX_TEXT: u64 = 16 << 20;
/// The longest whole number, in bytes, and the longest one in digits.
const MAX_INTEGER: u64 = 1 << 10;

/// A pickle that is being read.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) store: Store,
    stack: Vec<Value>,
    /// Where on the stack the open marks are.
    marks: Vec<usize>,
    memo: Vec<Value>,
    /// What did not suffice for an opcode yet.
    rest: Vec<u8>,
    /// Where the rest begins.
    offset: u64,
    /// The pickle's size, where it is known.
    total: Option<u64>,
    pub(super) protocol: u8,
    pub(super) result: Option<Value>,
}

/// Why an opcode was not run.
enum Stop {
    /// More bytes are needed.
    More,
    Wrong(Problem),
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Self {
        Self::Wrong(problem)
    }
}

impl Machine {
    /// Before the first byte. `most_bytes` bounds the memory that is taken.
    pub(super) fn new(total: Option<u64>, most_bytes: usize) -> Self {
        let (stack, marks, memo, rest) = Default::default();
        let store = Store::new(most_bytes);
        Self { store, stack, marks, memo, rest, offset: 0, total, protocol: 0, result: None }
    }

    /// How many bytes have been understood.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Goes on with the next piece of the file. What follows the pickle's end is ignored, as Python does.
    pub(super) fn push(&mut self, piece: &[u8]) -> Result<(), SnapshotError> {
        if self.rest.is_empty() {
            let used = self.run(piece)?;
            if self.result.is_none() {
                self.rest.extend_from_slice(&piece[used..]);
            }
            return Ok(());
        }
        let mut whole = core::mem::take(&mut self.rest);
        whole.extend_from_slice(piece);
        let used = self.run(&whole)?;
        whole.drain(..used);
        if self.result.is_none() {
            self.rest = whole;
        }
        Ok(())
    }

    /// The error of a pickle that ends here, if it has not ended yet.
    pub(super) fn end(&self) -> Result<Value, SnapshotError> {
        self.result.ok_or_else(|| SnapshotError {
            opcode: self.rest.first().and_then(|byte| name(*byte)),
            offset: self.offset,
            problem: Problem::UnexpectedEnd,
        })
    }

    /// Runs the opcodes that lie whole in `bytes`; how many bytes they were.
    fn run(&mut self, bytes: &[u8]) -> Result<usize, SnapshotError> {
        let mut at = 0;
        while self.result.is_none() && at < bytes.len() {
            match self.opcode(&bytes[at..]) {
                Ok(used) => {
                    at += used;
                    self.offset += used as u64;
                }
                Err(Stop::More) => break,
                Err(Stop::Wrong(problem)) => {
                    return Err(SnapshotError { opcode: name(bytes[at]), offset: self.offset, problem });
                }
            }
        }
        Ok(at)
    }

    /// Runs the first opcode; how many bytes it was.
    fn opcode(&mut self, bytes: &[u8]) -> Result<usize, Stop> {
        let (&opcode, after) = bytes.split_first().ok_or(Stop::More)?;
        let mut input = Input { bytes: after, used: 1, left: self.total.map(|t| t.saturating_sub(self.offset + 1)) };
        match opcode {
            b'\x80' => {
                self.protocol = input.take::<1>()?[0];
                if self.protocol > 5 {
                    return Err(Problem::Malformed("a protocol newer than 5").into());
                }
            }
            // A frame's size helps those who read ahead; nothing is taken for it.
            b'\x95' => {
                input.take::<8>()?;
            }
            b'(' => {
                if self.marks.len() >= MAX_MARKS {
                    return Err(Problem::TooDeep.into());
                }
                self.marks.push(self.stack.len());
            }
            b'.' => self.result = Some(self.pop()?),
            b'}' => {
                let dict = self.store.add_dict()?;
                self.put(dict)?;
            }
            b']' | b')' => {
                let list = self.store.add_list(&[])?;
                self.put(list)?;
            }
            b'N' => self.put(Value::None)?,
            b'\x88' => self.put(Value::Bool(true))?,
            b'\x89' => self.put(Value::Bool(false))?,
            b'K' => self.put(Value::Int(input.take::<1>()?[0].into()))?,
            b'M' => self.put(Value::Int(u16::from_le_bytes(input.take()?).into()))?,
            b'J' => self.put(Value::Int(i32::from_le_bytes(input.take()?).into()))?,
            b'G' => self.put(Value::Float(f64::from_be_bytes(input.take()?)))?,
            b'\x8a' => {
                let length = u64::from(input.take::<1>()?[0]);
                self.integer(input.text(length, MAX_INTEGER)?)?;
            }
            b'\x8b' => {
                let length = u64::from(u32::from_le_bytes(input.take()?));
                self.integer(input.text(length, MAX_INTEGER)?)?;
            }
            b'I' | b'L' => {
                let value = decimal(input.line()?, opcode == b'I')?;
                self.put(value)?;
            }
            b'F' => {
                let text = core::str::from_utf8(input.line()?).map_err(|_| Problem::Number)?;
                let value = crate::units::parse_decimal(text.trim()).ok_or(Problem::Number)?;
                self.put(Value::Float(value))?;
            }
            b'\x8c' => {
                let length = u64::from(input.take::<1>()?[0]);
                self.text(input.text(length, MAX_TEXT)?)?;
            }
            b'X' => {
                let length = u64::from(u32::from_le_bytes(input.take()?));
                self.text(input.text(length, MAX_TEXT)?)?;
            }
            b'\x8d' => {
                let length = u64::from_le_bytes(input.take()?);
                self.text(input.text(length, MAX_TEXT)?)?;
            }
            b'\x94' => self.memoize(self.memo.len())?,
            b'q' => self.memoize(input.take::<1>()?[0].into())?,
            b'r' => self.memoize(u32::from_le_bytes(input.take()?) as usize)?,
            b'h' => self.recall(input.take::<1>()?[0].into())?,
            b'j' => self.recall(u32::from_le_bytes(input.take()?) as usize)?,
            b'a' => {
                let item = self.pop()?;
                let list = self.top_list()?;
                self.store.extend(list, &[item])?;
            }
            b'e' => {
                let mark = self.mark()?;
                let list = match mark.checked_sub(1).and_then(|below| self.stack.get(below)) {
                    Some(Value::List(list)) => *list,
                    _ => return Err(Problem::Malformed("no list to add to").into()),
                };
                self.store.extend(list, &self.stack[mark..])?;
                self.stack.truncate(mark);
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                let dict = self.top_dict()?;
                self.store.set(dict, &[key, value])?;
            }
            b'u' => {
                let mark = self.mark()?;
                let dict = match mark.checked_sub(1).and_then(|below| self.stack.get(below)) {
                    Some(Value::Dict(dict)) => *dict,
                    _ => return Err(Problem::Malformed("no dictionary to put keys into").into()),
                };
                self.store.set(dict, &self.stack[mark..])?;
                self.stack.truncate(mark);
            }
            b't' => {
                let mark = self.mark()?;
                self.tuple(mark)?;
            }
            b'\x85'..=b'\x87' => {
                let count = usize::from(opcode - b'\x84');
                let floor = self.marks.last().copied().unwrap_or_default();
                let start = self.stack.len().checked_sub(count).filter(|start| *start >= floor);
                let start = start.ok_or(Problem::Malformed("too few values for a tuple"))?;
                self.tuple(start)?;
            }
            other if name(other).is_some() => return Err(Problem::Forbidden.into()),
            other => return Err(Problem::Unknown(other).into()),
        }
        Ok(input.used)
    }

    fn put(&mut self, value: Value) -> Result<(), Problem> {
        if self.stack.len() == self.stack.capacity() {
            let more = self.stack.len().max(1024);
            self.store.pay(more.saturating_mul(size_of::<Value>()))?;
            self.stack.reserve_exact(more);
        }
        self.stack.push(value);
        Ok(())
    }

    /// What lies on the stack from `start` on becomes a tuple.
    fn tuple(&mut self, start: usize) -> Result<(), Problem> {
        let tuple = self.store.add_list(&self.stack[start..])?;
        self.stack.truncate(start);
        self.put(tuple)
    }

    fn text(&mut self, text: &[u8]) -> Result<(), Problem> {
        let text = self.store.add_text(text)?;
        self.put(text)
    }

    /// A whole number, lowest byte first, in two's complement.
    fn integer(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let fill = if negative { 0xff } else { 0 };
        let mut eight = [fill; 8];
        for (n, byte) in bytes.iter().enumerate() {
            match eight.get_mut(n) {
                Some(place) => *place = *byte,
                None if *byte == fill => {}
                None => return self.put(Value::Big),
            }
        }
        let value = i64::from_le_bytes(eight);
        self.put(if (value < 0) == negative { Value::Int(value) } else { Value::Big })
    }

    fn pop(&mut self) -> Result<Value, Problem> {
        let floor = self.marks.last().copied().unwrap_or_default();
        if self.stack.len() <= floor {
            return Err(Problem::Malformed("no value to take"));
        }
        self.stack.pop().ok_or(Problem::Malformed("no value to take"))
    }

    fn mark(&mut self) -> Result<usize, Problem> {
        self.marks.pop().ok_or(Problem::Malformed("no mark to go back to"))
    }

    fn top_list(&self) -> Result<u32, Problem> {
        match self.stack.last() {
            Some(Value::List(list)) => Ok(*list),
            _ => Err(Problem::Malformed("no list to add to")),
        }
    }

    fn top_dict(&self) -> Result<u32, Problem> {
        match self.stack.last() {
            Some(Value::Dict(dict)) => Ok(*dict),
            _ => Err(Problem::Malformed("no dictionary to put keys into")),
        }
    }

    /// Pickles number what they use again from 0 on, without gaps.
    fn memoize(&mut self, number: usize) -> Result<(), Problem> {
        let value = *self.stack.last().ok_or(Problem::Malformed("no value to keep"))?;
        if number > self.memo.len() {
            return Err(Problem::Malformed("a value is kept under a number out of order"));
        }
        match self.memo.get_mut(number) {
            Some(place) => *place = value,
            None => {
                self.store.pay(size_of::<Value>())?;
                self.memo.push(value);
            }
        }
        Ok(())
    }

    fn recall(&mut self, number: usize) -> Result<(), Problem> {
        let value = *self.memo.get(number).ok_or(Problem::Malformed("nothing is kept under this number"))?;
        self.store.use_up(value);
        self.put(value)
    }
}

/// What follows an opcode.
struct Input<'a> {
    bytes: &'a [u8],
    /// Bytes taken, the opcode included.
    used: usize,
    /// Bytes of the file that follow, where that is known.
    left: Option<u64>,
}

impl<'a> Input<'a> {
    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>().ok_or(Stop::More)?;
        self.bytes = rest;
        self.used += N;
        self.left = self.left.map(|left| left.saturating_sub(N as u64));
        Ok(*taken)
    }

    /// As many bytes as the opcode announces.
    fn text(&mut self, length: u64, most: u64) -> Result<&'a [u8], Stop> {
        if length > most {
            return Err(Problem::TooLong(length).into());
        }
        if self.left.is_some_and(|left| length > left) {
            return Err(Problem::UnexpectedEnd.into());
        }
        let length = usize::try_from(length).map_err(|_| Problem::TooLong(length))?;
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(Stop::More)?;
        self.bytes = rest;
        self.used += length;
        Ok(taken)
    }

    /// Up to the end of the line, which is taken too.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let most = usize::try_from(MAX_INTEGER).unwrap_or(usize::MAX);
        let Some(length) = self.bytes.iter().take(most).position(|byte| *byte == b'\n') else {
            return Err(if self.bytes.len() < most { Stop::More } else { Problem::TooLong(MAX_INTEGER).into() });
        };
        let (line, _) = self.bytes.split_at(length);
        self.used += length + 1;
        Ok(line)
    }
}

/// A number in digits, as the first protocol wrote it; `I00` and `I01` are booleans, and `L` may follow a long one.
fn decimal(line: &[u8], short: bool) -> Result<Value, Problem> {
    match line {
        b"00" if short => return Ok(Value::Bool(false)),
        b"01" if short => return Ok(Value::Bool(true)),
        _ => {}
    }
    let text = core::str::from_utf8(line).map_err(|_| Problem::Number)?.trim();
    let digits = text.strip_suffix('L').unwrap_or(text);
    if let Ok(value) = digits.parse() {
        return Ok(Value::Int(value));
    }
    let unsigned = digits.strip_prefix('-').unwrap_or(digits);
    let large = !unsigned.is_empty() && unsigned.bytes().all(|b| b.is_ascii_digit());
    if large { Ok(Value::Big) } else { Err(Problem::Number) }
}

/// The names of all opcodes, those that are refused too.
fn name(opcode: u8) -> Option<&'static str> {
    Some(match opcode {
        b'(' => "MARK",
        b'.' => "STOP",
        b'0' => "POP",
        b'1' => "POP_MARK",
        b'2' => "DUP",
        b'F' => "FLOAT",
        b'I' => "INT",
        b'J' => "BININT",
        b'K' => "BININT1",
        b'L' => "LONG",
        b'M' => "BININT2",
        b'N' => "NONE",
        b'P' => "PERSID",
        b'Q' => "BINPERSID",
        b'R' => "REDUCE",
        b'S' => "STRING",
        b'T' => "BINSTRING",
        b'U' => "SHORT_BINSTRING",
        b'V' => "UNICODE",
        b'X' => "BINUNICODE",
        b'a' => "APPEND",
        b'b' => "BUILD",
        b'c' => "GLOBAL",
        b'd' => "DICT",
        b'}' => "EMPTY_DICT",
        b'e' => "APPENDS",
        b'g' => "GET",
        b'h' => "BINGET",
        b'i' => "INST",
        b'j' => "LONG_BINGET",
        b'l' => "LIST",
        b']' => "EMPTY_LIST",
        b'o' => "OBJ",
        b'p' => "PUT",
        b'q' => "BINPUT",
        b'r' => "LONG_BINPUT",
        b's' => "SETITEM",
        b't' => "TUPLE",
        b')' => "EMPTY_TUPLE",
        b'u' => "SETITEMS",
        b'G' => "BINFLOAT",
        b'B' => "BINBYTES",
        b'C' => "SHORT_BINBYTES",
        b'\x80' => "PROTO",
        b'\x81' => "NEWOBJ",
        b'\x82' => "EXT1",
        b'\x83' => "EXT2",
        b'\x84' => "EXT4",
        b'\x85' => "TUPLE1",
        b'\x86' => "TUPLE2",
        b'\x87' => "TUPLE3",
        b'\x88' => "NEWTRUE",
        b'\x89' => "NEWFALSE",
        b'\x8a' => "LONG1",
        b'\x8b' => "LONG4",
        b'\x8c' => "SHORT_BINUNICODE",
        b'\x8d' => "BINUNICODE8",
        b'\x8e' => "BINBYTES8",
        b'\x8f' => "EMPTY_SET",
        b'\x90' => "ADDITEMS",
        b'\x91' => "FROZENSET",
        b'\x92' => "NEWOBJ_EX",
        b'\x93' => "STACK_GLOBAL",
        b'\x94' => "MEMOIZE",
        b'\x95' => "FRAME",
        b'\x96' => "BYTEARRAY8",
        b'\x97' => "NEXT_BUFFER",
        b'\x98' => "READONLY_BUFFER",
        _ => return None,
    })
}
