//! The page's state and the one place where it changes.

use std::cell::RefCell;
use std::rc::Rc;

use crate::bill::{Instant, Part};
use crate::decide::{self, Advice, Decision, Deliberation, RemedyId};
use crate::issue::Issue;
use crate::measure::{self, ImportError, Imported, Measurement, Options, Unit};
use crate::model::ModelSource;
use crate::plan::{Plan, Policy};
use crate::recipe::{Attention, Checkpointing, Loss, OptimizerImpl, OptimizerName, Precision};
use crate::reconcile::Configuration;
use crate::text::{Compared, LinkProblem, Locale};
use crate::units::Bytes;
use crate::view::recording::Recording;
use crate::view::run::{Errand, Errands, Run};
use crate::view::study::{Answered, Asked, Explained, Fitted};
use crate::view::{
    Alternative, Draft, Field, Found, GpuPick, Incoming, Intake, MAX_READ, Reading, Trained, is_recording, job, link,
    read, recognise,
};

/// How many tried remedies can be undone.
const MAX_UNDO: usize = 32;
/// How many configurations are kept to be compared.
const MAX_KEPT: usize = 16;

/// Everything that the page knows.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The inputs as they were typed.
    pub draft: Draft,
    /// What follows from them.
    pub outcome: Outcome,
    /// The plans before each tried remedy, oldest first.
    pub undo: Vec<Undo>,
    /// The cell of the bill that is open.
    pub open: Option<(Part, Instant)>,
    /// Panels that are open.
    pub panels: Vec<Panel>,
    /// The section that the person went to last.
    pub section: Section,
    /// What was measured.
    pub measured: Measured,
    /// What the worker is asked to do for the inputs.
    pub errands: Errands,
    /// What is kept to be compared: plans, and what was measured.
    pub kept: Rc<[Configuration]>,
    /// A file that is being read.
    pub reading: Option<Reading>,
    /// The colours.
    pub theme: Theme,
    /// Something to tell, until it is dismissed or something else is to be told.
    pub notice: Option<Notice>,
    /// What the model list is filtered by.
    pub model_filter: String,
    /// What the GPU list is filtered by.
    pub gpu_filter: String,
}

/// What follows from the inputs: the last good answer, and what is wrong with the inputs now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The last good answer. At first it is what the walk alone says; the allocator's replay refines it, and its
    /// remedies are priced: see [`Outcome::work`].
    pub shown: Option<Shown>,
    /// The last answer whose remedies are priced; until the answer shown is, these are the remedies of a moment ago.
    pub priced: Option<Shown>,
    /// The last answer of which it is worked out what to recommend; as with the prices.
    pub advised: Option<Shown>,
    /// What is still to be done for the answer shown; none where that is complete.
    pub work: Option<Work>,
    /// Whether the answer shown has just been made and no work has been done for it yet: what stands beside the inputs
    /// shows it, and the walk below, which is most of the page, follows in a later frame. See [`Action::Follow`].
    pub fresh: bool,
    /// What is wrong now; then the answer is stale.
    pub issues: Vec<Issue>,
}

impl Outcome {
    /// Whether the allocator's replay of the answer shown is still to come.
    #[must_use]
    pub fn is_refining(&self) -> bool {
        self.work.is_some() && self.shown.as_ref().is_some_and(|shown| shown.decision().awaits_replay())
    }

    /// Does a slice of what [`Action::Work`] would do: at most a walk, or `events` of a replay. True once there is
    /// nothing left for that action but to take the result.
    #[must_use]
    pub fn work_ahead(&self, events: usize) -> bool {
        let (Some(work), Some(shown)) = (&self.work, &self.shown) else { return true };
        work.0.borrow_mut().advance(shown.decision(), events)
    }
}

/// Work in hand. How far it has come is no part of the state: [`Action::Work`] does what is left of it.
#[derive(Clone, Debug)]
pub struct Work(Rc<RefCell<Ahead>>);

impl PartialEq for Work {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

#[derive(Debug)]
struct Ahead {
    deliberation: Deliberation,
    /// The refined decision, once it is there and not taken.
    refined: Option<Result<Decision, Vec<Issue>>>,
    /// Whether the remedies' prices were taken: then it is what to recommend that is worked out.
    priced: bool,
    advice: Option<Advice>,
}

impl Ahead {
    fn advance(&mut self, shown: &Decision, events: usize) -> bool {
        if self.priced {
            if self.advice.is_none() {
                self.advice = self.deliberation.advise(shown, events);
            }
            return self.advice.is_some();
        }
        if !shown.awaits_replay() {
            return self.deliberation.price(shown, events);
        }
        if self.refined.is_none() {
            self.refined = self.deliberation.refine(events);
        }
        self.refined.is_some()
    }
}

/// A plan and the decision about it. Two are the same when they are one: comparing the figures would cost more than
/// drawing them.
#[derive(Clone, Debug)]
pub struct Shown(Rc<(Plan, Decision)>);

impl Shown {
    fn new(plan: Plan, decision: Decision) -> Self {
        Self(Rc::new((plan, decision)))
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.0.0
    }

    /// The decision about it.
    #[must_use]
    pub fn decision(&self) -> &Decision {
        &self.0.1
    }
}

impl PartialEq for Shown {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

/// A remedy that was tried and can be undone.
#[derive(Clone, Debug, PartialEq)]
pub struct Undo {
    /// The inputs before.
    pub before: Draft,
    /// The remedy, as the page named it.
    pub remedy: String,
}

/// A part of the page that one can go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Section {
    /// The inputs.
    #[default]
    Job,
    /// Step 1.
    Rigid,
    /// Step 2.
    Activations,
    /// Step 3.
    Margin,
    /// Step 4.
    Throughput,
    /// The comparison with a measurement.
    Measured,
}

impl Section {
    /// All of them, in the order of the navigation.
    pub const ALL: [Self; 6] =
        [Self::Job, Self::Rigid, Self::Activations, Self::Margin, Self::Throughput, Self::Measured];

    /// The section that a plain link inside the page names.
    #[must_use]
    pub fn from_fragment(fragment: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|section| fragment.strip_prefix('#') == Some(section.id()))
    }

    /// The `id` of its element.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Rigid => "rigid",
            Self::Activations => "activations",
            Self::Margin => "margin",
            Self::Throughput => "throughput",
            Self::Measured => "measured",
        }
    }
}

/// A panel that opens and closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Panel {
    /// The text of a `config.json`.
    Config,
    /// The answer's details, on a phone.
    Answer,
    /// The inputs that most people leave as they are.
    More,
    /// What each remedy saves, costs and needs.
    Remedies,
    /// A run over sequences of many lengths.
    Lengths,
    /// What else explains a measurement.
    Offers,
    /// A search among the plans around the inputs.
    Search,
    /// Every rank.
    Ranks,
    /// Configurations side by side.
    Compare,
}

/// The colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Theme {
    /// As the system has it.
    #[default]
    System,
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

impl Theme {
    /// The next in the cycle of the button.
    #[must_use]
    pub const fn next(self) -> Self {
        match self {
            Self::System => Self::Light,
            Self::Light => Self::Dark,
            Self::Dark => Self::System,
        }
    }

    /// The value that is stored and set on the root element.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }

    /// The theme of a stored value; anything unknown is the system's.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        [Self::Light, Self::Dark].into_iter().find(|theme| theme.name() == name).unwrap_or_default()
    }
}

/// What was measured, and what was last pasted for it. A text that is not understood leaves the measurement as it was.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// The text in the box.
    pub text: String,
    /// Why it was not understood.
    pub error: Option<ImportError>,
    /// The units to choose from, when the text does not say which.
    pub question: Vec<Unit>,
    /// The unit that was chosen.
    pub unit: Option<Unit>,
    /// What was understood last: none, or all that one text says.
    pub taken: Rc<[Measurement]>,
    /// The recording of the allocator that was read last.
    pub recording: Option<Rc<Recording>>,
    /// What is being worked out of it.
    pub asked: Option<Asked>,
    /// What explains it; `None` while that is worked out for other inputs.
    pub explained: Option<Rc<Explained>>,
    /// What was fitted to it last, until the inputs change.
    pub fitted: Option<Rc<Fitted>>,
}

/// Something to tell.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// The link is in the clipboard.
    Copied,
    /// The clipboard was refused.
    CopyFailed,
    /// A link was not taken.
    LinkRefused(LinkProblem),
    /// The model was taken from a text.
    ConfigTaken(String),
    /// The whole plan was taken from a text.
    PlanTaken,
    /// A plan that cannot be used.
    PlanRefused(ImportError),
    /// Too much text.
    TextTooLarge {
        /// How much.
        bytes: Bytes,
        /// What is read at most.
        limit: Bytes,
    },
    /// Too large a file.
    FileTooLarge {
        /// Its name.
        name: String,
        /// Its size.
        bytes: Bytes,
        /// What is read at most.
        limit: Bytes,
    },
    /// A file that is no text.
    FileUnreadable,
}

/// What is kept to be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The inputs.
    Inputs,
    /// What was measured.
    Measured,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Typed into a field.
    Type(Field, String),
    /// Chose a preset.
    Preset(String),
    /// Typed or took a `config.json`; `None`: back to the presets.
    Config(Option<String>),
    /// Chose a GPU.
    Gpu(GpuPick),
    /// Chose a precision recipe; `None`: I don't know.
    Precision(Option<Precision>),
    /// Chose an optimizer.
    Optimizer(OptimizerName),
    /// Chose its implementation; `None`: I don't know.
    Implementation(Option<OptimizerImpl>),
    /// Chose an attention implementation; `None`: I don't know.
    Attention(Option<Attention>),
    /// Chose how the loss is computed.
    Loss(Loss),
    /// Chose an alternative of a list.
    Alternative(Alternative),
    /// Chose checkpointing.
    Checkpointing(Checkpointing),
    /// Chose what is trained.
    Trained(Trained),
    /// Chose weight-decomposed adapters, or plain ones.
    Dora(bool),
    /// Took a linear layer among those with adapters, or out of them.
    LoraTarget(&'static str),
    /// Said whether the memory in use is known.
    InUseKnown(bool),
    /// Took the policy back to its defaults.
    ResetPolicy,
    /// Took what was worked out for the answer shown: first the allocator's replay, then the remedies' prices, then what to
    /// recommend.
    Work,
    /// Let the whole page follow the answer shown, although its replay is not done yet.
    Follow,
    /// Tried a remedy, under this name.
    Try(RemedyId, String),
    /// Took the way of the advice that has this name.
    TakeWay(String),
    /// Undid the last one.
    Undo,
    /// Opened or closed a cell of the bill.
    Cell(Part, Instant),
    /// Opened or closed a panel.
    Panel(Panel, bool),
    /// Went to a section.
    Go(Section),
    /// Changed the text in the box for measurements.
    MeasuredText(String),
    /// Said in which unit its figures are.
    MeasuredUnit(Unit),
    /// Forgot the measurement.
    Forget,
    /// Took over the job that the one measurement names.
    UseMeasuredPlan,
    /// Took over what explains the measurement, by its place.
    TakeOffer(usize),
    /// Had the plan fitted to the measurement.
    Calibrate,
    /// Took the calibration out of the plan, under this name.
    RemoveCalibration(String),
    /// What was asked about the measurement is worked out.
    Answered(Box<Answered>),
    /// What was read or worked out elsewhere failed.
    Failed,
    /// Pasted or dropped this text outside any field.
    Paste(String),
    /// Dropped or picked a file with these bytes.
    File(Vec<u8>),
    /// A file is being read; `None`: no longer.
    Reading(Option<Reading>),
    /// Asked the worker for something about the inputs, or stopped it.
    Run(Option<Errand>),
    /// What is being worked out has found so much.
    FoundSoFar(Box<Found>),
    /// Took over a plan that a search found, under this name.
    TakeFound(Box<Plan>, String),
    /// Kept the inputs to be compared, or what was measured.
    Keep(Kept),
    /// No longer keeps one, by its place.
    Unkeep(usize),
    /// Dropped or picked several files with these names and bytes.
    Files(Vec<(String, Vec<u8>)>),
    /// So many bytes of it have been read, of so many.
    ReadSoFar(u64, Option<u64>),
    /// What was found in it.
    Found(Box<Found>),
    /// Opened a link with this fragment.
    Link(String),
    /// Chose the colours.
    Theme(Theme),
    /// Something to tell, or nothing any more.
    Notice(Option<Notice>),
    /// Filtered the models.
    ModelFilter(String),
    /// Filtered the GPUs.
    GpuFilter(String),
    /// Took the first model that the filter leaves.
    FirstModel,
    /// Took the first GPU that the filter leaves.
    FirstGpu,
}

impl State {
    /// The state at the start, for `plan`.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let mut state = Self {
            draft: Draft::of(plan),
            outcome: Outcome::default(),
            undo: Vec::new(),
            open: None,
            panels: Vec::new(),
            section: Section::default(),
            measured: Measured::default(),
            errands: Errands::default(),
            kept: Rc::default(),
            reading: None,
            theme: Theme::default(),
            notice: None,
            model_filter: String::new(),
            gpu_filter: String::new(),
        };
        state.recompute();
        // What a page shows at first is complete but for the remedies.
        if state.outcome.is_refining() {
            state.work();
        }
        state
    }

    /// The state at the start, for a link's fragment: its plan, or the example and what was wrong with the link.
    #[must_use]
    pub fn from_fragment(fragment: &str) -> Self {
        if let Some(section) = Section::from_fragment(fragment) {
            return Self { section, ..Self::new(&super::example()) };
        }
        match link::decode(fragment) {
            Ok(plan) => Self::new(&plan.unwrap_or_else(super::example)),
            Err(why) => Self { notice: Some(Notice::LinkRefused(why)), ..Self::new(&super::example()) },
        }
    }

    /// The fragment that leads back to the inputs that the answer is for; `None` when there is no answer or it is too
    /// long for a link.
    #[must_use]
    pub fn fragment(&self) -> Option<String> {
        link::encode(self.outcome.shown.as_ref()?.plan())
    }

    /// The state after `action`; the same one when nothing changes.
    #[must_use]
    pub fn reduce(self: &Rc<Self>, action: Action) -> Rc<Self> {
        let mut next = Self::clone(self);
        next.apply(action);
        if next == **self { Rc::clone(self) } else { Rc::new(next) }
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::Type(field, text) => self.edit(|draft| {
                draft.set_text(field, text);
                if field == Field::WorldSize {
                    draft.wrap();
                }
            }),
            Action::Preset(name) => self.edit_model(|draft| {
                draft.set_config(None);
                draft.choices_mut().model = ModelSource::Preset(name);
            }),
            Action::Config(text) => self.edit_model(|draft| draft.set_config(text)),
            Action::Gpu(pick) => self.edit(|draft| draft.set_gpu(pick)),
            Action::Precision(precision) => self.edit(|draft| draft.choices_mut().recipe.precision = precision),
            Action::Optimizer(name) => self.edit(|draft| {
                // An implementation that the new one lacks was not chosen for it.
                let recipe = &mut draft.choices_mut().recipe;
                recipe.optimizer.name = name;
                if !recipe.optimizer.implementation.is_none_or(|chosen| job::is_offered(recipe, chosen)) {
                    recipe.optimizer.implementation = None;
                }
            }),
            Action::Implementation(which) => {
                self.edit(|draft| draft.choices_mut().recipe.optimizer.implementation = which);
            }
            Action::Attention(attention) => self.edit(|draft| draft.choices_mut().recipe.attention = attention),
            Action::Alternative(of) => self.edit(|draft| of.make(draft.choices_mut())),
            Action::Loss(loss) => self.edit(|draft| draft.choices_mut().recipe.loss = loss),
            Action::Checkpointing(mode) => self.edit(|draft| draft.choices_mut().recipe.checkpointing = mode),
            Action::Trained(trained) => self.edit(|draft| draft.set_trained(trained)),
            Action::Dora(on) => self.edit(|draft| {
                if let Some(lora) = &mut draft.choices_mut().recipe.lora {
                    lora.use_dora = on;
                }
            }),
            Action::LoraTarget(name) => self.edit(|draft| draft.toggle_target(name)),
            Action::InUseKnown(known) => self.edit(|draft| {
                draft.set_text(Field::InUse, if known { "0 GiB".into() } else { String::new() });
            }),
            Action::ResetPolicy => self.edit(|draft| {
                draft.choices_mut().policy = Policy::default();
                for field in [Field::RigidShare, Field::ActivationShare, Field::MarginLow, Field::MarginHigh] {
                    draft.set_text(field, field.write(draft.choices()));
                }
            }),
            Action::Work => self.work(),
            Action::Follow => self.outcome.fresh = false,
            Action::Try(id, remedy) => self.try_remedy(id, remedy),
            Action::TakeWay(name) => self.take_way(name),
            Action::Undo => {
                if let Some(undo) = self.undo.pop() {
                    self.edit(|draft| *draft = undo.before);
                }
            }
            Action::Cell(part, instant) => {
                self.open = (self.open != Some((part, instant))).then_some((part, instant));
            }
            Action::Panel(panel, open) => {
                self.panels.retain(|other| *other != panel);
                if open {
                    self.panels.push(panel);
                }
            }
            Action::Go(section) => self.section = section,
            Action::MeasuredText(text) => self.read_measurement(text, None),
            Action::MeasuredUnit(unit) => self.read_measurement(self.measured.text.clone(), Some(unit)),
            Action::Forget => self.measured = Measured::default(),
            Action::TakeOffer(at) => {
                let explained = self.measured.explained.clone();
                let offer = explained.as_ref().and_then(|explained| explained.offers.get(at));
                if let Some((name, plan)) = offer.and_then(|offer| offer.take.as_ref()) {
                    self.try_plan(plan, name.clone());
                }
            }
            Action::Calibrate => self.ask(true),
            Action::RemoveCalibration(name) => {
                let plan = self.outcome.shown.as_ref().map(|shown| shown.plan().without_calibration());
                if let Some(plan) = plan {
                    self.try_plan(&plan, name);
                }
            }
            Action::Answered(answered) => self.answered(*answered),
            Action::Failed => {
                self.measured.asked = None;
                if self.errands.stop() | self.reading.take().is_some() {
                    self.notice = Some(Notice::FileUnreadable);
                }
            }
            Action::UseMeasuredPlan => {
                if let [Measurement { plan: Some(plan), .. }] = &*Rc::clone(&self.measured.taken) {
                    self.load(plan);
                }
            }
            Action::Paste(text) => self.paste(text),
            Action::File(bytes) => self.take_file(&bytes),
            Action::Reading(reading) => {
                if reading.is_some() {
                    self.section = Section::Measured;
                }
                // The reader does one thing at a time.
                self.errands.stop();
                self.reading = reading;
            }
            Action::Run(Some(errand)) => {
                if let Ok(plan) = self.draft.plan() {
                    self.reading = None;
                    self.errands.begin(errand, plan);
                }
            }
            Action::Run(None) => {
                self.errands.stop();
            }
            Action::TakeFound(plan, name) => self.try_plan(&plan, name),
            Action::Keep(what) => self.keep(what),
            Action::Unkeep(at) => {
                let others = self.kept.iter().enumerate().filter(|(other, _)| *other != at);
                let kept = others.map(|(_, one)| one.clone()).collect();
                self.set_kept(kept);
            }
            Action::Files(files) => self.take_files(files),
            Action::ReadSoFar(read, total) => match &mut self.reading {
                Some(reading) => (reading.read, reading.total) = (read, total),
                None => {
                    self.errands.so_far(read, total);
                }
            },
            Action::FoundSoFar(found) => self.errands.take_some(*found),
            // What comes after it was cancelled is not wanted.
            Action::Found(found) => {
                if let Some(found) = self.errands.take(*found).filter(|_| self.reading.take().is_some()) {
                    self.take_found(found);
                }
            }
            Action::Link(fragment) if Section::from_fragment(&fragment).is_some() => {
                self.section = Section::from_fragment(&fragment).unwrap_or_default();
            }
            Action::Link(fragment) => match link::decode(&fragment) {
                Ok(None) => {}
                Ok(Some(plan)) => {
                    if self.outcome.shown.as_ref().is_none_or(|shown| *shown.plan() != plan) {
                        self.load(&plan);
                    }
                }
                Err(why) => self.notice = Some(Notice::LinkRefused(why)),
            },
            Action::Theme(theme) => self.theme = theme,
            Action::Notice(notice) => self.notice = notice,
            Action::ModelFilter(text) => self.model_filter = text,
            Action::GpuFilter(text) => self.gpu_filter = text,
            Action::FirstModel => {
                if let Some(name) = job::first_preset(&self.model_filter) {
                    self.apply(Action::Preset(name.into()));
                }
            }
            Action::FirstGpu => {
                if let Some(gpu) = job::first_gpu(&self.gpu_filter) {
                    self.apply(Action::Gpu(GpuPick::Catalogue(gpu.name.clone())));
                }
            }
        }
    }

    /// Whether a panel is open.
    #[must_use]
    pub fn is_open(&self, panel: Panel) -> bool {
        self.panels.contains(&panel)
    }

    /// Whether the remedies on screen are of an earlier answer, or the answer itself is being refined.
    #[must_use]
    pub fn is_unpriced(&self) -> bool {
        self.outcome.work.is_some() && self.outcome.priced != self.outcome.shown
    }

    /// Whether the answer is for earlier inputs than those in the fields.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        !self.outcome.issues.is_empty()
    }

    /// What stands side by side, the inputs first: what was measured and what is kept, each once. `None`: they are wrong.
    #[must_use]
    pub fn configurations(&self) -> Option<(Plan, Vec<Configuration>)> {
        let plan = self.draft.plan().ok()?;
        let name = Locale::En.reconcile().compared(&Compared::Inputs);
        let mut all = vec![Configuration { name, plan: Some(plan.clone()), runs: Vec::new() }];
        all.extend(self.measured_apart());
        let same = |one: &Configuration| one.runs.is_empty() && one.plan.as_ref() == Some(&plan);
        all.extend(self.kept.iter().filter(|one| !same(one)).cloned());
        Some((plan, all))
    }

    /// What was measured and is not kept yet. Runs of one configuration are those with a name and a job.
    fn measured_apart(&self) -> Vec<Configuration> {
        let mut all = Vec::new();
        let unnamed = Locale::En.reconcile().compared(&Compared::Measured(self.kept.len() + 1));
        for one in self.measured.taken.iter() {
            if !self.kept.iter().any(|kept| kept.runs.contains(one)) {
                Configuration::add(&mut all, one.id.clone().unwrap_or_else(|| unnamed.clone()), one.clone());
            }
        }
        all
    }

    fn keep(&mut self, what: Kept) {
        let mut kept = self.kept.to_vec();
        match what {
            Kept::Inputs => {
                let Ok(plan) = self.draft.plan() else { return };
                let name = Locale::En.reconcile().compared(&Compared::Plan(&plan));
                let new = Configuration { name, plan: Some(plan), runs: Vec::new() };
                if !kept.contains(&new) {
                    kept.push(new);
                }
            }
            Kept::Measured => {
                for Configuration { name, runs, .. } in self.measured_apart() {
                    runs.into_iter().for_each(|run| Configuration::add(&mut kept, name.clone(), run));
                }
            }
        }
        self.set_kept(kept);
    }

    /// Another table than the one that is shown.
    fn set_kept(&mut self, mut kept: Vec<Configuration>) {
        kept.truncate(MAX_KEPT);
        if *kept != *self.kept {
            (self.kept, self.errands.compared) = (kept.into(), Run::None);
        }
    }

    /// Takes several files at once: each plan and everything that was measured is kept to be compared.
    fn take_files(&mut self, files: Vec<(String, Vec<u8>)>) {
        let (mut kept, mut taken) = (self.kept.to_vec(), Vec::new());
        let mut refused = false;
        for (file, bytes) in files {
            let stem = file.rsplit_once('.').map_or(file.as_str(), |(stem, _)| stem);
            match recognise(&measure::decoded(&bytes)) {
                Intake::Plan(plan) => {
                    kept.push(Configuration { name: stem.into(), plan: Some(*plan), runs: Vec::new() });
                }
                Intake::Measurement(Ok(found)) => {
                    for one in found {
                        let Imported::Measurement { measurement, .. } = one else {
                            refused = true;
                            continue;
                        };
                        let name = measurement.id.clone().unwrap_or_else(|| stem.into());
                        Configuration::add(&mut kept, name, (*measurement).clone());
                        taken.push(*measurement);
                    }
                }
                _ => refused = true,
            }
        }
        if refused {
            self.notice = Some(Notice::FileUnreadable);
        }
        self.set_kept(kept);
        if !taken.is_empty() {
            let recording = self.measured.recording.clone();
            self.measure(Measured { taken: taken.into(), recording, ..Measured::default() });
        }
        self.section = Section::Measured;
        self.apply(Action::Panel(Panel::Compare, true));
    }

    fn edit(&mut self, change: impl FnOnce(&mut Draft)) {
        let before = self.draft.clone();
        change(&mut self.draft);
        if self.draft != before {
            self.recompute();
        }
    }

    fn edit_model(&mut self, change: impl FnOnce(&mut Draft)) {
        self.edit(|draft| {
            change(draft);
            draft.retarget();
        });
    }

    fn load(&mut self, plan: &Plan) {
        self.undo.clear();
        self.edit(|draft| *draft = Draft::of(plan));
    }

    fn recompute(&mut self) {
        let (plan, mut issues) = self.draft.read();
        match decide::quick(&plan) {
            Ok(decision) if issues.is_empty() => {
                let ahead = Ahead { deliberation: Deliberation::of(&plan), refined: None, priced: false, advice: None };
                self.outcome.work = Some(Work(Rc::new(RefCell::new(ahead))));
                self.outcome.shown = Some(Shown::new(plan, decision));
            }
            Ok(_) => {}
            // A text that cannot be read has one issue, which is about the text.
            Err(found) => {
                let new = |issue: &Issue| issues.iter().all(|other| other.field != issue.field);
                let found: Vec<Issue> = found.into_iter().filter(new).collect();
                issues.extend(found);
            }
        }
        self.outcome.issues = issues;
        self.outcome.fresh = !self.is_stale() && self.outcome.is_refining();
        if !self.measured.taken.is_empty() {
            self.explain();
        }
    }

    /// Asks what explains the measurement, anew. Out of line, as what follows: the first answer comes without it.
    #[inline(never)]
    fn explain(&mut self) {
        (self.measured.explained, self.measured.fitted) = (None, None);
        self.ask(false);
    }

    /// Asks about the measurement: what explains it, or what can be fitted to it. Wrong inputs ask nothing.
    #[inline(never)]
    fn ask(&mut self, fit: bool) {
        let measurements = Rc::clone(&self.measured.taken);
        let shown = self.outcome.shown.as_ref().filter(|_| !measurements.is_empty() && !self.is_stale());
        self.measured.asked = shown.map(|shown| Asked::new(shown.plan().clone(), measurements, fit));
    }

    /// Takes the answer; one that nobody waits for is not wanted.
    #[inline(never)]
    fn answered(&mut self, answered: Answered) {
        let Some(asked) = self.measured.asked.take() else { return };
        match answered {
            Answered::Explained(explained) if !asked.is_fit() => self.measured.explained = Some(Rc::new(explained)),
            Answered::Fit(fitted) if asked.is_fit() => {
                if let Some(plan) = &fitted.plan {
                    self.try_plan(plan, fitted.name.clone());
                }
                // It may have come before the explanation.
                if self.measured.asked.is_none() && self.measured.explained.is_none() {
                    self.ask(false);
                }
                self.measured.fitted = Some(Rc::new(fitted));
            }
            _ => self.measured.asked = Some(asked),
        }
    }

    /// Takes what was measured. What has been worked out of it stays where the measurement does.
    #[inline(never)]
    fn measure(&mut self, measured: Measured) {
        let before = core::mem::replace(&mut self.measured, measured);
        if Rc::ptr_eq(&before.taken, &self.measured.taken) {
            let Measured { asked, explained, fitted, .. } = before;
            self.measured = Measured { asked, explained, fitted, ..core::mem::take(&mut self.measured) };
        } else {
            self.explain();
        }
    }

    /// Does what is left of the work in hand, and takes its result.
    fn work(&mut self) {
        let outcome = &mut self.outcome;
        outcome.fresh = false;
        let (Some(work), Some(shown)) = (outcome.work.clone(), outcome.shown.clone()) else { return };
        let mut work = work.0.borrow_mut();
        while !work.advance(shown.decision(), usize::MAX) {}
        match work.refined.take() {
            Some(Ok(decision)) => outcome.shown = Some(Shown::new(shown.plan().clone(), decision)),
            Some(Err(issues)) => {
                outcome.issues = issues;
                outcome.work = None;
            }
            None => {
                let advised = core::mem::replace(&mut work.priced, true);
                let decision = if advised {
                    Decision { advice: work.advice.take(), ..shown.decision().clone() }
                } else {
                    work.deliberation.with_remedies(shown.decision().clone())
                };
                outcome.shown = Some(Shown::new(shown.plan().clone(), decision));
                outcome.priced.clone_from(&outcome.shown);
                if advised {
                    outcome.advised.clone_from(&outcome.shown);
                    outcome.work = None;
                }
            }
        }
    }

    fn try_remedy(&mut self, id: RemedyId, remedy: String) {
        while self.is_unpriced() {
            self.work();
        }
        let remedies = self.outcome.priced.iter().flat_map(|priced| &priced.decision().remedies);
        let Some(plan) = remedies.into_iter().find(|r| r.id == id).map(|r| r.plan.clone()) else { return };
        self.try_plan(&plan, remedy);
    }

    fn take_way(&mut self, name: String) {
        while self.outcome.work.is_some() {
            self.work();
        }
        let ways = self.outcome.advised.iter().filter_map(|shown| shown.decision().advice.as_ref());
        let mut ways = ways.flat_map(|advice| &advice.ways);
        if let Some(plan) = ways.find(|way| Locale::En.advice().way(way) == name).map(|way| way.plan.clone()) {
            self.try_plan(&plan, name);
        }
    }

    fn try_plan(&mut self, plan: &Plan, remedy: String) {
        if self.undo.len() == MAX_UNDO {
            self.undo.remove(0);
        }
        self.undo.push(Undo { before: self.draft.clone(), remedy });
        self.edit(|draft| *draft = Draft::of(plan));
    }

    fn read_measurement(&mut self, text: String, unit: Option<Unit>) {
        let result = match unit {
            _ if text.trim().is_empty() => {
                let (taken, recording) = (Rc::clone(&self.measured.taken), self.measured.recording.clone());
                return self.measure(Measured { taken, recording, text, ..Measured::default() });
            }
            _ => read(&text, unit),
        };
        self.take_measurement(text, unit, result);
    }

    fn take_measurement(&mut self, text: String, unit: Option<Unit>, result: Result<Vec<Imported>, ImportError>) {
        let (taken, recording) = (Rc::clone(&self.measured.taken), self.measured.recording.clone());
        let measured = match result {
            Ok(found) => {
                let (mut measurements, mut question) = (Vec::new(), Vec::new());
                for one in found {
                    match one {
                        Imported::Measurement { measurement, .. } => measurements.push(*measurement),
                        Imported::WhichUnit { candidates, .. } => question = candidates,
                    }
                }
                if question.is_empty() {
                    Measured { text, unit, taken: measurements.into(), recording, ..Measured::default() }
                } else {
                    Measured { text, question, taken, recording, ..Measured::default() }
                }
            }
            Err(error) => Measured { text, error: Some(error), taken, recording, ..Measured::default() },
        };
        self.measure(measured);
    }

    /// Takes what was found in a file. What was not understood leaves what was measured as it is.
    fn take_found(&mut self, found: Found) {
        self.section = Section::Measured;
        let before = &self.measured;
        let (taken, recording) = (Rc::clone(&before.taken), before.recording.clone());
        let measured = match found {
            Found::Measurements(taken) => Measured { taken: taken.into(), recording, ..Measured::default() },
            Found::Recording(recording) => {
                Measured { recording: Some(Rc::new(*recording)), taken, ..Measured::default() }
            }
            // No file holds one.
            Found::Lengths(_) | Found::Search(_) | Found::Ranks(_) | Found::Compared(_) => return,
            Found::Refused(error) => Measured { error: Some(error), taken, recording, ..Measured::default() },
        };
        self.measure(measured);
    }

    fn take_file(&mut self, bytes: &[u8]) {
        if is_recording(bytes) {
            let mut incoming = Incoming::default();
            incoming.push(bytes);
            return self.take_found(incoming.finish(Locale::En));
        }
        let text = measure::decoded(bytes);
        if !text.contains('\u{fffd}') {
            return self.paste(text.into_owned());
        }
        // TensorBoard's events, or a log with a broken character.
        self.take_measurement(String::new(), None, measure::understand(bytes, &Options::default()));
        self.section = Section::Measured;
    }

    fn paste(&mut self, text: String) {
        // As JSON.
        if text.len() <= MAX_READ && is_recording(text.as_bytes()) {
            return self.take_file(text.as_bytes());
        }
        if text.len() > MAX_READ {
            let limit = Bytes(MAX_READ as u64);
            self.notice = Some(Notice::TextTooLarge { bytes: Bytes(text.len() as u64), limit });
            return;
        }
        match recognise(&text) {
            Intake::Config(name) => {
                self.edit_model(|draft| draft.set_config(Some(text)));
                self.notice = Some(Notice::ConfigTaken(name));
                self.section = Section::Job;
            }
            Intake::Plan(plan) => {
                self.load(&plan);
                self.notice = Some(Notice::PlanTaken);
                self.section = Section::Job;
            }
            Intake::BrokenPlan(error) => self.notice = Some(Notice::PlanRefused(error)),
            Intake::Measurement(result) => {
                self.take_measurement(text, None, result);
                self.section = Section::Measured;
            }
        }
    }
}
