//! Memory snapshots are recognised and not read here (`crate::snapshot` does): each is said by name.

use crate::measure::format::literal::Literal;

/// What a file is that begins with these bytes, where it is known and not read.
pub(super) fn named(head: &[u8]) -> Option<&'static str> {
    match head {
        [0x80, 2..=5, ..] => {
            Some("a pickle, such as a snapshot of torch.cuda.memory._dump_snapshot, which the command `snapshot` reads")
        }
        [0x1f, 0x8b, ..] => Some("compressed with gzip, which the command `import` unpacks"),
        [b'P', b'K', 3, 4, ..] => Some("a zip archive, such as a checkpoint of torch.save, which holds no measurement"),
        _ => None,
    }
}

/// What a JSON document is.
pub(super) fn named_json(value: &Literal) -> Option<&'static str> {
    let segments = value.get("segments").map(Literal::items).or(match value {
        Literal::List(items) => Some(items),
        _ => None,
    });
    let is_segment = |item: &Literal| item.get("total_size").is_some() && item.get("blocks").is_some();
    if segments.is_some_and(|segments| segments.first().is_some_and(is_segment)) || value.get("device_traces").is_some()
    {
        return Some("a snapshot of torch.cuda.memory._snapshot, which the command `snapshot` reads");
    }
    None
}
