//! Random scripts for every version and setting, from a seed.

use serde_json::{Value, json};

/// SplitMix64: enough for choosing operations, and the same everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        let n = u64::try_from(choices.len()).unwrap();
        choices[usize::try_from(self.below(n)).unwrap()]
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

const VERSIONS: [&str; 15] =
    ["2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14", "2.15"];

const CONFS: [&str; 12] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128,garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.5",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:2,8:1,32:8,64:0,>:4]",
    "expandable_segments:True,max_split_size_mb:32",
    "expandable_segments:True,roundup_power2_divisions:2,garbage_collection_threshold:0.7",
    "max_split_size_mb:32,roundup_power2_divisions:8",
    "",
    "expandable_segments:True",
];

/// These exist in some versions only.
const NEW_CONFS: [(&str, &str); 3] = [
    ("2.6", "max_split_size_mb:64,max_non_split_rounding_mb:40"),
    ("2.11", "large_segment_size_mb:40"),
    ("2.11", "large_segment_size_mb:32,expandable_segments:True"),
];

fn minor(version: &str) -> u64 {
    version.split_once('.').unwrap().1.parse().unwrap()
}

/// A script of some hundred operations.
pub(crate) fn script(seed: u64) -> Value {
    let mut random = Random(seed);
    let version = random.one_of(&VERSIONS);
    let mut conf = random.one_of(&CONFS);
    if random.chance(20) {
        let (since, new) = random.one_of(&NEW_CONFS);
        conf = if minor(version) >= minor(since) { new } else { conf };
    }
    // Small devices run out of memory, large ones seldom do.
    let total_mb = random.one_of(&[64, 100, 256, 301, 1024, 8192]);
    let streams: &[u64] = if random.chance(60) { &[0] } else { &[0, 0, 16, 32] };
    let pools = random.chance(25);
    let events = events(&mut random, streams, pools);
    json!({"version": version, "alloc_conf": conf, "total_mb": total_mb, "events": events})
}

fn size(random: &mut Random) -> u64 {
    const MIB: u64 = 1 << 20;
    match random.below(10) {
        0 => random.one_of(&[
            0,
            1,
            511,
            512,
            513,
            MIB - 1,
            MIB,
            MIB + 1,
            10 * MIB - 512,
            10 * MIB - 1,
            10 * MIB,
            20 * MIB,
        ]),
        1 => random.one_of(&[2 * MIB, 5 * MIB, 11 * MIB, 31 * MIB, 32 * MIB, 64 * MIB, 65 * MIB, 130 * MIB]),
        2..=4 => 1 + random.below(MIB),
        5..=7 => MIB + random.below(12 * MIB),
        8 => 10 * MIB + random.below(60 * MIB),
        // Any order of magnitude up to 256 MiB.
        _ => {
            let bits = 4 + random.below(25);
            (1 << bits) + random.below(1 << bits)
        }
    }
}

fn events(random: &mut Random, streams: &[u64], pools: bool) -> Vec<Value> {
    let mut events = Vec::new();
    let mut live: Vec<String> = Vec::new();
    let mut active: Vec<u64> = Vec::new();
    let mut used: Vec<u64> = Vec::new();
    let count = 40 + random.below(260);
    for n in 0..count {
        match random.below(100) {
            0..=1 => events.push(json!({"op": "empty_cache"})),
            2 => events.push(json!({"op": "set_fraction", "value": random.one_of(&[0.3, 0.5, 0.77, 0.9, 0.99])})),
            3..=5 if streams.len() > 1 => events.push(json!({"op": "events_pending", "value": random.chance(50)})),
            6..=12 if streams.len() > 1 && !live.is_empty() => {
                let id = live[usize::try_from(random.below(live.len() as u64)).unwrap()].clone();
                events.push(json!({"op": "record_stream", "id": id, "stream": random.one_of(streams)}));
            }
            13..=15 if pools && active.len() < 2 => {
                let pool = 1 + random.below(3);
                active.push(pool);
                used.push(pool);
                events.push(json!({"op": "begin_pool", "pool": pool}));
            }
            16..=19 if !active.is_empty() => {
                let at = usize::try_from(random.below(active.len() as u64)).unwrap();
                events.push(json!({"op": "end_pool", "pool": active.remove(at)}));
            }
            20..=21 if !used.is_empty() && active.is_empty() => {
                let at = usize::try_from(random.below(used.len() as u64)).unwrap();
                events.push(json!({"op": "release_pool", "pool": used.remove(at)}));
            }
            22..=60 if !live.is_empty() => {
                let at = usize::try_from(random.below(live.len() as u64)).unwrap();
                events.push(json!({"op": "free", "id": live.swap_remove(at)}));
            }
            _ => {
                let id = format!("t{n}");
                live.push(id.clone());
                let stream = random.one_of(streams);
                events.push(json!({"op": "alloc", "id": id, "bytes": size(random), "stream": stream}));
            }
        }
    }
    events
}
