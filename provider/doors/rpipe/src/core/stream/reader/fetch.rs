//! The message that is being taken, whose bytes the reader may have to get from the writer's heap.

use std::sync::atomic::Ordering::Relaxed;

use super::taken::Taken;
use crate::core::context::{Ready, UNAWAITED};
use crate::core::slot::Words as _;
use crate::core::stream::Patience;
use crate::core::stream::port::{OpNumbers, Port};
use crate::{Error, Get};

#[derive(Debug)]
pub(super) struct Fetch {
    ops: OpNumbers,
    /// The next message, of which something is got, or was, in a call whose time was over.
    fetching: Option<Fetching>,
}

#[derive(Debug)]
struct Fetching {
    taken: Taken,
    /// Operations that have not ended.
    ops: Vec<u32>,
    /// Where the word is to be stored that one of them fetches.
    word: Option<usize>,
    /// Of one that has failed.
    fault: Option<Error>,
}

impl Fetch {
    pub(super) fn new() -> Fetch {
        Fetch { ops: OpNumbers::after(UNAWAITED), fetching: None }
    }

    /// The message that is being taken.
    pub(super) fn taken(&self) -> Option<&Taken> {
        self.fetching.as_ref().map(|fetching| &fetching.taken)
    }

    /// A message is being taken, of whose bytes none is to be got yet.
    pub(super) fn begin(&mut self, taken: Taken) {
        self.fetching = Some(Fetching { taken, ops: Vec::new(), word: None, fault: None });
    }

    /// Begins to get its bytes from the writer's heap: a word by an atomic, else by a read.
    pub(super) fn get(
        &mut self,
        port: &Port,
        ready: &Ready,
        (offset, len): (usize, usize),
    ) -> Result<(), Error> {
        let Some(fetching) = &mut self.fetching else { return Ok(()) };
        let (promise, shape, remote) = (&ready.promise, ready.met.shape, ready.theirs.remote);
        let (from, to) = (shape.writer_heap_at() + offset, shape.heap_at() + offset);
        let most = promise.most.max(64);
        let is_word = len <= 8 && promise.fetch;
        fetching.word = is_word.then_some(to);
        for begin in (0..len).step_by(most) {
            let op = self.ops.next();
            let get = Get {
                from: port.peer(),
                remote: (remote, from + begin),
                to: (ready.mine.id, to + begin),
                len: (len - begin).min(most),
                token: port.token(op),
            };
            let posted = port.post(Patience::Forever, |backend| match is_word {
                true => backend.fetch_add(port.peer(), (remote, from), 0, port.token(op)),
                false => backend.get(&get),
            });
            if let Err(fault) = posted {
                // What is under way is waited for, and the message is never handed out without its bytes.
                fetching.fault = Some(fault.clone());
                return Err(fault);
            }
            fetching.ops.push(op);
        }
        Ok(())
    }

    /// Waits for what is got of the message that is being taken.
    pub(super) fn settle(&mut self, port: &Port, ready: &Ready, patience: Patience) -> Result<(), Error> {
        let Some(fetching) = &mut self.fetching else { return Ok(()) };
        while let Some(op) = fetching.ops.last() {
            match (port.await_op(*op, patience), fetching.word) {
                (Err(Error::Again), _) => return Err(Error::Again),
                (Err(fault), _) => drop(fetching.fault.get_or_insert(fault)),
                (Ok(value), Some(to)) => ready.mine.memory.store(to, value, Relaxed),
                (Ok(_), None) => {}
            }
            fetching.ops.pop();
        }
        // Without its bytes the message stays, and each call says why.
        fetching.fault.clone().map_or(Ok(()), Err)
    }

    /// The message, whose bytes are there.
    pub(super) fn finish(&mut self) -> Option<Taken> {
        self.fetching.take().map(|fetching| fetching.taken)
    }
}
