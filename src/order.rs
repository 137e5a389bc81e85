//! Sorting of short lists.
//!
//! The standard library's stable sort costs the page 3 to 4 KB for every type it sorts. Nothing here sorts more than a few
//! hundred entries.

/// Sorts a short list by a key, keeping the order of equals: insertion sort.
pub(crate) fn sort_short_by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    sort_short_by(items, |a, b| key(a) < key(b));
}

/// Sorts a short list by what comes before what, keeping the order of equals: insertion sort.
pub(crate) fn sort_short_by<T>(items: &mut [T], before: impl Fn(&T, &T) -> bool) {
    for end in 1..items.len() {
        let mut at = end;
        while at > 0 && before(&items[at], &items[at - 1]) {
            items.swap(at, at - 1);
            at -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_keep_their_order() {
        let mut items = [(2, 'a'), (1, 'b'), (2, 'c'), (0, 'd'), (1, 'e')];
        sort_short_by_key(&mut items, |(n, _)| *n);
        assert_eq!(items, [(0, 'd'), (1, 'b'), (1, 'e'), (2, 'a'), (2, 'c')]);
    }
}
