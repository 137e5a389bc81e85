//! The free blocks of one stream in one pool, ordered by size and then by age.
//!
//! A sorted list cut into short chunks: a best-fit search is two binary searches, an insertion moves a few cache
//! lines. Real runs have tens to hundreds of free blocks, which is one to four chunks; a million still works.

/// Entries in a chunk before it is cut in two.
const CHUNK: usize = 32;

/// A free block and its place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) size: u64,
    /// Among blocks of one size: the segment's number, then the place in it (or the record's number).
    pub(super) segment: u32,
    pub(super) block: u32,
    pub(super) place: u64,
}

impl Entry {
    /// Comes before `other` in the order. Without branches: searches do little else.
    #[inline]
    fn is_before(&self, other: &Self) -> bool {
        let tie = |e: &Self| u128::from(e.segment) << 64 | u128::from(e.place);
        (self.size < other.size) | ((self.size == other.size) & (tie(self) < tie(other)))
    }
}

/// Where an entry is, until the set changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    chunk: usize,
    index: usize,
}

/// The ordered set.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeSet {
    /// None of them empty.
    chunks: Vec<Vec<Entry>>,
}

impl FreeSet {
    /// Adds an entry that is not there.
    pub(super) fn insert(&mut self, entry: Entry) {
        let place = self.lower_bound(|e| e.is_before(&entry));
        // Past the last entry: at the end of the last chunk.
        let chunk = if place.chunk < self.chunks.len() { place.chunk } else { self.chunks.len().saturating_sub(1) };
        let Some(entries) = self.chunks.get_mut(chunk) else {
            let mut first = Vec::with_capacity(CHUNK);
            first.push(entry);
            self.chunks.push(first);
            return;
        };
        let index = if place.chunk == chunk { place.index } else { entries.len() };
        entries.insert(index, entry);
        if entries.len() == CHUNK {
            let mut upper = Vec::with_capacity(CHUNK);
            upper.extend(entries.drain(CHUNK / 2..));
            self.chunks.insert(chunk + 1, upper);
        }
    }

    /// Takes out an entry that is there.
    pub(super) fn remove(&mut self, entry: &Entry) {
        let cursor = self.lower_bound(|e| e.is_before(entry));
        debug_assert_eq!(self.get(cursor), Some(*entry), "a free block is in its set");
        self.take(cursor);
    }

    /// Takes out the entry at `cursor`.
    pub(super) fn take(&mut self, cursor: Cursor) {
        let entries = &mut self.chunks[cursor.chunk];
        entries.remove(cursor.index);
        if entries.is_empty() {
            self.chunks.remove(cursor.chunk);
        }
    }

    /// The first entry of `size` or more. The cursor may be past the end.
    pub(super) fn at_least(&self, size: u64) -> Cursor {
        self.lower_bound(|e| e.size < size)
    }

    /// The entry at `cursor`, unless it is past the end.
    pub(super) fn get(&self, cursor: Cursor) -> Option<Entry> {
        self.chunks.get(cursor.chunk)?.get(cursor.index).copied()
    }

    /// The place after `cursor`.
    pub(super) fn next(&self, cursor: Cursor) -> Cursor {
        let Cursor { chunk, index } = cursor;
        match self.chunks.get(chunk) {
            Some(entries) if index + 1 < entries.len() => Cursor { chunk, index: index + 1 },
            _ => Cursor { chunk: chunk + 1, index: 0 },
        }
    }

    /// The place before `cursor`, unless that is the first one.
    pub(super) fn prev(&self, cursor: Cursor) -> Option<Cursor> {
        let Cursor { chunk, index } = cursor;
        if index > 0 {
            return Some(Cursor { chunk, index: index - 1 });
        }
        let chunk = chunk.checked_sub(1)?;
        Some(Cursor { chunk, index: self.chunks.get(chunk)?.len() - 1 })
    }

    /// All entries in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.chunks.iter().flatten()
    }

    /// The first place whose entry is not `before`.
    #[inline]
    fn lower_bound(&self, before: impl Fn(&Entry) -> bool) -> Cursor {
        let chunk = self.chunks.partition_point(|c| c.last().is_some_and(&before));
        let index = self.chunks.get(chunk).map_or(0, |entries| entries.partition_point(&before));
        Cursor { chunk, index }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_btree_set(ops in proptest::collection::vec((any::<bool>(), 0_u64..400, 0_u32..3), 0..2000)) {
            let mut set = FreeSet::default();
            let mut model = BTreeSet::new();
            for (add, size, segment) in ops {
                let entry = Entry { size, segment, block: 0, place: 0 };
                if add && model.insert((size, segment)) {
                    set.insert(entry);
                } else if !add && model.remove(&(size, segment)) {
                    set.remove(&entry);
                }
                let found = set.get(set.at_least(size)).map(|e| (e.size, e.segment));
                prop_assert_eq!(found, model.range((size, 0)..).next().copied());
            }
            let all: Vec<_> = set.iter().map(|e| (e.size, e.segment)).collect();
            prop_assert_eq!(&all, &model.iter().copied().collect::<Vec<_>>());
            let mut walked = Vec::new();
            let mut at = set.at_least(0);
            while let Some(e) = set.get(at) {
                walked.push((e.size, e.segment));
                at = set.next(at);
            }
            prop_assert_eq!(&walked, &all);
            while let Some(before) = set.prev(at) {
                at = before;
                prop_assert_eq!(set.get(at).map(|e| (e.size, e.segment)), walked.pop());
            }
            prop_assert!(walked.is_empty());
        }
    }
}
