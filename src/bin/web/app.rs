use yew::prelude::*;

/// The whole page.
#[component]
pub(crate) fn App() -> Html {
    html! { <main><h1>{ "vram-budget" }</h1></main> }
}
