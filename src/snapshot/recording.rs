//! A recording as typed data, whatever version wrote it.

use super::error::{Problem, SnapshotError};
use super::store::{Dict, RawEntry, Store, Value};
use crate::allocator::BlockState;
use crate::units::Bytes;

/// The most devices that are told apart.
const MAX_DEVICES: i64 = 1024;
/// The largest size that is believed: what no machine has, so that sums stay within 64 bits.
const MAX_SIZE: u64 = 1 << 48;

/// What `torch.cuda.memory._dump_snapshot()` wrote, or `memory_snapshot()`.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) store: Store,
    /// The segments, as written.
    pub segments: Vec<Segment>,
    /// The blocks of all segments, one segment after the other.
    pub blocks: Vec<Block>,
    /// What was recorded, by device, oldest first.
    pub traces: Vec<Vec<Entry>>,
    /// `PYTORCH_CUDA_ALLOC_CONF`, where the recording says; empty: unset.
    pub alloc_conf: Option<String>,
    /// A bare list of segments, as PyTorch before 2.0 wrote it and `memory_snapshot()` returns it.
    pub bare_list: bool,
}

/// A segment; of an expandable one, a contiguous mapped part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The device's index.
    pub device: u32,
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// The stream's handle; 0 where the version does not say.
    pub stream: i64,
    /// In the small pool.
    pub small: bool,
    /// Part of an expandable segment.
    pub expandable: bool,
    /// Its private pool (of a CUDA graph, or `MemPool`); 0: none.
    pub pool: u64,
    /// Its blocks, in [`Snapshot::blocks`].
    pub blocks: core::ops::Range<usize>,
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes asked for, where the version says and the block is in use.
    pub requested: Option<u64>,
    /// Its state.
    pub state: BlockState,
    /// The stack that allocated it.
    pub frames: Frames,
}

/// A call stack, innermost first; empty where none was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frames(pub(super) Option<u32>);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// It was freed, and may still be in use on another stream.
    FreeRequested,
    /// It can be used again.
    FreeCompleted,
    /// A segment was taken from the device.
    SegmentAlloc,
    /// A segment was given back.
    SegmentFree,
    /// Pages of an expandable segment were mapped.
    SegmentMap,
    /// Pages of an expandable segment were unmapped.
    SegmentUnmap,
    /// A recording was made.
    Snapshot,
    /// An allocation failed.
    OutOfMemory,
    /// Something that changes nothing.
    Other,
}

/// An entry of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What happened.
    pub action: Action,
    /// Where; of a failure, what the device had free.
    pub address: u64,
    /// Bytes: asked for, or of the segment.
    pub size: u64,
    /// The stream's handle.
    pub stream: i64,
    /// Its private pool, 0 for none; `None`: the version does not say.
    pub pool: Option<u64>,
    /// Where in the program.
    pub frames: Frames,
}

/// A frame of a call stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The file's path.
    pub file: &'a str,
    /// The function.
    pub name: &'a str,
    /// The line.
    pub line: i64,
}

impl Snapshot {
    /// Makes sense of what was read.
    pub(super) fn of(store: Store, top: Value) -> Result<Self, SnapshotError> {
        let left = store.left();
        let mut read = Reader { store: &store, segments: Vec::new(), blocks: Vec::new(), at: String::new(), left };
        let (segments, traces, settings, bare_list) = match top {
            Value::List(_) => (Some(top), None, None, true),
            Value::Dict(dict) => {
                let get = |key| store.get(dict, key);
                (get("segments"), get("device_traces"), get("allocator_settings"), false)
            }
            _ => return Err(read.wrong("a dictionary or a list of segments")),
        };
        let Some(Value::List(list)) = segments else {
            read.at = "segments".into();
            return Err(read.wrong("a list of segments"));
        };
        for (n, segment) in store.list(list).iter().enumerate() {
            read.at = format!("segments[{n}]");
            read.segment(*segment)?;
        }
        let mut of_devices = Vec::new();
        if let Some(Value::List(list)) = traces {
            let devices = store.list(list);
            if devices.len() > usize::try_from(MAX_DEVICES).unwrap_or_default() {
                read.at = "device_traces".into();
                return Err(read.wrong("at most 1024 devices"));
            }
            for (device, entries) in devices.iter().enumerate() {
                read.at = format!("device_traces[{device}]");
                let Value::List(entries) = entries else { return Err(read.wrong("a list of entries")) };
                let entries = store.list(*entries);
                // Shared values are written out here: what is small in the file may be large.
                read.pay(size_of_val(entries).saturating_mul(size_of::<Entry>() / size_of::<Value>()))?;
                let mut trace = Vec::with_capacity(entries.len());
                for (n, entry) in entries.iter().enumerate() {
                    trace.push(read.entry(*entry).map_err(|expected| SnapshotError {
                        opcode: None,
                        offset: 0,
                        problem: Problem::Shape { at: format!("device_traces[{device}][{n}]"), expected },
                    })?);
                }
                of_devices.push(trace);
            }
        }
        let alloc_conf = match settings {
            Some(Value::Dict(dict)) => match store.get(dict, "PYTORCH_CUDA_ALLOC_CONF") {
                Some(Value::Text(n)) => Some(store.text(n).to_owned()),
                _ => None,
            },
            _ => None,
        };
        let Reader { segments, blocks, .. } = read;
        Ok(Self { segments, blocks, traces: of_devices, alloc_conf, bare_list, store })
    }

    /// The frames of a stack, innermost first.
    pub fn frames(&self, frames: Frames) -> impl Iterator<Item = Frame<'_>> {
        let list = frames.0.map_or(&[][..], |list| self.store.list(list));
        list.iter().filter_map(|frame| {
            let Value::Dict(frame) = frame else { return None };
            let text = |key| match self.store.get(*frame, key) {
                Some(Value::Text(n)) => self.store.text(n),
                _ => "",
            };
            let line = match self.store.get(*frame, "line") {
                Some(Value::Int(line)) => line,
                _ => 0,
            };
            Some(Frame { file: text("filename"), name: text("name"), line })
        })
    }
}

struct Reader<'a> {
    store: &'a Store,
    segments: Vec<Segment>,
    blocks: Vec<Block>,
    /// The part that is being read.
    at: String,
    /// Bytes that may still be taken.
    left: usize,
}

impl Reader<'_> {
    fn pay(&mut self, bytes: usize) -> Result<(), SnapshotError> {
        self.left = self.left.checked_sub(bytes).ok_or(SnapshotError {
            opcode: None,
            offset: 0,
            problem: Problem::TooLarge,
        })?;
        Ok(())
    }

    fn wrong(&self, expected: &'static str) -> SnapshotError {
        let at = if self.at.is_empty() { "the file" } else { &self.at };
        SnapshotError { opcode: None, offset: 0, problem: Problem::Shape { at: at.into(), expected } }
    }

    /// A size or an address of `dict`.
    fn number(&self, dict: u32, key: &'static str) -> Result<Option<u64>, SnapshotError> {
        match self.store.get(dict, key) {
            None | Some(Value::None) => Ok(None),
            Some(Value::Int(n)) => u64::try_from(n).map(Some).map_err(|_| self.wrong_field(key)),
            Some(_) => Err(self.wrong_field(key)),
        }
    }

    fn wrong_field(&self, key: &str) -> SnapshotError {
        let problem =
            Problem::Shape { at: format!("{}.{key}", self.at), expected: "a size below 2⁴⁸ or an address" };
        SnapshotError { opcode: None, offset: 0, problem }
    }

    fn size(&self, dict: u32, key: &'static str) -> Result<Option<u64>, SnapshotError> {
        match self.number(dict, key)? {
            Some(n) if n > MAX_SIZE => Err(self.wrong_field(key)),
            size => Ok(size),
        }
    }

    fn segment(&mut self, value: Value) -> Result<(), SnapshotError> {
        let Value::Dict(dict) = value else { return Err(self.wrong("a segment")) };
        let get = |key| self.store.get(dict, key);
        let Some(Value::List(blocks)) = get("blocks") else { return Err(self.wrong("a segment with its blocks")) };
        let device = match get("device") {
            None => 0,
            Some(Value::Int(n @ 0..MAX_DEVICES)) => u32::try_from(n).unwrap_or_default(),
            Some(_) => return Err(self.wrong("a device's index")),
        };
        let address = self.number(dict, "address")?.unwrap_or_default();
        let size = self.size(dict, "total_size")?.ok_or_else(|| self.wrong("a segment with its size"))?;
        let stream = match get("stream") {
            Some(Value::Int(n)) => n,
            _ => 0,
        };
        let small = matches!(get("segment_type"), Some(Value::Text(n)) if self.store.text(n) == "small");
        let expandable = get("is_expandable") == Some(Value::Bool(true));
        let pool = match get("segment_pool_id") {
            Some(Value::List(id)) => pool_of(self.store.list(id)),
            _ => 0,
        };
        // Shared values are written out here: what is small in the file may be large.
        let count = self.store.list(blocks).len();
        self.pay(count.saturating_mul(size_of::<Block>()).saturating_add(size_of::<Segment>()))?;
        let first = self.blocks.len();
        let of_segment = core::mem::take(&mut self.at);
        let mut end = 0;
        for (n, block) in self.store.list(blocks).iter().enumerate() {
            self.at = format!("{of_segment}.blocks[{n}]");
            let block = self.block(*block, address, end)?;
            end = end
                .checked_add(block.size)
                .filter(|end| *end <= size)
                .ok_or_else(|| self.wrong("a block in its segment"))?;
            self.blocks.push(block);
        }
        self.at = of_segment;
        if end != size {
            return Err(self.wrong("blocks that fill their segment"));
        }
        let blocks = first..self.blocks.len();
        self.segments.push(Segment { device, address, size, stream, small, expandable, pool, blocks });
        Ok(())
    }

    fn block(&self, value: Value, segment: u64, offset: u64) -> Result<Block, SnapshotError> {
        let Value::Dict(dict) = value else { return Err(self.wrong("a block")) };
        let get = |key| self.store.get(dict, key);
        let size = self.size(dict, "size")?.ok_or_else(|| self.wrong("a block with its size"))?;
        let state = match get("state") {
            Some(Value::Text(n)) => match self.store.text(n) {
                "active_allocated" => BlockState::Allocated,
                "active_pending_free" | "active_awaiting_free" => BlockState::PendingFree,
                "inactive" => BlockState::Inactive,
                _ => return Err(self.wrong("a block with a known state")),
            },
            _ => return Err(self.wrong("a block with its state")),
        };
        // From 1.12 to 2.0 the stack lies in a history, whose first entry is the latest.
        let history = match get("history") {
            Some(Value::List(list)) => self.store.list(list).first().copied(),
            _ => None,
        };
        let latest = match history {
            Some(Value::Dict(latest)) => Some(latest),
            _ => None,
        };
        let frames = match get("frames").or_else(|| self.store.get(latest?, "frames")) {
            Some(Value::List(list)) => Frames(Some(list)),
            _ => Frames(None),
        };
        let requested = match self.size(dict, "requested_size")? {
            None => latest.and_then(|latest| self.size(latest, "real_size").transpose()).transpose()?,
            requested => requested,
        };
        let address = self.number(dict, "address")?.or_else(|| segment.checked_add(offset));
        let address = address.ok_or_else(|| self.wrong("an address"))?;
        // A free block may keep what its last use asked for.
        let requested = requested.filter(|_| state != BlockState::Inactive);
        if requested.is_some_and(|requested| requested > size) {
            return Err(self.wrong("a block that holds what was asked for"));
        }
        Ok(Block { address, size, requested, state, frames })
    }

    fn entry(&self, value: Value) -> Result<Entry, &'static str> {
        let entry = match value {
            Value::Dict(dict) => self.store.dict(dict),
            _ => None,
        };
        let Some(Dict::Entry(entry)) = entry else { return Err("an entry of a trace, whose numbers fit") };
        let RawEntry { action, addr, device_free, size, stream, frames, pool_id } = **entry;
        let action = match self.store.text(action) {
            "alloc" => Action::Alloc,
            "free_requested" => Action::FreeRequested,
            // Tools before 2.0 write `free`.
            "free_completed" | "free" => Action::FreeCompleted,
            "segment_alloc" => Action::SegmentAlloc,
            "segment_free" => Action::SegmentFree,
            "segment_map" => Action::SegmentMap,
            "segment_unmap" => Action::SegmentUnmap,
            "snapshot" => Action::Snapshot,
            "oom" => Action::OutOfMemory,
            _ => Action::Other,
        };
        let number = |n: Option<i64>| u64::try_from(n.unwrap_or_default()).map_err(|_| "a size or an address");
        let address = number(if action == Action::OutOfMemory { device_free } else { addr })?;
        let size = number(size)?;
        if action != Action::Other && size > MAX_SIZE {
            return Err("a size below 2⁴⁸");
        }
        Ok(Entry {
            action,
            address,
            size,
            stream: stream.unwrap_or_default(),
            pool: pool_id.map(|id| pool_of(self.store.list(id))),
            frames: Frames(frames),
        })
    }
}

/// One number for the identity of a pool, a pair of numbers; the default pool's is (0, 0).
fn pool_of(id: &[Value]) -> u64 {
    let number = |value: &Value| match value {
        Value::Int(n) => n.unsigned_abs(),
        _ => u64::MAX,
    };
    id.iter().map(number).fold(0, |all, n| all.wrapping_mul(1 << 32).wrapping_add(n))
}

/// Sums of a device's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Segments.
    pub segments: usize,
    /// `memory_reserved`.
    pub reserved: Bytes,
    /// `memory_allocated`.
    pub allocated: Bytes,
    /// Allocated, or freed and waiting for another stream.
    pub active: Bytes,
    /// Asked for, of active blocks; `None` where some block does not say.
    pub requested: Option<Bytes>,
    /// Free blocks in classic segments that are in use.
    pub inactive_split: Bytes,
    /// Free blocks.
    pub inactive: Bytes,
}

impl Snapshot {
    /// The devices that have segments or a trace.
    #[must_use]
    pub fn devices(&self) -> Vec<u32> {
        let traced = self.traces.iter().enumerate().filter(|(_, trace)| !trace.is_empty());
        let mut all: Vec<u32> = traced.filter_map(|(n, _)| u32::try_from(n).ok()).collect();
        all.extend(self.segments.iter().map(|segment| segment.device));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// A device's trace, oldest entry first.
    #[must_use]
    pub fn trace(&self, device: u32) -> &[Entry] {
        self.traces.get(device as usize).map_or(&[], Vec::as_slice)
    }

    /// A device's segments with their blocks.
    pub fn segments_of(&self, device: u32) -> impl Iterator<Item = (&Segment, &[Block])> {
        let of = self.segments.iter().filter(move |segment| segment.device == device);
        of.map(|segment| (segment, self.blocks.get(segment.blocks.clone()).unwrap_or_default()))
    }

    /// Sums over a device's blocks, which are at most 2⁴⁸ bytes each.
    #[must_use]
    pub fn totals(&self, device: u32) -> Totals {
        let mut totals = Totals { requested: Some(Bytes::ZERO), ..Totals::default() };
        let mut reserved = 0_u64;
        for (segment, blocks) in self.segments_of(device) {
            totals.segments += 1;
            reserved = reserved.saturating_add(segment.size);
            let whole = blocks.len() == 1;
            for block in blocks {
                let add = |sum: &mut Bytes| *sum = Bytes(sum.get().saturating_add(block.size));
                match block.state {
                    BlockState::Inactive => {
                        add(&mut totals.inactive);
                        if !whole && !segment.expandable {
                            add(&mut totals.inactive_split);
                        }
                        continue;
                    }
                    BlockState::Allocated => add(&mut totals.allocated),
                    BlockState::PendingFree => {}
                }
                add(&mut totals.active);
                totals.requested =
                    totals.requested.and_then(|sum| Some(Bytes(sum.get().saturating_add(block.requested?))));
            }
        }
        totals.reserved = Bytes(reserved);
        totals
    }
}
