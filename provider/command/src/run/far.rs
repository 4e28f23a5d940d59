//! What is started on another host: the command that reaches it, and how far that has come. The command may
//! hang at either end: before the processes begin, as one that asks for a password, and behind their end, as
//! ssh(1) does while something there has its output.

use std::time::{Duration, Instant};

use super::confirm::{Confirmation, Seen};
use super::part::Input;

/// A host of the job.
pub(super) struct Far {
    host: String,
    /// The command that reaches it, for people.
    rsh: String,
    confirmation: Confirmation,
    input: Input,
    stage: Stage,
    /// What the command may take until the processes have begun, and from their end until its own.
    limits: (Duration, Duration),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// The processes have to have begun by then.
    Starting(Instant),
    Running,
    /// The processes have ended; the command has to end by then.
    Ending(Instant),
    /// It is ended by this process, or was asked to.
    Overdue,
    /// It has ended without an error, and its output is still read.
    Open,
    Over,
}

/// What took longer than its limit.
#[derive(Debug, PartialEq)]
pub(super) enum Late {
    Start,
    End,
}

impl Far {
    pub(super) fn new(
        (host, rsh): (&str, &str),
        confirmation: Confirmation,
        input: Input,
        limits: (Duration, Duration),
    ) -> Far {
        let stage = Stage::Starting(Instant::now() + limits.0);
        let (host, rsh) = (host.to_owned(), format!("{rsh} {host}"));
        Far { host, rsh, confirmation, input, stage, limits }
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// That it is late, of these ranks.
    pub(super) fn says(&self, late: &Late, ranks: &str) -> String {
        let Far { host, rsh, limits: (start, _), .. } = self;
        match late {
            Late::Start => format!(
                "host {host}, with {ranks}, has started nothing in {} s: see that `{rsh} true` ends at once and \
                 asks for nothing, or give --start-timeout more",
                start.as_secs_f64()
            ),
            Late::End => {
                format!("`{rsh}` is killed: the processes there, {ranks}, have ended, and it has not")
            }
        }
    }

    /// Whether the processes there are not known to have begun.
    pub(super) fn is_starting(&self) -> bool {
        matches!(self.stage, Stage::Starting(_)) && self.confirmation.seen() == Some(Seen::Nothing)
    }

    /// Passes a signal on to the processes there.
    pub(super) fn signal(&mut self, signal: libc::c_int) {
        self.input.signal(signal);
    }

    /// What is late now; each once.
    pub(super) fn late(&mut self, now: Instant) -> Option<Late> {
        let seen = self.confirmation.seen();
        match (self.stage, seen) {
            (Stage::Starting(_) | Stage::Running, Some(Seen::Ended(_))) => {
                self.stage = Stage::Ending(now + self.limits.1);
            }
            (Stage::Starting(_), Some(Seen::Started) | None) => self.stage = Stage::Running,
            (Stage::Starting(until), Some(Seen::Nothing)) if now >= until => {
                self.stage = Stage::Overdue;
                return Some(Late::Start);
            }
            (Stage::Ending(until), _) if now >= until => {
                self.stage = Stage::Overdue;
                return Some(Late::End);
            }
            _ => {}
        }
        None
    }

    /// The command has ended: with 0, or as it may. Whether what its output confirms is what counts.
    pub(super) fn ended(&mut self, success: bool) -> bool {
        let is_ended = matches!(self.confirmation.seen(), Some(Seen::Ended(_)));
        let counts = success || (self.stage == Stage::Overdue && is_ended);
        self.stage = if counts { Stage::Open } else { Stage::Over };
        counts
    }

    /// Whether its output is still read behind its end.
    pub(super) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// What the output of a command that has ended confirms; once.
    pub(super) fn verdict(&mut self) -> Option<Result<u8, Seen>> {
        let verdict = self.is_open().then(|| self.confirmation.verdict()).flatten();
        if verdict.is_some() {
            self.stage = Stage::Over;
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::super::confirm::{Marked, mark};
    use super::*;

    fn far(output: &[u8]) -> Far {
        let confirmation = Confirmation::default();
        let mut marked = Marked::new(output, "word", confirmation.clone());
        let mut out = Vec::new();
        marked.read_to_end(&mut out).unwrap();
        // The output of a command that runs is read on.
        std::mem::forget(marked);
        Far::new(
            ("a", "ssh -x"),
            confirmation,
            Input::none(),
            (Duration::from_secs(5), Duration::from_secs(2)),
        )
    }

    #[test]
    fn each_end_of_a_command_has_its_limit() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut silent = far(b"Password: ");
        assert_eq!(
            [0, 4, 7, 8].map(|at| silent.late(now + second * at)),
            [None, None, Some(Late::Start), None]
        );
        let says = silent.says(&Late::Start, "rank 3");
        assert!(
            says.contains("host a, with rank 3, has started nothing in 5 s: see that `ssh -x a true` ends")
        );
        assert!(!silent.ended(false) && !silent.is_open());

        let start = mark("word", None);
        let mut runs = far(&start);
        assert_eq!([0, 7, 7000].map(|at| runs.late(now + second * at)), [None, None, None]);
        assert!(!runs.ended(false));

        let mut has_ended = far(&[start, mark("word", Some(7))].concat());
        assert_eq!(
            [100, 101, 103, 104].map(|at| has_ended.late(now + second * at)),
            [None, None, Some(Late::End), None]
        );
        assert!(has_ended.ended(false) && has_ended.is_open());
        assert_eq!((has_ended.verdict(), has_ended.verdict()), (Some(Ok(7)), None));
    }
}
