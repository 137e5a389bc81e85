//! The root: the reducer, its context, the four effects, and the frame of the page.

use std::rc::Rc;

use vram_budget::text::{Label, Msg};
use vram_budget::view::{Action, State};
use yew::prelude::*;

use crate::answer::{answer_panel, definitions};
use crate::bill::bill_section;
use crate::frame::{Live, drop_hint, foot, head, notice_bar, problems, steps_nav};
use crate::job::job_form;
use crate::measured::measured_section;
use crate::platform;
use crate::steps::step_sections;
use crate::store::{Ask, Handle, Store};
use crate::timeline::timeline_section;

/// What the page starts with.
#[derive(Clone, PartialEq, Properties)]
pub(crate) struct Props {
    /// The state at the start.
    pub(crate) start: Rc<State>,
}

/// The whole page.
#[component]
pub(crate) fn App(props: &Props) -> Html {
    let start = Rc::clone(&props.start);
    let store = &use_reducer(|| Store(start));
    let text = store.text();
    platform::use_fragment(store);
    platform::use_theme(store);
    platform::use_title(store);
    platform::use_work(store);
    let dragging = platform::use_intake(store);
    let to_answer = Callback::from(|event: MouseEvent| {
        event.prevent_default();
        platform::go_to("answer");
    });
    html! {
        <>
            <a class="skip" href="#answer" onclick={to_answer}>{ text.label(Label::SkipToAnswer) }</a>
            { head(store) }
            { steps_nav(store) }
            <div class="cols">
                <main>
                    { notice_bar(store) }
                    { problems(store) }
                    { job_form(store) }
                    { step_sections(store) }
                    { bill_section(store) }
                    { timeline_section(store) }
                    { measured_section(store) }
                    { foot(store) }
                </main>
                { answer_panel(store) }
            </div>
            { definitions(text) }
            { platform::file_input(store) }
            <Live sentence={live_sentence(store)} />
            if dragging { { drop_hint(store) } }
        </>
    }
}

/// The sentence that the live region says.
pub(crate) fn live_sentence(store: &Handle) -> String {
    let text = store.text();
    let state = &store.0;
    if state.is_stale() {
        return text.say(&Msg::Problems { count: state.outcome.issues.len() });
    }
    match &state.outcome.shown {
        // What is not decided yet is not said.
        Some(_) if state.outcome.is_refining() => String::new(),
        Some(shown) => vram_budget::view::answer::Answer::new(shown.plan(), shown.decision(), None, text).live,
        None => String::new(),
    }
}

/// The page's title for the answer.
pub(crate) fn title(store: &Handle) -> Option<String> {
    let shown = store.0.outcome.shown.as_ref().filter(|_| !store.0.outcome.is_refining())?;
    Some(vram_budget::view::answer::Answer::new(shown.plan(), shown.decision(), None, store.text()).title)
}

/// Goes to a section: remembers it, scrolls to it and moves the focus to its heading.
pub(crate) fn go(store: &Handle, section: vram_budget::view::Section) -> Callback<MouseEvent> {
    let dispatcher = store.dispatcher();
    Callback::from(move |event: MouseEvent| {
        event.prevent_default();
        dispatcher.dispatch(Action::Go(section));
        platform::go_to(section.id());
    })
}
