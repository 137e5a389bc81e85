//! The bill: five parts × instants, each cell opening to its lines.

use vram_budget::bill::Instant;
use vram_budget::text::{Catalogue, Label, Term};
use vram_budget::view::Action;
use vram_budget::view::answer::Key;
use vram_budget::view::bill::{BillCell, BillRow, BillTable, Known, OpenCell};
use yew::prelude::*;

use crate::answer::{key, letter, term_button};
use crate::controls::exact;
use crate::phases::phase_table;
use crate::ranks::ranks_panel;
use crate::store::Handle;

/// The section.
pub(crate) fn bill_section(store: &Handle) -> Html {
    let text = store.text();
    let Some(shown) = store.0.outcome.shown.as_ref() else { return Html::default() };
    let table = BillTable::new(shown.decision(), store.0.open, text);
    html! {
        <section class="step" id="bill" aria-labelledby="h-bill">
            <span class="num"></span>
            <div>
                <h2 id="h-bill">{ text.label(Label::Bill) }</h2>
                <div class="scroll">{ bill_table(store, &table) }</div>
                <p class="note">{ text.label(Label::BillNote) }</p>
                { phase_table(store) }
                { ranks_panel(store) }
            </div>
        </section>
    }
}

fn bill_table(store: &Handle, table: &BillTable) -> Html {
    let text = store.text();
    let head = |(instant, name, binds): &(Instant, &'static str, bool)| {
        let _ = instant;
        html! {
            <th scope="col" class={classes!("n", binds.then_some("now"))}>
                { *name }
                if *binds { <><br />{ text.label(Label::Binds) }</> }
            </th>
        }
    };
    html! {
        <table class="bill" id="bill-table">
            <caption class="ask">{ text.label(Label::BillCaption) }</caption>
            <thead><tr>
                <th scope="col">{ text.label(Label::PartHead) }</th>
                { for table.columns.iter().map(head) }
            </tr></thead>
            <tbody>
                { for table.rows.iter().map(|row| part_row(store, table, row)) }
                <tr class="sum">
                    <th scope="row">{ text.label(Label::Total) }</th>
                    { for table.totals.iter().map(|(gib, bytes)| html! { <td class="n" title={exact(*bytes)}>{ gib.clone() }</td> }) }
                </tr>
                if let Some((name, shares)) = &table.of_card {
                    <tr>
                        <th scope="row" class="soft">{ name.clone() }</th>
                        { for shares.iter().map(|share| html! { <td class="n soft">{ share.clone() }</td> }) }
                    </tr>
                }
            </tbody>
        </table>
    }
}

fn part_row(store: &Handle, table: &BillTable, row: &BillRow) -> Html {
    let columns = table.columns.len();
    let open = table.open.as_ref().filter(|open| open.part == row.part);
    let cell = |(at, cell): (usize, &BillCell)| {
        let (part, instant) = (row.part, table.columns[at].0);
        let zero = (cell.gib == "0").then_some("zero");
        html! {
            <td class="n">
                <button class="cell" type="button" aria-expanded={cell.open.to_string()}
                    aria-controls={cell.open.then_some("open-cell")} title={exact(cell.exact)}
                    onclick={store.on(move |_: MouseEvent| Action::Cell(part, instant))}>
                    <span class={zero}>{ cell.gib.clone() }</span>
                </button>
            </td>
        }
    };
    html! {
        <>
            <tr class={open.map(|_| "open")}>
                <th scope="row">{ key(Key::Part(row.part)) }{ term_button(Term::of_part(row.part), row.name) }</th>
                { for row.cells.iter().enumerate().map(cell) }
            </tr>
            if let Some(open) = open {
                <tr class="why" id="open-cell">
                    <td colspan={(columns + 1).to_string()}>{ opened(open, store.text()) }</td>
                </tr>
            }
        </>
    }
}

fn opened(open: &OpenCell, text: &dyn Catalogue) -> Html {
    let class = format!("why-in why-{}", letter(open.part));
    if open.lines.is_empty() {
        return html! { <div {class}><h3>{ open.title.clone() }</h3><p class="small">{ text.label(Label::NothingHere) }</p></div> };
    }
    let (total, bytes) = &open.total;
    html! {
        <div {class}>
            <h3>{ open.title.clone() }</h3>
            <table class="small stackable" role="table">
                <thead role="rowgroup"><tr role="row">
                    <th scope="col" role="columnheader">{ text.label(Label::What) }</th>
                    <th scope="col" role="columnheader">{ text.label(Label::Formula) }</th>
                    <th scope="col" role="columnheader">{ text.label(Label::Numbers) }</th>
                    <th scope="col" role="columnheader" class="n">{ "GiB" }</th>
                </tr></thead>
                <tbody role="rowgroup">
                    { for open.lines.iter().map(|line| html! {
                        <tr role="row">
                            <th scope="row" role="rowheader">{ line.what.clone() }</th>
                            <td role="cell" class="f wide">{ line.formula.clone() }</td>
                            <td role="cell" class="f wide">{ line.numbers.clone() }</td>
                            <td role="cell" class="n" title={exact(line.exact)}>{ line.gib.clone() }</td>
                        </tr>
                    }) }
                    <tr class="sum" role="row">
                        <th scope="row" role="rowheader">{ text.label(Label::Total) }</th>
                        <td role="cell" class="wide"></td>
                        <td role="cell" class="wide f">{ exact(*bytes) }</td>
                        <td role="cell" class="n">{ total.clone() }</td>
                    </tr>
                </tbody>
            </table>
            if !open.symbols.is_empty() { <p class="small soft">{ open.symbols.clone() }</p> }
            <dl>{ for open.known.iter().map(|known| known_row(known, text)) }</dl>
        </div>
    }
}

fn known_row(known: &Known, text: &dyn Catalogue) -> Html {
    html! {
        <>
            <dt>{ text.label(Label::KnownHow) }</dt>
            <dd><b>{ known.kind }</b>{ format!(": {} {}", known.meaning, known.sources.join("; ")) }</dd>
        </>
    }
}
