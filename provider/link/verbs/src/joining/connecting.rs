//! rdma_connect(3) and rdma_destroy_id(3), each call by one of a few threads. The driver of soft iWARP
//! returns from the first once TCP has connected, or has not, which takes minutes where packets are
//! dropped; and from the second, where a request was sent, once that is answered or its time is over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipc::Bell;
use rdma_sys::{CmId, CmSaid, Error, Qp};

use super::crew::Crew;

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

#[derive(Debug)]
enum Stage {
    /// No thread has begun the call.
    Waits(CmId),
    /// The call has not returned. What is destroyed then.
    UnderWay(Option<Qp>),
    Over(CmId, Result<(), Error>),
    Taken,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn replace(stage: &Mutex<Stage>, by: Stage) -> Stage {
    std::mem::replace(&mut *lock(stage), by)
}

/// Makes the call, unless its caller has left.
fn call(stage: &Mutex<Stage>, said: &Said) {
    let id = match replace(stage, Stage::UnderWay(None)) {
        Stage::Waits(id) => id,
        left => {
            replace(stage, left);
            return;
        }
    };
    let outcome = id.connect(&said.as_cm());
    let mut at = lock(stage);
    if let Stage::UnderWay(left @ Some(_)) = &mut *at {
        let left = left.take();
        *at = Stage::Taken;
        drop(at);
        end(id, left);
    } else {
        *at = Stage::Over(id, outcome);
    }
}

/// The connection goes before its queue pair.
fn end(id: CmId, qp: Option<Qp>) {
    drop(id);
    drop(qp);
}

/// A call of rdma_connect that is to be made, under way, or has returned.
#[derive(Debug)]
pub(crate) struct Connecting {
    key: usize,
    stage: Arc<Mutex<Stage>>,
}

impl Connecting {
    /// Has the call made. The queue pair that it names has to be there until it has returned.
    pub(crate) fn begin(
        id: CmId,
        said: Said,
        bell: &SharedBell,
        crew: &Arc<Crew>,
    ) -> Result<Connecting, String> {
        let (key, stage) = (id.key(), Arc::new(Mutex::new(Stage::Waits(id))));
        let (shared, bell) = (stage.clone(), bell.clone());
        let job = move || {
            call(&shared, &said);
            lock(&bell).notify();
        };
        let begun = crew.give(Box::new(job));
        begun
            .map(|()| Connecting { key, stage })
            .map_err(|e| format!("no thread can be made that connects: {e}"))
    }

    /// The id's, by which events name it.
    pub(crate) fn key(&self) -> usize {
        self.key
    }

    /// The id, and what the call has returned, if it has.
    pub(crate) fn take(&self) -> Option<(CmId, Result<(), Error>)> {
        let mut stage = lock(&self.stage);
        match std::mem::replace(&mut *stage, Stage::Taken) {
            Stage::Over(id, outcome) => Some((id, outcome)),
            before => {
                *stage = before;
                None
            }
        }
    }

    /// The call is not to be made, if no thread has begun it; whether it is not. Its id is destroyed then.
    pub(crate) fn withdraw(&self) -> bool {
        let mut stage = lock(&self.stage);
        match std::mem::replace(&mut *stage, Stage::Taken) {
            Stage::Waits(id) => {
                drop(stage);
                drop(id);
                true
            }
            other => {
                *stage = other;
                false
            }
        }
    }

    /// The caller awaits the call no more. The id is destroyed, and then the queue pair: where rdma_connect
    /// has not returned, when it has.
    pub(crate) fn leave(self, qp: Qp, crew: &Arc<Crew>) {
        let mut stage = lock(&self.stage);
        match std::mem::replace(&mut *stage, Stage::Taken) {
            Stage::UnderWay(_) => *stage = Stage::UnderWay(Some(qp)),
            Stage::Over(id, _) => {
                drop(stage);
                end_called(id, qp, crew);
            }
            Stage::Waits(id) => {
                drop(stage);
                end(id, Some(qp));
            }
            Stage::Taken => {}
        }
    }
}

/// Destroys the id of a connection that is requested, and not answered yet, and then its queue pair.
pub(crate) fn end_called(id: CmId, qp: Qp, crew: &Arc<Crew>) {
    // Both go with the job where no thread can be made.
    let _ = crew.give(Box::new(move || end(id, Some(qp))));
}
