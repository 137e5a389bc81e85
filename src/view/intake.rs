//! What a text that someone pastes or drops is: a `config.json`, a plan, or a measurement.

use serde_json::Value;

use crate::measure::{self, ImportError, Imported, Options, Unit};
use crate::plan::Plan;

/// The longest text that the page reads in one go, while nothing else moves: 256 KiB. A longer one is read in pieces,
/// elsewhere ([`crate::view::Incoming`]).
pub const MAX_READ: usize = 256 << 10;

/// What a text was recognised as.
#[derive(Clone, Debug, PartialEq)]
pub enum Intake {
    /// A Hugging Face `config.json`, with its `model_type` or architecture.
    Config(String),
    /// A plan document.
    Plan(Box<Plan>),
    /// A plan document that cannot be used: why, in the reader's words.
    BrokenPlan(ImportError),
    /// Everything else: what the importers of measurements make of it.
    Measurement(Result<Vec<Imported>, ImportError>),
}

/// Recognises `text` by its content. Where it is nothing known, the answer is the importers', who say what they expect.
#[must_use]
pub fn recognise(text: &str) -> Intake {
    if text.len() <= MAX_READ
        && text.trim_start().starts_with('{')
        && let Ok(Value::Object(object)) = serde_json::from_str(text)
    {
        let name = object.get("model_type").or_else(|| object.get("architectures").and_then(|a| a.get(0)));
        if let Some(name) = name.and_then(Value::as_str) {
            return Intake::Config(name.chars().take(40).collect());
        }
        if object.contains_key("model") && object.contains_key("version") {
            return match serde_json::from_str::<Plan>(text) {
                Ok(plan) => Intake::Plan(Box::new(plan)),
                Err(error) => Intake::BrokenPlan(ImportError::Malformed {
                    line: error.line() as u64,
                    column: error.column() as u64,
                    message: error.to_string(),
                }),
            };
        }
    }
    Intake::Measurement(read(text, None))
}

/// Reads `text` as whatever was measured, its figures in `unit` where they name none.
///
/// # Errors
/// [`ImportError`]: what was expected, and where the text departs from it; a text longer than [`MAX_READ`].
pub fn read(text: &str, unit: Option<Unit>) -> Result<Vec<Imported>, ImportError> {
    if text.len() > MAX_READ {
        return Err(ImportError::TooLarge { bytes: text.len() as u64, limit: MAX_READ as u64 });
    }
    measure::understand(text.as_bytes(), &Options { unit, columns: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::example;

    #[test]
    fn texts_are_recognised_by_their_content() {
        assert_eq!(recognise("\n {\"model_type\": \"qwen2\", \"hidden_size\": 1}"), Intake::Config("qwen2".into()));
        assert_eq!(recognise(r#"{"architectures": ["GPT2LMHeadModel"]}"#), Intake::Config("GPT2LMHeadModel".into()));
        let plan = serde_json::to_string(&example()).unwrap();
        assert_eq!(recognise(&plan), Intake::Plan(Box::new(example())));
        let misspelt = plan.replace("seq_len", "seq_length");
        assert!(matches!(recognise(&misspelt), Intake::BrokenPlan(_)), "{:?}", recognise(&misspelt));
        let script =
            r#"{"base": 2000000000, "forward_delta": 1, "backward_delta": 1, "step_delta": 1, "peak": 3000000000}"#;
        assert!(matches!(
            recognise(script),
            Intake::Measurement(Ok(found)) if matches!(found.as_slice(), [Imported::Measurement { .. }])
        ));
        for garbage in ["", "hello", "{", "[1, 2]", "null", "{\"a\": 1}", "\u{0}\u{1}"] {
            assert!(matches!(recognise(garbage), Intake::Measurement(Err(_))), "{garbage:?}");
        }
    }
}
