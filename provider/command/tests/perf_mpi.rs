//! `strait perf --mpi`, with a stand-in for the MPI's compiler and launcher.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A compiler whose program prints what one of the patterns would, over strait in half the time.
const COMPILER: &str = r#"#!/bin/sh
[ "$1$2" = -O2-o ] || exit 9
grep -q MPI_Alltoall "$4" || exit 9
cat >"$3" <<'END'
#!/bin/sh
over=1.0
if [ "$FI_PROVIDER$TAKES" = strait ] && [ "$OMPI_MCA_pml$OMPI_MCA_mtl" = cmofi ]; then
    over=0.5
    [ -z "$FI_STRAIT_REPORT" ] || echo "strait: pid $$: carried 3 messages, 24 B to 1 peer; 3 messages, 24 B came" >&2
fi
shift
for size; do echo "ring $size $over"; done
END
chmod +x "$3"
"#;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("strait-perf-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let mpicc = dir.join("mpicc");
        std::fs::write(&mpicc, COMPILER).unwrap();
        std::fs::set_permissions(&mpicc, PermissionsExt::from_mode(0o755)).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn perf(dir: &Path, launcher: &str, more: &[&str], env: &[(&str, &str)]) -> (Output, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.args(["perf", "--mpi", launcher, "--sizes", "8,4K"]).args(more);
    command.env_remove("FI_PROVIDER").env("MPICC", dir.join("mpicc")).env("TMPDIR", dir);
    let output = command.envs(env.iter().copied()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    // Nothing of the compiled program is left.
    let left = std::fs::read_dir(dir).unwrap().flatten();
    let left = left.filter(|file| file.file_name().to_string_lossy().starts_with("strait-perf-mpi-")).count();
    assert_eq!(left, 0, "{errors}");
    (output, out, errors)
}

#[test]
fn the_gain_over_what_the_mpi_does_now_is_said_and_drawn() {
    let dir = Scratch::new("gain");
    let (chart, csv) = (dir.0.join("gain.svg"), dir.0.join("gain.csv"));
    let files = ["--plot", chart.to_str().unwrap(), "--csv", csv.to_str().unwrap()];
    let (output, out, errors) = perf(&dir.0, "env", &files, &[]);
    assert!(output.status.success(), "{errors}");
    assert!(out.contains("geometric mean: 2.00, so strait is faster here"), "{out}");
    assert_eq!(out.lines().filter(|line| line.starts_with("ring ") && line.ends_with("2.00")).count(), 2);
    assert!(std::fs::read_to_string(chart).unwrap().contains("2.00"));
    assert!(std::fs::read_to_string(csv).unwrap().contains("ring,4096,strait,us,0.5000"));
}

#[test]
fn what_is_in_the_way_is_said_before_anything_is_measured() {
    let dir = Scratch::new("way");
    for (launcher, env, words) in [
        ("env", &[("TAKES", "not")][..], "does not use it; `strait doctor -- "),
        ("env", &[("FI_PROVIDER", "strait")], "FI_PROVIDER is strait already"),
        ("env", &[("MPICC", "/nonexistent/mpicc")], "set MPICC to the compiler"),
        ("env", &[("MPICC", "false")], "false failed"),
        ("no-such-launcher", &[], "no-such-launcher: not found"),
        ("sh -c 'echo wrong >&2; exit 3'", &[], "exit status: 3\n  wrong"),
        ("true", &[], "exit status: 0"),
    ] {
        let (output, out, errors) = perf(&dir.0, launcher, &[], env);
        assert_eq!((output.status.code(), out.as_str()), (Some(1), ""), "{launcher}: {errors}");
        assert!(errors.contains(words), "{launcher}, {env:?}: {errors}");
    }
}
