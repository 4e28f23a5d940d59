//! Operations of a stream: starting them, and waiting for their ends.

use super::Patience;
use super::wait::{Turn, Waiting};
use crate::core::context::{Context, Inner};
use crate::{Error, Token};

pub(super) fn token(no: u32, op: u32) -> Token {
    Token(u64::from(no) << 32 | u64::from(op))
}

/// Starts an operation, as soon as the backend takes it. `Again`: it has not within the time.
pub(super) fn post(
    context: &Context,
    no: u32,
    patience: Patience,
    mut start: impl FnMut(&mut Inner) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut waiting = Waiting::new(patience, false);
    loop {
        let mut inner = context.lock();
        match start(&mut inner) {
            Err(Error::Again) => inner.can_reach(no)?,
            other => return other,
        }
        drop(inner);
        if waiting.turn(context)? == Turn::Sleep {
            std::thread::yield_now();
        }
    }
}

/// Waits for the end of an operation. `Again`: it has none yet.
pub(super) fn await_op(context: &Context, no: u32, op: u32, patience: Patience) -> Result<u64, Error> {
    let mut waiting = Waiting::new(patience, false);
    loop {
        let mut inner = context.lock();
        if let Some(outcome) = inner.take_done(no, op) {
            return outcome;
        }
        inner.can_reach(no)?;
        drop(inner);
        if waiting.turn(context)? == Turn::Sleep {
            waiting.sleep(context, false);
        }
    }
}
