//! Files and stdin, within limits.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use anyhow::Context;

use crate::exit::Rejected;

/// The largest configuration, plan or measurement that is read whole: 32 MiB.
pub(crate) const MAX_DOCUMENT: u64 = 32 << 20;
/// The largest file that is read line by line: 2 GiB.
pub(crate) const MAX_FILE: u64 = 2 << 30;

/// The name of a path in messages: `-` is stdin.
pub(crate) fn name(path: &Path) -> String {
    if is_stdin(path) { "stdin".into() } else { path.display().to_string() }
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A whole text of at most [`MAX_DOCUMENT`].
pub(crate) fn document(path: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    open(path)?.take(MAX_DOCUMENT + 1).read_to_end(&mut bytes).with_context(|| name(path))?;
    if bytes.len() as u64 > MAX_DOCUMENT {
        return Err(Rejected::because(name(path), "larger than 32 MiB").into());
    }
    text(path, bytes)
}

/// The file's lines, one after another: `visit` gets the line's number, from 1, and its text.
pub(crate) fn lines(path: &Path, mut visit: impl FnMut(u64, &str) -> anyhow::Result<()>) -> anyhow::Result<()> {
    if !is_stdin(path) {
        let size = std::fs::metadata(path).with_context(|| name(path))?.len();
        if size > MAX_FILE {
            return Err(Rejected::because(name(path), "larger than 2 GiB").into());
        }
    }
    let mut reader = BufReader::new(open(path)?).take(MAX_FILE);
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        reader.by_ref().take(MAX_DOCUMENT + 1).read_until(b'\n', &mut bytes).with_context(|| name(path))?;
        if bytes.is_empty() {
            break;
        }
        if bytes.len() as u64 > MAX_DOCUMENT {
            return Err(Rejected::because(name(path), format!("line {number} is larger than 32 MiB")).into());
        }
        let line = std::str::from_utf8(&bytes)
            .map_err(|_| Rejected::because(name(path), format!("line {number} is not UTF-8 text")))?;
        visit(number, line)?;
    }
    if reader.limit() == 0 {
        return Err(Rejected::because(name(path), "larger than 2 GiB").into());
    }
    Ok(())
}

/// The file's bytes, unpacked where it is compressed with gzip.
pub(crate) fn bytes(path: &Path) -> anyhow::Result<Box<dyn Read>> {
    let mut file = BufReader::new(open(path)?);
    let packed = file.fill_buf().with_context(|| name(path))?.starts_with(&[0x1f, 0x8b]);
    Ok(if packed { Box::new(flate2::bufread::MultiGzDecoder::new(file)) } else { Box::new(file) })
}

fn open(path: &Path) -> anyhow::Result<Box<dyn Read>> {
    if is_stdin(path) {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).with_context(|| name(path))?;
    if file.metadata().is_ok_and(|m| m.is_dir()) {
        return Err(Rejected::because(name(path), "a folder, not a file").into());
    }
    Ok(Box::new(file))
}

pub(crate) fn text(path: &Path, bytes: Vec<u8>) -> anyhow::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Rejected::because(name(path), format!("not UTF-8 text (byte {at})")).into()
    })
}
