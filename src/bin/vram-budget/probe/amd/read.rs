//! What `amd-smi` and `rocm-smi` print as JSON. Values are `{"value": 132, "unit": "MHz"}`, a bare number or its text; what is
//! not known is `N/A`. Sources: `amdsmi_cli/amdsmi_commands.py` (amd-smi 24 to 26), `python_smi_tools/rocm_smi.py`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::probe::{BUSY, CLOCKS, ERRORS, Vitals};

/// The reason where the tool prints `N/A` or nothing.
pub(super) const NOT_SAID: &str = "the tool does not say";

/// One card, as far as it is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Card {
    pub(super) name: Option<String>,
    pub(super) driver: Option<String>,
    pub(super) partition: Option<String>,
    pub(super) ecc: Option<bool>,
    pub(super) total: Option<u64>,
    pub(super) used: Option<u64>,
    /// Of the compute units and of the memory, in MHz.
    pub(super) most_clocks: [Option<i64>; 2],
    pub(super) vitals: Vitals,
    pub(super) processes: Vec<(u32, Option<u64>)>,
}

impl Card {
    /// Notes why something is absent.
    pub(super) fn lacks(&mut self, what: &str, why: &str) {
        self.vitals.unavailable.insert(what.to_owned(), why.to_owned());
    }

    fn set(&mut self, name: &str, figure: Option<i64>) {
        self.vitals.set(name, figure.ok_or(NOT_SAID));
    }
}

/// `amd-smi metric`: memory, activity, clocks, errors, throttling.
pub(super) fn metric(found: &Value) -> Result<BTreeMap<u32, Card>, String> {
    let mut cards = BTreeMap::new();
    for (index, of) in entries(found)? {
        let mut card = Card {
            total: bytes(&of["mem_usage"]["total_vram"], "MB"),
            used: bytes(&of["mem_usage"]["used_vram"], "MB"),
            ..Card::default()
        };
        for (name, key) in BUSY.into_iter().zip(["gfx_activity", "umc_activity"]) {
            card.set(name, whole(&of["usage"][key]));
        }
        for (at, domain) in ["gfx_", "mem_"].into_iter().enumerate() {
            // A card of several dies has a clock for each: the fastest. 0 is what stands for no limit known.
            let highest = |key: &str| {
                let domains = of["clock"].as_object().into_iter().flatten();
                domains
                    .filter(|(name, _)| name.starts_with(domain))
                    .filter_map(|(_, clock)| whole(&clock[key]))
                    .filter(|mhz| *mhz > 0)
                    .max()
            };
            card.set(CLOCKS[at], highest("clk"));
            card.most_clocks[at] = highest("max_clk");
        }
        for (name, key) in ERRORS.into_iter().zip(["total_correctable_count", "total_uncorrectable_count"]) {
            card.set(name, whole(&of["ecc"][key]));
        }
        match throttled(of) {
            Some(reasons) => card.vitals.throttled = reasons,
            None => card.lacks("throttled", NOT_SAID),
        }
        cards.insert(index, card);
    }
    Ok(cards)
}

/// What holds the clocks down: each violation that is active (MI300 and later), else only whether anything does.
fn throttled(of: &Value) -> Option<Vec<String>> {
    let mut told = None;
    for (name, state) in of["throttle"].as_object().into_iter().flatten() {
        let Some(name) = name.strip_suffix("_violation_status") else { continue };
        let Some(active) = active(state) else { continue };
        let reasons: &mut Vec<String> = told.get_or_insert_default();
        // Low utilisation is an idle card.
        if active && name != "low_utilization" {
            reasons.push(name.to_owned());
        }
    }
    told.or_else(|| match of["power"]["throttle_status"].as_str()? {
        "THROTTLED" => Some(vec!["reason_not_told".into()]),
        "UNTHROTTLED" => Some(Vec::new()),
        _ => None,
    })
}

/// Whether a state, or one of a card's several dies', is active; `None`: not told.
fn active(state: &Value) -> Option<bool> {
    match state {
        Value::String(text) => match text.as_str() {
            "ACTIVE" => Some(true),
            "NOT ACTIVE" => Some(false),
            _ => None,
        },
        Value::Array(of) => of.iter().filter_map(active).reduce(|a, b| a || b),
        Value::Object(of) => of.values().filter_map(active).reduce(|a, b| a || b),
        _ => None,
    }
}

/// `amd-smi process`: who holds memory on the cards.
pub(super) fn processes(found: &Value, cards: &mut BTreeMap<u32, Card>) -> Result<(), String> {
    let mut held: Vec<(u32, u32, Option<u64>)> = Vec::new();
    let mut figures = Vec::new();
    for (index, of) in entries(found)? {
        let list = of["process_list"].as_array().ok_or("an unknown shape: no `process_list`")?;
        for process in list {
            let process = &process["process_info"];
            // A text says that there is none.
            let Some(pid) = whole(&process["pid"]).and_then(|pid| u32::try_from(pid).ok()) else { continue };
            let of = |key: &str| bytes(&process["memory_usage"][key], "B");
            figures.extend(["vram_mem", "gtt_mem", "cpu_mem"].into_iter().filter_map(of).filter(|bytes| *bytes > 0));
            held.push((index, pid, of("vram_mem")));
        }
    }
    // The kernel counts KiB. Some versions (26.2) make 1000 bytes of each; a figure of 1024 each is seldom a multiple of 1000.
    let thousands = !figures.is_empty() && figures.iter().all(|bytes| bytes % 1000 == 0);
    for (index, pid, bytes) in &held {
        // The same figure for several cards is the process's on all of them (26.2), which says nothing of one.
        let of_all = held.iter().filter(|(_, other, same)| other == pid && same == bytes).count() > 1;
        let bytes = bytes.filter(|bytes| *bytes == 0 || !of_all);
        let bytes = if thousands { bytes.and_then(|bytes| (bytes / 1000).checked_mul(1024)) } else { bytes };
        if let Some(card) = cards.get_mut(index) {
            card.processes.push((*pid, bytes));
        }
    }
    Ok(())
}

/// `amd-smi static`: names, partitions, the driver.
pub(super) fn facts(found: &Value, cards: &mut BTreeMap<u32, Card>) -> Result<(), String> {
    for (index, of) in entries(found)? {
        let Some(card) = cards.get_mut(&index) else { continue };
        card.name = text(&of["asic"]["market_name"]);
        card.driver = text(&of["driver"]["version"]);
        card.partition = divided(&of["partition"]["compute_partition"], &of["partition"]["memory_partition"]);
        // The memory controller's block corrects.
        card.ecc = match of["ras"]["ecc_block_state"]["UMC"].as_str() {
            Some("ENABLED") => Some(true),
            Some("DISABLED") => Some(false),
            _ => None,
        };
        card.total = card.total.or_else(|| bytes(&of["vram"]["size"], "MB"));
    }
    Ok(())
}

/// `amd-smi partition --current`: what `static` says no more since 26.
pub(super) fn partitions(found: &Value, cards: &mut BTreeMap<u32, Card>) -> Result<(), String> {
    let list = found["current_partition"].as_array().ok_or("an unknown shape: no `current_partition`")?;
    for of in list {
        let index = whole(&of["gpu_id"]).and_then(|index| u32::try_from(index).ok());
        if let Some(card) = index.and_then(|index| cards.get_mut(&index)) {
            card.partition = divided(&of["accelerator_type"], &of["memory"]);
        }
    }
    Ok(())
}

/// `SPX/NPS1`; one half alone says nothing.
fn divided(compute: &Value, memory: &Value) -> Option<String> {
    let (compute, memory) = text(compute).zip(text(memory))?;
    Some(format!("{}/{memory}", compute.trim_end_matches('*')))
}

/// `rocm-smi`: one object a card, its values as texts; processes and the driver under `system`.
pub(super) fn rocm_smi(found: &Value) -> Result<BTreeMap<u32, Card>, String> {
    let all = found.as_object().ok_or("an unknown shape: no object")?;
    let mut cards = BTreeMap::new();
    for (key, of) in all {
        let Some(index) = key.strip_prefix("card").and_then(|index| index.parse::<u32>().ok()) else { continue };
        let first = |keys: &[&str]| keys.iter().find_map(|key| text(&of[*key]));
        let mut card = Card {
            name: first(&["Card Series", "Card series", "Device Name"]),
            driver: text(&all.get("system").unwrap_or(&Value::Null)["Driver version"]),
            total: bytes(&of["VRAM Total Memory (B)"], "B"),
            used: bytes(&of["VRAM Total Used Memory (B)"], "B"),
            ..Card::default()
        };
        card.set(BUSY[0], whole(&of["GPU use (%)"]));
        card.set(BUSY[1], whole(&of["GPU Memory Read/Write Activity (%)"]));
        for (name, key) in CLOCKS.into_iter().zip(["sclk clock speed:", "mclk clock speed:"]) {
            // `(1700Mhz)`
            let mhz = first(&[key]);
            let mhz = mhz.as_deref().and_then(|text| text.trim_matches(['(', ')']).strip_suffix("Mhz"));
            card.set(name, mhz.and_then(|mhz| mhz.parse().ok()));
        }
        for what in ["throttled", ERRORS[0], ERRORS[1]] {
            card.lacks(what, "rocm-smi has none as JSON");
        }
        cards.insert(index, card);
    }
    if cards.is_empty() {
        return Err("an unknown shape: no card".into());
    }
    // `"PID1234": "python3, 1, 177386942464, 0, 4"`: name, number of cards, bytes.
    let processes = all.get("system").and_then(Value::as_object).into_iter().flatten().filter_map(|(key, of)| {
        let pid = key.strip_prefix("PID")?.parse::<u32>().ok()?;
        Some((pid, of.as_str()?.rsplit(", ").nth(2).and_then(|bytes| bytes.parse::<u64>().ok())))
    });
    let processes: Vec<(u32, Option<u64>)> = processes.collect();
    let alone = cards.len() == 1;
    for card in cards.values_mut() {
        if alone {
            card.processes.clone_from(&processes);
        } else {
            card.lacks("processes", "rocm-smi does not say on which card a process is");
        }
    }
    Ok(cards)
}

/// The cards' entries by index: a list, since 25 also under `gpu_data`.
fn entries(found: &Value) -> Result<Vec<(u32, &Value)>, String> {
    let list = found.get("gpu_data").unwrap_or(found).as_array().ok_or_else(|| match text(&found["error"]) {
        Some(error) => error,
        None => "an unknown shape: neither a list nor `gpu_data`".to_owned(),
    })?;
    list.iter()
        .map(|of| {
            let index = whole(&of["gpu"]).and_then(|index| u32::try_from(index).ok());
            index.map(|index| (index, of)).ok_or_else(|| "an unknown shape: an entry without `gpu`".to_owned())
        })
        .collect()
}

/// A text that says something.
fn text(of: &Value) -> Option<String> {
    let text = of.as_str()?.trim();
    (!text.is_empty() && text != "N/A").then(|| text.to_owned())
}

/// The number in a value.
fn number(of: &Value) -> Option<f64> {
    let of = of.get("value").unwrap_or(of);
    let number = of.as_f64().or_else(|| of.as_str()?.trim().parse().ok())?;
    (0.0..9e15).contains(&number).then_some(number)
}

/// The number in a value, rounded.
fn whole(of: &Value) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "within 2⁵³, checked")]
    number(of).map(|number| number.round() as i64)
}

/// Bytes; `unit`: of a number without one. The tools mean powers of two.
fn bytes(of: &Value, unit: &str) -> Option<u64> {
    let factor = match of.get("unit").and_then(Value::as_str).unwrap_or(unit) {
        "B" => 1.0,
        "KB" | "KiB" => 1024.0,
        "MB" | "MiB" => 1_048_576.0,
        "GB" | "GiB" => 1_073_741_824.0,
        _ => return None,
    };
    let bytes = number(of)? * factor;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 2⁵³ and not negative, checked")]
    (0.0..9e15).contains(&bytes).then(|| bytes.round() as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    macro_rules! printed {
        ($name:literal) => {
            serde_json::from_str::<Value>(include_str!(concat!("../../../../../tests/data/drivers/", $name))).unwrap()
        };
    }

    #[test]
    fn a_card_is_what_the_tool_says_of_it() {
        let mut cards = metric(&printed!("amd-smi-metric-rx6600.json")).unwrap();
        facts(&printed!("amd-smi-static-rx6600.json"), &mut cards).unwrap();
        let card = &cards[&0];
        assert_eq!(card.name.as_deref(), Some("Navi 23 [Radeon RX 6600/6600 XT"));
        assert_eq!((card.total, card.used), (Some(8176 << 20), Some(202 << 20)));
        assert_eq!((card.most_clocks, card.ecc, card.partition.as_ref()), ([Some(2750), Some(875)], None, None));
        let figures = [
            ("ecc_corrected", 0),
            ("ecc_uncorrected", 0),
            ("gpu_busy_percent", 1),
            ("memory_busy_percent", 0),
            ("memory_clock_mhz", 541),
            ("sm_clock_mhz", 800),
        ];
        assert_eq!(card.vitals.figures, figures.map(|(name, figure)| (name.to_owned(), figure)).into());
        assert!(card.vitals.throttled.is_empty() && card.vitals.unavailable.is_empty());
    }

    #[test]
    fn what_is_not_told_is_absent_with_a_reason() {
        // A second partition, and one that may not be read.
        let found = json!({ "gpu_data": [{ "gpu": 1, "usage": "N/A", "clock": { "gfx_0": { "clk": "N/A", "max_clk": { "value": 0, "unit": "MHz" } } } }] });
        let card = metric(&found).unwrap().remove(&1).unwrap();
        assert_eq!((card.total, card.used, card.most_clocks), (None, None, [None, None]));
        assert!(card.vitals.figures.is_empty());
        let names = ["ecc_corrected", "ecc_uncorrected", "gpu_busy_percent", "memory_busy_percent", "memory_clock_mhz"];
        for name in names.into_iter().chain(["sm_clock_mhz", "throttled"]) {
            assert_eq!(card.vitals.unavailable[name], NOT_SAID, "{name}");
        }
    }

    #[test]
    fn what_holds_clocks_down_has_a_name_where_the_card_tells() {
        let mi300 = json!({ "throttle": {
            "ppt_accumulated": 7, "ppt_violation_status": "ACTIVE", "prochot_violation_status": "NOT ACTIVE",
            "hbm_thermal_violation_status": "N/A", "low_utilization_violation_status": "ACTIVE",
            "gfx_clk_below_host_limit_violation_status": { "xcp_0": ["NOT ACTIVE", "ACTIVE"] } } });
        assert_eq!(throttled(&mi300).unwrap(), ["gfx_clk_below_host_limit", "ppt"]);
        let older = |state: &str| throttled(&json!({ "power": { "throttle_status": state } }));
        assert_eq!(older("THROTTLED").unwrap(), ["reason_not_told"]);
        assert_eq!((older("UNTHROTTLED").unwrap().len(), older("N/A")), (0, None));
    }

    #[test]
    fn processes_hold_what_the_kernel_counts() {
        let on = |gpu: u32, pid: u32, bytes: u64| {
            json!({ "gpu": gpu, "process_list": [{ "process_info": {
                "pid": pid, "name": "python3", "memory_usage": { "vram_mem": { "value": bytes, "unit": "B" } } } }] })
        };
        let mut cards: BTreeMap<u32, Card> = [(0, Card::default()), (1, Card::default())].into();
        let none = json!({ "gpu": 1, "process_list": [{ "process_info": "No running processes detected" }] });
        processes(&json!([on(0, 7, 4096 << 20), none]), &mut cards).unwrap();
        assert_eq!((cards[&0].processes.clone(), cards[&1].processes.len()), (vec![(7, Some(4096 << 20))], 0));
        // 6180 KiB, of which the tool makes 6,180,000 bytes.
        let mut cards: BTreeMap<u32, Card> = [(0, Card::default())].into();
        processes(&json!([on(0, 7, 6_180_000)]), &mut cards).unwrap();
        assert_eq!(cards[&0].processes, [(7, Some(6180 << 10))]);
        // Which of two cards holds a process's figure for both is not known.
        let mut cards: BTreeMap<u32, Card> = [(0, Card::default()), (1, Card::default())].into();
        processes(&printed!("amd-smi-process-r9700.json"), &mut cards).unwrap();
        assert_eq!(cards[&1].processes, [(1_882_331, None), (1_883_505, None)]);
    }

    #[test]
    fn facts_of_a_newer_tool() {
        let mut cards: BTreeMap<u32, Card> = [(0, Card::default()), (1, Card::default())].into();
        facts(&printed!("amd-smi-static-r9700.json"), &mut cards).unwrap();
        assert_eq!(cards[&1].name.as_deref(), Some("AMD Radeon AI PRO R9700"));
        assert_eq!((cards[&1].driver.as_deref(), cards[&1].ecc), (Some("6.16.6"), Some(true)));
        assert_eq!(cards[&1].total, Some(32_624 << 20));
        let partition = json!([{ "gpu": 0, "partition": { "compute_partition": "CPX", "memory_partition": "NPS4" } }]);
        facts(&partition, &mut cards).unwrap();
        assert_eq!(cards[&0].partition.as_deref(), Some("CPX/NPS4"));
        let current = json!({ "current_partition": [{ "gpu_id": 1, "memory": "NPS1", "accelerator_type": "DPX*",
            "accelerator_profile_index": 0, "partition_id": "0" }, { "gpu_id": 9 }] });
        partitions(&current, &mut cards).unwrap();
        assert_eq!(cards[&1].partition.as_deref(), Some("DPX/NPS1"));
    }

    #[test]
    fn the_older_tool_says_less() {
        let cards = rocm_smi(&printed!("rocm-smi-rx7900xt.json")).unwrap();
        let card = &cards[&0];
        assert_eq!((card.name.as_deref(), card.total), (Some("Radeon RX 7900 XT"), Some(21_458_059_264)));
        assert_eq!((card.used, card.vitals.figures["gpu_busy_percent"]), (Some(27_856_896), 0));
        assert!(card.vitals.unavailable.contains_key("sm_clock_mhz"));
        let of = |more: Value| {
            let mut all = json!({ "card0": { "sclk clock speed:": "(1700Mhz)", "mclk clock speed:": "(1600Mhz)" },
                "system": { "Driver version": "6.8.5", "PID1168514": "pt_main_thread, 1, 177386942464, 0, 4", "PID2": "a, unknown, unknown, unknown, unknown" } });
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            rocm_smi(&all).unwrap()
        };
        let alone = &of(json!({}))[&0];
        assert_eq!(alone.processes, [(1_168_514, Some(177_386_942_464)), (2, None)]);
        assert_eq!((alone.vitals.figures["sm_clock_mhz"], alone.driver.as_deref()), (1700, Some("6.8.5")));
        let of_two = &of(json!({ "card1": {} }))[&0];
        assert!(of_two.processes.is_empty() && of_two.vitals.unavailable["processes"].contains("which card"));
    }

    #[test]
    fn what_is_no_such_output_is_refused_by_name() {
        let refused = |found: Value| metric(&found).unwrap_err();
        assert!(refused(json!({ "error": "No AMD GPU found", "code": -3 })).contains("No AMD GPU"));
        for found in
            [json!({}), json!("text"), json!({ "gpu_data": 3 }), json!([{}]), json!([{ "gpu": -1 }]), json!(null)]
        {
            assert!(refused(found.clone()).contains("unknown shape"), "{found}");
            assert!(rocm_smi(&found).unwrap_err().contains("unknown shape"), "{found}");
        }
        let strange = json!([{ "gpu": 0, "clock": [], "ecc": 1e300, "usage": { "gfx_activity": -4 }, "mem_usage": { "total_vram": { "value": 1e16, "unit": "GB" } } }]);
        assert_eq!(metric(&strange).unwrap()[&0].total, None);
        assert!(processes(&json!([{ "gpu": 0 }]), &mut BTreeMap::new()).unwrap_err().contains("process_list"));
    }

    /// Every value in turn replaced by what nobody expects there: an answer or a reason, never a panic.
    #[test]
    fn no_value_breaks_the_reader() {
        fn places(of: &Value, at: &str, into: &mut Vec<String>) {
            into.push(at.to_owned());
            match of {
                Value::Object(map) => map.iter().for_each(|(key, of)| {
                    let key = key.replace('~', "~0").replace('/', "~1");
                    places(of, &format!("{at}/{key}"), into);
                }),
                Value::Array(list) => {
                    list.iter().enumerate().for_each(|(n, of)| places(of, &format!("{at}/{n}"), into));
                }
                _ => {}
            }
        }
        let odd =
            [json!(null), json!(-1), json!(1.8e19), json!(u64::MAX), json!("N/A"), json!([[]]), json!({ "value": {} })];
        let mut tried = 0;
        for whole in [
            printed!("amd-smi-metric-rx6600.json"),
            printed!("amd-smi-static-r9700.json"),
            printed!("amd-smi-process-r9700.json"),
            printed!("rocm-smi-rx7900xt.json"),
        ] {
            let mut at = Vec::new();
            places(&whole, "", &mut at);
            for (at, odd) in at.iter().flat_map(|at| odd.iter().map(move |odd| (at, odd))) {
                let mut changed = whole.clone();
                *changed.pointer_mut(at).unwrap() = odd.clone();
                let mut cards: BTreeMap<u32, Card> = [(0, Card::default()), (1, Card::default())].into();
                for done in [
                    metric(&changed).map(drop),
                    rocm_smi(&changed).map(drop),
                    facts(&changed, &mut cards),
                    processes(&changed, &mut cards),
                    partitions(&changed, &mut cards),
                ] {
                    assert!(done.is_ok() || !done.unwrap_err().is_empty());
                }
                tried += 1;
            }
        }
        assert!(tried > 1000, "{tried}");
    }
}
