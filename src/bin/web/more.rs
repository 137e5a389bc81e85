//! The inputs that most people leave as they are, drawn once they are asked for.

use vram_budget::recipe::parallel::DataParallel;
use vram_budget::text::Label;
use vram_budget::view::{Action, Alternative, Field, Pick, job};
use yew::prelude::*;

use crate::controls::{Choice, Select, text_field};
use crate::job::row;
use crate::store::Handle;

/// All of them.
pub(crate) fn more_form(store: &Handle) -> Html {
    let text = store.text();
    let plan = store.0.draft.choices();
    let line = |field: Field, class: &'static str, hint: Option<Label>| {
        row(text.label(field.label()), field.id(), text_field(store, field, class, hint))
    };
    let list = |pick: Pick| if pick.applies(plan) { pick_row(store, pick) } else { Html::default() };
    // Ways to split that Megatron-LM alone takes; what is wrong with one is seen under another framework too.
    let of = &plan.parallel;
    let splits = matches!(of.data, DataParallel::Megatron(_)) || of.pipeline > 1 || of.context > 1 || of.expert > 1;
    html! {
        <div class="form">
            { list(Pick::Method) }
            if plan.recipe.method.as_ref().is_some_and(|method| method.generates()) {
                { line(Field::Completion, "tiny", Some(Label::CompletionHint)) }
            }
            { list(Pick::Kernels) }
            { list(Pick::Quantizer) }
            { list(Pick::Float8) }
            { list(Pick::Compile) }
            { line(Field::Packed, "wide left", Some(Label::PackedHint)) }
            { line(Field::Freeze, "wide left", Some(Label::FreezeHint)) }
            { line(Field::ClipGrad, "tiny", Some(Label::ClipGradHint)) }
            { list(Pick::Average) }
            { list(Pick::Evaluation) }
            { list(Pick::Loading) }
            { line(Field::TensorSize, "tiny", Some(Label::TensorSizeHint)) }
            { list(Pick::SequenceParallel) }
            if job::asks_cluster(&store.0) {
                { cluster_rows(store) }
            }
            { list(Pick::OffloadShards) }
            { list(Pick::OffloadOptimizer) }
            { list(Pick::OffloadParam) }
            { list(Pick::PinMemory) }
            if splits {
                { line(Field::Pipeline, "tiny", Some(Label::PipelineHint)) }
                { line(Field::ContextRanks, "tiny", Some(Label::ContextRanksHint)) }
                { line(Field::ExpertRanks, "tiny", Some(Label::ExpertRanksHint)) }
                { list(Pick::DistributedOptimizer) }
            }
            { line(Field::MigSlice, "size", Some(Label::MigSliceHint)) }
            { line(Field::Context, "size", Some(Label::ContextHint)) }
            { line(Field::Pytorch, "", None) }
            { line(Field::Transformers, "", None) }
            { line(Field::AllocConf, "wide left", Some(Label::AllocConfHint)) }
        </div>
    }
}

/// What nodes the GPUs are on, and the links in them and between them.
fn cluster_rows(store: &Handle) -> Html {
    let text = store.text();
    let line = |field: Field, hint: Label, beside: Option<String>| {
        let typed = text_field(store, field, "tiny", Some(hint));
        row(
            text.label(field.label()),
            field.id(),
            html! {
                <>{ typed }if let Some(said) = beside { <span class="soft">{ said }</span> }</>
            },
        )
    };
    html! {
        <>
            { line(Field::GpusPerNode, Label::GpusPerNodeHint, job::nodes(&store.0, text)) }
            { line(Field::NetworkGbps, Label::NetworkGbpsHint, None) }
            { line(Field::LinkGbps, Label::LinkGbpsHint, None) }
        </>
    }
}

/// A row with the alternatives of a list.
pub(crate) fn pick_row(store: &Handle, pick: Pick) -> Html {
    let text = store.text();
    let chosen = pick.chosen(store.0.draft.choices());
    let all = pick.alternatives();
    let value = |of: Alternative| all.iter().position(|other| *other == of).unwrap_or_default().to_string();
    let own = chosen.is_none().then(|| Choice::new("", text.as_in_plan()));
    let choices: Vec<Choice> =
        own.into_iter().chain(all.iter().map(|of| Choice::new(value(*of), text.alternative(*of)))).collect();
    let onchoose = {
        let dispatcher = store.dispatcher();
        Callback::from(move |value: String| {
            if let Some(of) = value.parse().ok().and_then(|at: usize| all.get(at)) {
                dispatcher.dispatch(Action::Alternative(*of));
            }
        })
    };
    let issues = job::issues_of(&store.0, pick.id(), text);
    let (hint, chosen) = (text.pick_meaning(pick).to_owned(), chosen.map_or(String::new(), value));
    row(text.pick(pick), pick.id(), html! { <Select id={pick.id()} {issues} {choices} {chosen} {hint} {onchoose} /> })
}
