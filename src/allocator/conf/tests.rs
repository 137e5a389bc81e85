use super::*;
use crate::units::GIB;

const NEWEST: Version = Version(2, 15);

fn parsed(text: &str) -> AllocConf {
    AllocConf::parse(text, NEWEST).unwrap()
}

/// The one issue, as a sentence.
#[track_caller]
fn refused(text: &str, version: Version) -> String {
    let issues = AllocConf::parse(text, version).unwrap_err();
    assert_eq!(issues.len(), 1, "{issues:?}");
    issues[0].to_string()
}

#[test]
fn nothing_set_is_the_default() {
    assert_eq!(parsed(""), AllocConf::default());
    assert_eq!(parsed("  "), AllocConf::default());
    assert_eq!(parsed("backend:native,"), AllocConf::default());
}

#[test]
fn settings_are_read() {
    let conf = parsed(" max_split_size_mb : 128, garbage_collection_threshold:0.8,expandable_segments:True");
    assert_eq!(conf.max_split_size, Some(128 * MIB));
    assert_eq!(conf.garbage_collection_threshold, Some(0.8));
    assert!(conf.expandable_segments);
    let conf = parsed("large_segment_size_mb:40,max_non_split_rounding_mb:100,per_process_memory_fraction:0.5");
    assert_eq!(conf.large_segment_size, 40 * MIB);
    assert_eq!(conf.max_non_split_rounding, 100 * MIB);
    assert_eq!(conf.per_process_memory_fraction, Some(0.5));
}

#[test]
fn numbers_are_read_as_pytorch_reads_them() {
    // What follows the digits does not matter to it.
    assert_eq!(parsed("max_split_size_mb:128MB").max_split_size, Some(128 * MIB));
    assert_eq!(parsed("garbage_collection_threshold:0.8f").garbage_collection_threshold, Some(0.8));
    assert_eq!(parsed("max_split_size_mb:99999999999999999").max_split_size, Some(u64::MAX / MIB * MIB));
    assert_eq!(
        refused("max_split_size_mb:99999999999", Version(2, 8)),
        "`max_split_size_mb` takes a whole number from 21 to 2147483647, not `99999999999`"
    );
    assert_eq!(parsed("large_segment_size_mb:12,max_split_size_mb:12").max_split_size, Some(12 * MIB));
}

#[test]
fn division_lists_fill_below_the_first_and_after_the_last() {
    let text = "roundup_power2_divisions:[256:1,1024:4,>:8]";
    let at = |conf: &AllocConf, mib: u64| conf.divisions_for(mib * MIB);
    let new = parsed(text);
    assert_eq!([1, 256, 511, 512, 1024, 2048, 1 << 20].map(|mib| at(&new, mib)), [1, 1, 1, 0, 4, 8, 8]);
    // Up to 2.9 the open interval overwrote the last listed one.
    let old = AllocConf::parse(text, Version(2, 9)).unwrap();
    assert_eq!([256, 512, 1024, 2048].map(|mib| at(&old, mib)), [1, 0, 8, 8]);
    assert_eq!(parsed("roundup_power2_divisions:4").divisions_for(64 * GIB), 4);
    assert_eq!(parsed("roundup_power2_divisions:[>:2]").divisions_for(1), 2);
}

#[test]
fn refusals_say_what_is_accepted() {
    let cases = [
        (
            "expandable_segments=True",
            "`expandable_segments=True`: `=` stands where `:` after `expandable_segments` belongs",
        ),
        ("expandable_segments:true", "`expandable_segments` takes `True` or `False`, not `true`"),
        ("expandable_segments", "`expandable_segments`: the text ends where `:` belongs"),
        ("max_split_size_mb:19", "`max_split_size_mb` takes a whole number from 20, not `19`"),
        ("max_split_size_mb:-1", "`max_split_size_mb` takes a whole number from 20, not `-1`"),
        ("large_segment_size_mb:10", "`large_segment_size_mb` takes a whole number from 11 to 1048576, not `10`"),
        ("large_segment_size_mb:40,max_split_size_mb:30", "`max_split_size_mb` takes a whole number from 40, not `30`"),
        ("max_split_size:64", "`max_split_size` is not an allocator setting; did you mean `max_split_size_mb`?"),
        ("roundup_power2_divisions:3", "`roundup_power2_divisions` takes divisions that are a power of two, not `3`"),
        ("roundup_power2_divisions:[256:1", "`roundup_power2_divisions`: the text ends where `,` belongs"),
        (
            "garbage_collection_threshold:1",
            "`garbage_collection_threshold` takes a number above 0 and below 1, not `1`",
        ),
        (
            "garbage_collection_threshold:nan",
            "`garbage_collection_threshold` takes a number above 0 and below 1, not `nan`",
        ),
        ("backend:cudaMallocAsync", "`backend`: PyTorch accepts this, but its effect is not modelled here"),
        (
            "throw_on_cudamalloc_oom:True",
            "`throw_on_cudamalloc_oom`: PyTorch accepts this, but its effect is not modelled here",
        ),
        ("roundup_bypass_threshold_mb:64", "`roundup_bypass_threshold_mb` was removed in PyTorch 2.1"),
        ("zzz:1", "`zzz` is not an allocator setting"),
        (",", "`,` is not an allocator setting"),
    ];
    for (text, sentence) in cases {
        assert_eq!(refused(text, NEWEST), sentence);
    }
}

#[test]
fn keys_exist_in_some_versions_only() {
    assert_eq!(
        refused("large_segment_size_mb:40", Version(2, 10)),
        "`large_segment_size_mb` exists from PyTorch 2.11 on"
    );
    assert!(AllocConf::parse("large_segment_size_mb:40", Version(2, 11)).is_ok());
    assert!(AllocConf::parse("max_split_size_mb:20", Version(2, 9)).is_err());
    assert!(AllocConf::parse("max_split_size_mb:20", Version(2, 10)).is_ok());
}

#[test]
fn all_issues_are_found_at_once() {
    let text = "a:1,max_split_size_mb:x,roundup_power2_divisions:[1:3,2:4],expandable_segments:True";
    let keys: Vec<_> = AllocConf::parse(text, NEWEST).unwrap_err().into_iter().map(|i| i.key).collect();
    assert_eq!(keys, ["a", "max_split_size_mb", "roundup_power2_divisions"]);
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[a-z_0-9:,\\[\\]> .]{0,60}", tail in ".{0,20}") {
        let _ = AllocConf::parse(&format!("{text}{tail}"), NEWEST);
        let _ = AllocConf::parse(&format!("roundup_power2_divisions:[{text}{tail}"), NEWEST);
    }
}
