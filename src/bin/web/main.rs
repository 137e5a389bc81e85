//! The page: thin components over [`vram_budget::view`], which holds its state and decides what is shown.
#![cfg_attr(not(target_arch = "wasm32"), allow(dead_code))]

mod answer;
mod app;
mod bill;
mod controls;
mod frame;
mod job;
mod measured;
mod more;
mod platform;
mod steps;
mod store;
#[cfg(test)]
mod tests;
mod timeline;

#[cfg(target_arch = "wasm32")]
fn main() {
    use vram_budget::view::State;

    platform::keep_input_on_panic();
    let Some(root) = gloo::utils::document().get_element_by_id("app") else { return };
    let start = State { theme: platform::stored_theme(), ..State::from_fragment(&platform::fragment()) };
    platform::remember(&start);
    yew::Renderer::<app::App>::with_root_and_props(root, app::Props { start: start.into() }).render();
    platform::say_started();
}

/// Natively the page is only compiled and tested.
#[cfg(not(target_arch = "wasm32"))]
fn main() {}
