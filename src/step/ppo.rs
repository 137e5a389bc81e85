//! What PPO's update runs (TRL 1.10, the last that was read to have it: `experimental/ppo/ppo_trainer.py`). A policy and a critic
//! are trained by one optimizer; a reference and a reward model score.
//!
//! What binds there and nowhere else: the scores of all tokens that were generated, [sequences, tokens, vocabulary] in FP32, are
//! stacked, padded, and kept until the next completions replace them; every forward makes the logits of the whole sequence
//! and returns the hidden states of every layer. Generation and scoring run without autocast, which wraps the trained pair's forward
//! alone. The loop never clips, and `max_grad_norm` is not read. The trainer does not turn checkpointing on: a recipe that has it means that the models' owner did, on both.

use core::cell::RefCell;
use std::rc::Rc;

use crate::bill::{Instant, Part};
use crate::model::family::{Built, Cache, Run};
use crate::recipe::{Checkpointing, Ppo};
use crate::step::actors::Actors;
use crate::step::log::{Mark, Phase};
use crate::step::rollout;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// The most forwards over a part of the completions that are walked one by one; further ones ask for the same.
const MAX_CHUNKS: u64 = 4;

/// What a model's forward returns and its caller keeps: hidden states of every layer, keys and values, logits.
type Output = Vec<Tensor>;

impl Actors {
    /// What comes before a step's micro-batches. `before` is what is left of the last one.
    pub(crate) fn completions(
        &self,
        run: &Run,
        policy: &dyn Built,
        of: Ppo,
        walked: bool,
        before: Vec<Tensor>,
    ) -> Vec<Tensor> {
        let t = &run.tape;
        let all = run.batch.times(Dim::plain(self.at_once()));
        let chunk = Dim { n: of.forward_batch.min(all.n), ..all };
        // The last part may be smaller; further ones than are walked ask for the same.
        let parts = all.n.div_ceil(chunk.n);
        let rest = all.n - (parts - 1) * chunk.n;
        let part = |i: u64| Dim { n: if i + 1 == parts { rest } else { chunk.n }, ..all };
        let walks = |i: &u64| walked && (*i + 1 == parts || i + 1 < MAX_CHUNKS);
        let (seq, tokens) = (run.seq, Dim::plain(of.completion));
        let kept =
            |dims: &[Dim], dtype: Dtype, op: &'static str| t.empty(Shape::new(dims), dtype, Part::Activations, op);
        let mut before = before;
        before.truncate(1);
        t.mark(Mark::Phase(Phase::Generation));
        let mut held = vec![kept(&[all, Dim::plain(seq.n.saturating_sub(tokens.n))], Dtype::I64, "prompts")];
        // Of a tied head the first weight.
        let vocabulary = policy.weights().first().map_or(tokens, |words| words.dim(0));
        let scores = |of: Dim| kept(&[of, tokens, vocabulary], Dtype::F32, "scores of generated tokens");
        let mut generated: Vec<Tensor> = Vec::new();
        if walked {
            let skipped = (0..parts).filter(|i| !walks(i)).count() as u64;
            generated.extend((skipped > 0).then(|| scores(Dim { n: skipped * chunk.n, ..all })));
        }
        for i in (0..parts).filter(walks) {
            let one_by_one = rollout::generate_scored(run, policy, &of, part(i));
            generated.push(scores(part(i)));
            drop(one_by_one);
        }
        // Every part is padded to as many sequences as the first one has.
        let whole = Dim { n: parts * chunk.n, ..all };
        held.push(kept(&[whole, seq], Dtype::I64, "token ids"));
        let padded = scores(whole);
        drop(generated);
        drop(before);
        let without_graph = &Run { checkpointing: Checkpointing::None, ..run.clone() };
        t.with_grad(false, || {
            for i in (0..parts).filter(walks) {
                self.score_chunk(without_graph, policy, &of, part(i), &padded);
            }
        });
        let line = |dtype: Dtype| kept(&[all, tokens], dtype, "scores");
        // Responses, as they are and cut, and places; log-probabilities, values, divergence, rewards, advantages and returns;
        // two masks of the padding.
        held.extend([(); 3].map(|()| line(Dtype::I64)));
        held.extend([(); 8].map(|()| line(Dtype::F32)));
        held.extend([(); 2].map(|()| line(Dtype::Bool)));
        // One advantage a token (`advantages_reversed`).
        held.extend((0..tokens.n.min(rollout::MAX_WALKED_TOKENS)).map(|_| kept(&[all], Dtype::F32, "advantage")));
        t.empty_cache();
        t.mark(Mark::Phase(Phase::Update));
        held.insert(0, padded);
        held
    }

    /// Scores of a part of the completions by policy, reference, critic and reward model.
    fn score_chunk(&self, run: &Run, policy: &dyn Built, of: &Ppo, chunk: Dim, generated: &Tensor) {
        let t = &run.tape;
        let run = &Run { batch: chunk, ..run.clone() };
        let tokens = Dim::plain(of.completion);
        let index = t.buffer(Shape::new(&[chunk, tokens]), Dtype::I64);
        t.mark(Mark::Phase(Phase::OldLogProbs));
        let part = generated.alias(Shape::new(&[chunk, tokens, generated.dim(2)]));
        drop(t.selective_log_softmax(&part, &index));
        t.empty_cache();
        t.mark(Mark::Phase(Phase::Reference));
        let refer = |built: &dyn Built| {
            let (logits, output) = forward(run, built, true, None);
            let part = t.tempered(&logits, tokens);
            drop(t.selective_log_softmax(&part, &index));
            drop((part, logits, output));
        };
        match self.reference() {
            Some(reference) => t.evaluating(|| refer(reference)),
            None => t.without_adapters(|| refer(policy)),
        }
        t.empty_cache();
        let judges = [(Phase::Values, self.critic()), (Phase::Reward, self.judge())];
        for (phase, built) in judges {
            t.mark(Mark::Phase(phase));
            if let Some(built) = built {
                drop(forward(run, built, false, None));
            }
        }
    }

    /// `PolicyAndValueWrapper` on a micro-batch, and the loss.
    pub(crate) fn policy_and_values(
        &self,
        run: &Run,
        policy: &dyn Built,
        autocast: Option<Dtype>,
        of: Ppo,
    ) -> Option<Tensor> {
        let t = &run.tape;
        let critic = self.critic()?;
        let caches = run.checkpointing == Checkpointing::None;
        let (values, logits, output) = t.with_autocast(autocast, || {
            let (values, of_critic) = forward(run, critic, caches, Some(Instant::Forward));
            let (logits, output) = forward(run, policy, caches, Some(Instant::Loss));
            drop(of_critic);
            (values, logits, output)
        });
        t.scope("loss", || {
            // `convert_outputs_to_fp32`, of models under autocast.
            let wide = |x: Tensor| if autocast.is_some() { t.to(&x, Dtype::F32) } else { x };
            let (values, logits) = (wide(values), wide(logits));
            let part = t.tempered(&logits, Dim::plain(of.completion));
            let index = run.integers(&[run.batch, Dim::plain(of.completion)], "scored tokens");
            let log_probs = t.selective_log_softmax(&part, &index);
            let loss = t.ppo_loss(&log_probs, &values);
            // The last micro-batch's output has lived until this one's took its name.
            let before = self.keep_output(output.into_iter().chain([logits, part.detached(), values]).collect());
            drop(before);
            Some(loss)
        })
    }

    /// After a micro-batch: the entropy of its logits, whose probabilities are a variable of the loop.
    pub(crate) fn after_micro_batch(&self, t: &Tape) {
        let Some(logits) = self.scored_logits() else { return };
        let like = || t.temp(logits.shape().contiguous(), logits.dtype(), "probabilities");
        let probabilities = like();
        drop(like());
        drop(like());
        self.keep_probabilities(probabilities);
    }
}

/// A model's forward with every hidden state: what its head gives, and what else is returned. `enters`: which instant its head
/// belongs to, in a training step.
fn forward(run: &Run, built: &dyn Built, caches: bool, enters: Option<Instant>) -> (Tensor, Output) {
    let t = &run.tape;
    let line = |dtype: Dtype, op: &'static str| t.temp(Shape::new(&[run.batch, run.seq]), dtype, op);
    let mask = line(Dtype::Bool, "attention mask");
    let positions = line(Dtype::I64, "positions");
    let ids = line(Dtype::I64, "token ids");
    let captured = Rc::new(RefCell::new(Vec::new()));
    let cache = caches.then(|| Rc::new(Cache::of_whole(run.seq.n)));
    let own = Run {
        cache: cache.clone(),
        positions: Some(positions.clone()),
        captured: Some(captured.clone()),
        ..run.clone()
    };
    let out = built.backbone(&own, &ids).map(|(hidden, head)| {
        if let Some(instant) = enters {
            t.enter(instant);
        }
        let out = t.scope("head", || t.linear(&hidden, &head, None));
        captured.borrow_mut().push(hidden);
        out
    });
    drop((mask, positions, ids));
    let mut output: Output = captured.take();
    output.extend(cache.into_iter().flat_map(|cache| cache.held()));
    (out.unwrap_or_else(|| t.scalar(Dtype::F32, "no output")), output)
}
