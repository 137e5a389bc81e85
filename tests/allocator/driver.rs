//! Drives the allocator through its own functions, as the engine does, without a trace.

use std::collections::BTreeMap;

use serde_json::Value;
use vram_budget::allocator::{Allocator, BlockId, Config};

pub(crate) struct Driver {
    pub(crate) allocator: Allocator,
    live: BTreeMap<String, BlockId>,
    /// Private pools that are active, and those that are in use.
    active: Vec<u64>,
    used: Vec<u64>,
}

impl Driver {
    pub(crate) fn new(config: &Config) -> Self {
        let allocator = Allocator::new(config);
        Self { allocator, live: BTreeMap::new(), active: Vec::new(), used: Vec::new() }
    }

    pub(crate) fn event(&mut self, event: &Value) {
        let number = |field: &str| event[field].as_u64().unwrap();
        let stream = || u32::try_from(number("stream")).unwrap();
        let id = || event["id"].as_str().unwrap();
        match event["op"].as_str().unwrap() {
            "alloc" => {
                if let Ok(block) = self.allocator.malloc(number("bytes"), stream()) {
                    self.live.insert(id().into(), block);
                }
            }
            "free" => {
                if let Some(block) = self.live.remove(id()) {
                    self.allocator.free(block);
                }
            }
            "record_stream" => {
                if let Some(&block) = self.live.get(id()) {
                    self.allocator.record_stream(block, stream());
                }
            }
            "empty_cache" => self.allocator.empty_cache(),
            "events_pending" => self.allocator.set_events_pending(event["value"].as_bool().unwrap()),
            "set_fraction" => self.allocator.set_fraction(event["value"].as_f64().unwrap()),
            "begin_pool" => {
                self.allocator.begin_pool(number("pool"));
                self.active.push(number("pool"));
                self.used.push(number("pool"));
            }
            "end_pool" => {
                self.allocator.end_pool(number("pool")).unwrap();
                let at = self.active.iter().position(|&p| p == number("pool")).unwrap();
                self.active.remove(at);
            }
            "release_pool" => {
                self.allocator.release_pool(number("pool")).unwrap();
                let at = self.used.iter().position(|&p| p == number("pool")).unwrap();
                self.used.remove(at);
            }
            other => panic!("{other} is not an operation"),
        }
    }

    /// Frees everything, ends and releases every private pool, and empties the cache.
    pub(crate) fn free_all(&mut self) {
        for block in core::mem::take(&mut self.live).into_values() {
            self.allocator.free(block);
        }
        for pool in core::mem::take(&mut self.active) {
            self.allocator.end_pool(pool).unwrap();
        }
        for pool in core::mem::take(&mut self.used) {
            self.allocator.release_pool(pool).unwrap();
        }
        self.allocator.empty_cache();
    }
}
