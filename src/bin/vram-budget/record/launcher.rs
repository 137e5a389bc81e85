//! The rank that launchers give a process, in its environment.

/// Which of how many a process is, by the variables that say it; the first pair that is there counts.
const PAIRS: [(&str, Option<&str>); 7] = [
    // torchrun, accelerate, DeepSpeed's launcher, Ray Train (`ray/train/torch/config.py`) and a PyTorchJob's pods.
    ("RANK", Some("WORLD_SIZE")),
    ("OMPI_COMM_WORLD_RANK", Some("OMPI_COMM_WORLD_SIZE")),
    ("PMI_RANK", Some("PMI_SIZE")),
    ("MV2_COMM_WORLD_RANK", Some("MV2_COMM_WORLD_SIZE")),
    // `srun`. A batch script has SLURM_PROCID=0 and SLURM_NTASKS too, and is none of the tasks: only a step counts them
    // (`SLURM_STEP_NUM_TASKS`, man srun).
    ("SLURM_PROCID", Some("SLURM_STEP_NUM_TASKS")),
    // A TrainJob's pods, in which torchrun is yet to start.
    ("PET_NODE_RANK", Some("PET_NNODES")),
    // An indexed Job's pods, a JobSet's too: how many there are is not said.
    ("JOB_COMPLETION_INDEX", None),
];

/// The variables that are read.
pub(super) fn variables() -> impl Iterator<Item = &'static str> {
    PAIRS.into_iter().flat_map(|(rank, world)| [Some(rank), world]).flatten()
}

/// Rank and world size, of an environment that answers by name. A world that is no number, such as `1:4` of an elastic
/// launch, is not known.
pub(super) fn rank_of<T: AsRef<str>>(environment: impl Fn(&str) -> Option<T>) -> Option<(u32, Option<u32>)> {
    let number = |name: &str| environment(name)?.as_ref().parse::<u32>().ok();
    PAIRS.into_iter().find_map(|(rank, world)| match world {
        None => Some((number(rank)?, None)),
        Some(world) => environment(world).map(|_| Some((number(rank)?, number(world))))?,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Recorded {
        launcher: String,
        environment: BTreeMap<String, String>,
        rank: Option<u32>,
        world: Option<u32>,
    }

    #[test]
    fn every_launcher_tells_its_ranks() {
        let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/recordings/launchers.json"));
        let all: Vec<Recorded> = serde_json::from_str(text).unwrap();
        for of in all {
            let found = rank_of(|name| of.environment.get(name));
            assert_eq!(found, of.rank.map(|rank| (rank, of.world)), "{}", of.launcher);
        }
    }
}
