use super::*;
use crate::allocator::Config;

fn error(text: &str) -> String {
    match Trace::from_json(text) {
        Ok(trace) => replay(&trace, &Config::new(Version(2, 15)), |_, _| {}).expect_err("an error").to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn errors_name_the_event_and_the_field() {
    let cases: [(&str, &str); 20] = [
        (r#"{"op":"free","id":"x"}"#, r#"event 1: `id`: "x" was never allocated"#),
        (r#"{"op":"free","id":"a"},{"op":"free","id":"a"}"#, r#"event 2: `id`: "a" is freed already"#),
        (r#"{"op":"alloc","id":"a","bytes":5}"#, r#"event 1: `id`: "a" is allocated already"#),
        (
            r#"{"op":"alloc","id":"b","bytes":9223372036854775808}"#,
            "event 1: `bytes`: 9223372036854775808 is not a whole number from 0 to 1152921504606846976",
        ),
        (
            r#"{"op":"alloc","id":"b","bytes":-5}"#,
            "event 1: `bytes`: -5 is not a whole number from 0 to 1152921504606846976",
        ),
        (
            r#"{"op":"alloc","id":"b","bytes":1e30}"#,
            "event 1: `bytes`: 1000000000000000000000000000000 is not a whole number from 0 to 1152921504606846976",
        ),
        (
            r#"{"op":"alloc","id":"b","bytes":1.5}"#,
            "event 1: `bytes`: 1.5 is not a whole number from 0 to 1152921504606846976",
        ),
        (r#"{"op":"alloc","id":"b"}"#, "event 1: `bytes`: is missing"),
        (r#"{"op":"alloc","bytes":5}"#, "event 1: `id`: is missing"),
        (r#"{"op":"alloc","id":[1],"bytes":5}"#, "event 1: `id`: a list or an object is not a text"),
        (
            r#"{"op":"alloc","id":"b","bytes":5,"stream":-1}"#,
            "event 1: `stream`: -1 is not a whole number from 0 to 4294967295",
        ),
        (r#"{"op":"malloc","id":"b","bytes":5}"#, r#"event 1: `op`: "malloc" is not an operation"#),
        (r#"{"id":"b","bytes":5}"#, "event 1: `op`: is missing"),
        (r#"{"op":"set_fraction","value":2}"#, "event 1: `value`: 2 is not a number from 0 to 1"),
        (r#"{"op":"events_pending","value":1}"#, "event 1: `value`: 1 is not true or false"),
        (r#"{"op":"end_pool","pool":7}"#, "event 1: `pool`: private pool 7 is not active"),
        (r#"{"op":"release_pool","pool":7}"#, "event 1: `pool`: private pool 7 is not in use"),
        (r#"{"op":"record_stream","id":"a"}"#, "event 1: `stream`: is missing"),
        (r#"["alloc"]"#, "event 1: invalid length 1, expected an object at line 1 column 67"),
        (r#"7"#, "event 1: invalid type: integer `7`, expected an object at line 1 column 59"),
    ];
    for (event, sentence) in cases {
        let text = format!(r#"{{"events":[{{"op":"alloc","id":"a","bytes":512,"stream":0}},{event}]}}"#);
        assert_eq!(error(&text), sentence, "{event}");
    }
}

#[test]
fn errors_name_the_field_of_the_trace() {
    let cases = [
        ("", "EOF while parsing a value at line 1 column 0"),
        ("[]", "invalid type: sequence, expected a trace: an object with a list `events` at line 1 column 0"),
        ("{}", "`events`: is missing"),
        (r#"{"events":[],"events":[]}"#, "`events`: is there twice"),
        (r#"{"events":[],"total_mb":-1}"#, "`total_mb`: -1 is not a number of MiB up to 8589934591"),
        (r#"{"events":[],"torch":"new"}"#, "`torch`: `new` is not a version: write major.minor, such as 2.15"),
        (r#"{"events":[],"checkpoints":[{"after_event":0}]}"#, "`checkpoints`: after_event 0 of 0 events"),
        (r#"{"events":[],"checkpoints":[{}]}"#, "`checkpoints[0].after_event`: is missing"),
        (r#"{"events":[]} x"#, "trailing characters at line 1 column 15"),
    ];
    for (text, sentence) in cases {
        assert_eq!(error(text), sentence, "{text}");
    }
}

#[test]
fn a_replay_is_compared_with_its_recording() {
    let text = r#"{"events":[{"op":"alloc","id":"a","bytes":100},{"op":"free","id":"a"},{"op":"empty_cache"}],
        "checkpoints":[{"after_event":0,"allocated":512,"reserved":2097152},{"after_event":2,"reserved":7}]}"#;
    let mut trace = Trace::from_json(text).unwrap();
    trace.check_every(core::num::NonZeroUsize::MIN);
    let report = Report::new(&trace, &Config::new(Version(2, 15)), "").unwrap();
    assert_eq!(report.checkpoints.iter().map(|c| c.after_event).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
    let expected = Difference { after_event: 2, figure: "reserved", recorded: Bytes(7), replayed: Bytes(0) };
    assert_eq!(report.differences(&trace), [expected]);
}
