//! `strait perf --mpi`: patterns of MPI programs over what the MPI does now and over strait, in turns.

use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::gain::{Line, Measured};
use super::mpi_chart;
use super::options::Options;
use crate::fabric::Error;
use crate::info;
use crate::out::{self, say};

const SOURCE: &str = include_str!("patterns.c");

/// What has an MPI library take the provider; each reads its own.
const SETTINGS: [(&str, &str); 7] = [
    ("FI_PROVIDER", "strait"),
    ("OMPI_MCA_pml", "cm"),
    ("OMPI_MCA_mtl", "ofi"),
    ("MPIR_CVAR_CH4_NETMOD", "ofi"),
    ("MPIR_CVAR_NOLOCAL", "1"),
    ("I_MPI_FABRICS", "ofi"),
    ("I_MPI_OFI_PROVIDER", "strait"),
];

/// Between the start of a job and its first line, and between two lines.
const SILENCE: Duration = Duration::from_secs(60);

/// Measures and prints.
pub fn run(launcher: &str, options: &Options) -> Result<bool, Error> {
    let set: Vec<_> = SETTINGS
        .iter()
        .filter(|(name, value)| *value == "strait" && std::env::var(name).is_ok_and(|is| is == *value))
        .collect();
    if let Some((name, value)) = set.first() {
        return Err(Error::Failed(format!(
            "--mpi compares with what the MPI does now, and {name} is {value} already: unset {name}"
        )));
    }
    let job = Job::compile(launcher)?;
    let least: Vec<usize> = options.sizes.iter().copied().take(1).collect();
    // What is in the way is found out before anything is measured.
    job.run(false, false, 0.001, &least)?;
    let (_, errors) = job.run(true, true, 0.001, &least)?;
    if !errors.lines().any(|line| line.contains(" carried ") && line.contains("messages")) {
        let job = format!("strait doctor -- env {} {launcher} PROGRAM", settings_text());
        return Err(Error::Failed(format!(
            "under the settings by which MPI libraries take strait, {launcher} does not use it; `{job}` says why"
        )));
    }
    let mut measured = Measured::default();
    for rep in 0..options.reps {
        for side in [false, true] {
            if !options.quiet && std::io::stderr().is_terminal() {
                let over = if side { "strait" } else { "what it does now" };
                say!("strait perf: {} of {}: {launcher} over {over}", rep + 1, options.reps);
            }
            let (lines, _) = job.run(side, false, options.seconds, &options.sizes)?;
            measured.add(side.into(), &lines);
        }
    }
    out::print(&format!(
        "{launcher}, over what it does now and over strait, in turns: median of {}\n\n{}",
        options.reps,
        measured.text()
    ))?;
    if let Some(path) = &options.csv {
        std::fs::write(path, measured.csv()).map_err(|e| format!("writing {}: {e}", path.display()))?;
    }
    if let Some(path) = &options.plot {
        mpi_chart::draw(&measured, launcher, path)?;
    }
    Ok(true)
}

fn settings_text() -> String {
    SETTINGS.map(|(name, value)| format!("{name}={value}")).join(" ")
}

/// The compiler of the MPI whose launcher this is.
fn compiler(launcher: &str) -> PathBuf {
    if let Some(named) = std::env::var_os("MPICC") {
        return named.into();
    }
    let program = launcher.split_whitespace().next().unwrap_or_default();
    match program.rsplit_once('/') {
        Some((dir, _)) if Path::new(dir).join("mpicc").exists() => Path::new(dir).join("mpicc"),
        _ => "mpicc".into(),
    }
}

/// The compiled program, which is removed with its directory.
struct Job<'a> {
    launcher: &'a str,
    dir: PathBuf,
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl<'a> Job<'a> {
    fn compile(launcher: &'a str) -> Result<Job<'a>, Error> {
        let dir = std::env::temp_dir().join(format!("strait-perf-mpi-{}", std::process::id()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .map_err(|e| format!("--mpi: {}: {e}; set TMPDIR to a directory with room", dir.display()))?;
        let job = Job { launcher, dir };
        let (source, program) = (job.dir.join("patterns.c"), job.dir.join("patterns"));
        std::fs::write(&source, SOURCE).map_err(|e| format!("--mpi: {}: {e}", source.display()))?;
        let compiler = compiler(launcher);
        let name = compiler.display();
        let made = Command::new(&compiler)
            .args(["-O2", "-o"])
            .args([&program, &source])
            .output()
            .map_err(|e| format!("--mpi: {name}: {e}; set MPICC to the compiler of this MPI"))?;
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr);
            return Err(Error::Failed(format!("--mpi: {name} failed: {}", why.trim())));
        }
        Ok(job)
    }

    /// The lines of one job, and what it wrote to standard error.
    fn run(
        &self,
        strait: bool,
        report: bool,
        seconds: f64,
        sizes: &[usize],
    ) -> Result<(Vec<Line>, String), Error> {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec {} \"$@\"", self.launcher), "sh"]);
        command.arg(self.dir.join("patterns")).arg(seconds.to_string());
        command.args(sizes.iter().map(usize::to_string));
        if strait {
            command.envs(SETTINGS);
            if let Some(dir) = info::own_provider() {
                command.env("FI_PROVIDER_PATH", dir);
            }
        }
        if report {
            command.env("FI_STRAIT_REPORT", "1");
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("--mpi: sh: {e}"))?;
        let (Some(stdout), Some(mut stderr)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(Error::Failed("--mpi: the job has no output".into()));
        };
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let (sent, got) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sent.send(line).is_err() {
                    break;
                }
            }
        });
        let over = if strait { "strait" } else { "what it does now" };
        let mut lines = Vec::new();
        loop {
            match got.recv_timeout(SILENCE) {
                // Launchers print lines of their own.
                Ok(line) => lines.extend(parsed(&line)),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    if let Ok(pid) = libc::pid_t::try_from(child.id()) {
                        // SAFETY: a signal to a child that was not waited for.
                        unsafe { libc::kill(pid, libc::SIGTERM) };
                    }
                    return Err(Error::Failed(format!(
                        "{} over {over}: nothing for {} s",
                        self.launcher,
                        SILENCE.as_secs()
                    )));
                }
            }
        }
        let status = child.wait().map_err(|e| format!("--mpi: {e}"))?;
        let errors = errors.join().unwrap_or_default();
        match status.success() && !lines.is_empty() {
            true => Ok((lines, errors)),
            false => {
                let mut words: Vec<&str> = errors.lines().filter(|line| !line.trim().is_empty()).collect();
                words.truncate(20);
                let words = words.join("\n  ");
                Err(Error::Failed(format!("{} over {over}: {status}\n  {words}", self.launcher)))
            }
        }
    }
}

/// A line of the program's.
fn parsed(line: &str) -> Option<Line> {
    let mut words = line.split_whitespace();
    let (name, size, micros) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    (words.next().is_none() && f64::is_finite(micros) && micros > 0.0)
        .then(|| (name.to_owned(), size, micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_launchers_are_none_of_the_program() {
        assert_eq!(parsed("ring 8 0.5"), Some(("ring".into(), 8, 0.5)));
        for line in ["", "ring 8", "ring x 0.5", "ring 8 0.5 more", "ring 8 nan", "ring 8 -1", "ring 8 0"] {
            assert_eq!(parsed(line), None, "{line}");
        }
    }

    #[test]
    fn the_compiler_is_that_beside_the_launcher() {
        if std::env::var_os("MPICC").is_none() {
            assert_eq!(compiler("mpirun -n 2"), PathBuf::from("mpicc"));
            assert_eq!(compiler("/nowhere/mpirun"), PathBuf::from("mpicc"));
        }
    }
}
