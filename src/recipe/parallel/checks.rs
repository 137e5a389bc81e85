//! Which layouts exist: sizes must multiply to the world, and each option needs what it is about.

use super::{DataParallel, Fsdp1, Fsdp2, MAX_RANKS, Parallel, Reshard, ShardingStrategy};
use crate::issue::{Issue, IssueKind};

/// The largest bucket of DDP in MiB.
const MAX_BUCKET_MB: u64 = 1 << 20;

impl Parallel {
    /// Everything that is wrong with the layout by itself.
    #[must_use]
    pub fn issues(&self) -> Vec<Issue> {
        let mut issues = Vec::new();
        let mut in_range = |field: &str, found: u64, min: u64, max: u64| {
            let inside = (min..=max).contains(&found);
            if !inside {
                issues.push(Issue::new(field, IssueKind::OutOfRange { min, max, found: found.to_string() }));
            }
            inside
        };
        let mut sizes = true;
        for (field, found) in [
            ("parallel.world_size", self.world_size),
            ("parallel.tensor.size", self.tensor.size),
            ("parallel.pipeline", self.pipeline),
            ("parallel.context", self.context),
            ("parallel.expert", self.expert),
        ] {
            sizes &= in_range(field, found, 1, MAX_RANKS);
        }
        match &self.data {
            DataParallel::Ddp(ddp) => {
                in_range("parallel.data.ddp.bucket_cap_mb", ddp.bucket_cap_mb, 1, MAX_BUCKET_MB);
            }
            DataParallel::Dp(of) => {
                in_range("parallel.data.dp.gpu", of.gpu, 0, self.world_size.saturating_sub(1));
            }
            DataParallel::DeepSpeed(zero) => {
                in_range("parallel.data.deepspeed.stage", zero.stage, 0, 3);
            }
            _ => {}
        }
        if sizes {
            self.check_sizes(&mut issues);
        }
        for (on, field) in [
            (self.tensor.sequence_parallel, "parallel.tensor.sequence_parallel"),
            (self.tensor.loss_parallel, "parallel.tensor.loss_parallel"),
        ] {
            if on && self.tensor.size == 1 {
                let expected = "two tensor-parallel ranks or more".into();
                issues.push(Issue::new(field, IssueKind::NotA { expected, found: "1".into() }));
            }
        }
        issues
    }

    /// The world factors: into the ways to split a model, replicas and shards.
    fn check_sizes(&self, issues: &mut Vec<Issue>) {
        let mut left = self.world_size;
        for (field, by) in [
            ("parallel.tensor.size", self.tensor.size),
            ("parallel.pipeline", self.pipeline),
            ("parallel.context", self.context),
        ] {
            if !divides(issues, "parallel.world_size", left, field, by) {
                return;
            }
            left /= by;
        }
        divides(issues, "parallel.world_size", left, "parallel.expert", self.expert);
        match &self.data {
            DataParallel::None if left > 1 => {
                let expected = format!("a wrapper over the {left} data-parallel ranks");
                issues.push(Issue::new("parallel.data", IssueKind::NotA { expected, found: "none".into() }));
            }
            DataParallel::Fsdp2(Fsdp2 { replicas, reshard_after_forward, .. }) => {
                let field = "parallel.data.fsdp2.replicas";
                if divides(issues, "parallel.world_size", left, field, *replicas)
                    && let Reshard::To(part) = reshard_after_forward
                {
                    let shards = left / replicas;
                    let field = "parallel.data.fsdp2.reshard_after_forward";
                    if !(2..shards).contains(part) {
                        let expected = format!("a divisor of the {shards} shards, other than 1 and {shards}");
                        issues.push(Issue::new(field, IssueKind::NotA { expected, found: part.to_string() }));
                    } else {
                        divides(issues, "parallel.world_size", shards, field, *part);
                    }
                }
            }
            DataParallel::Fsdp1(Fsdp1 { replicas, strategy, .. }) => {
                let field = "parallel.data.fsdp1.replicas";
                let hybrid = matches!(strategy, ShardingStrategy::HybridShard | ShardingStrategy::HybridShardZero2);
                if *replicas > 1 && !hybrid {
                    let expected = "1 without a hybrid strategy".into();
                    issues.push(Issue::new(field, IssueKind::NotA { expected, found: replicas.to_string() }));
                }
                divides(issues, "parallel.world_size", left, field, *replicas);
            }
            _ => {}
        }
    }
}

/// Whether `by` divides `value`; if not, `field` is to blame.
fn divides(issues: &mut Vec<Issue>, field: &str, value: u64, by_field: &str, by: u64) -> bool {
    let divides = by > 0 && value.is_multiple_of(by);
    if !divides {
        issues.push(Issue::new(field, IssueKind::NotDivisible { value, by_field: by_field.into(), by }));
    }
    divides
}
