//! A message whose bytes the reader gets from the writer's heap.

use std::sync::atomic::Ordering::Relaxed;

use super::Reader;
use crate::core::slot::Words as _;
use crate::core::stream::Patience;
use crate::core::stream::post::{await_op, post, token};
use crate::{Error, Get};

impl Reader {
    /// Begins to get a message's bytes from the writer's heap: a word by an atomic, else by a read.
    pub(super) fn fetch(&mut self, offset: usize, len: usize) -> Result<(), Error> {
        let (no, peer, context) = (self.no, self.peer, self.context.clone());
        let up = self.up()?;
        let (promise, remote) = (up.ready.promise.clone(), up.ready.theirs.remote);
        let (from, to) = (up.shape.writer_heap_at() + offset, up.heap_at + offset);
        let most = promise.most.max(64);
        let is_word = len <= 8 && promise.fetch;
        let (mut ops, mut fault) = (Vec::new(), None);
        for begin in (0..len).step_by(most) {
            let op = up.next_op();
            let get = Get {
                from: peer,
                remote: (remote, from + begin),
                to: (up.ready.mine.id, to + begin),
                len: (len - begin).min(most),
                token: token(no, op),
            };
            let posted = post(&context, no, Patience::Forever, |inner| match is_word {
                true => inner.backend.fetch_add(peer, (remote, from), 0, token(no, op)),
                false => inner.backend.get(&get),
            });
            if let Err(e) = posted {
                // What is under way is waited for, and the message is never handed out without its bytes.
                fault = Some(e);
                break;
            }
            ops.push(op);
        }
        if let Some(fetching) = &mut up.fetching {
            (fetching.ops, fetching.word, fetching.fault) = (ops, is_word.then_some(to), fault.clone());
        }
        fault.map_or(Ok(()), Err)
    }

    /// Waits for what is got of the message that is being taken.
    pub(super) fn await_fetched(&mut self, patience: Patience) -> Result<(), Error> {
        let no = self.no;
        loop {
            let up = self.up.as_deref_mut().ok_or(Error::Again)?;
            let Some(fetching) = &mut up.fetching else { return Ok(()) };
            let Some(op) = fetching.ops.last() else {
                // Without its bytes the message stays, and each call says why.
                return fetching.fault.clone().map_or(Ok(()), Err);
            };
            match (await_op(&self.context, no, *op, patience), fetching.word) {
                (Err(Error::Again), _) => return Err(Error::Again),
                (Err(fault), _) => drop(fetching.fault.get_or_insert(fault)),
                (Ok(value), Some(to)) => up.memory.store(to, value, Relaxed),
                (Ok(_), None) => {}
            }
            fetching.ops.pop();
        }
    }
}
