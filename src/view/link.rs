//! The plan in the URL's fragment: `#v1=` and the plan document as base64url.
//!
//! A fragment is not sent to any server. It may come from anyone, so reading it is bounded and either gives a plan or
//! says why not; it never changes anything half-way.

use crate::plan::{PLAN_VERSION, Plan};
use crate::text::LinkProblem;

/// The version of the fragment that this build writes.
const LINK_VERSION: u32 = 1;

/// The longest fragment that is read: a plan with the longest `config.json` that a link is made for.
pub const MAX_FRAGMENT: usize = 32 << 10;

/// The fragment for `plan`, without `#`; `None` when the plan is too long for a link.
#[must_use]
pub fn encode(plan: &Plan) -> Option<String> {
    let json = serde_json::to_string(plan).ok()?;
    let text = format!("v{LINK_VERSION}={}", to_base64url(json.as_bytes()));
    (text.len() <= MAX_FRAGMENT).then_some(text)
}

/// The plan of a fragment, with or without `#`; `None` for an empty one.
///
/// # Errors
/// Why it is no plan.
pub fn decode(fragment: &str) -> Result<Option<Plan>, LinkProblem> {
    let fragment = fragment.strip_prefix('#').unwrap_or(fragment);
    if fragment.is_empty() {
        return Ok(None);
    }
    decoded(fragment)
}

#[inline(never)]
fn decoded(fragment: &str) -> Result<Option<Plan>, LinkProblem> {
    if fragment.len() > MAX_FRAGMENT {
        return Err(LinkProblem::TooLong);
    }
    let (version, body) = fragment
        .strip_prefix('v')
        .and_then(|rest| rest.split_once('='))
        .and_then(|(version, body)| Some((version.parse::<u32>().ok()?, body)))
        .ok_or(LinkProblem::Malformed)?;
    match version {
        LINK_VERSION => {}
        0 => return Err(LinkProblem::Malformed),
        _ => return Err(LinkProblem::TooNew),
    }
    let json = from_base64url(body).and_then(|bytes| String::from_utf8(bytes).ok()).ok_or(LinkProblem::Malformed)?;
    let plan: Plan = serde_json::from_str(&json).map_err(|_| match newer_plan(&json) {
        true => LinkProblem::TooNew,
        false => LinkProblem::Malformed,
    })?;
    match plan.version {
        PLAN_VERSION => Ok(Some(plan)),
        newer if newer > PLAN_VERSION => Err(LinkProblem::TooNew),
        _ => Err(LinkProblem::Malformed),
    }
}

/// Whether the document says that it is of a newer version, which may have fields that are unknown here.
fn newer_plan(json: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Head {
        version: u64,
    }
    serde_json::from_str::<Head>(json).is_ok_and(|head| head.version > u64::from(PLAN_VERSION))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn to_base64url(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        for i in 0..=chunk.len() {
            out.push(char::from(ALPHABET[(word >> (18 - 6 * i)) as usize & 63]));
        }
    }
    out
}

fn from_base64url(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for chunk in text.as_bytes().chunks(4) {
        let mut word = 0u32;
        for &byte in chunk {
            let value = ALPHABET.iter().position(|&letter| letter == byte)?;
            word = word << 6 | u32::try_from(value).ok()?;
        }
        let bits = 6 * chunk.len();
        // One letter alone is less than a byte; leftover bits must be zero, so that a plan has one spelling.
        if bits < 8 || word & ((1 << (bits % 8)) - 1) != 0 {
            return None;
        }
        let word = word >> (bits % 8);
        for i in (0..bits / 8).rev() {
            out.push(word.to_be_bytes()[3 - i]);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::view::example;

    #[test]
    fn base64url_agrees_with_the_rfc() {
        // RFC 4648 section 10, without padding; and the two letters that differ from plain base64.
        for (plain, coded) in [
            (&b""[..], ""),
            (b"f", "Zg"),
            (b"fo", "Zm8"),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg"),
            (b"fooba", "Zm9vYmE"),
            (b"foobar", "Zm9vYmFy"),
            (b"\xfb\xff", "-_8"),
        ] {
            assert_eq!(to_base64url(plain), coded);
            assert_eq!(from_base64url(coded).as_deref(), Some(plain));
        }
        for bad in ["Z", "Zh", "Zm9=", "Zm9v Zm9v", "Zm+v", "é"] {
            assert_eq!(from_base64url(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_plan_survives_the_link() {
        let plan = example();
        let link = encode(&plan).unwrap();
        assert!(link.starts_with("v1="));
        assert!(link.len() <= 2000, "{} characters", link.len());
        assert_eq!(decode(&format!("#{link}")), Ok(Some(plan)));
    }

    /// A link that was shared once must open for ever.
    #[test]
    fn an_old_link_opens() {
        let plan = decode(include_str!("old_links/v1.txt").trim()).unwrap().unwrap();
        assert_eq!(plan.recipe.seq_len, 1024);
        assert_eq!(plan.recipe.micro_batch, 3);
    }

    #[test]
    fn hostile_fragments_are_refused_with_the_reason() {
        let of = |json: &str| format!("v1={}", to_base64url(json.as_bytes()));
        let deep = "[".repeat(20_000);
        for (fragment, why) in [
            ("rigid".to_owned(), LinkProblem::Malformed),
            ("v1".into(), LinkProblem::Malformed),
            ("v1=".into(), LinkProblem::Malformed),
            ("v1=%3Cscript%3E".into(), LinkProblem::Malformed),
            ("v0=e30".into(), LinkProblem::Malformed),
            ("v-1=e30".into(), LinkProblem::Malformed),
            ("v2=e30".into(), LinkProblem::TooNew),
            ("v4294967295=".into(), LinkProblem::TooNew),
            ("v99999999999=".into(), LinkProblem::Malformed),
            (of("{}"), LinkProblem::Malformed),
            (of("null"), LinkProblem::Malformed),
            (of(&deep), LinkProblem::Malformed),
            (of(r#"{"version":1,"model":{"preset":"gpt2"},"evil":true}"#), LinkProblem::Malformed),
            (of(r#"{"version":2,"model":{"diffusion":"x"}}"#), LinkProblem::TooNew),
            (of(r#"{"version":0,"model":{"preset":"gpt2"}}"#), LinkProblem::Malformed),
            ("v1=".to_owned() + &"A".repeat(MAX_FRAGMENT), LinkProblem::TooLong),
        ] {
            assert_eq!(decode(&fragment), Err(why), "{}", &fragment[..fragment.len().min(60)]);
        }
        assert_eq!(decode(""), Ok(None));
        assert_eq!(decode("#"), Ok(None));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,200}") {
            let _ = decode(&text);
        }

        #[test]
        fn any_bytes_survive(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(from_base64url(&to_base64url(&bytes)), Some(bytes));
        }

        #[test]
        fn any_numbers_survive(batch in any::<u64>(), seq in any::<u64>(), percent in 0u32..=100) {
            let mut plan = example();
            plan.recipe.micro_batch = batch;
            plan.recipe.seq_len = seq;
            plan.policy.rigid_share = f64::from(percent) / 100.0;
            prop_assert_eq!(decode(&encode(&plan).unwrap()), Ok(Some(plan)));
        }
    }
}
