//! `strait storage`: which way a file's bytes take to memory of a kind and back, why, and how fast; whether
//! they arrive right.

pub mod cuda;
mod dir;
mod files;
mod memory;
mod tree;
mod walk;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::io::{IsTerminal, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{ArgAction, Args};
use p2pmem::rules;
use p2pmem::storage::{File, Options as How, Report, Way};
use serde::Serialize;

use crate::fabric::Error;
use crate::{out, picture, values};
use dir::Dir;
use files::{MOST, failed, named, permit, same, shown};
use memory::Memory;
pub use memory::Place;

#[derive(Args, Debug, PartialEq)]
#[command(after_help = "\
Reads FILE, or a disk, to memory, and says by which path of strait_storage(7), why by no better one, how many bytes went by
each, and the 10^6 bytes a second. Contents are compared with what read(2) has.

Exits with 0 if the contents are right, with 1 if not or if something failed, with 2 for wrong usage.

Examples:
  strait storage --memory cuda:0 checkpoint.bin
  strait storage --memory nvme0 --create --size 16MiB /mnt/fast/probe
  strait storage --memory cuda --copy /mnt/b/model.bin /mnt/a/model.bin
  strait storage --memory cuda --copy /mnt/b/model /mnt/a/model")]
pub struct Options {
    pub file: PathBuf,
    /// host, cuda, cuda:N, or a device that publishes memory (`strait topo`)
    #[arg(long = "memory", value_name = "KIND", default_value = "host")]
    pub place: Place,
    /// so much, with KiB, MiB, GiB or TiB; default: 64MiB, with --copy all of it
    #[arg(long, value_parser = size)]
    pub size: Option<u64>,
    /// times
    #[arg(long, value_name = "N", default_value = "3", value_parser = values::count(1, 1000))]
    pub reps: usize,
    /// makes FILE, which must not be there, writes it from the memory, reads it back, and removes it
    #[arg(long, conflicts_with = "copy")]
    pub create: bool,
    /// copies FILE, or a directory with all that is in it, to PATH, which must not be there, through the
    /// memory, and compares them
    #[arg(long, value_name = "PATH")]
    pub copy: Option<PathBuf>,
    /// of a directory that is copied: leave out and name links, pipes, sockets and devices, which else are
    /// refused
    #[arg(long, requires = "copy")]
    pub files_only: bool,
    /// say how far a copy of a directory is, also where standard error is no terminal
    #[arg(long, requires = "copy")]
    pub progress: bool,
    /// without O_DIRECT
    #[arg(long = "no-direct", action = ArgAction::SetFalse)]
    pub direct: bool,
    /// without cuFile
    #[arg(long = "no-cufile", action = ArgAction::SetFalse)]
    pub cufile: bool,
    /// publishers are looked for there
    #[arg(long, value_name = "PATH", default_value = "/sys")]
    pub sysfs: PathBuf,
    /// print JSON
    #[arg(long)]
    pub json: bool,
}

fn size(text: &str) -> Result<u64, String> {
    match rules::size(text)? {
        0 => Err("0 bytes show nothing".into()),
        size => Ok(size),
    }
}

/// What was found.
#[derive(Serialize)]
struct Found {
    file: String,
    memory: String,
    /// Of the file, each time.
    bytes: u64,
    read: Option<Direction>,
    write: Option<Direction>,
    /// Whether the contents are right.
    right: bool,
}

/// What one direction took.
#[derive(Default, Serialize)]
struct Direction {
    path: Option<&'static str>,
    why: String,
    bytes_by_path: BTreeMap<&'static str, u64>,
    /// 10^6 bytes a second, each time.
    rates: Vec<f64>,
}

impl Direction {
    fn new(report: &Report, before: [u64; 4], rates: Vec<f64>) -> Direction {
        let by = Way::ALL.map(|way| (way.name(), report.bytes[way as usize] - before[way as usize]));
        Direction {
            path: report.last.map(Way::name),
            why: report.why.clone(),
            bytes_by_path: by.into_iter().filter(|(_, bytes)| *bytes > 0).collect(),
            rates,
        }
    }
}

pub fn run(options: &Options) -> Result<bool, Error> {
    // A file that may not become so long is an error with a name, and not the end of this process.
    // SAFETY: nothing here handles the signal.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if let Some(to) = options.copy.as_ref().filter(|_| options.file.is_dir()) {
        let Options { direct, cufile, .. } = *options;
        let how = How { direct, cufile, ..How::default() };
        let (place, sysfs) = (&options.place, options.sysfs.as_path());
        let progress = !options.json && (options.progress || std::io::stderr().is_terminal());
        if options.size.is_some() {
            return Err(failed(format!(
                "{}: --size is for a file, and this is a directory",
                options.file.display()
            )));
        }
        let asked = tree::Asked {
            from: &options.file,
            to,
            place,
            sysfs,
            how,
            files_only: options.files_only,
            progress,
        };
        let copied = tree::copy(&asked)?;
        out::print(&match options.json {
            true => serde_json::to_string_pretty(&copied).map_err(failed)? + "\n",
            false => copied.text(),
        })?;
        return Ok(copied.is_right());
    }
    let found = match (&options.copy, options.create) {
        (Some(to), _) => copy(options, to),
        (None, true) => create(options),
        (None, false) => read(options),
    }?;
    if options.json {
        out::print(&(serde_json::to_string_pretty(&found).map_err(failed)? + "\n"))?;
    } else {
        out::print(&text(&found))?;
    }
    Ok(found.right)
}

fn how(options: &Options, write: bool) -> How {
    How { write, create: false, direct: options.direct, cufile: options.cufile }
}

/// The file or the disk that the caller has named, and its length.
fn open(options: &Options) -> Result<(File, fs::File, u64), Error> {
    let path = &options.file;
    let file = File::open(path, how(options, false)).map_err(failed)?;
    let mut plain = fs::File::from(file.as_fd().try_clone_to_owned().map_err(named(path))?);
    let length = plain.seek(SeekFrom::End(0)).map_err(named(path))?;
    Ok((file, plain, length))
}

/// A file that was not there, for this user alone.
struct Made {
    dir: Dir,
    name: OsString,
    file: File,
    plain: fs::File,
}

impl Made {
    fn new(options: &Options, path: &Path) -> Result<Made, Error> {
        let (dir, name) = Dir::of(path)?;
        let plain = dir.make_file(Path::new(name))?;
        let fd = plain.try_clone().map_err(named(path))?.into();
        let file = File::of(fd, path, how(options, true)).map_err(failed)?;
        Ok(Made { name: name.to_owned(), dir, file, plain })
    }
}

/// One that is removed on drop.
struct Passing(Made);

impl Drop for Passing {
    fn drop(&mut self) {
        let _ = self.0.dir.remove(&self.0.name);
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + (n >> 8) * 13 + (n >> 16)) as u8).collect()
}

/// Reads the beginning of the file, as often as requested.
fn read(options: &Options) -> Result<Found, Error> {
    let (file, plain, length) = open(options)?;
    let bytes = length.min(options.size.unwrap_or(MOST));
    if bytes == 0 {
        return Err(failed(format!("{}: it is empty, which shows nothing", options.file.display())));
    }
    let memory = Memory::new(&options.place, &options.sysfs, bytes)?;
    let read = measure(options, &file, &memory, false)?;
    let mut want = vec![0; bytes as usize];
    plain.read_exact_at(&mut want, 0).map_err(named(&options.file))?;
    let right = memory.get(bytes as usize)? == want;
    Ok(found(options, bytes, Some(read), None, right))
}

/// Makes the file, writes it from the memory, reads it back and removes it.
fn create(options: &Options) -> Result<Found, Error> {
    let bytes = options.size.unwrap_or(MOST);
    let memory = Memory::new(&options.place, &options.sysfs, bytes)?;
    let made = Passing(Made::new(options, &options.file)?);
    let (file, plain) = (&made.0.file, &made.0.plain);
    let want = pattern(bytes as usize);
    memory.put(&want)?;
    let write = measure(options, file, &memory, true)?;
    memory.put(&vec![0; bytes as usize])?;
    let read = measure(options, file, &memory, false)?;
    let mut is = vec![0; bytes as usize];
    plain.read_exact_at(&mut is, 0).map_err(named(&options.file))?;
    let right = memory.get(bytes as usize)? == want && is == want;
    Ok(found(options, bytes, Some(read), Some(write), right))
}

/// Copies the file to another one through the memory, and compares them.
fn copy(options: &Options, to: &Path) -> Result<Found, Error> {
    let (from, plain, whole) = open(options)?;
    let bytes = whole.min(options.size.unwrap_or(whole));
    let memory = Memory::new(&options.place, &options.sysfs, bytes.clamp(1, MOST))?;
    let made = Made::new(options, to)?;
    let into = &made.file;
    let (mut at, mut took) = (0, [0.0; 2]);
    while at < bytes {
        let len = (bytes - at).min(MOST) as usize;
        let begin = Instant::now();
        // SAFETY: memory of that length, which stays.
        let got = unsafe { from.read(memory.addr(), len, at) }.map_err(failed)?;
        took[0] += begin.elapsed().as_secs_f64();
        if got != len {
            return Err(failed(format!(
                "{}: it ends after {} bytes",
                options.file.display(),
                at + got as u64
            )));
        }
        let begin = Instant::now();
        // SAFETY: memory of that length, which stays.
        let put = unsafe { into.write(memory.addr(), len, at) }.map_err(failed)?;
        took[1] += begin.elapsed().as_secs_f64();
        at += put as u64;
    }
    let rate = |took: f64| if bytes > 0 { vec![bytes as f64 / took / 1e6] } else { Vec::new() };
    let read = Direction::new(&from.report(), [0; 4], rate(took[0]));
    let write = Direction::new(&into.report(), [0; 4], rate(took[1]));
    let right = same(&plain, &made.plain, &options.file, bytes)?;
    let of = plain.metadata().map_err(named(&options.file))?;
    // The permissions of a disk are not for a file.
    if of.is_file() {
        permit(&made.plain, &of, to)?;
    }
    Ok(found(options, bytes, Some(read), Some(write), right))
}

/// One direction, several times.
fn measure(options: &Options, file: &File, memory: &Memory, write: bool) -> Result<Direction, Error> {
    let (before, mut rates) = (file.report().bytes, Vec::new());
    for _ in 0..options.reps {
        let begin = Instant::now();
        // SAFETY: memory of that length, which stays.
        let done = unsafe {
            match write {
                true => file.write(memory.addr(), memory.len(), 0),
                false => file.read(memory.addr(), memory.len(), 0),
            }
        };
        let done = done.map_err(|e| failed(format!("{}: {e}", options.file.display())))?;
        rates.push(done as f64 / begin.elapsed().as_secs_f64() / 1e6);
        if done != memory.len() {
            return Err(failed(format!("{}: {done} bytes, not {}", options.file.display(), memory.len())));
        }
    }
    Ok(Direction::new(&file.report(), before, rates))
}

fn found(
    options: &Options,
    bytes: u64,
    read: Option<Direction>,
    write: Option<Direction>,
    right: bool,
) -> Found {
    Found {
        file: options.file.display().to_string(),
        memory: options.place.to_string(),
        bytes,
        read,
        write,
        right,
    }
}

fn text(found: &Found) -> String {
    let mut text =
        format!("{}: {} and {} memory\n", shown(&found.file), picture::bytes(found.bytes), found.memory);
    for (what, of) in [("read", &found.read), ("write", &found.write)] {
        let Some(of) = of else { continue };
        let mut rates = of.rates.clone();
        rates.sort_by(f64::total_cmp);
        let _ = write!(text, "  {what:<8} by {}", of.path.unwrap_or("nothing"));
        if let (Some(least), Some(most)) = (rates.first(), rates.last()) {
            let _ = write!(text, ", {:.0} MB/s", rates[rates.len() / 2]);
            if rates.len() > 1 {
                let _ = write!(text, " ({least:.0} to {most:.0})");
            }
        }
        let _ = writeln!(text);
        if !of.why.is_empty() {
            let _ = writeln!(text, "           {}", shown(&of.why));
        }
        let by = of.bytes_by_path.iter().map(|(way, bytes)| format!("{way} {}", picture::bytes(*bytes)));
        let _ = writeln!(text, "           {}", by.collect::<Vec<_>>().join(", "));
    }
    let _ = writeln!(text, "  contents {}", if found.right { "right" } else { "WRONG" });
    text
}
