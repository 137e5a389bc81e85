//! Who holds the memory: live blocks grouped by where in the program they were allocated.

use std::collections::BTreeMap;

use super::recording::{Action, Frame, Frames, Snapshot};
use crate::allocator::BlockState;
use crate::bill::{Part, PartBytes};
use crate::units::Bytes;

/// Blocks that were allocated at one place of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The innermost frame outside of PyTorch, or the innermost one; `None`: no stack was recorded.
    pub place: Option<Place>,
    /// What the memory is for, as far as the stack tells.
    pub part: Option<Part>,
    /// How many blocks.
    pub count: u64,
    /// Bytes asked for; of blocks whose version does not say, their size.
    pub bytes: Bytes,
}

/// Bytes by what they are for, in the order of the parts, what no stack tells last; parts without any are left out.
#[must_use]
pub fn by_part(holders: &[Holder]) -> Vec<(Option<Part>, Bytes)> {
    let parts = Part::ALL.into_iter().map(Some).chain([None]);
    let sum = |part| holders.iter().filter(|h| h.part == part).map(|h| h.bytes.get()).fold(0, u64::saturating_add);
    parts.map(|part| (part, Bytes(sum(part)))).filter(|(_, bytes)| !bytes.is_zero()).collect()
}

/// What was recorded of each part, beside what `predicted` has of it: also of a part of which only one of them knows.
#[must_use]
pub fn beside(recorded: &[(Option<Part>, Bytes)], predicted: PartBytes) -> Vec<(Option<Part>, Bytes, Option<Bytes>)> {
    let of = |part| recorded.iter().find(|(one, _)| *one == part).map_or(Bytes::ZERO, |(_, bytes)| *bytes);
    let parts = Part::ALL.into_iter().map(|part| (Some(part), of(Some(part)), Some(predicted.get(part))));
    parts
        .chain([(None, of(None), None)])
        .filter(|(_, a, b)| !(a.is_zero() && b.unwrap_or_default().is_zero()))
        .collect()
}

/// A place in a program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file's path.
    pub file: String,
    /// The function.
    pub name: String,
    /// The line.
    pub line: i64,
}

/// The moment at which the most was asked for at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peak {
    /// The trace's entry that reached it. `None`: it was before the first one.
    pub entry: Option<usize>,
    /// Bytes asked for.
    pub requested: Bytes,
    /// Who held them, largest first.
    pub holders: Vec<Holder>,
}

impl Snapshot {
    /// Who holds a device's memory now, largest first.
    #[must_use]
    pub fn holders(&self, device: u32) -> Vec<Holder> {
        self.grouped(self.live_now(device).into_values())
    }

    /// The moment of a device's trace at which the most was asked for at once, and who held it. `None`: there is no trace.
    #[must_use]
    pub fn peak(&self, device: u32) -> Option<Peak> {
        let trace = self.trace(device);
        if trace.is_empty() {
            return None;
        }
        let mut start = self.live_now(device);
        // Asked to be freed and waiting for another stream: freed later, as far as the allocation goes.
        for entry in trace.iter().rev() {
            match entry.action {
                Action::Alloc => {
                    start.remove(&entry.address);
                }
                Action::FreeRequested => {
                    start.insert(entry.address, (entry.size, Frames::default()));
                }
                _ => {}
            }
        }
        let sum = |live: &Live| live.values().fold(0_u64, |sum, (bytes, _)| sum.saturating_add(*bytes));
        let run = |until: usize, live: &mut Live, see: &mut dyn FnMut(usize, u64)| {
            let mut now = sum(live);
            for (index, entry) in trace.iter().enumerate().take(until) {
                match entry.action {
                    Action::Alloc => {
                        let before = live.insert(entry.address, (entry.size, entry.frames));
                        now = now.saturating_sub(before.map_or(0, |(bytes, _)| bytes)).saturating_add(entry.size);
                        see(index, now);
                    }
                    Action::FreeRequested => {
                        now = now.saturating_sub(live.remove(&entry.address).map_or(0, |(bytes, _)| bytes));
                    }
                    _ => {}
                }
            }
        };
        let (mut most, mut at) = (sum(&start), None);
        run(trace.len(), &mut start.clone(), &mut |index, now| {
            if now > most {
                (most, at) = (now, Some(index));
            }
        });
        run(at.map_or(0, |at| at + 1), &mut start, &mut |_, _| {});
        Some(Peak { entry: at, requested: Bytes(most), holders: self.grouped(start.into_values()) })
    }

    fn live_now(&self, device: u32) -> Live {
        let blocks = self.segments_of(device).flat_map(|(_, blocks)| blocks);
        let live = blocks.filter(|block| block.state == BlockState::Allocated);
        live.map(|block| (block.address, (block.requested.unwrap_or(block.size), block.frames))).collect()
    }

    fn grouped(&self, live: impl Iterator<Item = (u64, Frames)>) -> Vec<Holder> {
        let mut by_stack: BTreeMap<Frames, (u64, u64)> = BTreeMap::new();
        for (bytes, frames) in live {
            let (count, sum) = by_stack.entry(frames).or_default();
            *count += 1;
            *sum = sum.saturating_add(bytes);
        }
        let mut by_place: BTreeMap<(Option<Place>, Option<u8>), Holder> = BTreeMap::new();
        for (frames, (count, bytes)) in by_stack {
            let (place, part) = (self.place(frames), self.part(frames));
            let key = (place.clone(), part.map(|part| part as u8));
            let holder = by_place.entry(key).or_insert(Holder { place, part, count: 0, bytes: Bytes::ZERO });
            holder.count += count;
            holder.bytes = Bytes(holder.bytes.get().saturating_add(bytes));
        }
        let mut all: Vec<Holder> = by_place.into_values().collect();
        all.sort_by_key(|holder| core::cmp::Reverse(holder.bytes));
        all
    }

    /// The innermost frame outside of PyTorch, or the innermost one.
    fn place(&self, frames: Frames) -> Option<Place> {
        let of = |frame: Frame<'_>| Place { file: frame.file.into(), name: frame.name.into(), line: frame.line };
        let ours = self.frames(frames).find(|frame| frame.line > 0 && !is_torch(frame.file));
        ours.or_else(|| self.frames(frames).next()).map(of)
    }

    /// What the memory is for, by the frames of PyTorch and of libraries that say so.
    fn part(&self, frames: Frames) -> Option<Part> {
        let mut part = None;
        for Frame { file, name, .. } in self.frames(frames) {
            let within = |folder: &str| file.contains(folder);
            if within("/optim/") || within("/bitsandbytes/optim") {
                // States are made where a parameter is first seen (`_init_group`, `init_state`); the rest are temporaries.
                let makes = matches!(name, "_init_group" | "init_state" | "get_state_buffer" | "__init__");
                return Some(if makes { Part::States } else { Part::Temporary });
            }
            if within("torch/nn/modules/module.py") && matches!(name, "_apply" | "to" | "cuda" | "to_empty") {
                return Some(Part::Weights);
            }
            if matches!(name, "from_pretrained" | "_from_config" | "_load_pretrained_model") {
                return Some(Part::Weights);
            }
            if name == "__init__" && within("torch/nn/modules/") {
                return Some(Part::Weights);
            }
            if name == "backward" && within("torch/") {
                // The engine's own threads have no Python frames; what has some is run by hooks and custom functions.
                return part.or(Some(Part::Activations));
            }
            if part.is_none() && matches!(name, "forward" | "_call_impl") {
                part = Some(Part::Activations);
            }
        }
        part
    }
}

/// Live blocks by address: bytes asked for, and the stack.
type Live = BTreeMap<u64, (u64, Frames)>;

/// Whether a file is PyTorch's own.
fn is_torch(file: &str) -> bool {
    file.contains("/torch/") || file.contains("\\torch\\") || file.starts_with("torch/") || file.starts_with('<')
}
