//! How `strait run` knows that its processes on another host ran: `strait run-part` writes a mark into its
//! standard output when it begins, and one with their exit code when all have ended. The exit status of the
//! command that reaches the host says neither.

use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a mark begins with, before the word of the host.
const BEGIN: &[u8] = b"\x1estrait run-part ";
/// What follows the word: `+` and three digits that are 0, or `-` and those of the exit code, and a line end.
const REST: usize = 5;

/// How far it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seen {
    #[default]
    Nothing,
    Started,
    Ended(u8),
}

/// A mark: that the part has begun, or how it has ended.
pub fn mark(word: &str, ended: Option<u8>) -> Vec<u8> {
    let (sign, code) = ended.map_or(('+', 0), |code| ('-', code));
    [BEGIN, format!("{word}{sign}{code:03}\n").as_bytes()].concat()
}

#[derive(Debug, Default)]
struct State {
    seen: Seen,
    /// The output has ended, or is read no more.
    is_over: bool,
    /// It was read until its end.
    is_whole: bool,
}

/// What the output of a part has confirmed.
#[derive(Clone, Debug, Default)]
pub struct Confirmation(Arc<Mutex<State>>);

impl Confirmation {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far it came; `None`: its output is read no more, though it goes on.
    pub fn seen(&self) -> Option<Seen> {
        let state = self.state();
        let is_known = !state.is_over || state.is_whole || matches!(state.seen, Seen::Ended(_));
        is_known.then_some(state.seen)
    }

    /// The exit code of the part, or what is missing; `None`: its output is still read. Where the output had
    /// nowhere to go it was not read, and nothing is missing.
    pub fn verdict(&self) -> Option<Result<u8, Seen>> {
        let state = self.state();
        match state.seen {
            Seen::Ended(code) => Some(Ok(code)),
            _ if !state.is_over => None,
            _ if !state.is_whole => Some(Ok(0)),
            seen => Some(Err(seen)),
        }
    }
}

/// The output of a part without its marks. It ends with the second one: what a process that was left behind
/// writes later is none of the job's.
pub struct Marked<R> {
    from: R,
    prefix: Vec<u8>,
    /// What was read: up to `free` it has no part of a mark.
    held: Vec<u8>,
    free: usize,
    confirmation: Confirmation,
}

impl<R: Read> Marked<R> {
    pub fn new(from: R, word: &str, confirmation: Confirmation) -> Marked<R> {
        let prefix = [BEGIN, word.as_bytes()].concat();
        Marked { from, prefix, held: Vec::new(), free: 0, confirmation }
    }

    /// Takes the marks out of what was read, and finds how much of it can be given.
    fn scan(&mut self) {
        let n = self.prefix.len();
        let mut at = 0;
        while let Some(found) = self.held[at..].windows(n).position(|bytes| bytes == self.prefix) {
            let begin = at + found;
            let Some(rest) = self.held.get(begin + n..begin + n + REST) else {
                self.free = begin;
                return;
            };
            match parse(rest) {
                Some(seen) => {
                    self.confirmation.state().seen = seen;
                    let is_last = matches!(seen, Seen::Ended(_));
                    let end = if is_last { self.held.len() } else { begin + n + REST };
                    self.held.drain(begin..end);
                    at = begin;
                }
                None => at = begin + 1,
            }
        }
        // The start of a mark may be at the end.
        let longest = self.held.len().min(n);
        let start = (1..=longest).rev().find(|len| self.held.ends_with(&self.prefix[..*len])).unwrap_or(0);
        self.free = self.held.len() - start;
    }
}

/// What stands behind the word.
fn parse(rest: &[u8]) -> Option<Seen> {
    let code = || std::str::from_utf8(rest.get(1..4)?).ok()?.parse().ok();
    match (rest.first()?, rest.last()?) {
        (b'+', b'\n') if &rest[1..4] == b"000" => Some(Seen::Started),
        (b'-', b'\n') => code().map(Seen::Ended),
        _ => None,
    }
}

impl<R: Read> Read for Marked<R> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        while self.free == 0 {
            if matches!(self.confirmation.state().seen, Seen::Ended(_)) {
                return Ok(0);
            }
            let mut bytes = [0; 8 << 10];
            match self.from.read(&mut bytes) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) if self.held.is_empty() => {
                    self.confirmation.state().is_whole = true;
                    return Ok(0);
                }
                // It was no mark.
                Ok(0) | Err(_) => self.free = self.held.len(),
                Ok(n) => {
                    self.held.extend(&bytes[..n]);
                    self.scan();
                }
            }
        }
        let n = to.len().min(self.free);
        to[..n].copy_from_slice(&self.held[..n]);
        self.held.drain(..n);
        self.free -= n;
        Ok(n)
    }
}

impl<R> Drop for Marked<R> {
    fn drop(&mut self) {
        self.confirmation.state().is_over = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read where `bytes` come in pieces of this length, and the verdict.
    fn read(bytes: &[u8], piece: usize) -> (Vec<u8>, Option<Result<u8, Seen>>) {
        struct Pieces<'a>(&'a [u8], usize);
        impl Read for Pieces<'_> {
            fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
                let most = self.1.min(to.len());
                self.0.read(&mut to[..most])
            }
        }
        let confirmation = Confirmation::default();
        let mut out = Vec::new();
        Marked::new(Pieces(bytes, piece), "word", confirmation.clone()).read_to_end(&mut out).unwrap();
        (out, confirmation.verdict())
    }

    #[test]
    fn marks_are_taken_out_and_confirm() {
        let (start, end) = (mark("word", None), mark("word", Some(7)));
        for piece in [1, 2, 7, 4096] {
            let all = [b"motd\n", &start[..], b"\x1estrait ", b"output", &end, b"of later"].concat();
            assert_eq!(read(&all, piece), (b"motd\n\x1estrait output".to_vec(), Some(Ok(7))), "{piece}");
            let all = [&start[..], b"output", &end[..end.len() - 1]].concat();
            let (out, verdict) = read(&all, piece);
            assert_eq!((&out[..6], verdict), (&b"output"[..], Some(Err(Seen::Started))), "{piece}");
        }
    }

    #[test]
    fn what_is_no_mark_of_this_part_confirms_nothing() {
        for text in [
            mark("other", None),
            [mark("other", None), mark("other", Some(0))].concat(),
            b"\x1estrait run-part word+007\n".to_vec(),
            b"\x1estrait run-part word-256\n".to_vec(),
            b"\x1estrait run-part word-0x1\n".to_vec(),
            br#"{"word":"word","program":["true"]}"#.to_vec(),
            b"\x1e".repeat(100_000),
            b"\x1estrait run-part word".to_vec(),
            vec![],
        ] {
            assert_eq!(read(&text, 4096), (text, Some(Err(Seen::Nothing))));
        }
    }

    #[test]
    fn output_that_is_still_read_has_no_verdict_and_output_that_has_no_reader_none_against_it() {
        let confirmation = Confirmation::default();
        let mut marked = Marked::new(&b"some text"[..], "word", confirmation.clone());
        assert_eq!(marked.read(&mut [0; 4]).unwrap(), 4);
        assert_eq!(confirmation.verdict(), None);
        drop(marked);
        assert_eq!(confirmation.verdict(), Some(Ok(0)));
    }
}
