//! Reading the built-in data files. Their shape is checked by tests, so a reader of fields by name does: derived readers
//! of each row's type were 2 % of the page's download.

use std::sync::LazyLock;

use serde_json::{Map, Value};

/// A file or a row of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a>(&'a Map<String, Value>);

/// Reads a built-in file.
pub(crate) fn file(json: &str) -> Map<String, Value> {
    #[expect(clippy::expect_used, reason = "built-in data, read by a test")]
    serde_json::from_str(json).expect("built-in data is valid")
}

impl<'a> Row<'a> {
    pub(crate) const fn of(file: &'a Map<String, Value>) -> Self {
        Self(file)
    }

    /// The object called `key`; an absent one has no fields.
    pub(crate) fn object(self, key: &str) -> &'a Map<String, Value> {
        static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        self.0.get(key).and_then(Value::as_object).unwrap_or(&NONE)
    }

    pub(crate) fn row(self, key: &str) -> Self {
        Self(self.object(key))
    }

    fn list(self, key: &str) -> &'a [Value] {
        self.0.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn rows(self, key: &str) -> impl Iterator<Item = Self> {
        self.list(key).iter().filter_map(Value::as_object).map(Self)
    }

    /// The text called `key`; an absent one is empty.
    pub(crate) fn text(self, key: &str) -> String {
        self.0.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    pub(crate) fn texts(self, key: &str) -> Vec<String> {
        self.list(key).iter().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    pub(crate) fn flag(self, key: &str) -> bool {
        self.0.get(key).and_then(Value::as_bool).unwrap_or_default()
    }

    pub(crate) fn number(self, key: &str) -> Option<u64> {
        self.0.get(key)?.as_u64()
    }

    pub(crate) fn decimal(self, key: &str) -> Option<f64> {
        self.0.get(key)?.as_f64()
    }

    pub(crate) fn decimals(self, key: &str) -> Vec<f64> {
        self.list(key).iter().filter_map(Value::as_f64).collect()
    }

    /// A position in the file's list of sources.
    pub(crate) fn position(self, key: &str) -> Option<usize> {
        self.number(key).and_then(|n| usize::try_from(n).ok())
    }

    pub(crate) fn positions(self, key: &str) -> Vec<usize> {
        self.list(key).iter().filter_map(Value::as_u64).filter_map(|n| usize::try_from(n).ok()).collect()
    }

    /// The fields that are not in `known`, and those of `required` that are absent.
    #[cfg(test)]
    pub(crate) fn misfits(self, required: &[&str], optional: &[&str]) -> Vec<String> {
        let unknown =
            self.0.keys().filter(|key| !required.contains(&key.as_str()) && !optional.contains(&key.as_str()));
        let absent = required.iter().filter(|key| !self.0.contains_key(**key));
        unknown.cloned().chain(absent.map(|key| (*key).to_owned())).collect()
    }
}
