//! Why no process may have loaded Strait, by the command line and the environment.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

use super::cause::Cause;
use crate::out::quoted;
use crate::ucx_env;

/// Why no process may have loaded the provider: what is certainly wrong, and only where nothing is, what may
/// be.
pub fn reasons(program: &[OsString]) -> Vec<Cause> {
    let words = words(program);
    let var = |name| setting(&words, name);
    let mut all = Vec::new();
    let filter = var("FI_PROVIDER");
    if crate::info::filtered_out(&filter) {
        all.push(Cause::new(format!("FI_PROVIDER={filter} keeps it out"), "FI_PROVIDER=strait"));
    }
    let path = var("FI_PROVIDER_PATH");
    if !path.is_empty() && !path.split([':', '@', '+']).any(|d| Path::new(d).join(crate::info::FILE).exists())
    {
        let todo = crate::info::nearby_provider().map_or_else(
            || "install the provider (libstrait-fi; rpm: strait-libfabric), and name its directory".into(),
            |dir| format!("FI_PROVIDER_PATH={}", quoted(&dir.to_string_lossy())),
        );
        all.push(Cause::new(format!("FI_PROVIDER_PATH={path} has no {}", crate::info::FILE), todo));
    }
    if var("UCX_TLS").split(',').any(|tl| tl == crate::info::NAME) {
        let loads = ["LD_PRELOAD", "UCX_PLUGIN_PATH"].map(var);
        let has_place = loads.iter().any(|list| list.split([':', ' ']).any(ucx_env::is_ours));
        all.push(match has_place {
            true => Cause::new(
                "UCX_TLS names strait, and the program did not come to UCX: Open MPI takes it for network cards alone by default",
                "eval \"$(strait ucx-env)\" in the shell that starts the job, or mpirun --mca pml ucx --mca pml_ucx_tls any --mca \
                 pml_ucx_devices any",
            ),
            false => Cause::new(
                "UCX_TLS names strait, and no UCX loaded it",
                "eval \"$(strait ucx-env)\", which names its place, too",
            ),
        });
    }
    if !all.is_empty() {
        return all;
    }
    if filter.is_empty() {
        all.push(Cause::new(
            "FI_PROVIDER is not set: the program may have chosen another provider",
            "FI_PROVIDER=strait",
        ));
    } else if path.is_empty() && (!is_launcher(&words) || uses_libfabric(&words)) {
        all.push(Cause::new(
            "its libfabric may look in another directory for providers",
            "`strait doctor` says for each libfabric which",
        ));
    }
    if is_launcher(&words) && !uses_libfabric(&words) {
        all.push(Cause::new(
            "an MPI library uses shared memory of its own, unless its settings name libfabric",
            "Open MPI: --mca pml cm --mca mtl ofi; MPICH: MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1; Intel MPI: \
             I_MPI_FABRICS=ofi I_MPI_OFI_PROVIDER=strait",
        ));
    }
    if let Some(sign) = spread(&words) {
        all.push(Cause::new(
            format!("{sign}: processes of other hosts are not seen"),
            "strait doctor --hosts HOST,HOST -- PROGRAM",
        ));
    }
    all
}

/// A launcher that has itself ended by the signal of a fault: not what it launched.
pub fn crashed(program: &[OsString], status: ExitStatus) -> Option<Cause> {
    let words = words(program);
    let signal = status.signal().filter(|n| [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT].contains(n))?;
    let launcher = words.first().filter(|_| is_launcher(&words[..1]))?;
    let todo = match words.iter().any(|word| word == ":") {
        true => {
            "of Open MPI 5 with several programs (`:`), as Debian 13 has it: PMIX_MCA_pmdl=^ompi in its environment and the \
             options before each program; or one program that chooses by OMPI_COMM_WORLD_RANK"
        }
        false => "report it to the launcher's makers: nothing of Strait is in a launcher",
    };
    Some(Cause::new(format!("{launcher} itself was ended by signal {signal}"), todo))
}

/// The words of a command line.
pub fn words(program: &[OsString]) -> Vec<String> {
    program.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// What says that the job may be of several hosts.
fn spread(words: &[String]) -> Option<String> {
    const NAMES: [&str; 7] = ["--host", "-host", "-H", "--hostfile", "-hosts", "--nodelist", "--nnodes"];
    let named = words.iter().find(|word| NAMES.contains(&word.split('=').next().unwrap_or_default()));
    let allocated = || {
        let nodes = std::env::var("SLURM_JOB_NUM_NODES").ok()?;
        (nodes.trim().parse::<u32>().ok()? > 1).then(|| format!("SLURM_JOB_NUM_NODES={nodes}"))
    };
    named.map(|word| format!("{word} is given")).or_else(allocated)
}

/// The value that a program is started with: `NAME=VALUE` among its words, as of env and `mpirun -x`, `NAME
/// VALUE` behind `-env` and `-genv` of mpiexec, or the environment's.
fn setting(words: &[String], name: &str) -> String {
    let assigned = words.iter().rev().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let behind = || {
        let mut triples = words.windows(3).rev();
        triples.find(|w| matches!(w[0].as_str(), "-env" | "-genv") && w[1] == name).map(|w| w[2].as_str())
    };
    assigned.or_else(behind).map_or_else(|| std::env::var(name).unwrap_or_default(), str::to_owned)
}

pub fn is_launcher(words: &[String]) -> bool {
    words.iter().any(|word| {
        let name = word.rsplit('/').next().unwrap_or_default();
        // Debian's names, where several MPI libraries are installed.
        let name = [".openmpi", ".mpich"].iter().find_map(|of| name.strip_suffix(of)).unwrap_or(name);
        matches!(name, "mpirun" | "mpiexec" | "mpiexec.hydra" | "prterun" | "srun" | "orterun" | "torchrun")
    })
}

/// Whether the command line has an MPI library use libfabric.
fn uses_libfabric(words: &[String]) -> bool {
    let var = |name| setting(words, name);
    let component = |kind: &str| {
        let mut triples = words.windows(3);
        let listed =
            triples.any(|w| w[0].ends_with("-mca") && w[1] == kind && w[2].split(',').any(|c| c == "ofi"));
        listed || setting(words, &format!("OMPI_MCA_{kind}")).split(',').any(|c| c == "ofi")
    };
    component("mtl")
        || component("btl")
        || var("MPIR_CVAR_CH4_NETMOD") == "ofi"
        || !var("I_MPI_OFI_PROVIDER").is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_has_reasons_of_its_own() {
        let reasons_of = |name: &str| text(&format!("{UNSET} FI_PROVIDER= MPIR_CVAR_CH4_NETMOD= {name}"));
        assert!(reasons_of("/usr/bin/mpirun").contains("--mca mtl ofi"));
        assert!(reasons_of("mpiexec.mpich").contains("MPIR_CVAR_NOLOCAL=1"));
        assert!(!reasons_of("./a.out").contains("--mca"));
    }

    fn text(of: &str) -> String {
        reasons(&line(of)).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    /// The environment of the tests does not count.
    const UNSET: &str = "env FI_PROVIDER_PATH= UCX_TLS= OMPI_MCA_mtl= OMPI_MCA_btl= I_MPI_OFI_PROVIDER=";

    fn line(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_launcher_that_crashes_is_no_fault_of_a_program() {
        let of = |text: &str, raw| crashed(&line(text), ExitStatus::from_raw(raw)).map(|c| c.to_string());
        let several = of("mpirun -np 1 a : -np 1 a", libc::SIGSEGV).unwrap();
        assert!(several.contains("mpirun itself was ended by signal 11"), "{several}");
        assert!(several.contains("PMIX_MCA_pmdl=^ompi"), "{several}");
        assert!(!of("/usr/bin/mpirun -np 2 a", libc::SIGABRT).unwrap().contains("pmdl"));
        assert_eq!(of("mpirun -np 2 a", 139 << 8), None);
        assert_eq!(of("mpirun -np 2 a", libc::SIGTERM), None);
        assert_eq!(of("./a", libc::SIGSEGV), None);
    }

    #[test]
    fn settings_on_the_command_line_count() {
        let of = |line: &str| text(&format!("{UNSET} {line}"));
        let named = of("mpirun -n 2 -x FI_PROVIDER=strait --mca pml cm --mca mtl ofi ./a.out");
        assert!(!named.contains("FI_PROVIDER is not set") && !named.contains("shared memory"), "{named}");
        assert!(named.contains("another directory"), "{named}");
        let without = of("mpirun -n 2 -x FI_PROVIDER=strait -x MPIR_CVAR_CH4_NETMOD= ./a.out");
        assert!(without.contains("shared memory of its own, unless"), "{without}");
        assert!(!without.contains("another directory"), "{without}");
        assert!(of("mpiexec -genv FI_PROVIDER shm ./a.out").contains("FI_PROVIDER=shm keeps it out"));
        let named = of("mpiexec -genv FI_PROVIDER strait -env MPIR_CVAR_CH4_NETMOD ofi ./a.out");
        assert!(named.contains("another directory") && !named.contains("shared memory"), "{named}");
        assert!(
            of("mpirun --host a,b ./a.out")
                .contains("--host is given: processes of other hosts are not seen")
        );
    }

    #[test]
    fn a_ucx_that_has_the_place_is_one_that_open_mpi_passed_over() {
        let of = |set: &str| {
            text(&format!("{UNSET} LD_PRELOAD= UCX_PLUGIN_PATH= {set} UCX_TLS=strait mpirun ./a.out"))
        };
        assert!(of("").contains("which names its place"));
        let file = std::env::temp_dir().join(ucx_env::FILE);
        let passed_over = of(&format!("LD_PRELOAD={}", file.display()));
        assert!(
            passed_over.contains("--mca pml ucx") && !passed_over.contains("no UCX loaded"),
            "{passed_over}"
        );
    }

    #[test]
    fn what_is_certain_comes_without_guesses() {
        let lines =
            reasons(&line("mpirun -x FI_PROVIDER= -x UCX_TLS= -x FI_PROVIDER_PATH=/nonexistent ./a.out"));
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].to_string().starts_with("FI_PROVIDER_PATH=/nonexistent has no libstrait-fi.so"),
            "{lines:?}"
        );
    }
}
