//! A recording of the allocator, as the page shows it: what `vram-budget snapshot` prints.

use serde::{Deserialize, Serialize};

use crate::bill::{Bill, Part};
use crate::plan::Framework;
use crate::snapshot::{Given, Holder, Snapshot, Totals, Tried, WhatIf, beside, by_part};
use crate::text::{Locale, Said};
use crate::units::Bytes;

/// How many places of the program are listed.
const PLACES: usize = 12;

/// A recording in words and figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// What it is.
    pub head: String,
    /// The device's memory: a figure and what it is.
    pub totals: Vec<(String, String)>,
    /// Who holds what: now, and at the peak where there is a trace.
    pub held: Vec<Held>,
    /// What is to be known of the replay; why there is none.
    pub notes: Vec<String>,
    /// The trace under its own settings, and under others.
    pub replays: Vec<Replay>,
}

/// Who holds the memory at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Which moment.
    pub when: String,
    /// By part; `None`: not told by a stack.
    pub parts: Vec<(Option<Part>, Bytes)>,
    /// By place in the program: a figure, how many blocks, and where. Empty where no stacks were recorded.
    pub places: Vec<(String, String, String)>,
}

/// A replay under some settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// The settings.
    pub settings: String,
    /// The peaks of allocated and reserved, their ratio, and what is reserved at the end; empty where it was not replayed.
    pub figures: Vec<String>,
    /// What became of the run.
    pub outcome: String,
}

impl Recording {
    /// What is shown of `snapshot`: of the device that has the most reserved.
    #[must_use]
    pub fn of(snapshot: &Snapshot, locale: Locale) -> Self {
        let words = locale.recording();
        let devices = snapshot.devices();
        let device = devices.iter().copied().max_by_key(|d| snapshot.totals(*d).reserved).unwrap_or_default();
        let totals = snapshot.totals(device);
        let Totals { segments, reserved, allocated, active, requested, inactive_split, inactive } = totals;
        let entries = snapshot.trace(device).len();
        let waiting = active.saturating_sub(allocated);
        let rows = [
            (Some(reserved), Said::Reserved),
            (Some(allocated), Said::Allocated),
            (Some(waiting).filter(|bytes| !bytes.is_zero()), Said::Waiting),
            (requested.map(|requested| active.saturating_sub(requested)), Said::Rounding),
            (Some(inactive), Said::Free),
            (Some(inactive_split), Said::SplitFree),
        ];
        let mut held = vec![Held::of(Said::HeldNow, &snapshot.holders(device), locale)];
        if let Some(peak) = snapshot.peak(device) {
            let when = Said::HeldAtPeak { entry: peak.entry, requested: peak.requested };
            held.push(Held::of(when, &peak.holders, locale));
        }
        let mut notes = Vec::new();
        let mut replays = Vec::new();
        let given = Given { version: Framework::default().pytorch, recorded_conf: None, total: None, confs: &[] };
        match WhatIf::of(snapshot, device, &given) {
            Err(reason) => notes.push(words.say(&Said::NotReplayed(reason))),
            Ok(what_if) => {
                let history = &what_if.history;
                let said = [
                    (history.older_blocks > 0).then_some(Said::Older(history.older_blocks)),
                    (history.emptied > 0).then_some(Said::Emptied(history.emptied)),
                    what_if.capacity.map(Said::Capacity),
                    history.failure.is_some_and(|failure| failure.limited).then_some(Said::Limited),
                ];
                notes.extend(said.iter().flatten().map(|said| words.say(said)));
                let differs = what_if
                    .recorded
                    .found
                    .as_ref()
                    .is_ok_and(|own| (own.reserved, own.peak_reserved) != (reserved, history.peak_reserved));
                replays.push(replay(&what_if.recorded, Said::AsRecorded(&what_if.recorded.conf), differs, locale));
                replays.extend(
                    what_if.others.iter().map(|tried| replay(tried, Said::Settings(&tried.conf), false, locale)),
                );
            }
        }
        Self {
            head: words.say(&Said::Head { device, devices: devices.len(), segments, entries }),
            totals: rows.into_iter().filter_map(|(bytes, said)| Some((bytes?.to_string(), words.say(&said)))).collect(),
            held,
            notes,
            replays,
        }
    }
}

impl Held {
    fn of(when: Said<'_>, holders: &[Holder], locale: Locale) -> Self {
        let words = locale.recording();
        let sum = |of: &mut dyn Iterator<Item = &Holder>| Bytes(of.map(|h| h.bytes.get()).fold(0, u64::saturating_add));
        let mut places = Vec::new();
        if holders.iter().any(|holder| holder.place.is_some()) {
            places.extend(holders.iter().take(PLACES).map(|holder| {
                let place = match &holder.place {
                    Some(place) => format!("{}:{} {}", last_parts(&place.file), place.line, place.name),
                    None => words.say(&Said::NoStack),
                };
                (holder.bytes.to_string(), words.say(&Said::Blocks(holder.count)), place)
            }));
            if let Some(others) = holders.get(PLACES..).filter(|others| !others.is_empty()) {
                let bytes = sum(&mut others.iter());
                let count = others.iter().map(|holder| holder.count).fold(0, u64::saturating_add);
                places.push((
                    bytes.to_string(),
                    words.say(&Said::Blocks(count)),
                    words.say(&Said::OtherPlaces(others.len())),
                ));
            }
        }
        Self { when: words.say(&when), parts: by_part(holders), places }
    }
}

/// The parts of the peak of `recording` beside those of the predicted one: what they are, recorded, predicted; and what they
/// are the table of. `None`: there is no peak in it.
#[must_use]
pub fn beside_prediction(recording: &Recording, bill: &Bill, locale: Locale) -> Option<(String, Vec<[String; 3]>)> {
    let [_, peak] = &*recording.held else { return None };
    let rows = beside(&peak.parts, bill.column(bill.binding).parts).into_iter().map(|(part, recorded, predicted)| {
        let predicted = predicted.map_or_else(String::new, |bytes| bytes.to_string());
        [part_name(part, locale), recorded.to_string(), predicted]
    });
    Some((locale.recording().say(&Said::Beside(locale.text().instant(bill.binding))), rows.collect()))
}

/// What a part is called.
#[must_use]
pub fn part_name(part: Option<Part>, locale: Locale) -> String {
    part.map_or_else(|| locale.recording().say(&Said::NotTold), |part| locale.text().part(part).into())
}

/// The file and the two folders that it is in.
fn last_parts(file: &str) -> &str {
    file.rmatch_indices(['/', '\\']).nth(2).map_or(file, |(at, _)| &file[at + 1..])
}

fn replay(tried: &Tried, settings: Said<'_>, differs: bool, locale: Locale) -> Replay {
    let words = locale.recording();
    let settings = words.say(&settings);
    match &tried.found {
        Err(reason) => Replay { settings, figures: Vec::new(), outcome: words.say(&Said::NotTried(reason)) },
        Ok(found) => {
            let ratio = found.peak_reserved.as_f64() / found.peak_allocated.as_f64().max(1.0);
            let outcome = match (found.recorded_failure_fails, found.failed) {
                (Some(true), _) => Some(Said::FailsAsRecorded),
                (Some(false), _) => Some(Said::DoesNotFail),
                (None, Some((entry, _))) => Some(Said::FailsAt(entry)),
                (None, None) => None,
            };
            let said = [differs.then_some(Said::Differs), outcome];
            Replay {
                settings,
                figures: vec![
                    found.peak_allocated.to_string(),
                    found.peak_reserved.to_string(),
                    format!("{ratio:.2}"),
                    found.reserved.to_string(),
                ],
                outcome: said.iter().flatten().map(|said| words.say(said)).collect::<Vec<_>>().join("; "),
            }
        }
    }
}
