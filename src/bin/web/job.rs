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

/// A row with a list to choose from, and what stands beside the list.
struct ListRow {
    label: Label,
    id: &'static str,
    choices: Vec<Choice>,
    chosen: String,
    hint: Option<String>,
    action: fn(String) -> Action,
    beside: Html,
}

fn list_row(store: &Handle, of: ListRow) -> Html {
    let text = store.text();
    let ListRow { label, id, choices, chosen, hint, action, beside } = of;
    let issues = job::issues_of(&store.0, id, text);
    row(
        text.label(label),
        id,
        html! { <Select {id} {issues} {choices} {chosen} {hint} onchoose={store.on(action)}>{ beside }</Select> },
    )
}

/// A field that filters a list; Enter takes the first that is left.
fn search(
    store: &Handle,
    id: &'static str,
    label: Label,
    value: &str,
    typed: fn(String) -> Action,
    enter: Action,
) -> Html {
    let label = store.text().label(label);
    let dispatcher = store.dispatcher();
    let onkeydown = Callback::from(move |event: KeyboardEvent| {
        if event.key() == "Enter" {
            dispatcher.dispatch(enter.clone());
        }
    });
    html! {
        <input
            class="find" type="search" {id} autocomplete="off" spellcheck="false" aria-label={label} placeholder={label}
            value={value.to_owned()} oninput={store.on(move |event: InputEvent| typed(input_value(&event)))} {onkeydown}
        />
    }
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
    let from_config = state.draft.config().is_some();
    let open = state.is_open(Panel::Config) || from_config;
    let chosen = job::chosen_preset(state);
    let own = from_config.then(|| Choice::new("", text.label(Label::ModelFromConfig)));
    let presets = job::presets(&state.model_filter, chosen).into_iter().map(|name| Choice::new(name, name));
    let beside = html! {
        <>
            { search(store, "find-model", Label::FindModel, &state.model_filter, Action::ModelFilter, Action::FirstModel) }
            if open {
                { config_box(store) }
            } else {
                <button class="plain small" type="button" id="paste-config"
                    onclick={store.on(|_| Action::Panel(Panel::Config, true))}>
                    { text.label(Label::PasteConfig) }
                </button>
            }
        </>
    };
    list_row(
        store,
        ListRow {
            label: Label::Model,
            id: job::MODEL_ID,
            choices: own.into_iter().chain(presets).collect(),
            chosen: if from_config { String::new() } else { chosen.into() },
            hint: job::model_hint(state, text),
            action: |name| match name.is_empty() {
                true => Action::Panel(Panel::Config, true),
                false => Action::Preset(name),
            },
            beside,
        },
    )
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
    let chosen = match &pick {
        GpuPick::Unknown => UNKNOWN,
        GpuPick::Own => OWN,
        GpuPick::Catalogue(name) => job::catalogue_name(name),
    };
    let mut choices =
        vec![Choice::new(UNKNOWN, text.label(Label::GpuUnknown)), Choice::new(OWN, text.label(Label::GpuOwn))];
    choices.extend(job::gpus(&state.gpu_filter, &pick).into_iter().map(|gpu| Choice {
        group: Some(format!("{} {}", gpu.vendor, gpu.arch)),
        ..Choice::new(gpu.name.clone(), gpu.name.clone())
    }));
    let own = |field: Field, class: &'static str, hint: Option<Label>| {
        row(text.label(field.label()), field.id(), text_field(store, field, class, hint))
    };
    html! {
        <>
            { list_row(store, ListRow {
                label: Label::Gpu,
                id: job::GPU_ID,
                choices,
                chosen: chosen.into(),
                hint: job::gpu_hint(state, text),
                action: |name| Action::Gpu(match name.as_str() {
                    UNKNOWN => GpuPick::Unknown,
                    OWN => GpuPick::Own,
                    _ => GpuPick::Catalogue(name),
                }),
                beside: search(store, "find-gpu", Label::FindGpu, &state.gpu_filter, Action::GpuFilter, Action::FirstGpu),
            }) }
            if pick == GpuPick::Own {
                { own(Field::GpuName, "wide left", None) }
                { own(Field::GpuMemory, "size", Some(Label::GpuOwnMemoryHint)) }
                { own(Field::GpuCapability, "", Some(Label::GpuOwnCapabilityHint)) }
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
    list_row(
        store,
        ListRow {
            label: Label::Precision,
            id: "precision",
            choices: choices(Some(text.label(Label::DontKnow)), &Precision::ALL, |p| text.precision(p)),
            chosen: value_of(&Precision::ALL, chosen),
            hint: Some(match chosen {
                Some(precision) => text.precision_meaning(precision).to_owned(),
                None => job::precision_hint(&store.0, text),
            }),
            action: |value| Action::Precision(at(&Precision::ALL, &value)),
            beside: Html::default(),
        },
    )
}

fn optimizer_row(store: &Handle) -> Html {
    const IMPLEMENTATIONS: [OptimizerImpl; 3] = [OptimizerImpl::Foreach, OptimizerImpl::Fused, OptimizerImpl::Forloop];
    let text = store.text();
    let optimizer = store.0.draft.choices().recipe.optimizer;
    let term = match optimizer.implementation() {
        OptimizerImpl::Foreach => Term::Foreach,
        OptimizerImpl::Fused => Term::Fused,
        OptimizerImpl::Forloop => Term::Forloop,
    };
    html! {
        <>
            { list_row(store, ListRow {
                label: Label::Optimizer,
                id: "optimizer",
                choices: choices(None, &OptimizerName::ALL, |o| text.optimizer(o)),
                chosen: value_of(&OptimizerName::ALL, Some(optimizer.name)),
                hint: None,
                action: |value| Action::Optimizer(at(&OptimizerName::ALL, &value).unwrap_or(OptimizerName::AdamW)),
                beside: Html::default(),
            }) }
            if optimizer.name == OptimizerName::Sgd {
                { row(text.label(Label::Momentum), Field::Momentum.id(), text_field(store, Field::Momentum, "", None)) }
            }
            if !optimizer.name.implementations().is_empty() {
                { list_row(store, ListRow {
                    label: Label::Implementation,
                    id: "implementation",
                    choices: choices(Some(text.label(Label::ImplementationUnknown)), &IMPLEMENTATIONS, |i| text.implementation(i)),
                    chosen: value_of(&IMPLEMENTATIONS, optimizer.implementation),
                    hint: Some(text.definition(term).into()),
                    action: |value| Action::Implementation(at(&IMPLEMENTATIONS, &value)),
                    beside: Html::default(),
                }) }
            }
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
    list_row(
        store,
        ListRow {
            label: Label::Attention,
            id: "attention",
            choices: choices(Some(text.label(Label::AttentionUnknown)), &ALL, |a| text.attention(a)),
            chosen: value_of(&ALL, chosen),
            hint: (chosen == Some(Attention::Eager)).then(|| text.definition(Term::Eager).into()),
            action: |value| Action::Attention(at(&ALL, &value)),
            beside: Html::default(),
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
                    id={if mode == Checkpointing::Full { "checkpointing-full" } else { "checkpointing" }}
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
        row(text.label(field.label()), field.id(), text_field(store, field, class, hint))
    };
    html! {
        <details class="more-inputs" id="more-inputs">
            <summary>{ text.label(Label::More) }</summary>
            <div class="form">
                { line(Field::MigSlice, "size", Some(Label::MigSliceHint)) }
                { line(Field::Context, "size", Some(Label::ContextHint)) }
                { line(Field::Pytorch, "", None) }
                { line(Field::Transformers, "", None) }
                { line(Field::AllocConf, "wide left", Some(Label::AllocConfHint)) }
            </div>
        </details>
    }
}
