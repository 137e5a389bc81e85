//! In which order a pipeline rank runs its micro-batches forward and backward, and which layers it has
//! (`megatron/core/pipeline_parallel/schedules.py`, `transformer_block.py::get_num_layers_to_build`).

use crate::recipe::parallel::Megatron;

/// One thing that a rank does: a chunk of its model on a micro-batch, both from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Forward.
    Forward { micro: u64, chunk: u64 },
    /// Backward.
    Backward { micro: u64, chunk: u64 },
}

/// What rank `rank` of `ranks` does in a step of `micros` micro-batches, with `chunks` model chunks a rank.
pub(crate) fn schedule(rank: u64, ranks: u64, micros: u64, chunks: u64) -> Vec<Act> {
    let total = micros.saturating_mul(chunks);
    // Without a pipeline each micro-batch goes forward and backward; else some go forward first.
    let ahead = ranks.saturating_sub(rank + 1);
    let warm_up = if chunks > 1 { ahead * 2 + (chunks - 1) * ranks } else { ahead }.min(total);
    // Micro-batches go through the chunks in groups of as many as there are ranks.
    let order: Vec<(u64, u64)> = (0..micros)
        .step_by(usize::try_from(if chunks > 1 { ranks } else { 1 }).unwrap_or(1).max(1))
        .flat_map(|first| {
            let group = first..(first + if chunks > 1 { ranks } else { 1 }).min(micros);
            (0..chunks).flat_map(move |chunk| group.clone().map(move |micro| (micro, chunk)))
        })
        .collect();
    let forward = |at: u64| {
        order.get(usize::try_from(at).unwrap_or(usize::MAX)).map(|&(micro, chunk)| Act::Forward { micro, chunk })
    };
    let backward = |at: u64| {
        let found = order.get(usize::try_from(at).unwrap_or(usize::MAX));
        found.map(|&(micro, chunk)| Act::Backward { micro, chunk: chunks - 1 - chunk })
    };
    let mut acts: Vec<Act> = (0..warm_up).filter_map(forward).collect();
    for at in warm_up..total {
        acts.extend(forward(at));
        acts.extend(backward(at - warm_up));
    }
    acts.extend((total - warm_up..total).filter_map(backward));
    acts
}

/// The most micro-batches that are between forward and backward at once, counted once for each chunk that they are in.
pub(crate) fn in_flight(acts: &[Act]) -> u64 {
    let (mut now, mut most) = (0_u64, 0);
    for act in acts {
        match act {
            Act::Forward { .. } => now += 1,
            Act::Backward { .. } => now = now.saturating_sub(1),
        }
        most = most.max(now);
    }
    most
}

/// The layers of each chunk of a rank, as (first, count); `None` where they cannot be dealt out so.
pub(crate) fn layers(options: &Megatron, layers: u64, ranks: u64, rank: u64) -> Option<Vec<(u64, u64)>> {
    let chunks = options.virtual_pipeline;
    let uneven = [options.decoder_first_pipeline_num_layers, options.decoder_last_pipeline_num_layers];
    if uneven.iter().any(Option::is_some) {
        if chunks > 1 || ranks < 2 {
            return None;
        }
        let [first, last] = uneven;
        let rest = layers.checked_sub(first.unwrap_or(0))?.checked_sub(last.unwrap_or(0))?;
        let others = ranks - uneven.iter().flatten().count() as u64;
        let each = if others == 0 { 0 } else { exact(rest, others)? };
        let of = |at: u64| match at {
            0 => first.unwrap_or(each),
            at if at + 1 == ranks => last.unwrap_or(each),
            _ => each,
        };
        return Some(vec![((0..rank).map(of).sum(), of(rank))]);
    }
    let ends = u64::from(options.account_for_embedding_and_loss_in_pipeline_split);
    let each = exact(layers.checked_add(2 * ends)?, ranks.checked_mul(chunks)?)?;
    let dealt = |at: u64| {
        // Stages in the order of the layers; the ends count as a layer on the first and the last.
        let last = ranks * chunks - 1;
        let own = each.checked_sub(ends * (u64::from(at == 0) + u64::from(at == last)))?;
        let first = (at * each).saturating_sub(ends * u64::from(at > 0));
        Some((first, own))
    };
    (0..chunks).map(|chunk| dealt(chunk * ranks + rank)).collect()
}

fn exact(value: u64, by: u64) -> Option<u64> {
    (by > 0 && value.is_multiple_of(by)).then(|| value / by)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_stage_holds_as_many_micro_batches_as_there_are_stages() {
        for (rank, expected) in [(0, 4), (1, 3), (2, 2), (3, 1)] {
            assert_eq!(in_flight(&schedule(rank, 4, 8, 1)), expected);
        }
        assert_eq!(in_flight(&schedule(0, 4, 2, 1)), 2, "no more than there are");
        // Interleaved: 2 (p - 1) + (v - 1) p before the first backward, and one more.
        assert_eq!(in_flight(&schedule(0, 4, 8, 2)), 11);
        assert_eq!(in_flight(&schedule(3, 4, 8, 2)), 5);
    }

    proptest! {
        #[test]
        fn every_chunk_goes_forward_once_and_then_backward(
            ranks in 1_u64..6, rank in 0_u64..6, groups in 1_u64..4, chunks in 1_u64..4,
        ) {
            prop_assume!(rank < ranks && (ranks > 1 || chunks == 1));
            let micros = ranks * groups;
            let acts = schedule(rank, ranks, micros, chunks);
            prop_assert_eq!(acts.len() as u64, 2 * micros * chunks);
            for micro in 0..micros {
                for chunk in 0..chunks {
                    let at = |act: Act| acts.iter().position(|a| *a == act);
                    let forward = at(Act::Forward { micro, chunk });
                    let backward = at(Act::Backward { micro, chunk });
                    prop_assert!(forward.is_some() && forward < backward);
                }
            }
        }

        #[test]
        fn stages_share_the_layers(ranks in 1_u64..6, each in 1_u64..5, chunks in 1_u64..4) {
            let options = Megatron { virtual_pipeline: chunks, ..Megatron::default() };
            let total = ranks * each * chunks;
            let mut all: Vec<u64> = (0..ranks)
                .flat_map(|rank| layers(&options, total, ranks, rank).unwrap_or_default())
                .flat_map(|(first, count)| first..first + count)
                .collect();
            all.sort_unstable();
            prop_assert_eq!(all, (0..total).collect::<Vec<_>>());
        }
    }
}
