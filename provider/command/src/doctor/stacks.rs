//! What is installed of Strait, and which libraries of this host would take it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::find::{self, Kind};
use super::finding::{Finding, Level};
use crate::out::quoted;

/// How long a look at one library may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The files of this installation.
pub fn installed() -> Vec<Finding> {
    const AREA: &str = "installed";
    let program = std::env::current_exe().unwrap_or_default();
    let mut findings = vec![Finding::ok(AREA, format!("command    {}", program.display()))];
    findings.push(match crate::info::nearby_provider() {
        Some(dir) => Finding::ok(AREA, format!("provider   {}", dir.join(crate::info::FILE).display())),
        None => Finding::new(AREA, Level::Note, format!("no {} near this program", crate::info::FILE))
            .means("libfabric finds it only where FI_PROVIDER_PATH or its own directory has it")
            .cure("install libstrait-fi (rpm: strait-libfabric), or move the command with its libraries"),
    });
    findings.push(match crate::ucx_env::plugins() {
        Ok(dir) => Finding::ok(AREA, format!("transport  {}", dir.join(crate::ucx_env::FILE).display())),
        Err(why) => Finding::new(AREA, Level::Note, why)
            .means("`strait ucx-env` has nothing to turn on")
            .cure("install libuct-strait (rpm: strait-ucx), or move the command with its libraries"),
    });
    for (file, what, package) in LIBRARIES {
        findings.push(match beside(&program, file) {
            Some(path) => Finding::ok(AREA, format!("library    {}", path.display())),
            None => Finding::ok(AREA, format!("no {file} ({package}): only {what} need it")),
        });
    }
    findings
}

/// The libraries that programs link: file, which programs, Debian's package.
const LIBRARIES: [(&str, &str, &str); 4] = [
    ("libstrait.so.0", "programs with memory of their own kind, or files", "libstrait0; rpm: libstrait"),
    ("libstrait_xpu.so.0", "programs with kernels that send", "libstrait-xpu0; rpm: libstrait_xpu"),
    ("libstrait_rpipe.so.0", "programs with pipes", "libstrait-rpipe0; rpm: libstrait_rpipe"),
    ("strait/libstrait_mpi.so.0", "programs with device memory in MPI", "libstrait-mpi; rpm: strait-mpi"),
];

/// A library of this installation or build.
fn beside(program: &Path, file: &str) -> Option<PathBuf> {
    let bin = program.parent()?;
    let places = std::iter::once(bin.join("..")).chain(crate::info::libraries(bin));
    places.map(|dir| dir.join(file)).find(|path| path.exists()).and_then(|path| {
        // As it is linked: the directory as it is, the link's own name.
        Some(path.parent()?.canonicalize().ok()?.join(file))
    })
}

/// libfabric, UCX and MPI libraries.
pub fn stacks() -> Vec<Finding> {
    let [fabrics, ucx, mpi] = [Kind::Libfabric, Kind::Ucx, Kind::Mpi].map(find::all);
    let mut findings = Vec::new();
    let usual = info_of(None);
    let found = usual["libfabric"]["path"].as_str().and_then(|path| Path::new(path).canonicalize().ok());
    let needs_path = usual["with_path"].as_str().map(str::to_owned);
    if found.is_some() {
        findings.push(libfabric(&usual, true));
    }
    for path in fabrics.iter().filter(|path| Some(*path) != found.as_ref()) {
        findings.push(libfabric(&info_of(Some(path)), false));
    }
    for path in &ucx {
        findings.push(ucx_of(path));
    }
    findings.extend(mpi.iter().map(|path| mpi_of(path, needs_path.as_deref())));
    if findings.is_empty() {
        findings.push(
            Finding::new("libraries", Level::Problem, "no libfabric, no UCX and no MPI library")
                .means("there is nothing here that could use Strait")
                .cure("install one, or name its directory in LD_LIBRARY_PATH"),
        );
    }
    findings
}

/// What `strait info` says of a libfabric: in a process of its own, since one process has one libfabric.
fn info_of(library: Option<&Path>) -> Value {
    let mut args = vec!["info".into(), "--json".into()];
    if let Some(path) = library {
        args.extend(["--libfabric".into(), path.as_os_str().to_owned()]);
    }
    let asked = std::env::var_os("FI_PROVIDER_PATH").is_some_and(|path| !path.is_empty());
    let mut value = ask(&args, None);
    // Where it is found once its directory is named, that is what to do.
    if let (Some(dir), false, Some(false)) =
        (crate::info::nearby_provider(), asked, value["provider"]["offered"].as_bool())
    {
        let again = ask(&args, Some(&dir));
        if again["provider"]["offered"] == true {
            value["with_path"] = Value::from(dir.display().to_string());
            value["provider"]["version"] = again["provider"]["version"].clone();
        }
    }
    value
}

fn ask(args: &[std::ffi::OsString], path: Option<&Path>) -> Value {
    let mut command = Command::new(std::env::current_exe().unwrap_or_default());
    command.args(args).stderr(Stdio::null());
    if let Some(dir) = path {
        command.env("FI_PROVIDER_PATH", dir);
    }
    let (_, text) = patiently(command);
    serde_json::from_str(&text).unwrap_or_default()
}

/// The exit status and output of a program that may hang; `None` if it did, or could not be started.
fn patiently(mut command: Command) -> (Option<i32>, String) {
    let Ok(mut child) = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() else {
        return (None, String::new());
    };
    let Some(mut out) = child.stdout.take() else { return (None, String::new()) };
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = std::io::Read::read_to_end(&mut out, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let end = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.code(),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
        }
    };
    (status, reader.join().unwrap_or_default())
}

fn libfabric(seen: &Value, usual: bool) -> Finding {
    const AREA: &str = "libfabric";
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let (path, version) = (text(&seen["libfabric"]["path"]), text(&seen["libfabric"]["version"]));
    if seen["libfabric"]["found"] != true {
        let why = seen["libfabric"]["error"].as_str().unwrap_or("it does not answer");
        return Finding::new(AREA, Level::Note, format!("a libfabric that cannot be loaded: {why}"));
    }
    let head = format!("{version} in {path}");
    if seen["provider"]["offered"] == true {
        let by = seen["provider"]["path"].as_str().unwrap_or("?");
        return Finding::ok(AREA, format!("{head}: takes {by}")).cure("to use it: FI_PROVIDER=strait");
    }
    if let Some(dir) = seen["with_path"].as_str() {
        let level = Level::Note;
        return Finding::new(AREA, level, format!("{head}: does not look where the provider is"))
            .means("programs that use it pass Strait over in silence")
            .cure(format!("FI_PROVIDER_PATH={} FI_PROVIDER=strait", quoted(dir)));
    }
    let advice = seen["provider"]["advice"].as_array().cloned().unwrap_or_default();
    let lines: Vec<String> = advice.iter().map(text).collect();
    let level = if usual { Level::Problem } else { Level::Note };
    Finding::new(AREA, level, format!("{head}: does not offer strait"))
        .means("programs that use it pass Strait over in silence")
        .cure(lines.join("\n"))
}

fn ucx_of(path: &Path) -> Finding {
    const AREA: &str = "UCX";
    let mut command = Command::new(std::env::current_exe().unwrap_or_default());
    command.arg("ucx-env").arg("--ucx").arg(path).stderr(Stdio::piped());
    let output = command.stdin(Stdio::null()).output();
    let Ok(output) = output else {
        return Finding::new(AREA, Level::Note, format!("{}: cannot be looked at", path.display()));
    };
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    match out.lines().next().and_then(|line| line.strip_prefix("# UCX ")) {
        Some(line) if output.status.success() => {
            let entry = if out.contains("UCX_PLUGIN_PATH=") { "UCX_PLUGIN_PATH" } else { "LD_PRELOAD" };
            Finding::ok(AREA, format!("{line}: takes the transport by {entry}")).cure(format!(
                "to use it: eval \"$(strait ucx-env --ucx {})\"",
                quoted(&path.to_string_lossy())
            ))
        }
        _ => {
            let why = String::from_utf8_lossy(&output.stderr);
            let why = why.trim().trim_start_matches("strait: ").to_owned();
            Finding::new(AREA, Level::Note, format!("{}: does not take the transport", path.display()))
                .means(why)
        }
    }
}

/// An MPI library, by what its file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mpi {
    Open,
    Mpich,
    Intel,
    Unknown,
}

/// `provider`: the directory that libfabric does not look into by itself.
fn mpi_of(path: &Path, provider: Option<&str>) -> Finding {
    const AREA: &str = "MPI";
    let bytes = std::fs::read(path).unwrap_or_default();
    let (mpi, version) = identify(&bytes);
    let at = path.display();
    let dir = path.parent().unwrap_or(Path::new("/"));
    // Intel MPI has a libfabric of its own, which never looks where the system's does.
    let own =
        provider.map(str::to_owned).or_else(|| Some(crate::info::nearby_provider()?.display().to_string()));
    let own = own.map_or_else(|| "DIRECTORY".into(), |dir| quoted(&dir));
    let (there, handed_on) = provider.map_or_else(Default::default, |dir| {
        (format!("FI_PROVIDER_PATH={} ", quoted(dir)), " -x FI_PROVIDER_PATH")
    });
    let settings = match mpi {
        Mpi::Open if has_component(dir, &bytes, "mtl_ofi") => {
            format!("{there}mpirun{handed_on} -x FI_PROVIDER=strait --mca pml cm --mca mtl ofi PROGRAM")
        }
        Mpi::Open if has_component(dir, &bytes, "pml_ucx") => {
            "eval \"$(strait ucx-env)\"; mpirun --mca pml ucx --mca osc ucx --mca pml_ucx_tls any --mca pml_ucx_devices \
             any PROGRAM"
                .into()
        }
        Mpi::Open => {
            return Finding::new(
                AREA,
                Level::Note,
                format!("{version} in {at}: built without libfabric and UCX"),
            )
            .means("it cannot use Strait")
            .cure("a build --with-ofi or --with-ucx");
        }
        Mpi::Mpich if contains(&bytes, b"MPIDI_OFI_") => {
            format!(
                "{there}FI_PROVIDER=strait MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 mpiexec PROGRAM"
            )
        }
        Mpi::Mpich => {
            "eval \"$(strait ucx-env)\"; MPIR_CVAR_CH4_NETMOD=ucx MPIR_CVAR_NOLOCAL=1 mpiexec PROGRAM".into()
        }
        Mpi::Intel => {
            format!("I_MPI_FABRICS=ofi I_MPI_OFI_PROVIDER=strait FI_PROVIDER_PATH={own} mpiexec PROGRAM")
        }
        Mpi::Unknown => {
            return Finding::new(AREA, Level::Note, format!("{at}: of a kind that is not known here"))
                .cure("its manual says how it chooses a libfabric provider or a UCX transport");
        }
    };
    Finding::ok(AREA, format!("{version} in {at}")).cure(format!("to use Strait: {settings}"))
}

fn identify(bytes: &[u8]) -> (Mpi, String) {
    for (mark, mpi, name) in [
        (&b"Intel(R) MPI Library"[..], Mpi::Intel, "Intel MPI"),
        (b"Open MPI v", Mpi::Open, "Open MPI"),
        (b"MPICH Version:", Mpi::Mpich, "MPICH"),
    ] {
        if let Some(at) = position(bytes, mark) {
            let rest = &bytes[at + mark.len()..];
            let number = |b: &&u8| b.is_ascii_digit() || **b == b'.';
            let digits: Vec<u8> = rest.iter().take_while(number).take(20).copied().collect();
            let version = String::from_utf8_lossy(&digits).into_owned();
            return (mpi, format!("{name} {version}").trim_end().to_owned());
        }
    }
    (Mpi::Unknown, "an MPI library".into())
}

/// Whether this Open MPI has a component: as a file in its directory of components, or inside the library.
fn has_component(dir: &Path, bytes: &[u8], name: &str) -> bool {
    let file = format!("mca_{name}.so");
    let places: [PathBuf; 4] =
        ["openmpi", "openmpi3", "openmpi/lib/openmpi3", "openmpi/lib/openmpi"].map(|p| dir.join(p));
    places.iter().any(|place| place.join(&file).exists())
        || contains(bytes, format!("mca_{name}_component").as_bytes())
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    position(bytes, part).is_some()
}

fn position(bytes: &[u8], part: &[u8]) -> Option<usize> {
    let first = *part.first()?;
    let mut at = 0;
    while let Some(next) = bytes[at..].iter().position(|b| *b == first) {
        at += next;
        if bytes[at..].starts_with(part) {
            return Some(at);
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_say_what_they_are() {
        assert_eq!(identify(b"\0xOpen MPI v4.1.4, package"), (Mpi::Open, "Open MPI 4.1.4".into()));
        assert_eq!(identify(b"MPICH Version:      %s"), (Mpi::Mpich, "MPICH".into()));
        assert_eq!(identify(b"MPICH Version:\0Intel(R) MPI Library 2021"), (Mpi::Intel, "Intel MPI".into()));
        assert_eq!(identify(b"").0, Mpi::Unknown);
        assert_eq!(position(b"aab", b"ab"), Some(1));
        assert_eq!(position(b"aa", b"aaa"), None);
    }

    #[test]
    fn libraries_are_found_beside_the_command() {
        let top = std::env::temp_dir().join(format!("strait-beside-{}", std::process::id()));
        std::fs::create_dir_all(top.join("bin")).unwrap();
        std::fs::create_dir_all(top.join("lib64")).unwrap();
        let program = top.join("bin/strait");
        assert_eq!(beside(&program, "libstrait.so.0"), None);
        std::fs::write(top.join("lib64/libstrait.so.0"), "").unwrap();
        let found = beside(&program, "libstrait.so.0");
        assert_eq!(found, Some(top.canonicalize().unwrap().join("lib64/libstrait.so.0")));
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn what_hangs_is_given_up() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo here; exit 3"]);
        assert_eq!(patiently(command), (Some(3), "here\n".into()));
        assert_eq!(patiently(Command::new("/nonexistent")), (None, String::new()));
    }

    #[test]
    fn a_libfabric_is_judged_by_what_info_says() {
        let seen = serde_json::json!({
            "libfabric": {"found": true, "path": "/x/libfabric.so.1", "version": "1.17"},
            "provider": {"offered": true, "path": "/y/libstrait-fi.so"}
        });
        assert_eq!(libfabric(&seen, true).level, Level::Ok);
        let mut passed_over = seen.clone();
        passed_over["provider"] =
            serde_json::json!({"offered": false, "advice": ["FI_PROVIDER=shm keeps it out"]});
        let finding = libfabric(&passed_over, true);
        assert_eq!(
            (finding.level, finding.cure.as_deref()),
            (Level::Problem, Some("FI_PROVIDER=shm keeps it out"))
        );
        assert_eq!(libfabric(&passed_over, false).level, Level::Note);
        for (dir, word) in [("/y", "FI_PROVIDER_PATH=/y "), ("/y z", "FI_PROVIDER_PATH='/y z' ")] {
            passed_over["with_path"] = dir.into();
            let finding = libfabric(&passed_over, true);
            assert!(finding.level == Level::Note && finding.cure.unwrap().contains(word), "{word}");
        }
        assert_eq!(libfabric(&Value::Null, true).level, Level::Note);
    }
}
