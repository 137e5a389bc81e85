//! Events per second of the allocator in a browser, on recorded training loops, and plans per second of a search: `make speed`.
//! No part of the page.
//!
//! `scripts/allocator-rate.mjs` puts the recordings into `globalThis.traces` and reads `globalThis.rates`; without recordings it
//! is the search's.

#[cfg(target_arch = "wasm32")]
#[path = "../../benches/grid/mod.rs"]
mod grid;

#[cfg(target_arch = "wasm32")]
fn main() {
    let traces = js_sys::Reflect::get(&js_sys::global(), &"traces".into()).unwrap_or_default();
    let one = |text: wasm_bindgen::JsValue| js_sys::Number::from(rate(&text.as_string().unwrap_or_default()));
    let mut rates: js_sys::Array = js_sys::Array::from(&traces).iter().map(one).collect();
    if rates.length() == 0 {
        rates = js_sys::Array::of1(&plans().into());
    }
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

/// Plans per second that a search's walk judges, once over its grid; NaN where it is refused.
#[cfg(target_arch = "wasm32")]
fn plans() -> f64 {
    let Some(mut search) = grid::search() else { return f64::NAN };
    let start = js_sys::Date::now();
    let plans = grid::walk(&mut search);
    #[expect(clippy::cast_precision_loss, reason = "a rate for display")]
    return plans as f64 / (js_sys::Date::now() - start) * 1e3;
}

/// Natively `benches/allocator.rs` and `benches/search.rs` do this.
#[cfg(not(target_arch = "wasm32"))]
fn main() {}
