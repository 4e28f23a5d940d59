//! The job's key where the user has set none: the name that the launcher gives the job.
//!
//! That is no secret. It keeps the processes of one job from those of another that happen to get at their
//! ports.

use wire::session::JobKey;

/// The key of this process's job.
pub(crate) fn key() -> JobKey {
    // SAFETY: geteuid(2) cannot fail and touches no memory.
    let uid = unsafe { libc::geteuid() };
    let parts = name(uid, |variable| std::env::var(variable).ok());
    JobKey::from_job(&parts.each_ref().map(String::as_str))
}

/// What names a job where the launcher has no PMI: batch systems, and last torchrun, which they may start.
const BATCH: [(&str, &str); 4] = [
    ("SLURM_JOB_ID", "slurm"),
    ("PBS_JOBID", "pbs"),
    ("FLUX_JOB_ID", "flux"),
    ("TORCHELASTIC_RUN_ID", "torchrun"),
];

/// User and job. The same for all processes that a launcher starts, also for those that these start in turn,
/// which launchers by PMIx count behind the name of the first ones.
fn name(uid: u32, variable: impl Fn(&str) -> Option<String>) -> [String; 2] {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let job = if let Some(space) = set("PMIX_NAMESPACE") {
        match (space.split_once('@'), space.parse::<u32>()) {
            (Some((family, _)), _) => format!("pmix {family}"),
            // Open MPI 4: a family, and in the lower half which job of it.
            (None, Ok(number)) => format!("pmix {}", number >> 16),
            (None, Err(_)) => format!("pmix {space}"),
        }
    } else if let Some(job) = set("PMI_JOBID") {
        format!("pmi {job}")
    } else {
        let of = |(variable, launcher)| Some(format!("{launcher} {}", set(variable)?));
        BATCH.into_iter().find_map(of).unwrap_or_default()
    };
    [uid.to_string(), job]
}

/// Whether the launcher says that all processes of the job are on this host.
pub(crate) fn is_of_one_host() -> bool {
    on_one_host(|variable| std::env::var(variable).ok())
}

fn on_one_host(variable: impl Fn(&str) -> Option<String>) -> bool {
    let number = |name: &str| variable(name).and_then(|value| value.trim().parse::<u64>().ok());
    let all = |size: &str, here: &str| Some(number(size)? == number(here)?);
    // Open MPI; MPICH's and Intel MPI's launcher; srun.
    all("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
        .or_else(|| all("PMI_SIZE", "MPI_LOCALNRANKS"))
        .or_else(|| number("SLURM_STEP_NUM_NODES").map(|hosts| hosts == 1))
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(set: &[(&str, &str)]) -> String {
        let find = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let [uid, job] = name(7, find);
        assert_eq!(uid, "7");
        job
    }

    #[test]
    fn the_launcher_says_whether_a_job_has_one_host() {
        let says = |set: &[(&str, &str)]| {
            on_one_host(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
        };
        let ompi = |size, here| says(&[("OMPI_COMM_WORLD_SIZE", size), ("OMPI_COMM_WORLD_LOCAL_SIZE", here)]);
        assert_eq!((ompi("4", "4"), ompi("4", "2"), ompi("4", "")), (true, false, false));
        assert!(says(&[("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")]));
        assert!(!says(&[("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "1")]) && !says(&[("PMI_SIZE", "2")]));
        assert!(says(&[("SLURM_STEP_NUM_NODES", "1")]) && !says(&[("SLURM_STEP_NUM_NODES", "2")]));
        assert!(!says(&[]), "without a launcher it is not known");
    }

    #[test]
    fn processes_of_a_job_agree_on_its_name_and_those_of_others_do_not() {
        assert_eq!(
            job(&[("PMIX_NAMESPACE", "prterun-n1-22@1"), ("SLURM_JOB_ID", "5")]),
            "pmix prterun-n1-22"
        );
        assert_eq!(job(&[("PMIX_NAMESPACE", "prterun-n1-22@2")]), "pmix prterun-n1-22");
        assert_eq!(job(&[("PMIX_NAMESPACE", "262145")]), job(&[("PMIX_NAMESPACE", "262146")]));
        assert_ne!(job(&[("PMIX_NAMESPACE", "262145")]), job(&[("PMIX_NAMESPACE", "327681")]));
        assert_eq!(job(&[("PMIX_NAMESPACE", "space")]), "pmix space");
        assert_eq!(job(&[("PMI_JOBID", "9"), ("SLURM_JOB_ID", "5")]), "pmi 9");
        assert_eq!(job(&[("PMIX_NAMESPACE", ""), ("SLURM_JOB_ID", "5")]), "slurm 5");
        assert_eq!(job(&[("PBS_JOBID", "7.head"), ("PMI_JOBID", "")]), "pbs 7.head");
        assert_eq!(job(&[("FLUX_JOB_ID", "f2a")]), "flux f2a");
        assert_eq!(job(&[("TORCHELASTIC_RUN_ID", "r1")]), "torchrun r1");
        assert_eq!(job(&[("TORCHELASTIC_RUN_ID", "r1"), ("SLURM_JOB_ID", "5")]), "slurm 5");
        assert_eq!(job(&[]), "");
    }
}
