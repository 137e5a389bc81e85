//! The models beside the one that is trained, and what a micro-batch of preferences or rewards runs through them
//! (TRL 1.16: `trainer/dpo_trainer.py`, `reward_trainer.py`).

use core::cell::RefCell;

use crate::bill::{Instant, Part};
use crate::issue::{Issue, IssueKind};
use crate::model::family::{Built, Model, Run};
use crate::plan::Plan;
use crate::recipe::{
    Checkpointing, Dpo, Loss, MAX_GRAD_ACCUM, MAX_MICRO_BATCH, Method, Precision, Recipe, Reference, Rollout, ZeroGrad,
};
use crate::step::load;
use crate::step::log::{Mark, Phase};
use crate::step::ops::Extras;
use crate::step::rollout;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};
use crate::step::train::{tables, weights_dtype};

/// What a second model's parameters are called.
pub(crate) const REFERENCE: &str = "reference's parameter";
/// What a reward model's parameters are called.
pub(crate) const JUDGE: &str = "reward model's parameter";
/// What a critic's parameters are called.
const CRITIC: &str = "critic's parameter";
/// What the parameters of models beside the policy are called.
pub(crate) const OTHERS: [&str; 2] = [REFERENCE, JUDGE];
/// What keys and values of earlier tokens are called.
pub(crate) const CACHE: &str = "key-value cache";

/// The models beside the policy.
pub(crate) struct Actors {
    method: Method,
    scored: u64,
    /// Whether adapters train.
    adapters: bool,
    /// Micro-batches for which completions are generated at once.
    at_once: u64,
    /// Frozen; none where adapters are turned off instead, or nothing refers to it.
    reference: Option<(Box<dyn Built>, Vec<Tensor>)>,
    /// The model that rewards, where one does.
    judge: Option<(Box<dyn Built>, Vec<Tensor>)>,
    /// The model that values and is trained too.
    critic: Option<(Box<dyn Built>, Vec<Tensor>)>,
    /// What a micro-batch's forward returned, the logits that are scored before the last; then their probabilities.
    output: RefCell<[Vec<Tensor>; 2]>,
}

impl Actors {
    /// Puts the models that `recipe` needs beside `model` on the tape; none where it is a plain step.
    #[inline(never)]
    pub(crate) fn of(
        tape: &Tape,
        model: &dyn Model,
        recipe: &Recipe,
        precision: Precision,
        warm_up: u64,
    ) -> Option<Self> {
        let method = recipe.method?;
        let refers = match method {
            Method::Dpo(of) => of.reference == Reference::Model,
            Method::Reward(_) => false,
            Method::Grpo(of) => of.reference,
            Method::Ppo(_) => true,
        };
        let ppo = matches!(method, Method::Ppo(_));
        let critic = model.scored().filter(|_| ppo).map(|model| {
            let (critic, buffers) =
                tape.building(CRITIC, || built(tape, model.as_ref(), &Recipe::default(), precision, 0));
            for (weight, table) in critic.weights().iter().zip(tables(&model.parameters())) {
                if let Some(leaf) = weight.leaf() {
                    leaf.table.set(table);
                }
            }
            (critic, buffers)
        });
        let reference = (refers && recipe.lora.is_none())
            .then(|| tape.building(REFERENCE, || built(tape, model, recipe, precision, warm_up)));
        let judges = ppo || method.rollout().is_some_and(|of| of.reward_model);
        let judge = model.scored().filter(|_| judges);
        let judge =
            judge.map(|model| tape.building(JUDGE, || built(tape, model.as_ref(), &Recipe::default(), precision, 0)));
        let at_once = method.rollout().and_then(|of| of.steps_per_generation).unwrap_or(recipe.grad_accum);
        let (adapters, scored, output) = (recipe.lora.is_some(), recipe.scored(), RefCell::default());
        Some(Self { adapters, method, scored, at_once, reference, judge, critic, output })
    }

    /// What is trained beside the policy.
    pub(crate) fn trained(&self) -> &[Tensor] {
        self.critic.as_ref().map_or(&[], |(critic, _)| critic.weights())
    }

    pub(crate) fn at_once(&self) -> u64 {
        self.at_once
    }

    pub(crate) fn reference(&self) -> Option<&dyn Built> {
        self.reference.as_ref().map(|(built, _)| built.as_ref())
    }

    pub(crate) fn critic(&self) -> Option<&dyn Built> {
        self.critic.as_ref().map(|(built, _)| built.as_ref())
    }

    pub(crate) fn judge(&self) -> Option<&dyn Built> {
        self.judge.as_ref().map(|(built, _)| built.as_ref())
    }

    /// Keeps what a micro-batch's forward returned; returns what was kept before.
    pub(crate) fn keep_output(&self, output: Vec<Tensor>) -> Vec<Tensor> {
        core::mem::replace(&mut self.output.borrow_mut()[0], output)
    }

    /// The logits that the last forward's loss was of.
    pub(crate) fn scored_logits(&self) -> Option<Tensor> {
        let output = self.output.borrow();
        output[0].len().checked_sub(2).and_then(|at| output[0].get(at).cloned())
    }

    pub(crate) fn keep_probabilities(&self, probabilities: Tensor) {
        let before = core::mem::replace(&mut self.output.borrow_mut()[1], vec![probabilities]);
        drop(before);
    }

    /// The step's variables go (`del`), and the cache.
    #[inline(never)]
    pub(crate) fn end_step(&self, t: &Tape) {
        if self.critic.is_some() {
            drop(self.output.take());
            t.empty_cache();
        }
    }

    /// What comes before a step's micro-batches: completions and their scores, which all of them share. `walked`: whether
    /// that is walked, or there from the start.
    #[inline(never)]
    pub(crate) fn roll_out(
        &self,
        run: &Run,
        policy: &dyn Built,
        autocast: Option<Dtype>,
        walked: bool,
        before: Vec<Tensor>,
    ) -> Vec<Tensor> {
        if let Method::Ppo(of) = self.method {
            return self.completions(run, policy, of, walked, before);
        }
        let held = self.rolled_out(run, policy, autocast, walked);
        drop(before);
        held
    }

    fn rolled_out(&self, run: &Run, policy: &dyn Built, autocast: Option<Dtype>, walked: bool) -> Vec<Tensor> {
        let Some(of) = self.method.rollout() else { return Vec::new() };
        let t = &run.tape;
        let all = run.batch.times(Dim::plain(self.at_once));
        match of.vllm {
            // Its memory is its own; before it wakes the cache is given back (`VLLMGeneration.sync_weights`).
            Some(vllm) if walked && vllm.sleep => t.empty_cache(),
            _ => {}
        }
        t.mark(Mark::Phase(Phase::Generation));
        if walked && of.vllm.is_none() {
            // peft's `generate` calls the model beneath, around which no autocast is.
            rollout::generate(run, policy, of, all, autocast.filter(|_| !self.adapters));
        }
        let kept = |n: u64, dtype: Dtype, op: &'static str| {
            t.empty(Shape::new(&[all, Dim::plain(n)]), dtype, Part::Activations, op)
        };
        let prompt = run.seq.n.saturating_sub(of.completion);
        let mut held: Vec<Tensor> = [("prompts", prompt), ("prompt mask", prompt)]
            .into_iter()
            .chain([("completions", of.completion), ("completion mask", of.completion)])
            .map(|(op, n)| kept(n, Dtype::I64, op))
            .collect();
        let whole = [kept(run.seq.n, Dtype::I64, "token ids"), kept(run.seq.n, Dtype::I64, "attention mask")];
        held.push(t.empty(Shape::new(&[all]), Dtype::F32, Part::Activations, "advantages"));
        held.push(t.scalar(Dtype::F32, "tokens in all"));
        if let Some((judge, _)) = &self.judge {
            t.mark(Mark::Phase(Phase::Reward));
            if walked {
                judged(run, judge.as_ref(), all, autocast);
            }
        }
        let scored = [(of.old_log_probs || of.vllm.is_some(), Phase::OldLogProbs), (of.reference, Phase::Reference)];
        for (_, phase) in scored.into_iter().filter(|(runs, _)| *runs) {
            t.mark(Mark::Phase(phase));
            let scores = if walked { self.all_scores(run, policy, autocast, phase) } else { Vec::new() };
            held.push(kept(of.completion, Dtype::F32, "scores"));
            drop(scores);
        }
        drop(whole);
        t.mark(Mark::Phase(Phase::Update));
        held
    }

    /// Scores of every completion without a graph, micro-batch by micro-batch.
    fn all_scores(&self, run: &Run, policy: &dyn Built, autocast: Option<Dtype>, phase: Phase) -> Vec<Tensor> {
        let t = &run.tape;
        let run = &Run { checkpointing: Checkpointing::None, ..run.clone() };
        let mut all = Vec::new();
        t.with_grad(false, || {
            for _ in 0..self.at_once.min(MAX_SCORED) {
                let ids = t.buffer(Shape::new(&[run.batch, run.seq]), Dtype::I64);
                let labels = labels(t, &ids);
                let scores = match phase {
                    Phase::Reference => self.reference_scores(run, policy, &ids, &labels, autocast),
                    _ => self.scores(run, policy, &ids, &labels, autocast, Extras { entropy: true, metrics: false }),
                };
                // The output goes, but for what is kept of it.
                all.extend(scores.and_then(|scores| scores.into_iter().next()));
            }
        });
        all
    }

    /// A micro-batch on the device.
    #[inline(never)]
    pub(crate) fn batch(&self, run: &Run) -> Vec<Tensor> {
        let line = || run.tape.temp(Shape::new(&[Dim::plain(run.batch.n / 2)]), Dtype::F32, "reference's scores");
        let names = ["token ids", "attention mask", "completion mask"];
        let whole = |n: usize| names.iter().take(n).map(|name| run.integers(&[run.batch, run.seq], name)).collect();
        match self.method {
            Method::Reward(_) => whole(2),
            Method::Dpo(of) => {
                let mut all: Vec<Tensor> = whole(3);
                if of.reference == Reference::Precomputed {
                    all.extend([line(), line()]);
                }
                all
            }
            // A part of what was generated: a view.
            Method::Grpo(_) => Vec::new(),
            // Copies, by index.
            Method::Ppo(of) => {
                let tokens = Dim::plain(of.completion);
                let line = |dtype: Dtype| run.tape.temp(Shape::new(&[run.batch, tokens]), dtype, "scores");
                let mut all = whole(1);
                all.push(line(Dtype::I64));
                all.extend([(); 4].map(|()| line(Dtype::F32)));
                all
            }
        }
    }

    /// Forward to the loss; each model runs under an autocast of its own.
    #[inline(never)]
    pub(crate) fn loss(&self, run: &Run, policy: &dyn Built, batch: &[Tensor], autocast: Option<Dtype>) -> Tensor {
        let t = &run.tape;
        let loss = match (self.method, batch.first()) {
            (Method::Dpo(of), Some(ids)) => self.preferences(run, policy, ids, autocast, of),
            (Method::Reward(_), Some(ids)) => rewards(run, policy, ids, autocast),
            (Method::Grpo(of), _) => self.policy_gradient(run, policy, autocast, of),
            (Method::Ppo(of), _) => self.policy_and_values(run, policy, autocast, of),
            _ => None,
        };
        loss.unwrap_or_else(|| t.scalar(Dtype::F32, "loss"))
    }

    /// `DPOTrainer._compute_loss`: the policy's log-probabilities, then the reference's without a graph.
    fn preferences(
        &self,
        run: &Run,
        policy: &dyn Built,
        ids: &Tensor,
        autocast: Option<Dtype>,
        of: Dpo,
    ) -> Option<Tensor> {
        let t = &run.tape;
        let labels = labels(t, ids);
        let all = Extras { entropy: true, metrics: true };
        let scores = self.scores(run, policy, ids, &labels, autocast, all)?;
        let sums = t.scope("loss", || scores.first().map(|of| t.sums_of_scores(of)))?;
        let referred = match of.reference {
            Reference::Precomputed => None,
            Reference::Model => {
                t.mark(Mark::Phase(Phase::Reference));
                let scores = self.reference_scores(run, policy, ids, &labels, autocast);
                t.mark(Mark::Phase(Phase::Update));
                scores
            }
        };
        let loss = t.scope("loss", || t.loss_of_sums(&sums));
        drop((referred, sums, scores, labels));
        Some(loss)
    }

    /// `GRPOTrainer._compute_loss`: a ratio of probabilities per token of the completions, clipped.
    fn policy_gradient(&self, run: &Run, policy: &dyn Built, autocast: Option<Dtype>, of: Rollout) -> Option<Tensor> {
        let t = &run.tape;
        let ids = run.integers(&[run.batch, run.seq], "token ids");
        let mask = run.integers(&[run.batch, run.seq], "attention mask");
        let labels = labels(t, &ids);
        let scores = self.scores(run, policy, &ids, &labels, autocast, Extras { entropy: true, metrics: false })?;
        let loss = t.scope("loss", || {
            let completion = Dim::plain(of.completion);
            let own = scores.first().map(|scores| t.last_of(scores, completion))?;
            let entropies = t.temp(*own.shape(), Dtype::F32, "entropies");
            drop(scores);
            drop(labels);
            let loss = t.clipped_loss(&own, of.reference);
            drop(entropies);
            Some(loss)
        });
        drop((mask, ids));
        loss
    }

    /// Per-token scores of the reference: a model of its own in evaluation, or the policy with its adapters off.
    fn reference_scores(
        &self,
        run: &Run,
        policy: &dyn Built,
        ids: &Tensor,
        labels: &Tensor,
        autocast: Option<Dtype>,
    ) -> Option<Vec<Tensor>> {
        let t = &run.tape;
        let run = &Run { checkpointing: Checkpointing::None, ..run.clone() };
        let of = |built: &dyn Built| self.scores(run, built, ids, labels, autocast, Extras::default());
        match &self.reference {
            Some((reference, _)) => t.evaluating(|| of(reference.as_ref())),
            None => t.with_grad(false, || t.without_adapters(|| of(policy))),
        }
    }

    /// Per-token scores of a model, and the extras.
    fn scores(
        &self,
        run: &Run,
        built: &dyn Built,
        ids: &Tensor,
        labels: &Tensor,
        autocast: Option<Dtype>,
        extras: Extras,
    ) -> Option<Vec<Tensor>> {
        let t = &run.tape;
        t.with_autocast(autocast, || {
            let (hidden, head) = built.backbone(run, ids)?;
            t.enter(Instant::Loss);
            Some(t.scope("loss", || t.fused_log_probs(&hidden, labels, &head, self.scored, extras)))
        })
    }
}

/// The reward model's scores of every completion at once, in `inference_mode` (`GRPOTrainer._calculate_rewards`).
fn judged(run: &Run, judge: &dyn Built, all: Dim, autocast: Option<Dtype>) {
    let t = &run.tape;
    let run = &Run { batch: all, checkpointing: Checkpointing::None, ..run.clone() };
    let ids = run.integers(&[run.batch, run.seq], "token ids");
    let mask = run.integers(&[run.batch, run.seq], "attention mask");
    let scores = t.evaluating(|| {
        t.with_autocast(autocast, || {
            let (hidden, head) = judge.backbone(run, &ids)?;
            let scores = t.linear(&hidden, &head, None);
            Some(t.last_scores(&scores, &ids))
        })
    });
    drop((scores, mask, ids));
}

/// The labels of scored tokens: the others are masked out.
fn labels(t: &Tape, ids: &Tensor) -> Tensor {
    let unscored = t.temp(*ids.shape(), Dtype::Bool, "unscored tokens");
    let labels = t.temp(*ids.shape(), Dtype::I64, "labels");
    drop(unscored);
    labels
}

/// The most micro-batches whose scores are walked one by one; further ones ask for the same.
const MAX_SCORED: u64 = 8;

/// A further model of the policy's kind, loaded as it was, and its buffers.
fn built(
    tape: &Tape,
    model: &dyn Model,
    recipe: &Recipe,
    precision: Precision,
    warm_up: u64,
) -> (Box<dyn Built>, Vec<Tensor>) {
    let loaded = load::loads(recipe).then(|| load::load(tape, model, recipe, precision, warm_up)).map(|loaded| {
        tape.supply(loaded.weights);
        loaded.buffers
    });
    let weights = weights_dtype(precision);
    let built = model.build(tape, weights);
    tape.supply(Vec::new());
    let buffer = |n: u64| tape.empty(Shape::new(&[Dim::plain(n)]), Dtype::U8, Part::Weights, "buffer");
    let buffers = loaded.unwrap_or_else(|| model.buffer_bytes(weights).into_iter().map(buffer).collect());
    (built, buffers)
}

/// `RewardTrainer.compute_loss`: a score per sequence, read at its last token.
fn rewards(run: &Run, policy: &dyn Built, ids: &Tensor, autocast: Option<Dtype>) -> Option<Tensor> {
    let t = &run.tape;
    let pooled = t.with_autocast(autocast, || {
        let (hidden, head) = policy.backbone(run, ids)?;
        t.enter(Instant::Loss);
        Some(t.scope("loss", || {
            let scores = t.linear(&hidden, &head, None);
            let pooled = t.last_scores(&scores, ids);
            drop(scores);
            t.to(&pooled, Dtype::F32)
        }))
    })?;
    Some(t.scope("loss", || t.loss_of_sums(&pooled)))
}

/// What of `recipe`'s method is not modelled on `model`, or does not go together.
#[inline(never)]
pub(crate) fn issues(model: &dyn Model, plan: &Plan) -> Vec<Issue> {
    let recipe = &plan.recipe;
    let Some(method) = recipe.method else { return Vec::new() };
    let mut issues = Vec::new();
    let name = method.name();
    let mut not = |field: &str, what: String| issues.push(Issue::new(field, IssueKind::NotModelled { what }));
    if model.scored().is_none() {
        not("recipe.method", format!("{name} of the family {}, or with windows of attention", model.family()));
    }
    for (field, given, what) in [
        ("recipe.loss", recipe.loss != Loss::Hf, "another way to compute the loss"),
        ("recipe.eval_after", recipe.eval_after, "an evaluation after the steps"),
        ("recipe.keep_outputs", recipe.keep_outputs, "outputs that are kept"),
        ("recipe.keep_variables", recipe.keep_variables, "variables that outlive a step"),
        (
            "recipe.zero_grad",
            recipe.zero_grad == Some(ZeroGrad::AfterForward),
            "gradients that are kept during the forward",
        ),
        ("parallel", !plan.parallel.is_single(), "several GPUs"),
        ("recipe.liger", !recipe.liger.is_empty(), "Liger's kernels"),
        ("recipe.lengths", recipe.lengths.is_some(), "sequences of several lengths"),
        ("recipe.float8", recipe.float8, "FP8 products"),
        ("recipe.ema", recipe.ema.is_some(), "an averaged copy of the weights"),
        ("recipe.freeze", !recipe.freeze.is_empty(), "frozen parts"),
        ("recipe.precision", recipe.precision == Some(Precision::Bf16Master), "FP32 master weights"),
    ] {
        if given {
            not(field, format!("{what} with {name}"));
        }
    }
    if let Method::Ppo(of) = method {
        for (field, given, what) in [
            ("recipe.load", recipe.quantization.is_none() && load::loads(recipe), "loading"),
            (
                "recipe.quantization",
                recipe.quantization.as_ref().is_some_and(|q| !q.prepare),
                "quantised weights without `prepare_model_for_kbit_training`",
            ),
            ("recipe.optimizer", recipe.optimizer.name.is_paged(), "paged states"),
            ("recipe.optimizer.in_backward", recipe.optimizer.in_backward, "an optimizer in backward"),
            (
                "recipe.checkpointing",
                !matches!(recipe.checkpointing, Checkpointing::None | Checkpointing::Full),
                "this checkpointing",
            ),
        ] {
            if given {
                not(field, format!("{what} with {name}"));
            }
        }
        if !(1..=MAX_MICRO_BATCH).contains(&of.forward_batch) {
            let kind = IssueKind::OutOfRange { min: 1, max: MAX_MICRO_BATCH, found: of.forward_batch.to_string() };
            issues.push(Issue::new("recipe.method.forward_batch", kind));
        }
    }
    if let Some(vllm) = method.rollout().and_then(|of| of.vllm)
        && !(vllm.memory_utilization > 0.0 && vllm.memory_utilization <= 1.0)
    {
        let (expected, found) = ("a share above 0, at most 1".into(), vllm.memory_utilization.to_string());
        issues.push(Issue::new("recipe.method.vllm.memory_utilization", IssueKind::NotA { expected, found }));
    }
    let at_once = method.rollout().and_then(|of| of.steps_per_generation);
    if at_once.is_some_and(|n| !(1..=MAX_GRAD_ACCUM).contains(&n)) {
        let found = at_once.unwrap_or_default().to_string();
        let kind = IssueKind::OutOfRange { min: 1, max: MAX_GRAD_ACCUM, found };
        issues.push(Issue::new("recipe.method.steps_per_generation", kind));
    }
    let most = recipe.seq_len.saturating_sub(1);
    if !(1..=most).contains(&recipe.scored()) {
        let kind = IssueKind::OutOfRange { min: 1, max: most, found: recipe.scored().to_string() };
        issues.push(Issue::new("recipe.method.completion", kind));
    }
    issues
}

impl Recipe {
    /// The recipe as the trainer of its method changes it: DPO and reward training turn dropout off, a score's head is
    /// trained beside adapters, and PPO's loop never reads `max_grad_norm` (TRL 1.10, `PPOTrainer.train`): it does not clip.
    #[must_use]
    pub(crate) fn prepared(&self) -> Self {
        let mut recipe = self.clone();
        if matches!(self.method, Some(Method::Ppo(_))) {
            recipe.clip_grad = None;
        }
        if let (Some(method), Some(lora)) = (&self.method, &mut recipe.lora) {
            if matches!(method, Method::Dpo(_) | Method::Reward(_)) {
                lora.dropout = 0.0;
            }
            if matches!(method, Method::Reward(_)) && !lora.modules_to_save.iter().any(|m| m == SCORE) {
                lora.modules_to_save.push(SCORE.into());
            }
        }
        recipe
    }
}

/// The module that scores a sequence.
const SCORE: &str = "score";
