use super::*;

#[test]
fn a_locale_is_found_by_its_primary_subtag() {
    for tag in ["en", "EN", "en-GB", "en_US.UTF-8"] {
        assert_eq!(Locale::from_tag(tag), Some(Locale::En), "{tag}");
    }
    for tag in ["", "de", "english", "C"] {
        assert_eq!(Locale::from_tag(tag), None, "{tag}");
    }
}

#[test]
fn lists_read_as_sentences() {
    let text = Locale::En.text();
    assert_eq!(text.list(&[]), "");
    assert_eq!(text.list(&["a"]), "a");
    assert_eq!(text.list(&["a", "b"]), "a and b");
    assert_eq!(text.list(&["a", "b", "c"]), "a, b and c");
}

#[test]
fn every_kind_of_issue_has_a_sentence() {
    let cases = [
        IssueKind::Missing { expected: "a whole number".into() },
        IssueKind::NotA { expected: "a whole number".into(), found: "\"many\"".into() },
        IssueKind::OutOfRange { min: 1, max: 65_536, found: "0".into() },
        IssueKind::NotDivisible { value: 12, by_field: "num_key_value_heads".into(), by: 5 },
        IssueKind::UnknownArchitecture { found: "mamba".into(), known: vec!["llama".into(), "gpt2".into()] },
        IssueKind::UnknownName { found: "RTX 9999".into(), did_you_mean: vec!["RTX 4090".into(), "RTX 3090".into()] },
        IssueKind::UnknownName { found: "abacus".into(), did_you_mean: vec![] },
        IssueKind::NotModelled { what: "sliding-window attention".into() },
        IssueKind::NotSupportedByHardware { what: "BF16".into() },
        IssueKind::TooLarge,
    ];
    let lines: Vec<String> =
        cases.into_iter().map(|kind| issue_line(Locale::En.text(), &Issue::new("field", kind))).collect();
    insta::assert_snapshot!(lines.join("\n"), @r#"
    field: missing: expected a whole number
    field: expected a whole number, found "many"
    field: expected 1 to 65 536, found 0
    field: 12 is not divisible by num_key_value_heads = 5
    field: `mamba` is not modelled here; known architectures: llama and gpt2
    field: `RTX 9999` is not in the catalogue; did you mean RTX 4090 or RTX 3090?
    field: `abacus` is not in the catalogue
    field: sliding-window attention: not modelled here, so no figure is given
    field: this GPU has no BF16
    field: the step's tensors come to more than 8 PiB, which is past what is computed here
    "#);
}
