//! Connections that are being made: calls of ours, and guests that are to prove themselves.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use ipc::Unshared;
use link_api::Gone;
use meet::Message;
use wire::session::{Answerer, Caller, Hello, JobKey, Proven};

use crate::tcp::sock;

/// Receives more of a message of `wants` bytes; whether it is whole.
pub(in crate::tcp) fn receive(message: &mut Message, fd: &OwnedFd, wants: usize) -> io::Result<bool> {
    message.receive(wants, |bytes| sock::recv(fd, bytes))
}

/// Sends all of a message, for which a new connection has room.
pub(in crate::tcp) fn say(fd: &OwnedFd, message: &[u8]) -> io::Result<()> {
    let n = sock::send(fd, message)?;
    if n == message.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// How far a call has come.
#[derive(Debug)]
pub(in crate::tcp) enum Stage {
    /// The kernel makes the connection.
    Connecting(Unshared),
    /// The two sides get to know each other.
    Talking(Unshared, Message),
    /// The other side calls here itself, and its call counts.
    Waiting,
}

/// A connection that this side makes.
#[derive(Debug)]
pub(in crate::tcp) struct Call {
    pub(in crate::tcp) stage: Stage,
    pub(in crate::tcp) caller: Caller,
    pub(in crate::tcp) until: Instant,
    /// To the peer's further address.
    pub(in crate::tcp) by_further: bool,
    /// Why there was no connection to the other one of two addresses.
    pub(in crate::tcp) first: Option<Gone>,
    /// This side was late, so that the other one may have hung up.
    pub(in crate::tcp) late: bool,
}

impl Call {
    /// The kernel has made the connection, or not.
    pub(in crate::tcp) fn connected(&mut self) -> io::Result<()> {
        let Stage::Connecting(fd) = &self.stage else { return Ok(()) };
        if let Some(e) = sock::error(fd) {
            return Err(e);
        }
        say(fd, &self.caller.hello())?;
        if let Stage::Connecting(fd) = std::mem::replace(&mut self.stage, Stage::Waiting) {
            self.stage = Stage::Talking(fd, Message::default());
        }
        Ok(())
    }

    /// The answerer's next message, if it is there; the end of the connection is one, of the bytes that came
    /// before.
    pub(in crate::tcp) fn heard(&mut self) -> Option<io::Result<Vec<u8>>> {
        let wants = self.caller.wants();
        let Stage::Talking(fd, message) = &mut self.stage else { return None };
        match receive(message, fd, wants) {
            Ok(false) => None,
            Ok(true) => Some(Ok(message.take())),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof && !message.bytes().is_empty() => {
                Some(Ok(message.take()))
            }
            Err(e) => Some(Err(e)),
        }
    }

    pub(in crate::tcp) fn fd(&self) -> Option<&Unshared> {
        match &self.stage {
            Stage::Connecting(fd) | Stage::Talking(fd, _) => Some(fd),
            Stage::Waiting => None,
        }
    }
}

/// A connection that another endpoint made, or a stranger.
#[derive(Debug)]
pub(in crate::tcp) struct Guest {
    pub(in crate::tcp) fd: Unshared,
    answerer: Option<Answerer>,
    message: Message,
    /// There is no room for it: it has that answer once it has shown that it has the key.
    pub(in crate::tcp) surplus: bool,
}

/// What became of a guest.
#[derive(Debug)]
pub(in crate::tcp) enum Visit {
    /// It has more to say.
    Goes,
    /// It has the key.
    Proven(Box<Proven>),
    /// It is not let in, for this reason.
    Over(String),
    /// The same of an endpoint that would be let in with other settings there or here.
    Refused(String),
}

impl Guest {
    pub(in crate::tcp) fn new(fd: Unshared, answerer: Answerer, surplus: bool) -> Guest {
        Guest { fd, answerer: Some(answerer), message: Message::default(), surplus }
    }

    /// Whether it has said hello, which was answered.
    pub(in crate::tcp) fn is_answered(&self) -> bool {
        self.answerer.as_ref().is_none_or(|answerer| answerer.wants() != Hello::LEN)
    }

    /// Reads what it has sent. `rail` is the key of the connection that a rail says to be of.
    pub(in crate::tcp) fn hear(&mut self, rail: impl Fn(&Hello) -> Option<JobKey>) -> Visit {
        loop {
            let Some(answerer) = &mut self.answerer else {
                return Visit::Over("it speaks out of turn".into());
            };
            let wants = answerer.wants();
            match receive(&mut self.message, &self.fd, wants) {
                Ok(true) => {}
                Ok(false) if wants == Hello::LEN && Hello::check(self.message.bytes()).is_err() => {
                    let said = self.message.take();
                    return self.stranger(&said);
                }
                Ok(false) => return Visit::Goes,
                Err(e) => return Visit::Over(e.to_string()),
            }
            let message = self.message.take();
            if wants == Hello::LEN {
                match answerer.hear_any(&message, &rail) {
                    Ok(answer) => match say(&self.fd, &answer) {
                        Ok(()) => continue,
                        Err(e) => return Visit::Over(e.to_string()),
                    },
                    Err(_) => return self.stranger(&message),
                }
            }
            let proven = self.answerer.take().map(|answerer| answerer.hear_proof(&message));
            return match proven {
                Some(Ok(proven)) => Visit::Proven(Box::new(proven)),
                _ => Visit::Refused(
                    "it has another job key: give all processes of a job the same FI_STRAIT_JOB_KEY".into(),
                ),
            };
        }
    }

    /// Not a hello that can be answered. One of another version has this version as the answer.
    fn stranger(&self, said: &[u8]) -> Visit {
        match Hello::check(said) {
            Err(wire::session::Stranger::Version { session, frames }) => {
                if let Some(answerer) = &self.answerer {
                    let _ = say(&self.fd, &answerer.refusal());
                }
                Visit::Refused(versions(session, frames))
            }
            Ok(()) => Visit::Over("it says what is not its to say".into()),
            _ => Visit::Over("it does not speak this protocol".into()),
        }
    }
}

/// What to say of an endpoint of another version.
pub(in crate::tcp) fn versions(session: u16, frames: u16) -> String {
    format!(
        "it has version {session}.{frames} of the protocol, and this is {}.{}: use one release of Strait on all hosts",
        wire::session::VERSION,
        wire::VERSION
    )
}
