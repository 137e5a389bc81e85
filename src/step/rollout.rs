//! What a step of reinforcement learning runs before it updates the policy: completions are generated, then scored without
//! a graph (TRL 1.16: `GRPOTrainer._generate_and_score_completions`; transformers 5.24: `generation/utils.py`,
//! `cache_utils.py`).

use std::rc::Rc;

use crate::bill::Part;
use crate::model::family::{Built, Cache, Run};
use crate::recipe::{Checkpointing, Ppo, Rollout};
use crate::step::shape::{Dim, Shape};
use crate::step::tensor::{Dtype, Tensor};

/// Tokens that are walked one by one. Of more, as many are walked evenly spread, the last one among them: caches grow by
/// more at a time, which changes how the allocator's blocks come to lie, not what is alive.
pub(crate) const MAX_WALKED_TOKENS: u64 = 128;

/// The lengths of a sequence after each token that is walked.
fn lengths(prompt: u64, tokens: u64) -> impl Iterator<Item = u64> {
    let walked = tokens.min(MAX_WALKED_TOKENS);
    (0..walked).map(move |i| prompt + i * tokens.saturating_sub(1) / walked.saturating_sub(1).max(1))
}

/// `generate` by sampling, with a cache of keys and values that grows by concatenation.
pub(crate) fn generate(run: &Run, policy: &dyn Built, of: &Rollout, sequences: Dim, autocast: Option<Dtype>) {
    drop(generated(run, policy, (of.completion, false), sequences, autocast));
}

/// [`generate`] at a temperature, without autocast, which returns the scores of every token (`output_scores`); keys and values
/// are returned with them.
pub(crate) fn generate_scored(run: &Run, policy: &dyn Built, of: &Ppo, sequences: Dim) -> Vec<Tensor> {
    generated(run, policy, (of.completion, true), sequences, None)
}

fn generated(
    run: &Run,
    policy: &dyn Built,
    (completion, keeps): (u64, bool),
    sequences: Dim,
    autocast: Option<Dtype>,
) -> Vec<Tensor> {
    let t = &run.tape;
    let prompt = run.seq.n.saturating_sub(completion);
    let mut scores = Vec::new();
    let mut variables = [None, None];
    let line =
        |n: u64, op: &'static str| t.empty(Shape::new(&[sequences, Dim::plain(n)]), Dtype::I64, Part::Activations, op);
    let mut inputs = [line(prompt, "token ids"), line(prompt, "attention mask"), line(prompt, "positions")];
    // The end, the padding and the beginning of a text; which sequences go on.
    let special = [(); 3].map(|()| t.scalar(Dtype::I64, "special token"));
    let unfinished = t.temp(Shape::new(&[sequences]), Dtype::I64, "unfinished sequences");
    let cache = Rc::new(Cache::default());
    let mut before = 0;
    t.with_grad(false, || {
        for length in lengths(prompt, completion) {
            let new = if before == 0 { prompt } else { 1 };
            let step = Run {
                batch: sequences,
                seq: Dim::plain(new),
                cache: Some(cache.clone()),
                checkpointing: Checkpointing::None,
                ..run.clone()
            };
            cache.grow_to(length);
            // Of the prompt all tokens, then the last one, as copies.
            let ids = t.temp(Shape::new(&[sequences, Dim::plain(new)]), Dtype::I64, "token ids");
            let logits = t.with_autocast(autocast, || {
                let (hidden, head) = policy.backbone(&step, &ids)?;
                t.scope("head", || {
                    let last = t.slice(&hidden, 1, Dim::plain(1));
                    drop(hidden);
                    Some(t.linear(&last, &head, None))
                })
            });
            if let Some(logits) = logits {
                // Of tokens that are not walked the scores are kept too.
                let tokens = if before == 0 { 1 } else { length - before };
                let kept = keeps.then_some((tokens, &mut scores));
                t.scope("sampling", || {
                    sample(run, logits, autocast.is_some(), &mut inputs, &mut variables, length + 1, kept)
                });
            }
            before = length;
        }
    });
    drop((inputs, variables, special, unfinished));
    scores.extend(cache.held().into_iter().filter(|_| keeps));
    scores
}

/// The next token of each sequence by its probabilities, appended to the inputs.
fn sample(
    run: &Run,
    logits: Tensor,
    mixed: bool,
    inputs: &mut [Tensor; 3],
    variables: &mut [Option<Tensor>; 2],
    length: u64,
    kept: Option<(u64, &mut Vec<Tensor>)>,
) {
    let t = &run.tape;
    // `convert_outputs_to_fp32`, of models under autocast.
    let logits = if mixed { t.to(&logits, Dtype::F32) } else { logits };
    let sequences = logits.dim(0);
    for (input, op) in inputs.iter_mut().skip(1).zip(["attention mask", "positions"]) {
        *input = t.empty(Shape::new(&[sequences, Dim::plain(length)]), Dtype::I64, Part::Activations, op);
    }
    let scores = || t.temp(Shape::new(&[sequences, logits.dim(2)]), Dtype::F32, "scores of next tokens");
    // Both are variables of the loop, until the next token's take their names.
    variables[0] = Some(scores());
    if let Some((tokens, kept)) = kept {
        let rows = sequences.times(Dim::plain(tokens));
        kept.push(t.temp(Shape::new(&[rows, logits.dim(2)]), Dtype::F32, "scores of generated tokens"));
    }
    variables[1] = Some(scores());
    drop(scores());
    inputs[0] = t.empty(Shape::new(&[sequences, Dim::plain(length)]), Dtype::I64, Part::Activations, "token ids");
    drop(logits);
}
