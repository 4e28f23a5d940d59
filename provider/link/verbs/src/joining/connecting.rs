//! rdma_connect(3), each call by a thread of its own: the driver of soft iWARP returns from it once TCP has
//! connected, or has not, which takes minutes where packets are dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use ipc::Bell;
use rdma_sys::{CmId, CmSaid, Error, Qp};

/// Of a thread that makes one call.
const STACK: usize = 128 << 10;

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
    /// The call has not returned. What is destroyed then.
    UnderWay(Option<Qp>),
    Over(CmId, Result<(), Error>),
    Taken,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call that is under way, or has returned.
#[derive(Debug)]
pub(crate) struct Connecting {
    key: usize,
    stage: Arc<Mutex<Stage>>,
}

impl Connecting {
    /// Makes the call. The queue pair that it names has to be there until it has returned.
    pub(crate) fn begin(id: CmId, said: Said, bell: &SharedBell) -> Result<Connecting, String> {
        let (key, stage) = (id.key(), Arc::new(Mutex::new(Stage::UnderWay(None))));
        let (shared, bell) = (stage.clone(), bell.clone());
        let body = move || {
            let outcome = id.connect(&said.as_cm());
            let mut stage = lock(&shared);
            if let Stage::UnderWay(left @ Some(_)) = &mut *stage {
                let left = left.take();
                *stage = Stage::Taken;
                drop(stage);
                // The connection goes before its queue pair.
                drop(id);
                drop(left);
            } else {
                *stage = Stage::Over(id, outcome);
                drop(stage);
            }
            lock(&bell).notify();
        };
        let thread = Builder::new().name("strait-connect".into()).stack_size(STACK);
        match ipc::without_signals(|| thread.spawn(body)) {
            Ok(_) => Ok(Connecting { key, stage }),
            Err(e) => Err(format!("no thread can be made that connects: {e}")),
        }
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

    /// The caller awaits the call no more. Its thread destroys the id, and then the queue pair, when
    /// rdma_connect has returned.
    pub(crate) fn leave(self, qp: Qp) {
        let mut stage = lock(&self.stage);
        let before = std::mem::replace(&mut *stage, Stage::Taken);
        if let Stage::UnderWay(_) = before {
            *stage = Stage::UnderWay(Some(qp));
            return;
        }
        drop(stage);
        drop(before);
        drop(qp);
    }
}
