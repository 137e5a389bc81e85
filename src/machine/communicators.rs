//! What NCCL takes beside PyTorch's allocator: an assumption for a process that talks to others.

use crate::bill::{Provenance, ProvenanceKind};
use crate::machine::{Capability, Sourced};
use crate::recipe::Parallel;
use crate::recipe::parallel::DataParallel;
use crate::units::Bytes;

/// A process's first communicator on compute capability 9.0 and newer.
const FIRST_HOPPER_MIB: u64 = 1_229;
/// A process's first communicator on older cards.
const FIRST_MIB: u64 = 717;
/// Each further one.
const FURTHER_MIB: u64 = 512;

/// The communicators that a rank of `parallel` uses: one for each way to split, two for shards with replicas.
#[must_use]
pub fn communicators(parallel: &Parallel) -> u64 {
    let replicas = match &parallel.data {
        DataParallel::Fsdp1(options) => options.replicas,
        DataParallel::Fsdp2(options) => options.replicas,
        _ => 1,
    };
    let split = [
        parallel.data_ranks() > 1,
        replicas > 1,
        parallel.tensor.size > 1,
        parallel.pipeline > 1,
        parallel.context > 1,
        parallel.expert > 1,
    ];
    split.into_iter().map(u64::from).sum()
}

/// The memory assumed for them; none where a process is alone. 0.7 and 1.2 GiB for the first and 0.5 GiB for each further
/// one are our judgement, not a measurement, within what users report: 544 to 688 MB on A100s with NVLink (NVIDIA/nccl issue 964), 1.06 GiB on eight H100s (1685), 0.55 GiB to
/// 2.00 GiB for a process before and after its first barrier (Stas Bekman, ML Engineering).
#[must_use]
pub(crate) fn assumed_communicators(parallel: &Parallel, capability: Option<Capability>) -> Option<Sourced> {
    let further = communicators(parallel).checked_sub(1)?;
    let first = if capability.is_some_and(|c| c < Capability(9, 0)) { FIRST_MIB } else { FIRST_HOPPER_MIB };
    let mib = first.saturating_add(further.saturating_mul(FURTHER_MIB));
    let source =
        "NCCL's buffers, assumed by the number of communicators; reported are 0.5 to 1.6 GiB for the first one";
    Some(Sourced {
        bytes: Bytes::mib(mib),
        provenance: Provenance { kind: ProvenanceKind::Assumed, source: source.into() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::parallel::{Fsdp2, TensorParallel};

    #[test]
    fn a_process_alone_has_none() {
        assert_eq!(assumed_communicators(&Parallel::default(), None), None);
        let alone = Parallel { data: DataParallel::Fsdp2(Fsdp2::default()), ..Parallel::default() };
        assert_eq!(assumed_communicators(&alone, None), None);
    }

    #[test]
    fn each_way_to_split_has_its_own() {
        let tensor = TensorParallel { size: 2, ..TensorParallel::default() };
        let data = DataParallel::Fsdp2(Fsdp2 { replicas: 2, ..Fsdp2::default() });
        let parallel = Parallel { world_size: 8, tensor, data, ..Parallel::default() };
        assert_eq!(communicators(&parallel), 3);
        let ampere = assumed_communicators(&parallel, Some(Capability(8, 0))).unwrap();
        assert_eq!(ampere.bytes, Bytes::mib(717 + 2 * 512));
        // The dearer where the generation is not known.
        assert!(assumed_communicators(&parallel, None).unwrap().bytes > ampere.bytes);
    }
}
