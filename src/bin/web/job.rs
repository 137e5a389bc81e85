//! The inputs.

use vram_budget::recipe::parallel::DataParallel;
use vram_budget::recipe::{
    Attention, Checkpointing, LinearCrossEntropy, Loss, Optimizer, OptimizerImpl, OptimizerName, Precision,
};
use vram_budget::text::{Label, Msg, Term};
use vram_budget::view::{Action, Field, GpuPick, Panel, Pick, Trained, job};
use yew::prelude::*;

use crate::answer::what_is;
use crate::controls::{Choice, Select, area_value, described_by, input_value, issue_list, text_field};
use crate::errand::panel;
use crate::more;
use crate::platform;
use crate::store::Handle;

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
                    { gpus_row(store) }
                    { in_use_row(store) }
                    { precision_row(store) }
                    { optimizer_row(store) }
                    { batch_row(store) }
                    { attention_row(store) }
                    { checkpointing_row(store) }
                    { loss_row(store) }
                    { more_row(store) }
                </form>
            </div>
        </section>
    }
}

/// A row of the form: the label of its first control, and the controls.
pub(crate) fn row(label: &'static str, of: &'static str, controls: Html) -> Html {
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

/// A row with a short list of things to choose from, by their positions.
pub(crate) struct OptionsRow {
    pub(crate) label: Label,
    pub(crate) id: &'static str,
    /// What "I don't know" is called, where that is an answer.
    pub(crate) unknown: Option<String>,
    /// The names, the common ones first; none for one that is not offered.
    pub(crate) names: Vec<Option<&'static str>>,
    /// How many are common: the rest stands in a group of its own.
    pub(crate) common: usize,
    pub(crate) chosen: Option<usize>,
    pub(crate) hint: Option<String>,
    pub(crate) action: fn(Option<usize>) -> Action,
}

pub(crate) fn options_row(store: &Handle, of: OptionsRow) -> Html {
    let text = store.text();
    let OptionsRow { label, id, unknown, names, common, chosen, hint, action } = of;
    let issues = job::issues_of(&store.0, id, text);
    let group = |at: usize| (at >= common).then(|| text.label(Label::LessCommon).to_owned());
    let known = names
        .into_iter()
        .enumerate()
        .filter_map(|(at, name)| Some(Choice { value: at.to_string(), label: name?.to_owned(), group: group(at) }));
    let choices: Vec<Choice> = unknown.map(|label| Choice::new("", label)).into_iter().chain(known).collect();
    let chosen = chosen.map_or(String::new(), |at| at.to_string());
    let onchoose = store.on(move |value: String| action(value.parse().ok()));
    row(text.label(label), id, html! { <Select {id} {issues} {choices} {chosen} {hint} {onchoose} /> })
}

/// The position of what is chosen.
fn position<T: PartialEq>(all: &[T], chosen: Option<T>) -> Option<usize> {
    all.iter().position(|one| chosen.as_ref() == Some(one))
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
    const ALL: &[Precision] = &Precision::ALL;
    let text = store.text();
    let chosen = store.0.draft.choices().recipe.precision;
    options_row(
        store,
        OptionsRow {
            label: Label::Precision,
            id: "precision",
            unknown: Some(text.label(Label::DontKnow).into()),
            names: ALL.iter().map(|one| Some(text.precision(*one))).collect(),
            common: ALL.len(),
            chosen: position(ALL, chosen),
            hint: Some(match chosen {
                Some(precision) => text.precision_meaning(precision).to_owned(),
                None => job::precision_hint(&store.0, text),
            }),
            action: |at| Action::Precision(at.and_then(|at| ALL.get(at)).copied()),
        },
    )
}

fn optimizer_row(store: &Handle) -> Html {
    const ALL: &[OptimizerName] = &OptimizerName::ALL;
    const HOW: &[OptimizerImpl] = &[OptimizerImpl::Foreach, OptimizerImpl::Fused, OptimizerImpl::Forloop];
    /// As many as most people look among.
    const COMMON: usize = 9;
    let text = store.text();
    let recipe = &store.0.draft.choices().recipe;
    let optimizer = recipe.optimizer;
    let default = Optimizer { implementation: None, ..optimizer }.implementation();
    // What is chosen stays in the list, so that what is wrong with it stands beside it.
    let offered = |how: OptimizerImpl| job::is_offered(recipe, how) || optimizer.implementation == Some(how);
    let term = match optimizer.implementation() {
        OptimizerImpl::Foreach => Term::Foreach,
        OptimizerImpl::Fused => Term::Fused,
        OptimizerImpl::Forloop => Term::Forloop,
    };
    html! {
        <>
            { options_row(store, OptionsRow {
                label: Label::Optimizer,
                id: "optimizer",
                unknown: None,
                names: ALL.iter().map(|one| Some(text.optimizer(*one))).collect(),
                common: COMMON,
                chosen: position(ALL, Some(optimizer.name)),
                hint: None,
                action: |at| Action::Optimizer(at.and_then(|at| ALL.get(at)).copied().unwrap_or(OptimizerName::AdamW)),
            }) }
            if job::has_momentum(recipe) {
                { row(text.label(Label::Momentum), Field::Momentum.id(), html! {
                    <>{ text_field(store, Field::Momentum, "", None) }{ what_is(Term::Momentum, text) }</>
                }) }
            }
            if !optimizer.name.implementations().is_empty() {
                { options_row(store, OptionsRow {
                    label: Label::Implementation,
                    id: "implementation",
                    unknown: Some(text.say(&Msg::ImplementationUnknown { implementation: default })),
                    names: HOW.iter().map(|how| offered(*how).then(|| text.implementation(*how))).collect(),
                    common: HOW.len(),
                    chosen: position(HOW, optimizer.implementation),
                    hint: Some(text.definition(term).into()),
                    action: |at| Action::Implementation(at.and_then(|at| HOW.get(at)).copied()),
                }) }
            }
        </>
    }
}

/// What is trained: every weight, or adapters. Nothing where the model's family takes no adapters.
pub(crate) fn adapters_form(store: &Handle) -> Html {
    let text = store.text();
    let draft = &store.0.draft;
    let lora = draft.choices().recipe.lora.as_ref();
    let names = draft.linear_names();
    if names.is_empty() && lora.is_none() {
        return Html::default();
    }
    let issues = job::issues_of(&store.0, job::LORA_ID, text);
    let trained = draft.trained();
    let radio = |to: Trained, id: &'static str, label: Label| {
        let described = (to == Trained::Lora).then(|| described_by(id, trained == to, &issues)).flatten();
        html! {
            <label class="radio">
                <input type="radio" name="trained" {id} checked={trained == to} aria-describedby={described}
                    onchange={store.on(move |_: Event| Action::Trained(to))} />
                { text.label(label) }
            </label>
        }
    };
    let hint = match trained {
        Trained::All => None,
        Trained::Lora => Some(Term::Lora),
        Trained::Qlora => Some(Term::Qlora),
    };
    let target = |name: &'static str| {
        let checked = lora.is_some_and(|lora| lora.targets_all() || lora.targets.iter().any(|target| target == name));
        html! {
            <label class="radio">
                <input type="checkbox" {checked} onchange={store.on(move |_: Event| Action::LoraTarget(name))} />
                <code>{ name }</code>
            </label>
        }
    };
    let onsubmit = Callback::from(|event: SubmitEvent| event.prevent_default());
    html! {
        <form class="form" {onsubmit}>
            <fieldset>
                <legend>{ text.label(Label::Trained) }</legend>
                <div class="field">
                    <span>
                        { radio(Trained::All, "lora-off", Label::TrainAll) }
                        { radio(Trained::Lora, job::LORA_ID, Label::TrainLora) }
                        { radio(Trained::Qlora, "qlora", Label::TrainQlora) }
                    </span>
                    if let Some(term) = hint { <span class="hint" id="lora-hint">{ text.definition(term) }</span> }
                    { issue_list(job::LORA_ID, &issues) }
                </div>
            </fieldset>
            if let Some(lora) = lora {
                { row(text.label(Label::LoraRank), Field::LoraRank.id(), html! {
                    <>
                        { text_field(store, Field::LoraRank, "tiny", None) }{ what_is(Term::LoraRank, text) }
                        <label class="radio">
                            <input type="checkbox" id="dora" checked={lora.use_dora}
                                onchange={store.on({ let on = !lora.use_dora; move |_: Event| Action::Dora(on) })} />
                            { text.label(Label::Dora) }
                        </label>
                        { what_is(Term::Dora, text) }
                    </>
                }) }
                <fieldset>
                    <legend>{ text.label(Label::LoraTargets) }</legend>
                    <div class="field">{ for names.into_iter().map(target) }</div>
                </fieldset>
            }
        </form>
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
                    { what_is(Term::MicroBatch, text) }
                </div>
            </div>
            <div class="row">
                <label for={Field::GradAccum.id()}>{ text.label(Label::GradAccum) }</label>
                <div class="field">
                    { text_field(store, Field::GradAccum, "tiny", None) }
                    <span class="soft" aria-hidden="true">{ text.label(Label::GradAccumHint) }</span>
                    { what_is(Term::GradAccum, text) }
                </div>
            </div>
        </>
    }
}

fn attention_row(store: &Handle) -> Html {
    const ALL: &[Attention] = &[Attention::Sdpa, Attention::FlashAttention2, Attention::Eager];
    let text = store.text();
    let chosen = store.0.draft.choices().recipe.attention;
    let term = match chosen {
        Some(Attention::Eager) => Term::Eager,
        Some(Attention::FlashAttention2) => Term::FlashPackage,
        Some(Attention::Sdpa) | None => Term::Sdpa,
    };
    options_row(
        store,
        OptionsRow {
            label: Label::Attention,
            id: "attention",
            unknown: Some(text.label(Label::AttentionUnknown).into()),
            names: ALL.iter().map(|one| Some(text.attention(*one))).collect(),
            common: ALL.len(),
            chosen: position(ALL, chosen),
            hint: Some(text.definition(term).into()),
            action: |at| Action::Attention(at.and_then(|at| ALL.get(at)).copied()),
        },
    )
}

/// A list's entries and what is chosen, which a plan from elsewhere may have beside them.
fn listed<T: Copy + PartialEq>(all: &[T], chosen: T) -> Vec<T> {
    let own = (!all.contains(&chosen)).then_some(chosen);
    all.iter().copied().chain(own).collect()
}

fn checkpointing_row(store: &Handle) -> Html {
    use Checkpointing::{Every, Full, FullOffload, None, Offload, Reentrant, Selective};
    const ALL: &[Checkpointing] =
        &[None, Full, Selective, Every(2), Every(3), Every(4), Reentrant, Offload, FullOffload];
    /// As many as most people choose between.
    const COMMON: usize = 3;
    let text = store.text();
    let chosen = store.0.draft.choices().recipe.checkpointing;
    let all = listed(ALL, chosen);
    options_row(
        store,
        OptionsRow {
            label: Label::Checkpointing,
            id: "checkpointing",
            unknown: Option::None,
            names: all.iter().map(|one| Some(text.checkpointing(*one))).collect(),
            common: COMMON,
            chosen: position(&all, Some(chosen)),
            hint: Some(text.definition(Term::Checkpointing).into()),
            action: |at| Action::Checkpointing(at.and_then(|at| ALL.get(at)).copied().unwrap_or_default()),
        },
    )
}

fn loss_row(store: &Handle) -> Html {
    const TORCH: Loss = Loss::LinearCrossEntropy(LinearCrossEntropy::AUTO);
    const ALL: &[Loss] = &[Loss::Hf, Loss::Chunked(4), Loss::Chunked(8), Loss::Chunked(16), TORCH];
    let text = store.text();
    let chosen = store.0.draft.choices().recipe.loss;
    let all = listed(ALL, chosen);
    options_row(
        store,
        OptionsRow {
            label: Label::Loss,
            id: job::LOSS_ID,
            unknown: None,
            names: all.iter().map(|one| Some(text.loss(*one))).collect(),
            common: all.len(),
            chosen: position(&all, Some(chosen)),
            hint: Some(text.definition(Term::Loss).into()),
            action: |at| Action::Loss(at.and_then(|at| ALL.get(at)).copied().unwrap_or_default()),
        },
    )
}

/// How many GPUs share the job, and how.
fn gpus_row(store: &Handle) -> Html {
    let text = store.text();
    let one = store.0.draft.text(Field::WorldSize).trim() == "1"
        && store.0.draft.choices().parallel.data == DataParallel::None;
    html! {
        <>
            <div class="row">
                <label for={Field::WorldSize.id()}>{ text.label(Label::Gpus) }</label>
                <div class="field">
                    { text_field(store, Field::WorldSize, "tiny", None) }
                    <span class="soft" aria-hidden="true">{ text.label(Label::GpusHint) }</span>
                </div>
            </div>
            if !one {
                { more::pick_row(store, Pick::Sharding) }
            }
        </>
    }
}

fn more_row(store: &Handle) -> Html {
    let (open, more) = (job::more_is_open(&store.0), store.text().label(Label::More).to_owned());
    panel(store, ("more-inputs", "more-inputs"), (Panel::More, open), more, more::more_form)
}
