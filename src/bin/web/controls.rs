//! Native controls, each with its label, hint and issues tied together.

use vram_budget::text::Label;
use vram_budget::units::Bytes;
use vram_budget::view::{Action, Field, job};
use wasm_bindgen::JsCast;
use web_sys::{HtmlInputElement, HtmlSelectElement, HtmlTextAreaElement};
use yew::prelude::*;

use crate::store::Handle;

/// The value of the input that an event is about.
pub(crate) fn input_value(event: &InputEvent) -> String {
    event.target_dyn_into::<HtmlInputElement>().map(|input| input.value()).unwrap_or_default()
}

/// The text of the text area that an event is about.
pub(crate) fn area_value(event: &InputEvent) -> String {
    event.target_dyn_into::<HtmlTextAreaElement>().map(|area| area.value()).unwrap_or_default()
}

/// The value of the list that an event is about.
pub(crate) fn select_value(event: &Event) -> String {
    event.target().and_then(|t| t.dyn_into::<HtmlSelectElement>().ok()).map(|list| list.value()).unwrap_or_default()
}

/// A text field with its hint and issues; its label stands elsewhere. The class says how wide it is.
pub(crate) fn text_field(store: &Handle, field: Field, class: &'static str, hint: Option<Label>) -> Html {
    let text = store.text();
    let id = field.id();
    let issues = job::issues_of(&store.0, id, text);
    let hint = hint.map(|hint| text.label(hint));
    let numeric = matches!(field, Field::MicroBatch | Field::SeqLen | Field::GradAccum);
    let oninput = store.on(move |event: InputEvent| Action::Type(field, input_value(&event)));
    html! {
        <>
            <input
                {id}
                {class}
                type="text"
                inputmode={if numeric { "numeric" } else { "text" }}
                autocomplete="off"
                spellcheck="false"
                value={store.0.draft.text(field).to_owned()}
                aria-invalid={(!issues.is_empty()).then_some("true")}
                aria-describedby={described_by(id, hint.is_some(), &issues)}
                {oninput}
            />
            if let Some(hint) = hint { <span class="hint" id={format!("{id}-hint")}>{ hint }</span> }
            { issue_list(id, &issues) }
        </>
    }
}

/// The ids that describe a control.
pub(crate) fn described_by(id: &str, hint: bool, issues: &[String]) -> Option<String> {
    let ids: Vec<String> = [(hint, "hint"), (!issues.is_empty(), "issue")]
        .into_iter()
        .filter(|(there, _)| *there)
        .map(|(_, what)| format!("{id}-{what}"))
        .collect();
    (!ids.is_empty()).then(|| ids.join(" "))
}

/// What is wrong with a control, beside it.
pub(crate) fn issue_list(id: &str, issues: &[String]) -> Html {
    if issues.is_empty() {
        return Html::default();
    }
    html! {
        <span class="issue" id={format!("{id}-issue")}>
            for issue in issues { <span>{ issue.clone() }</span> }
        </span>
    }
}

/// An option of a list.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Choice {
    /// Its value.
    pub(crate) value: String,
    /// What it says.
    pub(crate) label: String,
    /// The group that it stands in.
    pub(crate) group: Option<String>,
}

impl Choice {
    /// An option without a group.
    pub(crate) fn new(value: impl Into<String>, label: impl Into<String>) -> Self {
        Self { value: value.into(), label: label.into(), group: None }
    }
}

/// A list to choose from.
#[derive(Clone, PartialEq, Properties)]
pub(crate) struct SelectProps {
    /// Its `id`.
    pub(crate) id: &'static str,
    /// The options.
    pub(crate) choices: Vec<Choice>,
    /// The chosen value.
    pub(crate) chosen: String,
    /// What choosing does.
    pub(crate) onchoose: Callback<String>,
    /// A hint below it.
    #[prop_or_default]
    pub(crate) hint: Option<String>,
    /// What is wrong with the choice.
    pub(crate) issues: Vec<String>,
    /// What stands beside it.
    #[prop_or_default]
    pub(crate) children: Html,
}

/// A list with its hint and issues; its label stands elsewhere.
#[component]
pub(crate) fn Select(props: &SelectProps) -> Html {
    let SelectProps { id, choices, chosen, onchoose, hint, issues, children } = props;
    let onchange = onchoose.reform(|event: Event| select_value(&event));
    let mut groups: Vec<(Option<String>, Vec<&Choice>)> = Vec::new();
    for choice in choices {
        match groups.iter_mut().find(|(group, _)| *group == choice.group) {
            Some((_, of)) => of.push(choice),
            None => groups.push((choice.group.clone(), vec![choice])),
        }
    }
    let option = |choice: &Choice| {
        html! {
            <option value={choice.value.clone()} selected={choice.value == *chosen}>
                { choice.label.clone() }
            </option>
        }
    };
    let options = groups.iter().map(|(group, of)| {
        let options: Html = of.iter().map(|choice| option(choice)).collect();
        match group {
            Some(label) => html! { <optgroup label={label.clone()}>{ options }</optgroup> },
            None => options,
        }
    });
    // Once a person has chosen, the browser no longer follows the options' attributes: the choice is set on the list.
    let list = use_node_ref();
    {
        let list = list.clone();
        use_effect_with((chosen.clone(), choices.clone()), move |(chosen, _)| {
            if let Some(list) = list.cast::<HtmlSelectElement>() {
                list.set_value(chosen);
            }
        });
    }
    html! {
        <>
            <select
                ref={list}
                id={*id}
                {onchange}
                aria-invalid={(!issues.is_empty()).then_some("true")}
                aria-describedby={described_by(id, hint.is_some(), issues)}
            >
                { for options }
            </select>
            { children.clone() }
            if let Some(hint) = hint { <span class="hint" id={format!("{id}-hint")}>{ hint.clone() }</span> }
            { issue_list(id, issues) }
        </>
    }
}

/// Exact bytes, for the title of a figure.
pub(crate) fn exact(bytes: Bytes) -> String {
    format!("{} B", vram_budget::units::grouped(bytes.get()))
}

/// A button beside one of several things, which says to those who do not see it which one it is about.
#[inline(never)]
pub(crate) fn named(says: String, name: &str, onclick: Callback<MouseEvent>) -> Html {
    html! {
        <button class="btn" type="button" {onclick}>{ says }<span class="hide">{ format!(": {name}") }</span></button>
    }
}
