//! Which of many plans to run: those that no other beats in both memory and speed, the fastest that fits, the largest
//! micro-batch and sequence that fit, the smallest GPU that does it.
//!
//! First the walk says of every plan what it requests at least ([`fast`]), and the throughput how fast it is. Then the
//! allocator is replayed, for those plans alone that may be an answer: a plan holds no less than it requests, so what is
//! slower than another and requests more than that one holds is no answer. What is said of a plan that was replayed is what
//! [`crate::decide::decide`] says.

mod fast;
mod space;

use std::collections::BTreeMap;

pub use space::{Space, Target};

use crate::decide::decision::work_of;
use crate::decide::verdict::share_of;
use crate::decide::{Decision, Deliberation, Verdict, VerdictKind};
use crate::estimate::device;
use crate::issue::Issue;
use crate::machine::Hardware;
use crate::plan::Plan;
use crate::recipe::Optimizer;
use crate::step::tape::Device;
use crate::throughput::{Range, Throughput, rough};
use crate::units::Bytes;
use fast::Fast;
use space::Group;

/// A plan of the search.
#[derive(Clone, Copy, Debug)]
struct Point {
    group: Group,
    optimizer: usize,
    machine: usize,
    /// The requested peak of a steady step, in bytes.
    requested: u64,
    /// Tokens a second; 0: not known.
    speed: f64,
}

/// A plan that was looked at to the end.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// It.
    pub plan: Plan,
    /// The verdict.
    pub verdict: Verdict,
    /// Its speed. `None`: not known.
    pub throughput: Option<Throughput>,
}

impl Found {
    /// What it holds at most: what the process does, as far as it is known.
    #[must_use]
    pub fn held(&self) -> Bytes {
        let numbers = &self.verdict.numbers;
        numbers.process.or(numbers.reserved).unwrap_or(numbers.allocated)
    }

    fn fits(&self) -> bool {
        self.verdict.kind == VerdictKind::Fits
    }
}

/// What was found on one of the machines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answers {
    /// Plans that no other beats in both speed and memory, the fastest first.
    pub front: Vec<Found>,
    /// The fastest that fits, with the margin.
    pub fastest: Option<Found>,
    /// One with the largest micro-batch that fits, of those the one that requests least.
    pub largest_micro_batch: Option<Found>,
    /// One with the longest sequence that fits, of those the one that requests least.
    pub longest_sequence: Option<Found>,
}

/// How far a search is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Groups of plans that were walked, and of how many.
    pub walked: (usize, usize),
    /// Plans so far.
    pub plans: usize,
    /// Plans that were replayed.
    pub replayed: usize,
    /// Machines that have their answers, and of how many.
    pub answered: (usize, usize),
}

/// What is being sought on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sought {
    Front,
    MicroBatch,
    Sequence,
}

/// A search that goes on as far as it is told to.
#[derive(Debug)]
pub struct Search {
    plan: Plan,
    space: Space,
    /// By machine and layout. None: the layout's machine is wrong.
    hardware: Vec<Vec<Option<Hardware>>>,
    /// By layout and kind of device, what is known of the optimizers there.
    fast: Vec<((usize, Device), Fast)>,
    walked: usize,
    points: Vec<Point>,
    /// What was looked at to the end, by place among the points. None: it is refused.
    looked_at: BTreeMap<usize, Option<Found>>,
    in_hand: Option<(usize, Deliberation)>,
    sought: Sought,
    /// The points of the machine, in the order in which they are looked at, and the next of them.
    order: Vec<usize>,
    next: usize,
    /// The members of the machine's front so far.
    front: Vec<usize>,
    fastest: Option<usize>,
    /// The machine's answers so far.
    pending: Answers,
    answers: Vec<Answers>,
}

impl Search {
    /// A search among `space` around `plan`, not begun.
    ///
    /// # Errors
    /// Every issue of the plan's own machine, or of one that is tried.
    pub fn of(plan: &Plan, space: Space) -> Result<Self, Vec<Issue>> {
        let mut plan = plan.clone();
        let mut hardware = Vec::new();
        for machine in &space.machines {
            plan.machine.clone_from(machine);
            let mut by_layout = Vec::new();
            for layout in &space.layouts {
                plan.parallel.clone_from(layout);
                by_layout.push(Some(plan.hardware()?));
            }
            hardware.push(by_layout);
        }
        Ok(Self {
            plan,
            space,
            hardware,
            fast: Vec::new(),
            walked: 0,
            points: Vec::new(),
            looked_at: BTreeMap::new(),
            in_hand: None,
            sought: Sought::Front,
            order: Vec::new(),
            next: 0,
            front: Vec::new(),
            fastest: None,
            pending: Answers::default(),
            answers: Vec::new(),
        })
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            walked: (self.walked, self.space.groups()),
            plans: self.points.len(),
            replayed: self.looked_at.len(),
            answered: (self.answers.len(), self.space.machines.len()),
        }
    }

    /// What the walk alone says of every plan so far: the plan, the requested peak of a steady step, and tokens a second where
    /// they are known.
    pub fn plans(&self) -> impl Iterator<Item = (Plan, Bytes, Option<f64>)> {
        self.points.iter().map(|point| {
            let mut plan = self.plan.clone();
            self.space.apply(&mut plan, &point.group, [point.optimizer, point.machine]);
            (plan, Bytes(point.requested), (point.speed > 0.0).then_some(point.speed))
        })
    }

    /// What was found, by machine: those that are answered so far.
    #[must_use]
    pub fn answers(&self) -> &[Answers] {
        &self.answers
    }

    /// The machine with the least memory on which something fits, of those that are answered so far.
    #[must_use]
    pub fn smallest(&self) -> Option<usize> {
        let capacity = |at: &usize| self.answers[*at].fastest.as_ref().map(|found| found.verdict.numbers.capacity);
        (0..self.answers.len()).filter(|at| capacity(at).is_some()).min_by_key(capacity)
    }

    /// All of it at once.
    #[must_use]
    pub fn finish(mut self) -> Vec<Answers> {
        while !self.advance(usize::MAX) {}
        self.answers
    }

    /// Goes on by one group of plans, or by at most `events` of a replay. True once nothing is left.
    pub fn advance(&mut self, events: usize) -> bool {
        if self.walked < self.space.groups() {
            self.walk();
            self.walked += 1;
        } else if self.answers.len() < self.space.machines.len() {
            self.answer(events);
        }
        self.answers.len() == self.space.machines.len()
    }

    /// Walks the next group of plans.
    fn walk(&mut self) {
        let Some(group) = self.space.group(self.walked) else { return };
        let mut walked: Vec<(Device, Vec<Option<u64>>)> = Vec::new();
        self.space.apply(&mut self.plan, &group, [0, 0]);
        let work = work_of(&self.plan);
        for machine in 0..self.space.machines.len() {
            let Some(hardware) = &self.hardware[machine][group.layout] else { continue };
            let device = device(hardware.capability).0;
            let at = match walked.iter().position(|(known, _)| *known == device) {
                Some(at) => at,
                None => {
                    self.space.apply(&mut self.plan, &group, [0, machine]);
                    walked.push((
                        device,
                        requested(&mut self.plan, &self.space.optimizers, &mut self.fast, (group.layout, device)),
                    ));
                    walked.len() - 1
                }
            };
            for (optimizer, requested) in walked[at].1.iter().enumerate() {
                let Some(requested) = *requested else { continue };
                self.plan.recipe.optimizer = self.space.optimizers[optimizer];
                let speed = work.as_ref().and_then(|work| rough(work, &self.plan.recipe, hardware));
                let speed = speed.map_or(0.0, |speed| likely(speed.tokens_per_second));
                self.points.push(Point { group, optimizer, machine, requested, speed });
            }
        }
    }

    fn machine(&self) -> usize {
        self.answers.len()
    }

    fn hardware_of(&self, point: &Point) -> Option<&Hardware> {
        self.hardware[point.machine][point.group.layout].as_ref()
    }

    /// What a plan holds at least.
    fn least(&self, at: usize) -> u64 {
        let point = &self.points[at];
        let outside = self.hardware_of(point).and_then(Hardware::outside).unwrap_or_default();
        point.requested.saturating_add(outside.get())
    }

    /// Whether a plan may fit, by what it holds at least.
    fn may_fit(&self, at: usize) -> bool {
        let point = &self.points[at];
        let Some(hardware) = self.hardware_of(point) else { return false };
        let (Some(capacity), Some(_)) = (&hardware.capacity, hardware.outside()) else { return false };
        let margin = share_of(capacity.bytes, self.plan.policy.margin_low);
        let taken = hardware.in_use.unwrap_or_default().get().saturating_add(margin.get());
        let never = self.plan.recipe.compile || self.space.layouts[point.group.layout].data.waits_on_events();
        !never && self.least(at).saturating_add(taken) <= capacity.bytes.get()
    }

    /// Puts the machine's points into the order in which they are looked at.
    fn begin(&mut self) {
        let machine = self.machine();
        let own = |(at, point): (usize, &Point)| (point.machine == machine).then_some(at);
        self.order = self.points.iter().enumerate().filter_map(own).collect();
        self.next = 0;
        let points = &self.points;
        let by = |sought: Sought, a: &Point, b: &Point| match sought {
            Sought::Front => b.speed.total_cmp(&a.speed),
            Sought::MicroBatch => b.group.micro_batch.cmp(&a.group.micro_batch),
            Sought::Sequence => b.group.seq_len.cmp(&a.group.seq_len),
        };
        let sought = self.sought;
        self.order.sort_by(|a, b| {
            let (a, b) = (&points[*a], &points[*b]);
            by(sought, a, b).then(a.requested.cmp(&b.requested))
        });
    }

    /// Looks for the next answer on the machine.
    fn answer(&mut self, events: usize) {
        if self.next == 0 {
            self.begin();
        }
        while self.order.get(self.next).is_some_and(|at| !self.is_wanted(*at)) {
            self.next += 1;
        }
        let Some(&at) = self.order.get(self.next) else { return self.turn(None) };
        if !self.look(at, events) {
            return;
        }
        self.next += 1;
        let Some(found) = self.found(at) else { return };
        let (held, fits) = (found.held(), found.fits());
        if self.sought != Sought::Front {
            if fits {
                self.turn(Some(at));
            }
            return;
        }
        if fits && self.fastest.is_none() {
            self.fastest = Some(at);
        }
        if let Some(&last) = self.front.last() {
            if self.found(last).is_some_and(|last| last.held() <= held) {
                return;
            }
            // As fast, and smaller.
            if self.points[last].speed <= self.points[at].speed {
                self.front.pop();
            }
        }
        self.front.push(at);
    }

    fn found(&self, at: usize) -> Option<&Found> {
        self.looked_at.get(&at)?.as_ref()
    }

    /// Whether the plan may be the next answer.
    fn is_wanted(&self, at: usize) -> bool {
        if self.sought != Sought::Front {
            return self.may_fit(at);
        }
        let last = self.front.last().and_then(|last| self.found(*last));
        let unbeaten = last.is_none_or(|last| self.least(at) < last.held().get());
        unbeaten || (self.fastest.is_none() && self.may_fit(at))
    }

    /// Looks at a plan to the end, by a slice; whether that is reached.
    fn look(&mut self, at: usize, events: usize) -> bool {
        if self.looked_at.contains_key(&at) {
            return true;
        }
        if self.in_hand.as_ref().is_none_or(|(in_hand, _)| *in_hand != at) {
            let point = self.points[at];
            self.space.apply(&mut self.plan, &point.group, [point.optimizer, point.machine]);
            self.in_hand = Some((at, Deliberation::of(&self.plan)));
        }
        let refined = self.in_hand.as_mut().and_then(|(_, deliberation)| deliberation.refine(events));
        let Some(refined) = refined else { return false };
        self.in_hand = None;
        let found = refined.ok().map(|decision| {
            let point = self.points[at];
            self.space.apply(&mut self.plan, &point.group, [point.optimizer, point.machine]);
            Found { plan: self.plan.clone(), verdict: decision.verdict, throughput: decision.throughput }
        });
        self.looked_at.insert(at, found);
        true
    }

    /// Goes to what is sought next, or to the next machine.
    fn turn(&mut self, at: Option<usize>) {
        let found = at.and_then(|at| self.found(at)).cloned();
        self.next = 0;
        self.sought = match self.sought {
            Sought::Front => {
                let front = core::mem::take(&mut self.front);
                self.pending.front = front.iter().filter_map(|at| self.found(*at)).cloned().collect();
                self.pending.fastest = self.fastest.take().and_then(|at| self.found(at)).cloned();
                Sought::MicroBatch
            }
            Sought::MicroBatch => {
                self.pending.largest_micro_batch = found;
                Sought::Sequence
            }
            Sought::Sequence => {
                self.pending.longest_sequence = found;
                self.answers.push(core::mem::take(&mut self.pending));
                Sought::Front
            }
        };
    }
}

/// One figure of a range: the middle of its ends' ratio.
fn likely(range: Range) -> f64 {
    (range.low * range.high).sqrt()
}

/// The requested peaks of a group's plans on a machine, by optimizer.
fn requested(
    plan: &mut Plan,
    optimizers: &[Optimizer],
    known: &mut Vec<((usize, Device), Fast)>,
    on: (usize, Device),
) -> Vec<Option<u64>> {
    let at = match known.iter().position(|(known, _)| *known == on) {
        Some(at) => at,
        None => match Fast::of(plan, optimizers) {
            Some(fast) => {
                known.push((on, fast));
                known.len() - 1
            }
            None => return fast::each(plan, optimizers),
        },
    };
    known[at].1.requested(plan, optimizers)
}

/// The articles' way to a micro-batch that fits (B2): halved, with twice the accumulation, until it does. What was tried, in
/// order; the last one fits, or is of one sequence.
///
/// # Errors
/// Every issue of the plan, one per field.
pub fn halve(plan: &Plan) -> Result<Vec<Found>, Vec<Issue>> {
    let mut plan = plan.clone();
    let mut tried: Vec<Found> = Vec::new();
    loop {
        let decision = decide_alone(&plan)?;
        tried.push(Found { plan: plan.clone(), verdict: decision.verdict, throughput: decision.throughput });
        let recipe = &mut plan.recipe;
        let done = tried.last().is_some_and(Found::fits) || !recipe.micro_batch.is_multiple_of(2);
        let Some(grad_accum) = recipe.grad_accum.checked_mul(2).filter(|_| !done) else { return Ok(tried) };
        (recipe.micro_batch, recipe.grad_accum) = (recipe.micro_batch / 2, grad_accum);
    }
}

/// What is decided about `plan`, without remedies.
///
/// # Errors
/// Every issue of the plan, one per field.
pub(crate) fn decide_alone(plan: &Plan) -> Result<Decision, Vec<Issue>> {
    let mut deliberation = Deliberation::of(plan);
    loop {
        if let Some(decision) = deliberation.refine(usize::MAX) {
            return decision;
        }
    }
}
