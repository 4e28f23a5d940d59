//! Which messages the path copies when they are written.

use super::Mode;
use crate::context::Ready;
use crate::settings::INJECT_MOST;

/// The longest message behind its slot that the path copies, where what is put later becomes visible later: its block is free at once, and
/// there is no completion to take.
pub(super) fn most_injected(asked: Option<usize>, ready: &Ready) -> usize {
    let (promise, manner) = (&ready.promise, &ready.met.manner);
    let sound = promise.between && !manner.pull && !matches!(manner.mode, Mode::Store | Mode::Delivered);
    if sound { asked.unwrap_or(promise.eager).min(promise.inject).min(INJECT_MOST) } else { 0 }
}
