//! What frames the page: head, navigation, notices, summary of issues, live region, foot.

use vram_budget::decide::{Question, Status};
use vram_budget::plan::Framework;
use vram_budget::text::{Label, Msg};
use vram_budget::view::steps::Step;
use vram_budget::view::{Action, Notice, Section, Theme, job};
use yew::prelude::*;

use crate::app::go;
use crate::platform;
use crate::store::Handle;

/// The class of a status's mark.
pub(crate) fn mark_class(status: Status) -> &'static str {
    match status {
        Status::Pass => "pass",
        Status::Attention => "warn",
        Status::Stop => "stop",
        Status::Waits => "idle",
    }
}

/// The title and the tools.
pub(crate) fn head(store: &Handle) -> Html {
    let text = store.text();
    let theme = store.0.theme;
    let label = match theme {
        Theme::System => Label::ThemeSystem,
        Theme::Light => Label::ThemeLight,
        Theme::Dark => Label::ThemeDark,
    };
    let share = {
        let store = store.clone();
        Callback::from(move |_: MouseEvent| platform::copy_link(&store))
    };
    html! {
        <header class="top">
            <h1>{ "vram-budget" }</h1>
            <p>{ text.label(Label::Tagline) }</p>
            <div class="tools">
                <button class="plain" type="button" id="theme" onclick={store.on(move |_| Action::Theme(theme.next()))}>
                    { text.label(label) }
                </button>
                <button class="btn" type="button" id="share" onclick={share}>{ text.label(Label::Share) }</button>
            </div>
        </header>
    }
}

/// The steps, each with how it stands.
pub(crate) fn steps_nav(store: &Handle, steps: &[Step]) -> Html {
    let text = store.text();
    let state = &store.0;
    let item = |section: Section| {
        let step = steps.iter().find(|step| step.section == section);
        let question = match section {
            Section::Rigid => Some(Question::Rigid),
            Section::Activations => Some(Question::Activations),
            Section::Margin => Some(Question::Margin),
            Section::Throughput => Some(Question::Throughput),
            Section::Job | Section::Measured => None,
        };
        let number = match section {
            Section::Job => "0",
            Section::Rigid => "1",
            Section::Activations => "2",
            Section::Margin => "3",
            Section::Throughput => "4",
            Section::Measured => "",
        };
        let name = match (question, section) {
            (Some(question), _) => text.question(question),
            (None, Section::Measured) => text.label(Label::Measured),
            (None, _) => text.label(Label::Job),
        };
        let (class, mark) = match (step, section) {
            (Some(step), _) => (mark_class(step.status), step.status_word.clone()),
            (None, Section::Job) => ("none", job::model_name(state, text)),
            (None, Section::Measured) => (
                "none",
                match &*state.measured.taken {
                    [] => text.label(Label::NothingYet).into(),
                    _ => text.say(&Msg::MeasurementRead),
                },
            ),
            (None, _) => ("idle", text.status(Status::Waits).into()),
        };
        let here = state.section == section;
        html! {
            <li key={section.id()}>
                <a href={format!("#{}", section.id())} aria-current={here.then_some("step")} onclick={go(store, section)}>
                    if number.is_empty() {
                        <span class="num" aria-hidden="true"></span>
                    } else {
                        <span class="num">{ number }</span>
                    }
                    <span class="name">{ name }</span>
                    <span class={classes!("mark", class)}>{ mark }</span>
                </a>
            </li>
        }
    };
    html! {
        <div class="band">
            <nav class="steps" aria-label={text.label(Label::Steps)}>
                <ol>{ for Section::ALL.into_iter().map(item) }</ol>
            </nav>
        </div>
    }
}

/// Something to tell, until it is dismissed.
pub(crate) fn notice_bar(store: &Handle) -> Html {
    let text = store.text();
    let sentence = store.0.notice.as_ref().map(|notice| match notice {
        Notice::Copied => text.label(Label::LinkCopied).to_owned(),
        Notice::CopyFailed => text.label(Label::CopyFailed).into(),
        Notice::LinkRefused(why) => text.say(&Msg::LinkRefused { why: *why }),
        Notice::ConfigTaken(name) => text.say(&Msg::ConfigTaken { name }),
        Notice::PlanTaken => text.say(&Msg::PlanTaken),
        Notice::PlanRefused(error) => text.import_error(error),
        Notice::TextTooLarge { bytes, limit } => text.say(&Msg::TextTooLarge { bytes: *bytes, limit: *limit }),
        Notice::FileTooLarge { name, bytes, limit } => {
            text.say(&Msg::FileTooLarge { name, bytes: *bytes, limit: *limit })
        }
        Notice::FileUnreadable => text.label(Label::FileUnreadable).into(),
    });
    html! {
        <div class="notice" role="status" id="notice">
            if let Some(sentence) = sentence {
                <p>{ sentence }</p>
                <button class="plain small" type="button" onclick={store.on(|_| Action::Notice(None))}>
                    { text.label(Label::Dismiss) }
                </button>
            }
        </div>
    }
}

/// Every issue of the inputs, each leading to its field.
pub(crate) fn problems(store: &Handle) -> Html {
    let text = store.text();
    let problems = job::problems(&store.0, text);
    if problems.is_empty() {
        return Html::default();
    }
    let item = |problem: &job::Problem| {
        let id = problem.id;
        let onclick = Callback::from(move |event: MouseEvent| {
            event.prevent_default();
            platform::go_to(id);
        });
        html! { <li><a href={format!("#{id}")} {onclick}>{ problem.sentence.clone() }</a></li> }
    };
    html! {
        <section class="problems" aria-labelledby="h-problems">
            <h2 id="h-problems">{ text.say(&Msg::Problems { count: problems.len() }) }</h2>
            <ul>{ for problems.iter().map(item) }</ul>
        </section>
    }
}

/// What the live region is to say.
#[derive(Clone, PartialEq, Properties)]
pub(crate) struct LiveProps {
    /// The sentence.
    pub(crate) sentence: String,
}

/// The verdict for those who do not see it, once they have stopped typing.
#[component]
pub(crate) fn Live(props: &LiveProps) -> Html {
    let said = platform::use_settled(props.sentence.clone());
    html! { <div class="hide" role="status" aria-live="polite" id="live">{ said }</div> }
}

/// What is shown while a file is dragged over the page.
pub(crate) fn drop_hint(store: &Handle) -> Html {
    html! { <div class="drop" aria-hidden="true"><p>{ store.text().label(Label::DropHere) }</p></div> }
}

/// The foot: whose rules, and that nothing is sent.
pub(crate) fn foot(store: &Handle) -> Html {
    let text = store.text();
    let framework = store.0.outcome.shown.as_ref().map(|s| s.plan().framework.clone()).unwrap_or_default();
    let Framework { pytorch, transformers, .. } = framework;
    let versions = text.say(&Msg::Versions { pytorch: &pytorch.to_string(), transformers: &transformers.to_string() });
    html! {
        <footer>
            <p>{ format!("{versions} {} vram-budget {}.", text.label(Label::Footer), env!("CARGO_PKG_VERSION")) }</p>
        </footer>
    }
}
