//! Which layouts exist: sizes must multiply to the world, and each option needs what it is about.

use super::{DataParallel, Fsdp1, Fsdp2, MAX_RANKS, Parallel, Reshard, ShardingStrategy};
use crate::issue::{Issue, IssueKind};

/// The largest bucket of DDP in MiB.
const MAX_BUCKET_MB: u64 = 1 << 20;

/// What a link may carry, in GB/s: from a modem's to more than any.
const LINK_GBPS: core::ops::RangeInclusive<f64> = 0.001..=100_000.0;

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
        let nodes = self.gpus_per_node.is_none_or(|gpus| in_range("parallel.gpus_per_node", gpus, 1, MAX_RANKS));
        if sizes {
            self.check_sizes(&mut issues);
        }
        if sizes && nodes {
            self.check_nodes(&mut issues);
        }
        for (field, found) in [("parallel.network_gbps", self.network_gbps), ("parallel.link_gbps", self.link_gbps)] {
            if let Some(found) = found.filter(|found| !LINK_GBPS.contains(found)) {
                let expected = "a number of GB/s from 0.001 to 100000".into();
                issues.push(Issue::new(field, IssueKind::NotA { expected, found: found.to_string() }));
            }
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

    /// Several nodes are full ones, each with as many ranks; one process has one.
    fn check_nodes(&self, issues: &mut Vec<Issue>) {
        let Some(gpus) = self.gpus_per_node.filter(|gpus| self.world_size > *gpus) else { return };
        let field = "parallel.gpus_per_node";
        if matches!(self.data, DataParallel::Dp(_)) {
            let expected = format!("a node with all {} GPUs, which one process drives", self.world_size);
            issues.push(Issue::new(field, IssueKind::NotA { expected, found: gpus.to_string() }));
        } else {
            divides(issues, "parallel.world_size", self.world_size, field, gpus);
        }
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
