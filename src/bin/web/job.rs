//! The inputs.

use vram_budget::recipe::{Attention, Checkpointing, OptimizerImpl, OptimizerName, Precision};
use vram_budget::text::{Label, Term};
use vram_budget::view::{Action, Field, GpuPick, Panel, job};
use yew::prelude::*;

use crate::controls::{Choice, Select, area_value, described_by, input_value, issue_list, text_field};
use crate::platform;
use crate::store::{Ask, Handle};

/// The form of the job.
pub(crate) fn job_form(store: &Handle) -> Html {
    let text = store.text();
    let onsubmit = Callback::from(|event: SubmitEvent| event.prevent_default());
    html! {
        <section class="step" id="job" aria-labelledby="h-job">
            <span class="num">{ "0" }</span>
            <div>
                <h2 id="h-job" tabindex="-1">{ text.label(Label::Job) }</h2>
                <form class="form" {onsubmit}>
                    { model_row(store) }
                    { gpu_row(store) }
                    { in_use_row(store) }
                    { precision_row(store) }
                    { optimizer_row(store) }
                    { batch_row(store) }
                    { attention_row(store) }
                    { checkpointing_row(store) }
                    { more_row(store) }
                </form>
            </div>
        </section>
    }
}

/// A row of the form: the label of its first control, and the controls.
fn row(label: &'static str, of: &'static str, controls: Html) -> Html {
    html! { <div class="row"><label for={of}>{ label }</label><div class="field">{ controls }</div></div> }
}

/// Dispatches an action when Enter is pressed.
fn on_enter(store: &Handle, action: Action) -> Callback<KeyboardEvent> {
    let dispatcher = store.dispatcher();
    Callback::from(move |event: KeyboardEvent| {
        if event.key() == "Enter" {
            dispatcher.dispatch(action.clone());
        }
    })
}

/// The option by its position in a list, `None` for the first: "I don't know".
fn at<T: Copy>(all: &[T], value: &str) -> Option<T> {
    value.parse::<usize>().ok().and_then(|at| all.get(at)).copied()
}

/// The value of an option: its position, or nothing for "I don't know".
fn value_of<T: PartialEq>(all: &[T], chosen: Option<T>) -> String {
    chosen.and_then(|chosen| all.iter().position(|one| *one == chosen)).map_or(String::new(), |at| at.to_string())
}

/// The options of a list of things, after "I don't know" where that is an answer.
fn choices<T: Copy>(unknown: Option<&str>, all: &[T], name: impl Fn(T) -> &'static str) -> Vec<Choice> {
    let known = all.iter().enumerate().map(|(at, one)| Choice::new(at.to_string(), name(*one)));
    unknown.map(|label| Choice::new("", label)).into_iter().chain(known).collect()
}

fn model_row(store: &Handle) -> Html {
    let text = store.text();
    let state = &store.0;
    let open = state.is_open(Panel::Config) || state.draft.config().is_some();
    let chosen = job::chosen_preset(state).to_owned();
    let names = job::presets(&state.model_filter, &chosen);
    let mut list: Vec<Choice> = names.iter().map(|name| Choice::new(*name, *name)).collect();
    if state.draft.config().is_some() {
        list.insert(0, Choice::new("", text.label(Label::ModelFromConfig)));
    }
    let chosen = if state.draft.config().is_some() { String::new() } else { chosen };
    let onchoose = store.on(|name: String| match name.is_empty() {
        true => Action::Panel(Panel::Config, true),
        false => Action::Preset(name),
    });
    let onfilter = store.on(|event: InputEvent| Action::ModelFilter(input_value(&event)));
    let onkeydown = on_enter(store, Action::FirstModel);
    html! {
        <div class="row">
            <label for={job::MODEL_ID}>{ text.label(Label::Model) }</label>
            <div class="field">
                <Select id={job::MODEL_ID} issues={job::issues_of(&store.0, job::MODEL_ID, text)} choices={list} {chosen} {onchoose} hint={job::model_hint(state, text)}>
                    <input
                    class="find" type="search" id="find-model" autocomplete="off" spellcheck="false"
                    aria-label={text.label(Label::FindModel)} placeholder={text.label(Label::FindModel)}
                    value={state.model_filter.clone()} oninput={onfilter} {onkeydown}
                />
                    if !open { <button class="plain small" type="button" id="paste-config"
                        onclick={store.on(|_| Action::Panel(Panel::Config, true))}>
                        { text.label(Label::PasteConfig) }
                    </button> }
                </Select>
                if open { { config_box(store) } }
            </div>
        </div>
    }
}

/// The text of a `config.json`.
fn config_box(store: &Handle) -> Html {
    let text = store.text();
    let id = job::CONFIG_ID;
    let issues = job::issues_of(&store.0, id, text);
    let oninput = store.on(|event: InputEvent| {
        let text = area_value(&event);
        Action::Config((!text.trim().is_empty()).then_some(text))
    });
    let onback = {
        let dispatcher = store.dispatcher();
        Callback::from(move |_: MouseEvent| {
            dispatcher.dispatch(Action::Config(None));
            dispatcher.dispatch(Action::Panel(Panel::Config, false));
        })
    };
    html! {
        <div class="config">
            <label for={id}>{ text.label(Label::ConfigJson) }</label>
            <textarea
                {id} rows="6" spellcheck="false" {oninput}
                value={store.0.draft.config().unwrap_or_default().to_owned()}
                aria-invalid={(!issues.is_empty()).then_some("true")}
                aria-describedby={described_by(id, true, &issues)}
            />
            { issue_list(id, &issues) }
            <span class="hint" id={format!("{id}-hint")}>{ text.label(Label::ConfigHint) }</span>
            <button class="plain small" type="button" onclick={platform::pick_file()}>{ text.label(Label::ChooseFile) }</button>
            <button class="plain small" type="button" onclick={onback}>{ text.label(Label::BackToPresets) }</button>
        </div>
    }
}

fn gpu_row(store: &Handle) -> Html {
    const UNKNOWN: &str = "?";
    const OWN: &str = "own";
    let text = store.text();
    let state = &store.0;
    let pick = state.draft.gpu();
    let gpus = job::gpus(&state.gpu_filter, &pick);
    let (chosen, own) = match &pick {
        GpuPick::Unknown => (UNKNOWN.to_owned(), false),
        GpuPick::Own => (OWN.to_owned(), true),
        GpuPick::Catalogue(name) => (job::catalogue_name(name).to_owned(), false),
    };
    let mut list =
        vec![Choice::new(UNKNOWN, text.label(Label::GpuUnknown)), Choice::new(OWN, text.label(Label::GpuOwn))];
    list.extend(gpus.iter().map(|gpu| Choice {
        group: Some(format!("{} {}", gpu.vendor, gpu.arch)),
        ..Choice::new(gpu.name.clone(), gpu.name.clone())
    }));
    let onchoose = store.on(|name: String| {
        Action::Gpu(match name.as_str() {
            UNKNOWN => GpuPick::Unknown,
            OWN => GpuPick::Own,
            _ => GpuPick::Catalogue(name),
        })
    });
    let onfilter = store.on(|event: InputEvent| Action::GpuFilter(input_value(&event)));
    let onkeydown = on_enter(store, Action::FirstGpu);
    html! {
        <>
            <div class="row">
                <label for={job::GPU_ID}>{ text.label(Label::Gpu) }</label>
                <div class="field">
                    <Select id={job::GPU_ID} issues={job::issues_of(&store.0, job::GPU_ID, text)} choices={list} {chosen} {onchoose} hint={job::gpu_hint(state, text)}>
                        <input
                        class="find" type="search" id="find-gpu" autocomplete="off" spellcheck="false"
                        aria-label={text.label(Label::FindGpu)} placeholder={text.label(Label::FindGpu)}
                        value={state.gpu_filter.clone()} oninput={onfilter} {onkeydown}
                    />
                    </Select>
                </div>
            </div>
            if own {
                { row(text.label(Label::GpuOwnName), Field::GpuName.id(), html! { { text_field(store, Field::GpuName, "wide left", None) } }) }
                { row(text.label(Label::GpuOwnMemory), Field::GpuMemory.id(), html! {
                    { text_field(store, Field::GpuMemory, "size", Some(Label::GpuOwnMemoryHint)) }
                }) }
                { row(text.label(Label::GpuOwnCapability), Field::GpuCapability.id(), html! {
                    { text_field(store, Field::GpuCapability, "", Some(Label::GpuOwnCapabilityHint)) }
                }) }
            }
        </>
    }
}

fn in_use_row(store: &Handle) -> Html {
    let text = store.text();
    let unknown = store.0.draft.text(Field::InUse).trim().is_empty();
    html! {
        <div class="row">
            <label for={Field::InUse.id()}>{ text.label(Label::InUse) }</label>
            <div class="field">
                <label class="radio">
                    <input type="checkbox" id="in-use-unknown" checked={unknown}
                        onchange={store.on(move |_: Event| Action::InUseKnown(unknown))} />
                    { text.label(Label::DontKnow) }
                </label>
                { text_field(store, Field::InUse, "size", Some(Label::InUseHint)) }
            </div>
        </div>
    }
}

fn precision_row(store: &Handle) -> Html {
    let text = store.text();
    let chosen = store.0.draft.choices().recipe.precision;
    let hint = match chosen {
        Some(precision) => text.precision_meaning(precision).to_owned(),
        None => job::precision_hint(&store.0, text),
    };
    row(
        text.label(Label::Precision),
        "precision",
        html! {
            <Select
                id="precision" issues={job::issues_of(&store.0, "precision", text)}
                choices={choices(Some(text.label(Label::DontKnow)), &Precision::ALL, |p| text.precision(p))}
                chosen={value_of(&Precision::ALL, chosen)}
                onchoose={store.on(|value: String| Action::Precision(at(&Precision::ALL, &value)))}
                {hint}
            />
        },
    )
}

fn optimizer_row(store: &Handle) -> Html {
    const IMPLEMENTATIONS: [OptimizerImpl; 3] = [OptimizerImpl::Foreach, OptimizerImpl::Fused, OptimizerImpl::Forloop];
    let text = store.text();
    let optimizer = store.0.draft.choices().recipe.optimizer;
    let hint = text.definition(match optimizer.implementation.unwrap_or(OptimizerImpl::Foreach) {
        OptimizerImpl::Foreach => Term::Foreach,
        OptimizerImpl::Fused => Term::Fused,
        OptimizerImpl::Forloop => Term::Forloop,
    });
    html! {
        <>
            { row(text.label(Label::Optimizer), "optimizer", html! {
                <Select
                    id="optimizer" issues={job::issues_of(&store.0, "optimizer", text)}
                    choices={choices(None, &OptimizerName::ALL, |o| text.optimizer(o))}
                    chosen={value_of(&OptimizerName::ALL, Some(optimizer.name))}
                    onchoose={store.on(move |value: String| {
                        Action::Optimizer(at(&OptimizerName::ALL, &value).unwrap_or(optimizer.name))
                    })}
                />
            }) }
            if optimizer.name == OptimizerName::Sgd {
                { row(text.label(Label::Momentum), Field::Momentum.id(), html! { { text_field(store, Field::Momentum, "", None) } }) }
            }
            { row(text.label(Label::Implementation), "implementation", html! {
                <Select
                    id="implementation" issues={job::issues_of(&store.0, "implementation", text)}
                    choices={choices(Some(text.label(Label::ImplementationUnknown)), &IMPLEMENTATIONS, |i| text.implementation(i))}
                    chosen={value_of(&IMPLEMENTATIONS, optimizer.implementation)}
                    onchoose={store.on(|value: String| Action::Implementation(at(&IMPLEMENTATIONS, &value)))}
                    hint={hint.to_owned()}
                />
            }) }
        </>
    }
}

fn batch_row(store: &Handle) -> Html {
    let text = store.text();
    html! {
        <>
            <div class="row">
                <label for={Field::MicroBatch.id()}>{ text.label(Label::MicroBatch) }</label>
                <div class="field">
                    { text_field(store, Field::MicroBatch, "tiny", None) }
                    <span class="soft" aria-hidden="true">{ text.label(Label::SequencesOf) }</span>
                    <label class="hide" for={Field::SeqLen.id()}>{ text.label(Label::SeqLen) }</label>
                    { text_field(store, Field::SeqLen, "", None) }
                    <span class="soft" aria-hidden="true">{ text.label(Label::Tokens) }</span>
                </div>
            </div>
            <div class="row">
                <label for={Field::GradAccum.id()}>{ text.label(Label::GradAccum) }</label>
                <div class="field">
                    { text_field(store, Field::GradAccum, "tiny", None) }
                    <span class="soft" aria-hidden="true">{ text.label(Label::GradAccumHint) }</span>
                </div>
            </div>
        </>
    }
}

fn attention_row(store: &Handle) -> Html {
    const ALL: [Attention; 2] = [Attention::Sdpa, Attention::Eager];
    let text = store.text();
    let chosen = store.0.draft.choices().recipe.attention;
    let hint = (chosen == Some(Attention::Eager)).then(|| text.definition(Term::Eager).to_owned());
    row(
        text.label(Label::Attention),
        "attention",
        html! {
            <Select
                id="attention" issues={job::issues_of(&store.0, "attention", text)}
                choices={choices(Some(text.label(Label::AttentionUnknown)), &ALL, |a| text.attention(a))}
                chosen={value_of(&ALL, chosen)}
                onchoose={store.on(|value: String| Action::Attention(at(&ALL, &value)))}
                {hint}
            />
        },
    )
}

fn checkpointing_row(store: &Handle) -> Html {
    let text = store.text();
    let chosen = store.0.draft.choices().recipe.checkpointing;
    let radio = |mode: Checkpointing| {
        html! {
            <label class="radio">
                <input type="radio" name="checkpointing" checked={mode == chosen}
                    id={match mode { Checkpointing::None => "checkpointing", Checkpointing::Full => "checkpointing-full" }}
                    onchange={store.on(move |_: Event| Action::Checkpointing(mode))} />
                { text.checkpointing(mode) }
            </label>
        }
    };
    html! {
        <fieldset>
            <legend>{ text.label(Label::Checkpointing) }</legend>
            <div class="field">
                <span>{ radio(Checkpointing::None) }{ radio(Checkpointing::Full) }</span>
                if chosen == Checkpointing::Full {
                    <span class="hint">{ text.definition(Term::Checkpointing) }</span>
                }
            </div>
        </fieldset>
    }
}

fn more_row(store: &Handle) -> Html {
    let text = store.text();
    let line = |field: Field, class: &'static str, hint: Option<Label>| {
        html! {
            <div class="row">
                <label for={field.id()}>{ text.label(field.label()) }</label>
                <div class="field">{ text_field(store, field, class, hint) }</div>
            </div>
        }
    };
    html! {
        <details class="more-inputs" id="more-inputs">
            <summary>{ text.label(Label::More) }</summary>
            <div class="form">
                { line(Field::MigSlice, "size", Some(Label::MigSliceHint)) }
                { line(Field::Context, "size", Some(Label::ContextHint)) }
                { line(Field::Pytorch, "", None) }
                { line(Field::AllocConf, "wide left", Some(Label::AllocConfHint)) }
            </div>
        </details>
    }
}
