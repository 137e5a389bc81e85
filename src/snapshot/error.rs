//! Why a recording cannot be read.

use core::fmt;

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotError {
    /// The opcode's name, where it is known.
    pub opcode: Option<&'static str>,
    /// Where it begins, in bytes from the start of the pickle.
    pub offset: u64,
    /// What is wrong.
    pub problem: Problem,
}

/// What can be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The file ends too early.
    UnexpectedEnd,
    /// An opcode that calls code or builds objects: no recording has one, and it is never run.
    Forbidden,
    /// No opcode of pickle.
    Unknown(u8),
    /// It announces more than any recording has.
    TooLong(u64),
    /// A container is put into itself.
    Cyclic,
    /// Containers within containers, deeper than any recording has.
    TooDeep,
    /// The recording takes more memory than it may.
    TooLarge,
    /// It uses what is not there, or not of its kind.
    Malformed(&'static str),
    /// A number that does not fit, or is not a number.
    Number,
    /// A text that is not UTF-8.
    Text,
    /// Not JSON, where it begins as such.
    Json(String),
    /// What has been read is no recording of the allocator; `at` says which part.
    Shape {
        /// The part: `segments[3].blocks[0].size`.
        at: String,
        /// What belongs there.
        expected: &'static str,
    },
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Problem::Shape { at, expected } = &self.problem {
            return write!(f, "no recording of the allocator: {at}: {expected} belongs there");
        }
        if let Problem::Json(problem) = &self.problem {
            return f.write_str(problem);
        }
        match self.opcode {
            Some(opcode) => write!(f, "{opcode} at byte {}: ", self.offset)?,
            None => write!(f, "byte {}: ", self.offset)?,
        }
        match &self.problem {
            Problem::UnexpectedEnd => {
                f.write_str("the file ends before what this announces: it is cut off, or says so falsely")
            }
            Problem::Forbidden => {
                f.write_str("this opcode runs code or builds objects; a recording needs none, and it is not run")
            }
            Problem::Unknown(byte) => write!(f, "0x{byte:02x} is no opcode of pickle"),
            Problem::TooLong(n) => write!(f, "announces {n} bytes, which is more than any recording has"),
            Problem::Cyclic => {
                f.write_str("a container is changed after it was put into another: it could hold itself")
            }
            Problem::TooDeep => f.write_str("containers are nested deeper than in any recording"),
            Problem::TooLarge => f.write_str("the recording takes more memory than it may"),
            Problem::Malformed(what) => f.write_str(what),
            Problem::Number => f.write_str("not a number of at most 64 bits"),
            Problem::Text => f.write_str("not UTF-8 text"),
            Problem::Shape { .. } | Problem::Json(_) => Ok(()),
        }
    }
}

impl std::error::Error for SnapshotError {}
