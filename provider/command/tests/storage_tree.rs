//! `strait storage --copy` of a directory: contents, permissions, what is refused and what is left out.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A directory on the disk of the build, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    /// With a directory `from`: 100 files of a few bytes, 3 of some mebibytes, and one of none, on two levels.
    fn new(name: &str) -> Scratch {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let top = Scratch(dir.join(format!("tree-{name}-{}", std::process::id())));
        let from = top.from();
        std::fs::create_dir_all(from.join("shards/empty")).unwrap();
        for n in 0..100 {
            std::fs::write(from.join(format!("small-{n}")), content(n, n * 97)).unwrap();
        }
        for (n, len) in [(0, 3 << 20), (1, (9 << 20) + 5), (2, 40 << 20), (3, 0)] {
            std::fs::write(from.join(format!("shards/model-{n}.bin")), content(n, len)).unwrap();
        }
        let mode = std::fs::Permissions::from_mode(0o500);
        std::fs::set_permissions(from.join("small-7"), mode.clone()).unwrap();
        std::fs::set_permissions(from.join("shards/empty"), mode).unwrap();
        top
    }

    fn from(&self) -> PathBuf {
        self.0.join("from")
    }

    fn to(&self) -> PathBuf {
        self.0.join("to")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn content(of: usize, len: usize) -> Vec<u8> {
    (0..len).map(|n| (of * 31 + n * 7 + (n >> 8) * 13 + (n >> 16)) as u8).collect()
}

fn copy(from: &Path, to: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.arg("storage").arg("--copy").arg(to).args(more).arg(from).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Paths below a directory, with the contents and permissions of files.
fn listed(top: &Path) -> Vec<(PathBuf, Option<Vec<u8>>, u32)> {
    let (mut found, mut open) = (Vec::new(), vec![top.to_owned()]);
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let of = std::fs::symlink_metadata(&path).unwrap();
            let bytes = of.is_file().then(|| std::fs::read(&path).unwrap());
            if of.is_dir() {
                open.push(path.clone());
            }
            found.push((path.strip_prefix(top).unwrap().to_owned(), bytes, of.permissions().mode() & 0o777));
        }
    }
    found.sort();
    found
}

#[test]
fn a_directory_is_copied_with_all_that_is_in_it() {
    let top = Scratch::new("all");
    let output = copy(&top.from(), &top.to(), &["--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let bytes = (0..100).map(|n| n * 97).sum::<u64>() + (52 << 20) + 5;
    assert_eq!((&found["files"], &found["directories"]), (&104.into(), &2.into()), "{found}");
    assert_eq!((&found["bytes"], &found["right"]), (&bytes.into(), &true.into()), "{found}");
    assert!(listed(&top.from()) == listed(&top.to()), "the copy is another one");
    // What is there is not written over.
    let before = listed(&top.to());
    let again = copy(&top.from(), &top.to(), &[]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("is there already"), "{}", text(&again.stderr));
    assert!(before == listed(&top.to()));
}

#[test]
fn links_and_what_is_no_file_are_refused_by_name_or_left_out_and_named() {
    let top = Scratch::new("links");
    let names = ["from/link", "from/shards/link-to-none", "from/socket"].map(|name| top.0.join(name));
    symlink("small-1", &names[0]).unwrap();
    symlink("/none/such", &names[1]).unwrap();
    // The path of a socket is short: it is made where its directory is current.
    let done = Command::new("python3")
        .current_dir(top.from())
        .args(["-c", "import socket; socket.socket(socket.AF_UNIX).bind('socket')"])
        .status();
    if !done.is_ok_and(|done| done.success()) {
        drop(UnixListener::bind(&names[2]).unwrap());
    }
    let refused = copy(&top.from(), &top.to(), &[]);
    let why = text(&refused.stderr);
    assert!(refused.status.code() == Some(1) && !top.to().exists(), "{why}");
    for (name, what) in names.iter().zip(["a symbolic link", "a symbolic link", "a socket"]) {
        assert!(why.contains(&format!("{} ({what})", name.display())), "{name:?}: {why}");
    }
    let output = copy(&top.from(), &top.to(), &["--files-only"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for name in &names {
        assert!(text(&output.stdout).contains(name.to_str().unwrap()), "{}", text(&output.stdout));
        std::fs::remove_file(name).unwrap();
    }
    assert!(listed(&top.from()) == listed(&top.to()), "the copy is another one");
}

#[test]
fn a_copy_says_how_far_it_is_and_which_file_fails() {
    let top = Scratch::new("fails");
    let output = copy(&top.from(), &top.to(), &["--progress", "--no-direct"]);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("104 of 104 files"), "{said}");
    // A directory is not copied into itself, nor to where there is no place.
    let inside = copy(&top.from(), &top.from().join("shards/to"), &[]);
    assert!(inside.status.code() == Some(1) && text(&inside.stderr).contains("inside of"));
    let nowhere = copy(&top.from(), &top.0.join("none/to"), &[]);
    assert!(nowhere.status.code() == Some(1) && text(&nowhere.stderr).contains("none"));
    let sized = copy(&top.from(), &top.0.join("other"), &["--size", "1MiB"]);
    assert!(sized.status.code() == Some(1) && text(&sized.stderr).contains("--size"));
    // Where the files may not be longer than so much, that of the first which is.
    let limited = Command::new("sh")
        .args(["-c", "ulimit -f 8192; exec \"$0\" storage --copy \"$2\" \"$1\""])
        .arg(env!("CARGO_BIN_EXE_strait"))
        .args([top.from(), top.0.join("limited")])
        .output()
        .unwrap();
    let why = text(&limited.stderr);
    assert!(limited.status.code() == Some(1) && why.contains("limited/shards/model-"), "{why}");
    // What it has left is for this user alone: it does not have the permissions of what was to be copied yet.
    let mode = |path: &Path| std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    let left = top.0.join("limited");
    assert_eq!(mode(&left), 0o700);
    for (path, bytes, found) in listed(&left) {
        assert_eq!(found, if bytes.is_some() { 0o600 } else { 0o700 }, "{path:?}");
    }
}

#[test]
fn a_copy_takes_few_descriptors_and_gives_nobody_a_users_rights() {
    let top = Scratch::new("few");
    let special = top.from().join("special");
    std::fs::write(&special, "x").unwrap();
    std::fs::set_permissions(&special, std::fs::Permissions::from_mode(0o6755)).unwrap();
    let output = Command::new("sh")
        .args(["-c", "ulimit -n 100; exec \"$0\" storage --copy \"$2\" \"$1\""])
        .arg(env!("CARGO_BIN_EXE_strait"))
        .args([top.from(), top.to()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(listed(&top.from()) == listed(&top.to()), "the copy is another one");
    let mode = std::fs::metadata(top.to().join("special")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755, "{mode:o}");
}

#[test]
fn names_are_printed_without_their_control_characters() {
    let top = Scratch::new("names");
    symlink("small-1", top.from().join("x\u{1b}[2J\nstrait: contents right")).unwrap();
    let refused = copy(&top.from(), &top.to(), &[]);
    let left_out = copy(&top.from(), &top.to(), &["--files-only"]);
    assert!(refused.status.code() == Some(1) && left_out.status.success());
    for said in [text(&refused.stderr), text(&left_out.stdout)] {
        assert!(said.contains(r"x\u{1b}[2J\nstrait: contents right"), "{said}");
        assert!(!said.contains('\u{1b}'), "{said}");
    }
}

/// A tree whose first file takes long, and its last one, `z`; a file outside of it that is not to be touched.
struct Race {
    top: PathBuf,
    victim: PathBuf,
}

impl Race {
    fn new(name: &str) -> Race {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let top = dir.join(format!("race-{name}-{}", std::process::id()));
        let race = Race { victim: top.join("victim"), top };
        std::fs::create_dir_all(race.top.join("from")).unwrap();
        let long = std::fs::File::create(race.top.join("from/a")).unwrap();
        long.set_len(160 << 20).unwrap();
        std::fs::write(race.top.join("from/z"), "other").unwrap();
        std::fs::set_permissions(race.top.join("from/z"), std::fs::Permissions::from_mode(0o666)).unwrap();
        std::fs::write(&race.victim, "mine!").unwrap();
        std::fs::set_permissions(&race.victim, std::fs::Permissions::from_mode(0o600)).unwrap();
        race
    }

    /// Copies; `change` is done when the first file is being written.
    fn copy(&self, change: impl FnOnce(&Path) + Send) -> Output {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let first = self.top.join("to/a");
                while !first.exists() {
                    std::thread::yield_now();
                }
                change(&self.top);
            });
            copy(&self.top.join("from"), &self.top.join("to"), &[])
        })
    }
}

impl Drop for Race {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.top);
    }
}

#[test]
fn what_takes_the_place_of_the_copy_is_not_written_to() {
    let race = Race::new("to");
    let evil = race.top.join("evil");
    std::fs::create_dir(&evil).unwrap();
    std::fs::write(evil.join("a"), "").unwrap();
    symlink(&race.victim, evil.join("z")).unwrap();
    let output = race.copy(|top| {
        std::fs::rename(top.join("to"), top.join("moved")).unwrap();
        std::fs::rename(top.join("evil"), top.join("to")).unwrap();
    });
    assert_eq!(std::fs::read_to_string(&race.victim).unwrap(), "mine!");
    assert_eq!(std::fs::metadata(&race.victim).unwrap().permissions().mode() & 0o777, 0o600);
    // It is in the directory that was made, wherever that is now.
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_to_string(race.top.join("moved/z")).unwrap(), "other");
}

#[test]
fn a_link_that_takes_a_files_place_is_not_followed() {
    let race = Race::new("from");
    let output = race.copy(|top| {
        symlink(&race.victim, top.join("link")).unwrap();
        std::fs::rename(top.join("link"), top.join("from/z")).unwrap();
    });
    let why = text(&output.stderr);
    assert!(output.status.code() == Some(1) && why.contains("from/z"), "{why}");
    assert!(!race.top.join("to/z").exists());
}
