//! A connection to the daemon that several threads use, and its buffers with their notices.
//!
//! A notice comes with whichever call reads the socket next. Where a program wants to be called, a thread
//! waits at the socket. The end of the daemon revokes all that it gave: the next one knows nothing of it and
//! may give the same memory to others.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use ipc::socket;

use super::client::{Connection, Remote, drained};
use crate::error::Error;
use crate::orchestrator::{Drain, NoticeId, Notices};
use crate::publisher::Mapped;

const ENDED: &str = "the daemon has ended";

struct Inner {
    connection: Mutex<Connection>,
    /// By their handles, the notices of buffers.
    buffers: Mutex<HashMap<u64, Weak<Notices>>>,
    /// Whether the thread was started.
    watched: Mutex<bool>,
}

/// See the module. A clone is the same connection.
#[derive(Clone)]
pub struct Session {
    inner: Arc<Inner>,
}

/// A buffer of a session.
pub struct SharedBuffer {
    session: Session,
    /// `None` once it is freed.
    remote: Option<Remote>,
    notices: Arc<Notices>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedBuffer").field("remote", &self.remote).finish_non_exhaustive()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// Has the connection do something, and calls the notices that have come meanwhile.
    fn with<T>(&self, work: impl FnOnce(&mut Connection) -> T) -> T {
        let mut connection = lock(&self.connection);
        let done = work(&mut connection);
        let (mut came, ended) = (Vec::new(), connection.is_ended());
        while let Some(notice) = connection.taken() {
            came.push(notice);
        }
        drop(connection);
        for (handle, why) in came {
            let of = lock(&self.buffers).get(&handle).and_then(Weak::upgrade);
            of.into_iter().for_each(|notices| notices.revoke(&why));
        }
        if ended {
            let all: Vec<_> = lock(&self.buffers).drain().filter_map(|(_, of)| of.upgrade()).collect();
            all.iter().for_each(|notices| notices.revoke(ENDED));
        }
        done
    }
}

impl Session {
    /// Connects, as [`Connection::open`].
    pub fn open(name: &str) -> Result<Session, Error> {
        let connection = Mutex::new(Connection::open(name)?);
        Ok(Session {
            inner: Arc::new(Inner { connection, buffers: Mutex::default(), watched: Mutex::default() }),
        })
    }

    /// Has the connection do something.
    pub fn with<T>(&self, work: impl FnOnce(&mut Connection) -> T) -> T {
        self.inner.with(work)
    }

    /// As [`Connection::unpublish`]. While buffers are waited for, other threads use the connection.
    pub fn unpublish(&self, publisher: &str, drain: Drain) -> Result<u64, Error> {
        let once = match drain {
            Drain::Wait(_) => Drain::Wait(Duration::ZERO),
            other => other,
        };
        drained(drain, || self.with(|connection| connection.unpublish(publisher, once)))
    }

    /// A buffer that the connection gets in some way.
    pub fn take(
        &self,
        how: impl FnOnce(&mut Connection) -> Result<Remote, Error>,
    ) -> Result<SharedBuffer, Error> {
        let notices = Arc::new(Notices::default());
        let remote = self.inner.with(|connection| {
            let remote = how(connection)?;
            // Before a notice of it is called.
            lock(&self.inner.buffers).insert(remote.handle, Arc::downgrade(&notices));
            Ok(remote)
        })?;
        Ok(SharedBuffer { session: self.clone(), remote: Some(remote), notices })
    }

    /// Starts the thread that waits for notices, once.
    fn watch(&self) -> Result<(), Error> {
        let mut watched = lock(&self.inner.watched);
        if *watched {
            return Ok(());
        }
        let os = |e| Error::Os("a thread that waits for the daemon's notices".into(), e);
        let sock = self.inner.with(|connection| connection.copy()).map_err(os)?;
        let inner = Arc::downgrade(&self.inner);
        std::thread::Builder::new()
            .name("strait-p2pmem".into())
            .spawn(move || wait_for_notices(&sock, &inner))
            .map_err(os)?;
        *watched = true;
        Ok(())
    }
}

/// Until the connection ends, or its last user goes, which shuts the socket down.
fn wait_for_notices(sock: &OwnedFd, inner: &Weak<Inner>) {
    while socket::wait(sock, -1) || !socket::hung_up(sock) {
        let Some(inner) = inner.upgrade() else { return };
        // In the middle of an answer its reader has the connection, and reads the notices too.
        let ended = inner.with(|connection| connection.read_notices().is_err() || connection.is_ended());
        if ended {
            return;
        }
    }
}

impl SharedBuffer {
    fn remote(&self) -> Result<&Remote, Error> {
        self.remote.as_ref().ok_or_else(|| Error::Unknown("buffer: it was freed".into()))
    }

    /// What is known of it, whether or not it was revoked.
    pub fn known(&self) -> Result<&Remote, Error> {
        self.remote()
    }

    /// Why it was revoked, if it was: the daemon's notices are read first.
    pub fn why(&self) -> Option<String> {
        if self.notices.why().is_none() {
            // An end that is found here has its notice, which another thread may be about to give.
            let ended = self.session.inner.with(|connection| {
                let _ = connection.read_notices();
                connection.is_ended()
            });
            return self.notices.why().or_else(|| ended.then(|| ENDED.into()));
        }
        self.notices.why()
    }

    /// Its pieces, unless it was revoked.
    pub fn pieces(&self) -> Result<&[Mapped], Error> {
        self.valid()?.mapped()
    }

    /// The buffer, unless it was revoked.
    fn valid(&self) -> Result<&Remote, Error> {
        match self.why() {
            Some(why) => Err(Error::Revoked(why)),
            None => self.remote(),
        }
    }

    /// The same memory for further devices.
    pub fn widen(&self, clients: &[&str]) -> Result<SharedBuffer, Error> {
        let remote = self.valid()?;
        self.session.take(|connection| connection.widen(remote, clients))
    }

    /// A token by which another process of this user joins.
    pub fn token(&self) -> Result<super::wire::Token, Error> {
        let remote = self.valid()?;
        self.session.with(|connection| connection.share(remote))
    }

    /// As [`Connection::dmabuf`].
    pub fn dmabuf(&self, piece: usize) -> Result<(OwnedFd, u64), Error> {
        let remote = self.valid()?;
        self.session.with(|connection| connection.dmabuf(remote, piece))
    }

    /// Calls `notice` with the reason when it is revoked, by a thread of the session's; at once if it was.
    pub fn on_revoke(&self, notice: impl FnOnce(&str) + Send + 'static) -> Result<NoticeId, Error> {
        self.session.with(|connection| connection.own())?;
        if self.why().is_none() {
            self.session.watch()?;
        }
        Ok(self.notices.add(Box::new(notice)))
    }

    /// Takes a notice back, as [`crate::Buffer::cancel_notice`].
    pub fn cancel_notice(&self, notice: NoticeId) {
        self.notices.cancel(notice);
    }

    /// Frees it.
    pub fn free(mut self) -> Result<(), Error> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<(), Error> {
        let Some(remote) = self.remote.take() else { return Ok(()) };
        lock(&self.session.inner.buffers).remove(&remote.handle);
        self.session.with(|connection| connection.free(remote))
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        // What fails here has gone back with the connection, or does so with it.
        let _ = self.give_back();
    }
}
