//! `strait storage --copy` of a directory: many files at once through memory of a kind. While one half of the
//! memory is written to files, the other one is filled from the next.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use p2pmem::storage::{File, Op, Options as How, Request};
use serde::Serialize;

use super::files::{self, MOST, failed, named, same};
use super::memory::{Memory, Place};
use super::walk::{self, Entry, Tree};
use crate::fabric::Error;
use crate::picture;

/// Of the memory at a time: the other half is at work meanwhile.
const HALF: u64 = MOST / 2;
/// Most files open in one half.
const FILES: usize = 64;
/// Between two lines of progress.
const BETWEEN: Duration = Duration::from_millis(500);

/// What is to be copied.
pub(super) struct Asked<'a> {
    pub from: &'a Path,
    pub to: &'a Path,
    pub place: &'a Place,
    pub sysfs: &'a Path,
    pub how: How,
    /// What is neither a file nor a directory is left out.
    pub files_only: bool,
    /// How far it is goes to standard error.
    pub progress: bool,
}

/// What was copied.
#[derive(Serialize)]
pub(super) struct Copied {
    from: String,
    to: String,
    memory: String,
    files: usize,
    directories: usize,
    bytes: u64,
    /// Paths that were left out, each with what it is.
    left_out: Vec<String>,
    /// 10^6 bytes a second, of reading and writing together.
    rate: f64,
    /// Whether all files are what they were copied from.
    right: bool,
}

/// A part of a file that is in one half of the memory.
struct Part<'a> {
    file: &'a Entry,
    offset: u64,
    len: u64,
}

/// Parts of files, one behind the other, that fill a half at most.
struct Parts<'a> {
    files: std::slice::Iter<'a, Entry>,
    /// What is left of a file, from that byte on.
    rest: Option<(&'a Entry, u64)>,
}

impl<'a> Parts<'a> {
    fn next_half(&mut self, most: u64) -> Vec<Part<'a>> {
        let (mut parts, mut bytes) = (Vec::new(), 0);
        while parts.len() < FILES && bytes < most {
            let Some((file, offset)) = self.rest.take().or_else(|| self.files.next().map(|f| (f, 0))) else {
                break;
            };
            let len = (file.len - offset).min(most - bytes);
            if offset + len < file.len {
                self.rest = Some((file, offset + len));
            }
            // The next part begins where a disk can read to by itself.
            bytes += len.next_multiple_of(4096);
            parts.push(Part { file, offset, len });
        }
        parts
    }
}

/// Says how far it is, now and then.
struct Progress {
    shown: bool,
    begin: Instant,
    last: Instant,
    files: usize,
    bytes: u64,
}

impl Progress {
    fn new(shown: bool, tree: &Tree) -> Progress {
        let now = Instant::now();
        Progress { shown, begin: now, last: now, files: tree.files.len(), bytes: tree.bytes() }
    }

    fn say(&mut self, files: usize, bytes: u64) {
        let is_last = files == self.files;
        if !self.shown || (!is_last && self.last.elapsed() < BETWEEN) {
            return;
        }
        self.last = Instant::now();
        let rate = bytes as f64 / self.begin.elapsed().as_secs_f64() / 1e6;
        let (done, all) = (picture::bytes(bytes), picture::bytes(self.bytes));
        let end = if is_last { "\n" } else { "" };
        // Where nothing reads it, nothing is lost.
        let _ = write!(
            std::io::stderr(),
            "\r{files} of {} files, {done} of {all}, {rate:.0} MB/s   {end}",
            self.files
        );
    }
}

/// One half, which is filled and then written.
struct Half<'a> {
    parts: Vec<Part<'a>>,
    request: Request,
}

struct Copy<'a> {
    asked: &'a Asked<'a>,
    memory: Memory,
}

impl<'a> Copy<'a> {
    /// Begins to read, or to write, the parts that one half of the memory has.
    fn begin(&self, parts: Vec<Part<'a>>, half: usize, write: bool) -> Result<Half<'a>, Error> {
        let mut at = self.memory.addr() + half * HALF as usize;
        let mut ops = Vec::with_capacity(parts.len());
        for part in &parts {
            let top = if write { self.asked.to } else { self.asked.from };
            let how = How { write, ..self.asked.how };
            let file = File::open(&top.join(&part.file.path), how).map_err(failed)?;
            ops.push((Arc::new(file), Op { write, addr: at, len: part.len as usize, offset: part.offset }));
            at += part.len.next_multiple_of(4096) as usize;
        }
        // SAFETY: each range is inside of the half, which nothing else uses until the request is done; the
        // memory is dropped after it.
        let request = unsafe { Request::submit_files(&ops) };
        Ok(Half { parts, request })
    }

    /// Waits for it; the parts, all of which have all of their bytes.
    fn end(&self, half: Half<'a>) -> Result<Vec<Part<'a>>, Error> {
        half.request.wait(None);
        for (part, result) in half.parts.iter().zip(half.request.take().unwrap_or_default()) {
            let got = result.map_err(failed)? as u64;
            if got != part.len {
                let name = self.asked.from.join(&part.file.path);
                let at = part.offset + got;
                return Err(failed(format!(
                    "{}: it ends after {at} bytes, not {}",
                    name.display(),
                    part.file.len
                )));
            }
        }
        Ok(half.parts)
    }

    fn all(&self, tree: &'a Tree) -> Result<(), Error> {
        let mut progress = Progress::new(self.asked.progress, tree);
        let mut parts = Parts { files: tree.files.iter(), rest: None };
        let (mut files, mut bytes, mut which) = (0, 0, 0);
        let mut reading = Some(self.begin(parts.next_half(HALF), which, false)?);
        let mut writing: Option<Half<'a>> = None;
        while let Some(half) = reading.take() {
            let read = self.end(half)?;
            let last = read.is_empty();
            if let Some(half) = writing.take() {
                for part in self.end(half)? {
                    files += usize::from(part.offset + part.len == part.file.len);
                    bytes += part.len;
                }
                progress.say(files, bytes);
            }
            if last {
                break;
            }
            // What was read is written, and the half that was written is filled anew.
            writing = Some(self.begin(read, which, true)?);
            which = 1 - which;
            reading = Some(self.begin(parts.next_half(HALF), which, false)?);
        }
        Ok(())
    }
}

/// Makes the directories and the files, empty.
fn make(to: &Path, tree: &Tree) -> Result<(), Error> {
    let all = std::iter::once(Path::new("")).chain(tree.directories.iter().map(PathBuf::as_path));
    for directory in all {
        let path = to.join(directory);
        std::fs::create_dir(&path).map_err(named(&path))?;
    }
    for file in &tree.files {
        files::make(&to.join(&file.path))?;
    }
    Ok(())
}

/// The permissions of all that was copied, innermost first: a directory may be one without writers.
fn permit(from: &Path, to: &Path, tree: &Tree) -> Result<(), Error> {
    let files = tree.files.iter().map(|file| file.path.as_path());
    let directories = tree.directories.iter().rev().map(PathBuf::as_path);
    for path in files.chain(directories).chain(std::iter::once(Path::new(""))) {
        let of = walk::metadata(&from.join(path))?;
        let path = to.join(path);
        std::fs::set_permissions(&path, of.permissions()).map_err(named(&path))?;
    }
    Ok(())
}

pub(super) fn copy(asked: &Asked<'_>) -> Result<Copied, Error> {
    let Asked { from, to, .. } = *asked;
    walk::check_place(from, to)?;
    let tree = Tree::of(from)?;
    if let Some(others) = tree.named_others(from).filter(|_| !asked.files_only) {
        return Err(failed(format!(
            "only files and directories are copied: {others}; --files-only leaves them out"
        )));
    }
    let memory = Memory::new(asked.place, asked.sysfs, 2 * HALF)?;
    make(to, &tree)?;
    let begin = Instant::now();
    Copy { asked, memory }.all(&tree)?;
    let took = begin.elapsed().as_secs_f64();
    permit(from, to, &tree)?;
    let mut right = true;
    for file in &tree.files {
        let path = to.join(&file.path);
        right &= walk::metadata(&path)?.len() == file.len && same(&from.join(&file.path), &path, file.len)?;
    }
    let left_out = |(path, what): &(PathBuf, &str)| format!("{} ({what})", from.join(path).display());
    Ok(Copied {
        from: from.display().to_string(),
        to: to.display().to_string(),
        memory: asked.place.to_string(),
        files: tree.files.len(),
        directories: tree.directories.len(),
        bytes: tree.bytes(),
        left_out: tree.others.iter().map(left_out).collect(),
        rate: tree.bytes() as f64 / took / 1e6,
        right,
    })
}

impl Copied {
    pub fn is_right(&self) -> bool {
        self.right
    }

    pub fn text(&self) -> String {
        let mut text = format!(
            "{}: {} files, {} directories, {}, by {} memory, {:.0} MB/s\n",
            self.to,
            self.files,
            self.directories,
            picture::bytes(self.bytes),
            self.memory,
            self.rate
        );
        for name in &self.left_out {
            text += &format!("  left out: {name}\n");
        }
        text + "  contents " + if self.right { "right" } else { "WRONG" } + "\n"
    }
}
