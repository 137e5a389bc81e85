//! Reads a trace from JSON. Everything that could be wrong with an event is found here, so that the replay need not
//! look: memory stays within a small multiple of the text's length whatever the text says.

use core::fmt;
use core::marker::PhantomData;
use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Checkpoint, Event, RecordedFigures, Slot, Trace, TraceError};
use crate::allocator::MAX_REQUEST;
use crate::plan::Version;
use crate::units::{Bytes, MAX_DOCUMENT_BYTES, MIB};

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// The first thing that is wrong, with the index of the event and the field.
    pub fn from_json(text: &str) -> Result<Self, TraceError> {
        let mut reader = Reader::default();
        let mut json = serde_json::Deserializer::from_str(text);
        let read = reader.deserialize(&mut json).and_then(|()| json.end());
        if let Err(error) = read {
            return Err(reader.problem.take().unwrap_or_else(|| reader.blame(&error)));
        }
        reader.finish()
    }
}

/// Any JSON value, as far as events need it.
#[derive(Debug)]
enum Scalar<'a> {
    Bool(bool),
    Whole(u64),
    Negative(i64),
    Real(f64),
    Text(Cow<'a, str>),
    Null,
    Nested,
}

impl fmt::Display for Scalar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(b) => write!(f, "{b}"),
            Self::Whole(n) => write!(f, "{n}"),
            Self::Negative(n) => write!(f, "{n}"),
            Self::Real(x) => write!(f, "{x}"),
            Self::Text(t) => write!(f, "\"{}\"", shortened(t)),
            Self::Null => f.write_str("null"),
            Self::Nested => f.write_str("a list or an object"),
        }
    }
}

/// At most 40 characters of it.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into(),
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Scalar<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyValue<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for AnyValue<'a> {
            type Value = Scalar<'a>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_bool<E>(self, v: bool) -> Result<Self::Value, E> {
                Ok(Scalar::Bool(v))
            }
            fn visit_u64<E>(self, v: u64) -> Result<Self::Value, E> {
                Ok(Scalar::Whole(v))
            }
            fn visit_i64<E>(self, v: i64) -> Result<Self::Value, E> {
                Ok(Scalar::Negative(v))
            }
            fn visit_f64<E>(self, v: f64) -> Result<Self::Value, E> {
                Ok(Scalar::Real(v))
            }
            fn visit_str<E>(self, v: &str) -> Result<Self::Value, E> {
                Ok(Scalar::Text(Cow::Owned(v.into())))
            }
            fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Self::Value, E> {
                Ok(Scalar::Text(Cow::Borrowed(v)))
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Scalar::Null)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar::Nested)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar::Nested)
            }
        }
        deserializer.deserialize_any(AnyValue(PhantomData))
    }
}

/// An event as written. Fields that no operation has (recorders add times, frames, categories) are skipped.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct RawEvent<'a> {
    #[serde(borrow)]
    op: Option<Scalar<'a>>,
    #[serde(borrow)]
    id: Option<Scalar<'a>>,
    #[serde(borrow)]
    bytes: Option<Scalar<'a>>,
    #[serde(borrow)]
    stream: Option<Scalar<'a>>,
    #[serde(borrow)]
    value: Option<Scalar<'a>>,
    #[serde(borrow)]
    pool: Option<Scalar<'a>>,
    #[serde(borrow)]
    oom: Option<Scalar<'a>>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct RawCheckpoint<'a> {
    #[serde(borrow)]
    after_event: Option<Scalar<'a>>,
    segments: Option<IgnoredAny>,
    #[serde(borrow)]
    allocated: Option<Scalar<'a>>,
    #[serde(borrow)]
    requested: Option<Scalar<'a>>,
    #[serde(borrow)]
    active: Option<Scalar<'a>>,
    #[serde(borrow)]
    reserved: Option<Scalar<'a>>,
    #[serde(borrow)]
    inactive_split: Option<Scalar<'a>>,
}

/// What is known about an id.
#[derive(Clone, Copy)]
enum Id {
    Live(Slot),
    /// Its allocation failed in the recording. Replayed elsewhere it may succeed.
    Failed(Slot),
    Freed,
}

/// The trace so far.
#[derive(Default)]
struct Reader<'a> {
    name: String,
    alloc_conf: String,
    total: Option<Bytes>,
    pytorch: Option<Version>,
    events: Option<Vec<Event>>,
    checkpoints: Vec<Checkpoint>,
    ids: BTreeMap<Cow<'a, str>, Id>,
    slots: u32,
    vacant: Vec<Slot>,
    /// What is wrong, said better than serde can.
    problem: Option<TraceError>,
    /// The list element being read, for errors that serde finds.
    at: Option<(&'static str, usize)>,
}

impl<'de> DeserializeSeed<'de> for &mut Reader<'de> {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Reader<'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a trace: an object with a list `events`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match &*key {
                "name" => self.name = self.text("name", map.next_value()?)?,
                "alloc_conf" => self.alloc_conf = self.text("alloc_conf", map.next_value()?)?,
                "total_mb" => self.total = self.total(map.next_value()?)?,
                "torch" => {
                    let text = self.text("torch", map.next_value()?)?;
                    self.pytorch = Some(text.parse().or_else(|problem| self.field("torch", problem))?);
                }
                "events" if self.events.is_some() => self.field("events", "is there twice")?,
                "events" => {
                    self.events = Some(Vec::new());
                    map.next_value_seed(Elements(self, "event", Reader::event))?;
                }
                "checkpoints" => map.next_value_seed(Elements(self, "checkpoint", Reader::checkpoint))?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// A list whose elements go to the reader one by one.
struct Elements<'r, 'de, T>(
    &'r mut Reader<'de>,
    &'static str,
    fn(&mut Reader<'de>, usize, T) -> Result<(), TraceError>,
);

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Elements<'_, 'de, T> {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<'_, 'de, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of {}s", self.1)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Self(reader, what, take) = self;
        for index in 0.. {
            reader.at = Some((what, index));
            let Some(element) = seq.next_element::<T>()? else { break };
            if let Err(problem) = take(reader, index, element) {
                reader.problem = Some(problem);
                return Err(A::Error::custom("see `problem`"));
            }
        }
        reader.at = None;
        Ok(())
    }
}

impl<'de> Reader<'de> {
    /// What serde found, with the place where the reader was.
    fn blame(&self, error: &serde_json::Error) -> TraceError {
        let problem = match self.at {
            Some((what, index)) => format!("{what} {index}: {error}"),
            None => error.to_string(),
        };
        TraceError::Json { problem }
    }

    fn field<T, E: Error>(&mut self, field: &str, problem: impl Into<String>) -> Result<T, E> {
        self.problem = Some(TraceError::Field { field: field.into(), problem: problem.into() });
        Err(E::custom("see `problem`"))
    }

    fn text<E: Error>(&mut self, field: &str, value: Scalar<'_>) -> Result<String, E> {
        match value {
            Scalar::Text(text) => Ok(text.into_owned()),
            Scalar::Null => Ok(String::new()),
            other => self.field(field, format!("{other} is not a text")),
        }
    }

    fn total<E: Error>(&mut self, value: Scalar<'_>) -> Result<Option<Bytes>, E> {
        match value {
            Scalar::Null => Ok(None),
            Scalar::Whole(mib) if mib <= MAX_DOCUMENT_BYTES / MIB => Ok(Some(Bytes::mib(mib))),
            other => {
                self.field("total_mb", format!("{other} is not a number of MiB up to {}", MAX_DOCUMENT_BYTES / MIB))
            }
        }
    }

    fn event(&mut self, index: usize, raw: RawEvent<'de>) -> Result<(), TraceError> {
        let wrong = |field: &str, problem: String| TraceError::Event { index, field: field.into(), problem };
        let whole = |field: &str, value: Option<Scalar<'_>>, most: u64| match value {
            Some(Scalar::Whole(n)) if n <= most => Ok(n),
            Some(other) => Err(wrong(field, format!("{other} is not a whole number from 0 to {most}"))),
            None => Err(wrong(field, "is missing".into())),
        };
        let stream = |value| Ok(u32::try_from(whole("stream", value, u32::MAX.into())?).unwrap_or(u32::MAX));
        let boolean = |value: Option<Scalar<'_>>| match value {
            Some(Scalar::Bool(b)) => Ok(b),
            Some(other) => Err(wrong("value", format!("{other} is not true or false"))),
            None => Err(wrong("value", "is missing".into())),
        };
        let id = |value: Option<Scalar<'de>>| match value {
            Some(Scalar::Text(id)) => Ok(id),
            Some(Scalar::Whole(id)) => Ok(Cow::Owned(id.to_string())),
            Some(other) => Err(wrong("id", format!("{other} is not a text"))),
            None => Err(wrong("id", "is missing".into())),
        };
        let op = match raw.op {
            Some(Scalar::Text(op)) => op,
            Some(other) => return Err(wrong("op", format!("{other} is not a text"))),
            None => return Err(wrong("op", "is missing".into())),
        };
        let event = match &*op {
            "alloc" => {
                let bytes = whole("bytes", raw.bytes, MAX_REQUEST)?;
                let stream = raw.stream.map_or(Ok(0), |s| stream(Some(s)))?;
                let slot = self.allocate(id(raw.id)?, raw.oom.is_some()).map_err(|p| wrong("id", p))?;
                Event::Alloc { slot, bytes, stream }
            }
            "free" => Event::Free { slot: self.free(&id(raw.id)?).map_err(|p| wrong("id", p))? },
            "record_stream" => {
                let stream = stream(raw.stream)?;
                Event::RecordStream { slot: self.live(&id(raw.id)?).map_err(|p| wrong("id", p))?, stream }
            }
            "empty_cache" => Event::EmptyCache,
            "events_pending" => Event::EventsPending(boolean(raw.value)?),
            "events_complete" => Event::EventsPending(!boolean(raw.value)?),
            "set_fraction" | "set_memory_fraction" => match raw.value {
                Some(Scalar::Real(f)) if (0.0..=1.0).contains(&f) => Event::SetFraction(f),
                Some(Scalar::Whole(f @ (0 | 1))) => Event::SetFraction(if f == 0 { 0.0 } else { 1.0 }),
                Some(other) => return Err(wrong("value", format!("{other} is not a number from 0 to 1"))),
                None => return Err(wrong("value", "is missing".into())),
            },
            "begin_pool" => Event::BeginPool(whole("pool", raw.pool, u64::MAX)?),
            "end_pool" => Event::EndPool(whole("pool", raw.pool, u64::MAX)?),
            "release_pool" => Event::ReleasePool(whole("pool", raw.pool, u64::MAX)?),
            _ => return Err(wrong("op", format!("\"{}\" is not an operation", shortened(&op)))),
        };
        self.events.get_or_insert_default().push(event);
        Ok(())
    }

    fn allocate(&mut self, id: Cow<'de, str>, failed: bool) -> Result<Slot, String> {
        if let Some(Id::Live(_)) = self.ids.get(&id) {
            return Err(format!("\"{}\" is allocated already", shortened(&id)));
        }
        let slot = match self.vacant.pop() {
            Some(slot) => slot,
            None => {
                let slot = Slot(self.slots);
                self.slots = self.slots.checked_add(1).ok_or("more than 2³² live allocations")?;
                slot
            }
        };
        self.ids.insert(id, if failed { Id::Failed(slot) } else { Id::Live(slot) });
        Ok(slot)
    }

    fn live(&self, id: &str) -> Result<Slot, String> {
        match self.ids.get(id) {
            Some(Id::Live(slot) | Id::Failed(slot)) => Ok(*slot),
            Some(Id::Freed) => Err(format!("\"{}\" is freed already", shortened(id))),
            None => Err(format!("\"{}\" was never allocated", shortened(id))),
        }
    }

    fn free(&mut self, id: &str) -> Result<Slot, String> {
        let slot = self.live(id)?;
        if let Some(known) = self.ids.get_mut(id) {
            *known = Id::Freed;
        }
        self.vacant.push(slot);
        Ok(slot)
    }

    fn checkpoint(&mut self, index: usize, raw: RawCheckpoint<'de>) -> Result<(), TraceError> {
        let whole = |field: &str, value: Option<Scalar<'_>>| match value {
            None => Ok(None),
            Some(Scalar::Whole(n)) => Ok(Some(n)),
            Some(other) => {
                let problem = format!("{other} is not a whole number");
                Err(TraceError::Field { field: format!("checkpoints[{index}].{field}"), problem })
            }
        };
        let bytes = |field: &str, value| Ok(whole(field, value)?.map(Bytes));
        let recorded = RecordedFigures {
            allocated: bytes("allocated", raw.allocated)?,
            requested: bytes("requested", raw.requested)?,
            active: bytes("active", raw.active)?,
            reserved: bytes("reserved", raw.reserved)?,
            inactive_split: bytes("inactive_split", raw.inactive_split)?,
        };
        let Some(after_event) = whole("after_event", raw.after_event)? else {
            let field = format!("checkpoints[{index}].after_event");
            return Err(TraceError::Field { field, problem: "is missing".into() });
        };
        // More than the machine can count is certainly past the last event.
        let after_event = usize::try_from(after_event).unwrap_or(usize::MAX);
        self.checkpoints.push(Checkpoint { after_event, segments: raw.segments.is_some(), recorded });
        Ok(())
    }

    fn finish(mut self) -> Result<Trace, TraceError> {
        let field = |field: &str, problem: String| Err(TraceError::Field { field: field.into(), problem });
        let Some(events) = self.events else { return field("events", "is missing".into()) };
        self.checkpoints.sort_by_key(|c| c.after_event);
        if let Some(last) = self.checkpoints.last().filter(|c| c.after_event >= events.len()) {
            return field("checkpoints", format!("after_event {} of {} events", last.after_event, events.len()));
        }
        Ok(Trace {
            name: self.name,
            alloc_conf: self.alloc_conf,
            total: self.total,
            pytorch: self.pytorch,
            events,
            checkpoints: self.checkpoints,
            slots: self.slots,
        })
    }
}
