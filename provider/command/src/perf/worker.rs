//! One of the processes that measure. It takes orders from its standard input.

use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::crowd::Member;
use super::floor::Floor;
use super::session::{Role, Session, Setting};
use super::test::Test;
use super::wire::{About, Channel, Order, Reply};
use crate::fabric::{Error, Library};
use crate::os;

/// How a worker is started; see [`Start::args`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    pub role: Role,
    /// The socket to the other worker.
    pub aside: RawFd,
    pub cpus: (usize, usize),
    pub timeout_ms: u64,
    pub libfabric: Option<PathBuf>,
}

impl Start {
    /// What to give `strait` so that it becomes this worker.
    pub fn args(&self) -> Vec<std::ffi::OsString> {
        let mut args: Vec<std::ffi::OsString> = vec![
            "perf-peer".into(),
            if self.role == Role::First { "first" } else { "second" }.into(),
            self.aside.to_string().into(),
            self.cpus.0.to_string().into(),
            self.cpus.1.to_string().into(),
            self.timeout_ms.to_string().into(),
        ];
        args.extend(self.libfabric.iter().map(|path| path.into()));
        args
    }

    /// The opposite of [`Start::args`], without the first.
    pub fn parse(args: &[std::ffi::OsString]) -> Option<Start> {
        let number = |k: usize| args.get(k)?.to_str()?.parse::<u64>().ok();
        Some(Start {
            role: match args.first()?.to_str()? {
                "first" => Role::First,
                "second" => Role::Second,
                _ => return None,
            },
            aside: number(1)?.try_into().ok().filter(|fd| *fd > 2)?,
            cpus: (number(2)?.try_into().ok()?, number(3)?.try_into().ok()?),
            timeout_ms: number(4)?,
            libfabric: args.get(5).map(PathBuf::from),
        })
    }
}

enum Open {
    Nothing,
    Session(Box<Session>),
    Member(Box<Member>),
    Floor(Floor),
}

/// Does what is ordered until the orders end.
pub fn work(start: &Start) -> Result<(), Error> {
    // SAFETY: asks about a number; whatever it stands for is not touched.
    let flags = unsafe { libc::fcntl(start.aside, libc::F_GETFD) };
    if flags < 0 {
        return Err(Error::Failed("this command is for strait perf's own use".into()));
    }
    // SAFETY: it is open by the line above, and inherited for this call alone: nothing in this process
    // knew of it before. Closed on exec from here on.
    let aside = unsafe {
        libc::fcntl(start.aside, libc::F_SETFD, libc::FD_CLOEXEC);
        OwnedFd::from_raw_fd(start.aside)
    };
    let mut aside = Channel::new(UnixStream::from(aside));
    let mut orders = Channel::new(UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?));

    let mut worker = Worker { start: start.clone(), library: None, open: Open::Nothing };
    // Before libfabric is loaded: what it starts and touches first belongs there too.
    let pinned = os::pin(match start.role {
        Role::First => start.cpus.0,
        Role::Second => start.cpus.1,
    });
    // Without an order the starter is gone, and there is nothing left to do.
    while let Ok(order) = orders.recv::<Order>() {
        let answer = match &pinned {
            Ok(()) => worker.follow(order, &mut aside),
            Err(error) => Err(Error::Failed(format!("cannot use that core: {error}"))),
        };
        let reply = answer.unwrap_or_else(|error| Reply::Failed {
            unsupported: matches!(error, Error::Unsupported(_)),
            text: error.text().to_owned(),
        });
        orders.send(&reply)?;
    }
    // A provider may hang in closing; what is open is left to the kernel.
    std::mem::forget(worker);
    Ok(())
}

struct Worker {
    start: Start,
    library: Option<Arc<Library>>,
    open: Open,
}

impl Worker {
    fn follow(&mut self, order: Order, aside: &mut Channel) -> Result<Reply, Error> {
        match order {
            Order::Open { provider, test, most } => {
                self.open = Open::Nothing;
                self.open(&provider, test, most, aside).map(Reply::Opened)
            }
            Order::Measure { size, seconds } => {
                let measured = match (&mut self.open, self.start.role) {
                    (Open::Nothing | Open::Member(_), _) => Err(Error::Failed("nothing is open".into())),
                    (Open::Session(session), Role::First) => session.measure(aside, size, seconds).map(Some),
                    (Open::Session(session), Role::Second) => session.serve(aside).map(|()| None),
                    (Open::Floor(floor), role) => floor.measure(role, size, seconds),
                }?;
                Ok(match measured {
                    Some((ops, seconds)) => Reply::Measured { ops, seconds },
                    None => Reply::Done,
                })
            }
            Order::Join { provider, test, most, rank, ranks } => {
                self.open = Open::Nothing;
                let library = self.library()?;
                let shares = self.start.cpus.0 == self.start.cpus.1;
                let timeout = Duration::from_millis(self.start.timeout_ms);
                let what = (provider.as_str(), test, most);
                let (member, about, name) = Member::open(&library, what, (rank, ranks), timeout, shares)?;
                self.open = Open::Member(Box::new(member));
                Ok(Reply::Joined(about, name))
            }
            Order::Meet(all) => self.member()?.meet(all).map(|()| Reply::Done),
            Order::Repeat { size, count } => {
                let seconds = self.member()?.repeat(size, count)?;
                Ok(Reply::Measured { ops: count, seconds })
            }
            Order::Close => {
                self.open = Open::Nothing;
                Ok(Reply::Done)
            }
        }
    }

    fn library(&mut self) -> Result<Arc<Library>, Error> {
        if self.library.is_none() {
            self.library = Some(Library::load(self.start.libfabric.as_deref())?);
        }
        self.library.clone().ok_or_else(|| Error::Failed("no libfabric".into()))
    }

    fn member(&mut self) -> Result<&mut Member, Error> {
        match &mut self.open {
            Open::Member(member) => Ok(member),
            _ => Err(Error::Failed("nothing is open".into())),
        }
    }

    fn open(&mut self, provider: &str, test: Test, most: usize, aside: &mut Channel) -> Result<About, Error> {
        if test.is_floor() {
            let mut floor = Floor::open(test, most, self.start.cpus)?;
            floor.meet(aside)?;
            self.open = Open::Floor(floor);
            return Ok(About::default());
        }
        let library = self.library()?;
        let setting = Setting {
            role: self.start.role,
            timeout: Duration::from_millis(self.start.timeout_ms),
            shares_core: self.start.cpus.0 == self.start.cpus.1,
        };
        let (mut session, about) = Session::open(&library, provider, test, most, setting)?;
        session.meet(aside)?;
        self.open = Open::Session(Box::new(session));
        Ok(about)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_is_started_with_arrives() {
        for libfabric in [None, Some("/x y/libfabric.so.1".into())] {
            let start = Start { role: Role::Second, aside: 7, cpus: (3, 12), timeout_ms: 9000, libfabric };
            assert_eq!(Start::parse(&start.args()[1..]), Some(start));
        }
        assert_eq!(Start::parse(&[]), None);
        assert_eq!(Start::parse(&["first".into(), "1".into()]), None);
    }
}
