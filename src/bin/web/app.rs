//! The root: the reducer, its context, the four effects, and the frame of the page.

use std::rc::Rc;

use vram_budget::text::{Label, Msg};
use vram_budget::view::answer::Answer;
use vram_budget::view::{Action, State};
use yew::prelude::*;

use crate::advice::advice_section;
use crate::answer::{answer_panel, definitions};
use crate::bill::bill_section;
use crate::frame::{Live, drop_hint, foot, head, notice_bar, problems, steps_nav};
use crate::job::job_form;
use crate::measured::measured_section;
use crate::platform;
use crate::steps::{priced, step_sections, steps};
use crate::store::{Handle, use_store};
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
    let store = &use_store(Rc::clone(&props.start));
    let text = store.text();
    platform::use_fragment(store);
    platform::use_theme(store);
    let answer = &answer(store);
    platform::use_title(title(store, answer.as_ref()));
    platform::use_work(store);
    platform::use_answers(store);
    let dragging = platform::use_intake(store);
    let to_answer = Callback::from(|event: MouseEvent| {
        event.prevent_default();
        platform::go_to("answer");
    });
    let walk = use_walked(store);
    html! {
        <>
            <a class="skip" href="#answer" onclick={to_answer}>{ text.label(Label::SkipToAnswer) }</a>
            { head(store) }
            <Nav store={walk.clone()} />
            <div class="cols">
                <main>
                    { notice_bar(store) }
                    { problems(store) }
                    { job_form(store) }
                    <Walk store={walk} />
                </main>
                { answer_panel(store, answer.as_ref()) }
            </div>
            { definitions(text) }
            { platform::file_input(store) }
            <Live sentence={live_sentence(store, answer.as_ref())} />
            if dragging { { drop_hint(store) } }
        </>
    }
}

/// The state that the walk shows: the page's own, but for an answer that has just been made. So an input's own frame
/// draws little, and the rest of the page changes once, not twice, where the replay is soon done.
#[hook]
fn use_walked(store: &Handle) -> Handle {
    let drawn = use_mut_ref(|| store.clone());
    let mut drawn = drawn.borrow_mut();
    if !store.0.outcome.fresh {
        *drawn = store.clone();
    }
    drawn.clone()
}

/// What a part of the page is drawn from.
#[derive(Clone, PartialEq, Properties)]
struct Drawn {
    store: Handle,
}

/// The steps, each with how it stands.
#[component]
fn Nav(props: &Drawn) -> Html {
    steps_nav(&props.store, &steps(&props.store))
}

/// All that follows from the inputs.
#[component]
fn Walk(props: &Drawn) -> Html {
    let store = &props.store;
    html! {
        <>
            { step_sections(store, &steps(store)) }
            if store.0.outcome.priced.is_some() { { advice_section(store) } }
            { bill_section(store) }
            { timeline_section(store) }
            { measured_section(store) }
            { foot(store) }
        </>
    }
}

/// The answer that is shown.
fn answer(store: &Handle) -> Option<Answer> {
    let shown = store.0.outcome.shown.as_ref()?;
    Some(Answer::new(shown.plan(), shown.decision(), priced(store), store.text()))
}

/// The sentence that the live region says: what is not decided yet is not said.
fn live_sentence(store: &Handle, answer: Option<&Answer>) -> String {
    let state = &store.0;
    if state.is_stale() {
        return store.text().say(&Msg::Problems { count: state.outcome.issues.len() });
    }
    answer.filter(|answer| !answer.refining).map_or(String::new(), |answer| answer.live.clone())
}

/// The page's title for the answer; `None`: as it is.
fn title(store: &Handle, answer: Option<&Answer>) -> Option<String> {
    answer.filter(|_| !store.0.outcome.is_refining()).map(|answer| answer.title.clone())
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
