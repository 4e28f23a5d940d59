//! rdma_connect(3) and rdma_destroy_id(3), each call by one of a few threads. The driver of soft iWARP
//! returns from the first once TCP has connected, or has not, which takes minutes where packets are
//! dropped; and from the second, where a request was sent, once that is answered or its time is over.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipc::Bell;
use rdma_sys::{CmId, CmSaid, Error, Qp};

use super::crew::Crew;
use super::hand_over::{HandOver, Left};

/// What is rung when a call has returned.
pub(crate) type SharedBell = Arc<Mutex<Bell>>;

/// What the two ends of a connection say to each other.
pub(crate) type Nonce = [u8; 16];

/// What is said by a call: the own queue pair's number, the peer's nonce, reads that may be under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) qpn: u32,
    pub(crate) nonce: Nonce,
    pub(crate) serves: u8,
    pub(crate) starts: u8,
}

impl Said {
    pub(crate) fn as_cm(&self) -> CmSaid<'_> {
        CmSaid { qpn: self.qpn, bytes: &self.nonce, serves: self.serves, starts: self.starts }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call of rdma_connect, of which the queue pair has to be there until it has returned.
type Call = HandOver<CmId, Qp, Result<(), Error>>;

/// Makes the call, unless its caller has left.
fn connect(call: &Call, said: &Said) {
    let Some(id) = call.begin() else { return };
    let outcome = id.connect(&said.as_cm());
    if let Some((id, qp)) = call.done(id, outcome) {
        end(id, qp);
    }
}

/// The connection goes before its queue pair.
fn end(id: CmId, qp: Qp) {
    drop(id);
    drop(qp);
}

/// A call of rdma_connect that is to be made, under way, or has returned.
#[derive(Debug)]
pub(crate) struct Connecting {
    key: usize,
    to: IpAddr,
    call: Arc<Call>,
}

impl Connecting {
    /// Has the call made, to that host. The queue pair that it names has to be there until it has returned.
    pub(crate) fn begin(
        id: CmId,
        (to, said): (IpAddr, Said),
        bell: &SharedBell,
        crew: &Arc<Crew>,
    ) -> Result<Connecting, String> {
        let (key, call) = (id.key(), Arc::new(Call::new(id)));
        let (shared, bell) = (call.clone(), bell.clone());
        let job = move || {
            connect(&shared, &said);
            lock(&bell).notify();
        };
        let begun = crew.give(to, Box::new(job));
        begun
            .map(|()| Connecting { key, to, call })
            .map_err(|e| format!("no thread can be made that connects: {e}"))
    }

    /// The id's, by which events name it.
    pub(crate) fn key(&self) -> usize {
        self.key
    }

    /// The host that it connects to.
    pub(crate) fn to(&self) -> IpAddr {
        self.to
    }

    /// The id, and what the call has returned, if it has.
    pub(crate) fn take(&self) -> Option<(CmId, Result<(), Error>)> {
        self.call.take()
    }

    /// The call is not to be made, if no thread has begun it; whether it is not. Its id is destroyed then.
    pub(crate) fn withdraw(&self) -> bool {
        self.call.withdraw().is_some()
    }

    /// The caller awaits the call no more. The id is destroyed, and then the queue pair: where rdma_connect
    /// has not returned, when it has.
    pub(crate) fn leave(self, qp: Qp, crew: &Arc<Crew>) {
        match self.call.leave(qp) {
            Left::Unmade(id, qp) => end(id, qp),
            Left::Made(id, qp) => end_called(id, self.to, qp, crew),
            Left::UnderWay | Left::Taken(_) => {}
        }
    }
}

/// Destroys the id of a connection that is requested of that host, and not answered yet, and then its queue
/// pair.
pub(crate) fn end_called(id: CmId, to: IpAddr, qp: Qp, crew: &Arc<Crew>) {
    // Both go with the job where no thread can be made.
    let _ = crew.give(to, Box::new(move || end(id, qp)));
}
