//! The page: thin components over [`vram_budget::view`], which holds its state and decides what is shown.
#![cfg_attr(not(target_arch = "wasm32"), allow(dead_code))]

mod advice;
mod answer;
mod app;
mod bill;
mod compare;
mod controls;
mod errand;
mod explained;
mod frame;
mod job;
mod lengths;
mod measured;
mod more;
mod phases;
mod platform;
mod ranks;
mod search;
mod steps;
mod store;
#[cfg(test)]
mod tests;
mod timeline;
mod worker;

#[cfg(target_arch = "wasm32")]
fn main() {
    use std::rc::Rc;

    use vram_budget::view::{Action, State};

    if web_sys::window().is_none() {
        return worker::listen();
    }
    platform::keep_input_on_panic();
    let Some(root) = gloo::utils::document().get_element_by_id("app") else { return };
    let fragment = platform::fragment();
    let mut start = Rc::new(State { theme: platform::stored_theme(), ..State::from_fragment(&fragment) });
    // A page that `vram-budget open` or `serve` put a measurement into; a link's inputs are newer than its plan.
    if let Some(text) = platform::measurement() {
        start = start.reduce(Action::Paste(text));
        if fragment.is_empty() {
            start = start.reduce(Action::UseMeasuredPlan);
        }
    }
    platform::remember(&start);
    yew::Renderer::<app::App>::with_root_and_props(root, app::Props { start }).render();
    platform::say_started();
}

/// Natively the page is only compiled and tested.
#[cfg(not(target_arch = "wasm32"))]
fn main() {}
