//! A recording that was dumped as JSON: the same dictionaries and lists.

use core::cell::RefCell;
use core::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};

use super::error::{Problem, SnapshotError};
use super::store::{Store, Value};

/// Reads a JSON text into a store. Its reader bounds the depth.
pub(super) fn read(text: &str, most_bytes: usize) -> Result<(Store, Value), SnapshotError> {
    let store = RefCell::new(Store::new(most_bytes));
    let mut source = serde_json::Deserializer::from_str(text);
    let top = Into(&store).deserialize(&mut source).and_then(|top| source.end().map(|()| top));
    let top =
        top.map_err(|error| SnapshotError { opcode: None, offset: 0, problem: Problem::Json(error.to_string()) })?;
    Ok((store.into_inner(), top))
}

#[derive(Clone, Copy)]
struct Into<'a>(&'a RefCell<Store>);

impl<'de> DeserializeSeed<'de> for Into<'_> {
    type Value = Value;
    fn deserialize<D: serde::Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        source.deserialize_any(self)
    }
}

fn store_error<E: Error>(problem: Problem) -> E {
    E::custom(SnapshotError { opcode: None, offset: 0, problem })
}

impl<'de> Visitor<'de> for Into<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or(Value::Big, Value::Int))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.0.borrow_mut().add_text(text.as_bytes()).map_err(store_error)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut source: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = source.next_element_seed(self)? {
            items.push(item);
        }
        self.0.borrow_mut().add_list(&items).map_err(store_error)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut source: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(key) = source.next_key_seed(self)? {
            pairs.extend([key, source.next_value_seed(self)?]);
        }
        let mut store = self.0.borrow_mut();
        let dict = store.add_dict().map_err(store_error)?;
        if let Value::Dict(number) = dict {
            store.set(number, &pairs).map_err(store_error)?;
        }
        Ok(dict)
    }
}
