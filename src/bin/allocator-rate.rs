//! Events per second of the allocator in a browser, on recorded training loops: `make speed`. No part of the page.
//!
//! `scripts/allocator-rate.mjs` puts the recordings into `globalThis.traces` and reads `globalThis.rates`.

#[cfg(target_arch = "wasm32")]
fn main() {
    let traces = js_sys::Reflect::get(&js_sys::global(), &"traces".into()).unwrap_or_default();
    let one = |text: wasm_bindgen::JsValue| js_sys::Number::from(rate(&text.as_string().unwrap_or_default()));
    let rates: js_sys::Array = js_sys::Array::from(&traces).iter().map(one).collect();
    let _ = js_sys::Reflect::set(&js_sys::global(), &"rates".into(), &rates);
}

/// Millions of events per second, the mean of a second; NaN for what is no recording.
#[cfg(target_arch = "wasm32")]
fn rate(text: &str) -> f64 {
    use vram_budget::allocator::trace::{Trace, replay};
    use vram_budget::allocator::{AllocConf, Config};
    use vram_budget::plan::Version;

    const TIME_MS: f64 = 1000.0;
    let Ok(mut trace) = Trace::from_json(text) else { return f64::NAN };
    // The allocator alone, without the listing of segments.
    trace.checkpoints.clear();
    let version = trace.pytorch.unwrap_or(Version(2, 15));
    let Ok(alloc_conf) = AllocConf::parse(&trace.alloc_conf, version) else { return f64::NAN };
    let config = Config { total_bytes: trace.total, alloc_conf, ..Config::new(version) };
    let mut events = 0;
    let start = js_sys::Date::now();
    loop {
        if replay(&trace, &config, |_, _| {}).is_err() {
            return f64::NAN;
        }
        events += trace.events.len();
        let elapsed = js_sys::Date::now() - start;
        if elapsed >= TIME_MS {
            #[expect(clippy::cast_precision_loss, reason = "a rate for display")]
            return events as f64 / elapsed / 1e3;
        }
    }
}

/// Natively `benches/allocator.rs` does this.
#[cfg(not(target_arch = "wasm32"))]
fn main() {}
