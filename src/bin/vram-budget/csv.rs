//! Rows of a table with a header, as RFC 4180 writes them.

use std::collections::HashMap;
use std::path::Path;

use crate::exit::Rejected;
use crate::input;

/// A table.
#[derive(Debug)]
pub(crate) struct Table {
    columns: HashMap<String, usize>,
    rows: Vec<Vec<String>>,
}

/// One of its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    columns: &'a HashMap<String, usize>,
    cells: &'a [String],
}

impl Table {
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let mut records = parse(&input::document(path)?).into_iter();
        let header = records.next().filter(|cells| cells.len() > 1);
        let header = header.ok_or_else(|| Rejected::because(input::name(path), "not a table with a header"))?;
        let columns: HashMap<String, usize> = header.into_iter().enumerate().map(|(at, name)| (name, at)).collect();
        let rows: Vec<Vec<String>> = records.collect();
        if let Some(at) = rows.iter().position(|cells| cells.len() != columns.len()) {
            let reason = format!("row {} has {} cells, the header {}", at + 1, rows[at].len(), columns.len());
            return Err(Rejected::because(input::name(path), reason).into());
        }
        Ok(Self { columns, rows })
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|cells| Row { columns: &self.columns, cells })
    }
}

impl<'a> Row<'a> {
    /// The cell in a column; that of an absent column is empty.
    pub(crate) fn get(self, column: &str) -> &'a str {
        self.columns.get(column).and_then(|at| self.cells.get(*at)).map_or("", |cell| cell.trim())
    }
}

fn parse(text: &str) -> Vec<Vec<String>> {
    let (mut records, mut record, mut cell) = (Vec::new(), Vec::new(), String::new());
    let mut quoted = false;
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '"' if quoted && characters.peek() == Some(&'"') => {
                cell.push('"');
                characters.next();
            }
            '"' => quoted = !quoted,
            ',' if !quoted => record.push(std::mem::take(&mut cell)),
            '\n' if !quoted => {
                record.push(std::mem::take(&mut cell));
                records.push(std::mem::take(&mut record));
            }
            '\r' if !quoted => {}
            c => cell.push(c),
        }
    }
    if !cell.is_empty() || !record.is_empty() {
        record.push(cell);
        records.push(record);
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_commas_and_line_ends() {
        let records = parse("a,b\r\n\"1,5\",\"he said \"\"no\"\"\"\n,\n\"two\nlines\",x");
        assert_eq!(records, [vec!["a", "b"], vec!["1,5", "he said \"no\""], vec!["", ""], vec!["two\nlines", "x"]]);
    }
}
