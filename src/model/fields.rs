//! Reading a Hugging Face `config.json`: every field checked, every complaint collected.

use serde_json::{Map, Value};

use crate::issue::{Issue, IssueKind};

/// The largest width, vocabulary or position count that is read: 2²⁷, hundreds of times the largest model known.
pub const MAX_DIMENSION: u64 = 1 << 27;
/// The most layers that are walked.
pub const MAX_LAYERS: u64 = 4096;
/// The most heads.
pub const MAX_HEADS: u64 = 65_536;

/// A config's fields, with the issues found so far.
#[derive(Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    issues: Vec<Issue>,
}

impl<'a> Fields<'a> {
    /// Reads from `map`.
    #[must_use]
    pub fn new(map: &'a Map<String, Value>) -> Self {
        Self { map, issues: Vec::new() }
    }

    fn complain(&mut self, name: &str, kind: IssueKind) {
        self.issues.push(Issue::new(format!("config.{name}"), kind));
    }

    /// A value that is present and not null. The first of `names` that is present counts (`n_embd` or `hidden_size`).
    fn present(&self, names: &[&'static str]) -> Option<(&'static str, &'a Value)> {
        names.iter().find_map(|&n| self.map.get(n).filter(|v| !v.is_null()).map(|v| (n, v)))
    }

    fn whole(&mut self, name: &str, value: &Value, max: u64) -> u64 {
        if let Some(n) = value.as_u64() {
            if (1..=max).contains(&n) {
                return n;
            }
            self.complain(name, IssueKind::OutOfRange { min: 1, max, found: n.to_string() });
        } else if value.is_number() {
            let kind = if value.as_i64().is_some() {
                IssueKind::OutOfRange { min: 1, max, found: value.to_string() }
            } else {
                IssueKind::NotA { expected: "a whole number".into(), found: shorten(value) }
            };
            self.complain(name, kind);
        } else {
            self.complain(name, IssueKind::NotA { expected: "a whole number".into(), found: shorten(value) });
        }
        1
    }

    /// A whole number from 1 to `max` that the config must have. After an issue the value is 1.
    pub fn required(&mut self, names: &[&'static str], max: u64) -> u64 {
        match self.present(names) {
            Some((name, value)) => self.whole(name, value, max),
            None => {
                self.complain(names[0], IssueKind::Missing { expected: "a whole number".into() });
                1
            }
        }
    }

    /// As [`Fields::required`], with the default that transformers applies when the field is absent or null.
    pub fn optional(&mut self, names: &[&'static str], default: u64, max: u64) -> u64 {
        match self.present(names) {
            Some((name, value)) => self.whole(name, value, max),
            None => default,
        }
    }

    /// A whole number that may be absent or null, which is a meaning of its own (`sliding_window`).
    pub fn nullable(&mut self, name: &'static str, absent: Option<u64>, max: u64) -> Option<u64> {
        match self.map.get(name) {
            None => absent,
            Some(Value::Null) => None,
            Some(value) => Some(self.whole(name, value, max)),
        }
    }

    /// As [`Fields::optional`] for a single name, from 0 on.
    pub fn optional_from_zero(&mut self, name: &'static str, default: u64, max: u64) -> u64 {
        match self.map.get(name) {
            Some(value) if value.as_u64() == Some(0) => 0,
            _ => self.optional(&[name], default, max),
        }
    }

    /// One size or two of them, rows and columns, or the default when absent or null.
    pub fn pair(&mut self, name: &'static str, default: u64, max: u64) -> [u64; 2] {
        match self.map.get(name) {
            Some(Value::Array(both)) if both.len() == 2 => {
                [&both[0], &both[1]].map(|value| self.whole(name, value, max))
            }
            Some(Value::Array(other)) => {
                let expected = "one size or two".into();
                self.complain(name, IssueKind::NotA { expected, found: format!("{} of them", other.len()) });
                [default; 2]
            }
            _ => [self.optional(&[name], default, max); 2],
        }
    }

    /// A list of whole numbers up to `max`, empty when absent or null.
    pub fn numbers(&mut self, name: &'static str, max: u64) -> Vec<u64> {
        let all = match self.map.get(name) {
            None | Some(Value::Null) => return Vec::new(),
            Some(Value::Array(all)) => {
                all.iter().map(|v| v.as_u64().filter(|&n| n <= max)).collect::<Option<Vec<u64>>>()
            }
            Some(_) => None,
        };
        all.unwrap_or_else(|| {
            let found = self.map.get(name).map(shorten).unwrap_or_default();
            self.complain(name, IssueKind::NotA { expected: "a list of whole numbers".into(), found });
            Vec::new()
        })
    }

    /// A number, or the default when absent or null.
    pub fn number(&mut self, name: &'static str, default: f64) -> f64 {
        match self.map.get(name) {
            None | Some(Value::Null) => default,
            Some(value) => value.as_f64().unwrap_or_else(|| {
                self.complain(name, IssueKind::NotA { expected: "a number".into(), found: shorten(value) });
                default
            }),
        }
    }

    /// Complains unless `value` is at most `max`.
    pub fn at_most(&mut self, name: &str, value: u64, max: u64) {
        if value > max {
            self.complain(name, IssueKind::OutOfRange { min: 1, max, found: value.to_string() });
        }
    }

    /// A boolean, or the default when absent or null.
    pub fn flag(&mut self, name: &'static str, default: bool) -> bool {
        match self.map.get(name) {
            None | Some(Value::Null) => default,
            Some(Value::Bool(b)) => *b,
            Some(other) => {
                self.complain(name, IssueKind::NotA { expected: "true or false".into(), found: shorten(other) });
                default
            }
        }
    }

    /// A probability, or the default when absent or null.
    pub fn probability(&mut self, name: &'static str, default: f64) -> f64 {
        match self.map.get(name) {
            None | Some(Value::Null) => default,
            Some(value) => match value.as_f64() {
                Some(p) if (0.0..1.0).contains(&p) => p,
                _ => {
                    let expected = "a number from 0 to less than 1".into();
                    self.complain(name, IssueKind::NotA { expected, found: shorten(value) });
                    default
                }
            },
        }
    }

    /// A text, or the default when absent or null.
    pub fn text(&mut self, name: &'static str, default: &str) -> String {
        match self.map.get(name) {
            None | Some(Value::Null) => default.into(),
            Some(Value::String(s)) => s.clone(),
            Some(other) => {
                self.complain(name, IssueKind::NotA { expected: "a text".into(), found: shorten(other) });
                default.into()
            }
        }
    }

    /// How many labels a classifier has: `num_labels`, else as many as `id2label` names, else two, as
    /// `PreTrainedConfig` has it.
    pub fn labels(&mut self) -> u64 {
        let named = self.map.get("id2label").and_then(Value::as_object).map_or(2, |names| names.len() as u64);
        let labels = self.optional(&["num_labels"], named, MAX_DIMENSION);
        if labels == 1 {
            self.refuse("num_labels", "regression on one label");
        }
        if !matches!(self.text("problem_type", "single_label_classification").as_str(), "single_label_classification") {
            self.refuse("problem_type", "a loss other than single-label classification");
        }
        labels
    }

    /// Whether none of the fields `names` has been complained about: only then do conclusions from them mean anything.
    #[must_use]
    pub fn sound(&self, names: &[&str]) -> bool {
        !self.issues.iter().any(|issue| names.iter().any(|n| issue.field.strip_prefix("config.") == Some(n)))
    }

    /// Complains unless `value` is a multiple of `by`; not where one of the two is itself wrong.
    pub fn divides(&mut self, name: &str, value: u64, by_field: &str, by: u64) {
        if !self.sound(&[name, by_field]) {
            return;
        }
        if by == 0 || !value.is_multiple_of(by) {
            self.complain(name, IssueKind::NotDivisible { value, by_field: format!("config.{by_field}"), by });
        }
    }

    /// Refuses something that is not modelled.
    pub fn refuse(&mut self, name: &str, what: impl Into<String>) {
        self.complain(name, IssueKind::NotModelled { what: what.into() });
    }

    /// How many of `head` dimensions are rotated: the fraction in `rope_parameters` or `rope_scaling`, the top-level
    /// field `name`, or `default` of them.
    pub fn rotary_part(&mut self, head: u64, name: &'static str, default: f64) -> u64 {
        let inner =
            ["rope_scaling", "rope_parameters"].iter().find_map(|n| self.map.get(*n)?.get("partial_rotary_factor"));
        let factor = match inner.or_else(|| self.map.get(name)).filter(|v| !v.is_null()) {
            None => default,
            Some(value) => match value.as_f64() {
                Some(f) if f > 0.0 && f <= 1.0 => f,
                _ => {
                    let expected = "a number above 0 and up to 1".into();
                    self.complain(name, IssueKind::NotA { expected, found: shorten(value) });
                    1.0
                }
            },
        };
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "Python's int(head × factor), of a head size"
        )]
        let part = (head as f64 * factor) as u64;
        if part == 0 || !part.is_multiple_of(2) {
            self.refuse(name, "rotary embeddings over an odd number of dimensions");
        }
        part.max(2)
    }

    /// Whether the config has the field and not as null, or `default` when the field is absent.
    #[must_use]
    pub fn has_or(&self, name: &'static str, default: bool) -> bool {
        self.map.get(name).map_or(default, |v| !v.is_null())
    }

    /// For each layer whether it attends within a sliding window: the list of layer kinds, or `default` where there is
    /// none.
    pub fn layer_types(&mut self, name: &'static str, layers: u64, default: impl Fn(u64) -> bool) -> Vec<bool> {
        let by_default = || (0..layers).map(default).collect();
        match self.map.get(name) {
            None | Some(Value::Null) => by_default(),
            Some(Value::Array(kinds)) if kinds.len() as u64 == layers => kinds
                .iter()
                .map(|kind| match kind.as_str() {
                    Some("sliding_attention") => true,
                    Some("full_attention") => false,
                    _ => {
                        self.complain(
                            name,
                            IssueKind::NotModelled { what: format!("layers of kind {}", shorten(kind)) },
                        );
                        false
                    }
                })
                .collect(),
            Some(other) => {
                let expected = format!("a list of {layers} layer kinds");
                self.complain(name, IssueKind::NotA { expected, found: shorten(other) });
                by_default()
            }
        }
    }

    /// Whether the config has the field, and not as null.
    #[must_use]
    pub fn has(&self, name: &'static str) -> bool {
        self.present(&[name]).is_some()
    }

    /// The issues, or `model` when there are none.
    ///
    /// # Errors
    /// Everything that was complained about.
    pub fn finish<T>(self, model: T) -> Result<T, Vec<Issue>> {
        if self.issues.is_empty() { Ok(model) } else { Err(self.issues) }
    }
}

/// A value as an error message can show it.
fn shorten(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}
