//! Operations of a stream: starting them, and waiting for their ends.

use super::Patience;
use super::wait::{Turn, Waiting};
use crate::context::{Context, Inner};
use crate::{Error, Token};

pub(super) fn token(no: u32, op: u32) -> Token {
    Token(u64::from(no) << 32 | u64::from(op))
}

/// Starts an operation, as soon as the backend takes it.
pub(super) fn post(
    context: &Context,
    no: u32,
    mut start: impl FnMut(&mut Inner) -> Result<(), Error>,
) -> Result<(), Error> {
    loop {
        let mut inner = context.lock();
        match start(&mut inner) {
            Err(Error::Again) => {}
            other => return other,
        }
        inner.progress()?;
        inner.still_there(no)?;
        drop(inner);
        std::thread::yield_now();
    }
}

/// Waits for the end of an operation.
pub(super) fn await_op(context: &Context, no: u32, op: u32) -> Result<u64, Error> {
    let mut waiting = Waiting::new(Patience::Forever, false);
    loop {
        let mut inner = context.lock();
        if let Some(outcome) = inner.take_done(no, op) {
            return outcome;
        }
        inner.still_there(no)?;
        drop(inner);
        if waiting.turn(context)? == Turn::Sleep {
            waiting.sleep(context, false);
        }
    }
}
